//! A batch stage over a test engine: what its workers are called with, and what the model file says of inputs and outputs. It holds no thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use orchestra_core::model_output::{ReadOutput, texts};
use orchestra_core::row_bytes::{StoredValue, read};
use orchestra_core::{DType, DeviceKind, StageId, TensorSpec, TextInput};
use orchestra_launch::{EngineSpec, Engines, Launched, WorkerMemory};
use orchestra_plan::{BatchPlan, Plan};
use orchestra_worker::EngineRunError;
use orchestra_worker::frames::{DynamicOutput, RunErrorKind};

use super::{TestEngine, worker};
use crate::tensor::{Tensor, Tensors};

/// The engines of a plan.
pub(super) fn engines(engine: &TestEngine, plan: &Plan) -> Engines {
    let of_stage = |(id, batch): (StageId, &BatchPlan)| {
        let model = &plan.models[batch.model.index()];
        let stage = TestStage {
            engine: engine.clone(),
            name: plan.stages[id.index()].name.clone(),
            inputs: batch.model_inputs().cloned().collect(),
            texts: batch.text_inputs(model).cloned().collect(),
            outputs: batch.outputs.clone(),
            is_loop: batch.iteration.is_some(),
        };
        let spec = TestStageSpec { stage: Arc::new(stage), n_starts: AtomicUsize::new(0) };
        (id, Arc::new(spec) as Arc<dyn EngineSpec>)
    };
    plan.batch_stages().map(of_stage).collect()
}

/// What all workers of a stage share.
pub(super) struct TestStage {
    pub engine: TestEngine,
    pub name: String,
    /// Those that lie in slots, in their order.
    pub inputs: Vec<TensorSpec>,
    pub texts: Vec<TextInput>,
    pub outputs: Vec<ReadOutput>,
    is_loop: bool,
}

struct TestStageSpec {
    stage: Arc<TestStage>,
    n_starts: AtomicUsize,
}

impl EngineSpec for TestStageSpec {
    fn launch(&self, _: &DeviceKind, memory: WorkerMemory<'_>) -> io::Result<Launched> {
        let nth = self.n_starts.fetch_add(1, Ordering::Relaxed) + 1;
        worker::start(&self.stage, nth, memory.try_clone_to_owned()?)
    }

    fn spec(&self, _: &DeviceKind) -> Result<Vec<u8>, String> {
        match self.stage.is_loop {
            true => Err("a test engine runs no stage of kind `iterate`".to_owned()),
            false => Ok(Vec::new()),
        }
    }
}

impl TestStage {
    /// The texts that rows have beside their slots, row by row a text or a list for each input.
    pub fn texts(&self, mut values: &[u8], rows: usize) -> Result<Vec<(String, Tensor)>, EngineRunError> {
        let mut all = vec![Vec::new(); self.texts.len()];
        for texts in (0..rows).flat_map(|_| 0..self.texts.len()) {
            let value = read::<StoredValue<'_>>(values);
            let (value, used) = value.map_err(|error| EngineRunError::of_model(error.error))?;
            values = &values[used..];
            add_texts(&value, &mut all[texts]);
        }
        let tensor = |(input, texts): (&TextInput, Vec<String>)| {
            let row = input.row.iter().map(|dim| dim.fixed().unwrap_or(1));
            let tensor = Tensor::texts([rows].into_iter().chain(row).collect::<Vec<_>>(), texts);
            Ok((input.name.clone(), tensor.map_err(|error| EngineRunError::of_model(error.to_string()))?))
        };
        self.texts.iter().zip(all).map(tensor).collect()
    }

    /// The tensor of an output, if it is as the model file says.
    pub fn output<'a>(
        &self,
        outputs: &'a Tensors,
        at: usize,
        rows: usize,
    ) -> Result<&'a Tensor, EngineRunError> {
        let ReadOutput { tensor: spec, texts, .. } = &self.outputs[at];
        let only = outputs.get("").filter(|_| self.outputs.len() == 1);
        let Some(tensor) = outputs.get(&spec.name).or(only) else {
            let names: Vec<&str> = outputs.iter().map(|(name, _)| name).collect();
            let names = names.join("`, `");
            return Err(wrong(format!("the test engine gives no output `{}`, only `{names}`", spec.name)));
        };
        let row = tensor.shape().get(1..).unwrap_or_default();
        let of_shape = || {
            let fits = |(dim, n): (&orchestra_core::Dim, &usize)| dim.fixed().is_none_or(|fixed| fixed == *n);
            row.len() == spec.row.len() && spec.row.iter().zip(row).all(fits)
        };
        let is_right = match texts {
            Some(texts) => tensor.as_texts().is_ok() && row == texts,
            None => tensor.dtype() == Some(spec.dtype) && of_shape(),
        };
        if is_right && tensor.n_rows() == rows {
            return Ok(tensor);
        }
        let (name, found, shape) = (&spec.name, tensor.type_name(), tensor.shape());
        let expected = match texts {
            Some(texts) => format!("text of rows {texts:?}"),
            None => spec.to_string(),
        };
        Err(wrong(format!(
            "the test engine's output `{name}` is {found} {shape:?}; the model file says {expected}, and the batch has {rows} rows"
        )))
    }

    /// An output that has no place in shared memory, as a worker sends it.
    pub fn sent(&self, tensor: &Tensor, output: usize) -> DynamicOutput {
        match (tensor.dtype(), tensor.as_texts()) {
            (Some(dtype), _) => {
                let data = tensor.as_bytes().map(|bytes| bytes.to_vec()).unwrap_or_default();
                DynamicOutput { output, dtype, shape: tensor.shape().to_vec(), data }
            }
            (None, texts) => {
                let texts: Vec<&str> = texts.unwrap_or_default().iter().map(String::as_str).collect();
                let data = texts::pack_rows(&texts, tensor.shape()[1..].iter().product());
                DynamicOutput { output, dtype: DType::U8, shape: vec![data.len()], data }
            }
        }
    }
}

/// It speaks against the model, whatever the rows are.
fn wrong(error: String) -> EngineRunError {
    EngineRunError { kind: RunErrorKind::Shape, error }
}

fn add_texts(value: &StoredValue<'_>, texts: &mut Vec<String>) {
    match value {
        StoredValue::Text(text) => texts.push(text.to_string()),
        StoredValue::List(rows) => rows.iter().flatten().for_each(|value| add_texts(value, texts)),
        _ => {}
    }
}
