//! Decodes TIFF a row of strips or tiles at a time into a picture of fewer lines. What has other pixels than gray or colour of 8 or 16 bits, side by
//! side, it leaves to the decoder of whole pictures, and so what is wrong with a header.

use std::io::{Cursor, ErrorKind};

use orchestra_core::ImageSpec;
use tiff::decoder::{Decoder, Limits};
use tiff::tags::Tag;
use tiff::{ColorType, TiffError};

use crate::error::MediaError;
use crate::format::Format;
use crate::lowering::Lowered;
use crate::orientation::Orientation;
use crate::picture::{PictureInfo, PixelKind, check_size, most_memory};
use crate::raster::narrow_native;

const FORMAT: Format = Format::Tiff;
/// Numbers of the format: samples without sign, and those of a pixel side by side.
const UNSIGNED: u16 = 1;
const SIDE_BY_SIDE: u16 = 1;

type Reader<'a> = Decoder<Cursor<&'a [u8]>>;

/// For rows of `specs`, if all of it would take more than `whole_bytes`; `None`: it is decoded whole.
pub(crate) fn lower(
    bytes: &[u8],
    max_pixels: u64,
    (specs, whole_bytes): (&[&ImageSpec], usize),
    orientation: Orientation,
) -> Result<Option<(PictureInfo, Lowered)>, MediaError> {
    let Some((mut reader, samples)) = open(bytes, max_pixels) else { return Ok(None) };
    let Ok((width, height)) = reader.dimensions() else { return Ok(None) };
    check_size(FORMAT, width, height, max_pixels)?;
    let info = PictureInfo::full(width, height, samples.kind, orientation);
    let line = width as usize * samples.bytes();
    let chunk_height = reader.chunk_dimensions().1.min(height);
    let length = line.saturating_mul(height as usize);
    // A row of strips and one strip are in memory.
    if length <= whole_bytes || line.saturating_mul(chunk_height as usize) > length / 4 {
        return Ok(None);
    }
    let Some(mut lowered) = Lowered::for_rows(specs, &info, length / 2) else { return Ok(None) };
    take_all(&mut reader, samples, &mut lowered).map_err(|error| sort(error, max_pixels))?;
    let kind = lowered.kind();
    Ok(Some((PictureInfo { kind, ..info }, lowered)))
}

/// What the decoder gives of a pixel.
#[derive(Debug, Clone, Copy)]
struct Samples {
    kind: PixelKind,
    is_wide: bool,
}

impl Samples {
    fn bytes(self) -> usize {
        self.kind.channels() * if self.is_wide { 2 } else { 1 }
    }
}

fn open(bytes: &[u8], max_pixels: u64) -> Option<(Reader<'_>, Samples)> {
    let mut limits = Limits::default();
    limits.intermediate_buffer_size = usize::try_from(most_memory(max_pixels)).unwrap_or(usize::MAX);
    let mut reader = Decoder::new(Cursor::new(bytes)).ok()?.with_limits(limits);
    let (kind, bits) = match reader.colortype().ok()? {
        ColorType::Gray(bits) => (PixelKind::Gray, bits),
        ColorType::RGB(bits) => (PixelKind::Rgb, bits),
        ColorType::RGBA(bits) => (PixelKind::Rgba, bits),
        _ => return None,
    };
    let formats = reader.find_tag_unsigned_vec::<u16>(Tag::SampleFormat).ok()?.unwrap_or_default();
    let planes = reader.find_tag_unsigned::<u16>(Tag::PlanarConfiguration).ok()?.unwrap_or(SIDE_BY_SIDE);
    let is_plain = formats.iter().all(|format| *format == UNSIGNED) && planes == SIDE_BY_SIDE;
    let is_read = is_plain && matches!(bits, 8 | 16);
    is_read.then_some((reader, Samples { kind, is_wide: bits == 16 }))
}

/// Takes line after line. A strip is a tile that is as wide as the picture.
fn take_all(reader: &mut Reader<'_>, samples: Samples, lowered: &mut Lowered) -> Result<(), TiffError> {
    let (width, height) = reader.dimensions()?;
    let (chunk_width, chunk_height) = reader.chunk_dimensions();
    let across = width.div_ceil(chunk_width);
    let line = width as usize * samples.bytes();
    let (mut band, mut chunk, mut narrowed) = (Vec::new(), Vec::new(), Vec::new());
    for (down, first) in (0..height).step_by(chunk_height as usize).enumerate() {
        band.resize(line * chunk_height.min(height - first) as usize, 0);
        for column in 0..across {
            let index = down as u32 * across + column;
            chunk.resize(reader.image_chunk_buffer_layout(index)?.len, 0);
            reader.read_chunk_bytes(index, &mut chunk)?;
            let part = reader.chunk_data_dimensions(index).0 as usize * samples.bytes();
            let at = column as usize * chunk_width as usize * samples.bytes();
            for (from, to) in chunk.chunks_exact(part).zip(band.chunks_exact_mut(line)) {
                to[at..at + part].copy_from_slice(from);
            }
        }
        for line in band.chunks_exact(line) {
            narrowed.clear();
            narrowed.extend_from_slice(line);
            if samples.is_wide {
                narrow_native(&mut narrowed);
            }
            lowered.take(&narrowed);
        }
    }
    Ok(())
}

/// The decoder's error as one of ours.
fn sort(error: TiffError, max_pixels: u64) -> MediaError {
    match error {
        TiffError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            MediaError::Truncated { format: FORMAT, what: "it ends inside the picture" }
        }
        TiffError::LimitsExceeded => {
            MediaError::TooMuchMemory { format: FORMAT, max_pixels, reason: error.to_string() }
        }
        other => MediaError::Broken { format: FORMAT, reason: other.to_string() },
    }
}
