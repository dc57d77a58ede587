//! A row on its way through a chain. The step that ends a row notes why in `Outcome::row`, and tells the folds that wait for a part of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::MutexGuard;

use orchestra_core::collect::Part;
use orchestra_core::data::{Refusal, Value};
use orchestra_core::lineage::Share;
use orchestra_core::shapes::{Emit, Fan};
use orchestra_core::{FailureKind, LeftOut, StageId};
use orchestra_plan::Origin;
use smallvec::SmallVec;

use super::outcome::{Outcome, tell_dropped, tell_failed};
use super::{Chain, FoldTarget, Hooks, MapStep, PartPath, RowScope, Step, StepRun, Token};

/// What is said of an item where our own code fell over.
const BUG: &str = "internal error while the item was worked on; this is a bug";

pub(super) struct Walk<'a, 'o> {
    pub chain: &'a Chain,
    pub out: &'o mut Outcome,
    pub hooks: &'o mut dyn Hooks,
    /// [`Chain::keep_lock`], from the first picture on that the row keeps.
    pub keeping: Option<MutexGuard<'a, ()>>,
}

/// The row is over; why is noted in `Outcome::row`.
#[derive(Debug)]
pub(super) struct Over;

impl From<Over> for Refusal {
    /// For maps to pass on.
    fn from(_: Over) -> Refusal {
        Refusal::result("")
    }
}

impl Walk<'_, '_> {
    pub fn steps(
        &mut self,
        steps: &[Step],
        runs: &mut [StepRun],
        token: &Token,
        share: Share,
        scope: &RowScope<'_>,
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
                    self.tell_failed(&steps[n..], token);
                    return Err(self.fail(&[], token, self.chain.first_stage(), too_many()));
                };
                left = left.minus(mine);
                mine
            };
            if let Err(over) = self.step(step, run, token, mine, scope) {
                self.tell_failed(&steps[n + 1..], token);
                return Err(over);
            }
        }
        Ok(())
    }

    fn tell_failed(&mut self, steps: &[Step], token: &Token) {
        for step in steps {
            tell_failed(step.folds(), token, token.path(), self.out);
        }
    }

    fn step(
        &mut self,
        step: &Step,
        run: &mut StepRun,
        token: &Token,
        share: Share,
        scope: &RowScope<'_>,
    ) -> Result<(), Over> {
        if let Step::Map(map) = step {
            return self.map(map, run, token, share, scope);
        }
        let leaf = catch_unwind(AssertUnwindSafe(|| self.leaf(step, token, share, scope)));
        leaf.unwrap_or_else(|_| {
            let stage = self.chain.first_stage();
            Err(self.fail(step.folds(), token, stage, bug()))
        })
    }

    fn map(
        &mut self,
        step: &MapStep,
        run: &mut StepRun,
        token: &Token,
        share: Share,
        scope: &RowScope<'_>,
    ) -> Result<(), Over> {
        self.out.counts[step.at].entered += 1;
        let mut inputs: SmallVec<[Value<'_>; 4]> = SmallVec::new();
        for read in &step.reads {
            match scope.get(*read) {
                Some(value) => inputs.push(value),
                None => return Err(self.fail(&step.folds, token, step.stage, missing())),
            }
        }
        let StepRun { map: Some(map), next } = run else {
            return Err(self.fail(&step.folds, token, step.stage, missing()));
        };
        let fan = step.map.fan();
        let mut rows =
            Rows { walk: self, step, next, token, scope, fan, share, each: share, parts: None, n_rows: 0 };
        // A panic in a map is a bug of ours; it fails the item by name instead of losing it.
        let applied = catch_unwind(AssertUnwindSafe(|| map.apply(&inputs, &mut rows)));
        let Rows { parts, n_rows, .. } = rows;
        let applied = applied.unwrap_or_else(|_| {
            *map = step.map.start(); // What it kept is in no known state.
            Err(bug())
        });
        if self.out.row.failure.is_some() || self.out.row.is_void {
            // A step behind the map has set `failure` or `is_void`, so `applied` says nothing more.
            self.end_parts(step, token, parts, n_rows);
            return Err(Over);
        }
        let ended = applied.and_then(|()| match (fan, parts, n_rows) {
            (Fan::One | Fan::AtMostOne, None, 1) => Ok(()),
            (Fan::AtMostOne, None, 0) => self.give(&step.folds, token, token.path(), share),
            (Fan::Parts, Some(0), 0) => {
                let mut path: PartPath = token.path().into();
                path.push(Part { index: 0, of: 0 });
                self.give(&step.inner_folds, token, &path, share)
            }
            (Fan::Parts, Some(parts), n) if parts as usize == n => Ok(()),
            _ => Err(Refusal::result("a stage gave another number of rows than it may; this is a bug")),
        });
        if ended.is_ok() {
            // A row that was dropped, or has no parts, has not failed either.
            self.pass(step.stage);
        }
        ended.map_err(|refusal| {
            let over = self.fail(untold(step, parts, n_rows), token, step.stage, refusal);
            self.end_parts(step, token, parts, n_rows);
            over
        })
    }

    /// A row has ended here, well: it is dropped, or has no parts. The folds that wait for it get what it stands for.
    fn give(
        &mut self,
        folds: &[FoldTarget],
        token: &Token,
        path: &[Part],
        share: Share,
    ) -> Result<(), Refusal> {
        if !folds.is_empty() {
            tell_dropped(folds, token, path, share, self.out).ok_or_else(too_many)?;
            self.hand(share);
        }
        Ok(())
    }

    /// Tells folds that parts which were announced will not come.
    fn end_parts(&mut self, step: &MapStep, token: &Token, parts: Option<u32>, n_rows: usize) {
        let Some(of) = parts else { return };
        // Part `n_rows - 1` has been reported by the step that failed it. With `of == 0` folds expect one report, with index 0.
        let untold = if of == 0 { 0..1 } else { u32::try_from(n_rows).unwrap_or(u32::MAX)..of };
        for index in untold {
            let mut path: PartPath = token.path().into();
            path.push(Part { index, of });
            tell_failed(&step.inner_folds, token, &path, self.out);
        }
    }

    pub(super) fn hand(&mut self, share: Share) {
        let handed = self.out.row.handed.unwrap_or(Share::NONE);
        self.out.row.handed = Some(handed.plus(share));
    }

    pub(super) fn void(&mut self) -> Over {
        self.out.row.is_void = true;
        Over
    }

    pub(super) fn pass(&self, stage: StageId) {
        self.chain.context.stats.stage(stage).first_items.pass();
    }

    /// Fails the row at a stage; `folds` must hear of the part that ends with it.
    pub(super) fn fail(
        &mut self,
        folds: &[FoldTarget],
        token: &Token,
        stage: StageId,
        refusal: Refusal,
    ) -> Over {
        self.chain.context.stats.stage(stage).first_items.fail(token.ticket.id());
        let failure = self.chain.failure(stage, refusal.kind, refusal.error);
        self.out.row.failed_at.get_or_insert(stage);
        self.out.row.failure.get_or_insert(failure);
        tell_failed(folds, token, token.path(), self.out);
        Over
    }
}

/// The folds that still count the input row of a map as missing: all of them, until the map has emitted a row or announced parts.
fn untold(step: &MapStep, parts: Option<u32>, n_rows: usize) -> &[FoldTarget] {
    if parts.is_none() && n_rows == 0 { &step.folds } else { &[] }
}

struct Rows<'w, 'a, 'o, 'e> {
    walk: &'w mut Walk<'a, 'o>,
    step: &'w MapStep,
    next: &'w mut [StepRun],
    token: &'w Token,
    scope: &'w RowScope<'e>,
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
        self.walk.pass(self.step.stage);
        let scope =
            RowScope { from: Origin::Stage(self.step.stage), row, carried: &[], up: Some(self.scope) };
        let (steps, next) = (&self.step.next, &mut *self.next);
        match (self.fan, self.parts) {
            (Fan::Parts, Some(of)) if index < of as usize => {
                let mut path: PartPath = self.token.path().into();
                path.push(Part { index: index as u32, of });
                let part = Token::new(self.token.ticket.clone(), self.each, path, Vec::new());
                Ok(self.walk.steps(steps, next, &part, self.each, &scope)?)
            }
            (Fan::One | Fan::AtMostOne, None) if index == 0 => {
                Ok(self.walk.steps(steps, next, self.token, self.share, &scope)?)
            }
            _ => Err(Refusal::result("a stage gave another number of rows than it may; this is a bug")),
        }
    }

    fn left_out(&mut self, what: LeftOut, n: u64) {
        let stats = &self.walk.chain.context.stats;
        stats.left_out.add(Origin::Stage(self.step.stage), what, n);
    }
}

fn bug() -> Refusal {
    Refusal { kind: FailureKind::Result, error: BUG.to_owned() }
}

pub(super) fn missing() -> Refusal {
    Refusal::result("internal error: a column that a stage reads is missing; this is a bug")
}

pub(super) fn too_many() -> Refusal {
    Refusal::result("the item became more parts than can be counted")
}
