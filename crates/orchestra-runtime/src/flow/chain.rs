//! What becomes of a row of a source, of a batch or of a fold, up to the next batch, the next fold and the sinks: the maps in between run here,
//! one inside of the other, in the thread that made the row. It knows the shapes of stages and no kind.
//!
//! Whatever a chain does not hand on ends with it: the share of a token that was given to batches and folds is counted, and the rest is
//! reported to the item-ends actor, with the records or with the failure.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use orchestra_core::data::{ColumnType, Refusal, Value};
use orchestra_core::lineage::End;
use orchestra_core::shapes::{Encoder, KindSettings, Map, MapRun, Reduce};
use orchestra_core::{Failure, FailureKind, SinkId, StageId};
use orchestra_plan::{ColumnRef, Origin, Plan};
use ractor::ActorRef;
use smallvec::SmallVec;

mod build;
mod in_loader;
mod leaf;
mod outcome;
mod walk;

use build::{Builder, connect_folds, cost, start};
pub use in_loader::own_bytes;
pub use outcome::{MapCount, Outcome};
use outcome::{RecordRange, RowState, tell_dropped, tell_failed};
use walk::{Walk, too_many};

use super::carried::CarriedArena;
use super::fold_target::{FoldMsg, FoldPart, FoldTarget};
use super::ticket::Ticket;
use super::token::{PartPath, Token};
use crate::batch::slot_pool::SlotPool;
use crate::context::RunContext;
use crate::messages::{BatcherMsg, Ends, ItemEndsMsg, Record, TokenEnd};

#[derive(Clone)]
pub struct BatchTarget {
    pub stage: StageId,
    pub pool: Arc<SlotPool>,
    pub batcher: ActorRef<BatcherMsg>,
    /// The folds that must hear of a part that ends there.
    pub folds: Arc<[FoldTarget]>,
}

/// The batches and folds that exist already: those that come later in the order of the data.
#[derive(Default)]
pub struct Targets {
    pub batches: Vec<BatchTarget>,
    pub folds: Vec<FoldTarget>,
    /// Where chains keep the pictures that are made in them, by what is at their head.
    pub pictures: Vec<(Origin, Arc<CarriedArena>)>,
}

impl Targets {
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
        for read in stage.carries().copied().filter(is_new) {
            if !kept.contains(&read) {
                kept.push(read);
            }
        }
    }
    kept
}

pub struct Chain {
    pub context: Arc<RunContext>,
    pub ends: ActorRef<ItemEndsMsg>,
    steps: Vec<Step>,
    /// In the order of [`Outcome::counts`].
    pub maps: Vec<StageId>,
    /// The one sink that all items end in, here, if nothing has to be counted.
    pub linear: Option<SinkId>,
    /// The folds that wait for the rows that enter.
    pub folds: Arc<[FoldTarget]>,
    origin: Origin,
    /// Where pictures that are made here are kept, if some are.
    pictures: Option<Arc<CarriedArena>>,
    /// Taken before a row keeps its first picture if it keeps several: two rows with one picture each, both waiting for room for a second, would
    /// deadlock.
    keep_lock: Option<Mutex<()>>,
    /// A bound on what one row costs, in elements that are read or numbers that are printed; the most there is where it may have to wait.
    pub cost: usize,
}

enum Step {
    Map(MapStep),
    Batch {
        target: BatchTarget,
        reads: Vec<ColumnRef>,
        carries: Vec<ColumnRef>,
        /// The placement among `reads` that says what a row is trimmed to.
        trims: Option<ColumnRef>,
    },
    Fold {
        fold: FoldTarget,
        reads: Vec<ColumnRef>,
    },
    Reduce {
        stage: StageId,
        reads: Vec<ColumnRef>,
        reduce: Arc<dyn Reduce>,
    },
    Sink {
        sink: SinkId,
        from: StageId,
        reads: Vec<ColumnRef>,
        encoder: Arc<dyn Encoder>,
    },
}

struct MapStep {
    stage: StageId,
    /// Its place among the maps of the chain.
    at: usize,
    map: Arc<dyn Map>,
    /// What a loader process needs to run it, where that may.
    in_loader: Option<KindSettings>,
    reads: Vec<ColumnRef>,
    next: Vec<Step>,
    /// The folds that must hear of a row that ends here.
    folds: Vec<FoldTarget>,
    /// The folds that must hear of the rows that are made here.
    inner_folds: Vec<FoldTarget>,
}

pub struct ChainRun {
    runs: Vec<StepRun>,
}

struct StepRun {
    /// Only maps have one.
    map: Option<Box<dyn MapRun>>,
    next: Vec<StepRun>,
}

/// A row and the rows that it was made of, innermost first: what the stages behind it can read.
#[derive(Clone, Copy)]
pub struct RowScope<'a> {
    pub from: Origin,
    pub row: &'a [Value<'a>],
    pub carried: &'a [(ColumnRef, Value<'a>)],
    pub up: Option<&'a RowScope<'a>>,
}

impl<'a> RowScope<'a> {
    pub fn get(&self, read: ColumnRef) -> Option<Value<'a>> {
        let mut at = Some(self);
        while let Some(scope) = at {
            if scope.from == read.from {
                return scope.row.get(read.column).copied();
            }
            if let Some((_, value)) = scope.carried.iter().find(|(column, _)| *column == read) {
                return Some(*value);
            }
            at = scope.up;
        }
        None
    }
}

/// What a thread that runs chains is told on the way.
pub trait Hooks {
    /// The first row of the item is about to be handed on, and what it took to load it ends. `false`: it was given up meanwhile, and nothing is
    /// to be done with it.
    fn leaves_loading(&mut self) -> bool {
        true
    }

    /// So long was waited for a free row, or for room.
    fn waited(&mut self, time: Duration) {
        let _ = time;
    }
}

pub struct NoHooks;

impl Hooks for NoHooks {}

impl Chain {
    pub fn new(
        context: &Arc<RunContext>,
        ends: &ActorRef<ItemEndsMsg>,
        origin: Origin,
        targets: &Targets,
    ) -> Self {
        let plan = &context.plan;
        let mut builder = Builder { context, targets, origin, maps: Vec::new(), steps: Vec::new() };
        builder.leaves();
        debug_assert!(
            !builder.steps.is_empty(),
            "a stage from which nothing is reached is left out of the plan"
        );
        let linear = plan.linear_from(origin);
        let Builder { maps, mut steps, .. } = builder;
        let folds = connect_folds(&mut steps).into();
        if let Origin::Source(_) = origin {
            in_loader::mark(plan, &mut steps, &mut vec![origin]);
        }
        let pictures =
            targets.pictures.iter().find(|(of, _)| *of == origin).map(|(_, arena)| Arc::clone(arena));
        let keep_lock = (kept_pictures(plan, origin).len() > 1).then(Mutex::default);
        // A thread that keeps a picture may have to wait.
        let cost = if pictures.is_some() { usize::MAX } else { cost(&steps, context) };
        let context = Arc::clone(context);
        Self { context, ends: ends.clone(), steps, maps, linear, folds, origin, pictures, keep_lock, cost }
    }

    pub fn start(&self) -> ChainRun {
        ChainRun { runs: start(&self.steps) }
    }

    /// The stage that is blamed for what goes wrong before the first map: the first that reads the rows.
    pub fn first_stage(&self) -> StageId {
        match self.steps.first() {
            Some(Step::Map(map)) => map.stage,
            Some(Step::Batch { target, .. }) => target.stage,
            Some(Step::Fold { fold, .. }) => fold.stage,
            Some(Step::Reduce { stage, .. }) => *stage,
            Some(Step::Sink { from, .. }) => *from,
            None => StageId(0),
        }
    }

    /// Tells batches and folds that no further row will come from here.
    pub fn drained(&self) {
        fn each(steps: &[Step]) {
            for step in steps {
                match step {
                    Step::Map(map) => each(&map.next),
                    // Those that are gone belong to a pipeline that is being torn down.
                    Step::Batch { target, .. } => drop(target.batcher.cast(BatcherMsg::Drained)),
                    Step::Fold { fold, .. } => drop(fold.actor.cast(FoldMsg::Drained)),
                    Step::Reduce { .. } | Step::Sink { .. } => {}
                }
            }
        }
        each(&self.steps);
    }

    /// Does everything that there is to do with a row. What became of it is added to `out`.
    pub fn row(
        &self,
        run: &mut ChainRun,
        token: &Token,
        scope: &RowScope<'_>,
        out: &mut Outcome,
        hooks: &mut dyn Hooks,
    ) {
        self.context.stats.first_items(scope.from).pass();
        out.counts.resize(self.maps.len(), MapCount::default());
        out.row = RowState::default();
        let before = out.text.len();
        let share = token.share();
        let mut walk = Walk { chain: self, out, hooks, keeping: None };
        if walk.steps(&self.steps, &mut run.runs, token, share, scope).is_err() {
            debug_assert!(out.row.failure.is_some() || out.row.is_void, "why it is over is noted");
        }
        let row = std::mem::take(&mut out.row);
        if row.is_void {
            return out.text.truncate(before);
        }
        if let Some(stage) = row.failed_at {
            self.context.stats.stage(stage).failed.add(1);
        }
        let share = row.handed.map_or(share, |handed| share.minus(handed));
        match (row.failure, self.linear) {
            (None, Some(_)) => out.done.push(token.ticket.id()),
            (None, None) if share.is_none() && row.records.is_empty() => {}
            (None, None) => out.end(token, share, row.records, None),
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
    pub fn fail_in_front(&self, token: &Token, refusal: Refusal, attempts: u32, out: &mut Outcome) {
        let item = token.ticket.id();
        self.context.stats.first_items(Origin::Source(item.source)).fail(item);
        self.fail_at(token, self.first_stage(), refusal, attempts, out);
    }

    /// Fails a token at the stage that this chain begins behind, or at the first one.
    pub fn fail(&self, token: &Token, stage: StageId, refusal: Refusal, attempts: u32, out: &mut Outcome) {
        self.context.stats.stage(stage).first_items.fail(token.ticket.id());
        self.fail_at(token, stage, refusal, attempts, out);
    }

    fn fail_at(&self, token: &Token, stage: StageId, refusal: Refusal, attempts: u32, out: &mut Outcome) {
        self.context.stats.stage(stage).failed.add(1);
        let failure = Failure { attempts, ..self.failure(stage, refusal.kind, refusal.error) };
        self.end_failed(token, failure, out);
    }

    /// Ends a token with a failure that is counted already.
    pub fn end_failed(&self, token: &Token, failure: Failure, out: &mut Outcome) {
        tell_failed(&self.folds, token, token.path(), out);
        out.end(token, token.share(), SmallVec::new(), Some(failure));
    }

    /// Ends a token in front of the chain, because it was dropped.
    pub fn end_dropped(&self, token: &Token, out: &mut Outcome) {
        if self.folds.is_empty() {
            return out.end(token, token.share(), SmallVec::new(), None);
        }
        if tell_dropped(&self.folds, token, token.path(), token.share(), out).is_none() {
            self.fail(token, self.first_stage(), too_many(), 1, out);
        }
    }

    /// Ends a token in front of the chain, a part of which has failed: that failure is reported.
    pub fn end_with_failed_part(&self, token: &Token, out: &mut Outcome) {
        tell_failed(&self.folds, token, token.path(), out);
        if !token.share().is_none() {
            out.end(token, token.share(), SmallVec::new(), None);
        }
    }

    fn failure(&self, stage: StageId, kind: FailureKind, error: String) -> Failure {
        let stage = self.context.plan.stages[stage.index()].name.clone();
        Failure { stage, kind, error, attempts: 1 }
    }

    /// Sends what became of some rows. What is left in it is [`Outcome::done`], which are in `whole` by now, the counts, which the caller books, and text of
    /// no record.
    pub fn send(&self, out: &mut Outcome) {
        for (fold, parts) in out.parts.drain(..) {
            drop(fold.cast(FoldMsg::Parts(parts)));
        }
        out.n_failed = 0;
        let whole = out.whole.take();
        if out.ends.is_empty() && whole.is_none() {
            return;
        }
        let text = if out.ends.iter().all(|(_, end)| end.records.is_empty()) {
            Bytes::new()
        } else {
            Bytes::from(std::mem::take(&mut out.text))
        };
        let end = |(ticket, End { share, records, failure }): (Ticket, End<RecordRange>)| {
            let record = |r: RecordRange| Record { to: r.to, bytes: text.slice(r.bytes), file: r.file };
            let records = records.into_iter().map(record).collect();
            TokenEnd { ticket, end: End { share, records, failure } }
        };
        let tokens = out.ends.drain(..).map(end).collect();
        drop(self.ends.cast(ItemEndsMsg::Ends(Ends { whole, tokens })));
    }

    pub fn book(&self, counts: &[MapCount]) {
        for (stage, count) in self.maps.iter().zip(counts) {
            let stats = self.context.stats.stage(*stage);
            stats.entered.add(count.entered);
            stats.left.add(count.left);
        }
    }
}

impl Step {
    /// The folds that must hear of a row that ends before this step.
    fn folds(&self) -> &[FoldTarget] {
        match self {
            Step::Map(map) => &map.folds,
            Step::Batch { target, .. } => &target.folds,
            Step::Fold { fold, .. } => std::slice::from_ref(fold),
            Step::Reduce { .. } | Step::Sink { .. } => &[],
        }
    }
}
