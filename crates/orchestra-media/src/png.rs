//! Decodes PNG: whole into a buffer, or line by line into a picture of fewer lines. It accepts no damaged file.

use std::io::{Cursor, ErrorKind};

use orchestra_core::ImageSpec;
use png::{BitDepth, ColorType, Decoder, DecodingError, Limits, Reader, Transformations};

use crate::containers::walk_png;
use crate::error::MediaError;
use crate::format::Format;
use crate::lowering::Lowered;
use crate::picture::{PictureInfo, PixelKind, check_size, most_memory, room_for};
use crate::samples::{drop_opaque_alpha, gray_to_colour, narrow};

const FORMAT: Format = Format::Png;

/// Decodes `bytes` into `pixels`; or, for rows of `specs`, into a picture of fewer lines, if all of it would take more than `whole_bytes`.
pub(crate) fn decode(
    bytes: &[u8],
    max_pixels: u64,
    (specs, whole_bytes): (&[&ImageSpec], usize),
    pixels: &mut Vec<u8>,
) -> Result<(PictureInfo, Option<Lowered>), MediaError> {
    let sorted = |error| sort(error, max_pixels);
    let told = walk_png(bytes)?.and_behind(bytes);
    let limit = usize::try_from(most_memory(max_pixels)).unwrap_or(usize::MAX);
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: limit });
    // Read by nothing here, so no file fails for what is in them.
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::EXPAND);
    let (width, height) = decoder.read_header_info().map_err(sorted)?.size();
    check_size(FORMAT, width, height, max_pixels)?;
    let mut reader = decoder.read_info().map_err(sorted)?;
    let (color, depth) = reader.output_color_type();
    let samples = PngSamples { count: color.samples(), is_wide: depth == BitDepth::Sixteen };
    let kind = match color {
        ColorType::Grayscale | ColorType::Indexed => PixelKind::Gray,
        ColorType::Rgb => PixelKind::Rgb,
        ColorType::GrayscaleAlpha | ColorType::Rgba => PixelKind::Rgba,
    };
    let info = PictureInfo::full(width, height, kind, told.orientation).one_of(told.n_frames);
    let length = reader.output_buffer_size().ok_or_else(|| sorted(DecodingError::LimitsExceeded))?;
    if length > whole_bytes
        && !reader.info().interlaced
        && let Some(lowered) = Lowered::for_rows(specs, &info, length / 2)
    {
        return lower(reader, samples, lowered, info).map_err(sorted);
    }
    // Not cleared: all lines are written, or it is an error.
    room_for(FORMAT, (width, height), pixels, length)?;
    reader.next_frame(pixels).map_err(sorted)?;
    samples.narrow(pixels);
    let kind = match drop_opaque_alpha(pixels, samples.count) {
        1 => PixelKind::Gray,
        2 => {
            gray_to_colour(pixels);
            PixelKind::Rgba
        }
        3 => PixelKind::Rgb,
        _ => PixelKind::Rgba,
    };
    Ok((PictureInfo { kind, ..info }, None))
}

/// What the decoder gives of a pixel.
#[derive(Debug, Clone, Copy)]
struct PngSamples {
    count: usize,
    is_wide: bool,
}

impl PngSamples {
    /// To 8 bits: the nearest of 256 levels.
    fn narrow(self, samples: &mut Vec<u8>) {
        if self.is_wide {
            narrow(samples, |sample: [u8; 2]| ((u32::from(u16::from_be_bytes(sample)) + 128) / 257) as u8);
        }
    }
}

/// Takes line after line. An alpha channel that is opaque everywhere needs no care: what is opaque is blended to itself.
fn lower(
    mut reader: Reader<Cursor<&[u8]>>,
    samples: PngSamples,
    mut lowered: Lowered,
    info: PictureInfo,
) -> Result<(PictureInfo, Option<Lowered>), DecodingError> {
    let mut line = Vec::new();
    while let Some(row) = reader.next_row()? {
        line.clear();
        line.extend_from_slice(row.data());
        samples.narrow(&mut line);
        if samples.count == 2 {
            gray_to_colour(&mut line);
        }
        lowered.take(&line);
    }
    let kind = lowered.kind();
    Ok((PictureInfo { kind, ..info }, Some(lowered)))
}

/// The decoder's error as one of ours.
fn sort(error: DecodingError, max_pixels: u64) -> MediaError {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            MediaError::Truncated { format: FORMAT, what: "it ends inside the picture" }
        }
        DecodingError::LimitsExceeded => {
            MediaError::TooMuchMemory { format: FORMAT, max_pixels, reason: error.to_string() }
        }
        other => MediaError::Broken { format: FORMAT, reason: with_names_of_chunks(other.to_string()) },
    }
}

/// What the decoder says, with the name of a chunk where it shows all that it knows of it.
fn with_names_of_chunks(mut reason: String) -> String {
    const SHOWN: &str = "ChunkType { type: ";
    while let Some(at) = reason.find(SHOWN) {
        let rest = &reason[at + SHOWN.len()..];
        let Some(end) = rest.find(" }") else { break };
        let name = rest[..end].split(',').next().unwrap_or_default().to_owned();
        reason.replace_range(at..at + SHOWN.len() + end + 2, &name);
    }
    reason
}
