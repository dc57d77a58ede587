//! A picture as the bytes of its file: decoded when the first stage asks for its pixels, and once for all of them. Reads nothing.

use std::cell::{Cell, OnceCell, RefCell, RefMut};

use orchestra_core::data::{ItemError, Picture, Pixels, Value};
use orchestra_core::{Channels, DType, Fit, ImageSpec, Layout, LeftOut, ResizeFilter};
use orchestra_media::{Format, MediaError, Pages, PictureSize, Preparer};

use super::fetch::ShownItem;

/// The picture of the item at hand.
pub struct UndecodedPicture {
    max_pixels: u64,
    bytes: Vec<u8>,
    decoder: RefCell<Decoder>,
    /// Where its pictures are, once that was asked: a file of many pages is looked through once.
    pages: OnceCell<Pages>,
    /// How many of its pictures become items or parts: the first, or all pages where a stage takes them.
    n_taken: Cell<usize>,
}

/// A page of the file, from 0.
struct Page<'a> {
    file: &'a UndecodedPicture,
    number: usize,
}

struct Decoder {
    preparer: Preparer,
    page: usize,
    /// Of the file at hand, once it is decoded.
    size: Option<PictureSize>,
    pixels: Vec<u8>,
}

impl UndecodedPicture {
    /// None yet. A picture of more than `max_pixels` is refused.
    pub fn new(max_pixels: u64) -> Self {
        let decoder = Decoder { preparer: Preparer::new(), page: 0, size: None, pixels: Vec::new() };
        Self {
            max_pixels,
            bytes: Vec::new(),
            decoder: RefCell::new(decoder),
            pages: OnceCell::new(),
            n_taken: Cell::new(1),
        }
    }

    /// The bytes of the file, to be written anew.
    pub fn bytes_mut(&mut self) -> &mut Vec<u8> {
        self.decoder.get_mut().size = None;
        self.pages.take();
        self.n_taken.set(1);
        &mut self.bytes
    }

    /// The pages or frames of the file that are not decoded.
    pub fn left_out(&self) -> Option<(LeftOut, u64)> {
        let decoder = self.decoder.borrow();
        let n_pictures = decoder.size.map_or(0, |_| u64::from(decoder.preparer.n_pictures()));
        let others = n_pictures.saturating_sub(self.n_taken.get() as u64);
        let what = match Format::of(&self.bytes) {
            Some(Format::Tiff) => LeftOut::Pages,
            _ => LeftOut::Frames,
        };
        (others > 0).then_some((what, others))
    }

    fn pages(&self) -> Result<&Pages, MediaError> {
        match self.pages.get() {
            Some(pages) => Ok(pages),
            None => Pages::of(&self.bytes).map(|pages| self.pages.get_or_init(|| pages)),
        }
    }

    fn first(&self) -> Page<'_> {
        Page { file: self, number: 0 }
    }
}

impl ShownItem for UndecodedPicture {
    fn show(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        show(&[Value::Picture(self)]);
    }

    fn left_out(&self) -> Vec<(LeftOut, u64)> {
        self.left_out().into_iter().collect()
    }
}

impl Page<'_> {
    /// Decodes the page, unless it is decoded well enough for `row`.
    fn decoded(&self, row: Option<&ImageSpec>) -> Result<RefMut<'_, Decoder>, ItemError> {
        let UndecodedPicture { max_pixels, bytes, decoder, .. } = self.file;
        let mut decoder = decoder.borrow_mut();
        if decoder.size.is_none() || decoder.page != self.number || !decoder.preparer.is_enough_for(row) {
            decoder.size = None;
            let specs: Vec<&ImageSpec> = row.into_iter().collect();
            let decoded = self.file.pages().and_then(|pages| {
                decoder.preparer.decode_page(bytes, (pages, self.number), *max_pixels, &specs)
            });
            decoder.size = Some(decoded.map_err(|error| match (self.number, item_error(error)) {
                (0, item_error) => item_error,
                (page, ItemError { kind, error }) => {
                    ItemError { kind, error: format!("page {}: {error}", page + 1) }
                }
            })?);
            decoder.page = self.number;
        }
        Ok(decoder)
    }
}

impl Picture for UndecodedPicture {
    fn decode(&self, row: Option<&ImageSpec>) -> Result<(), ItemError> {
        self.first().decode(row)
    }

    fn write_row(&self, spec: &ImageSpec, row: &mut [u8]) -> Result<(), ItemError> {
        self.first().write_row(spec, row)
    }

    fn with_pixels(
        &self,
        show: &mut dyn FnMut(Pixels<'_>) -> Result<(), ItemError>,
    ) -> Result<(), ItemError> {
        self.first().with_pixels(show)
    }

    fn size(&self) -> Result<[u32; 2], ItemError> {
        self.first().size()
    }

    fn n_pages(&self) -> Result<usize, ItemError> {
        let n_pages = self.pages().map_err(item_error)?.count();
        self.n_taken.set(n_pages);
        Ok(n_pages)
    }

    fn with_page(
        &self,
        page: usize,
        show: &mut dyn FnMut(&dyn Picture) -> Result<(), ItemError>,
    ) -> Result<(), ItemError> {
        show(&Page { file: self, number: page })
    }
}

impl Picture for Page<'_> {
    fn decode(&self, row: Option<&ImageSpec>) -> Result<(), ItemError> {
        self.decoded(row).map(drop)
    }

    fn write_row(&self, spec: &ImageSpec, row: &mut [u8]) -> Result<(), ItemError> {
        self.decoded(Some(spec))?.preparer.write_row(spec, row).map_err(item_error)
    }

    fn with_pixels(
        &self,
        show: &mut dyn FnMut(Pixels<'_>) -> Result<(), ItemError>,
    ) -> Result<(), ItemError> {
        let mut decoder = self.decoded(None)?;
        let Decoder { preparer, size, pixels, .. } = &mut *decoder;
        let size = size.ok_or_else(|| item_error(MediaError::NothingDecoded))?;
        let spec = as_it_is(size, preparer.is_gray() == Some(true));
        let channels = spec.color.count();
        pixels.resize(size.width as usize * size.height as usize * channels, 0);
        preparer.write_row(&spec, pixels).map_err(item_error)?;
        // What is shown may itself ask for a row of this picture.
        let bytes = std::mem::take(pixels);
        drop(decoder);
        let shown = show(Pixels { width: size.width, height: size.height, channels, bytes: &bytes });
        self.file.decoder.borrow_mut().pixels = bytes;
        shown
    }

    fn size(&self) -> Result<[u32; 2], ItemError> {
        let known = {
            let decoder = self.file.decoder.borrow();
            decoder.size.filter(|_| decoder.page == self.number)
        };
        let size = match known {
            Some(size) => size,
            None => self.decoded(None)?.size.ok_or_else(|| item_error(MediaError::NothingDecoded))?,
        };
        Ok([size.width, size.height])
    }
}

/// The row that holds the pixels of a picture as a viewer shows it.
fn as_it_is(size: PictureSize, is_gray: bool) -> ImageSpec {
    let color = if is_gray { Channels::Gray } else { Channels::Rgb };
    let channels = color.count();
    ImageSpec {
        size: [size.height, size.width],
        fit: Fit::Stretch,
        shorter: size.width.max(size.height),
        filter: ResizeFilter::Nearest,
        color,
        layout: Layout::Nhwc,
        dtype: DType::U8,
        scale: 1.0,
        mean: vec![0.0; channels],
        std: vec![1.0; channels],
        pad: vec![0; channels],
        max_pixels: u64::MAX,
        fast: false,
        in_graph: None,
        trim: None,
    }
}

fn item_error(error: MediaError) -> ItemError {
    ItemError { kind: error.kind(), error: error.to_string() }
}
