//! The kind of stage that docs/guide/kinds.md shows: 1 - x for each number of a tensor.

use orchestra_launch::kind::{
    ColumnType, Connect, DType, Emit, ItemError, Reported, RowWork, Runs, Schema, Settings, StageConnected,
    StageContext, TensorView, TypedStage, Value, settings,
};

settings! {
    /// `kind = "invert"`: 1 - x for each number of a tensor.
    #[derive(Debug, Clone, Copy, bincode::Encode, bincode::Decode)]
    pub struct Invert {
        /// what the numbers are taken from
        below: f64 = 1,
    }
}

impl TypedStage for Invert {
    const NAME: &'static str = "invert";
    const ABOUT: &'static str = "Takes every number of a tensor from another one.";
    type Work = Self;
}

impl Connect for Invert {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let is_f32 = |ty: &ColumnType| matches!(ty, ColumnType::Tensor(tensor) if tensor.dtype == DType::F32);
        let column = stage.column(0, "a tensor of f32", |column| is_f32(&column.ty))?;
        let tensor = stage.inputs[0].gives.0[column].ty.tensor().ok_or(Reported)?.clone();
        Ok(StageConnected {
            gives: Schema::of(&tensor.name, ColumnType::Tensor(tensor.clone())),
            reads: vec![(0, column)],
            runs: Runs::map::<Self>(*self, tensor.row_len()),
            settings: self.json(),
            details: vec![format!("{} - x", self.below)],
            about: format!("{} - x", self.below),
        })
    }
}

impl RowWork for Invert {
    type Scratch = Vec<u8>;

    fn apply(&self, inverted: &mut Vec<u8>, row: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        row[0].with_tensor(|tensor| {
            let below = self.below as f32;
            let numbers = tensor.data.as_chunks().0.iter().map(|bytes| below - f32::from_ne_bytes(*bytes));
            inverted.clear();
            inverted.extend(numbers.flat_map(f32::to_ne_bytes));
            emit.row(&[Value::Tensor(TensorView { data: inverted, ..*tensor })])
        })
    }
}
