//! `kind = "image"`: decodes a picture, turns it upright, resizes it and writes it as a tensor row.

use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, Picture, Refusal, Value, WriteTensor};
use orchestra_core::shapes::{Emit, Map, MapRun, RemoteSpec};
use orchestra_core::{FailureKind, ImageSpec, TensorSpec};
use orchestra_plan::{Connect, Draft, Fields, Key, Limits, Runs, StageConnected, StageContext, StageKind};

use super::image_settings as settings;

/// The kind `image`.
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
        Some(Draft::Stage(Box::new(ImageDraft(settings::read(fields, limits.max_pixels)?))))
    }

    fn revive(&self, spec: &RemoteSpec) -> Option<Arc<dyn Map>> {
        Some(Arc::new(spec.read::<ImageMap>()?))
    }
}

#[derive(Debug)]
struct ImageDraft(ImageSpec);

impl Connect for ImageDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let picture = stage.column(0, "pictures, which a source gives", |c| c.ty == ColumnType::Picture)?;
        let spec = &self.0;
        Some(StageConnected {
            gives: settings::column(spec),
            reads: vec![(0, picture)],
            runs: Runs::Map(Arc::new(ImageMap { spec: spec.clone(), tensor: spec.tensor() })),
            settings: serde_json::json!({ "spec": spec }),
            details: settings::details(spec),
            about: settings::about(spec),
        })
    }

    fn advice(&self, name: &str, want: &TensorSpec) -> Option<String> {
        Some(settings::advice(name, &self.0.for_model(), want))
    }
}

#[derive(Debug, Clone, Encode, Decode)]
struct ImageMap {
    spec: ImageSpec,
    tensor: TensorSpec,
}

impl Map for ImageMap {
    fn start(&self) -> Box<dyn MapRun> {
        Box::new(self.clone())
    }

    fn cost(&self) -> usize {
        usize::MAX
    }

    fn remote(&self) -> Option<RemoteSpec> {
        RemoteSpec::of(Image.name(), self)
    }
}

impl MapRun for ImageMap {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        let [Value::Picture(picture)] = inputs else {
            let error = "internal error: an image stage was given no picture; this is a bug".to_owned();
            return Err(Refusal { kind: FailureKind::Decode, error });
        };
        picture.decode(Some(&self.spec))?;
        emit.row(&[Value::Unwritten(&Row { picture: *picture, map: self })])
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
}
