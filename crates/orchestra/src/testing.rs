//! Models of a program's tests: answered by a function in the program itself, without ONNX Runtime and without processes.
//!
//! Everything above the workers is as in production: the model file or the workflow is read and planned, requests are admitted, batched, retried and
//! answered by the same code. A fault is a value that the function returns.
//!
//! ```
//! use orchestra::testing::{Hold, TestAnswer, TestEngine};
//! use orchestra::{Orchestra, RequestError, Tensor};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/digits.onnx");
//! let hold = Hold::new();
//! let slow = hold.clone();
//! let engine = TestEngine::new(move |batch| {
//!     let first = batch.inputs["pixels"].as_slice::<f32>().unwrap()[0];
//!     match first as i32 {
//!         1 => TestAnswer::Fails("no digit".into()),
//!         2 => TestAnswer::Crashes, // again and again: these rows kill workers
//!         3 => TestAnswer::held(&slow, batch.zeros()),
//!         _ => batch.zeros().into(),
//!     }
//! });
//! let orchestra = Orchestra::builder().test_engine(engine).build().await?;
//! let model = orchestra.model(file).start().await?; // f32 [batch, 1, 32, 32] in, f32 [batch, 10] out
//! let pixels = |first: f32| Tensor::new([1, 1, 32, 32], vec![first; 32 * 32]).unwrap();
//!
//! assert_eq!(model.infer(pixels(0.0)).await?["logits"].shape(), [1, 10]);
//! for fault in [1.0, 2.0] {
//!     assert!(matches!(model.infer(pixels(fault)).await, Err(RequestError::Failed(_))));
//! }
//! let (answer, ()) = tokio::join!(async { model.infer(pixels(3.0)).await }, async {
//!     hold.reached().await;
//!     hold.release();
//! });
//! assert!(answer.is_ok());
//! # Ok(())
//! # }
//! ```
//!
//! Workers are threads here: a runtime whose time is paused would run ahead of them. Items are read and decoded in the program, too. Stages of scripts and
//! commands need processes, and are refused; so is `iterate`, whose loop is part of the engine.

mod stage;
mod worker;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::DeviceKind;
use orchestra_core::model_output::ReadOutput;
use orchestra_launch::{Launched, Launcher, RestartPolicy, StartOptions, WorkerMemory};
use tokio::sync::watch;

use crate::environment::OrchestraBuilder;
use crate::tensor::{Tensor, Tensors};

/// Answers batches of all models in this program. Clones share the function.
#[derive(Clone)]
pub struct TestEngine(Arc<AnswerBatch>);

type AnswerBatch = dyn Fn(&TestBatch<'_>) -> TestAnswer + Send + Sync;

impl TestEngine {
    /// `answer` is called for each batch that a worker is given, on a thread of that worker: several at once where there are several workers. If it
    /// panics, the worker dies.
    pub fn new(answer: impl Fn(&TestBatch<'_>) -> TestAnswer + Send + Sync + 'static) -> Self {
        Self(Arc::new(answer))
    }
}

impl fmt::Debug for TestEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TestEngine")
    }
}

/// The rows that a worker runs at once.
#[derive(Debug)]
#[non_exhaustive]
pub struct TestBatch<'a> {
    /// The stage, as the workflow calls it; `model` of a [`Model`](crate::Model).
    pub stage: &'a str,
    /// The inputs of the model by name, each with one row for each item of the batch. Pictures may still be bytes, where the engine scales them.
    pub inputs: Tensors,
    /// How many rows each input has.
    pub rows: usize,
    /// How often these rows are run, from 1: a batch whose worker dies runs again, perhaps in parts.
    pub attempt: u32,
    /// The worker, by its place in the order of the stage's starts, from 1.
    pub worker: usize,
    outputs: &'a [ReadOutput],
}

impl TestBatch<'_> {
    /// Outputs of the model that are read, all zeros or empty texts: one row for each of the batch, and 1 for a dimension that the file leaves open.
    #[must_use]
    pub fn zeros(&self) -> Tensors {
        let zeros = |output: &ReadOutput| {
            let (name, dtype) = (output.tensor.name.clone(), output.tensor.dtype);
            if let Some(row) = &output.texts {
                let shape = [&[self.rows], &row[..]].concat();
                let texts = vec![String::new(); shape.iter().product()];
                return (name, Tensor::texts(shape, texts).expect("as many as the shape says"));
            }
            let row: Vec<usize> = output.tensor.row.iter().map(|dim| dim.fixed().unwrap_or(1)).collect();
            let zeros = vec![0; self.rows * row.iter().product::<usize>() * dtype.size_bytes()];
            (name, Tensor::of_rows(dtype, self.rows, &row, &[&zeros]))
        };
        self.outputs.iter().map(zeros).collect()
    }
}

/// What becomes of a batch.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TestAnswer {
    /// The outputs of the model by name, each with one row for each of the batch; of a model with one output its name may be empty. Outputs of another shape
    /// or type than the model file says end the model, as they do in production: [`RequestError::Closed`](crate::RequestError::Closed) says what was wrong.
    Outputs(Tensors),
    /// The model fails on these rows, for this reason. Rows of several requests run again one by one, and those fail for which the answer is this again.
    Fails(String),
    /// The worker dies as by a segmentation fault, and is replaced. Rows run again, and those fail that kill a worker alone.
    Crashes,
    /// There is no answer before the hold is released; then it is this one.
    Held(Hold, Box<TestAnswer>),
}

impl TestAnswer {
    /// This answer, once the hold is released.
    pub fn held(hold: &Hold, then: impl Into<TestAnswer>) -> Self {
        Self::Held(hold.clone(), Box::new(then.into()))
    }
}

impl From<Tensors> for TestAnswer {
    fn from(outputs: Tensors) -> Self {
        Self::Outputs(outputs)
    }
}

impl From<Tensor> for TestAnswer {
    fn from(output: Tensor) -> Self {
        Self::Outputs(output.into())
    }
}

impl<const N: usize> From<[(&str, Tensor); N]> for TestAnswer {
    fn from(outputs: [(&str, Tensor); N]) -> Self {
        Self::Outputs(outputs.into())
    }
}

/// Keeps batches until it is released. Clones are the same hold.
#[derive(Debug, Clone)]
pub struct Hold(Arc<watch::Sender<HoldState>>);

#[derive(Debug, Clone, Copy, Default)]
struct HoldState {
    n_reached: usize,
    is_released: bool,
}

impl Hold {
    /// Keeps what reaches it.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(HoldState::default())))
    }

    /// Lets all batches go on, those that come later, too.
    pub fn release(&self) {
        self.0.send_modify(|state| state.is_released = true);
    }

    /// Waits until a batch has reached it.
    pub async fn reached(&self) {
        self.until(|state| state.n_reached > 0).await;
    }

    /// Of a batch.
    async fn pass(&self) {
        self.0.send_modify(|state| state.n_reached += 1);
        self.until(|state| state.is_released).await;
    }

    async fn until(&self, is_so: impl FnMut(&HoldState) -> bool) {
        // The sender is `self`, and lives as long as this.
        drop(self.0.subscribe().wait_for(is_so).await);
    }
}

impl Default for Hold {
    fn default() -> Self {
        Self::new()
    }
}

impl OrchestraBuilder {
    /// This function in place of models, for tests of a program: no ONNX Runtime is looked for, no process is started, and the only device is the CPU.
    pub fn test_engine(mut self, engine: TestEngine) -> Self {
        let engines = move |plan: &orchestra_plan::Plan| stage::engines(&engine, plan);
        let (engines, launcher) = (Some(Arc::new(engines) as _), Some(Arc::new(NoProcesses) as _));
        // Tests of a program do not wait.
        let restart = RestartPolicy {
            first_pause: Duration::ZERO,
            longest_pause: Duration::ZERO,
            ..self.start.restart
        };
        self.start = StartOptions { engines, launcher, restart, ..self.start };
        self
    }
}

/// Items are read in this process.
struct NoProcesses;

impl Launcher for NoProcesses {
    fn launch(&self, _: &DeviceKind, _: &[(&str, &str)], _: WorkerMemory<'_>) -> io::Result<Launched> {
        Err(io::Error::other("a test engine starts no processes"))
    }
}
