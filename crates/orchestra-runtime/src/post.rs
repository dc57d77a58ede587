//! Post-processing of an infer stage: a completed batch becomes records for the sinks, or rows of the stage behind. It decides nothing
//! about retries. A batch that is a few microseconds of work is processed by whoever has it, which is the batcher; everything else, and
//! everything that may have to wait, on the blocking pool, of which an actor keeps count.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use orchestra_core::gather::Report;
use orchestra_core::{Dim, Failure, FailureKind, ItemId, SinkId, SourceId, StageId, TensorSpec};
use orchestra_plan::{Plan, StageKind};
use ractor::concurrency::JoinHandle;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};
use smallvec::SmallVec;

use crate::committer::BYTES_AT_ONCE;
use crate::context::RunContext;
use crate::messages::{BatcherMsg, CompletedBatch, FinishedItems, ItemReport, PostMsg, Record, SinkMsg};
use crate::records::{self, ClassLines, Scratch, TensorView, Tensors};
use crate::slot_pool::SlotPool;
use crate::ticket::Ticket;
use crate::topology::Topology;
use crate::trace::DoneRows;

/// The post-processing of a stage, for its batcher.
#[derive(Clone)]
pub struct PostProcessor {
    work: Arc<Work>,
    /// Who has done what takes long.
    pub actor: ActorRef<PostMsg>,
}

/// The actor behind a [`PostProcessor`].
pub struct Post;

/// Output elements up to which a batch is quick to process: less than 100 µs of softmax and JSON.
const QUICK_ELEMENTS: usize = 16 * 1024;

/// What is said of an item where our own code fell over.
const BUG: &str = "internal error in post-processing; this is a bug";

/// What it is started with.
pub struct PostArgs {
    /// The run.
    pub context: Arc<RunContext>,
    /// The infer stage whose batches it gets.
    pub stage: StageId,
    /// The graph.
    pub topology: Arc<Topology>,
    /// Where reports go.
    pub sink: ActorRef<SinkMsg>,
    /// Infer stages that take this one's outputs: stage, memory, batcher.
    pub behind: Vec<Behind>,
}

/// An infer stage fed by another one.
#[derive(Clone)]
pub struct Behind {
    /// Which.
    pub stage: StageId,
    /// Its memory.
    pub pool: Arc<SlotPool>,
    /// Who gives out its batches.
    pub batcher: ActorRef<BatcherMsg>,
}

impl PostProcessor {
    /// Starts the actor, below `supervisor`.
    pub async fn start(args: PostArgs, supervisor: ActorCell) -> Result<(Self, JoinHandle<()>), SpawnErr> {
        let work = Arc::new(Work::new(args));
        let (actor, end) = Actor::spawn_linked(None, Post, Arc::clone(&work), supervisor).await?;
        Ok((Self { work, actor }, end))
    }

    /// Has a batch processed: here and now if it takes a few microseconds.
    pub fn process(&self, batch: CompletedBatch) {
        if self.work.is_quick(&batch) {
            // A message, and the wait for its turn, would cost more than the work.
            self.work.process(batch);
        } else {
            drop(self.actor.cast(PostMsg::Batch(batch)));
        }
    }

    /// No further batch will come.
    pub fn drained(&self) {
        drop(self.actor.cast(PostMsg::Drained));
    }
}

/// State of a post-processor.
pub struct PostState {
    work: Arc<Work>,
    running: usize,
    drained: bool,
}

impl Actor for Post {
    type Msg = PostMsg;
    type State = PostState;
    type Arguments = Arc<Work>;

    async fn pre_start(
        &self,
        _: ActorRef<PostMsg>,
        work: Arc<Work>,
    ) -> Result<PostState, ActorProcessingErr> {
        Ok(PostState { work, running: 0, drained: false })
    }

    async fn handle(
        &self,
        me: ActorRef<PostMsg>,
        message: PostMsg,
        state: &mut PostState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PostMsg::Batch(batch) => {
                // Bounded by the slots: a batch holds its slot until it has been processed.
                state.running += 1;
                let work = Arc::clone(&state.work);
                tokio::task::spawn_blocking(move || {
                    work.process(batch);
                    drop(me.cast(PostMsg::Finished));
                });
            }
            PostMsg::Finished => state.running -= 1,
            PostMsg::Drained => state.drained = true,
        }
        if state.drained && state.running == 0 {
            for behind in &state.work.behind {
                drop(behind.batcher.cast(BatcherMsg::Drained));
            }
        }
        Ok(())
    }
}

/// Everything that processing a batch needs, resolved once.
pub struct Work {
    context: Arc<RunContext>,
    stage: StageId,
    sink: ActorRef<SinkMsg>,
    outputs: Vec<TensorSpec>,
    sinks: Vec<SinkId>,
    classifiers: Vec<Classifier>,
    behind: Vec<Behind>,
    /// Sinks downstream of the whole stage: what one failure here stands for.
    n_sinks: usize,
    /// The one sink of the items, if they have one and no order: then a row's line is all that there is to say about its item.
    only_sink: Option<SinkId>,
    /// Bytes of the records of the last batch.
    usual_text: AtomicUsize,
}

struct Classifier {
    stage: StageId,
    output: usize,
    lines: ClassLines,
    sinks: Vec<SinkId>,
}

impl Work {
    fn new(args: PostArgs) -> Self {
        let plan = &args.context.plan;
        let outputs = match &plan.stages[args.stage.index()].kind {
            StageKind::Infer(infer) => plan.models[infer.model.index()].outputs.clone(),
            StageKind::Image { .. } | StageKind::Classify { .. } => Vec::new(),
        };
        let children = args.topology.children(args.stage).iter();
        let classifiers = children.filter_map(|&c| classifier(plan, &args.topology, c, &outputs)).collect();
        Self {
            stage: args.stage,
            sink: args.sink,
            outputs,
            sinks: args.topology.sinks_of(args.stage).to_vec(),
            classifiers,
            behind: args.behind,
            n_sinks: args.topology.n_sinks_below(args.stage),
            only_sink: only_sink(plan, &args.topology, args.stage),
            usual_text: AtomicUsize::new(0),
            context: args.context,
        }
    }

    /// Whether the batch takes a few microseconds and cannot wait for anything.
    fn is_quick(&self, batch: &CompletedBatch) -> bool {
        let elements = self.outputs.iter().map(|spec| spec.row_len().unwrap_or(usize::MAX));
        let elements = elements.fold(0, usize::saturating_add);
        // Records of whole tensors print every number; classes have to be put in order, and print a number and a name each.
        let printed = if self.sinks.is_empty() { 0 } else { elements };
        let printed = self.classifiers.iter().fold(printed, |n, c| n.saturating_add(c.lines.top_k()));
        let cost =
            elements.saturating_mul(self.classifiers.len().max(1)).saturating_add(printed.saturating_mul(16));
        self.behind.is_empty() && cost.saturating_mul(batch.rows.count) <= QUICK_ELEMENTS
    }

    /// Reports on every item of the batch that ends here. A panic in here is a bug of ours; it fails the items by name instead of
    /// losing them.
    fn process(&self, batch: CompletedBatch) {
        let began = batch.trace.as_ref().map(|_| self.context.clock.now());
        let outputs = catch_unwind(AssertUnwindSafe(|| self.outputs_of(&batch)))
            .unwrap_or_else(|_| Err(BUG.to_owned()));
        let usual_text = self.usual_text.load(Ordering::Relaxed);
        let mut lines = Lines::with_capacity(usual_text, batch.rows.count, self.only_sink.is_some());
        let mut failures = Vec::new();
        let mut failed_rows = Vec::new();
        let mut done = 0;
        for row in batch.rows.first..batch.rows.first + batch.rows.count {
            let Some(ticket) = batch.slot.items.get(row).and_then(Option::as_ref) else { continue };
            let before = lines.mark();
            if let (Some(trace), None, Some(journey)) = (&batch.trace, self.only_sink, ticket.journey()) {
                journey.ran(trace); // Before the item can end.
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let outputs = outputs.as_ref().map_err(Clone::clone)?;
                self.row(outputs, row - batch.rows.first, ticket, &mut lines)
            }));
            let error = match outcome {
                Ok(Ok(())) => {
                    done += 1;
                    continue;
                }
                Ok(Err(error)) => error,
                Err(_) => BUG.to_owned(),
            };
            lines.back_to(before);
            if let (Some(trace), Some(_), Some(journey)) = (&batch.trace, self.only_sink, ticket.journey()) {
                journey.ran(trace);
                failed_rows.push(row);
            }
            let stage = self.context.plan.stages[self.stage.index()].name.clone();
            let failure = Failure { stage, kind: FailureKind::Result, error, attempts: 1 };
            let report = Report::Failed { sinks: self.n_sinks, failure };
            failures.push(ItemReport { ticket: ticket.clone(), report });
        }
        let stats = self.context.stats.stage(self.stage);
        stats.left.add(done);
        stats.failed.add(failures.len() as u64);
        for classifier in &self.classifiers {
            let stats = self.context.stats.stage(classifier.stage);
            stats.entered.add(done);
            stats.left.add(done);
        }
        self.usual_text.store(lines.text.len(), Ordering::Relaxed);
        if let (Some(trace), Some(began)) = (&batch.trace, began) {
            trace.processed.get_or_init(|| (began, self.context.clock.now()));
        }
        // The slot is free for the next rows before the sink looks at these; but where records are large, only when they are written.
        let hold = (lines.text.len() >= BYTES_AT_ONCE).then(|| Arc::clone(&batch.slot));
        let rows = batch.rows.first..batch.rows.first + batch.rows.count;
        let traced = batch.trace.as_ref().filter(|_| self.only_sink.is_some()).map(|trace| {
            let items = Arc::clone(&batch.slot.items);
            DoneRows::new(items, rows, failed_rows, lines.done.clone(), Arc::clone(trace))
        });
        drop(batch);
        if let (Some(sink), Some(first)) = (self.only_sink, lines.done.first()) {
            let source = first.source;
            let Lines { done, text, .. } = lines;
            let finished = FinishedItems { source, sink, done, text, traced, hold };
            drop(self.sink.cast(SinkMsg::Finished(finished)));
        } else {
            let reports = lines.into_reports();
            if !reports.is_empty() {
                drop(self.sink.cast(SinkMsg::Reports(reports)));
            }
        }
        if !failures.is_empty() {
            drop(self.sink.cast(SinkMsg::Reports(failures)));
        }
    }

    /// Either adds everything about a row of the batch, or gives an error.
    fn row(
        &self,
        outputs: &[OutputRows<'_>],
        row: usize,
        ticket: &Ticket,
        lines: &mut Lines,
    ) -> Result<(), String> {
        if !self.sinks.is_empty() {
            let source = self.source(ticket.id().source);
            let tensors: RowTensors<'_> = outputs.iter().map(|output| output.row(row)).collect();
            let tensors = Tensors(&tensors);
            lines.add(ticket, &self.sinks, |_, out| records::result_line(ticket, source, &tensors, out))?;
        }
        for c in &self.classifiers {
            let tensor = outputs.get(c.output).ok_or("the output to classify is missing")?.row(row);
            lines.add(ticket, &c.sinks, |scratch, out| c.lines.line(ticket, &tensor, scratch, out))?;
        }
        if !self.behind.is_empty() {
            let tensors: RowTensors<'_> = outputs.iter().map(|output| output.row(row)).collect();
            for behind in &self.behind {
                self.check_fit(behind, &tensors)?;
            }
            for behind in &self.behind {
                self.hand_on(behind, &tensors, ticket);
            }
        }
        Ok(())
    }

    /// The plan matched the shapes; this guards the copies below.
    fn check_fit(&self, behind: &Behind, tensors: &[TensorView<'_>]) -> Result<(), String> {
        let layout = behind.pool.arena().layout();
        for (region, from) in layout.inputs.iter().zip(self.inputs_of(behind)) {
            let given = tensors.get(from).map_or(0, |t| t.data.len());
            if given != region.row_bytes {
                let (name, expected) = (&region.tensor.name, region.row_bytes);
                return Err(format!("input `{name}` of the next stage takes {expected} bytes, not {given}"));
            }
        }
        Ok(())
    }

    /// Copies a row into the memory of the next stage; waits for a free slot there. That stage never waits for this one.
    fn hand_on(&self, behind: &Behind, tensors: &[TensorView<'_>], ticket: &Ticket) {
        // `None`: the pipeline is being torn down, and the item stays unfinished for the next run.
        let Some(mut lease) = behind.pool.claim() else { return };
        for (input, from) in self.inputs_of(behind).enumerate() {
            lease.input_mut(input).copy_from_slice(tensors[from].data);
        }
        if let Some(journey) = ticket.journey() {
            journey.queued(behind.stage, self.context.clock.now());
        }
        lease.publish(ticket.clone());
    }

    /// Which of our outputs each input of the next stage takes.
    fn inputs_of(&self, behind: &Behind) -> impl Iterator<Item = usize> {
        let inputs = match &self.context.plan.stages[behind.stage.index()].kind {
            StageKind::Infer(next) => next.inputs.as_slice(),
            StageKind::Image { .. } | StageKind::Classify { .. } => &[],
        };
        inputs.iter().map(|from| from.output)
    }

    fn source(&self, source: SourceId) -> &str {
        &self.context.plan.sources[source.index()].name
    }

    /// What this batch has of each output.
    fn outputs_of<'a>(&'a self, batch: &'a CompletedBatch) -> Result<Vec<OutputRows<'a>>, String> {
        let rows = batch.rows.count;
        let output = |(i, spec): (usize, &'a TensorSpec)| {
            let dynamic = batch.dynamic.iter().find(|d| d.output == i);
            let shape = match dynamic {
                // Nothing that is made of it may take its word for a size.
                Some(d) if !d.is_sound() || d.dtype != spec.dtype => {
                    Err(format!("output `{}` has not the type and size that the worker says", spec.name))
                }
                Some(d) if d.shape.first() == Some(&rows) => Ok(d.shape[1..].to_vec()),
                // The whole tensor belongs to the only item.
                Some(d) if rows == 1 => Ok(d.shape.clone()),
                Some(d) => Err(format!(
                    "output `{}` has shape {:?} for {rows} items and cannot be split; set `batch = {{ max = 1 }}`",
                    spec.name, d.shape
                )),
                None => spec
                    .row
                    .iter()
                    .map(|d| match d {
                        Dim::Fixed(n) => Ok(*n),
                        Dim::Dynamic => Err(format!("output `{}` is missing", spec.name)),
                    })
                    .collect(),
            }?;
            let row_bytes = shape.iter().product::<usize>() * spec.dtype.size_bytes();
            let data = match dynamic {
                Some(d) => Some(d.data.as_slice()),
                None => batch.slot.output(i, batch.rows.first, rows),
            };
            match data {
                Some(data) if data.len() == rows * row_bytes => {
                    Ok(OutputRows { spec, shape, row_bytes, data })
                }
                _ => Err(format!("output `{}` has not the size that its shape says", spec.name)),
            }
        };
        self.outputs.iter().enumerate().map(output).collect()
    }
}

/// What a batch has of one output of the model.
struct OutputRows<'a> {
    spec: &'a TensorSpec,
    /// Of one row.
    shape: Vec<usize>,
    row_bytes: usize,
    /// All rows.
    data: &'a [u8],
}

impl OutputRows<'_> {
    fn row(&self, row: usize) -> TensorView<'_> {
        let data = &self.data[row * self.row_bytes..(row + 1) * self.row_bytes];
        TensorView { name: &self.spec.name, dtype: self.spec.dtype, shape: &self.shape, data }
    }
}

/// The outputs of one row; most models have few.
type RowTensors<'a> = SmallVec<[TensorView<'a>; 4]>;

/// The records of one batch, which share one buffer.
struct Lines {
    text: Vec<u8>,
    /// Item, sink, and where in `text` its line is.
    records: Vec<(Ticket, SinkId, Range<usize>)>,
    /// Instead of `records` where each item has one sink: the items, in the order of their lines.
    done: Vec<ItemId>,
    one_sink: bool,
    scratch: Scratch,
}

impl Lines {
    fn with_capacity(bytes: usize, rows: usize, one_sink: bool) -> Self {
        // A little more than last time, so that most batches fit.
        let text = Vec::with_capacity(bytes + bytes / 16);
        let (records, done) = if one_sink { (0, rows) } else { (rows, 0) };
        Self {
            text,
            records: Vec::with_capacity(records),
            done: Vec::with_capacity(done),
            one_sink,
            scratch: Scratch::default(),
        }
    }

    /// Adds one line, which goes to all `sinks`.
    fn add(
        &mut self,
        ticket: &Ticket,
        sinks: &[SinkId],
        write: impl FnOnce(&mut Scratch, &mut Vec<u8>) -> Result<(), String>,
    ) -> Result<(), String> {
        if sinks.is_empty() {
            return Ok(()); // A stage that only stages behind it read.
        }
        let start = self.text.len();
        write(&mut self.scratch, &mut self.text)?;
        if self.one_sink {
            self.done.push(ticket.id());
        } else {
            let line = start..self.text.len();
            self.records.extend(sinks.iter().map(|&sink| (ticket.clone(), sink, line.clone())));
        }
        Ok(())
    }

    fn mark(&self) -> (usize, usize, usize) {
        (self.text.len(), self.records.len(), self.done.len())
    }

    /// Forgets everything added since.
    fn back_to(&mut self, (text, records, done): (usize, usize, usize)) {
        self.text.truncate(text);
        self.records.truncate(records);
        self.done.truncate(done);
    }

    fn into_reports(self) -> Vec<ItemReport> {
        let text = Bytes::from(self.text);
        let report = |(ticket, sink, line)| ItemReport {
            ticket,
            report: Report::Record(Record { sink, line: text.slice(line) }),
        };
        self.records.into_iter().map(report).collect()
    }
}

/// The sink of all items of the stage, if each has only this one and comes in any order.
fn only_sink(plan: &Plan, topology: &Topology, stage: StageId) -> Option<SinkId> {
    let source = topology.source_of(stage)?;
    match topology.sinks_of_source(source)[..] {
        [sink]
            if !plan.sinks[sink.index()].ordered
                && topology.children(stage).iter().all(|&c| is_end(plan, c)) =>
        {
            Some(sink)
        }
        _ => None,
    }
}

/// Whether records are made of what the stage gives, and nothing else reads it.
fn is_end(plan: &Plan, stage: StageId) -> bool {
    matches!(plan.stages[stage.index()].kind, StageKind::Classify { .. })
}

fn classifier(
    plan: &Plan,
    topology: &Topology,
    stage: StageId,
    outputs: &[TensorSpec],
) -> Option<Classifier> {
    let StageKind::Classify { output, top_k, labels, scores, .. } = &plan.stages[stage.index()].kind else {
        return None;
    };
    let n_classes = outputs.get(*output).and_then(TensorSpec::row_len);
    let sources: Vec<&str> = plan.sources.iter().map(|s| s.name.as_str()).collect();
    Some(Classifier {
        stage,
        output: *output,
        lines: ClassLines::new(*scores, *top_k, n_classes, labels, &sources),
        sinks: topology.sinks_of(stage).to_vec(),
    })
}
