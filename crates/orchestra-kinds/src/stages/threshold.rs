//! `kind = "threshold"`: which numbers of a tensor are above a bound.

use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, Refusal, Schema, TensorView, Value};
use orchestra_core::shapes::{Emit, KindSettings, Map, MapRun};
use orchestra_core::{DType, Dim, Element, TensorSpec};
use orchestra_plan::{
    Connect, Draft, Fields, Key, Limits, Runs, StageConnected, StageContext, StageKind, Words, key,
};

use crate::elements::no_number;

pub struct Threshold;

const KEYS: [Key; 2] = [
    key("above", "number", "0.5", "a number above it is true; one that is equal to it is not"),
    key("dtype", "text", "\"bool\"", "what the answers are").one_of(&DTYPES.words),
];

/// `dtype`
const DTYPES: Words<DType, 2> = Words::new([("bool", DType::Bool, ""), ("u8", DType::U8, "1 and 0")]);

impl StageKind for Threshold {
    fn name(&self) -> &'static str {
        "threshold"
    }

    fn about(&self) -> &'static str {
        "Says of each number of a tensor whether it is above a bound: `mask`, a tensor of the same shape."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn read(&self, f: &mut Fields<'_, '_>, _: &Limits) -> Option<Draft> {
        let above = f.number_or_default("above").value;
        let dtype = f.word_or_default("dtype", &DTYPES).value;
        Some(Draft::Stage(Box::new(ThresholdDraft { above, dtype })))
    }

    fn revive(&self, settings: &KindSettings) -> Option<Arc<dyn Map>> {
        Some(Arc::new(settings.read::<ThresholdMap>()?))
    }
}

#[derive(Debug)]
struct ThresholdDraft {
    above: f64,
    dtype: DType,
}

impl Connect for ThresholdDraft {
    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let place = stage.column(0, "a tensor, which an infer stage gives", |c| c.ty.tensor().is_some())?;
        let tensor = stage.inputs[0].gives.0[place].ty.stored()?.clone();
        let cost = tensor.row_len();
        let about = format!("above {}", self.above);
        let spec =
            TensorSpec { name: "mask".into(), dtype: self.dtype, row: tensor.row, batch: Dim::Dynamic };
        Some(StageConnected {
            gives: Schema::of("mask", ColumnType::Tensor(spec)),
            reads: vec![(0, place)],
            settings: serde_json::json!({ "output": place, "above": self.above, "dtype": self.dtype }),
            details: vec![about.clone()],
            about,
            runs: Runs::Map(Arc::new(ThresholdMap { above: self.above, dtype: self.dtype, cost })),
        })
    }
}

#[derive(Debug, Clone, Encode, Decode)]
struct ThresholdMap {
    above: f64,
    dtype: DType,
    /// Numbers of a row, where that is known.
    cost: Option<usize>,
}

impl Map for ThresholdMap {
    fn start(&self) -> Box<dyn MapRun> {
        Box::new(ThresholdRun { map: self.clone(), mask: Vec::new() })
    }

    fn cost(&self) -> usize {
        self.cost.unwrap_or(usize::MAX)
    }

    fn in_loader(&self) -> Option<KindSettings> {
        KindSettings::of(Threshold.name(), self)
    }
}

struct ThresholdRun {
    map: ThresholdMap,
    mask: Vec<u8>,
}

impl MapRun for ThresholdRun {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        let [tensor] = inputs else { return Err(Refusal::result("the tensor to compare is missing")) };
        tensor.with_tensor(|view| {
            self.mask.clear();
            for (place, bytes) in view.data.chunks_exact(view.dtype.size_bytes()).enumerate() {
                let element = Element::read(view.dtype, bytes);
                let is_above = element.is_above(self.map.above).ok_or_else(|| no_number(view.name, place))?;
                self.mask.push(u8::from(is_above));
            }
            let mask =
                TensorView { name: "mask", dtype: self.map.dtype, shape: view.shape, data: &self.mask };
            emit.row(&[Value::Tensor(mask)])
        })
    }
}
