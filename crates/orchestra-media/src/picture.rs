//! A decoded picture as it lies in memory: 8 bits per channel, not yet turned. It knows nothing of rows and specs.

use crate::error::MediaError;
use crate::format::Format;
use crate::orientation::Orientation;

/// Longest side, in pixels, that is accepted. It bounds the resampling tables: a picture of one pixel by a hundred million
/// would pass any pixel limit and still ask for gigabytes of filter weights.
pub(crate) const MAX_SIDE: u32 = 1 << 20;

/// What a decoder may take beside 16 bytes for each allowed pixel: tables, profiles, one strip.
const SPARE_BYTES: u64 = 64 << 20;

/// Width and height of a picture, as a viewer shows it: orientation applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PictureSize {
    pub width: u32,
    pub height: u32,
}

/// Each side is divided by this while decoding, rounded up: 1, 2, 4 or 8. A JPEG decoder does it by leaving out frequencies; other factors
/// exist, but have no fast code and take longer than decoding in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Downscale(pub(crate) u32);

impl Downscale {
    pub(crate) const NONE: Downscale = Downscale(1);

    pub(crate) fn factor(self) -> u32 {
        self.0
    }

    pub(crate) fn side(self, full: u32) -> u32 {
        full.div_ceil(self.0)
    }
}

/// What the bytes of a pixel mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PixelKind {
    Gray,
    Rgb,
    Rgba,
}

impl PixelKind {
    pub(crate) fn channels(self) -> usize {
        match self {
            PixelKind::Gray => 1,
            PixelKind::Rgb => 3,
            PixelKind::Rgba => 4,
        }
    }
}

/// What is known of a decoded picture beside its pixels. Sizes are before `orientation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PictureInfo {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Width and height that the file has.
    pub(crate) full: (u32, u32),
    /// How many pixels of the file each pixel in memory stands for, on each side.
    pub(crate) reduction: Downscale,
    pub(crate) kind: PixelKind,
    pub(crate) orientation: Orientation,
    /// Pages or frames of the file, of which this is one.
    pub(crate) n_pictures: u32,
}

impl PictureInfo {
    pub(crate) fn full(width: u32, height: u32, kind: PixelKind, orientation: Orientation) -> PictureInfo {
        let full = (width, height);
        PictureInfo { width, height, full, reduction: Downscale::NONE, kind, orientation, n_pictures: 1 }
    }

    /// The same picture, the first of `n_pictures` in its file.
    pub(crate) fn one_of(self, n_pictures: u32) -> PictureInfo {
        PictureInfo { n_pictures, ..self }
    }

    /// The same picture, decoded to a smaller size.
    pub(crate) fn reduced(self, reduction: Downscale) -> PictureInfo {
        let (width, height) = self.full;
        PictureInfo { width: reduction.side(width), height: reduction.side(height), reduction, ..self }
    }

    /// The size that a viewer shows of the file.
    pub(crate) fn shown_size(&self) -> PictureSize {
        let (width, height) = self.orientation.shown_size(self.full.0, self.full.1);
        PictureSize { width, height }
    }
}

/// A rectangle of pixels in memory, rows `stride` bytes apart, `channels` (1 or 3) bytes per pixel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) stride: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) channels: usize,
}

impl<'a> View<'a> {
    /// Rows that follow each other without a gap.
    pub(crate) fn packed(bytes: &'a [u8], width: usize, height: usize, channels: usize) -> View<'a> {
        View { bytes, stride: width * channels, width, height, channels }
    }

    pub(crate) fn row(&self, y: usize) -> &'a [u8] {
        &self.bytes[y * self.stride..][..self.width * self.channels]
    }

    /// All pixels as one run, if no row is followed by a gap.
    pub(crate) fn run(&self) -> Option<&'a [u8]> {
        (self.stride == self.width * self.channels).then(|| &self.bytes[..self.stride * self.height])
    }
}

/// Bytes that a decoder may take for a picture of at most `max_pixels` pixels.
pub(crate) fn most_memory(max_pixels: u64) -> u64 {
    max_pixels.saturating_mul(16).saturating_add(SPARE_BYTES)
}

/// Makes room for all pixels of a picture, `length` bytes, as its header claims them. What lies in it is not cleared.
pub(crate) fn room_for(
    format: Format,
    (width, height): (u32, u32),
    pixels: &mut Vec<u8>,
    length: usize,
) -> Result<(), MediaError> {
    if pixels.try_reserve_exact(length.saturating_sub(pixels.len())).is_err() {
        let bytes = length as u64 / (u64::from(width) * u64::from(height)).max(1);
        let reason =
            format!("{width}x{height} pixels of {bytes} {} take {} MiB", byte_word(bytes), length >> 20);
        return Err(MediaError::NoMemory { format, reason });
    }
    pixels.resize(length, 0);
    Ok(())
}

fn byte_word(n: u64) -> &'static str {
    if n == 1 { "byte" } else { "bytes" }
}

/// Refuses a header that claims more than the limits, before memory is taken for it.
pub(crate) fn check_size(format: Format, width: u32, height: u32, max_pixels: u64) -> Result<(), MediaError> {
    if width == 0 || height == 0 {
        let reason = format!("its header claims {width}x{height} pixels");
        return Err(MediaError::Broken { format, reason });
    }
    if u64::from(width) * u64::from(height) > max_pixels {
        return Err(MediaError::TooLarge { format, width, height, max_pixels });
    }
    if width.max(height) > MAX_SIDE {
        return Err(MediaError::TooLong { format, width, height, max_side: MAX_SIDE });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_without_room_says_what_it_takes() {
        let mut pixels = vec![7];
        assert_eq!(room_for(Format::Png, (2, 2), &mut pixels, 12), Ok(()));
        assert_eq!(pixels.len(), 12);
        // More than any vector may have.
        let side = 1_u32 << 31;
        let text =
            |length| room_for(Format::Gif, (side, side), &mut Vec::new(), length).unwrap_err().to_string();
        assert_eq!(
            text(1 << 63),
            "the GIF file needs more memory to decode than there is: 2147483648x2147483648 pixels of 2 bytes take 8796093022208 MiB"
        );
    }
}
