//! Decodes JPEG into a reused buffer: libjpeg-turbo first where it is there, and zune-jpeg for what that is not content with.
//! It accepts no damaged file: what is missing is never filled with gray.
//!
//! Whatever libjpeg-turbo warns of goes to the pure Rust decoder, which has the last word and chooses the words: a file that it decodes never
//! fails for having libjpeg-turbo on the machine. The other way round, damage that libjpeg-turbo does not notice may pass there alone.

use zune_core::colorspace::ColorSpace;

use crate::error::MediaError;
use crate::format::Format;
use crate::jpeg_backend::JpegDecoder;
use crate::jpeg_header::{Ink, JpegHeader, prepare, tidy};
use crate::jpeg_zune;
use crate::kernels::blend;
use crate::picture::{PictureInfo, PictureSize, PixelKind, check_size};
use crate::reduction::Reduction;
use crate::turbojpeg::{TurboDecoder, TurboPixel};

/// Decoder and its reused memory.
#[derive(Debug, Default)]
pub(crate) struct JpegReader {
    /// None: pure Rust.
    turbo: Option<TurboDecoder>,
    /// A file as zune-jpeg should see it.
    file: Vec<u8>,
}

impl JpegReader {
    /// None where libjpeg-turbo is asked for and cannot be loaded.
    pub(crate) fn new(decoder: JpegDecoder) -> Option<JpegReader> {
        let turbo = match decoder {
            JpegDecoder::LibjpegTurbo => Some(TurboDecoder::new()?),
            JpegDecoder::Rust => None,
        };
        Some(JpegReader { turbo, file: Vec::new() })
    }

    /// Decodes `bytes` into `pixels`: one byte per pixel for a gray file, else three. `reduce` is asked for the reduction once the size as
    /// shown is known; the pure Rust decoder has none and decodes in full.
    pub(crate) fn decode(
        &mut self,
        bytes: &[u8],
        max_pixels: u64,
        reduce: impl FnOnce(PictureSize) -> Reduction,
        pixels: &mut Vec<u8>,
    ) -> Result<PictureInfo, MediaError> {
        let header = JpegHeader::read(bytes)?;
        let (width, height) = (header.width, header.height);
        check_size(Format::Jpeg, width, height, max_pixels)?;
        let kind = if header.ink == Ink::Gray { PixelKind::Gray } else { PixelKind::Rgb };
        let info = PictureInfo::full(width, height, kind, header.orientation);
        if let Some(turbo) = &mut self.turbo {
            let info = info.reduced(reduce(info.shown_size()));
            let file = if header.has_stray_bytes() {
                tidy(bytes, &header, &mut self.file);
                &self.file
            } else {
                header.picture(bytes)
            };
            if decode_turbo(turbo, file, &header, &info, pixels).is_ok() {
                return Ok(info);
            }
        }
        prepare(bytes, &header, &mut self.file);
        decode_zune(&self.file, &header, pixels)?;
        Ok(info)
    }

    /// Gives memory beyond `keep_bytes` back.
    pub(crate) fn shrink(&mut self, keep_bytes: usize) {
        if self.file.capacity() > keep_bytes {
            self.file = Vec::new();
        }
    }
}

fn decode_turbo(
    turbo: &mut TurboDecoder,
    file: &[u8],
    header: &JpegHeader,
    info: &PictureInfo,
    pixels: &mut Vec<u8>,
) -> Result<(), crate::turbojpeg::NotFlawless> {
    let pixel = match header.ink {
        Ink::Gray => TurboPixel::Gray,
        Ink::Rgb | Ink::Ycc => TurboPixel::Rgb,
        Ink::Cmyk | Ink::Ycck => TurboPixel::Cmyk,
    };
    let (width, height) = (info.width as usize, info.height as usize);
    // Not cleared: a picture that is not written to its end is an error.
    pixels.resize(width * height * pixel.channels(), 0);
    turbo.decode(file, (width, height), pixel, pixels)?;
    if pixel == TurboPixel::Cmyk {
        remove_black(pixels);
    }
    Ok(())
}

fn decode_zune(file: &[u8], header: &JpegHeader, pixels: &mut Vec<u8>) -> Result<(), MediaError> {
    let (space, channels) =
        if header.ink == Ink::Gray { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
    let row = header.width as usize * channels;
    pixels.resize(row * header.height as usize, 0);
    jpeg_zune::decode(file, space, row, pixels)
}

/// Inverted cyan, magenta, yellow and black to red, green and blue, in place: each colour is dimmed by the black, as Pillow and zune-jpeg do.
fn remove_black(pixels: &mut Vec<u8>) {
    let count = pixels.len() / 4;
    for at in 0..count {
        let black = pixels[at * 4 + 3];
        for c in 0..3 {
            pixels[at * 3 + c] = blend(pixels[at * 4 + c], 0, black);
        }
    }
    pixels.truncate(count * 3);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_black_is_black_and_no_ink_is_white() {
        let mut inverted = vec![255, 255, 255, 255, 200, 100, 50, 0, 255, 0, 255, 128];
        remove_black(&mut inverted);
        assert_eq!(inverted, [255, 255, 255, 0, 0, 0, 128, 0, 128]);
    }
}
