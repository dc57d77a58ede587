//! Decodes JPEG with zune-jpeg, in pure Rust. It accepts no damaged file: what is missing is never filled with gray.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

use crate::error::MediaError;
use crate::format::Format;

/// Most bytes of the last row that are marked before decoding.
const MARKED_BYTES: usize = 96;

/// Decodes `file`, which `jpeg_header::prepare` made, into `pixels`: rows of `row` bytes. Of the colour spaces, `CMYK` is the stored values.
pub(crate) fn decode(
    file: &[u8],
    space: ColorSpace,
    row: usize,
    pixels: &mut [u8],
) -> Result<(), MediaError> {
    // The decoder writes rows from top to bottom, and the mark proves that it wrote the last one.
    let length = pixels.len();
    let marked = length - row..length - row + row.min(MARKED_BYTES);
    for first in [0x00, 0xff] {
        let mark = |at: usize| if at.is_multiple_of(2) { first } else { !first };
        for (at, byte) in pixels[marked.clone()].iter_mut().enumerate() {
            *byte = mark(at);
        }
        decode_scans(file, space, pixels).map_err(|e| explain(&e))?;
        // A picture may happen to hold the mark, but not the mark and its opposite.
        if pixels[marked.clone()].iter().enumerate().any(|(at, byte)| *byte != mark(at)) {
            return Ok(());
        }
    }
    let what = "its scan has fewer rows than its header claims";
    Err(MediaError::Truncated { format: Format::Jpeg, what })
}

/// Runs the decoder over the whole file. Its strict mode is what tells a damaged scan from a whole one.
fn decode_scans(file: &[u8], space: ColorSpace, pixels: &mut [u8]) -> Result<(), DecodeErrors> {
    let side = usize::from(u16::MAX);
    let options = DecoderOptions::new_fast()
        .jpeg_set_out_colorspace(space)
        .set_max_width(side)
        .set_max_height(side)
        .set_strict_mode(true);
    JpegDecoder::new_with_options(ZCursor::new(file), options).decode_into(pixels)
}

fn explain(error: &DecodeErrors) -> MediaError {
    match error {
        DecodeErrors::ExhaustedData | DecodeErrors::IoErrors(_) => {
            MediaError::Truncated { format: Format::Jpeg, what: "it ends inside its scan" }
        }
        other => MediaError::Broken { format: Format::Jpeg, reason: other.to_string() },
    }
}
