//! A batch stage without a pipeline: several requests fill the rows of one batch, and each row is answered exactly once, with its outputs or
//! with an error. There is no list of items, no journal and no output folder.
//!
//! ```text
//! Service
//! ├── DeviceManager per device ── a task per worker process
//! └── Batcher
//! ```
//!
//! Bound: a row is occupied from the time it is written until its answer is made, so answers in flight are bounded by the rows of the slots.
//! A request without a free row waits in first-in first-out order and blocks no thread.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::{BoxFuture, try_join_all};
use orchestra_core::{DType, Failure, SourceId, StageId, TensorSpec};
use orchestra_plan::Plan;
use ractor::concurrency::JoinHandle;
use ractor::{Actor, ActorRef, SpawnErr};
use thiserror::Error;
use tokio::sync::oneshot;

mod answers;
mod root;

use answers::{Answer, Answers, RowOutputs};
use root::{Root, RootArgs, ServiceMsg};

use crate::batch::slot_pool::SlotPool;
use crate::batch::stage::arena_of;
use crate::context::{RunContext, RunOptions};
use crate::fleet::device_watch::Watcher;
use crate::fleet::live_workers::LiveWorker;
use crate::flow::ticket::TicketsBuilder;
use crate::flow::token::Token;
use crate::run_end::TellTheEnd;

/// A tensor of a request or of its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub dtype: DType,
    /// The whole shape; the first dimension counts the rows.
    pub shape: Vec<usize>,
    /// Elements in native byte order, row-major: as many bytes as type and shape say.
    pub data: Vec<u8>,
}

/// Why a service did not start.
#[derive(Debug, Error)]
pub enum StartServiceError {
    #[error("stage number {0} is no batch stage of the plan, or `RunOptions::engines` has no engine for it")]
    NoStage(u16),
    /// The shared memory of the slots cannot be allocated.
    #[error("{0}")]
    Memory(String),
    /// No worker could be started, for this reason.
    #[error("{0}")]
    NoDevice(String),
    #[error("the service cannot be started: {0}")]
    Io(#[from] std::io::Error),
    #[error("the service cannot be started: {0}; this is a bug")]
    Actors(#[from] SpawnErr),
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InferError {
    /// The tensors do not match the inputs of the stage. The text says what was found and what is expected. Nothing ran.
    #[error("{0}")]
    Input(String),
    /// A row has no result: the model refuses it, or it kills workers. Other rows of the request may have run.
    #[error("row {row} failed after {} of stage `{}`: {}", attempts(.failure.attempts), .failure.stage, .failure.error)]
    Failed {
        /// Which, from 0.
        row: usize,
        failure: Failure,
    },
    #[error(
        "output `{output}` has rows of shapes {first:?} and {other:?}, which cannot be stacked; send one row per request"
    )]
    Ragged {
        output: String,
        /// The shape of the first row.
        first: Vec<usize>,
        other: Vec<usize>,
    },
    #[error("the service has ended: {0}")]
    Over(String),
}

fn attempts(n: u32) -> String {
    if n == 1 { "1 attempt".to_owned() } else { format!("{n} attempts") }
}

/// A batch stage that answers requests. Dropping it kills its workers.
pub struct Service {
    answers: Arc<Answers>,
    context: Arc<RunContext>,
    pool: Arc<SlotPool>,
    inputs: Vec<TensorSpec>,
    /// Held while a row is claimed: tokio's mutex is fair, and `SlotPool::claim_async` allows one waiter.
    turn: tokio::sync::Mutex<()>,
    /// The number of the next row.
    next: AtomicU64,
    root: EndOnDrop,
    over: JoinHandle<()>,
    _watcher: Watcher,
    _tracer_hears_of_the_end: TellTheEnd,
}

struct EndOnDrop(ActorRef<ServiceMsg>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        drop(self.0.cast(ServiceMsg::End("it was dropped".to_owned()))); // A root that is gone has ended.
    }
}

impl Service {
    /// Starts the workers of the only batch stage of a plan, and waits until the first of them serves. Must be called within a tokio runtime,
    /// on which the service lives.
    ///
    /// Boxed, because an `async fn` is compiled anew in every crate that awaits it, and with it all actors.
    ///
    /// # Errors
    /// See [`StartServiceError`]. Its workers are told to end by then.
    pub fn start(
        plan: Arc<Plan>,
        stage: StageId,
        options: RunOptions,
    ) -> BoxFuture<'static, Result<Self, StartServiceError>> {
        Box::pin(Self::start_actors(plan, stage, options))
    }

    async fn start_actors(
        plan: Arc<Plan>,
        stage: StageId,
        options: RunOptions,
    ) -> Result<Self, StartServiceError> {
        let planned = plan.stages.get(stage.index()).and_then(|s| Some((s.name.clone(), s.batch()?)));
        let planned = planned.filter(|_| options.engines.contains_key(&stage));
        let Some((name, batch)) = planned else { return Err(StartServiceError::NoStage(stage.0)) };
        // Behind those of the model lies what a loop keeps of each row.
        let n_inputs = plan.stages[stage.index()].reads.len();
        let inputs = batch.layout.inputs[..n_inputs].iter().map(|span| span.tensor.clone()).collect();
        let outputs = plan.stages[stage.index()].gives.0.clone();
        // Touching every page of it takes a while.
        let (memory_of, memory_for) = (Arc::clone(&plan), name.clone());
        let arena = tokio::task::spawn_blocking(move || {
            let batch = memory_of.stages[stage.index()].batch();
            batch.map_or_else(|| Err(String::new()), |batch| arena_of(&memory_for, batch))
        });
        let arena = arena.await.map_err(std::io::Error::other)?.map_err(StartServiceError::Memory)?;
        let context = Arc::new(RunContext::new(plan, format!("service-{}", std::process::id()), options));
        let end = TellTheEnd::of(&context);
        let answers = Arc::new(Answers::new(name, outputs));
        let (built, pool) = oneshot::channel();
        let args =
            RootArgs { context: Arc::clone(&context), stage, arena, answers: Arc::clone(&answers), built };
        let (root, over) = Actor::spawn(None, Root, args).await?;
        let root = EndOnDrop(root);
        let pool = pool.await.map_err(|_| StartServiceError::NoDevice("its actors are gone".to_owned()))?;
        let watcher = Watcher::start(&context)?;
        let service = Self {
            answers,
            context,
            pool,
            inputs,
            turn: tokio::sync::Mutex::default(),
            next: AtomicU64::new(0),
            root,
            over,
            _watcher: watcher,
            _tracer_hears_of_the_end: end,
        };
        match service.answers.started().await {
            Ok(()) => Ok(service),
            Err(why) => {
                service.close().await;
                Err(StartServiceError::NoDevice(why))
            }
        }
    }

    /// The inputs, in the order of a request. Dimensions are those of one row; a request has its number of rows before them.
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// The outputs, in the order of an answer. A dimension that is known only after a run is `Dynamic`. A text is
    /// its bytes in UTF-8.
    pub fn outputs(&self) -> &[TensorSpec] {
        &self.answers.outputs
    }

    pub fn workers(&self) -> Vec<LiveWorker> {
        self.context.stats.workers.all()
    }

    /// Rows in a batch, or written and waiting for one.
    pub fn waiting(&self) -> usize {
        self.answers.n_waiting()
    }

    /// Runs the rows of `inputs`, batched with those of other requests, and returns their outputs in the same order. A row whose worker dies
    /// runs again on another one. May be called from many tasks at once. Dropping the future withdraws the rows that are not written yet; the
    /// outputs of the others are discarded.
    ///
    /// # Errors
    /// See [`InferError`].
    pub async fn infer(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, InferError> {
        let rows = self.check(inputs)?;
        let answers = try_join_all((0..rows).map(|row| self.row(inputs, row))).await?;
        let output = |(at, spec): (usize, &TensorSpec)| {
            let first = answers.first().map_or_else(Vec::new, |row| row[at].0.clone());
            if let Some(row) = answers.iter().find(|row| row[at].0 != first) {
                let (output, other) = (spec.name.clone(), row[at].0.clone());
                return Err(InferError::Ragged { output, first, other });
            }
            let data = answers.iter().map(|row| &row[at].1[..]).collect::<Vec<_>>().concat();
            Ok(Tensor { dtype: spec.dtype, shape: [&[rows], &first[..]].concat(), data })
        };
        self.answers.outputs.iter().enumerate().map(output).collect()
    }

    /// Kills the workers. Requests without an answer, and all later ones, get [`InferError::Over`] with this reason.
    pub fn end(&self, why: &str) {
        drop(self.root.0.cast(ServiceMsg::End(why.to_owned()))); // A root that is gone has ended.
    }

    /// Kills the workers and returns when all of them have ended.
    pub async fn close(self) {
        let Self { root, over, .. } = self;
        drop(root);
        // An error means that the task was cancelled with its runtime, which ends the workers as well.
        let _ = over.await;
    }

    /// The number of rows, if the tensors match the inputs.
    fn check(&self, inputs: &[Tensor]) -> Result<usize, InferError> {
        let stage = &self.answers.stage;
        if inputs.len() != self.inputs.len() {
            let names: Vec<&str> = self.inputs.iter().map(|spec| &*spec.name).collect();
            let (found, n, names) = (inputs.len(), names.len(), names.join("`, `"));
            let what = format!("the request has {found} tensors, expected {n} for `{stage}`: `{names}`");
            return Err(InferError::Input(what));
        }
        let rows = inputs.first().and_then(|tensor| tensor.shape.first()).copied().unwrap_or_default();
        for (tensor, spec) in inputs.iter().zip(&self.inputs) {
            let Tensor { dtype, shape, data } = tensor;
            let row = spec.fixed_row().unwrap_or_default();
            let fits = *dtype == spec.dtype && rows > 0 && *shape == [&[rows], &row[..]].concat();
            if !fits {
                return Err(InferError::Input(format!(
                    "input `{}` of `{stage}` is {dtype} {shape:?}, expected {} [rows, {}] with at least 1 row, as many for every input",
                    spec.name,
                    spec.dtype,
                    row.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
                )));
            }
            let bytes = spec.row_bytes().and_then(|bytes| bytes.checked_mul(rows));
            if bytes != Some(data.len()) {
                return Err(InferError::Input(format!(
                    "input `{}` of `{stage}` has {} bytes, expected those of {dtype} {shape:?}",
                    spec.name,
                    data.len()
                )));
            }
        }
        Ok(rows)
    }

    async fn row(&self, inputs: &[Tensor], row: usize) -> Result<RowOutputs, InferError> {
        let answer = self.publish(inputs, row).await;
        let Some(answer) = answer else { return Err(InferError::Over(self.answers.over())) };
        match answer.await {
            Ok(Ok(outputs)) => Ok(outputs),
            Ok(Err(failure)) => Err(InferError::Failed { row, failure }),
            Err(_) => Err(InferError::Over(self.answers.over())),
        }
    }

    /// Writes one row into a slot as soon as one is free, and returns the receiver of its answer. `None`: the service is over.
    async fn publish(&self, inputs: &[Tensor], row: usize) -> Option<oneshot::Receiver<Answer>> {
        let _turn = self.turn.lock().await;
        let mut lease = self.pool.claim_async().await?;
        for (at, (tensor, spec)) in inputs.iter().zip(&self.inputs).enumerate() {
            let bytes = spec.row_bytes().unwrap_or_default();
            lease.input_mut(at).copy_from_slice(&tensor.data[row * bytes..(row + 1) * bytes]);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let answer = self.answers.expect(number)?;
        let mut ticket = TicketsBuilder::with_capacity(SourceId(0), number, 1, false);
        ticket.add(number, "", b"");
        lease.publish(Token::whole(ticket.build().next()?));
        Some(answer)
    }
}
