//! Pixels to the bytes of a picture file. Opens no file.

use bincode::{Decode, Encode};
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder as _};
use libjpeg_turbo_rs::{PixelFormat, Subsampling, compress};
use orchestra_core::data::{ItemError, Pixels};
use orchestra_plan::choices;

choices! {
    #[derive(Encode, Decode)]
    pub enum EncoderFormat {
        Png = "png",
        Jpg = "jpg",
    }
}

impl EncoderFormat {
    /// The bytes of a file; `quality`, from 1 to 100, is that of a JPEG.
    pub fn encode(self, pixels: &Pixels<'_>, quality: u8) -> Result<Vec<u8>, ItemError> {
        match self {
            EncoderFormat::Png => png(pixels),
            EncoderFormat::Jpg => jpeg(pixels, quality),
        }
    }
}

/// A PNG of 8 bits per channel.
pub fn png(pixels: &Pixels<'_>) -> Result<Vec<u8>, ItemError> {
    let color = if pixels.channels == 1 { ExtendedColorType::L8 } else { ExtendedColorType::Rgb8 };
    let mut file = Vec::new();
    PngEncoder::new(&mut file)
        .write_image(pixels.bytes, pixels.width, pixels.height, color)
        .map_err(|error| ItemError::result(format!("no PNG can be made of it: {error}")))?;
    Ok(file)
}

/// A JPEG with full colour, so that thin lines stay sharp.
fn jpeg(pixels: &Pixels<'_>, quality: u8) -> Result<Vec<u8>, ItemError> {
    let format = if pixels.channels == 1 { PixelFormat::Grayscale } else { PixelFormat::Rgb };
    let (width, height) = (pixels.width as usize, pixels.height as usize);
    compress(pixels.bytes, width, height, format, quality, Subsampling::S444)
        .map_err(|error| ItemError::result(format!("no JPEG can be made of it: {error}")))
}
