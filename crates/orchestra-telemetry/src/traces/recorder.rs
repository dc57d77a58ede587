//! Takes down what runs tell, and makes spans of it on a thread of its own. Telling never waits: a record goes into a queue, and where
//! that is full it is lost and counted.
//!
//! Of nearly all items nothing is wanted, so the thread that tells of them decides about each right there, which takes a look at a few
//! numbers and no copy, and only those that are traced go to the thread of the recorder.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::Duration;

use opentelemetry::trace::SpanContext;
use opentelemetry_sdk::trace::SpanProcessor;
use orchestra_core::{ItemId, locked};
use orchestra_runtime::trace::{
    BatchNumber, BatchTrace, DeviceTrace, EndedItems, LoaderTrace, RunBegan, RunEnded, RunTracer, TaskTrace,
    TraceContext, Tracer, WorkerTrace,
};

use super::assembly::{Assembly, ItemParents, batch_context};
use super::counts::LeftOutTraces;
use super::ids::{About, Seed};
use super::sampling::Sorted;
use super::span::{Out, Sink};
use super::{batch, context, step_back};
use crate::TelemetryError;

/// Items and batches that may wait. A record of an item is a few hundred bytes.
const ROOM: usize = 65_536;
/// The last quarter of it is for batches, and for items that failed or were tried again.
const ROOM_FOR_ITEMS: usize = ROOM - ROOM / 4;
/// An item that was in one batch has so many spans.
const SPANS_OF_ITEM: usize = 8;
/// How often the thread looks.
const EVERY: Duration = Duration::from_millis(50);
/// The thread looks at once when so much waits: to wake it for each record would cost the run more than all the rest.
const WAKE_AT: usize = 4_096;

/// Makes spans of runs. Clones share a thread and a queue; the thread ends when the last one is dropped and it has done what waits.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<RecorderQueue>,
    sink: Sink,
    slow: Option<Duration>,
    run_parent: Option<TraceContext>,
    item_parents: Option<ItemParents>,
}

/// What the threads that tell share. There is no lock in it that they take: the thread runs behind those of the run, and may stand still at any
/// moment. (A sender of such a channel never waits for its receiver.)
struct RecorderQueue {
    /// Bounded by `weight`. `None`: nothing more will come, of any run.
    records: Sender<Option<TraceRecord>>,
    /// Items and batches that wait.
    weight: Arc<AtomicUsize>,
    closed: AtomicBool,
    /// Items and batches for which there was no room, here or at the exporter.
    left_out: Arc<LeftOutTraces>,
    next_run: AtomicU64,
    thread: Thread,
    done: Mutex<Receiver<()>>,
}

/// The runs that are followed, on the thread.
type Assemblies = HashMap<u64, Assembly>;
/// What the thread does about a record.
type TraceWork = Box<dyn FnOnce(&mut Assemblies) + Send>;

/// Something that a run has told.
struct TraceRecord {
    /// How much room it takes. What there are few of has no weight and always finds some.
    weight: usize,
    work: TraceWork,
}

impl Recorder {
    /// Makes spans for a program that has its own OpenTelemetry: each goes to this span processor when it ends, and so to the program's own
    /// exporter, with its resource. Items that take as long as `slow` are traced, and those that failed or were tried again. Nothing is installed. The thread runs like any other of the host, since it takes the same locks as they
    /// do when a span ends.
    pub fn for_host(
        processor: impl SpanProcessor + 'static,
        slow: Option<Duration>,
    ) -> Result<Self, TelemetryError> {
        Self::over(Sink::of_host(Arc::new(processor)), slow)
    }

    /// The same as a run takes it.
    pub fn tracer(&self) -> Arc<dyn Tracer> {
        Arc::new(self.clone())
    }

    pub(crate) fn over(sink: Sink, slow: Option<Duration>) -> Result<Self, TelemetryError> {
        let (records, waiting) = channel();
        let (ends, done) = channel();
        let (weight, is_own) = (Arc::new(AtomicUsize::new(0)), sink.is_own());
        let waits = Arc::clone(&weight);
        let work = move || {
            if is_own {
                step_back();
            }
            work(&waits, &waiting);
            // An error: nothing waits for the thread any more.
            let _ = ends.send(());
        };
        let thread = thread::Builder::new().name("orchestra-spans".into());
        let thread = thread.spawn(work).map_err(TelemetryError::Thread)?.thread().clone();
        let (closed, left_out, next_run) = (AtomicBool::new(false), Arc::default(), AtomicU64::new(0));
        let shared =
            RecorderQueue { records, weight, closed, left_out, next_run, thread, done: Mutex::new(done) };
        Ok(Self { shared: Arc::new(shared), sink, slow, run_parent: None, item_parents: None })
    }

    /// A recorder that makes the spans of runs children of this one, for example of the request that started the run. If that is not
    /// sampled, they are not made.
    pub fn with_run_parent(mut self, parent: TraceContext) -> Self {
        self.run_parent = Some(parent);
        self
    }

    /// A recorder that asks for the parent of each item, for example for the request that the item came with. An item with a parent is
    /// traced if that is sampled, and not otherwise. It is asked when the item has ended: see [`ItemParents`].
    pub fn with_item_parents(mut self, parents: ItemParents) -> Self {
        self.item_parents = Some(parents);
        self
    }

    /// Makes the spans of all that was told, and ends those that are open, but waits no longer than `patience`. What is told from now on
    /// is not taken down. Gives how much was left out because too much happened at once: items and batches.
    pub fn finish(&self, patience: Duration) -> u64 {
        let shared = &self.shared;
        shared.close();
        let done = locked(&shared.done);
        // An answer means that it is through. Without one in time, or from a thread that is gone, what still waits is lost.
        if done.recv_timeout(patience).is_err() {
            // No record comes any more, and the weight is 0 now: each item that still waits is counted once, here.
            shared.left_out.add_items(shared.weight.swap(0, Ordering::Relaxed) as u64);
        }
        let report = shared.left_out.and(super::SpanReport::default());
        report.items_left_out + report.batches_left_out
    }

    pub(crate) fn left_out(&self) -> Arc<LeftOutTraces> {
        Arc::clone(&self.shared.left_out)
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("slow", &self.slow).finish_non_exhaustive()
    }
}

impl Drop for RecorderQueue {
    fn drop(&mut self) {
        self.close();
    }
}

impl Tracer for Recorder {
    fn begin(&self, began: RunBegan) -> Arc<dyn RunTracer> {
        let Self { sink, slow, run_parent: parent, item_parents: parents, .. } = self.clone();
        let has_parents = parents.is_some();
        let seed = Seed::new(&began.run_id, began.zero);
        let ids = seed.root(About::Run);
        let context =
            parent.map_or(context::root(ids), |parent| context::below(&context::to_span(parent), ids.1));
        let shared = Arc::clone(&self.shared);
        let run = shared.next_run.fetch_add(1, Ordering::Relaxed);
        let (left_out, to, batches) = (self.left_out(), sink.clone(), Arc::<AtomicU64>::default());
        let sent = Arc::clone(&batches);
        shared.put(0, [0, 0], move |runs| {
            runs.insert(run, Assembly::new(&began, (seed, Out::new(to)), (parent, parents), sent, left_out));
        });
        Arc::new(RunRecorder { run, shared, seed, context, sink, has_parents, slow, batches })
    }
}

struct RunRecorder {
    run: u64,
    shared: Arc<RecorderQueue>,
    seed: Seed,
    context: SpanContext,
    sink: Sink,
    /// Items may have parents of the host, so that nothing is known of their traces here.
    has_parents: bool,
    slow: Option<Duration>,
    batches: Arc<AtomicU64>,
}

impl RunTracer for RunRecorder {
    fn number_batch(&self) -> BatchNumber {
        let number = self.batches.fetch_add(1, Ordering::Relaxed);
        let context = context::of_span(&batch_context(self.seed, &self.context, number));
        BatchNumber { number, context }
    }

    fn trace_of_failed(&self, item: ItemId) -> Option<TraceContext> {
        let context = context::root(self.seed.root(About::Item(item.source.0, item.index)));
        // A host is not asked for a parent in a thread of the run.
        context::of_span(&context).filter(|_| !self.has_parents)
    }

    fn batch_ended(&self, batch: Arc<BatchTrace>) {
        if batch::matters(&batch) {
            self.tell(1, [0, 1], move |run| run.batch(&batch));
        }
    }

    fn items_ended(&self, items: &[EndedItems]) {
        // What the exporter would drop need not be copied for it. Which items a host wants is not known here.
        let takes_items = self.has_parents || self.sink.has_room(SPANS_OF_ITEM);
        let room = ROOM_FOR_ITEMS.saturating_sub(self.shared.weight.load(Ordering::Relaxed));
        let mut sorted = Sorted::new(if takes_items { room } else { 0 }, self.has_parents);
        items.iter().for_each(|group| sorted.group(group, self.slow));
        self.shared.left_out.add_items(sorted.left_out);
        let items = sorted.kept;
        if !items.is_empty() {
            self.tell(items.len(), [items.len() as u64, 0], move |run| run.items(&items));
        }
    }

    fn worker(&self, step: WorkerTrace) {
        self.tell(0, [0, 0], |run| run.worker(step));
    }

    fn device(&self, step: DeviceTrace) {
        self.tell(0, [0, 0], |run| run.device(step));
    }

    fn loader(&self, life: LoaderTrace) {
        self.tell(0, [0, 0], move |run| run.loader(&life));
    }

    fn task(&self, attempt: TaskTrace) {
        self.tell(0, [0, 0], move |run| run.task(&attempt));
    }

    fn ended(&self, end: RunEnded) {
        self.tell(0, [0, 0], move |run| run.ended(&end));
    }
}

impl RunRecorder {
    /// As [`RecorderQueue::put`], of this run.
    fn tell(&self, weight: usize, lost: [u64; 2], tell: impl FnOnce(&mut Assembly) + Send + 'static) {
        let run = self.run;
        self.shared.put(weight, lost, move |runs| {
            if let Some(run) = runs.get_mut(&run) {
                tell(run);
            }
        });
    }
}

impl Drop for RunRecorder {
    fn drop(&mut self) {
        let run = self.run;
        self.shared.put(0, [0, 0], move |runs| {
            if let Some(run) = runs.remove(&run) {
                run.flush();
            }
        });
    }
}

impl RecorderQueue {
    /// Has the thread do this. Where there is no room for it, so many items and batches are lost.
    fn put(
        &self,
        weight: usize,
        [items, batches]: [u64; 2],
        work: impl FnOnce(&mut Assemblies) + Send + 'static,
    ) {
        let is_full = weight > 0 && self.weight.load(Ordering::Relaxed) + weight > ROOM;
        if is_full || self.closed.load(Ordering::Relaxed) {
            self.left_out.add_items(items);
            self.left_out.add_batches(batches);
            return;
        }
        let before = self.weight.fetch_add(weight, Ordering::Relaxed);
        // A thread that is gone was told to end.
        drop(self.records.send(Some(TraceRecord { weight, work: Box::new(work) })));
        if before < WAKE_AT && before + weight >= WAKE_AT {
            self.thread.unpark();
        }
    }

    fn close(&self) {
        if !self.closed.swap(true, Ordering::Relaxed) {
            drop(self.records.send(None));
            self.thread.unpark();
        }
    }
}

fn work(waits: &AtomicUsize, waiting: &Receiver<Option<TraceRecord>>) {
    let mut runs = Assemblies::new();
    loop {
        let TraceRecord { weight, work } = match waiting.try_recv() {
            Ok(Some(record)) => record,
            Ok(None) | Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                thread::park_timeout(EVERY);
                continue;
            }
        };
        work(&mut runs);
        // `finish` has counted what was left when it gave up waiting.
        let less = |waits: usize| Some(waits.saturating_sub(weight));
        let _ = waits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
    runs.into_values().for_each(Assembly::flush);
}
