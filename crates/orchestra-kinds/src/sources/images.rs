//! `kind = "images"`: picture files, one item each.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, Picture, Pixels, Refusal, Schema, Value};
use orchestra_core::shapes::{Fetch, FetchRun, RemoteSpec};
use orchestra_core::{Channels, DType, Fit, ImageSpec, Layout, ResizeFilter};
use orchestra_media::{MediaError, PictureSize, Preparer};
use orchestra_plan::{SourceConnected, SourceContext, SourceKind};

use super::read_file::read_file;

/// The kind `images`.
pub struct Images;

impl SourceKind for Images {
    fn name(&self) -> &'static str {
        "images"
    }

    fn about(&self) -> &'static str {
        "Picture files: JPEG, PNG, WebP, BMP, TIFF and GIF, told apart by their content. Of an animation the first frame is taken."
    }

    fn connect(&self, source: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
        Some(SourceConnected {
            gives: Schema::of("picture", ColumnType::Picture),
            fetch: Arc::new(PictureFiles { max_pixels: source.limits.max_pixels }),
            expand: None,
            settings: serde_json::Value::Null,
            decoders: Some(orchestra_media::DECODERS),
        })
    }

    fn revive(&self, spec: &RemoteSpec) -> Option<Arc<dyn Fetch>> {
        Some(Arc::new(spec.read::<PictureFiles>()?))
    }
}

#[derive(Debug, Encode, Decode)]
struct PictureFiles {
    max_pixels: u64,
}

impl Fetch for PictureFiles {
    fn start(&self) -> Box<dyn FetchRun> {
        Box::new(PictureFile {
            max_pixels: self.max_pixels,
            bytes: Vec::new(),
            decoder: RefCell::new(Decoder { preparer: Preparer::new(), size: None, pixels: Vec::new() }),
        })
    }

    fn remote(&self) -> Option<RemoteSpec> {
        RemoteSpec::of(Images.name(), self)
    }
}

/// The file at hand. It is decoded when the first stage asks for its pixels, and once for all of them.
struct PictureFile {
    max_pixels: u64,
    bytes: Vec<u8>,
    decoder: RefCell<Decoder>,
}

struct Decoder {
    preparer: Preparer,
    /// Of the file at hand, once it is decoded.
    size: Option<PictureSize>,
    pixels: Vec<u8>,
}

impl FetchRun for PictureFile {
    fn fetch(&mut self, locator: &[u8]) -> Result<u64, Refusal> {
        self.decoder.get_mut().size = None;
        read_file(Path::new(OsStr::from_bytes(locator)), &mut self.bytes)?;
        Ok(self.bytes.len() as u64)
    }

    fn with_row(&self, show: &mut dyn FnMut(&[Value<'_>])) {
        show(&[Value::Picture(self)]);
    }
}

impl PictureFile {
    /// Decodes the file, unless it is decoded well enough for `row`.
    fn decoded(&self, row: Option<&ImageSpec>) -> Result<std::cell::RefMut<'_, Decoder>, Refusal> {
        let mut decoder = self.decoder.borrow_mut();
        let in_full = row.is_none_or(|spec| !spec.fast);
        if decoder.size.is_none() || (in_full && decoder.preparer.is_reduced()) {
            decoder.size = None;
            let decoded = match row {
                Some(spec) => decoder.preparer.decode_for(&self.bytes, self.max_pixels, &[spec]),
                None => decoder.preparer.decode(&self.bytes, self.max_pixels),
            };
            decoder.size = Some(decoded.map_err(refusal)?);
        }
        Ok(decoder)
    }
}

impl Picture for PictureFile {
    fn decode(&self, row: Option<&ImageSpec>) -> Result<(), Refusal> {
        self.decoded(row).map(drop)
    }

    fn write_row(&self, spec: &ImageSpec, row: &mut [u8]) -> Result<(), Refusal> {
        self.decoded(Some(spec))?.preparer.write_row(spec, row).map_err(refusal)
    }

    fn with_pixels(&self, show: &mut dyn FnMut(Pixels<'_>) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let mut decoder = self.decoded(None)?;
        let Decoder { preparer, size, pixels } = &mut *decoder;
        let size = size.ok_or_else(|| refusal(MediaError::NothingDecoded))?;
        let spec = as_it_is(size, preparer.is_gray() == Some(true));
        let channels = spec.color.count();
        pixels.resize(size.width as usize * size.height as usize * channels, 0);
        preparer.write_row(&spec, pixels).map_err(refusal)?;
        // What is shown may itself ask for a row of this picture.
        let bytes = std::mem::take(pixels);
        drop(decoder);
        let shown = show(Pixels { width: size.width, height: size.height, channels, bytes: &bytes });
        self.decoder.borrow_mut().pixels = bytes;
        shown
    }

    fn size(&self) -> Result<[u32; 2], Refusal> {
        let known = self.decoder.borrow().size;
        let size = match known {
            Some(size) => size,
            None => self.decoded(None)?.size.ok_or_else(|| refusal(MediaError::NothingDecoded))?,
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
    }
}

fn refusal(error: MediaError) -> Refusal {
    Refusal { kind: error.kind(), error: error.to_string() }
}
