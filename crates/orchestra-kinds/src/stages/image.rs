//! `kind = "image"`: decodes a picture, turns it upright, resizes it and writes it as a tensor row.

use std::cell::RefCell;
use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, ItemError, Picture, Pixels, Value, WriteTensor};
use orchestra_core::shapes::{Emit, Packing, RowWork};
use orchestra_core::{FailureKind, ImageSpec, Placement, TensorSpec};
use orchestra_media::{PixelRect, Preparer};
use orchestra_plan::{
    Connect, Fields, Json, Key, Reported, Runs, Settings, StageConnected, StageContext, TypedStage,
};

use super::shared::image_settings as settings;

#[derive(Debug)]
pub struct Image(ImageSpec);

impl Settings for Image {
    const KEYS: &'static [Key] = settings::KEYS;

    fn read(f: &mut Fields<'_, '_>) -> Option<Self> {
        settings::read(f).map(Self)
    }

    fn json(&self) -> Json {
        serde_json::json!({ "spec": self.0 })
    }
}

impl TypedStage for Image {
    const NAME: &'static str = "image";
    const ABOUT: &'static str =
        "Decodes pictures, turns them upright (EXIF), and writes one tensor row for each, named `pixels`.";
    type Work = ImageRows;
}

/// Whether all files of these paths have a name that no JPEG has.
fn name_no_jpeg(paths: &[String]) -> bool {
    const OTHERS: [&str; 6] = ["png", "webp", "bmp", "tif", "tiff", "gif"];
    let is_other = |path: &String| {
        let ending = path.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
        ending.is_some_and(|ending| OTHERS.contains(&&*ending))
    };
    !paths.is_empty() && paths.iter().all(is_other)
}

impl Connect for Image {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let what =
            "pictures, which a source gives, or a Python stage whose output is declared as \"picture\"";
        let picture = stage.column(0, what, |c| c.ty == ColumnType::Picture)?;
        let spec = ImageSpec { max_pixels: stage.limits.max_pixels, ..self.0.clone() };
        if name_no_jpeg(&stage.inputs[0].paths) {
            stage.warn_of("fast", ": its source names no JPEG");
        }
        Ok(StageConnected {
            gives: settings::column(&spec),
            reads: vec![(0, picture)],
            settings: serde_json::json!({ "spec": spec }),
            details: settings::details(&spec),
            about: settings::about(&spec),
            runs: Runs::map::<Self>(ImageRows { tensor: spec.tensor(), packed: spec.packed(), spec }, None),
        })
    }

    fn pixels(&self) -> Option<&ImageSpec> {
        Some(&self.0)
    }

    fn advice(&self, name: &str, want: &TensorSpec) -> Option<String> {
        Some(settings::advice(name, &self.0.for_model(), want))
    }
}

#[derive(Debug, Encode, Decode)]
pub struct ImageRows {
    spec: ImageSpec,
    tensor: TensorSpec,
    /// The pixels alone, where they are fewer bytes.
    packed: Option<ImageSpec>,
}

/// The first of the two columns.
const PIXELS: usize = 0;

/// A row that is made of its pixels again: normalised, in the layout and the element type of the row.
#[derive(Debug)]
struct PixelsOfRow {
    spec: ImageSpec,
    bytes: usize,
}

impl Packing for PixelsOfRow {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn unpack(&self, packed: &[u8], row: &mut [u8]) -> Result<(), ItemError> {
        orchestra_media::unpack(&self.spec, packed, row)
            .map_err(|error| ItemError { kind: error.kind(), error: error.to_string() })
    }
}

impl RowWork for ImageRows {
    type Scratch = RefCell<Preparer>;

    fn packing(&self, column: usize) -> Option<Arc<dyn Packing>> {
        let packed = self.packed.as_ref().filter(|_| column == PIXELS)?;
        let bytes = packed.tensor().row_bytes()?;
        Some(Arc::new(PixelsOfRow { spec: self.spec.clone(), bytes }))
    }

    fn apply(
        &self,
        preparer: &mut RefCell<Preparer>,
        row: &[Value<'_>],
        emit: &mut dyn Emit,
    ) -> Result<(), ItemError> {
        let [Value::Picture(picture)] = row else {
            let error = "internal error: an image stage was given no picture; this is a bug".to_owned();
            return Err(ItemError { kind: FailureKind::Decode, error });
        };
        picture.decode(Some(&self.spec))?;
        let placed = orchestra_media::placement(&self.spec, picture.size()?).bytes();
        emit.row(&[
            Value::Unwritten(&ImageTensor { picture: *picture, rows: self, preparer }),
            Placement::value(&placed),
        ])
    }
}

struct ImageTensor<'a> {
    picture: &'a dyn Picture,
    rows: &'a ImageRows,
    /// For a picture that is decoded already.
    preparer: &'a RefCell<Preparer>,
}

impl WriteTensor for ImageTensor<'_> {
    fn spec(&self) -> &TensorSpec {
        &self.rows.tensor
    }

    fn write(&self, row: &mut [u8]) -> Result<(), ItemError> {
        let Some(pixels) = self.picture.pixels() else { return self.picture.write_row(&self.rows.spec, row) };
        let Pixels { width, height, .. } = pixels;
        let (spec, mut preparer) = (&self.rows.spec, self.preparer.borrow_mut());
        let loaded = preparer.load(&pixels, PixelRect { left: 0, top: 0, width, height }, spec);
        loaded
            .and_then(|()| preparer.write_row(spec, row))
            .map_err(|error| ItemError { kind: error.kind(), error: error.to_string() })
    }

    fn write_packed(&self, packed: &mut [u8]) -> Result<(), ItemError> {
        match &self.rows.packed {
            Some(spec) => self.picture.write_row(spec, packed),
            None => Err(ItemError::result("internal error: a row is its pixels already; this is a bug")),
        }
    }
}
