//! Fold: brings the parts of a token back together, or its rows that come by several ways, and has the one row that is made of them taken through
//! the chain behind it. It keeps rows and counts; what the row of parts is made like is the kind's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use orchestra_core::collect::{Arrival, Collected, Collector};
use orchestra_core::data::{ItemError, Label, OwnedRow, OwnedValue, Value};
use orchestra_core::oldest_first::OldestFirst;
use orchestra_core::shapes::{Fold, MapRuns, RowScope};
use orchestra_core::{ItemId, StageId, locked};
use orchestra_plan::{ColumnRef, JoinWay, Origin};
use ractor::ActorRef;
use tokio::runtime::Handle;

use super::chain::{Chain, Outcome};
use super::fold_target::{Credit, FoldPart, GatherParts};
use super::token::{PartPath, Token};
use crate::actor_threads::waiting_threads;
use crate::context::RunContext;
use crate::messages::PipelineMsg;
use crate::panics::run_blocking;

/// Threads that take rows through the chain of one fold.
const MOST_RUNNING: usize = 2;

/// A stage that folds the rows of one token.
pub struct FoldStage(Arc<FoldWork>);

pub struct FoldArgs {
    pub context: Arc<RunContext>,
    pub stage: StageId,
    pub of: FoldInput,
    pub chain: Chain,
    pub pipeline: ActorRef<PipelineMsg>,
}

/// What it brings together.
pub enum FoldInput {
    /// The parts of a token.
    Parts(Arc<dyn Fold>),
    /// The rows of a token that come by these ways.
    Join(Vec<JoinWay>),
}

struct FoldState {
    /// By item and the path of the token that the parts are of. Bounded by the items in flight.
    collector: Collector<(ItemId, PartPath), Token, OwnedRow>,
    /// Tokens all of whose parts are there, by the age of their items. Bounded by the items in flight, and mostly by the slots in front: see `FoldTarget::may_wait`.
    complete: OldestFirst<CompleteToken>,
    running: usize,
    /// Threads that tell what follows of tokens that have lost a part.
    telling: usize,
    /// How many of those that feed it may still send parts.
    feeding: usize,
    /// What follows has been told that nothing more comes.
    is_over: bool,
}

/// A token with its parts, and the batch that the last of them came from.
type CompleteToken = (Token, Vec<OwnedRow>, Option<Credit>);

struct FoldWork {
    args: FoldArgs,
    /// Columns that a join carries, in the order of its ways.
    passthrough_columns: Vec<ColumnRef>,
    /// What may have to wait runs there.
    threads: Handle,
    state: Mutex<FoldState>,
    runs: Mutex<Vec<(MapRuns, Outcome)>>,
}

impl FoldStage {
    pub fn new(args: FoldArgs) -> Self {
        let (feeding, passthrough_columns) = match &args.of {
            FoldInput::Parts(_) => (1, Vec::new()),
            FoldInput::Join(ways) => (ways.len(), ways.iter().flat_map(|way| &way.reads).copied().collect()),
        };
        let state = FoldState {
            collector: Collector::default(),
            complete: OldestFirst::default(),
            running: 0,
            telling: 0,
            feeding,
            is_over: false,
        };
        let threads = waiting_threads();
        Self(Arc::new(FoldWork {
            args,
            passthrough_columns,
            threads,
            state: Mutex::new(state),
            runs: Mutex::default(),
        }))
    }
}

impl GatherParts for FoldStage {
    fn parts(&self, parts: Vec<FoldPart>) {
        let work = &self.0;
        let lost = {
            let mut state = locked(&work.state);
            let lost = work.collect(&mut state, parts);
            state.telling += usize::from(!lost.is_empty());
            work.go_on(&mut state);
            lost
        };
        if !lost.is_empty() {
            // Not under the lock: what follows may be a fold, too.
            work.with_failed_part(&lost);
            let mut state = locked(&work.state);
            state.telling -= 1;
            work.end_if_over(state);
        }
    }

    fn drained(&self) {
        let mut state = locked(&self.0.state);
        state.feeding = state.feeding.saturating_sub(1);
        self.0.end_if_over(state);
    }
}

impl FoldWork {
    /// Adds parts; gives the tokens of which one has failed, once all the others are there.
    fn collect(&self, state: &mut FoldState, parts: Vec<FoldPart>) -> Vec<Token> {
        let mut lost = Vec::new();
        let stats = self.args.context.stats.stage(self.args.stage);
        for FoldPart { token, arrival, credit } in parts {
            if matches!(arrival, Arrival::Row(_)) {
                stats.entered.add(1);
            }
            let mut path: PartPath = token.path().into();
            let Some(part) = path.pop() else {
                let item = token.ticket.name();
                tracing::error!(%item, "what came to a fold is no part of anything; this is a bug");
                lost.push(token);
                continue;
            };
            let key = (token.ticket.id(), path);
            let share = token.share();
            let Some(Collected { token, share, parts }) =
                state.collector.arrive(key, token, part, share, arrival)
            else {
                continue;
            };
            let mut path: PartPath = token.path().into();
            path.pop();
            let token = Token::new(token.ticket.clone(), share, path);
            match parts {
                Some(parts) => state.complete.push(token.ticket.sequence(), (token, parts, credit)),
                None => lost.push(token),
            }
        }
        lost
    }

    /// Has what is complete taken through the chain. What follows may have to wait for a free row, which no caller may; and only few threads
    /// wait, because others of the same pool free the rows.
    fn go_on(self: &Arc<Self>, state: &mut FoldState) {
        while state.running < MOST_RUNNING
            && let Some(first) = self.take(state)
        {
            state.running += 1;
            let work = Arc::clone(self);
            run_blocking(&self.threads, &self.args.pipeline, "what follows a fold", move || {
                work.run(first);
            });
        }
    }

    /// The oldest; where nothing has to wait, all that there are.
    fn take(&self, state: &mut FoldState) -> Option<Vec<CompleteToken>> {
        let most = if self.args.chain.waits() { 1 } else { usize::MAX };
        let taken = state.complete.take(most);
        (!taken.is_empty()).then_some(taken)
    }

    /// Takes tokens through the chain until none is complete.
    fn run(&self, first: Vec<CompleteToken>) {
        let mut next = Some(first);
        while let Some(complete) = next {
            self.process(complete);
            let mut state = locked(&self.state);
            next = self.take(&mut state);
            if next.is_none() {
                state.running -= 1;
                self.end_if_over(state);
            }
        }
    }

    /// Tells what follows, once nothing more can come.
    fn end_if_over(&self, mut state: MutexGuard<'_, FoldState>) {
        let is_busy = state.running > 0 || state.telling > 0 || !state.complete.is_empty();
        if state.feeding > 0 || is_busy || !state.collector.is_empty() || state.is_over {
            return;
        }
        state.is_over = true;
        drop(state);
        self.args.chain.drained();
    }

    /// A part of each of these has failed, and the failure is reported: what the others stood for ends here.
    fn with_failed_part(&self, tokens: &[Token]) {
        let mut out = Outcome::default();
        for token in tokens {
            self.args.chain.end_with_failed_part(token, &mut out);
        }
        self.args.chain.send(&mut out);
    }

    /// Makes the row of each token, and takes it through the chain.
    fn process(&self, complete: Vec<CompleteToken>) {
        let lock = || locked(&self.runs);
        let chain = &self.args.chain;
        let (mut runs, mut out) = lock().pop().unwrap_or_default();
        let mut left = 0;
        for (token, parts, credit) in complete {
            out.credit = credit;
            match self.merge(parts) {
                Ok(Some(row)) => {
                    left += 1;
                    self.row(&row, &token, &mut runs, &mut out);
                }
                Ok(None) => {
                    self.args.context.stats.stage(self.args.stage).first_items.pass();
                    chain.end_dropped(&token, &mut out);
                }
                Err(item_error) => chain.fail(&token, self.args.stage, item_error, &mut out),
            }
        }
        self.args.context.stats.stage(self.args.stage).left.add(left);
        chain.book(&runs.counts);
        runs.counts.clear();
        // Nothing is linear behind a fold: every end is counted.
        chain.send(&mut out);
        out.credit = None;
        out.text.clear();
        lock().push((runs, out));
    }

    /// The row of a token; `None` where it was dropped on one of the ways of a join.
    fn merge(&self, parts: Vec<OwnedRow>) -> Result<Option<OwnedRow>, ItemError> {
        match &self.args.of {
            FoldInput::Join(ways) if parts.len() < ways.len() => Ok(None),
            FoldInput::Join(_) => Ok(Some(parts.into_iter().flatten().collect())),
            FoldInput::Parts(fold) => {
                // A panic in here is a bug of ours; it fails the item by name instead of losing it.
                let merged = catch_unwind(AssertUnwindSafe(|| fold.fold(parts)));
                let bug = "internal error while parts were brought together; this is a bug";
                merged.unwrap_or_else(|_| Err(ItemError::result(bug))).map(Some)
            }
        }
    }

    fn row(&self, row: &[OwnedValue], token: &Token, runs: &mut MapRuns, out: &mut Outcome) {
        let labels: Vec<Vec<Label<'_>>> = row.iter().map(OwnedValue::labels).collect();
        let values = row.iter().zip(&labels).map(|(value, labels)| value.borrowed(labels));
        let from = Origin::Stage(self.args.stage);
        let (row, carried): (Vec<Value<'_>>, Vec<(ColumnRef, Value<'_>)>) = match self.args.of {
            FoldInput::Parts(_) => (values.collect(), Vec::new()),
            FoldInput::Join(_) => {
                (Vec::new(), self.passthrough_columns.iter().copied().zip(values).collect())
            }
        };
        let scope = RowScope { from, row: &row, carried: &carried, up: None };
        self.args.chain.row(runs, token, &scope, out, None);
    }
}
