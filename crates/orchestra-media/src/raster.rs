//! Decodes WebP, BMP and GIF with the `image` crate. JPEG, PNG and TIFF have modules of their own, which it calls.

use std::io::Cursor;

use image::codecs::bmp::BmpDecoder;
use image::codecs::gif::GifDecoder;
use image::codecs::webp::WebPDecoder;
use image::{ImageDecoder, Limits};
use orchestra_core::ImageSpec;

use crate::containers::{ContainerHeader, plain_webp, walk_bmp, walk_gif, walk_webp};
use crate::error::MediaError;
use crate::format::Format;
use crate::jpeg;
use crate::lowering::Lowered;
use crate::pages::Pages;
use crate::picture::{Downscale, PictureInfo, PixelKind, check_size, most_memory, room_for};
use crate::png;
use crate::samples::{drop_opaque_alpha, gray_to_colour};
use crate::tiff;

/// One decoding of one file, and the limits that it keeps.
struct DecodeJob<'a> {
    format: Format,
    max_pixels: u64,
    pixels: &'a mut Vec<u8>,
}

/// Decodes a page of `bytes`, which are of `format`, into `pixels`, for rows of `specs`. Where these allow it, a JPEG is decoded to a fraction of its sides, and
/// a PNG or TIFF that takes more than `whole_bytes` into a picture of fewer lines. All others are decoded in full.
pub(crate) fn decode(
    format: Format,
    (bytes, page): (&[u8], (&Pages, usize)),
    max_pixels: u64,
    (specs, whole_bytes): (&[&ImageSpec], usize),
    pixels: &mut Vec<u8>,
) -> Result<(PictureInfo, Option<Lowered>), MediaError> {
    let reader = Cursor::new(bytes);
    let broken = |e: image::ImageError| MediaError::from_image(format, max_pixels, &e);
    let job = DecodeJob { format, max_pixels, pixels };
    let info = match format {
        Format::Png => return png::decode(bytes, max_pixels, (specs, whole_bytes), job.pixels),
        Format::WebP => {
            let told = walk_webp(bytes, max_pixels)?.and_behind(bytes);
            let plain = plain_webp(bytes);
            job.run(WebPDecoder::new(Cursor::new(&*plain)).map_err(broken)?, told)
        }
        Format::Bmp => {
            let told = walk_bmp(bytes, max_pixels)?.and_behind(bytes);
            job.run(BmpDecoder::new(reader).map_err(broken)?, told)
        }
        Format::Gif => {
            let told = walk_gif(bytes).and_behind(bytes);
            job.run(GifDecoder::new(reader).map_err(broken)?, told)
        }
        Format::Tiff => {
            return tiff::decode(bytes, page, max_pixels, (specs, whole_bytes), job.pixels);
        }
        Format::Jpeg => {
            jpeg::decode(bytes, max_pixels, &|shown| Downscale::for_rows(specs, shown), job.pixels)
        }
    };
    Ok((info?, None))
}

impl DecodeJob<'_> {
    fn limits(&self) -> Limits {
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(most_memory(self.max_pixels));
        limits
    }

    fn run<D: ImageDecoder>(self, mut decoder: D, told: ContainerHeader) -> Result<PictureInfo, MediaError> {
        let DecodeJob { format, max_pixels, .. } = self;
        let broken = |e: image::ImageError| MediaError::from_image(format, max_pixels, &e);
        let (width, height) = decoder.dimensions();
        check_size(format, width, height, max_pixels)?;
        decoder.set_limits(self.limits()).map_err(broken)?;
        let color = decoder.color_type();
        let Ok(length) = usize::try_from(decoder.total_bytes()) else {
            return Err(MediaError::TooLarge { format, width, height, max_pixels });
        };
        // Cleared, because a decoder may leave out pixels (a GIF colour beyond its palette), and what the last picture left
        // there must not show through.
        self.pixels.clear();
        room_for(format, (width, height), self.pixels, length)?;
        decoder.read_image(self.pixels).map_err(broken)?;
        // None of these formats has more than 8 bits.
        if color.bytes_per_pixel() != color.channel_count() {
            return Err(MediaError::Broken { format, reason: format!("its pixels are {color:?}") });
        }
        let kind = match drop_opaque_alpha(self.pixels, color.channel_count().into()) {
            1 => PixelKind::Gray,
            2 => {
                gray_to_colour(self.pixels);
                PixelKind::Rgba
            }
            3 => PixelKind::Rgb,
            _ => PixelKind::Rgba,
        };
        Ok(PictureInfo::full(width, height, kind, told.orientation).one_of(told.n_frames))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_alpha_channel_that_is_opaque_everywhere_is_dropped() {
        let mut pixels = vec![1, 2, 3, 255, 4, 5, 6, 255];
        assert_eq!(drop_opaque_alpha(&mut pixels, 4), 3);
        assert_eq!(pixels, [1, 2, 3, 4, 5, 6]);
        let mut pixels = vec![1, 255, 2, 254];
        assert_eq!(drop_opaque_alpha(&mut pixels, 2), 2);
        assert_eq!(pixels, [1, 255, 2, 254]);
        gray_to_colour(&mut pixels);
        assert_eq!(pixels, [1, 1, 1, 255, 2, 2, 2, 254]);
    }
}
