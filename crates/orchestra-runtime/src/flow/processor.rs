//! What follows a batch stage: the rows of a completed batch go through the chain behind the stage. A batch that takes a few microseconds is
//! worked on by whoever has it, which is the batcher; everything else, and everything that may have to wait, on the blocking pool, of which an
//! actor keeps count. It decides nothing about retries.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use orchestra_core::data::{Label, Refusal, Value};
use orchestra_core::{StageId, TensorSpec};
use orchestra_plan::{ColumnRef, Origin};
use ractor::concurrency::JoinHandle;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};
use smallvec::SmallVec;

use super::chain::{Chain, ChainRun, Env, NoHooks, Outcome};
use super::token::Token;
use crate::batch::outputs::OutputRows;
use crate::context::RunContext;
use crate::flow::committer::BYTES_AT_ONCE;
use crate::messages::{CompletedBatch, FinishedItems, ProcessorMsg, SinkMsg};
use crate::trace::DoneRows;

#[derive(Clone)]
pub struct Processor {
    work: Arc<Work>,
    actor: ActorRef<ProcessorMsg>,
}

/// Output elements up to which a batch is quick: less than 100 µs of softmax and JSON.
const QUICK_ELEMENTS: usize = 16 * 1024;

impl Processor {
    pub async fn start(
        context: &Arc<RunContext>,
        stage: StageId,
        chain: Chain,
        sink: ActorRef<SinkMsg>,
        supervisor: ActorCell,
    ) -> Result<(Self, JoinHandle<()>), SpawnErr> {
        let work = Arc::new(Work::new(Arc::clone(context), stage, chain, sink));
        let (actor, end) = Actor::spawn_linked(None, Counting, Arc::clone(&work), supervisor).await?;
        Ok((Self { work, actor }, end))
    }

    /// Has a batch worked on: here and now if it takes a few microseconds.
    pub fn process(&self, batch: CompletedBatch) {
        if self.work.is_quick(&batch) {
            // A message, and the wait for its turn, would cost more than the work.
            self.work.process(batch);
        } else {
            drop(self.actor.cast(ProcessorMsg::Batch(batch)));
        }
    }

    /// Ends the actor, as its supervisor does.
    #[cfg(test)]
    pub fn stop(&self) {
        self.actor.stop(None);
    }

    pub fn drained(&self) {
        drop(self.actor.cast(ProcessorMsg::Drained));
    }
}

/// Counts the batches that are being worked on, and passes the end on after the last.
struct Counting;

struct CountingState {
    work: Arc<Work>,
    running: usize,
    drained: bool,
}

impl Actor for Counting {
    type Msg = ProcessorMsg;
    type State = CountingState;
    type Arguments = Arc<Work>;

    async fn pre_start(
        &self,
        _: ActorRef<ProcessorMsg>,
        work: Arc<Work>,
    ) -> Result<CountingState, ActorProcessingErr> {
        Ok(CountingState { work, running: 0, drained: false })
    }

    async fn handle(
        &self,
        me: ActorRef<ProcessorMsg>,
        message: ProcessorMsg,
        state: &mut CountingState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ProcessorMsg::Batch(batch) => {
                // Bounded by the slots: a batch holds its slot until it has been worked on.
                state.running += 1;
                let work = Arc::clone(&state.work);
                tokio::task::spawn_blocking(move || {
                    work.process(batch);
                    drop(me.cast(ProcessorMsg::Finished));
                });
            }
            ProcessorMsg::Finished => state.running -= 1,
            ProcessorMsg::Drained => state.drained = true,
        }
        if state.drained && state.running == 0 {
            state.work.chain.drained();
        }
        Ok(())
    }
}

struct Work {
    context: Arc<RunContext>,
    stage: StageId,
    sink: ActorRef<SinkMsg>,
    chain: Chain,
    outputs: Vec<TensorSpec>,
    carries: Vec<ColumnRef>,
    /// What threads that have done a batch keep for the next one.
    runs: Mutex<Vec<(ChainRun, Outcome)>>,
    usual_text: AtomicUsize,
}

impl Work {
    fn new(context: Arc<RunContext>, stage: StageId, chain: Chain, sink: ActorRef<SinkMsg>) -> Self {
        let plan = &context.plan.stages[stage.index()];
        let outputs = plan.gives.0.iter().filter_map(|column| column.ty.stored().cloned()).collect();
        let carries = plan.batch().map_or_else(Vec::new, |infer| infer.carries.clone());
        let (runs, usual_text) = (Mutex::default(), AtomicUsize::new(0));
        Self { stage, sink, chain, outputs, carries, runs, usual_text, context }
    }

    /// Whether the batch takes a few microseconds and cannot wait for anything.
    fn is_quick(&self, batch: &CompletedBatch) -> bool {
        self.chain.cost().saturating_mul(batch.rows.count) <= QUICK_ELEMENTS
    }

    fn process(&self, batch: CompletedBatch) {
        let began = batch.trace.as_ref().map(|_| self.context.clock.now());
        let lock = || self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = lock().pop();
        let (mut run, mut out) = kept.unwrap_or_else(|| (self.chain.start(), Outcome::default()));
        let outputs = batch.outputs(&self.outputs);
        let linear = self.chain.linear();
        let usual_text = self.usual_text.load(Ordering::Relaxed);
        // A little more than last time, so that most batches fit.
        out.text.reserve(usual_text + usual_text / 16);
        let mut failed_rows = Vec::new();
        let (mut n_rows, mut n_failed) = (0, 0);
        let rows = batch.rows.first..batch.rows.first + batch.rows.count;
        for row in rows.clone() {
            let Some(token) = batch.slot.items.get(row).and_then(Option::as_ref) else { continue };
            n_rows += 1;
            if let (Some(trace), None, Some(item)) = (&batch.trace, linear, token.ticket.timeline()) {
                item.ran(trace); // Before the item can end.
            }
            let before = (out.done.len(), out.n_failed());
            match &outputs {
                Ok(outputs) => self.row(outputs, row - batch.rows.first, token, &mut run, &mut out),
                Err(error) => self.chain.fail(token, self.stage, Refusal::result(error.clone()), &mut out),
            }
            n_failed += out.n_failed() - before.1;
            if linear.is_some() && out.done.len() == before.0 {
                if let (Some(trace), Some(item)) = (&batch.trace, token.ticket.timeline()) {
                    item.ran(trace);
                }
                failed_rows.push(row);
            }
        }
        drop(outputs);
        self.context.stats.stage(self.stage).left.add(n_rows - n_failed as u64);
        self.chain.book(&out.counts);
        out.counts.clear();
        self.usual_text.store(out.text.len(), Ordering::Relaxed);
        if let (Some(trace), Some(began)) = (&batch.trace, began) {
            trace.processed.get_or_init(|| (began, self.context.clock.now()));
        }
        // The slot is free for the next rows before the sink looks at these; but where records are large, only when they are written.
        let hold = (out.text.len() >= BYTES_AT_ONCE).then(|| Arc::clone(&batch.slot));
        if let (Some(sink), Some(first)) = (linear, out.done.first()) {
            let traced = batch.trace.as_ref().map(|trace| {
                let items = Arc::clone(&batch.slot.items);
                DoneRows::new(items, rows, failed_rows, out.done.clone(), Arc::clone(trace))
            });
            drop(batch);
            let (source, done, text) =
                (first.source, std::mem::take(&mut out.done), std::mem::take(&mut out.text));
            let finished = FinishedItems { source, sink, done, text, traced, hold };
            drop(self.sink.cast(SinkMsg::Finished(finished)));
        } else {
            drop(batch);
        }
        self.chain.send(&mut out);
        out.text.clear();
        lock().push((run, out));
    }

    fn row(
        &self,
        outputs: &[OutputRows<'_>],
        row: usize,
        token: &Token,
        run: &mut ChainRun,
        out: &mut Outcome,
    ) {
        let values: SmallVec<[Value<'_>; 4]> = outputs.iter().map(|o| Value::Tensor(o.row(row))).collect();
        let labels: Vec<Vec<Label<'_>>> = token.carried().iter().map(|value| value.labels()).collect();
        let carried: Vec<(ColumnRef, Value<'_>)> = self
            .carries
            .iter()
            .zip(token.carried().iter().zip(&labels))
            .map(|(read, (value, labels))| (*read, value.borrowed(labels)))
            .collect();
        let env = Env { from: Origin::Stage(self.stage), row: &values, carried: &carried, up: None };
        self.chain.row(run, token, &env, out, &mut NoHooks);
    }
}
