//! Decodes JPEG, also within TIFF, with libjpeg-turbo-rs, whose pixels are those of libjpeg-turbo, into a reused buffer. It accepts no damaged file: what is missing is
//! never filled with gray.

use libjpeg_turbo_rs::{ColorSpace, DecodeLimits, Decoder, JpegError, PixelFormat, ScalingFactor};

use crate::containers::n_behind;
use crate::directory::Directories;
use crate::error::MediaError;
use crate::format::Format;
use crate::jpeg_markers::{END, is_gain_map, markers};
use crate::orientation::Orientation;
use crate::picture::{Downscale, PictureInfo, PictureSize, PixelKind, check_size, most_memory, room_for};

const FORMAT: Format = Format::Jpeg;

// Markers.
const FRAME_OF_PROGRESSIVE: u8 = 0xc2;
const SCAN: u8 = 0xda;
const APP1: u8 = 0xe1;
const APP2: u8 = 0xe2;
const JPEG_LS: u8 = 0xf7;
/// What stands in front of XMP in its segment.
const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";

const MAGICK: &str = "magick IN.jpg -depth 8 OUT.png";

/// Most scans of a picture. A progressive one has about ten; each costs a walk over all of the picture, however few bytes it has, so that a
/// small file of very many would keep a processor busy for hours.
const MOST_SCANS: usize = 500;

/// Decodes `bytes` into `pixels`: one byte per pixel for a gray file, else three. `reduce` is asked for the reduction once the size as shown is
/// known.
pub(crate) fn decode(
    bytes: &[u8],
    max_pixels: u64,
    reduce: &dyn Fn(PictureSize) -> Downscale,
    pixels: &mut Vec<u8>,
) -> Result<PictureInfo, MediaError> {
    let sorted = |error| sort(error, max_pixels);
    let (mut decoder, end) = open(bytes, max_pixels)?;
    let frame = decoder.header();
    let (kind, format) = match frame.components.len() {
        1 => (PixelKind::Gray, PixelFormat::Grayscale),
        _ => (PixelKind::Rgb, PixelFormat::Rgb),
    };
    // A picture is not lost for its metadata.
    let turn = decoder.exif_data().and_then(Orientation::in_exif_block);
    let turn = turn.or_else(|| Orientation::in_xmp(head_segment(bytes, APP1, XMP)?)).unwrap_or_default();
    let info = PictureInfo::full(frame.width.into(), frame.height.into(), kind, turn);
    let info = info.one_of(n_pictures(bytes, end));
    let info = info.reduced(reduce(info.shown_size()));
    decoder.set_output_format(format);
    decoder.set_scale(ScalingFactor::try_new(1, info.reduction.factor()).map_err(sorted)?);
    write_all(&decoder, (info.width, info.height), kind, max_pixels, pixels)?;
    Ok(info)
}

/// How many pictures the index of an MPO names (CIPA DC-007), such as those of both eyes; without one, how many there are from the end of the first.
/// Smaller copies and the maps of HDR pictures are none.
fn n_pictures(bytes: &[u8], end: usize) -> u32 {
    const INDEX: u16 = 0xb002;
    /// Type, size, place, and two pictures that it depends on.
    const ENTRY: usize = 16;
    const SMALLER_COPY: u32 = 0x01;
    let mpo = mpo_index(bytes).and_then(|(at, index)| Some((at, index, Directories::of(index)?.first()?)));
    let Some((at, index, directory)) = mpo else { return n_behind(bytes, Some(end)).saturating_add(1) };
    let entries = directory.bytes(INDEX).unwrap_or_default().as_chunks::<ENTRY>().0;
    let number = |entry: &[u8; ENTRY], from: usize| {
        let number = [0, 1, 2, 3].map(|byte| entry[from + byte]);
        if index.starts_with(b"MM") { u32::from_be_bytes(number) } else { u32::from_le_bytes(number) }
    };
    let is_picture = |entry: &&[u8; ENTRY]| {
        let place = at.saturating_add(number(entry, 8) as usize);
        number(entry, 0) >> 16 & 0xff != SMALLER_COPY && !is_gain_map(bytes.get(place..).unwrap_or_default())
    };
    let others = entries.iter().skip(1).filter(is_picture).count();
    u32::try_from(others).unwrap_or(u32::MAX).saturating_add(1)
}

/// The directory of the index of an MPO, and where in the file it lies.
fn mpo_index(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let index = head_segment(bytes, APP2, b"MPF\0")?;
    Some((index.as_ptr().addr() - bytes.as_ptr().addr(), index))
}

/// What stands behind `name` in the first segment of that name in front of the pixels.
fn head_segment<'a>(bytes: &'a [u8], marker: u8, name: &[u8]) -> Option<&'a [u8]> {
    let mut head = markers(bytes).take_while(|(marker, ..)| !matches!(*marker, SCAN | END));
    head.find_map(|(found, payload, _)| payload.strip_prefix(name).filter(|_| found == marker))
}

/// What the samples of a strip or tile of a TIFF become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColorTransform {
    /// As they are: gray, or red, green and blue, whatever the markers of the JPEG say.
    Stored,
    /// Luma and chroma to red, green and blue.
    FromLuma,
}

/// Decodes a strip or a tile of a TIFF into `pixels`, one byte per sample. Gives its width and height, and how many samples a pixel has.
pub(crate) fn decode_chunk(
    bytes: &[u8],
    max_pixels: u64,
    samples: ColorTransform,
    pixels: &mut Vec<u8>,
) -> Result<(PictureSize, usize), MediaError> {
    let (mut decoder, _) = open(bytes, max_pixels)?;
    let frame = decoder.header();
    let (width, height) = (frame.width.into(), frame.height.into());
    let kind = match frame.components.len() {
        1 => PixelKind::Gray,
        3 => PixelKind::Rgb,
        n => {
            let reason = format!("it holds a JPEG of {n} components, expected 1 or 3");
            return Err(MediaError::Broken { format: FORMAT, reason });
        }
    };
    match (kind, samples) {
        (PixelKind::Gray, _) => decoder.set_output_format(PixelFormat::Grayscale),
        (_, ColorTransform::Stored) if decoder.jpeg_color_space() == ColorSpace::YCbCr => {
            decoder.set_output_colorspace(ColorSpace::YCbCr);
        }
        _ => decoder.set_output_format(PixelFormat::Rgb),
    }
    write_all(&decoder, (width, height), kind, max_pixels, pixels)?;
    Ok((PictureSize { width, height }, kind.channels()))
}

/// Reads the headers, within the limits. Gives where the picture ends, too.
fn open(bytes: &[u8], max_pixels: u64) -> Result<(Decoder<'_>, usize), MediaError> {
    let end = check_scans(bytes)?;
    let limits = DecodeLimits {
        max_width: usize::from(u16::MAX),
        max_height: usize::from(u16::MAX),
        max_pixels,
        max_scans: MOST_SCANS,
        max_memory: Some(most_memory(max_pixels)),
    };
    let decoder = Decoder::new_with_limits(bytes, limits).map_err(|error| sort(error, max_pixels))?;
    let frame = decoder.header();
    check_size(FORMAT, frame.width.into(), frame.height.into(), max_pixels)?;
    check_coding(&decoder)?;
    Ok((decoder, end))
}

fn write_all(
    decoder: &Decoder<'_>,
    (width, height): (u32, u32),
    kind: PixelKind,
    max_pixels: u64,
    pixels: &mut Vec<u8>,
) -> Result<(), MediaError> {
    // Not cleared: a picture that is not written to its end is an error.
    room_for(FORMAT, (width, height), pixels, width as usize * height as usize * kind.channels())?;
    let decoded = decoder.decode_image_into(pixels).map_err(|error| sort(error, max_pixels))?;
    if decoded.bytes_written != pixels.len() {
        let reason = format!("{} of its {} bytes were decoded", decoded.bytes_written, pixels.len());
        return Err(MediaError::Broken { format: FORMAT, reason });
    }
    Ok(())
}

/// Checks that the picture has its end, and that its scans bring all bits of all coefficients: a decoder fills what is missing with smooth pixels. Gives the
/// byte behind its end.
fn check_scans(bytes: &[u8]) -> Result<usize, MediaError> {
    let cut = |what| MediaError::Truncated { format: FORMAT, what };
    // By component: how many of the lowest bits of each coefficient are still to come. 255: all of them.
    let mut missing: Vec<(u8, [u8; 64])> = Vec::new();
    let mut is_progressive = false;
    for (marker, payload, end) in markers(bytes) {
        match marker {
            JPEG_LS => return Err(unsupported("it is a JPEG-LS", "ffmpeg -i IN.jpg OUT.png")),
            0xc0..=FRAME_OF_PROGRESSIVE if missing.is_empty() => {
                is_progressive = marker == FRAME_OF_PROGRESSIVE;
                // Precision, height, width and a count, and then an identifier, sampling and a table of each.
                let components = payload.get(6..).unwrap_or_default().as_chunks::<3>().0;
                missing.extend(components.iter().map(|[id, ..]| (*id, [255; 64])));
            }
            SCAN => {
                // A count, an identifier and tables of each component, and then which coefficients and bits these are.
                let [n, rest @ ..] = payload else { continue };
                let Some((components, &[first, last, bits, ..])) = rest.split_at_checked(2 * usize::from(*n))
                else {
                    continue;
                };
                let (range, before, after) = match is_progressive {
                    true => (first.into()..=last.into(), bits >> 4, bits & 15),
                    false => (0..=63, 0, 0),
                };
                for [id, _] in components.as_chunks().0 {
                    for (_, coefficients) in missing.iter_mut().filter(|(component, _)| component == id) {
                        let of_scan = coefficients.get_mut(range.clone()).unwrap_or_default();
                        // A scan that brings a further bit does so behind the one before it.
                        let is_next = |missing: &&mut u8| before == 0 || **missing == before;
                        of_scan.iter_mut().filter(is_next).for_each(|missing| *missing = after);
                    }
                }
            }
            END if missing.iter().all(|(_, bits)| bits.iter().all(|bits| *bits == 0)) => return Ok(end),
            END => return Err(cut("some of its scans are missing")),
            _ => {}
        }
    }
    Err(cut("its end marker is missing"))
}

/// Refuses by name what hardly any program writes and few read: less code is open to files that were made to break it.
fn check_coding(decoder: &Decoder<'_>) -> Result<(), MediaError> {
    let frame = decoder.header();
    let (what, convert) = match (decoder.is_arithmetic(), frame.is_lossless) {
        (true, _) => (
            "its coding is arithmetic, expected Huffman codes".to_owned(),
            "jpegtran -outfile OUT.jpg IN.jpg",
        ),
        (_, true) => ("its coding is lossless, expected baseline or progressive".to_owned(), MAGICK),
        _ => match (frame.precision, frame.components.len()) {
            (8, 1 | 3 | 4) => return Ok(()),
            (8, count) => (format!("it has {count} components, expected 1, 3 or 4"), MAGICK),
            (bits, _) => (format!("it has {bits} bits per component, expected 8"), MAGICK),
        },
    };
    Err(unsupported(&what, convert))
}

fn unsupported(what: &str, convert: &'static str) -> MediaError {
    MediaError::Unsupported { format: FORMAT, what: what.to_owned(), convert }
}

/// The decoder's error as one of ours.
fn sort(error: JpegError, max_pixels: u64) -> MediaError {
    match error {
        JpegError::UnexpectedEof => {
            MediaError::Truncated { format: FORMAT, what: "it ends before its picture does" }
        }
        JpegError::LimitExceeded { what, limit, .. } if what.starts_with("scan count") => {
            let reason = format!("it has very many scans, expected at most {limit}");
            MediaError::Broken { format: FORMAT, reason }
        }
        JpegError::AllocationFailed { .. } => {
            MediaError::NoMemory { format: FORMAT, reason: error.to_string() }
        }
        JpegError::LimitExceeded { .. } => {
            MediaError::TooMuchMemory { format: FORMAT, max_pixels, reason: error.to_string() }
        }
        JpegError::Unsupported(what) => unsupported(&what, MAGICK),
        other => MediaError::Broken { format: FORMAT, reason: other.to_string() },
    }
}
