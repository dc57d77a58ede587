//! Pictures that are decoded already, whole or a rectangle of them, as input of rows.

use orchestra_core::ImageSpec;
use orchestra_core::data::Pixels;

use crate::error::MediaError;
use crate::orientation::Orientation;
use crate::picture::{PictureInfo, PixelKind};
use crate::preparer::Preparer;
use crate::row_spec::RowSpec;

/// A rectangle of whole pixels of a picture, and around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PixelRect {
    /// Below 0, it begins so far outside of the picture.
    pub left: i64,
    /// As `left`.
    pub top: i64,
    /// Its width in pixels, at least 1.
    pub width: u32,
    /// Its height in pixels, at least 1.
    pub height: u32,
}

impl Preparer {
    /// Takes `rect` of some pixels as the picture for `write_row`, as if it had been decoded from a file of its own. What lies outside of the pixels is
    /// the padding of `spec`.
    ///
    /// # Errors
    /// The rectangle is empty, or has more than `spec.max_pixels`; or there are not as many bytes as the pixels take.
    pub fn load(&mut self, pixels: &Pixels<'_>, rect: PixelRect, spec: &ImageSpec) -> Result<(), MediaError> {
        self.picture = None;
        // What was made of the picture before this one.
        self.release_excess();
        let PixelRect { left, top, width, height } = rect;
        let shown = u64::from(width) * u64::from(height);
        let is_within = |at: i64, len: u32, side: u32| at >= 0 && at + i64::from(len) <= side.into();
        let is_whole = is_within(left, width, pixels.width) && is_within(top, height, pixels.height);
        if shown == 0
            || !matches!(pixels.channels, 1 | 3)
            || pixels.bytes.len() != pixels.width as usize * pixels.height as usize * pixels.channels
        {
            return Err(MediaError::NothingDecoded);
        }
        if !is_whole && shown > spec.max_pixels {
            return Err(MediaError::CutTooLarge { width, height, max_pixels: spec.max_pixels });
        }
        let pad = RowSpec::pad_of(spec)?;
        // A colour around a gray picture makes it one of colours.
        let kind = match pixels.channels {
            1 if is_whole || pad == [pad[0]; 3] => PixelKind::Gray,
            _ => PixelKind::Rgb,
        };
        self.pixels.clear();
        for y in top..top + i64::from(height) {
            self.append_line(pixels, y, (left, width), kind, pad);
        }
        self.picture = Some(PictureInfo::full(width, height, kind, Orientation::default()));
        Ok(())
    }

    /// Appends `width` pixels of line `y`, from `left` on, to the picture; `pad` where there are none.
    fn append_line(
        &mut self,
        pixels: &Pixels<'_>,
        y: i64,
        (left, width): (i64, u32),
        kind: PixelKind,
        pad: [u8; 3],
    ) {
        let right = left + i64::from(width);
        let inside = 0..i64::from(pixels.width);
        let (first, end) = (left.clamp(0, inside.end), right.clamp(0, inside.end));
        let line = usize::try_from(y).ok().filter(|y| *y < pixels.height as usize);
        let padding =
            |n: i64| pad[..kind.channels()].iter().copied().cycle().take(n as usize * kind.channels());
        let Some(line) = line.filter(|_| first < end) else {
            self.pixels.extend(padding(width.into()));
            return;
        };
        self.pixels.extend(padding(first - left));
        let at = line * pixels.width as usize;
        let [first_byte, end_byte] = [first, end].map(|x| (at + x as usize) * pixels.channels);
        let shown = &pixels.bytes[first_byte..end_byte];
        if kind.channels() == pixels.channels {
            self.pixels.extend_from_slice(shown);
        } else {
            self.pixels.extend(shown.iter().flat_map(|gray| [*gray; 3]));
        }
        self.pixels.extend(padding(right - end));
    }

    /// Whether the picture at hand has one channel; `None` where none is decoded.
    pub fn is_gray(&self) -> Option<bool> {
        self.picture.map(|info| info.kind == PixelKind::Gray)
    }

    /// How many pages or frames the file of the picture at hand has; 0 where none is decoded.
    pub fn n_pictures(&self) -> u32 {
        self.picture.map_or(0, |info| info.n_pictures)
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
