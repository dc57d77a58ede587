//! A batch stage without a pipeline: several requests fill the rows of one batch, and each row is answered exactly once, with its outputs or
//! with an error. There is no list of items, no journal and no output folder.
//!
//! ```text
//! Service
//! ├── DeviceManager per device ── WorkerLink per live worker process
//! └── Batcher
//! ```
//!
//! Bound: a row is occupied from the time it is written until its answer is made, so answers in flight are bounded by the rows of the slots.
//! A request without a free row waits in first-in first-out order and blocks no thread.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::try_join_all;
use orchestra_core::{DType, DeviceId, Failure, SourceId, StageId, TensorSpec};
use orchestra_plan::Plan;
use orchestra_wire::arena::Arena;
use ractor::concurrency::JoinHandle;
use ractor::{Actor, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};
use thiserror::Error;
use tokio::sync::{oneshot, watch};

use crate::batch::completion::Completion;
use crate::batch::slot_pool::SlotPool;
use crate::batch::stage::{BatchStage, arena_of};
use crate::context::{RunContext, RunOptions};
use crate::fleet::device_manager::DeviceManager;
use crate::fleet::live_workers::LiveWorker;
use crate::fleet::watcher::Watcher;
use crate::flow::ticket::TicketsBuilder;
use crate::flow::token::Token;
use crate::messages::{CompletedBatch, DeviceMsg};
use crate::run_end::TellTheEnd;

/// A tensor of a request or of its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// The whole shape; the first dimension counts the rows.
    pub shape: Vec<usize>,
    /// Elements in native byte order, row-major: as many bytes as type and shape say.
    pub data: Vec<u8>,
}

/// Why a service did not start.
#[derive(Debug, Error)]
pub enum StartServiceError {
    /// The plan has no batch stage of this number, or `RunOptions::engines` has no engine for it.
    #[error("stage number {0} is no batch stage of the plan, or `RunOptions::engines` has no engine for it")]
    NoStage(u16),
    /// The shared memory of the slots cannot be allocated.
    #[error("{0}")]
    Memory(String),
    /// No worker could be started, for this reason.
    #[error("{0}")]
    NoDevice(String),
    /// A thread cannot be started.
    #[error("the service cannot be started: {0}")]
    Io(#[from] std::io::Error),
    /// The actor tree did not start.
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
        /// Why.
        failure: Failure,
    },
    /// The rows of an output have different shapes, so they cannot be stacked.
    #[error(
        "output `{output}` has rows of shapes {first:?} and {other:?}, which cannot be stacked; send one row per request"
    )]
    Ragged {
        /// Name of the output.
        output: String,
        /// The shape of the first row.
        first: Vec<usize>,
        /// Another one.
        other: Vec<usize>,
    },
    /// The service has ended, for this reason.
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

/// The outputs of one row: shape and data of each.
type RowOutputs = Vec<(Vec<usize>, Vec<u8>)>;
type Answer = Result<RowOutputs, Failure>;

/// The rows without an answer, and the state of the service. Shared by the requests, the batcher and the root.
struct Answers {
    stage: String,
    outputs: Vec<TensorSpec>,
    /// By the number of the row. Bounded by the rows of the slots: an entry is made with a row lease in hand.
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    phase: watch::Sender<Phase>,
}

/// ## Starting => Serving => Over, or Starting => Over
enum Phase {
    Starting,
    Serving,
    Over(String),
}

impl Service {
    /// Starts the workers of the only batch stage of a plan, and waits until the first of them serves. Must be called within a tokio runtime,
    /// on which the service lives.
    ///
    /// # Errors
    /// See [`StartServiceError`]. Every worker has ended by then.
    pub async fn start(
        plan: Arc<Plan>,
        stage: StageId,
        options: RunOptions,
    ) -> Result<Self, StartServiceError> {
        let planned = plan.stages.get(stage.index()).and_then(|s| Some((s.name.clone(), s.batch()?)));
        let planned = planned.filter(|_| options.engines.contains_key(&stage));
        let Some((name, batch)) = planned else { return Err(StartServiceError::NoStage(stage.0)) };
        let inputs = batch.layout.inputs.iter().map(|region| region.tensor.clone()).collect();
        let outputs = plan.stages[stage.index()].gives.0.iter();
        let outputs = outputs.filter_map(|column| column.ty.stored().cloned()).collect();
        // Touching every page of it takes a while.
        let (memory_of, memory_for) = (Arc::clone(&plan), name.clone());
        let arena = tokio::task::spawn_blocking(move || {
            let batch = memory_of.stages[stage.index()].batch();
            batch.map_or_else(|| Err(String::new()), |batch| arena_of(&memory_for, batch))
        });
        let arena = arena.await.map_err(std::io::Error::other)?.map_err(StartServiceError::Memory)?;
        let context = Arc::new(RunContext::new(plan, format!("service-{}", std::process::id()), options));
        let end = TellTheEnd::of(&context);
        let phase = watch::Sender::new(Phase::Starting);
        let answers = Arc::new(Answers { stage: name, outputs, waiting: Mutex::default(), phase });
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
    #[must_use]
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// The outputs, in the order of an answer. A dimension that is known only after a run is `Dynamic`.
    #[must_use]
    pub fn outputs(&self) -> &[TensorSpec] {
        &self.answers.outputs
    }

    /// The live worker processes.
    #[must_use]
    pub fn workers(&self) -> Vec<LiveWorker> {
        self.context.stats.workers.all()
    }

    /// Rows in a batch, or written and waiting for one.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.answers.waiting().len()
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
            let data = answers.iter().flat_map(|row| &row[at].1).copied().collect();
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
        let Some(answer) = answer else { return Err(self.answers.over()) };
        match answer.await {
            Ok(Ok(outputs)) => Ok(outputs),
            Ok(Err(failure)) => Err(InferError::Failed { row, failure }),
            Err(_) => Err(self.answers.over()),
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
        ticket.add(number, "", Path::new(""));
        lease.publish(Token::whole(ticket.build().next()?));
        Some(answer)
    }
}

impl Answers {
    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
        // A map is consistent after each of its operations, so a poisoned lock is as good as any.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers row `number`; `None` if the service is over. Under the lock that `end` takes, so no row is registered after it.
    fn expect(&self, number: u64) -> Option<oneshot::Receiver<Answer>> {
        let (sender, answer) = oneshot::channel();
        let mut waiting = self.waiting();
        let is_over = matches!(*self.phase.borrow(), Phase::Over(_));
        (!is_over).then(|| waiting.insert(number, sender))?;
        Some(answer)
    }

    fn answer(&self, token: &Token, answer: impl FnOnce() -> Answer) {
        let sender = self.waiting().remove(&token.ticket.id().index);
        if let Some(sender) = sender.filter(|sender| !sender.is_closed()) {
            drop(sender.send(answer())); // The request was dropped just now.
        }
    }

    /// Drops the senders of all rows, which ends their requests. The first reason stays.
    fn end(&self, why: &str) {
        let mut waiting = self.waiting();
        self.phase.send_if_modified(|phase| {
            let is_first = !matches!(phase, Phase::Over(_));
            if is_first {
                *phase = Phase::Over(why.to_owned());
            }
            is_first
        });
        waiting.clear();
    }

    /// Waits until a worker serves, or the service is over.
    async fn started(&self) -> Result<(), String> {
        let mut phase = self.phase.subscribe();
        match phase.wait_for(|phase| !matches!(phase, Phase::Starting)).await.as_deref() {
            Ok(Phase::Over(why)) => Err(why.clone()),
            _ => Ok(()), // `self` is the sender, so it cannot be gone.
        }
    }

    fn over(&self) -> InferError {
        match &*self.phase.borrow() {
            Phase::Over(why) => InferError::Over(why.clone()),
            Phase::Starting | Phase::Serving => InferError::Over("its actors are gone".to_owned()),
        }
    }
}

/// Passes on what the batcher tells.
struct ServiceCompletion {
    answers: Arc<Answers>,
    root: ActorRef<ServiceMsg>,
}

impl Completion for ServiceCompletion {
    fn serving(&self) {
        self.answers.phase.send_if_modified(|phase| {
            let is_first = matches!(phase, Phase::Starting);
            if is_first {
                *phase = Phase::Serving;
            }
            is_first
        });
    }

    fn completed(&self, batch: CompletedBatch) {
        let outputs = batch.outputs(&self.answers.outputs);
        for at in 0..batch.rows.count {
            let Some(token) = batch.slot.items.get(batch.rows.first + at).and_then(Option::as_ref) else {
                continue;
            };
            self.answers.answer(token, || match &outputs {
                Ok(outputs) => Ok(outputs.iter().map(|rows| rows.row(at)).map(copied).collect()),
                Err(error) => Err(Failure {
                    stage: self.answers.stage.clone(),
                    kind: orchestra_core::FailureKind::Result,
                    error: error.clone(),
                    attempts: 1,
                }),
            });
        }
    }

    fn failed(&self, token: &Token, failure: Failure) {
        self.answers.answer(token, || Err(failure));
    }

    fn drained(&self) {}

    fn no_device(&self, why: String) {
        drop(self.root.cast(ServiceMsg::End(why)));
    }
}

fn copied(view: orchestra_core::data::TensorView<'_>) -> (Vec<usize>, Vec<u8>) {
    (view.shape.to_vec(), view.data.to_vec())
}

/// To the root of a service.
enum ServiceMsg {
    /// Kill the workers, for this reason.
    End(String),
    /// A device manager has no process left and stopped.
    DeviceEnded(DeviceId),
}

/// The root of a service: supervises its actors, and ends them together.
struct Root;

struct RootArgs {
    context: Arc<RunContext>,
    stage: StageId,
    arena: Arena,
    answers: Arc<Answers>,
    /// Takes the slots to `Service::start`.
    built: oneshot::Sender<Arc<SlotPool>>,
}

struct RootState {
    answers: Arc<Answers>,
    stage: BatchStage,
    devices: Vec<ActorRef<DeviceMsg>>,
    devices_left: BTreeSet<DeviceId>,
    ended: bool,
}

impl Actor for Root {
    type Msg = ServiceMsg;
    type State = RootState;
    type Arguments = RootArgs;

    async fn pre_start(
        &self,
        me: ActorRef<ServiceMsg>,
        args: RootArgs,
    ) -> Result<RootState, ActorProcessingErr> {
        let RootArgs { context, stage, arena, answers, built } = args;
        let tell = me.clone();
        let ended = move |device| drop(tell.cast(ServiceMsg::DeviceEnded(device)));
        let devices = DeviceManager::start_all(&context, &me.get_cell(), ended).await?;
        let devices: Vec<ActorRef<DeviceMsg>> = devices.into_iter().map(|(device, _)| device).collect();
        let completion = Arc::new(ServiceCompletion { answers: Arc::clone(&answers), root: me.clone() });
        let (stage, _) =
            BatchStage::start(&context, stage, arena, completion, &devices, me.get_cell()).await?;
        drop(built.send(Arc::clone(&stage.pool))); // `Service::start` was dropped.
        let devices_left = (0..devices.len()).map(|i| DeviceId(i as u16)).collect();
        Ok(RootState { answers, stage, devices, devices_left, ended: false })
    }

    async fn handle(
        &self,
        me: ActorRef<ServiceMsg>,
        message: ServiceMsg,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ServiceMsg::End(why) => state.end(&why),
            ServiceMsg::DeviceEnded(device) => drop(state.devices_left.remove(&device)),
        }
        state.stop_if_empty(&me);
        Ok(())
    }

    /// A failed actor is a bug of ours. The workers of a failed device manager are killed by `worker_process::own`.
    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<ServiceMsg>,
        event: SupervisionEvent,
        state: &mut RootState,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(who, error) = event {
            tracing::error!(stage = %state.answers.stage, %error, "an actor failed; this is a bug");
            if let Some(index) = state.devices.iter().position(|device| device.get_id() == who.get_id()) {
                state.devices_left.remove(&DeviceId(index as u16));
            }
            state.end(&format!("internal error: {error}; please report it"));
            state.stop_if_empty(&me);
        }
        Ok(())
    }
}

impl RootState {
    fn end(&mut self, why: &str) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        tracing::info!(stage = %self.answers.stage, why, "service ends");
        self.answers.end(why);
        self.stage.pool.shut();
        for device in &self.devices {
            drop(device.cast(DeviceMsg::Shutdown { now: true }));
        }
        self.stage.batcher.stop(None);
    }

    fn stop_if_empty(&self, me: &ActorRef<ServiceMsg>) {
        if self.ended && self.devices_left.is_empty() {
            me.stop(None);
        }
    }
}

/// Also when the runtime of the host is dropped: no request waits for ever.
impl Drop for RootState {
    fn drop(&mut self) {
        self.answers.end("its actors are gone");
        self.stage.pool.shut();
    }
}
