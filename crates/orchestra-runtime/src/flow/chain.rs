//! What becomes of a row of a source, of a batch or of a fold, up to the next batch, the next fold and the sinks: the maps in between run here,
//! one inside of the other, in the thread that made the row. It knows the shapes of stages and no kind.
//!
//! Whatever a chain does not hand on ends with it: the share of a token that was given to batches and folds is counted, and the rest is
//! reported to the sink, with the records or with the failure.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use orchestra_core::collect::{Arrival, Part};
use orchestra_core::data::{OwnedRow, OwnedValue, Refusal, TensorView, Value};
use orchestra_core::lineage::{End, Share};
use orchestra_core::shapes::{Emit, Encoder, Fan, ItemInfo, Map, MapRun};
use orchestra_core::{Failure, FailureKind, ItemId, SinkId, StageId};
use orchestra_plan::{ColumnRef, Origin, Shape, SinkPlan};
use ractor::ActorRef;
use smallvec::SmallVec;

use super::carried::CarriedArena;
use super::fold::{FoldMsg, FoldPart};
use super::token::{PartPath, Token};
use crate::context::RunContext;
use crate::messages::{BatcherMsg, Record, SinkMsg, TokenEnd};
use crate::slot_pool::SlotPool;

/// A batch stage, for what feeds it.
#[derive(Clone)]
pub struct BatchTarget {
    /// Which.
    pub stage: StageId,
    /// Its slots.
    pub pool: Arc<SlotPool>,
    /// The pictures that its rows carry along.
    pub carried: Option<Arc<CarriedArena>>,
    /// Gives out its batches.
    pub batcher: ActorRef<BatcherMsg>,
    /// Who must hear of a part that ends there.
    pub folds: Arc<[ActorRef<FoldMsg>]>,
}

/// The batches and folds that exist already: those that come later in the order of the data.
#[derive(Default)]
pub struct Targets {
    /// Batch stages.
    pub batches: Vec<BatchTarget>,
    /// Folds.
    pub folds: Vec<(StageId, ActorRef<FoldMsg>)>,
}

impl Targets {
    fn batch(&self, stage: StageId) -> Option<BatchTarget> {
        self.batches.iter().find(|target| target.stage == stage).cloned()
    }

    /// The folds that must hear of a part which ends at `stage`.
    pub fn folds_behind(&self, context: &RunContext, stage: StageId) -> Vec<ActorRef<FoldMsg>> {
        let behind = context.plan.folds_behind(stage);
        self.folds.iter().filter(|(fold, _)| behind.contains(fold)).map(|(_, actor)| actor.clone()).collect()
    }
}

/// See the module.
pub struct Chain {
    context: Arc<RunContext>,
    sink: ActorRef<SinkMsg>,
    steps: Vec<Step>,
    /// Maps, in the order of their `at`.
    maps: Vec<StageId>,
    /// The one sink that all items end in, here, if nothing has to be counted.
    linear: Option<SinkId>,
    cost: usize,
}

enum Step {
    Map(MapStep),
    Batch { target: BatchTarget, reads: Vec<ColumnRef>, carries: Vec<ColumnRef> },
    Fold { stage: StageId, fold: ActorRef<FoldMsg>, reads: Vec<ColumnRef> },
    Sink { sink: SinkId, from: StageId, columns: usize, encoder: Arc<dyn Encoder> },
}

struct MapStep {
    stage: StageId,
    /// Its place among the maps of the chain.
    at: usize,
    map: Arc<dyn Map>,
    reads: Vec<ColumnRef>,
    next: Vec<Step>,
    /// Who must hear of a part that ends here.
    folds: Vec<ActorRef<FoldMsg>>,
    /// Who must hear of the parts that are made here.
    inner_folds: Vec<ActorRef<FoldMsg>>,
}

/// What one thread needs to run a chain.
pub struct ChainRun {
    runs: Vec<StepRun>,
}

struct StepRun {
    /// Only maps have one.
    map: Option<Box<dyn MapRun>>,
    next: Vec<StepRun>,
}

/// The rows that a row was made of, innermost first.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// Who gave the row.
    pub from: Origin,
    /// Its columns.
    pub row: &'a [Value<'a>],
    /// Columns that came along with it.
    pub carried: &'a [(ColumnRef, Value<'a>)],
    /// What it was made of.
    pub up: Option<&'a Env<'a>>,
}

impl<'a> Env<'a> {
    /// A column of any of these rows.
    #[must_use]
    pub fn get(&self, read: ColumnRef) -> Option<Value<'a>> {
        let mut at = Some(self);
        while let Some(env) = at {
            if env.from == read.from {
                return env.row.get(read.column).copied();
            }
            if let Some((_, value)) = env.carried.iter().find(|(column, _)| *column == read) {
                return Some(*value);
            }
            at = env.up;
        }
        None
    }
}

/// What a thread that runs chains is told on the way.
pub trait Hooks {
    /// The first row of the item is about to be handed on. `false`: it was given up meanwhile, and nothing is to be done with it.
    fn arrived(&mut self) -> bool {
        true
    }

    /// So long was waited for a free row, or for room.
    fn waited(&mut self, time: Duration) {
        let _ = time;
    }
}

/// For threads that need not be told.
pub struct NoHooks;

impl Hooks for NoHooks {}

/// What became of some rows, until it is sent.
#[derive(Default)]
pub struct Outcome {
    /// Items that have ended in the only sink, in the order of their records.
    pub done: Vec<ItemId>,
    /// All records.
    pub text: Vec<u8>,
    ends: Vec<RowEnd>,
    n_failed: usize,
    parts: Vec<(ActorRef<FoldMsg>, Vec<FoldPart>)>,
    /// Rows that entered and left each map of the chain.
    pub counts: SmallVec<[MapCount; 2]>,
    row: RowState,
}

/// How many rows a map has taken and given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MapCount {
    /// Taken.
    pub entered: u64,
    /// Given.
    pub left: u64,
}

struct RowEnd {
    token: Token,
    share: Share,
    records: SmallVec<[(SinkId, Range<usize>); 1]>,
    failure: Option<Failure>,
}

/// Of the row in hand.
#[derive(Default)]
struct RowState {
    handed: Option<Share>,
    records: SmallVec<[(SinkId, Range<usize>); 1]>,
    failure: Option<Failure>,
    failed_at: Option<StageId>,
    has_arrived: bool,
    /// The pipeline is being torn down, or the item was given up: nothing is said of it.
    is_void: bool,
}

/// What is said of an item where our own code fell over.
const BUG: &str = "internal error while the item was worked on; this is a bug";

impl Chain {
    /// What follows `origin` in its pipeline.
    #[must_use]
    pub fn new(
        context: &Arc<RunContext>,
        sink: &ActorRef<SinkMsg>,
        origin: Origin,
        targets: &Targets,
    ) -> Self {
        let plan = &context.plan;
        let mut builder = Builder { context, targets, origin, maps: Vec::new(), steps: Vec::new() };
        let mut has_leaf = false;
        for (id, stage) in (0..).map(StageId).zip(&plan.stages).filter(|(_, stage)| stage.home == origin) {
            has_leaf |= builder.stage_leaf(id, &stage.runs);
        }
        for (id, sink) in (0..).map(SinkId).zip(&plan.sinks) {
            if plan.home_of(Origin::Stage(sink.from)) == origin {
                builder.sink_leaf(id, sink);
                has_leaf = true;
            }
        }
        debug_assert!(has_leaf, "a stage from which nothing is reached is left out of the plan");
        let pipeline = match origin {
            Origin::Source(source) => plan.sources[source.index()].pipeline,
            Origin::Stage(stage) => plan.stages[stage.index()].pipeline,
        };
        // Only where the chain leads to the sink, and in the groups of a batch: what a loader has done is one item.
        let ends_here = |sink: &SinkId| {
            let from = Origin::Stage(plan.sinks[sink.index()].from);
            origin.stage().is_some() && plan.home_of(from) == origin
        };
        let linear = plan.pipelines[pipeline.index()].linear.filter(ends_here);
        let Builder { maps, steps, .. } = builder;
        let cost = cost(&steps, context);
        Self {
            context: Arc::clone(context),
            sink: sink.clone(),
            steps,
            maps,
            linear,
            cost,
        }
    }

    /// Runs it in one more thread.
    #[must_use]
    pub fn start(&self) -> ChainRun {
        ChainRun { runs: start(&self.steps) }
    }

    /// The one sink of all items, if nothing has to be counted.
    #[must_use]
    pub fn linear(&self) -> Option<SinkId> {
        self.linear
    }

    /// A bound on what one row costs, in elements that are read or numbers that are printed; the most there is where it may have to wait.
    #[must_use]
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// The maps of the chain, in the order of [`Outcome::counts`].
    #[must_use]
    pub fn maps(&self) -> &[StageId] {
        &self.maps
    }

    /// The stage that is blamed for what goes wrong before the first map: the first that reads the rows.
    #[must_use]
    pub fn first_stage(&self) -> StageId {
        match self.steps.first() {
            Some(Step::Map(map)) => map.stage,
            Some(Step::Batch { target, .. }) => target.stage,
            Some(Step::Fold { stage, .. }) => *stage,
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
                    Step::Fold { fold, .. } => drop(fold.cast(FoldMsg::Drained)),
                    Step::Sink { .. } => {}
                }
            }
        }
        each(&self.steps);
    }

    /// Does everything that there is to do with a row. `Ok` where it went on or ended well.
    pub fn row(
        &self,
        run: &mut ChainRun,
        token: &Token,
        env: &Env<'_>,
        out: &mut Outcome,
        hooks: &mut dyn Hooks,
    ) {
        out.counts.resize(self.maps.len(), MapCount::default());
        out.row = RowState::default();
        let before = out.text.len();
        let share = token.share();
        let mut walk = Walk { chain: self, token, out, hooks };
        if walk.steps(&self.steps, &mut run.runs, token, share, env).is_err() {
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
            (None, None) => {
                let token = token.clone();
                out.ends.push(RowEnd { token, share, records: row.records, failure: None });
            }
            (failure @ Some(_), _) => {
                out.text.truncate(before);
                out.n_failed += 1;
                let token = token.clone();
                out.ends.push(RowEnd { token, share, records: SmallVec::new(), failure });
            }
        }
    }

    /// Fails a token before its first map.
    pub fn fail(&self, token: &Token, stage: StageId, refusal: Refusal, out: &mut Outcome) {
        self.context.stats.stage(stage).failed.add(1);
        let failure = self.failure(stage, refusal.kind, refusal.error);
        let share = token.share();
        for step in &self.steps {
            tell(step.folds(), token, token.path(), Arrival::Failed, Share::NONE, out);
        }
        out.n_failed += 1;
        out.ends.push(RowEnd {
            token: token.clone(),
            share,
            records: SmallVec::new(),
            failure: Some(failure),
        });
    }

    fn failure(&self, stage: StageId, kind: FailureKind, error: String) -> Failure {
        let stage = self.context.plan.stages[stage.index()].name.clone();
        Failure { stage, kind, error, attempts: 1 }
    }

    /// Sends what became of some rows but for [`Outcome::done`], and empties it.
    pub fn send(&self, out: &mut Outcome) {
        for (fold, parts) in out.parts.drain(..) {
            drop(fold.cast(FoldMsg::Parts(parts)));
        }
        out.n_failed = 0;
        if out.ends.is_empty() {
            return;
        }
        let text = if out.ends.iter().all(|end| end.records.is_empty()) {
            Bytes::new()
        } else {
            Bytes::from(std::mem::take(&mut out.text))
        };
        let end = |RowEnd { token, share, records, failure }: RowEnd| {
            let record = |(sink, line): (SinkId, Range<usize>)| Record { sink, line: text.slice(line) };
            let records = records.into_iter().map(record).collect();
            TokenEnd { ticket: token.ticket, end: End { share, records, failure } }
        };
        let ends: Vec<TokenEnd> = out.ends.drain(..).map(end).collect();
        drop(self.sink.cast(SinkMsg::Ends(ends)));
    }

    /// Adds what maps have taken and given to the counters of the run.
    pub fn book(&self, counts: &[MapCount]) {
        for (stage, count) in self.maps.iter().zip(counts) {
            let stats = self.context.stats.stage(*stage);
            stats.entered.add(count.entered);
            stats.left.add(count.left);
        }
    }
}

impl Step {
    /// Who must hear of a part that ends before this step.
    fn folds(&self) -> &[ActorRef<FoldMsg>] {
        match self {
            Step::Map(map) => &map.folds,
            Step::Batch { target, .. } => &target.folds,
            Step::Fold { fold, .. } => std::slice::from_ref(fold),
            Step::Sink { .. } => &[],
        }
    }
}

/// Tells folds what became of a part; the first of them gets its share.
fn tell(
    folds: &[ActorRef<FoldMsg>],
    token: &Token,
    path: &[Part],
    arrival: Arrival<OwnedRow>,
    mut share: Share,
    out: &mut Outcome,
) {
    if path.is_empty() {
        return;
    }
    for fold in folds {
        let token = Token::new(token.ticket.clone(), share, path.into(), Vec::new());
        share = Share::NONE;
        out.part(fold, FoldPart { token, arrival: arrival.clone() });
    }
}

impl Outcome {
    fn part(&mut self, fold: &ActorRef<FoldMsg>, part: FoldPart) {
        match self.parts.iter_mut().find(|(to, _)| to.get_id() == fold.get_id()) {
            Some((_, parts)) => parts.push(part),
            None => self.parts.push((fold.clone(), vec![part])),
        }
    }

    /// Rows that have failed since the last `send`.
    #[must_use]
    pub fn n_failed(&self) -> usize {
        self.n_failed
    }
}

struct Builder<'a> {
    context: &'a Arc<RunContext>,
    targets: &'a Targets,
    origin: Origin,
    maps: Vec<StageId>,
    steps: Vec<Step>,
}

impl Builder<'_> {
    /// Adds a batch stage or a fold. Gives whether it is one.
    fn stage_leaf(&mut self, stage: StageId, runs: &Shape) -> bool {
        let reads = self.context.plan.stages[stage.index()].reads.clone();
        let leaf = match runs {
            Shape::Map(_) => return false,
            Shape::Batch(infer) => self.targets.batch(stage).map(|target| {
                let carries = infer.carries.clone();
                Step::Batch { target, reads, carries }
            }),
            Shape::Fold { .. } => {
                let fold = self.targets.folds.iter().find(|(fold, _)| *fold == stage);
                fold.map(|(_, fold)| Step::Fold { stage, fold: fold.clone(), reads })
            }
        };
        if let Some(leaf) = leaf {
            self.leaf(Origin::Stage(stage), leaf);
        }
        true
    }

    fn sink_leaf(&mut self, id: SinkId, sink: &SinkPlan) {
        let columns = self.context.plan.gives(Origin::Stage(sink.from)).0.len();
        let encoder = Arc::clone(&sink.encoder);
        self.leaf(Origin::Stage(sink.from), Step::Sink { sink: id, from: sink.from, columns, encoder });
    }

    /// Puts a leaf behind the maps that it is made of, each inside of the one before. Leaves with the same maps in front share them.
    fn leaf(&mut self, of: Origin, leaf: Step) {
        let plan = &self.context.plan;
        // Stages stand after what they read from, so the order of their numbers is that of the data.
        let maps = plan.ancestors(of).into_iter().filter_map(Origin::stage).filter(|stage| {
            let stage = &plan.stages[stage.index()];
            stage.home == self.origin && matches!(stage.runs, Shape::Map(_))
        });
        let mut steps = &mut self.steps;
        for stage in maps {
            let known = steps.iter().position(|step| matches!(step, Step::Map(map) if map.stage == stage));
            let at = known.unwrap_or_else(|| {
                let Shape::Map(map) = &plan.stages[stage.index()].runs else {
                    unreachable!("only maps were taken above")
                };
                let readers = (0..).map(StageId).zip(&plan.stages);
                let readers = readers.filter(|(_, s)| s.from.contains(&Origin::Stage(stage)));
                let inner = match map.fan() {
                    Fan::Parts => readers
                        .flat_map(|(reader, _)| self.targets.folds_behind(self.context, reader))
                        .fold(Vec::new(), |mut all: Vec<ActorRef<FoldMsg>>, fold| {
                            if all.iter().all(|known| known.get_id() != fold.get_id()) {
                                all.push(fold);
                            }
                            all
                        }),
                    Fan::One | Fan::AtMostOne => Vec::new(),
                };
                let place = self.maps.len();
                self.maps.push(stage);
                steps.push(Step::Map(MapStep {
                    stage,
                    at: place,
                    map: Arc::clone(map),
                    reads: plan.stages[stage.index()].reads.clone(),
                    next: Vec::new(),
                    folds: self.targets.folds_behind(self.context, stage),
                    inner_folds: inner,
                }));
                steps.len() - 1
            });
            let Step::Map(map) = &mut steps[at] else { unreachable!("the step at hand is a map") };
            steps = &mut map.next;
        }
        steps.push(leaf);
    }
}

fn start(steps: &[Step]) -> Vec<StepRun> {
    let run = |step: &Step| match step {
        Step::Map(map) => StepRun { map: Some(map.map.start()), next: start(&map.next) },
        _ => StepRun { map: None, next: Vec::new() },
    };
    steps.iter().map(run).collect()
}

fn cost(steps: &[Step], context: &RunContext) -> usize {
    let of = |step: &Step| match step {
        Step::Map(map) => map.map.cost().saturating_add(cost(&map.next, context)),
        Step::Batch { .. } => usize::MAX,
        Step::Fold { .. } => 64,
        Step::Sink { from, .. } => {
            // Records of whole tensors print every number. What a map gives has its cost there.
            let printed = |read: &orchestra_core::data::Column| match read.ty.stored() {
                Some(tensor) => tensor.row_len().unwrap_or(usize::MAX).saturating_mul(17),
                None => 0,
            };
            let gives = context.plan.gives(Origin::Stage(*from));
            gives.0.iter().map(printed).fold(0, usize::saturating_add)
        }
    };
    steps.iter().map(of).fold(0, usize::saturating_add)
}

/// A row on its way through a chain.
struct Walk<'a, 'o> {
    chain: &'a Chain,
    /// What came in: whose item it is.
    token: &'a Token,
    out: &'o mut Outcome,
    hooks: &'o mut dyn Hooks,
}

/// The row is over; why is noted in `Outcome::row`.
#[derive(Debug)]
struct Over;

impl From<Over> for Refusal {
    /// For maps to pass on.
    fn from(_: Over) -> Refusal {
        Refusal::result("")
    }
}

impl Walk<'_, '_> {
    /// Takes a row to all that read it.
    fn steps(
        &mut self,
        steps: &[Step],
        runs: &mut [StepRun],
        token: &Token,
        share: Share,
        env: &Env<'_>,
    ) -> Result<(), Over> {
        let mut left = share;
        for (n, (step, run)) in steps.iter().zip(runs).enumerate() {
            let branches = steps.len() - n;
            let mine = if branches == 1 {
                left
            } else {
                // Cut as if all of the branches that are left got as much; the last one takes what remains.
                let mut rest = left;
                let Some(mine) = rest.cut(branches) else {
                    return Err(self.fail_steps(&steps[n..], token, self.chain.first_stage(), too_many()));
                };
                left = left.minus(mine);
                mine
            };
            if let Err(over) = self.step(step, run, token, mine, env) {
                for step in &steps[n + 1..] {
                    tell(step.folds(), self.token, token.path(), Arrival::Failed, Share::NONE, self.out);
                }
                return Err(over);
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        step: &Step,
        run: &mut StepRun,
        token: &Token,
        share: Share,
        env: &Env<'_>,
    ) -> Result<(), Over> {
        if let Step::Map(map) = step {
            return self.map(map, run, token, share, env);
        }
        let leaf = catch_unwind(AssertUnwindSafe(|| self.leaf(step, token, share, env)));
        leaf.unwrap_or_else(|_| {
            let stage = self.chain.first_stage();
            Err(self.fail(step.folds(), token, stage, bug()))
        })
    }

    fn leaf(&mut self, step: &Step, token: &Token, share: Share, env: &Env<'_>) -> Result<(), Over> {
        match step {
            Step::Map(_) => Ok(()),
            Step::Batch { target, reads, carries } => {
                self.arrive()?;
                self.batch(target, reads, carries, token, share, env)
            }
            Step::Fold { stage, fold, reads } => {
                self.arrive()?;
                let row: Result<OwnedRow, Refusal> = reads
                    .iter()
                    .map(|read| OwnedValue::copy_of(&env.get(*read).ok_or_else(missing)?))
                    .collect();
                match row {
                    Ok(row) => {
                        self.hand(share);
                        let token =
                            Token::new(token.ticket.clone(), share, token.path().into(), Vec::new());
                        self.out.part(fold, FoldPart { token, arrival: Arrival::Row(row) });
                        Ok(())
                    }
                    Err(refusal) => Err(self.fail(std::slice::from_ref(fold), token, *stage, refusal)),
                }
            }
            Step::Sink { sink, from, columns, encoder } => {
                self.arrive()?;
                let begin = self.out.text.len();
                let encoded = self.record(*from, *columns, &**encoder, token, env);
                match encoded {
                    Ok(()) => {
                        self.out.row.records.push((*sink, begin..self.out.text.len()));
                        Ok(())
                    }
                    Err(refusal) => Err(self.fail(&[], token, *from, refusal)),
                }
            }
        }
    }

    fn record(
        &mut self,
        from: StageId,
        columns: usize,
        encoder: &dyn Encoder,
        token: &Token,
        env: &Env<'_>,
    ) -> Result<(), Refusal> {
        let from = Origin::Stage(from);
        let row: SmallVec<[Value<'_>; 4]> = (0..columns)
            .map(|column| env.get(ColumnRef { from, column }).ok_or_else(missing))
            .collect::<Result<_, _>>()?;
        let id = token.ticket.id();
        let source = &self.chain.context.plan.sources[id.source.index()].name;
        let item = ItemInfo { name: token.ticket.name(), id, source };
        encoder.encode(&item, &row, &mut self.out.text)
    }

    fn map(
        &mut self,
        step: &MapStep,
        run: &mut StepRun,
        token: &Token,
        share: Share,
        env: &Env<'_>,
    ) -> Result<(), Over> {
        self.out.counts[step.at].entered += 1;
        let mut inputs: SmallVec<[Value<'_>; 4]> = SmallVec::new();
        for read in &step.reads {
            match env.get(*read) {
                Some(value) => inputs.push(value),
                None => return Err(self.fail(&step.folds, token, step.stage, missing())),
            }
        }
        let StepRun { map: Some(map), next } = run else {
            return Err(self.fail(&step.folds, token, step.stage, missing()));
        };
        let fan = step.map.fan();
        let mut rows =
            Rows { walk: self, step, next, token, env, fan, share, each: share, parts: None, n_rows: 0 };
        // A panic in a map is a bug of ours; it fails the item by name instead of losing it.
        let applied = catch_unwind(AssertUnwindSafe(|| map.apply(&inputs, &mut rows)));
        let Rows { parts, n_rows, .. } = rows;
        let applied = applied.unwrap_or_else(|_| {
            *map = step.map.start(); // What it kept is in no known state.
            Err(bug())
        });
        if self.out.row.failure.is_some() || self.out.row.is_void {
            // What reads the rows has ended it.
            self.end_parts(step, token, parts, n_rows);
            return Err(Over);
        }
        if let Err(refusal) = applied {
            let over = self.fail(if parts.is_some() { &[] } else { &step.folds }, token, step.stage, refusal);
            self.end_parts(step, token, parts, n_rows);
            return Err(over);
        }
        match (fan, parts, n_rows) {
            (Fan::One, None, 1) | (Fan::AtMostOne, None, 1) => Ok(()),
            (Fan::AtMostOne, None, 0) => {
                self.give(&step.folds, token, token.path().into(), share);
                Ok(())
            }
            (Fan::Parts, Some(0), 0) => {
                let mut path: PartPath = token.path().into();
                path.push(Part { index: 0, of: 0 });
                self.give(&step.inner_folds, token, path, share);
                Ok(())
            }
            (Fan::Parts, Some(parts), n) if parts as usize == n => Ok(()),
            _ => {
                let refusal = Refusal::result("a stage gave another number of rows than it may; this is a bug");
                let over = self.fail(&[], token, step.stage, refusal);
                self.end_parts(step, token, parts, n_rows);
                Err(over)
            }
        }
    }

    /// A part has ended here, well: it is dropped, or it is none.
    fn give(&mut self, folds: &[ActorRef<FoldMsg>], token: &Token, path: PartPath, share: Share) {
        if !folds.is_empty() && !path.is_empty() {
            self.hand(share);
            tell(folds, token, &path, Arrival::Dropped, share, self.out);
        }
    }

    /// Tells folds that parts which were announced will not come.
    fn end_parts(&mut self, step: &MapStep, token: &Token, parts: Option<u32>, n_rows: usize) {
        let Some(of) = parts else { return };
        // The part in hand when it failed has been told of where it failed.
        for index in u32::try_from(n_rows).unwrap_or(u32::MAX)..of {
            let mut path: PartPath = token.path().into();
            path.push(Part { index, of });
            tell(&step.inner_folds, token, &path, Arrival::Failed, Share::NONE, self.out);
        }
    }

    fn batch(
        &mut self,
        target: &BatchTarget,
        reads: &[ColumnRef],
        carries: &[ColumnRef],
        token: &Token,
        share: Share,
        env: &Env<'_>,
    ) -> Result<(), Over> {
        let chain = self.chain;
        // Before the row: nobody holds one while waiting for anything else.
        let mut carried = Vec::with_capacity(carries.len());
        for read in carries {
            match self.carry(target, *read, env) {
                Ok(Some(value)) => carried.push(value),
                Ok(None) => return Err(self.void()),
                Err(refusal) => return Err(self.fail_at(*read, target, token, refusal)),
            }
        }
        let lease = match target.pool.claim_now() {
            Some(lease) => Some(lease),
            None => {
                let since = Instant::now();
                let lease = target.pool.claim();
                self.hooks.waited(since.elapsed());
                lease
            }
        };
        // None: the pipeline is being torn down, and the item stays unfinished for the next run.
        let Some(mut lease) = lease else { return Err(self.void()) };
        for (input, read) in reads.iter().enumerate() {
            let written = match env.get(*read) {
                Some(Value::Tensor(view)) => copy(&view, lease.input_mut(input)),
                Some(Value::Unwritten(tensor)) => tensor.write(lease.input_mut(input)),
                _ => Err(missing()),
            };
            if let Err(refusal) = written {
                drop(lease); // It becomes a hole.
                return Err(self.fail_at(*read, target, token, refusal));
            }
        }
        if let Some(trace) = token.ticket.journey() {
            trace.queued(target.stage, chain.context.clock.now());
        }
        self.hand(share);
        lease.publish(Token::new(token.ticket.clone(), share, token.path().into(), carried));
        Ok(())
    }

    /// Keeps a column for the stages behind a batch. `None`: the pipeline is being torn down.
    fn carry(
        &mut self,
        target: &BatchTarget,
        read: ColumnRef,
        env: &Env<'_>,
    ) -> Result<Option<OwnedValue>, Refusal> {
        let value = env.get(read).ok_or_else(missing)?;
        let Value::Picture(picture) = value else { return OwnedValue::copy_of(&value).map(Some) };
        let arena = target.carried.as_ref().ok_or_else(missing)?;
        let (mut kept, mut waited) = (None, Duration::ZERO);
        picture.with_pixels(&mut |pixels| {
            let since = Instant::now();
            kept = arena.keep(&pixels)?;
            waited = since.elapsed();
            Ok(())
        })?;
        self.hooks.waited(waited);
        Ok(kept.map(OwnedValue::Picture))
    }

    fn arrive(&mut self) -> Result<(), Over> {
        if self.out.row.has_arrived {
            return Ok(());
        }
        self.out.row.has_arrived = true;
        if self.hooks.arrived() { Ok(()) } else { Err(self.void()) }
    }

    fn hand(&mut self, share: Share) {
        let handed = self.out.row.handed.unwrap_or(Share::NONE);
        self.out.row.handed = Some(handed.plus(share));
    }

    fn void(&mut self) -> Over {
        self.out.row.is_void = true;
        Over
    }

    /// Fails the row at a stage; `folds` must hear of the part that ends with it.
    fn fail(&mut self, folds: &[ActorRef<FoldMsg>], token: &Token, stage: StageId, refusal: Refusal) -> Over {
        let failure = self.chain.failure(stage, refusal.kind, refusal.error);
        self.out.row.failed_at.get_or_insert(stage);
        self.out.row.failure.get_or_insert(failure);
        tell(folds, token, token.path(), Arrival::Failed, Share::NONE, self.out);
        Over
    }

    /// A column could not be made: the stage that gives it is to blame, or else the one that reads it.
    fn fail_at(&mut self, read: ColumnRef, reader: &BatchTarget, token: &Token, refusal: Refusal) -> Over {
        let stage = read.from.stage().unwrap_or(reader.stage);
        self.fail(&reader.folds, token, stage, refusal)
    }

    fn fail_steps(&mut self, steps: &[Step], token: &Token, stage: StageId, refusal: Refusal) -> Over {
        for step in steps {
            tell(step.folds(), token, token.path(), Arrival::Failed, Share::NONE, self.out);
        }
        self.fail(&[], token, stage, refusal)
    }
}

/// The rows that a map makes.
struct Rows<'w, 'a, 'o, 'e> {
    walk: &'w mut Walk<'a, 'o>,
    step: &'w MapStep,
    next: &'w mut [StepRun],
    token: &'w Token,
    env: &'w Env<'e>,
    fan: Fan,
    /// What the row stands for.
    share: Share,
    /// What each of the rows that are made of it stands for.
    each: Share,
    parts: Option<u32>,
    n_rows: usize,
}

impl Emit for Rows<'_, '_, '_, '_> {
    fn parts(&mut self, n: usize) -> Result<(), Refusal> {
        let of = u32::try_from(n).map_err(|_| too_many())?;
        if n > 0 {
            self.each = self.share.cut(n).ok_or_else(too_many)?;
        }
        self.parts = Some(of);
        Ok(())
    }

    fn row(&mut self, row: &[Value<'_>]) -> Result<(), Refusal> {
        let index = self.n_rows;
        self.n_rows += 1;
        self.walk.out.counts[self.step.at].left += 1;
        let env = Env { from: Origin::Stage(self.step.stage), row, carried: &[], up: Some(self.env) };
        let (steps, next) = (&self.step.next, &mut *self.next);
        match (self.fan, self.parts) {
            (Fan::Parts, Some(of)) if index < of as usize => {
                let mut path: PartPath = self.token.path().into();
                path.push(Part { index: index as u32, of });
                let part = Token::new(self.token.ticket.clone(), self.each, path, Vec::new());
                Ok(self.walk.steps(steps, next, &part, self.each, &env)?)
            }
            (Fan::One | Fan::AtMostOne, None) if index == 0 => {
                Ok(self.walk.steps(steps, next, self.token, self.share, &env)?)
            }
            _ => Err(Refusal::result("a stage gave another number of rows than it may; this is a bug")),
        }
    }
}

/// The plan matched the shapes; this guards the copy.
fn copy(view: &TensorView<'_>, row: &mut [u8]) -> Result<(), Refusal> {
    if view.data.len() != row.len() {
        let (name, given, expected) = (view.name, view.data.len(), row.len());
        return Err(Refusal::result(format!("`{name}` has {given} bytes, and the next stage takes {expected}")));
    }
    row.copy_from_slice(view.data);
    Ok(())
}

fn bug() -> Refusal {
    Refusal { kind: FailureKind::Result, error: BUG.to_owned() }
}

fn missing() -> Refusal {
    Refusal::result("internal error: a column that a stage reads is missing; this is a bug")
}

fn too_many() -> Refusal {
    Refusal::result("the item became more parts than can be counted")
}
