//! What follows a batch stage: the rows of a completed batch go through the chain behind the stage. A batch that takes a few microseconds is
//! worked on by the batcher itself; everything else, and everything that may have to wait, on threads of its own. It decides
//! nothing about retries.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use orchestra_core::data::{Column, ItemError, Label, OwnedValue, Value};
use orchestra_core::shapes::{FanOut, MapRuns, RowScope};
use orchestra_core::{Failure, FailureKind, StageId, locked};
use orchestra_plan::{ColumnRef, Origin};
use orchestra_worker::frames::{RowError, RowsWithoutOutputs, RunErrorKind};
use ractor::ActorRef;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::chain::{Chain, Outcome};
use super::fold_target::Credit;
use super::token::Token;
use crate::actor_threads::waiting_threads;
use crate::batch::completion::Completion;
use crate::batch::outputs::OutputRows;
use crate::flow::committer::BYTES_AT_ONCE;
use crate::messages::{CompletedBatch, PipelineMsg, RequestOutputs, SingleRecordItems};
use crate::panics::run_blocking;
use crate::trace::DoneRows;

/// What a worker gave for a row.
type OutputValues<'a> = SmallVec<[Value<'a>; 4]>;

/// Why rows of a batch have no outputs; `None`: they were dropped.
type WithoutOutputs = BTreeMap<usize, Option<ItemError>>;

pub struct Processor {
    work: Arc<ProcessorWork>,
    pipeline: ActorRef<PipelineMsg>,
    threads: Handle,
}

/// Output elements up to which a batch is quick: less than 100 µs of softmax and JSON.
const QUICK_ELEMENTS: usize = 16 * 1024;

impl Processor {
    pub fn new(stage: StageId, chain: Chain, pipeline: ActorRef<PipelineMsg>) -> Self {
        Self { work: Arc::new(ProcessorWork::new(stage, chain)), pipeline, threads: waiting_threads() }
    }
}

impl Completion for Processor {
    fn serving(&self) {
        self.work.chain.ends.serving(self.work.stage);
    }

    /// Has a batch worked on: here and now if it takes a few microseconds.
    fn completed(&self, batch: CompletedBatch) {
        if self.work.is_quick(&batch) {
            // A message, and the wait for its turn, would cost more than the work.
            self.work.process(batch);
            return;
        }
        // Bounded by the slots: a batch holds its slot until it has been worked on.
        self.work.open.fetch_add(1, Ordering::Relaxed);
        let work = Arc::clone(&self.work);
        run_blocking(&self.threads, &self.pipeline, "what follows a batch", move || {
            work.process(batch);
            work.close_one();
        });
    }

    /// A failure goes to the ends of the pipeline and, if it is that of a part, to those that wait for the part.
    fn failed(&self, token: &Token, failure: Failure) {
        let (chain, mut out) = (&self.work.chain, Outcome::default());
        chain.end_failed(token, failure, &mut out);
        chain.send(&mut out);
    }

    fn drained(&self) {
        self.work.close_one();
    }

    fn unusable(&self, why: String, kind: RunErrorKind) {
        drop(self.pipeline.cast(PipelineMsg::Unusable(why, kind)));
    }

    fn no_device(&self, why: String) {
        drop(self.pipeline.cast(PipelineMsg::NoDevice(why)));
    }
}

struct ProcessorWork {
    stage: StageId,
    chain: Chain,
    outputs: Vec<Column>,
    passthrough_columns: Vec<ColumnRef>,
    /// Whether its workers may drop rows.
    drops: bool,
    /// Folds behind it may keep its slots. Rows of several sizes need theirs: with fewer, batches are sent before they are full.
    lends_credit: bool,
    /// What threads that have done a batch keep for the next one.
    runs: Mutex<Vec<(MapRuns, Outcome)>>,
    /// Bytes of the records of the last batch.
    usual_text: AtomicUsize,
    /// Batches that are worked on by other threads, and one more for those that may still come.
    open: AtomicUsize,
}

impl ProcessorWork {
    fn new(stage: StageId, chain: Chain) -> Self {
        let plan = &chain.context.plan.stages[stage.index()];
        let outputs = plan.gives.0.clone();
        let passthrough_columns =
            plan.batch().map_or_else(Vec::new, |batch| batch.passthrough_columns.clone());
        let drops = plan.fan() == FanOut::AtMostOne;
        let is_trimmed = plan.batch().is_some_and(|batch| batch.trim.is_some());
        let lends_credit = chain.feeds_waiting_fold() && !is_trimmed;
        let (usual_text, open) = (AtomicUsize::new(0), AtomicUsize::new(1));
        Self {
            stage,
            chain,
            outputs,
            passthrough_columns,
            drops,
            lends_credit,
            runs: Mutex::default(),
            usual_text,
            open,
        }
    }

    /// The call that closes the last one passes the end on.
    fn close_one(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.chain.drained();
        }
    }

    /// The rows that have no outputs: why they have failed, or `None` where they were dropped.
    fn without_outputs(&self, batch: &CompletedBatch) -> Result<WithoutOutputs, String> {
        let RowsWithoutOutputs { dropped, failed } = &batch.without;
        let dropped = dropped.iter().map(|row| (*row, None));
        let without: BTreeMap<_, _> =
            dropped.chain(failed.iter().map(|failed| (failed.row, Some(item_error(failed))))).collect();
        match without.iter().find(|(row, why)| **row >= batch.rows.count || why.is_none() && !self.drops) {
            Some((row, Some(_))) => {
                Err(format!("its worker says that row {row} has failed, which it has not"))
            }
            Some((row, None)) => Err(format!("its worker has dropped row {row}, which it must not")),
            None => Ok(without),
        }
    }

    /// Whether the batch takes a few microseconds and cannot wait for anything.
    fn is_quick(&self, batch: &CompletedBatch) -> bool {
        self.chain.cost.saturating_mul(batch.rows.count) <= QUICK_ELEMENTS
    }

    fn process(&self, mut batch: CompletedBatch) {
        let began = batch.trace.as_ref().map(|_| self.chain.context.clock.now());
        let lock = || locked(&self.runs);
        let (mut runs, mut out) = lock().pop().unwrap_or_default();
        let given =
            batch.outputs(&self.outputs).and_then(|outputs| Ok((outputs, self.without_outputs(&batch)?)));
        let mut copies = vec![Vec::new(); self.outputs.len()];
        let linear = self.chain.linear;
        let usual_text = self.usual_text.load(Ordering::Relaxed);
        // A little more than last time, so that most batches fit.
        out.text.reserve(usual_text + usual_text / 16);
        out.credit = self.lends_credit.then(|| Arc::clone(&batch.slot) as Credit);
        let mut failed_rows = Vec::new();
        let (mut n_rows, mut n_failed, mut n_dropped) = (0, 0, 0);
        let mut rows = batch.rows.first..batch.rows.first + batch.rows.count;
        while let Some(row) = rows.next() {
            let Some(token) = batch.slot.tokens.get(row).and_then(Option::as_ref) else { continue };
            if let Ok((outputs, without)) = &given
                && token.ticket.asks_for_outputs()
                && let Some(given) = self.outputs_of_request(&batch, row, outputs, without)
            {
                n_rows += given.count as u64;
                rows.start += given.count - 1;
                out.outputs.push(given);
                continue;
            }
            n_rows += 1;
            if let (Some(trace), None, Some(item)) = (&batch.trace, linear, token.ticket.timeline()) {
                item.ran(trace); // Before the item can end.
            }
            let before = (out.done.len(), out.n_failed);
            let is_dropped =
                self.one_row(&given, row - batch.rows.first, token, &mut copies, (&mut runs, &mut out));
            n_dropped += u64::from(is_dropped);
            n_failed += out.n_failed - before.1;
            if linear.is_some() && out.done.len() == before.0 {
                if let (Some(trace), Some(item)) = (&batch.trace, token.ticket.timeline()) {
                    item.ran(trace);
                }
                failed_rows.push(row);
            }
        }
        drop(given);
        self.chain.context.stats.stage(self.stage).left.add(n_rows - n_failed as u64 - n_dropped);
        self.chain.book(&runs.counts);
        runs.counts.clear();
        self.usual_text.store(out.text.len(), Ordering::Relaxed);
        if let (Some(trace), Some(began)) = (&batch.trace, began) {
            trace.processed.get_or_init(|| (began, self.chain.context.clock.now()));
        }
        if linear.is_some() {
            self.pack_whole(&mut batch, failed_rows, &mut out);
        }
        drop(batch);
        self.chain.send(&mut out);
        out.credit = None;
        out.text.clear();
        lock().push((runs, out));
    }

    /// Takes a row on, or says why it ends here. Whether it was dropped.
    fn one_row(
        &self,
        given: &Result<(Vec<OutputRows<'_>>, WithoutOutputs), String>,
        at: usize,
        token: &Token,
        copies: &mut [Vec<u8>],
        (runs, out): (&mut MapRuns, &mut Outcome),
    ) -> bool {
        let given = match given {
            _ if token.ticket.is_withdrawn() => None,
            Ok((outputs, without)) => match without.get(&at) {
                None => Some(Ok(outputs)),
                Some(Some(item_error)) => Some(Err(item_error.clone())),
                Some(None) => None,
            },
            Err(error) => Some(Err(ItemError::result(error.clone()))),
        };
        match given {
            Some(Ok(outputs)) => {
                let values = outputs.iter().zip(copies).map(|(rows, copy)| rows.row(at, copy));
                self.row(&values.collect::<OutputValues<'_>>(), token, runs, out);
            }
            Some(Err(item_error)) => self.chain.fail(token, self.stage, item_error, out),
            None => {
                self.chain.drop_row(token, out);
                return true;
            }
        }
        false
    }

    /// What the batch has for the row, and for those behind it of the same request, as far as they have outputs of one shape.
    fn outputs_of_request(
        &self,
        batch: &CompletedBatch,
        row: usize,
        outputs: &[OutputRows<'_>],
        without: &WithoutOutputs,
    ) -> Option<RequestOutputs> {
        let (tokens, at) =
            (&batch.slot.tokens[row..batch.rows.first + batch.rows.count], row - batch.rows.first);
        let first = &tokens[0].as_ref()?.ticket;
        let is_next = |(n, token): &(usize, &Option<Token>)| {
            !without.contains_key(&(at + n))
                && token.as_ref().is_some_and(|token| token.ticket.is_behind(first, *n))
        };
        let count = tokens.iter().enumerate().take_while(is_next).count();
        let count = outputs.iter().fold(count, |count, output| output.alike(at, count));
        if count == 0 || first.is_withdrawn() {
            return None;
        }
        let columns = outputs.iter().map(|output| output.copy(at, count)).collect::<Option<_>>()?;
        if let Some(trace) = &batch.trace {
            let items = tokens[..count].iter().flatten().filter_map(|token| token.ticket.timeline());
            items.for_each(|item| item.ran(trace)); // Before the item can end.
        }
        Some(RequestOutputs { first: first.clone(), count, columns })
    }

    /// Packs the items that have ended in the only sink.
    fn pack_whole(&self, batch: &mut CompletedBatch, failed_rows: Vec<usize>, out: &mut Outcome) {
        let (Some(sink), Some(first)) = (self.chain.linear, out.done.first()) else { return };
        let source = first.source;
        let traced = batch.trace.as_ref().map(|trace| {
            let rows = batch.rows.first..batch.rows.first + batch.rows.count;
            DoneRows::new(Arc::clone(&batch.slot.tokens), rows, failed_rows, Arc::clone(trace))
        });
        // The slot is free for the next rows before these are looked at; but where records are large, only when they are
        // written.
        let hold = || Box::new((Arc::clone(&batch.slot), std::mem::take(&mut batch.open)));
        let hold = (out.text.len() >= BYTES_AT_ONCE).then(hold);
        let (done, text) = (std::mem::take(&mut out.done), std::mem::take(&mut out.text));
        out.whole = Some(SingleRecordItems { source, sink, done, text, traced, hold });
    }

    fn row(&self, values: &[Value<'_>], token: &Token, runs: &mut MapRuns, out: &mut Outcome) {
        let labels: SmallVec<[Vec<Label<'_>>; 2]> = token.carried().iter().map(OwnedValue::labels).collect();
        let carried: SmallVec<[(ColumnRef, Value<'_>); 2]> = self
            .passthrough_columns
            .iter()
            .zip(token.carried().iter().zip(&labels))
            .map(|(read, (value, labels))| (*read, value.borrowed(labels)))
            .collect();
        let scope = RowScope { from: Origin::Stage(self.stage), row: values, carried: &carried, up: None };
        self.chain.row(runs, token, &scope, out, None);
    }
}

fn item_error(RowError { kind, error, .. }: &RowError) -> ItemError {
    let kind = if *kind == RunErrorKind::TooLarge { FailureKind::TooLarge } else { FailureKind::Model };
    ItemError { kind, error: error.clone() }
}
