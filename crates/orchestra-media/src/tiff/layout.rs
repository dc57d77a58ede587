//! What the tags of a page say of its pixels. All that is not read is refused here, by name; nothing is decoded.

use memchr::memmem;

use crate::directory::Directory;
use crate::error::MediaError;
use crate::format::Format;

// Tags.
const WIDTH: u16 = 256;
const HEIGHT: u16 = 257;
const BITS_PER_SAMPLE: u16 = 258;
const COMPRESSION: u16 = 259;
const PHOTOMETRIC: u16 = 262;
const FILL_ORDER: u16 = 266;
const DESCRIPTION: u16 = 270;
const STRIP_OFFSETS: u16 = 273;
const SAMPLES_PER_PIXEL: u16 = 277;
const ROWS_PER_STRIP: u16 = 278;
const STRIP_BYTES: u16 = 279;
const PLANES: u16 = 284;
const PREDICTOR: u16 = 317;
const COLOR_MAP: u16 = 320;
const TILE_WIDTH: u16 = 322;
const TILE_HEIGHT: u16 = 323;
const TILE_OFFSETS: u16 = 324;
const TILE_BYTES: u16 = 325;
const INK_SET: u16 = 332;
const EXTRA_SAMPLES: u16 = 338;
const SAMPLE_FORMAT: u16 = 339;
const JPEG_TABLES: u16 = 347;
const IMAGE_DEPTH: u16 = 32997;
const TILE_DEPTH: u16 = 32998;

/// Tags of numbers that have a default, which holds only where the tag is not there.
const WITH_DEFAULTS: [u16; 13] = [
    BITS_PER_SAMPLE,
    COMPRESSION,
    FILL_ORDER,
    SAMPLES_PER_PIXEL,
    ROWS_PER_STRIP,
    PLANES,
    PREDICTOR,
    INK_SET,
    EXTRA_SAMPLES,
    SAMPLE_FORMAT,
    IMAGE_DEPTH,
    TILE_DEPTH,
    TILE_OFFSETS,
];

/// More samples of a pixel than these are no picture.
const MOST_SAMPLES: u64 = 16;

/// Bytes of the tables that all strips or tiles share. Each is decoded with a copy of them.
const MOST_TABLES: usize = 1 << 16;

/// What converts most files.
const MAGICK: &str = "magick IN.tif -depth 8 OUT.png";
pub(super) const TIFFCP: &str = "tiffcp -c none IN.tif OUT.tif";
const GDAL: &str = "gdal_translate IN.tif OUT.tif";
/// Gives each plane a page.
const TIFFFILE: &str = "python3 -c 'import tifffile as t; p = t.TiffFile(\"IN.tif\"); t.imwrite(\"OUT.tif\", p.asarray(), photometric=p.pages[0].photometric, metadata=None)'";

/// How a page is stored, and what its samples mean.
#[derive(Debug)]
pub(super) struct PageLayout {
    pub width: u32,
    pub height: u32,
    /// Of a pixel, with alpha and what is left out.
    pub samples: usize,
    pub numbers: SampleFormat,
    pub ink: Ink,
    pub alpha: Alpha,
    pub packing: ChunkCoding,
    pub is_planar: bool,
    /// The lowest bit of a byte is its first.
    pub is_reversed: bool,
    /// Of a strip or tile.
    pub chunk: (u32, u32),
    /// Where strips or tiles are, and how many bytes they have.
    pub chunks: Vec<(u64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SampleFormat {
    /// A whole number of so many bits: 1, 2, 4, 8 or 16.
    Bits(u8),
    /// Of 32 bits, from 0 to 1.
    Float,
}

impl SampleFormat {
    pub fn bits(self) -> usize {
        match self {
            SampleFormat::Bits(bits) => bits.into(),
            SampleFormat::Float => 32,
        }
    }
}

/// What the first samples of a pixel mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ink {
    Gray,
    /// 0 is white.
    InvertedGray,
    Rgb,
    Cmyk,
    /// Places in a table of colours.
    Palette(Vec<[u8; 3]>),
}

impl Ink {
    pub fn samples(&self) -> usize {
        match self {
            Ink::Gray | Ink::InvertedGray | Ink::Palette(_) => 1,
            Ink::Rgb => 3,
            Ink::Cmyk => 4,
        }
    }
}

/// The sample behind the ink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alpha {
    None,
    Straight,
    /// The ink is multiplied with it ("associated").
    Premultiplied,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChunkCoding {
    /// The `tiff` crate unpacks it.
    Samples(Coding),
    /// Each strip or tile is a JPEG, without the tables that all share.
    Jpeg { tables: Vec<u8>, is_luma: bool },
}

/// The values of those tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Coding {
    pub compression: u64,
    pub predictor: u64,
}

impl Coding {
    pub const NONE: u64 = 1;
    pub const GROUP_4: u64 = 4;
}

impl PageLayout {
    /// # Errors
    /// `Unsupported` for what is not read, `Broken` for tags that are missing or contradict each other.
    pub fn of(page: &Directory<'_>) -> Result<PageLayout, MediaError> {
        let is_readable = |tag| page.numbers(tag).is_some_and(|numbers| !numbers.is_empty());
        if let Some(tag) = WITH_DEFAULTS.iter().find(|tag| page.entry(**tag).is_some() && !is_readable(**tag))
        {
            return Err(broken(format!("its entry {tag} has no whole numbers, or none within the file")));
        }
        let side = |tag, what| needed(page, tag, what).map(|side| u32::try_from(side).unwrap_or(u32::MAX));
        let (width, height) = (side(WIDTH, "its width")?, side(HEIGHT, "its height")?);
        let samples = page.number(SAMPLES_PER_PIXEL).unwrap_or(1);
        if samples == 0 || samples > MOST_SAMPLES {
            return Err(unsupported(format!("a pixel has {samples} samples, expected 1 to 5"), MAGICK));
        }
        let numbers = numbers(page)?;
        let (ink, is_luma) = ink(page, numbers)?;
        let samples = samples as usize;
        let alpha = alpha(page, &ink, samples)?;
        let packing = packing(page, numbers, samples, is_luma)?;
        let is_planar = match page.number(PLANES).unwrap_or(1) {
            1 => false,
            2 => samples > 1,
            other => return Err(broken(format!("its planar configuration is {other}, expected 1 or 2"))),
        };
        let is_reversed = page.number(FILL_ORDER) == Some(2) && matches!(packing, ChunkCoding::Samples(_));
        let (chunk, chunks) = chunks(page, (width, height))?;
        Ok(PageLayout {
            width,
            height,
            samples,
            numbers,
            ink,
            alpha,
            packing,
            is_planar,
            is_reversed,
            chunk,
            chunks,
        })
    }

    /// Refuses a page of which planes lie in the file that no directory names, by its tags or by what ImageJ and tifffile write into its description. `n_pages`:
    /// from this one to the last.
    pub fn check_stack(
        &self,
        page: &Directory<'_>,
        file_bytes: usize,
        n_pages: usize,
    ) -> Result<(), MediaError> {
        let depth = [IMAGE_DEPTH, TILE_DEPTH].iter().filter_map(|tag| page.number(*tag)).max();
        if let Some(depth) = depth.filter(|depth| *depth > 1) {
            return Err(unsupported(format!("it is a volume of {depth} slices (ImageDepth)"), TIFFFILE));
        }
        let samples = u64::from(self.width) * u64::from(self.height) * self.samples as u64;
        let bytes = samples.saturating_mul(self.numbers.bits() as u64) / 8;
        // Another program may have cut the page out of its stack, and kept the description.
        let are_there = self.chunks[0].0.saturating_add(2 * bytes) <= file_bytes as u64;
        let n = described_planes(page.bytes(DESCRIPTION).unwrap_or_default(), samples).unwrap_or(1);
        if n > n_pages as u64 && are_there {
            let what = format!("its description says that {n} planes are in it, and it has {n_pages} pages");
            return Err(unsupported(what, TIFFFILE));
        }
        Ok(())
    }
}

/// How many planes of so many samples a description speaks of: `ImageJ=..` with `images=N`, or the shape of an array, as tifffile writes it.
fn described_planes(description: &[u8], samples: u64) -> Option<u64> {
    let text = |bytes| str::from_utf8(bytes).ok();
    if description.starts_with(b"ImageJ=") {
        let mut lines = description.split(|byte| *byte == b'\n');
        return text(lines.find_map(|line| line.strip_prefix(b"images="))?)?.trim().parse().ok();
    }
    let rest = match description.strip_prefix(b"shape=(") {
        Some(rest) => rest,
        None if description.starts_with(b"{") => {
            const SHAPE: &[u8] = b"\"shape\": [";
            &description[memmem::find(description, SHAPE)? + SHAPE.len()..]
        }
        None => return None,
    };
    let numbers = text(rest.split(|byte| b")]".contains(byte)).next()?)?;
    let sides = numbers.split(',').map(str::trim).filter(|side| !side.is_empty());
    let product = sides.map(|side| side.parse().ok()).try_fold(1_u64, |all, side| all.checked_mul(side?))?;
    product.checked_div(samples)
}

fn broken(reason: String) -> MediaError {
    MediaError::Broken { format: Format::Tiff, reason }
}

pub(super) fn unsupported(what: String, convert: &'static str) -> MediaError {
    MediaError::Unsupported { format: Format::Tiff, what, convert }
}

fn needed(page: &Directory<'_>, tag: u16, what: &str) -> Result<u64, MediaError> {
    page.number(tag).ok_or_else(|| broken(format!("{what} is missing (tag {tag})")))
}

fn numbers(page: &Directory<'_>) -> Result<SampleFormat, MediaError> {
    let same = |tag, default, what| {
        let values = page.numbers(tag).unwrap_or_else(|| vec![default]);
        match values.split_first() {
            Some((first, others)) if others.iter().all(|other| other == first) => Ok(*first),
            Some(_) => Err(unsupported(format!("its samples have different {what} ({values:?})"), MAGICK)),
            None => Ok(default),
        }
    };
    let (bits, format) = (same(BITS_PER_SAMPLE, 1, "bits")?, same(SAMPLE_FORMAT, 1, "formats")?);
    let kind = match (format, bits) {
        (1, 1 | 2 | 4 | 8 | 16) => return Ok(SampleFormat::Bits(bits as u8)),
        (3, 32) => return Ok(SampleFormat::Float),
        (1, _) => "whole numbers",
        (2, _) => "whole numbers with a sign",
        (3, _) => "floats",
        (4, _) => "of an undefined format",
        (5 | 6, _) => "complex numbers",
        _ => "of an unknown format",
    };
    let what = format!(
        "its samples are {kind} of {bits} bits, expected whole numbers of 1, 2, 4, 8 or 16 bits without a sign, or floats of 32 bits from 0 to 1"
    );
    Err(unsupported(what, MAGICK))
}

/// What the samples mean, and whether they are luma and chroma, of which only a JPEG makes colours.
fn ink(page: &Directory<'_>, numbers: SampleFormat) -> Result<(Ink, bool), MediaError> {
    let photometric = page.number(PHOTOMETRIC).ok_or_else(|| {
        unsupported(format!("it does not say what its samples mean (tag {PHOTOMETRIC})"), MAGICK)
    })?;
    let name = match photometric {
        0 => return Ok((Ink::InvertedGray, false)),
        1 => return Ok((Ink::Gray, false)),
        2 => return Ok((Ink::Rgb, false)),
        3 => return Ok((palette(page, numbers)?, false)),
        5 if page.number(INK_SET).unwrap_or(1) != 1 => "other inks than CMYK",
        5 if numbers == SampleFormat::Float => "CMYK in floats",
        5 => return Ok((Ink::Cmyk, false)),
        6 if page.number(COMPRESSION) == Some(7) => return Ok((Ink::Rgb, true)),
        6 => "YCbCr that is not packed as JPEG",
        4 => "a transparency mask",
        8..=10 => "CIE L*a*b*",
        32803 => "the colour filters of a camera (CFA)",
        32844 | 32845 => "LogLuv",
        34892 => "raw sensor data",
        _ => "unknown to this program",
    };
    let what = format!("its pixels are {name} (PhotometricInterpretation {photometric})");
    Err(unsupported(what, "magick IN.tif -colorspace sRGB -depth 8 OUT.png"))
}

/// The colours of a palette. Their 16 bits are cut to 8, as libtiff and Pillow do; a table that has 8 bits nevertheless is taken as it is.
fn palette(page: &Directory<'_>, numbers: SampleFormat) -> Result<Ink, MediaError> {
    let SampleFormat::Bits(bits @ 1..=8) = numbers else {
        return Err(unsupported(
            format!("it has a palette of {} bits, expected 1 to 8", numbers.bits()),
            MAGICK,
        ));
    };
    let n = 1 << bits;
    let values = page.numbers(COLOR_MAP).filter(|values| values.len() == 3 * n);
    let values =
        values.ok_or_else(|| broken(format!("its palette has not {n} colours (tag {COLOR_MAP})")))?;
    let shift = if values.iter().all(|value| *value < 256) { 0 } else { 8 };
    let colour = |index| [0, n, 2 * n].map(|plane| (values[plane + index] >> shift) as u8);
    Ok(Ink::Palette((0..n).map(colour).collect()))
}

fn alpha(page: &Directory<'_>, ink: &Ink, samples: usize) -> Result<Alpha, MediaError> {
    let extra = page.numbers(EXTRA_SAMPLES).unwrap_or_default();
    let Some(n_extra) = samples.checked_sub(ink.samples()) else {
        let what = format!("a pixel has {samples} samples, expected {} at least", ink.samples());
        return Err(unsupported(what, MAGICK));
    };
    // Alpha is read as the sample behind the ink, and nowhere else.
    let others = extra.get(1..).unwrap_or_default();
    if extra.len() > n_extra || extra.iter().any(|kind| *kind > 2) || others.iter().any(|kind| *kind != 0) {
        let what = format!(
            "a pixel has {samples} samples, and those behind its colours are of the kinds {extra:?} (ExtraSamples), expected alpha (1 or 2) as the first of them or none"
        );
        return Err(unsupported(what, MAGICK));
    }
    let first = match (n_extra, extra.first()) {
        (0, _) => return Ok(Alpha::None),
        (_, Some(first)) => *first,
        // Many programs write RGBA so.
        (1, None) if *ink == Ink::Rgb => 2,
        (_, None) => 0,
    };
    match (first, ink) {
        (1 | 2, Ink::Cmyk) => Err(unsupported("it has CMYK with alpha".to_owned(), MAGICK)),
        (1, Ink::InvertedGray | Ink::Palette(_)) => {
            let what = "it has associated alpha with a palette or with white as 0".to_owned();
            Err(unsupported(what, MAGICK))
        }
        (1, _) => Ok(Alpha::Premultiplied),
        (2, _) => Ok(Alpha::Straight),
        // Known colours, and something else, such as infrared.
        (_, Ink::Rgb | Ink::Cmyk) => Ok(Alpha::None),
        _ => {
            let what = format!("a pixel has {samples} samples, of which it does not say what they are");
            Err(unsupported(what, MAGICK))
        }
    }
}

fn packing(
    page: &Directory<'_>,
    numbers: SampleFormat,
    samples: usize,
    is_luma: bool,
) -> Result<ChunkCoding, MediaError> {
    let compression = page.number(COMPRESSION).unwrap_or(1);
    // As libtiff: a predictor beside another compression has no effect.
    let predictor = match compression {
        5 | 8 | 32946 => page.number(PREDICTOR).unwrap_or(1),
        _ => 1,
    };
    let samples_as_coded = Ok(ChunkCoding::Samples(Coding { compression, predictor }));
    let is_float = numbers == SampleFormat::Float;
    if !(predictor == 1 || predictor == 2 && numbers.bits() >= 8 || predictor == 3 && is_float) {
        let what = format!("it has predictor {predictor} with samples of {} bits", numbers.bits());
        return Err(unsupported(what, TIFFCP));
    }
    let name = match compression {
        1 | 5 | 8 | 32946 | 32773 => return samples_as_coded,
        4 if numbers == SampleFormat::Bits(1) && samples == 1 => return samples_as_coded,
        7 if numbers == SampleFormat::Bits(8) && matches!(samples, 1 | 3) => {
            let tables = page.bytes(JPEG_TABLES).unwrap_or_default();
            if tables.len() > MOST_TABLES {
                return Err(broken(format!("its JPEG tables have {} bytes", tables.len())));
            }
            return Ok(ChunkCoding::Jpeg { tables: tables.to_vec(), is_luma });
        }
        7 => {
            return Err(unsupported(
                "it has JPEG of other pixels than 8 bits gray, RGB or YCbCr".to_owned(),
                MAGICK,
            ));
        }
        2 => "CCITT RLE (fax)",
        3 => "CCITT Group 3 (fax)",
        4 => "CCITT Group 4 (fax) of other pixels than 1 bit",
        6 => "old-style JPEG",
        32809 => "ThunderScan",
        33003 | 33005 | 34712 => "JPEG 2000",
        34676 | 34677 => "SGILog",
        34887 => "LERC",
        34892 => "lossy JPEG of DNG",
        34925 => "LZMA",
        50000 => "Zstandard",
        50001 => "WebP",
        50002 => "JPEG XL",
        _ => "unknown to this program",
    };
    Err(unsupported(format!("its compression is {name} ({compression})"), TIFFCP))
}

/// The width and height of strips or tiles, and where in the file each of them begins and how long it is.
type ChunkTable = ((u32, u32), Vec<(u64, u64)>);

/// The size of strips or tiles, and where they are.
fn chunks(page: &Directory<'_>, (width, height): (u32, u32)) -> Result<ChunkTable, MediaError> {
    let side = |tag| page.number(tag).map(|side| u32::try_from(side).unwrap_or(u32::MAX));
    let is_tiled = page.entry(TILE_OFFSETS).is_some();
    let (offsets, bytes) = if is_tiled { (TILE_OFFSETS, TILE_BYTES) } else { (STRIP_OFFSETS, STRIP_BYTES) };
    let chunk = match is_tiled {
        true => (side(TILE_WIDTH).unwrap_or(0), side(TILE_HEIGHT).unwrap_or(0)),
        // "All lines" is written as the largest number.
        false => (width, side(ROWS_PER_STRIP).unwrap_or(height).min(height)),
    };
    let numbers = |tag, what| {
        let missing = || unsupported(format!("it does not say {what} (tag {tag})"), TIFFCP);
        page.numbers(tag).filter(|numbers| !numbers.is_empty()).ok_or_else(missing)
    };
    let offsets = numbers(offsets, "where its strips or tiles are")?;
    let bytes = numbers(bytes, "how long its strips or tiles are")?;
    if offsets.len() != bytes.len() || chunk.0 == 0 || chunk.1 == 0 {
        let what = format!(
            "it says of {} strips or tiles of {}x{} pixels where they are, and of {} how long they are",
            offsets.len(),
            chunk.0,
            chunk.1,
            bytes.len()
        );
        return Err(unsupported(what, TIFFCP));
    }
    let chunks: Vec<(u64, u64)> = offsets.into_iter().zip(bytes).collect();
    let n_absent = chunks.iter().filter(|(at, length)| *at == 0 || *length == 0).count();
    if n_absent > 0 {
        let what = format!("{n_absent} of its {} strips or tiles are not in the file (sparse)", chunks.len());
        return Err(unsupported(what, GDAL));
    }
    Ok((chunk, chunks))
}
