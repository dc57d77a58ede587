//! Fold: brings the parts of a token back together, and takes the one row that is made of them through the chain behind it. It keeps rows and
//! counts; what the row is made like is the kind's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use orchestra_core::collect::{Arrival, Collected, Collector};
use orchestra_core::data::{Label, OwnedRow, OwnedValue, Refusal, Value};
use orchestra_core::lineage::{End, Share};
use orchestra_core::shapes::Fold as MakeRow;
use orchestra_core::{ItemId, StageId};
use orchestra_plan::Origin;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use smallvec::SmallVec;

use super::chain::{Chain, ChainRun, Env, NoHooks, Outcome};
use super::token::{PartPath, Token};
use crate::context::RunContext;
use crate::messages::{SinkMsg, TokenEnd};

/// The actor of a stage that folds.
pub struct Fold;

/// Threads that take rows through the chain of one fold.
const MOST_RUNNING: usize = 2;

/// To a fold.
pub enum FoldMsg {
    /// Parts have come to their ends.
    Parts(Vec<FoldPart>),
    /// A row has been taken through the chain.
    Finished,
    /// No further part will come.
    Drained,
}

/// A part, and what became of it.
pub struct FoldPart {
    /// Whose it is: the last place of its path is that among the parts.
    pub token: Token,
    /// The end.
    pub arrival: Arrival<OwnedRow>,
}

/// What a fold is started with.
pub struct FoldArgs {
    /// The run.
    pub context: Arc<RunContext>,
    /// The stage.
    pub stage: StageId,
    /// Makes the row.
    pub fold: Arc<dyn MakeRow>,
    /// What follows it.
    pub chain: Chain,
    /// Where ends are reported.
    pub sink: ActorRef<SinkMsg>,
    /// The folds around this one: they hear of a token all of whose parts are lost.
    pub outer: Vec<ActorRef<FoldMsg>>,
}

/// State of a fold.
pub struct FoldState {
    work: Arc<Work>,
    /// By item and the path of the token that the parts are of. Bounded by the items in flight.
    collector: Collector<(ItemId, PartPath), Token, OwnedRow>,
    /// Tokens all of whose parts are there. Bounded by the items in flight.
    complete: Vec<(Token, Vec<OwnedRow>)>,
    running: usize,
    drained: bool,
}

struct Work {
    args: FoldArgs,
    runs: Mutex<Vec<(ChainRun, Outcome)>>,
}

impl Actor for Fold {
    type Msg = FoldMsg;
    type State = FoldState;
    type Arguments = FoldArgs;

    async fn pre_start(&self, _: ActorRef<FoldMsg>, args: FoldArgs) -> Result<FoldState, ActorProcessingErr> {
        let work = Arc::new(Work { args, runs: Mutex::default() });
        Ok(FoldState {
            work,
            collector: Collector::default(),
            complete: Vec::new(),
            running: 0,
            drained: false,
        })
    }

    async fn handle(
        &self,
        me: ActorRef<FoldMsg>,
        message: FoldMsg,
        state: &mut FoldState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            FoldMsg::Parts(parts) => state.parts(parts),
            FoldMsg::Finished => state.running -= 1,
            FoldMsg::Drained => state.drained = true,
        }
        state.go_on(&me);
        if state.drained && state.running == 0 && state.collector.is_empty() {
            state.work.args.chain.drained();
        }
        Ok(())
    }
}

impl FoldState {
    fn parts(&mut self, parts: Vec<FoldPart>) {
        let mut lost = Vec::new();
        let stats = self.work.args.context.stats.stage(self.work.args.stage);
        for FoldPart { token, arrival } in parts {
            if matches!(arrival, Arrival::Row(_)) {
                stats.entered.add(1);
            }
            let mut path: PartPath = token.path().into();
            let Some(part) = path.pop() else { continue };
            let key = (token.ticket.id(), path);
            let share = token.share();
            let Some(Collected { ticket: token, share, parts }) =
                self.collector.arrive(key, token, part, share, arrival)
            else {
                continue;
            };
            let mut path: PartPath = token.path().into();
            path.pop();
            let token = Token::new(token.ticket.clone(), share, path, Vec::new());
            match parts {
                Some(parts) => self.complete.push((token, parts)),
                None => lost.push(token),
            }
        }
        self.work.lost(lost);
    }

    /// Takes what is complete through the chain. What follows may have to wait for a free row, which an actor must not; and only few threads
    /// wait, because others of the same pool free the rows.
    fn go_on(&mut self, me: &ActorRef<FoldMsg>) {
        if self.complete.is_empty() || self.running >= MOST_RUNNING {
            return;
        }
        let complete = std::mem::take(&mut self.complete);
        let (work, me) = (Arc::clone(&self.work), me.clone());
        self.running += 1;
        tokio::task::spawn_blocking(move || {
            work.process(complete);
            drop(me.cast(FoldMsg::Finished));
        });
    }
}

impl Work {
    /// A part of each of these has failed, and the failure is reported: what the others stood for ends here.
    fn lost(&self, tokens: Vec<Token>) {
        if tokens.is_empty() {
            return;
        }
        for token in &tokens {
            if !token.path().is_empty() {
                for fold in &self.args.outer {
                    let token =
                        Token::new(token.ticket.clone(), Share::NONE, token.path().into(), Vec::new());
                    drop(fold.cast(FoldMsg::Parts(vec![FoldPart { token, arrival: Arrival::Failed }])));
                }
            }
        }
        let end = |token: Token| {
            let end = End { share: token.share(), records: SmallVec::new(), failure: None };
            TokenEnd { ticket: token.ticket, end }
        };
        let ends = tokens.into_iter().map(end).collect();
        drop(self.args.sink.cast(SinkMsg::Ends(ends)));
    }

    /// Makes the row of each token, and takes it through the chain.
    fn process(&self, complete: Vec<(Token, Vec<OwnedRow>)>) {
        let lock = || self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let chain = &self.args.chain;
        let kept = lock().pop();
        let (mut run, mut out) = kept.unwrap_or_else(|| (chain.start(), Outcome::default()));
        let mut left = 0;
        for (token, parts) in complete {
            // A panic in here is a bug of ours; it fails the item by name instead of losing it.
            let merged = catch_unwind(AssertUnwindSafe(|| self.args.fold.merge(parts)));
            let merged = merged.unwrap_or_else(|_| {
                Err(Refusal::result("internal error while parts were brought together; this is a bug"))
            });
            match merged {
                Ok(row) => {
                    left += 1;
                    self.row(&row, &token, &mut run, &mut out);
                }
                Err(refusal) => chain.fail(&token, self.args.stage, refusal, &mut out),
            }
        }
        self.args.context.stats.stage(self.args.stage).left.add(left);
        chain.book(&out.counts);
        out.counts.clear();
        // Nothing is linear behind a fold: every end is counted.
        chain.send(&mut out);
        out.text.clear();
        lock().push((run, out));
    }

    fn row(&self, row: &[OwnedValue], token: &Token, run: &mut ChainRun, out: &mut Outcome) {
        let labels: Vec<Vec<Label<'_>>> = row.iter().map(OwnedValue::labels).collect();
        let values: Vec<Value<'_>> =
            row.iter().zip(&labels).map(|(value, labels)| value.borrowed(labels)).collect();
        let env = Env { from: Origin::Stage(self.args.stage), row: &values, carried: &[], up: None };
        self.args.chain.row(run, token, &env, out, &mut NoHooks);
    }
}
