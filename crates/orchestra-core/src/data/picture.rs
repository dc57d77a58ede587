//! Pictures among the values of a row: decoded when they are first needed, kept, or pixels that lie in memory. Decodes nothing itself.

use std::fmt;
use std::sync::Arc;

use super::ItemError;
use crate::image_spec::ImageSpec;

/// See [`Picture::copy_pixels`].
pub type CopyPixels<'a> = dyn FnMut([u32; 2], usize, &dyn Fn(&mut [u8])) -> Result<(), ItemError> + 'a;

/// A picture, which is decoded when it is first needed.
pub trait Picture {
    /// Decodes it, unless it is. With `row` it may be decoded to a fraction of its size, if that setting is `fast` and the row is much
    /// smaller; without, in full.
    fn decode(&self, row: Option<&ImageSpec>) -> Result<(), ItemError> {
        let _ = row;
        Ok(())
    }
    /// Writes it as one row of `spec`.
    fn write_row(&self, spec: &ImageSpec, row: &mut [u8]) -> Result<(), ItemError> {
        let _ = (spec, row);
        Err(ItemError::result("internal error: a picture that is decoded is read as pixels; this is a bug"))
    }
    /// Shows its pixels, decoded in full.
    fn with_pixels(&self, show: &mut dyn FnMut(Pixels<'_>) -> Result<(), ItemError>)
    -> Result<(), ItemError>;
    /// Gives its width and height, its channels, and what copies its pixels to memory of `width * height * channels` bytes.
    fn copy_pixels(&self, copy: &mut CopyPixels<'_>) -> Result<(), ItemError> {
        self.with_pixels(&mut |pixels| {
            let Pixels { width, height, channels, bytes } = pixels;
            copy([width, height], channels, &|place: &mut [u8]| place.copy_from_slice(bytes))
        })
    }
    /// Its width and height in pixels, upright and in full. Decodes it, unless it is.
    fn size(&self) -> Result<[u32; 2], ItemError>;
    /// How many pages its file has, each a picture.
    fn n_pages(&self) -> Result<usize, ItemError> {
        Err(ItemError::result("internal error: the file of a picture is not at hand; this is a bug"))
    }
    /// Shows a page of its file, from 0, as a picture.
    fn with_page(
        &self,
        page: usize,
        show: &mut dyn FnMut(&dyn Picture) -> Result<(), ItemError>,
    ) -> Result<(), ItemError> {
        let _ = (page, show);
        self.n_pages().map(drop)
    }
    /// Its pixels, where they lie in memory as they are.
    fn pixels(&self) -> Option<Pixels<'_>> {
        None
    }
    /// Itself, where its pixels are kept already: no copy is needed to carry it along.
    fn kept(&self) -> Option<Arc<dyn KeptPicture>> {
        None
    }
}

/// The pixels of a whole picture, upright, 8 bits per channel, rows without a gap.
#[derive(Debug, Clone, Copy)]
pub struct Pixels<'a> {
    /// Pixels from left to right, at least 1.
    pub width: u32,
    /// Pixels from top to bottom, at least 1.
    pub height: u32,
    /// 1 (gray) or 3 (red, green, blue).
    pub channels: usize,
    /// `width * height * channels` bytes.
    pub bytes: &'a [u8],
}

impl<'a> Pixels<'a> {
    /// A tensor u8 `[height, width, channels]` as pixels; `None` where it is no picture.
    pub fn of(shape: &[usize], bytes: &'a [u8]) -> Option<Self> {
        let &[height, width, channels @ (1 | 3)] = shape else { return None };
        let (width, height) = (u32::try_from(width).ok()?, u32::try_from(height).ok()?);
        let len = (width as usize).checked_mul(height as usize)?.checked_mul(channels)?;
        (len > 0 && len == bytes.len()).then_some(Self { width, height, channels, bytes })
    }
}

impl Picture for Pixels<'_> {
    fn with_pixels(
        &self,
        show: &mut dyn FnMut(Pixels<'_>) -> Result<(), ItemError>,
    ) -> Result<(), ItemError> {
        show(*self)
    }

    fn size(&self) -> Result<[u32; 2], ItemError> {
        Ok([self.width, self.height])
    }

    fn pixels(&self) -> Option<Pixels<'_>> {
        Some(*self)
    }
}

/// A picture that owns its pixels.
pub trait KeptPicture: Picture + fmt::Debug + Send + Sync {
    /// What it takes of the memory for values; 0 where its pixels have a place of their own.
    fn value_bytes(&self) -> usize {
        0
    }
}

/// A picture in a list. It is copied where it is carried on: what carries it says how much of that there may be.
#[derive(Debug)]
pub struct ListedPicture {
    /// Height, width and channels.
    shape: [usize; 3],
    bytes: Box<[u8]>,
}

impl ListedPicture {
    /// `None` where that is no picture.
    pub fn new(shape: [usize; 3], bytes: &[u8]) -> Option<Self> {
        Pixels::of(&shape, bytes).map(|pixels| Self { shape, bytes: pixels.bytes.into() })
    }

    fn shown(&self) -> Pixels<'_> {
        Pixels::of(&self.shape, &self.bytes).expect("it was a picture when it was made")
    }
}

impl Picture for ListedPicture {
    fn with_pixels(
        &self,
        show: &mut dyn FnMut(Pixels<'_>) -> Result<(), ItemError>,
    ) -> Result<(), ItemError> {
        show(self.shown())
    }

    fn size(&self) -> Result<[u32; 2], ItemError> {
        self.shown().size()
    }

    fn pixels(&self) -> Option<Pixels<'_>> {
        Some(self.shown())
    }
}

impl KeptPicture for ListedPicture {
    fn value_bytes(&self) -> usize {
        self.bytes.len()
    }
}
