//! The kind of stage that docs/guide/kinds.md shows: 1 - x for each number of a tensor.

use std::sync::Arc;

use orchestra::kind::{
    ColumnType, Connect, DType, Draft, Emit, Fields, Key, KindSettings, Limits, Map, MapRun, Refusal, Runs,
    Schema, StageConnected, StageContext, StageKind, TensorView, Value, key,
};

/// `kind = "invert"`: 1 - x for each number of a tensor.
pub struct Invert;

const KEYS: [Key; 1] = [key("below", "number", "1", "what the numbers are taken from")];

impl StageKind for Invert {
    fn name(&self) -> &'static str {
        "invert"
    }

    fn about(&self) -> &'static str {
        "Takes every number of a tensor from another one."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn read(&self, fields: &mut Fields<'_, '_>, _: &Limits) -> Option<Draft> {
        let below = fields.number_or_default("below").value as f32;
        Some(Draft::Stage(Box::new(InvertDraft { below })))
    }

    fn revive(&self, settings: &KindSettings) -> Option<Arc<dyn Map>> {
        Some(Arc::new(settings.read::<InvertMap>()?))
    }
}

#[derive(Debug)]
struct InvertDraft {
    below: f32,
}

impl Connect for InvertDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let is_f32 = |ty: &ColumnType| matches!(ty, ColumnType::Tensor(tensor) if tensor.dtype == DType::F32);
        let column = stage.column(0, "a tensor of f32", |column| is_f32(&column.ty))?;
        let tensor = stage.inputs[0].gives.0[column].ty.tensor()?.clone();
        Some(StageConnected {
            gives: Schema::of(&tensor.name, ColumnType::Tensor(tensor.clone())),
            reads: vec![(0, column)],
            runs: Runs::Map(Arc::new(InvertMap { below: self.below, elements: tensor.row_len() })),
            settings: serde_json::json!({ "below": self.below }),
            details: vec![format!("{} - x", self.below)],
            about: format!("{} - x", self.below),
        })
    }
}

#[derive(Debug, Clone, bincode::Encode, bincode::Decode)]
struct InvertMap {
    below: f32,
    elements: Option<usize>,
}

impl Map for InvertMap {
    fn start(&self) -> Box<dyn MapRun> {
        Box::new(InvertRun { below: self.below, inverted: Vec::new() })
    }

    fn in_loader(&self) -> Option<KindSettings> {
        KindSettings::of("invert", self)
    }

    fn cost(&self) -> usize {
        self.elements.unwrap_or(usize::MAX)
    }
}

struct InvertRun {
    below: f32,
    inverted: Vec<u8>,
}

impl MapRun for InvertRun {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        inputs[0].with_tensor(|tensor| {
            let numbers =
                tensor.data.as_chunks().0.iter().map(|bytes| self.below - f32::from_ne_bytes(*bytes));
            self.inverted.clear();
            self.inverted.extend(numbers.flat_map(f32::to_ne_bytes));
            emit.row(&[Value::Tensor(TensorView { data: &self.inverted, ..*tensor })])
        })
    }
}
