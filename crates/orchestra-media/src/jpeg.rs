//! Decodes JPEG into a reused buffer with zune-jpeg. It accepts no damaged file: what is missing is never filled with gray.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

use crate::error::MediaError;
use crate::format::Format;
use crate::jpeg_header::{JpegHeader, prepare};
use crate::picture::{PictureInfo, PixelKind, check_size};

/// Most bytes of the last row that are marked before decoding.
const MARKED_BYTES: usize = 96;

/// Decodes `bytes` into `pixels`: one byte per pixel for a gray file, else three.
/// `file` is memory to work in.
pub(crate) fn decode(
    bytes: &[u8],
    max_pixels: u64,
    file: &mut Vec<u8>,
    pixels: &mut Vec<u8>,
) -> Result<PictureInfo, MediaError> {
    let header = JpegHeader::read(bytes)?;
    check_size(Format::Jpeg, header.width, header.height, max_pixels)?;
    prepare(bytes, &header, file)?;
    let kind = if header.components == 1 { PixelKind::Gray } else { PixelKind::Rgb };
    let row = header.width as usize * kind.channels();
    let length = row * header.height as usize;
    // Not cleared: the decoder writes rows from top to bottom, and the mark proves that it wrote the last one.
    pixels.resize(length, 0);
    let marked = length - row..length - row + row.min(MARKED_BYTES);
    for first in [0x00, 0xff] {
        let mark = |at: usize| if at.is_multiple_of(2) { first } else { !first };
        for (at, byte) in pixels[marked.clone()].iter_mut().enumerate() {
            *byte = mark(at);
        }
        decode_scans(file, kind, pixels).map_err(|e| explain(&e))?;
        // A picture may happen to hold the mark, but not the mark and its opposite.
        if pixels[marked.clone()].iter().enumerate().any(|(at, byte)| *byte != mark(at)) {
            return Ok(PictureInfo {
                width: header.width,
                height: header.height,
                kind,
                orientation: header.orientation,
            });
        }
    }
    Err(MediaError::Truncated {
        format: Format::Jpeg,
        what: "its scan has fewer rows than its header claims",
    })
}

/// Runs the decoder over the whole file. Its strict mode is what tells a damaged scan from a whole one.
fn decode_scans(bytes: &[u8], kind: PixelKind, pixels: &mut [u8]) -> Result<(), DecodeErrors> {
    let space = if kind == PixelKind::Gray { ColorSpace::Luma } else { ColorSpace::RGB };
    let side = usize::from(u16::MAX);
    let options = DecoderOptions::new_fast()
        .jpeg_set_out_colorspace(space)
        .set_max_width(side)
        .set_max_height(side)
        .set_strict_mode(true);
    JpegDecoder::new_with_options(ZCursor::new(bytes), options).decode_into(pixels)
}

fn explain(error: &DecodeErrors) -> MediaError {
    match error {
        DecodeErrors::ExhaustedData | DecodeErrors::IoErrors(_) => {
            MediaError::Truncated { format: Format::Jpeg, what: "it ends inside its scan" }
        }
        other => MediaError::Broken { format: Format::Jpeg, reason: other.to_string() },
    }
}
