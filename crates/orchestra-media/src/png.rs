//! Decodes the plain kind of small PNG without allocating: 8 bit gray or RGB, not interlaced. All others, and whatever is not flawless, it
//! leaves to the general decoder, which has the last word on what is wrong with a file.
//!
//! A general decoder takes memory and fills tables for each file; of a picture of a few thousand pixels that is most of its time.

use std::fmt;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};

use crate::orientation::Orientation;
use crate::picture::{PictureInfo, PixelKind};

/// Bytes of filtered rows up to which a picture is small. Beyond, the general decoder's inflater is the faster one.
const SMALL_BYTES: usize = 1 << 16;

const FLAGS: u32 = inflate_flags::TINFL_FLAG_PARSE_ZLIB_HEADER
    | inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF
    // As the general decoder: each chunk has a checksum of its own.
    | inflate_flags::TINFL_FLAG_IGNORE_ADLER32;

/// Inflater and its reused memory.
#[derive(Default)]
pub(crate) struct PngReader {
    inflater: Box<DecompressorOxide>,
    /// The data of a file that has it in several chunks.
    packed: Vec<u8>,
    /// Rows as stored: a filter and the filtered bytes.
    filtered: Vec<u8>,
}

impl fmt::Debug for PngReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PngReader").finish_non_exhaustive()
    }
}

/// What the chunks of a plain file say.
struct Plain<'a> {
    width: u32,
    height: u32,
    kind: PixelKind,
    orientation: Orientation,
    /// All of the data; none where it is in several chunks, and gathered.
    data: Option<&'a [u8]>,
}

impl PngReader {
    /// Decodes `bytes`, which begin with PNG's signature, into `pixels`. None: the file is for the general decoder.
    pub(crate) fn decode(
        &mut self,
        bytes: &[u8],
        max_pixels: u64,
        pixels: &mut Vec<u8>,
    ) -> Option<PictureInfo> {
        let plain = self.chunks(bytes, max_pixels)?;
        let row = plain.width as usize * plain.kind.channels();
        let height = plain.height as usize;
        self.filtered.resize((row + 1) * height, 0);
        self.inflater.init();
        let data = plain.data.unwrap_or(&self.packed);
        let (status, _, written) = decompress(&mut self.inflater, data, &mut self.filtered, 0, FLAGS);
        if status != TINFLStatus::Done || written != self.filtered.len() {
            return None;
        }
        pixels.resize(row * height, 0);
        match plain.kind {
            PixelKind::Gray => unfilter::<1>(&self.filtered, row, pixels)?,
            _ => unfilter::<3>(&self.filtered, row, pixels)?,
        }
        Some(PictureInfo::full(plain.width, plain.height, plain.kind, plain.orientation))
    }

    /// Walks over all chunks and checks their checksums.
    fn chunks<'a>(&mut self, bytes: &'a [u8], max_pixels: u64) -> Option<Plain<'a>> {
        let (&[w0, w1, w2, w3, h0, h1, h2, h3, 8, color @ (0 | 2), 0, 0, 0], mut rest) =
            chunk(bytes.get(8..)?, b"IHDR")
                .and_then(|(payload, rest)| Some((payload.first_chunk()?, rest)))?
        else {
            return None;
        };
        let (width, height) = (u32::from_be_bytes([w0, w1, w2, w3]), u32::from_be_bytes([h0, h1, h2, h3]));
        let kind = if color == 0 { PixelKind::Gray } else { PixelKind::Rgb };
        let row = u64::from(width) * kind.channels() as u64 + 1;
        let small = row.saturating_mul(u64::from(height)) <= SMALL_BYTES as u64;
        if width == 0 || height == 0 || !small || u64::from(width) * u64::from(height) > max_pixels {
            return None;
        }
        let mut plain = Plain { width, height, kind, orientation: Orientation::UPRIGHT, data: None };
        let (mut n_data, mut is_over) = (0, false);
        loop {
            let name = rest.get(4..8)?;
            let (payload, behind) = chunk(rest, name)?;
            rest = behind;
            match name {
                b"IDAT" if is_over => return None,
                b"IDAT" => {
                    match n_data {
                        0 => plain.data = Some(payload),
                        1 => {
                            self.packed.clear();
                            self.packed.extend_from_slice(plain.data.take()?);
                            self.packed.extend_from_slice(payload);
                        }
                        _ => self.packed.extend_from_slice(payload),
                    }
                    n_data += 1;
                    continue;
                }
                b"IEND" if n_data > 0 => return Some(plain),
                b"eXIf" => plain.orientation = Orientation::from_exif_block(payload),
                // Transparency and animations change the picture; of a chunk that must be known, or a second header, nothing good can come.
                b"tRNS" | b"acTL" => return None,
                [first, ..] if first.is_ascii_uppercase() && name != b"PLTE" => return None,
                _ => {}
            }
            is_over = n_data > 0;
        }
    }
}

/// The payload of the chunk `name` that `rest` begins with, and what follows it. None where the name or the checksum is another one.
fn chunk<'a>(rest: &'a [u8], name: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (length, rest) = rest.split_first_chunk()?;
    let (named, rest) = rest.split_at_checked((u32::from_be_bytes(*length) as usize).checked_add(4)?)?;
    let (checksum, rest) = rest.split_first_chunk()?;
    let is_right = named.starts_with(name) && crc32fast::hash(named) == u32::from_be_bytes(*checksum);
    is_right.then(|| (&named[4..], rest))
}

/// Undoes the filter of each row, whose first byte names it. `N` bytes are a pixel.
fn unfilter<const N: usize>(filtered: &[u8], row: usize, pixels: &mut [u8]) -> Option<()> {
    for (y, stored) in filtered.chunks_exact(row + 1).enumerate() {
        let (above, from_here) = pixels.split_at_mut(y * row);
        let out = &mut from_here[..row];
        // Above the first row all is 0, which is what `filter` 0 to 2 and 4 need no row for.
        let above = above.len().checked_sub(row).map(|at| &above[at..]);
        let stored_row = &stored[1..];
        match (stored[0], above) {
            (0, _) | (2, None) => out.copy_from_slice(stored_row),
            (1, _) | (4, None) => sub::<N>(stored_row, out),
            (2, Some(above)) => {
                for ((out, stored), above) in out.iter_mut().zip(stored_row).zip(above) {
                    *out = stored.wrapping_add(*above);
                }
            }
            (3, above) => average::<N>(stored_row, above, out),
            (4, Some(above)) => paeth::<N>(stored_row, above, out),
            _ => return None,
        }
    }
    Some(())
}

/// The difference to the pixel on the left.
fn sub<const N: usize>(stored: &[u8], out: &mut [u8]) {
    let mut left = [0_u8; N];
    for (out, stored) in out.as_chunks_mut::<N>().0.iter_mut().zip(stored.as_chunks::<N>().0) {
        left = std::array::from_fn(|c| stored[c].wrapping_add(left[c]));
        *out = left;
    }
}

/// The difference to the mean of the pixels on the left and above.
fn average<const N: usize>(stored: &[u8], above: Option<&[u8]>, out: &mut [u8]) {
    let mut left = [0_u8; N];
    for (at, (out, stored)) in
        out.as_chunks_mut::<N>().0.iter_mut().zip(stored.as_chunks::<N>().0).enumerate()
    {
        let above: [u8; N] = above.map_or([0; N], |above| std::array::from_fn(|c| above[at * N + c]));
        left = std::array::from_fn(|c| stored[c].wrapping_add(left[c].midpoint(above[c])));
        *out = left;
    }
}

/// The difference to that of the pixels on the left, above, and above on the left which is nearest to left + above - above left.
fn paeth<const N: usize>(stored: &[u8], above: &[u8], out: &mut [u8]) {
    let (mut left, mut corner) = ([0_u8; N], [0_u8; N]);
    let rows = stored.as_chunks::<N>().0.iter().zip(above.as_chunks::<N>().0);
    for (out, (stored, above)) in out.as_chunks_mut::<N>().0.iter_mut().zip(rows) {
        left = std::array::from_fn(|c| stored[c].wrapping_add(nearest(left[c], above[c], corner[c])));
        corner = *above;
        *out = left;
    }
}

fn nearest(left: u8, above: u8, corner: u8) -> u8 {
    let (a, b, c) = (i16::from(left), i16::from(above), i16::from(corner));
    let (to_left, to_above, to_corner) = ((b - c).abs(), (a - c).abs(), (a + b - 2 * c).abs());
    if to_left <= to_above && to_left <= to_corner {
        left
    } else if to_above <= to_corner {
        above
    } else {
        corner
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use image::codecs::png::{CompressionType, FilterType, PngEncoder};
    use image::{DynamicImage, GrayImage, Luma, Rgb, RgbImage};

    use super::*;

    const FILTERS: [FilterType; 6] = [
        FilterType::NoFilter,
        FilterType::Sub,
        FilterType::Up,
        FilterType::Avg,
        FilterType::Paeth,
        FilterType::Adaptive,
    ];

    fn noise(x: u32, y: u32) -> u8 {
        (x * x * 7 + y * 31 + x * y * 3) as u8
    }

    fn pictures() -> Vec<DynamicImage> {
        let sizes = [(1, 1), (2, 1), (1, 7), (32, 32), (61, 43)];
        let gray = sizes.map(|(w, h)| GrayImage::from_fn(w, h, |x, y| Luma([noise(x, y)])).into());
        let rgb = sizes.map(|(w, h)| {
            RgbImage::from_fn(w, h, |x, y| Rgb([noise(x, y), noise(y, x), noise(x + 9, y)])).into()
        });
        gray.into_iter().chain(rgb).collect()
    }

    fn file(picture: &DynamicImage, filter: FilterType) -> Vec<u8> {
        let mut file = Cursor::new(Vec::new());
        picture
            .write_with_encoder(PngEncoder::new_with_quality(&mut file, CompressionType::Best, filter))
            .unwrap();
        file.into_inner()
    }

    #[test]
    fn every_filter_gives_back_the_pixels() {
        let (mut reader, mut pixels) = (PngReader::default(), Vec::new());
        for picture in pictures() {
            for filter in FILTERS {
                let info = reader.decode(&file(&picture, filter), 1 << 20, &mut pixels).unwrap();
                assert_eq!((info.width, info.height), (picture.width(), picture.height()));
                assert_eq!(pixels, picture.as_bytes(), "{filter:?}");
            }
        }
    }

    #[test]
    fn data_in_many_chunks_is_put_together() {
        let picture = &pictures()[8];
        let whole = file(picture, FilterType::Paeth);
        let data = whole.windows(4).position(|w| w == b"IDAT").unwrap();
        let length = u32::from_be_bytes(*whole[data - 4..].first_chunk().unwrap()) as usize;
        for size in [1, 7, 100] {
            let mut split = whole[..data - 4].to_vec();
            for part in whole[data + 4..][..length].chunks(size) {
                let named = [b"IDAT", part].concat();
                split.extend((part.len() as u32).to_be_bytes());
                split.extend(&named);
                split.extend(crc32fast::hash(&named).to_be_bytes());
            }
            split.extend(&whole[data + 4 + length + 4..]);
            let mut pixels = Vec::new();
            PngReader::default().decode(&split, 1 << 20, &mut pixels).unwrap();
            assert_eq!(pixels, picture.as_bytes());
        }
    }

    #[test]
    fn every_truncation_and_every_changed_byte_is_left_to_the_general_decoder() {
        let whole = file(&pictures()[3], FilterType::Adaptive);
        let (mut reader, mut pixels) = (PngReader::default(), Vec::new());
        for at in 8..whole.len() {
            assert!(reader.decode(&whole[..at], 1 << 20, &mut pixels).is_none(), "{at} bytes");
            let mut changed = whole.clone();
            changed[at] ^= 0x11;
            assert!(reader.decode(&changed, 1 << 20, &mut pixels).is_none(), "byte {at}");
        }
        assert!(reader.decode(&whole, 32 * 32 - 1, &mut pixels).is_none(), "more pixels than allowed");
    }
}
