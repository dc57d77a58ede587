//! `kind = "image"`: decodes a picture, turns it upright, resizes it and writes it as a tensor row.

use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, Picture, Refusal, Value, WriteTensor};
use orchestra_core::shapes::{Emit, KindSettings, Map, MapRun, Packing};
use orchestra_core::{FailureKind, ImageSpec, Placement, TensorSpec};
use orchestra_plan::{
    Connect, Draft, Fields, Key, Limits, Runs, Span, StageConnected, StageContext, StageKind,
};

use super::shared::image_settings as settings;

pub struct Image;

impl StageKind for Image {
    fn name(&self) -> &'static str {
        "image"
    }

    fn about(&self) -> &'static str {
        "Decodes pictures, turns them upright (EXIF), and writes one tensor row for each, named `pixels`."
    }

    fn keys(&self) -> &'static [Key] {
        &settings::KEYS
    }

    fn read(&self, fields: &mut Fields<'_, '_>, limits: &Limits) -> Option<Draft> {
        let fast = fields.entry("fast").map(|entry| entry.key_span);
        Some(Draft::Stage(Box::new(ImageDraft { spec: settings::read(fields, limits.max_pixels)?, fast })))
    }

    fn revive(&self, settings: &KindSettings) -> Option<Arc<dyn Map>> {
        Some(Arc::new(settings.read::<ImageMap>()?))
    }
}

#[derive(Debug)]
struct ImageDraft {
    spec: ImageSpec,
    /// Where the key `fast` stands.
    fast: Option<Span>,
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

impl Connect for ImageDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let picture = stage.column(0, "pictures, which a source gives", |c| c.ty == ColumnType::Picture)?;
        let spec = &self.spec;
        if let Some(span) = self.fast.filter(|_| name_no_jpeg(&stage.inputs[0].paths)) {
            let message = format!("stage `{}`: `fast` has no effect: its source names no JPEG", stage.name);
            stage.diags.warning(span, message).label("has no effect").help("leave it out");
        }
        Some(StageConnected {
            gives: settings::column(spec),
            reads: vec![(0, picture)],
            runs: Runs::Map(Arc::new(ImageMap {
                spec: spec.clone(),
                tensor: spec.tensor(),
                packed: spec.packed(),
            })),
            settings: serde_json::json!({ "spec": spec }),
            details: settings::details(spec),
            about: settings::about(spec),
        })
    }

    fn trims(&self) -> Option<&ImageSpec> {
        self.spec.trim.map(|_| &self.spec)
    }

    fn advice(&self, name: &str, want: &TensorSpec) -> Option<String> {
        Some(settings::advice(name, &self.spec.for_model(), want))
    }
}

#[derive(Debug, Clone, Encode, Decode)]
struct ImageMap {
    spec: ImageSpec,
    tensor: TensorSpec,
    /// The pixels alone, where they are fewer bytes.
    packed: Option<ImageSpec>,
}

impl Map for ImageMap {
    fn start(&self) -> Box<dyn MapRun> {
        Box::new(self.clone())
    }

    fn cost(&self) -> usize {
        usize::MAX
    }

    fn in_loader(&self) -> Option<KindSettings> {
        KindSettings::of(Image.name(), self)
    }

    fn packing(&self, column: usize) -> Option<Arc<dyn Packing>> {
        let packed = self.packed.as_ref().filter(|_| column == PIXELS)?;
        let bytes = packed.tensor().row_bytes()?;
        Some(Arc::new(PixelsOfRow { spec: self.spec.clone(), bytes }))
    }
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

    fn unpack(&self, packed: &[u8], row: &mut [u8]) -> Result<(), Refusal> {
        orchestra_media::unpack(&self.spec, packed, row)
            .map_err(|error| Refusal { kind: error.kind(), error: error.to_string() })
    }
}

impl MapRun for ImageMap {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        let [Value::Picture(picture)] = inputs else {
            let error = "internal error: an image stage was given no picture; this is a bug".to_owned();
            return Err(Refusal { kind: FailureKind::Decode, error });
        };
        picture.decode(Some(&self.spec))?;
        let placed = orchestra_media::placement(&self.spec, picture.size()?).bytes();
        emit.row(&[Value::Unwritten(&Row { picture: *picture, map: self }), Placement::value(&placed)])
    }
}

struct Row<'a> {
    picture: &'a dyn Picture,
    map: &'a ImageMap,
}

impl WriteTensor for Row<'_> {
    fn spec(&self) -> &TensorSpec {
        &self.map.tensor
    }

    fn write(&self, row: &mut [u8]) -> Result<(), Refusal> {
        self.picture.write_row(&self.map.spec, row)
    }

    fn write_packed(&self, packed: &mut [u8]) -> Result<(), Refusal> {
        match &self.map.packed {
            Some(spec) => self.picture.write_row(spec, packed),
            None => Err(Refusal::result("internal error: a row is its pixels already; this is a bug")),
        }
    }
}
