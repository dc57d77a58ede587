//! Takes down what runs tell, and makes spans of it on a thread of its own. Telling never waits: a record goes into a queue, and where
//! that is full it is lost and counted.
//!
//! Of nearly all items nothing is wanted, so the thread that tells of them decides about each right there, which takes a look at a few
//! numbers and no copy, and only those that may be traced go to the thread of the recorder.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use opentelemetry::trace::TraceId;
use orchestra_core::ItemId;
use orchestra_runtime::trace::{
    BatchNumber, BatchTrace, DeviceTrace, EndedItems, ItemTrace, RunBegan, RunEnded, RunTracer, TraceContext,
    Tracer, WorkerTrace,
};

use super::assembly::{Assembly, ItemParents, batch_context};
use super::context;
use super::ids::{About, Seed};
use super::queue::{LeftOut, Queue};
use super::sampling::{ItemSampling, Kept, Sampler, Sorted};
use super::span::Out;
use crate::{TelemetryError, step_back};

/// Items and batches that may wait. A record of an item is a few hundred bytes.
const ROOM: usize = 65_536;
/// The last quarter of it is for batches, and for items that failed, were tried again or were slow.
const ROOM_FOR_ITEMS: usize = ROOM - ROOM / 4;
/// An item that was in one batch has so many spans.
const SPANS_OF_ITEM: usize = 8;
/// The thread looks so often,
const EVERY: Duration = Duration::from_millis(50);
/// or when so much waits: to wake it for each record would cost the run more than all the rest.
const WAKE_AT: usize = 4_096;

/// Makes spans of runs. Clones share a thread and a queue; dropping the last one ends the thread when it has done what waits.
#[derive(Clone)]
pub struct Recorder {
    owner: Arc<Owner>,
    run_parent: Option<TraceContext>,
    item_parents: Option<ItemParents>,
}

struct Owner {
    shared: Arc<Shared>,
    /// `None`: spans go to a host.
    sink: Option<Arc<Queue>>,
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
    /// Items and batches for which there was no room, here or at the exporter.
    left_out: Arc<LeftOut>,
    thread: OnceLock<Thread>,
}

enum Record {
    /// Makes the spans of the run, on the thread.
    Began(Box<dyn FnOnce() -> Assembly + Send>),
    Batch(Arc<BatchTrace>),
    /// Candidates, and how many others of which batches.
    Items(Vec<(ItemTrace, Option<Kept>)>, Vec<(u64, usize)>),
    Worker(Box<WorkerTrace>),
    Device(Box<DeviceTrace>),
    Ended(Box<RunEnded>),
    Gone,
    /// Of all runs: nothing more will come.
    Close,
}

impl Recorder {
    /// Makes spans through the OpenTelemetry tracer provider that the host has set for the process, with the host's sampler, resource and
    /// exporter. Nothing is installed. Its thread runs like any other of the host, since it takes the same locks as they do when a span
    /// ends.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn for_host(sampling: ItemSampling) -> Result<Self, TelemetryError> {
        Self::start(None, sampling)
    }

    pub(crate) fn own(sink: Arc<Queue>, sampling: ItemSampling) -> Result<Self, TelemetryError> {
        Self::start(Some(sink), sampling)
    }

    /// The same as a run takes it.
    #[must_use]
    pub fn tracer(&self) -> Arc<dyn Tracer> {
        Arc::new(self.clone())
    }

    fn start(sink: Option<Arc<Queue>>, sampling: ItemSampling) -> Result<Self, TelemetryError> {
        let (records, waiting) = channel();
        let shared = Arc::new(Shared {
            records,
            weight: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            left_out: Arc::default(),
            thread: OnceLock::new(),
        });
        let (theirs, is_own) = (Arc::clone(&shared), sink.is_some());
        let (ends, done) = channel();
        let work = move || {
            if is_own {
                step_back();
            }
            work(&theirs, &waiting);
            // An error: nothing waits for the thread any more.
            let _ = ends.send(());
        };
        let thread = thread::Builder::new().name("orchestra-spans".into());
        let thread = thread.spawn(work).map_err(TelemetryError::Thread)?;
        shared.thread.get_or_init(|| thread.thread().clone());
        let owner = Owner { shared, sink, sampling, done: Mutex::new(done), next_run: AtomicU64::new(0) };
        Ok(Self { owner: Arc::new(owner), run_parent: None, item_parents: None })
    }

    /// A recorder that makes the spans of runs children of this one, for example of the request that started the run.
    #[must_use]
    pub fn with_run_parent(mut self, parent: TraceContext) -> Self {
        self.run_parent = Some(parent);
        self
    }

    /// A recorder that asks for the parent of each item, by the names of its source and of itself; for example for the request that the
    /// item came with. It is asked when the item has ended, in the thread of the recorder and never in one of the run: see
    /// [`ItemParents`].
    #[must_use]
    pub fn with_item_parents(mut self, parents: ItemParents) -> Self {
        self.item_parents = Some(parents);
        self
    }

    /// Makes the spans of all that was told, and ends those that are open, but waits no longer than `patience`. What is told from now on
    /// is not taken down. Gives how much was left out because too much happened at once: items and batches.
    pub fn finish(&self, patience: Duration) -> u64 {
        let shared = &self.owner.shared;
        shared.close();
        let done = self.owner.done.lock().unwrap_or_else(PoisonError::into_inner);
        // An answer means that it is through. Without one in time, or from a thread that is gone, what still waits is lost.
        if done.recv_timeout(patience).is_err() {
            // No record comes any more, and the weight is 0 now: each item that still waits is counted once, here.
            shared.left_out.add_items(shared.weight.swap(0, Ordering::Relaxed) as u64);
        }
        let report = shared.left_out.and(super::SpanReport::default());
        report.items_left_out + report.batches_left_out
    }

    pub(crate) fn left_out(&self) -> Arc<LeftOut> {
        Arc::clone(&self.owner.shared.left_out)
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
        let (owner, parent) = (&self.owner, self.run_parent);
        let seed = Seed::new(&began.run_id, began.zero);
        let trace = owner.sink.as_ref().map(|_| match parent {
            Some(parent) => TraceId::from_bytes(parent.trace_id),
            None => seed.root(About::Run).0,
        });
        let run = owner.next_run.fetch_add(1, Ordering::Relaxed);
        let (shared, sink, sampling) = (Arc::clone(&owner.shared), owner.sink.clone(), owner.sampling);
        let (parents, left_out, to) = (self.item_parents.clone(), self.left_out(), sink.clone());
        let assemble =
            move || Assembly::new(&began, (seed, Out::new(to.as_ref()), sampling), parent, parents, left_out);
        shared.put(run, Record::Began(Box::new(assemble)));
        let has_parents = self.item_parents.is_some();
        let (sampler, batches) = (Mutex::new(Sampler::new(sampling)), AtomicU64::new(0));
        Arc::new(RunRecorder { run, shared, seed, trace, sink, has_parents, sampler, batches })
    }
}

struct RunRecorder {
    run: u64,
    shared: Arc<Shared>,
    seed: Seed,
    /// The trace of the run; `None` if a host chooses the ids.
    trace: Option<TraceId>,
    /// Where the spans go, if they do not go to a host.
    sink: Option<Arc<Queue>>,
    /// Items may have parents of the host, so that nothing is known of their traces here.
    has_parents: bool,
    /// Never waited for: items are told of by one thread, and the recorder's does not take it.
    sampler: Mutex<Sampler>,
    batches: AtomicU64,
}

impl RunTracer for RunRecorder {
    fn number_batch(&self) -> BatchNumber {
        let number = self.batches.fetch_add(1, Ordering::Relaxed);
        let context = self.trace.and_then(|trace| context::of_span(&batch_context(self.seed, trace, number)));
        BatchNumber { number, context }
    }

    fn trace_of_failed(&self, item: ItemId) -> Option<TraceContext> {
        // A host chooses its ids later, and is not asked for a parent in a thread of the run.
        self.trace.filter(|_| !self.has_parents)?;
        let (trace, span) = self.seed.root(About::Item(item.source.0, item.index));
        context::of_span(&context::sampled(trace, span))
    }

    fn batch_ended(&self, batch: Arc<BatchTrace>) {
        self.shared.put(self.run, Record::Batch(batch));
    }

    fn items_ended(&self, items: &[EndedItems]) {
        let mut sampler = self.sampler.lock().unwrap_or_else(PoisonError::into_inner);
        // What the exporter would drop need not be copied for it. Which items a host wants is not known here.
        let takes_items =
            self.has_parents || self.sink.as_ref().is_none_or(|sink| sink.has_room(SPANS_OF_ITEM));
        let room = ROOM_FOR_ITEMS.saturating_sub(self.shared.weight.load(Ordering::Relaxed));
        let mut sorted = Sorted::new(if takes_items { room } else { 0 }, self.has_parents);
        items.iter().for_each(|group| sorted.group(group, &mut sampler));
        drop(sampler);
        self.shared.left_out.add_items(sorted.left_out);
        self.shared.put(self.run, Record::Items(sorted.candidates, sorted.others));
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
    /// How much room it takes. What there are few of has no weight and always finds some.
    fn weight(&self) -> usize {
        match self {
            Record::Batch(_) => 1,
            Record::Items(items, _) => items.len() + 1,
            _ => 0,
        }
    }
}

impl Shared {
    fn put(&self, run: u64, record: Record) {
        let weight = record.weight();
        let is_full = weight > 0 && self.weight.load(Ordering::Relaxed) + weight > ROOM;
        if is_full || self.closed.load(Ordering::Relaxed) {
            match record {
                Record::Batch(_) => self.left_out.add_batches(1),
                Record::Items(items, _) => {
                    self.left_out.add_items(items.iter().filter(|(_, kept)| kept.is_some()).count() as u64);
                }
                _ => {}
            }
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

fn work(shared: &Shared, waiting: &Receiver<(u64, Record)>) {
    let mut runs: HashMap<u64, Assembly> = HashMap::new();
    loop {
        let (run, record) = match waiting.try_recv() {
            Ok((_, Record::Close)) | Err(TryRecvError::Disconnected) => break,
            Ok(told) => told,
            Err(TryRecvError::Empty) => {
                thread::park_timeout(EVERY);
                continue;
            }
        };
        let weight = record.weight();
        match (record, runs.get_mut(&run)) {
            (Record::Began(assemble), _) => drop(runs.insert(run, assemble())),
            (Record::Batch(batch), Some(assembly)) => assembly.batch(batch),
            (Record::Items(items, others), Some(assembly)) => assembly.items(&items, &others),
            (Record::Worker(step), Some(assembly)) => assembly.worker(*step),
            (Record::Device(step), Some(assembly)) => assembly.device(*step),
            (Record::Ended(end), Some(assembly)) => assembly.ended(&end),
            (Record::Gone, Some(_)) => drop(runs.remove(&run).map(Assembly::flush)),
            (_, None) | (Record::Close, _) => {}
        }
        // `finish` has counted what was left when it gave up waiting.
        let less = |waits: usize| Some(waits.saturating_sub(weight));
        let _ = shared.weight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
    runs.into_values().for_each(Assembly::flush);
}
