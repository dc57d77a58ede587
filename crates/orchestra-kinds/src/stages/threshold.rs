//! `kind = "threshold"`: which numbers of a tensor are above a bound.

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, ItemError, Schema, TensorView, Value};
use orchestra_core::shapes::{Emit, RowWork};
use orchestra_core::{DType, Dim, Element, TensorSpec};
use orchestra_plan::{
    Connect, Reported, Runs, Settings, StageConnected, StageContext, TypedStage, choices, settings,
};

use crate::elements::no_number;

settings! {
    #[derive(Debug, Clone, Copy, Encode, Decode)]
    pub struct Threshold {
        /// a number above it is true; one that is equal to it is not
        above: f64 = 0.5,
        /// what the answers are
        dtype: ThresholdOutput = "bool",
    }
}

choices! {
    #[derive(Encode, Decode)]
    pub enum ThresholdOutput {
        Bool = "bool",
        /// 1 and 0
        U8 = "u8",
    }
}

impl ThresholdOutput {
    fn dtype(self) -> DType {
        match self {
            ThresholdOutput::Bool => DType::Bool,
            ThresholdOutput::U8 => DType::U8,
        }
    }
}

impl TypedStage for Threshold {
    const NAME: &'static str = "threshold";
    const ABOUT: &'static str =
        "Says of each number of a tensor whether it is above a bound: `mask`, a tensor of the same shape.";
    type Work = Self;
}

impl Connect for Threshold {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let place = stage.column(0, "a tensor, which an infer stage gives", |c| c.ty.tensor().is_some())?;
        let tensor = stage.inputs[0].gives.0[place].ty.stored().ok_or(Reported)?.clone();
        let cost = tensor.row_len();
        let about = format!("above {}", self.above);
        let mask =
            TensorSpec { name: "mask".into(), dtype: self.dtype.dtype(), batch: Dim::Dynamic, ..tensor };
        Ok(StageConnected {
            gives: Schema::of("mask", ColumnType::Tensor(mask)),
            reads: vec![(0, place)],
            settings: self.json(),
            details: vec![about.clone()],
            about,
            runs: Runs::map::<Self>(*self, cost),
        })
    }
}

impl RowWork for Threshold {
    type Scratch = Vec<u8>;

    fn apply(&self, mask: &mut Vec<u8>, row: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        row[0].with_tensor(|view| {
            mask.clear();
            for (place, bytes) in view.data.chunks_exact(view.dtype.size_bytes()).enumerate() {
                let is_above = Element::read(view.dtype, bytes).is_above(self.above);
                mask.push(u8::from(is_above.ok_or_else(|| no_number(view.name, place))?));
            }
            let dtype = self.dtype.dtype();
            emit.row(&[Value::Tensor(TensorView { name: "mask", dtype, shape: view.shape, data: mask })])
        })
    }
}
