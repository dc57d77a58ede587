//! What becomes of a row of a source, of a batch or of a fold, up to the next batch, the next fold and the sinks: the maps in between run here,
//! one inside of the other, in the thread that made the row. It knows the shapes of stages and no kind.
//!
//! Whatever a chain does not hand on ends with it: the share of a token that was given to batches and folds is counted, and the rest is
//! reported to the ends of the pipeline, with the records or with the failure.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use orchestra_core::batch_layout::TensorSpan;
use orchestra_core::data::{ColumnType, ItemError};
use orchestra_core::lineage::End;
use orchestra_core::shapes::{
    Encoder, Leaves as _, Map, MapCount, MapRuns, Reduce, RowEnded, RowScope, Step, Walk,
};
use orchestra_core::{Failure, FailureKind, SinkId, StageId};
use orchestra_plan::{ColumnRef, Origin, Plan};
use ractor::ActorRef;
use smallvec::SmallVec;

mod build;
mod in_loader;
mod leaf;
mod outcome;
mod row_in_hand;

use build::ChainBuilder;
pub use in_loader::{SentRows, own_bytes};
pub use outcome::Outcome;
use outcome::RecordRange;
use row_in_hand::RowInHand;

use super::carried::CarriedArena;
use super::ends::Ends;
use super::fold_target::{FoldPart, FoldTarget};
use super::loader::ItemInHand;
use super::ticket::Ticket;
use super::token::{PartPath, Token};
use super::value_room::ValueRoom;
use crate::batch::slot_pool::{RowLease, SlotPool};
use crate::context::RunContext;
use crate::messages::{BatcherMsg, EndedRows, SinkRecord, TokenEnd};

#[derive(Clone)]
pub struct BatchTarget {
    pub stage: StageId,
    pub pool: Arc<SlotPool>,
    /// For what rows carry past it.
    pub carried: Arc<ValueRoom>,
    pub batcher: ActorRef<BatcherMsg>,
    /// The folds that must hear of a part that ends there.
    pub folds: Arc<[FoldTarget]>,
}

/// The batches and folds that exist already: those that come later in the order of the data.
#[derive(Default)]
pub struct ChainTargets {
    pub batches: Vec<BatchTarget>,
    pub folds: Vec<FoldTarget>,
    /// Where chains keep the pictures that are made in them, by what is at their head.
    pub pictures: Vec<(Origin, Arc<CarriedArena>)>,
}

impl ChainTargets {
    fn batch(&self, stage: StageId) -> Option<BatchTarget> {
        self.batches.iter().find(|target| target.stage == stage).cloned()
    }

    fn fold(&self, stage: StageId) -> Option<FoldTarget> {
        self.folds.iter().find(|target| target.stage == stage).cloned()
    }
}

/// The pictures that are made in the chain behind `origin` and carried on by a batch or a join.
pub fn kept_pictures(plan: &Plan, origin: Origin) -> Vec<ColumnRef> {
    let mut kept = Vec::new();
    for stage in &plan.stages {
        let is_new = |read: &ColumnRef| {
            plan.home_of(read.from) == origin && plan.column(*read).ty == ColumnType::Picture
        };
        for read in stage.passthrough_columns().copied().filter(is_new) {
            if !kept.contains(&read) {
                kept.push(read);
            }
        }
    }
    kept
}

pub struct Chain {
    pub context: Arc<RunContext>,
    pub ends: Arc<dyn Ends>,
    /// What reads the rows that enter; a leaf is its place among `leaves`.
    steps: Vec<Step>,
    /// In the order in which a row comes to them.
    pub maps: Vec<MapPlace>,
    leaves: Vec<ChainLeaf>,
    /// The one sink that all items end in, here, if nothing has to be counted.
    pub linear: Option<SinkId>,
    origin: Origin,
    /// Where pictures that are made here are kept, if some are.
    pictures: Option<Arc<CarriedArena>>,
    /// Taken before a row keeps its first picture if it keeps several: two rows with one picture each, both waiting for room for a second, would
    /// deadlock.
    keep_lock: Option<Mutex<()>>,
    /// A bound on what one row costs, in elements that are read or numbers that are printed; the most there is where it may have to wait.
    pub cost: usize,
}

/// A map, by what stands behind it.
pub struct MapPlace {
    pub stage: StageId,
    map: Arc<dyn Map>,
    leaves: Range<usize>,
    /// How many splits stand in front of it.
    n_splits: usize,
    /// The folds that must hear of a row that it makes nothing of.
    folds: Vec<FoldTarget>,
}

struct ChainLeaf {
    /// The stage that reads there; before a sink, the last one in front of it.
    stage: StageId,
    reads: Vec<ColumnRef>,
    /// Columns that a batch carries along for stages behind it.
    passthrough_columns: Vec<ColumnRef>,
    does: LeafAction,
    /// The folds that must hear of a row that does not get here, by how many splits it was in.
    folds: Vec<Vec<FoldTarget>>,
}

/// What a leaf does with a row.
enum LeafAction {
    Batch {
        target: BatchTarget,
        /// The placement among the columns that it reads that says what a row is trimmed to.
        trims: Option<ColumnRef>,
    },
    Fold(FoldTarget),
    Reduce(Arc<dyn Reduce>),
    Sink {
        sink: SinkId,
        encoder: Arc<dyn Encoder>,
    },
}

impl Chain {
    pub fn new(
        context: &Arc<RunContext>,
        ends: &Arc<dyn Ends>,
        origin: Origin,
        targets: &ChainTargets,
    ) -> Self {
        let plan = &context.plan;
        let mut builder = ChainBuilder { context, targets, origin, steps: Vec::new(), leaves: Vec::new() };
        builder.find_leaves();
        let ChainBuilder { mut steps, leaves: mut found, .. } = builder;
        debug_assert!(!steps.is_empty(), "a stage from which nothing is reached is left out of the plan");
        let arena = targets.pictures.iter().find(|(of, _)| *of == origin).map(|(_, arena)| Arc::clone(arena));
        let mut chain = Self {
            context: Arc::clone(context),
            ends: Arc::clone(ends),
            steps: Vec::new(),
            maps: Vec::new(),
            leaves: Vec::new(),
            linear: plan.linear_from(origin),
            origin,
            pictures: arena,
            keep_lock: (kept_pictures(plan, origin).len() > 1).then(Mutex::default),
            cost: usize::MAX,
        };
        chain.number(&mut steps, 0, &mut found);
        chain.steps = steps;
        // A thread that keeps a picture may have to wait.
        if chain.pictures.is_none() {
            chain.cost = chain.cost_of_row();
        }
        chain
    }

    /// Rows may have to wait for room here or behind a fold.
    pub fn may_wait(&self) -> bool {
        self.waits() || self.feeds_waiting_fold()
    }

    /// A thread may have to wait here, for a row of a batch or for room for a picture.
    pub fn waits(&self) -> bool {
        self.pictures.is_some()
            || self.leaves.iter().any(|leaf| matches!(leaf.does, LeafAction::Batch { .. }))
    }

    pub fn feeds_waiting_fold(&self) -> bool {
        self.leaves.iter().any(|leaf| matches!(&leaf.does, LeafAction::Fold(fold) if fold.may_wait))
    }

    /// The folds that wait for the rows that enter.
    pub fn folds(&self) -> Vec<FoldTarget> {
        self.folds_of(0..self.leaves.len(), 0)
    }

    /// The stage that is blamed for what goes wrong before the first map: the first that reads the rows.
    pub fn first_stage(&self) -> StageId {
        self.steps.first().map_or(StageId(0), |step| self.stage_of(step))
    }

    fn stage_of(&self, step: &Step) -> StageId {
        match step {
            Step::Map(map) => map.stage,
            Step::Leaf(leaf) => self.leaves[*leaf].stage,
        }
    }

    fn first_leaf(&self, step: &Step) -> usize {
        match step {
            Step::Map(map) => self.maps[map.at].leaves.start,
            Step::Leaf(leaf) => *leaf,
        }
    }

    /// Tells batches and folds that no further row will come from here.
    pub fn drained(&self) {
        for leaf in &self.leaves {
            match &leaf.does {
                // Those that are gone belong to a pipeline that is being torn down.
                LeafAction::Batch { target, .. } => drop(target.batcher.cast(BatcherMsg::Drained)),
                LeafAction::Fold(target) => target.fold.drained(),
                LeafAction::Reduce(_) | LeafAction::Sink { .. } => {}
            }
        }
    }

    /// Does everything that there is to do with a row. What became of it is added to `out`.
    pub fn row<'a>(
        &'a self,
        runs: &mut MapRuns,
        token: &Token,
        scope: &RowScope<'_>,
        out: &mut Outcome,
        item: Option<&mut ItemInHand<'a>>,
    ) {
        self.context.stats.first_items(scope.from).pass();
        self.with(token, out, item, |row| Walk { runs, leaves: row }.steps(&self.steps, scope));
    }

    /// The memory of the batch that each row comes to at once, where that is all that becomes of a row and takes no other room: then it may be
    /// claimed first.
    pub fn only_batch(&self) -> Option<&Arc<SlotPool>> {
        match (&self.steps[..], &self.leaves[..]) {
            (
                [Step::Leaf(0)],
                [
                    ChainLeaf {
                        does: LeafAction::Batch { target, trims: None }, passthrough_columns, ..
                    },
                ],
            ) if passthrough_columns.is_empty() => Some(&target.pool),
            _ => None,
        }
    }

    /// As `row`, of a whole item that takes this row of [`Chain::only_batch`].
    pub fn row_of<'a>(&'a self, lease: RowLease<'a>, token: &Token, scope: &RowScope<'_>, out: &mut Outcome) {
        self.context.stats.first_items(scope.from).pass();
        self.with(token, out, None, |row| {
            row.lease = Some(lease);
            Walk { runs: &mut MapRuns::default(), leaves: row }.steps(&self.steps, scope)
        });
    }

    /// The same batch, and which column of the source each of its inputs is, where all rows can be copied there as they are.
    pub fn batch_of_columns(&self) -> Option<(&Arc<SlotPool>, impl Iterator<Item = usize> + Clone)> {
        let pool = self.only_batch()?;
        let reads = &self.leaves[0].reads;
        let inputs = &pool.arena.layout().inputs;
        let is_same = |(read, input): (&ColumnRef, &TensorSpan)| {
            let tensor = self.context.plan.column(*read).ty.tensor();
            tensor.is_some_and(|tensor| tensor.dtype == input.tensor.dtype)
        };
        let all = reads.iter().zip(inputs).all(is_same) && reads.len() == inputs.len();
        all.then(|| (pool, reads.iter().map(|read| read.column)))
    }

    /// Publishes rows of [`Chain::batch_of_columns`] that are written, each of which is a whole item.
    pub fn publish(&self, lease: RowLease<'_>, first: &Ticket) {
        self.context.stats.first_items(self.origin).pass();
        if self.context.tracer.is_on() {
            let (stage, now) = (self.leaves[0].stage, self.context.clock.now());
            for at in 0..lease.n_rows() {
                first.behind(at).timeline().into_iter().for_each(|item| item.queued(stage, now));
            }
        }
        lease.publish_all(|at| Token::whole(first.behind(at)));
    }

    /// Has a row worked on, which belongs to `token`, and ends what was not handed on of it.
    fn with<'a>(
        &'a self,
        token: &Token,
        out: &mut Outcome,
        item: Option<&mut ItemInHand<'a>>,
        work: impl FnOnce(&mut RowInHand<'a, '_>) -> Result<(), RowEnded>,
    ) {
        let before = out.text.len();
        let mut row = RowInHand::new(self, token, out, item);
        if work(&mut row).is_err() && !row.is_void {
            debug_assert!(row.failure.is_some(), "why it is over is noted");
            row.fail_rest();
        }
        let RowInHand { handed, records, failure, failed_at, is_void, out, .. } = row;
        if is_void {
            return out.text.truncate(before);
        }
        if let Some(stage) = failed_at {
            self.context.stats.stage(stage).failed.add(1);
        }
        let share = token.share().minus(handed);
        match (failure, self.linear) {
            (None, Some(_)) => out.done.push(token.ticket.id()),
            (None, None) if share.is_none() && records.is_empty() => {}
            (None, None) => out.end(token, share, records, None),
            (Some(failure), _) if share.is_none() => {
                // All of it was handed on before: what becomes of that decides about the item.
                let (stage, error) = (failure.stage, failure.error);
                tracing::error!(%stage, %error, "a stage failed behind its last row, which cannot be taken back; this is a bug");
            }
            (failure @ Some(_), _) => {
                out.text.truncate(before);
                out.end(token, share, SmallVec::new(), failure);
            }
        }
    }

    /// Fails an item that its source could not read: the first stage gets none of it, and is named.
    pub fn fail_in_front(&self, token: &Token, item_error: ItemError, attempts: u32, out: &mut Outcome) {
        let (item, stage) = (token.ticket.id(), self.first_stage());
        self.context.stats.first_items(Origin::Source(item.source)).fail(item);
        self.context.stats.stage(stage).failed.add(1);
        let failure = Failure { attempts, ..self.failure(stage, item_error.kind, item_error.error) };
        self.end_failed(token, failure, out);
    }

    /// Fails a token at the stage that this chain begins behind.
    pub fn fail(&self, token: &Token, stage: StageId, item_error: ItemError, out: &mut Outcome) {
        self.with(token, out, None, |row| Err(row.fail(stage, item_error)));
    }

    /// Ends a token with a failure that is counted already.
    pub fn end_failed(&self, token: &Token, failure: Failure, out: &mut Outcome) {
        self.with(token, out, None, |row| {
            row.failure = Some(failure);
            Err(RowEnded)
        });
    }

    /// Ends a token in front of the chain, because it was dropped.
    pub fn end_dropped(&self, token: &Token, out: &mut Outcome) {
        self.with(token, out, None, |row| {
            let dropped = row.drop_at(&(0..self.leaves.len()), &self.folds(), None);
            dropped.map_err(|item_error| row.fail(self.first_stage(), item_error))
        });
    }

    /// Ends a token that the stage in front of the chain has dropped. It has not failed.
    pub fn drop_row(&self, token: &Token, out: &mut Outcome) {
        self.context.stats.first_items(self.origin).pass();
        self.end_dropped(token, out);
    }

    /// Ends a token in front of the chain, a part of which has failed: that failure is reported.
    pub fn end_with_failed_part(&self, token: &Token, out: &mut Outcome) {
        self.with(token, out, None, |row| {
            row.fail_rest();
            Ok(())
        });
    }

    fn failure(&self, stage: StageId, kind: FailureKind, error: String) -> Failure {
        let stage = self.context.plan.stages[stage.index()].name.clone();
        Failure { stage, kind, error, attempts: 1 }
    }

    /// Sends what became of some rows. What is left in it is [`Outcome::done`], which are in `whole` by now, and text of no record.
    pub fn send(&self, out: &mut Outcome) {
        for (fold, parts) in out.parts.drain(..) {
            fold.parts(parts);
        }
        out.n_failed = 0;
        let (whole, outputs) = (out.whole.take(), std::mem::take(&mut out.outputs));
        if out.ends.is_empty() && whole.is_none() && outputs.is_empty() {
            return;
        }
        let text = if out.ends.iter().all(|(_, end)| end.records.is_empty()) {
            Bytes::new()
        } else {
            Bytes::from(std::mem::take(&mut out.text))
        };
        let end = |(ticket, End { share, records, failure }): (Ticket, End<RecordRange>)| {
            let record = |r: RecordRange| SinkRecord { to: r.to, bytes: text.slice(r.bytes), file: r.file };
            let records = records.into_iter().map(record).collect();
            TokenEnd { ticket, end: End { share, records, failure } }
        };
        let tokens = out.ends.drain(..).map(end).collect();
        self.ends.ended(EndedRows { whole, tokens, outputs });
    }

    pub fn book(&self, counts: &[MapCount]) {
        for (place, count) in self.maps.iter().zip(counts) {
            let stats = self.context.stats.stage(place.stage);
            stats.entered.add(count.entered);
            stats.left.add(count.left);
        }
    }
}
