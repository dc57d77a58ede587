//! Pictures that are decoded already, whole or a rectangle of them, as input of rows.

use orchestra_core::ImageSpec;
use orchestra_core::data::Pixels;

use crate::error::MediaError;
use crate::orientation::Orientation;
use crate::picture::{PictureInfo, PixelKind};
use crate::preparer::Preparer;

/// A rectangle of whole pixels within a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PixelRect {
    pub left: u32,
    pub top: u32,
    /// Its width in pixels, at least 1.
    pub width: u32,
    /// Its height in pixels, at least 1.
    pub height: u32,
}

impl Preparer {
    /// Takes `rect` of some pixels as the picture for `write_row`, as if it had been decoded from a file of its own.
    ///
    /// # Errors
    /// The rectangle is empty or not within the pixels, or there are not as many bytes as the pixels take.
    pub fn load(&mut self, pixels: &Pixels<'_>, rect: PixelRect) -> Result<(), MediaError> {
        self.picture = None;
        // What was made of the picture before this one.
        self.release_excess();
        let PixelRect { left, top, width, height } = rect;
        let fits =
            |at: u32, len: u32, side: u32| len > 0 && at.checked_add(len).is_some_and(|end| end <= side);
        let kind = match pixels.channels {
            1 => PixelKind::Gray,
            _ => PixelKind::Rgb,
        };
        let channels = kind.channels();
        let [stride, rows] = [pixels.width as usize * channels, pixels.height as usize];
        if !fits(left, width, pixels.width)
            || !fits(top, height, pixels.height)
            || channels != pixels.channels
            || pixels.bytes.len() != stride * rows
        {
            return Err(MediaError::NothingDecoded);
        }
        self.pixels.clear();
        for row in pixels.bytes.chunks_exact(stride).skip(top as usize).take(height as usize) {
            self.pixels.extend_from_slice(&row[left as usize * channels..][..width as usize * channels]);
        }
        self.picture = Some(PictureInfo::full(width, height, kind, Orientation::default()));
        Ok(())
    }

    /// Whether the picture at hand has one channel; `None` where none is decoded.
    pub fn is_gray(&self) -> Option<bool> {
        self.picture.map(|info| info.kind == PixelKind::Gray)
    }

    /// Whether rows of `spec` can be made of the picture at hand, or any rows, without a spec.
    pub fn is_enough_for(&self, spec: Option<&ImageSpec>) -> bool {
        match (self.picture, &self.lowered) {
            (None, _) => false,
            (_, Some(lowered)) => spec.is_some_and(|spec| lowered.is_for(spec)),
            (Some(info), None) => {
                (info.width, info.height) == info.full || spec.is_some_and(|spec| spec.fast)
            }
        }
    }
}
