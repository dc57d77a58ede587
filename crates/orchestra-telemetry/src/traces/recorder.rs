//! Takes down what runs tell, and makes spans of it on a thread of its own. Whoever tells is never kept: it puts a record into a
//! queue, and where that is full the record is lost and counted.
//!
//! Of nearly all items nothing is wanted, so whoever tells of them decides about each right there, which takes a look at a few numbers and
//! no copy, and only those that may be traced go to the thread.

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
use super::queue::SpanSink;
use super::report::LeftOut;
use super::sampling::{ItemSampling, Kept, Sampler};
use super::sorted::Sorted;
use super::spans::{Out, sampled};
use super::{SpanReport, TraceSettings, Traces};
use crate::TelemetryError;
use crate::priority::step_back;

/// Items and batches that may wait. A record of an item is a few hundred bytes.
const ROOM: usize = 65_536;
/// What is left of it when so many wait is for batches, and for items that failed, were tried again or were slow.
const ROOM_FOR_ITEMS: usize = ROOM - ROOM / 4;
/// An item that was in one batch has so many spans.
const SPANS_OF_ITEM: usize = 8;
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
    /// Items and batches for which there was no room, here or at the exporter.
    left_out: Arc<LeftOut>,
    /// The thread.
    thread: OnceLock<Thread>,
}

/// What a run tells.
enum Record {
    Began(Box<Assemble>),
    Batch(Arc<BatchTrace>),
    Items(Vec<(ItemTrace, Option<Kept>)>, Vec<(u64, usize)>),
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
    sampling: ItemSampling,
    parent: Option<TraceContext>,
    parents: Option<ItemParents>,
}

impl Recorder {
    /// Makes spans through the OpenTelemetry tracer provider that the host has set for the process, with the host's sampler, resource and
    /// exporter. Nothing is installed. Its thread runs like any other of the host, since it takes the same locks as they do when a span
    /// ends.
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
            left_out: Arc::default(),
            thread: OnceLock::new(),
        });
        let theirs = Arc::clone(&shared);
        let (ends, done) = channel();
        let thread = thread::Builder::new().name("orchestra-spans".into());
        let of_thread = target.clone();
        let work = move || work(&of_thread, &theirs, &waiting, ends);
        let thread = thread.spawn(work).map_err(TelemetryError::Thread)?;
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
        self.owner.shared.close();
        let done = self.owner.done.lock().unwrap_or_else(PoisonError::into_inner);
        // An answer means that it is through. Without one in time, or from a thread that is gone, what still waits is lost.
        let shared = &self.owner.shared;
        if done.recv_timeout(patience).is_err() {
            // Nothing is told any more, so what it may still make of this finds nobody: it is counted once.
            shared.left_out.add_items(shared.weight.swap(0, Ordering::Relaxed) as u64);
        }
        let SpanReport { items_left_out, batches_left_out, .. } = shared.left_out.and(SpanReport::default());
        items_left_out + batches_left_out
    }

    /// Adds what was left out so far to a report.
    pub(crate) fn watch(&self) -> impl Fn(SpanReport) -> SpanReport + Send + Sync + use<> {
        let left_out = Arc::clone(&self.owner.shared.left_out);
        move |report| left_out.and(report)
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
        let (sampling, parents) = (owner.sampling, self.item_parents.clone());
        let assemble = Assemble { began, seed, sampling, parent, parents };
        shared.put(run, Record::Began(Box::new(assemble)));
        let has_parents = self.item_parents.is_some();
        let (sampler, batches) = (Mutex::new(Sampler::new(sampling)), AtomicU64::new(0));
        let sink = match &owner.target {
            Target::Own(sink) => Some(sink.clone()),
            Target::Host => None,
        };
        Arc::new(RunRecorder { run, shared, seed, trace, sink, has_parents, sampler, batches })
    }
}

/// Takes down what one run tells.
struct RunRecorder {
    run: u64,
    shared: Arc<Shared>,
    seed: Seed,
    /// The trace of the run; `None` if a host chooses the ids.
    trace: Option<TraceId>,
    /// Where the spans go, if they do not go to a host.
    sink: Option<SpanSink>,
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
        let about = About::Item(item.source.0, item.index);
        context::of_span(&sampled(self.seed.trace(about), self.seed.span(about)))
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
        let room = if takes_items { room } else { 0 };
        let mut sorted = Sorted::new(room, self.has_parents);
        items.iter().for_each(|group| sorted.group(group, &mut sampler));
        drop(sampler);
        self.shared.left_out.add_items(sorted.left_out);
        self.shared.put(self.run, Record::Items(sorted.candidates, sorted.others.0));
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
            Record::Items(items, _) => items.len() + 1,
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
    fn has_room(&self, weight: usize, room: usize) -> bool {
        self.weight.load(Ordering::Relaxed) + weight <= room
    }

    fn put(&self, run: u64, record: Record) {
        let weight = record.weight();
        // What has no weight is rare, and always taken.
        if (weight > 0 && !self.has_room(weight, ROOM)) || self.closed.load(Ordering::Relaxed) {
            self.leave_out(&record);
            return;
        }
        let before = self.weight.fetch_add(weight, Ordering::Relaxed);
        // A thread that is gone was told to end.
        drop(self.records.send((run, record)));
        if before < WAKE_AT && before + weight >= WAKE_AT {
            self.wake();
        }
    }

    fn leave_out(&self, record: &Record) {
        match record {
            Record::Batch(_) => self.left_out.add_batches(1),
            Record::Items(items, _) => {
                self.left_out.add_items(items.iter().filter(|(_, kept)| kept.is_some()).count() as u64);
            }
            Record::Began(_)
            | Record::Worker(_)
            | Record::Device(_)
            | Record::Ended(_)
            | Record::Gone
            | Record::Close => {}
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
fn work(target: &Target, shared: &Shared, waiting: &Receiver<(u64, Record)>, ends: Sender<()>) {
    if let Target::Own(_) = target {
        step_back();
    }
    let mut runs: HashMap<u64, Assembly> = HashMap::new();
    loop {
        match waiting.try_recv() {
            Ok((_, Record::Close)) | Err(TryRecvError::Disconnected) => break,
            Ok((run, record)) => {
                let weight = record.weight();
                handle(&mut runs, run, record, target, &shared.left_out);
                // Whoever gave up waiting has counted what was left.
                let less = |waits: usize| Some(waits.saturating_sub(weight));
                let _ = shared.weight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
            Err(TryRecvError::Empty) => thread::park_timeout(EVERY),
        }
    }
    runs.into_values().for_each(Assembly::flush);
    // An error: nobody waits any more.
    let _ = ends.send(());
}

fn handle(
    runs: &mut HashMap<u64, Assembly>,
    run: u64,
    record: Record,
    target: &Target,
    left_out: &Arc<LeftOut>,
) {
    if let Record::Began(assemble) = record {
        let Assemble { began, seed, sampling, parent, parents } = *assemble;
        let out = match target {
            Target::Own(sink) => Out::own(sink),
            Target::Host => Out::host(),
        };
        runs.insert(run, Assembly::new(&began, (seed, out, sampling), parent, parents, Arc::clone(left_out)));
        return;
    }
    let Some(assembly) = runs.get_mut(&run) else { return };
    match record {
        Record::Began(_) | Record::Close => {}
        Record::Batch(batch) => assembly.batch(batch),
        Record::Items(items, others) => assembly.items(items, &others),
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
