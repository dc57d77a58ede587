//! Samples as a TIFF has them to pixels of 8 bits a channel, line by line. It reads no file.

use super::layout::{Alpha, Ink, PageLayout, SampleFormat};
use crate::error::MediaError;
use crate::format::Format;
use crate::picture::PixelKind;

impl PageLayout {
    pub fn kind(&self) -> PixelKind {
        match (self.alpha, &self.ink) {
            (Alpha::None, Ink::Gray | Ink::InvertedGray) => PixelKind::Gray,
            (Alpha::None, _) => PixelKind::Rgb,
            _ => PixelKind::Rgba,
        }
    }

    /// Bytes of `pixels` pixels with `samples` samples each, as a line of a strip or tile has them.
    pub fn packed_bytes(&self, pixels: usize, samples: usize) -> usize {
        (pixels * samples * self.numbers.bits()).div_ceil(8)
    }

    /// Brings a line of samples to one byte each, every `step`th of `out`. Of a palette they stay what they are.
    pub fn widen(&self, packed: &[u8], out: &mut [u8], step: usize) -> Result<(), MediaError> {
        let out = out.iter_mut().step_by(step);
        match self.numbers {
            SampleFormat::Bits(8) => out.zip(packed).for_each(|(out, sample)| *out = *sample),
            SampleFormat::Bits(16) => {
                let samples = packed.as_chunks().0.iter().map(|sample| u16::from_ne_bytes(*sample));
                out.zip(samples).for_each(|(out, sample)| *out = nearest_level(sample));
            }
            SampleFormat::Bits(bits) => {
                let most = u8::MAX >> (8 - bits);
                let step = if matches!(self.ink, Ink::Palette(_)) { 1 } else { u8::MAX / most };
                let per_byte = usize::from(8 / bits);
                for (index, out) in out.enumerate() {
                    let shift = 8 - usize::from(bits) * (index % per_byte + 1);
                    *out = (packed[index / per_byte] >> shift & most) * step;
                }
            }
            SampleFormat::Float => {
                for (out, sample) in out.zip(packed.as_chunks().0) {
                    let sample = f32::from_ne_bytes(*sample);
                    if !(0.0..=1.0).contains(&sample) {
                        return Err(not_from_0_to_1(sample));
                    }
                    *out = (sample * 255.0).round() as u8;
                }
            }
        }
        Ok(())
    }

    pub fn append_pixels(&self, line: &[u8], out: &mut Vec<u8>) {
        let pixels = line.chunks_exact(self.samples);
        match (&self.ink, self.alpha) {
            (Ink::Gray, Alpha::None) => out.extend_from_slice(line),
            (Ink::Rgb, Alpha::None) if self.samples == 3 => out.extend_from_slice(line),
            (Ink::InvertedGray, Alpha::None) => out.extend(line.iter().map(|sample| !sample)),
            (_, Alpha::None) => pixels.for_each(|pixel| out.extend_from_slice(&self.colour(pixel))),
            _ => pixels.for_each(|pixel| {
                let alpha = pixel[self.ink.samples()];
                let straight =
                    |ink| if self.alpha == Alpha::Premultiplied { unmultiplied(ink, alpha) } else { ink };
                let [red, green, blue] = self.colour(pixel).map(straight);
                out.extend_from_slice(&[red, green, blue, alpha]);
            }),
        }
    }

    fn colour(&self, pixel: &[u8]) -> [u8; 3] {
        match &self.ink {
            Ink::Gray => [pixel[0]; 3],
            Ink::InvertedGray => [!pixel[0]; 3],
            Ink::Rgb => [pixel[0], pixel[1], pixel[2]],
            Ink::Cmyk => [0, 1, 2].map(|at| without_ink(pixel[at], pixel[3])),
            Ink::Palette(colours) => colours[usize::from(pixel[0])],
        }
    }
}

/// The nearest of 256 levels: 65535 = 255 * 257.
fn nearest_level(sample: u16) -> u8 {
    ((u32::from(sample) + 128) / 257) as u8
}

/// What is left of white under this much of an ink and of black, as Pillow has it.
fn without_ink(ink: u8, black: u8) -> u8 {
    let white = 255 - u32::from(black);
    let product = u32::from(ink) * white + 128;
    white.saturating_sub((product + (product >> 8)) >> 8) as u8
}

/// An ink before it was multiplied with its alpha, as Pillow has it.
fn unmultiplied(ink: u8, alpha: u8) -> u8 {
    match alpha {
        0 => 0,
        alpha => (u32::from(ink) * 255 / u32::from(alpha)).min(255) as u8,
    }
}

fn not_from_0_to_1(sample: f32) -> MediaError {
    MediaError::Unsupported {
        format: Format::Tiff,
        what: format!("one of its samples, which are floats, is {sample}, expected 0 to 1"),
        convert: "magick IN.tif -auto-level -depth 8 OUT.png",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bits_go_to_the_nearest_level() {
        for sample in 0..=u16::MAX {
            assert_eq!(nearest_level(sample), (f64::from(sample) / 257.0).round() as u8, "{sample}");
        }
    }

    #[test]
    fn inks_go_to_the_colours_that_pillow_makes_of_them() {
        for black in 0..=255 {
            assert_eq!(without_ink(0, black), 255 - black);
            assert_eq!(without_ink(255, black), 0);
        }
        assert_eq!(without_ink(100, 50), 125);
    }

    #[test]
    fn an_ink_is_that_of_before_its_multiplication() {
        for alpha in 1..=255 {
            assert_eq!(unmultiplied(alpha, alpha), 255);
            assert_eq!(unmultiplied(0, alpha), 0);
        }
        assert_eq!(unmultiplied(31, 128), 61);
        // More than there can be, and nothing to be seen.
        assert_eq!((unmultiplied(200, 100), unmultiplied(200, 0)), (255, 0));
    }
}
