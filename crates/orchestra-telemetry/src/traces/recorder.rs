//! Takes down what runs tell, and makes spans of it on a thread of its own. Whoever tells is never kept: it puts a record into a
//! queue, and where that is full the record is lost and counted.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use opentelemetry::trace::TraceId;
use opentelemetry::{InstrumentationScope, global};
use orchestra_plan::Plan;
use orchestra_runtime::trace::{
    BatchNumber, BatchTrace, DeviceTrace, ItemEnd, ItemTrace, RunBegan, RunEnded, RunTracer, Ticket,
    TraceContext, Tracer, WorkerTrace,
};

use super::assembly::{Assembly, ItemParents, batch_context};
use super::context;
use super::ids::{About, Seed};
use super::queue::SpanSink;
use super::sampling::ItemSampling;
use super::spans::{Out, sampled};
use super::{TraceSettings, Traces};
use crate::TelemetryError;
use crate::names::SERVICE;
use crate::priority::step_back;

/// Items and batches that may wait. A record of an item is its ticket, a few hundred bytes.
const ROOM: usize = 65_536;
/// What is left of it when so many wait is for batches, and for items that failed.
const ROOM_FOR_ITEMS: usize = ROOM - ROOM / 4;
/// The thread looks so often,
const EVERY: Duration = Duration::from_millis(50);
/// or when so much waits: waking it costs those who tell more than all the rest.
const WAKE_AT: usize = 4_096;

/// Makes spans of runs. Clones share a thread and a queue; dropping the last one ends the thread when it has done what waits.
#[derive(Clone)]
pub struct Recorder {
    owner: Arc<Owner>,
    run_parent: Option<TraceContext>,
    item_parents: Option<ItemParents>,
}

/// Where the spans of a recorder go.
#[derive(Clone)]
enum Target {
    Own(SpanSink),
    Host,
}

struct Owner {
    shared: Arc<Shared>,
    target: Target,
    sampling: ItemSampling,
    /// Ends with the thread.
    done: Mutex<Receiver<()>>,
    next_run: AtomicU64,
}

/// What the thread shares with those who tell. There is no lock in it: the thread runs behind those of the run, and may stand still at any
/// moment. (Those who send to such a channel never wait for its receiver.)
struct Shared {
    /// Bounded by `weight`.
    records: Sender<(u64, Record)>,
    /// Items and batches that wait.
    weight: AtomicUsize,
    closed: AtomicBool,
    /// Items and batches for which there was no room, and spans of items that were left out because the exporter was behind.
    lost: Arc<AtomicU64>,
    /// The thread.
    thread: OnceLock<Thread>,
}

/// What a run tells.
enum Record {
    Began(Box<Assemble>),
    Batch(Arc<BatchTrace>),
    Items(Vec<ItemTrace>),
    Worker(Box<WorkerTrace>),
    Device(Box<DeviceTrace>),
    Ended(Box<RunEnded>),
    Gone,
    /// Of all runs: nothing more will come.
    Close,
}

/// What the thread needs to begin with a run.
struct Assemble {
    began: RunBegan,
    seed: Seed,
    target: Target,
    sampling: ItemSampling,
    parent: Option<TraceContext>,
    parents: Option<ItemParents>,
}

impl Recorder {
    /// Makes spans through the OpenTelemetry tracer provider that the host has set for the process, with the host's sampler, resource and
    /// exporter. Nothing is installed.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn for_host(sampling: ItemSampling) -> Result<Self, TelemetryError> {
        Self::start(Target::Host, sampling)
    }

    /// Makes spans for our own exporter.
    pub(crate) fn own(sink: SpanSink, sampling: ItemSampling) -> Result<Self, TelemetryError> {
        Self::start(Target::Own(sink), sampling)
    }

    /// The recorder for an exporter of ours.
    pub(crate) fn of(traces: &Traces, settings: &TraceSettings) -> Result<Self, TelemetryError> {
        let TraceSettings { items, follow_parent, slow, .. } = *settings;
        Self::own(traces.sink(), ItemSampling { ratio: items, follow_parent, slow })
    }

    /// The same as a run takes it.
    #[must_use]
    pub fn tracer(&self) -> Arc<dyn Tracer> {
        Arc::new(self.clone())
    }

    fn start(target: Target, sampling: ItemSampling) -> Result<Self, TelemetryError> {
        let (records, waiting) = channel();
        let shared = Arc::new(Shared {
            records,
            weight: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            lost: Arc::default(),
            thread: OnceLock::new(),
        });
        let theirs = Arc::clone(&shared);
        let (ends, done) = channel();
        let thread = thread::Builder::new().name("orchestra-spans".into());
        let thread = thread.spawn(move || work(&theirs, &waiting, ends)).map_err(TelemetryError::Thread)?;
        shared.thread.get_or_init(|| thread.thread().clone());
        let owner = Owner { shared, target, sampling, done: Mutex::new(done), next_run: AtomicU64::new(0) };
        Ok(Self { owner: Arc::new(owner), run_parent: None, item_parents: None })
    }

    /// A recorder that makes the spans of runs children of this one, for example of the request that started the run.
    #[must_use]
    pub fn with_run_parent(mut self, parent: TraceContext) -> Self {
        self.run_parent = Some(parent);
        self
    }

    /// A recorder that asks for the parent of each item, by the names of its source and of itself; for example for the request that the
    /// item came with. It is asked when the item has ended, in the thread of the recorder; and, for the log, when it fails.
    #[must_use]
    pub fn with_item_parents(mut self, parents: ItemParents) -> Self {
        self.item_parents = Some(parents);
        self
    }

    /// Makes the spans of all that was told, and ends those that are open, but waits no longer than `patience`. What is told from now on
    /// is not taken down. Gives how much was left out because too much happened at once: items, batches and spans.
    pub fn finish(&self, patience: Duration) -> u64 {
        self.owner.shared.close();
        let done = self.owner.done.lock().unwrap_or_else(PoisonError::into_inner);
        // An answer means that it is through. Without one in time, or from a thread that is gone, what still waits is lost.
        let left = match done.recv_timeout(patience) {
            Ok(()) => 0,
            Err(_) => self.owner.shared.weight.load(Ordering::Relaxed) as u64,
        };
        self.owner.shared.lost.load(Ordering::Relaxed) + left
    }

    /// What was left out so far, at each call.
    pub(crate) fn watch(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let lost = Arc::clone(&self.owner.shared.lost);
        move || lost.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("sampling", &self.owner.sampling).finish_non_exhaustive()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Tracer for Recorder {
    fn begin(&self, began: RunBegan) -> Arc<dyn RunTracer> {
        let owner = &self.owner;
        let seed = Seed::new(&began.run_id, began.zero);
        let parent = self.run_parent;
        let trace = match (&owner.target, parent) {
            (Target::Host, _) => None,
            (Target::Own(_), Some(parent)) => Some(TraceId::from_bytes(parent.trace_id)),
            (Target::Own(_), None) => Some(seed.trace(About::Run)),
        };
        let run = owner.next_run.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&owner.shared);
        let (target, sampling, parents) = (owner.target.clone(), owner.sampling, self.item_parents.clone());
        let plan = Arc::clone(&began.plan);
        let assemble = Assemble { began, seed, target, sampling, parent, parents };
        shared.put(run, Record::Began(Box::new(assemble)));
        let (parents, batches) = (self.item_parents.clone(), AtomicU64::new(0));
        Arc::new(RunRecorder { run, shared, seed, trace, plan, parents, batches })
    }
}

/// Takes down what one run tells.
struct RunRecorder {
    run: u64,
    shared: Arc<Shared>,
    seed: Seed,
    /// The trace of the run; `None` if a host chooses the ids.
    trace: Option<TraceId>,
    plan: Arc<Plan>,
    parents: Option<ItemParents>,
    batches: AtomicU64,
}

impl RunTracer for RunRecorder {
    fn number_batch(&self) -> BatchNumber {
        let number = self.batches.fetch_add(1, Ordering::Relaxed);
        let context = self.trace.and_then(|trace| context::of_span(&batch_context(self.seed, trace, number)));
        BatchNumber { number, context }
    }

    fn trace_of_failed(&self, item: &Ticket) -> Option<TraceContext> {
        let source = &self.plan.sources[item.id.source.index()].name;
        let parent = self.parents.as_ref().and_then(|parents| parents(source, &item.name));
        match parent {
            Some(parent) => Some(parent).filter(|p| p.flags & 1 == 1),
            // A host chooses its ids later.
            None => self.trace.and_then(|_| {
                let about = About::Item(item.id.source.0, item.id.index);
                context::of_span(&sampled(self.seed.trace(about), self.seed.span(about)))
            }),
        }
    }

    fn batch_ended(&self, batch: Arc<BatchTrace>) {
        self.shared.put(self.run, Record::Batch(batch));
    }

    fn items_ended(&self, items: Vec<ItemTrace>) {
        self.shared.put(self.run, Record::Items(items));
    }

    fn worker(&self, step: WorkerTrace) {
        self.shared.put(self.run, Record::Worker(Box::new(step)));
    }

    fn device(&self, step: DeviceTrace) {
        self.shared.put(self.run, Record::Device(Box::new(step)));
    }

    fn ended(&self, end: RunEnded) {
        self.shared.put(self.run, Record::Ended(Box::new(end)));
    }
}

impl Drop for RunRecorder {
    fn drop(&mut self) {
        self.shared.put(self.run, Record::Gone);
    }
}

impl Record {
    /// How much room it takes. What there are few of always finds some.
    fn weight(&self) -> usize {
        match self {
            Record::Batch(_) => 1,
            Record::Items(items) => items.len(),
            Record::Began(_)
            | Record::Worker(_)
            | Record::Device(_)
            | Record::Ended(_)
            | Record::Gone
            | Record::Close => 0,
        }
    }
}

impl Shared {
    fn put(&self, run: u64, record: Record) {
        match record {
            Record::Items(mut items) if !self.has_room(items.len(), ROOM_FOR_ITEMS) => {
                let all = items.len();
                // Those that failed are few, and what somebody will look for.
                items.retain(|item| item.end != ItemEnd::Done);
                self.lost.fetch_add((all - items.len()) as u64, Ordering::Relaxed);
                if !items.is_empty() {
                    self.put_if_room(run, Record::Items(items));
                }
            }
            record => self.put_if_room(run, record),
        }
    }

    fn has_room(&self, weight: usize, room: usize) -> bool {
        self.weight.load(Ordering::Relaxed) + weight <= room
    }

    fn put_if_room(&self, run: u64, record: Record) {
        let weight = record.weight();
        if !self.has_room(weight, ROOM) || self.closed.load(Ordering::Relaxed) {
            self.lost.fetch_add(weight as u64, Ordering::Relaxed);
            return;
        }
        let before = self.weight.fetch_add(weight, Ordering::Relaxed);
        // A thread that is gone was told to end.
        drop(self.records.send((run, record)));
        if before < WAKE_AT && before + weight >= WAKE_AT {
            self.wake();
        }
    }

    fn close(&self) {
        if !self.closed.swap(true, Ordering::Relaxed) {
            drop(self.records.send((0, Record::Close)));
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// The thread.
fn work(shared: &Shared, waiting: &Receiver<(u64, Record)>, ends: Sender<()>) {
    step_back();
    let mut runs: HashMap<u64, Assembly> = HashMap::new();
    loop {
        match waiting.try_recv() {
            Ok((_, Record::Close)) | Err(TryRecvError::Disconnected) => break,
            Ok((run, record)) => {
                shared.weight.fetch_sub(record.weight(), Ordering::Relaxed);
                handle(&mut runs, run, record, &shared.lost);
            }
            Err(TryRecvError::Empty) => thread::park_timeout(EVERY),
        }
    }
    runs.into_values().for_each(Assembly::flush);
    drop(ends);
}

fn handle(runs: &mut HashMap<u64, Assembly>, run: u64, record: Record, lost: &Arc<AtomicU64>) {
    if let Record::Began(assemble) = record {
        let Assemble { began, seed, target, sampling, parent, parents } = *assemble;
        let out = match target {
            Target::Own(sink) => Out::Own(sink, InstrumentationScope::builder(SERVICE).build()),
            Target::Host => Out::Host(global::tracer(SERVICE)),
        };
        runs.insert(run, Assembly::new(&began, (seed, out, sampling), parent, parents, Arc::clone(lost)));
        return;
    }
    let Some(assembly) = runs.get_mut(&run) else { return };
    match record {
        Record::Began(_) | Record::Close => {}
        Record::Batch(batch) => assembly.batch(batch),
        Record::Items(items) => assembly.items(items),
        Record::Worker(step) => assembly.worker(*step),
        Record::Device(step) => assembly.device(*step),
        Record::Ended(end) => assembly.ended(&end),
        Record::Gone => {
            if let Some(assembly) = runs.remove(&run) {
                assembly.flush();
            }
        }
    }
}
