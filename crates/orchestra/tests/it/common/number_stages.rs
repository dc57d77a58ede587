//! Stages of tests: numbers to numbers.

use std::sync::Arc;

use orchestra::kind::{
    ColumnType, Connect, DType, Draft, Emit, Fan, Fields, Map, MapRun, Refusal, Reported, Runs, Schema,
    StageConnected, StageContext, StageKind, TensorView, Value, fixed_tensor,
};
use orchestra_testkit::images::index_of_blocks;

/// What a test stage does with a row of numbers.
pub type Work = fn(&[f32], &mut dyn FnMut(&[f32]) -> Result<(), Refusal>) -> Result<(), Refusal>;

/// A kind of stage from f32 tensors to f32 tensors `x` of row shape `[2]`.
#[derive(Debug, Clone, Copy)]
pub struct Stage {
    pub name: &'static str,
    pub fan: Fan,
    /// How many rows it makes of one, where these are parts.
    pub parts: fn(&[f32]) -> usize,
    pub work: Work,
}

impl StageKind for Stage {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        "A stage of a test."
    }

    fn read(&self, _: &mut Fields<'_, '_>) -> Option<Draft> {
        Some(Draft::Stage(Box::new(*self)))
    }
}

impl Connect for Stage {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let column = stage.column(0, "a tensor", |column| column.ty.tensor().is_some())?;
        Ok(StageConnected {
            gives: Schema::of("x", ColumnType::Tensor(fixed_tensor("x", DType::F32, &[2]))),
            reads: vec![(0, column)],
            runs: Runs::Map(Arc::new(*self)),
            settings: serde_json::json!({}),
            details: Vec::new(),
            about: self.name.to_owned(),
        })
    }
}

impl Map for Stage {
    fn fan(&self) -> Fan {
        self.fan
    }

    fn start(&self) -> Box<dyn MapRun> {
        Box::new(*self)
    }

    fn cost(&self) -> usize {
        8
    }
}

impl MapRun for Stage {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        inputs[0].with_tensor(|tensor| {
            let numbers: Vec<f32> =
                tensor.data.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
            if self.fan == Fan::Parts {
                emit.parts((self.parts)(&numbers))?;
            }
            (self.work)(&numbers, &mut |row| {
                let data: Vec<u8> = row.iter().flat_map(|n| n.to_ne_bytes()).collect();
                emit.row(&[Value::Tensor(TensorView {
                    name: "x",
                    dtype: DType::F32,
                    shape: &[2],
                    data: &data,
                })])
            })
        })
    }
}

/// How many parts an item becomes: none, for every seventh.
pub fn n_parts(index: u64) -> u64 {
    index % 7
}

pub fn index_of(pixels: &[f32]) -> u64 {
    let blocks: Vec<f32> = pixels.iter().map(|pixel| pixel / 255.0).collect();
    index_of_blocks(&blocks).expect("the picture shows its index")
}

/// Each picture becomes `n_parts` rows: its index, and the place of the part.
pub const SCATTER: Stage = Stage {
    name: "scatter",
    fan: Fan::Parts,
    parts: |pixels| n_parts(index_of(pixels)) as usize,
    work: |pixels, emit| {
        let index = index_of(pixels);
        (0..n_parts(index)).try_for_each(|part| emit(&[index as f32, part as f32]))
    },
};
