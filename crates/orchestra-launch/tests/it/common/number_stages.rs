//! Stages of tests: a function for each row, of numbers in most of them.

use std::fmt;
use std::sync::Arc;

use orchestra_launch::kind::{
    ColumnType, Connect, DType, Draft, Emit, FanOut, Fields, ItemError, Map, MapRun, Reported, Runs, Schema,
    StageConnected, StageContext, StageKind, TensorView, Value, fixed_tensor,
};
use orchestra_testkit::images::index_of_blocks;

/// What a stage does with a row: the columns that it reads, one of each input.
pub type Apply = dyn Fn(&[Value<'_>], &mut dyn Emit) -> Result<(), ItemError> + Send + Sync;

/// A kind of stage that does something with each row.
#[derive(Clone)]
pub struct TestStage {
    pub name: &'static str,
    /// Whether it reads a column of this type, of the input at this place.
    pub reads: fn(usize, &ColumnType) -> bool,
    /// The columns of its rows, of the first one that it reads.
    pub gives: fn(&ColumnType) -> Schema,
    pub fan: FanOut,
    pub apply: Arc<Apply>,
}

impl TestStage {
    /// One row of one, cheap.
    pub fn new(
        name: &'static str,
        reads: fn(usize, &ColumnType) -> bool,
        gives: fn(&ColumnType) -> Schema,
        apply: impl Fn(&[Value<'_>], &mut dyn Emit) -> Result<(), ItemError> + Send + Sync + 'static,
    ) -> Self {
        Self { name, reads, gives, fan: FanOut::One, apply: Arc::new(apply) }
    }
}

impl fmt::Debug for TestStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl StageKind for TestStage {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        "A stage of a test."
    }

    fn read(&self, _: &mut Fields<'_, '_>) -> Option<Draft> {
        Some(Draft::Stage(Box::new(self.clone())))
    }
}

impl Connect for TestStage {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let reads = (0..stage.inputs.len())
            .map(|at| Ok((at, stage.column(at, "what the test has", |column| (self.reads)(at, &column.ty))?)))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(StageConnected {
            gives: (self.gives)(&stage.inputs[0].gives.0[reads[0].1].ty),
            reads,
            runs: Runs::Map(Arc::new(self.clone())),
            settings: serde_json::json!({}),
            details: Vec::new(),
            about: self.name.to_owned(),
        })
    }
}

impl Map for TestStage {
    fn fan(&self) -> FanOut {
        self.fan
    }

    fn start(&self) -> Box<dyn MapRun> {
        Box::new(self.clone())
    }

    fn cost(&self) -> usize {
        8
    }
}

impl MapRun for TestStage {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        (self.apply)(inputs, emit)
    }
}

pub fn is_tensor(_: usize, ty: &ColumnType) -> bool {
    ty.tensor().is_some()
}

/// A column `x` of so many numbers.
pub fn numbers_of<const N: usize>(_: &ColumnType) -> Schema {
    Schema::of("x", ColumnType::Tensor(fixed_tensor("x", DType::F32, &[N])))
}

/// Gives on a row of [`numbers_of`].
pub fn emit_numbers(emit: &mut dyn Emit, row: &[f32]) -> Result<(), ItemError> {
    let data: Vec<u8> = row.iter().flat_map(|n| n.to_ne_bytes()).collect();
    emit.row(&[Value::Tensor(TensorView { name: "x", dtype: DType::F32, shape: &[row.len()], data: &data })])
}

/// What a test stage does with a row of numbers.
pub type Work = fn(&[f32], &mut dyn FnMut(&[f32]) -> Result<(), ItemError>) -> Result<(), ItemError>;

/// A kind of stage from f32 tensors to f32 tensors `x` of row shape `[2]`.
#[derive(Clone, Copy)]
pub struct Stage {
    pub name: &'static str,
    /// How many rows it makes of one, where these are parts.
    pub parts: Option<fn(&[f32]) -> usize>,
    pub work: Work,
}

impl StageKind for Stage {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        "A stage of a test."
    }

    fn read(&self, fields: &mut Fields<'_, '_>) -> Option<Draft> {
        let Self { name, parts, work } = *self;
        let stage = TestStage::new(name, is_tensor, numbers_of::<2>, move |inputs, emit| {
            inputs[0].with_tensor(|tensor| {
                let bytes = tensor.data.as_chunks().0.iter();
                let numbers: Vec<f32> = bytes.map(|bytes| f32::from_ne_bytes(*bytes)).collect();
                parts.map_or(Ok(()), |parts| emit.parts(parts(&numbers)))?;
                work(&numbers, &mut |row| emit_numbers(emit, row))
            })
        });
        let fan = if parts.is_some() { FanOut::Parts } else { FanOut::One };
        TestStage { fan, ..stage }.read(fields)
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
    parts: Some(|pixels| n_parts(index_of(pixels)) as usize),
    work: |pixels, emit| {
        let index = index_of(pixels);
        (0..n_parts(index)).try_for_each(|part| emit(&[index as f32, part as f32]))
    },
};

/// Its index and 0, of each picture.
pub const NUMBER: Stage =
    Stage { name: "number", parts: None, work: |pixels, emit| emit(&[index_of(pixels) as f32, 0.0]) };
