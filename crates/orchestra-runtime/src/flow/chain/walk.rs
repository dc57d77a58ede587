//! A row on its way through a chain. Whatever ends a row notes why in `Outcome::row`, and tells the folds that wait for a part of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use orchestra_core::collect::{Arrival, Part};
use orchestra_core::data::{OwnedRow, OwnedValue, Refusal, TensorView, Value};
use orchestra_core::lineage::Share;
use orchestra_core::shapes::{Emit, Fan, ItemInfo};
use orchestra_core::{FailureKind, StageId};
use orchestra_plan::{ColumnRef, Origin};
use smallvec::SmallVec;

use crate::flow::file_name::file_name;
use crate::flow::file_rows::end_file_row;
use crate::flow::part_rows::{HEAD, begin_row, end_row};
use crate::flow::reduce_rows::write_head;
use crate::flow::sink::index_line;
use crate::messages::RecordTo;

use super::outcome::{Outcome, RecordRange, tell};
use super::{BatchTarget, Chain, Env, FoldTarget, Hooks, MapStep, PartPath, Step, StepRun, Token};

/// What is said of an item where our own code fell over.
const BUG: &str = "internal error while the item was worked on; this is a bug";

pub(super) struct Walk<'a, 'o> {
    pub chain: &'a Chain,
    pub out: &'o mut Outcome,
    pub hooks: &'o mut dyn Hooks,
    /// Held from the first picture on that the row keeps, where it keeps several.
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
                    self.tell_failed(&steps[n..], token);
                    return Err(self.fail(&[], token, self.chain.first_stage(), too_many()));
                };
                left = left.minus(mine);
                mine
            };
            if let Err(over) = self.step(step, run, token, mine, env) {
                self.tell_failed(&steps[n + 1..], token);
                return Err(over);
            }
        }
        Ok(())
    }

    fn tell_failed(&mut self, steps: &[Step], token: &Token) {
        for step in steps {
            tell(step.folds(), token, token.path(), &Arrival::Failed, Share::NONE, self.out);
        }
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
                self.note_decoded()?;
                self.batch(target, reads, carries, token, share, env)
            }
            Step::Fold { fold, reads } => {
                self.note_decoded()?;
                let folds = std::slice::from_ref(fold);
                let row = self.keep_all(reads, fold.stage, folds, token, env)?;
                self.hand(share);
                self.out.part(fold, fold.part(token, token.path(), share, Arrival::Row(row)));
                Ok(())
            }
            Step::Reduce { stage, reads, reduce } => {
                self.note_decoded()?;
                self.chain.context.stats.stage(*stage).entered.add(1);
                let row = begin_row(&mut self.out.text);
                let begin = row - HEAD;
                write_head(token, &mut self.out.text);
                let contributed = self
                    .record(reads, token, env, |item, row, out| reduce.contribute(item, row, out))
                    .and_then(|()| end_row(&mut self.out.text, row));
                if let Err(refusal) = contributed {
                    return Err(self.fail(&[], token, *stage, refusal));
                }
                let bytes = begin..self.out.text.len();
                self.out.row.records.push(RecordRange { to: RecordTo::Reduce(*stage), bytes, file: None });
                Ok(())
            }
            Step::Sink { sink, from, reads, encoder } => {
                self.note_decoded()?;
                let begin = self.out.text.len();
                let plan = &self.chain.context.plan.sinks[sink.index()];
                let file = plan.files.as_ref().map(|files| file_name(files, token)).transpose();
                let row = plan.part_files.is_some().then(|| begin_row(&mut self.out.text));
                let encoded =
                    self.record(reads, token, env, |item, row, out| encoder.encode(item, row, out)).and(file);
                let encoded = match row {
                    Some(row) => encoded.and_then(|file| self.end_part_row(token, row, file)).map(|()| None),
                    None => encoded,
                };
                match encoded {
                    Ok(file) => {
                        let bytes = begin..self.out.text.len();
                        self.out.row.records.push(RecordRange { to: RecordTo::Sink(*sink), bytes, file });
                        Ok(())
                    }
                    Err(refusal) => Err(self.fail(&[], token, *from, refusal)),
                }
            }
        }
    }

    /// Ends a row that waits for a part, which may be a file.
    fn end_part_row(&mut self, token: &Token, row: usize, file: Option<Box<str>>) -> Result<(), Refusal> {
        let text = &mut self.out.text;
        let Some(file) = file else { return end_row(text, row) };
        let (item, id) = (token.ticket.name(), token.ticket.id());
        let source = &self.chain.context.plan.sources[id.source.index()].name;
        let line = index_line(item, id.index, source, &file, text.len() - row);
        end_file_row(text, row, &line)
    }

    fn record(
        &mut self,
        reads: &[ColumnRef],
        token: &Token,
        env: &Env<'_>,
        encode: impl FnOnce(&ItemInfo<'_>, &[Value<'_>], &mut Vec<u8>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let row: SmallVec<[Value<'_>; 4]> =
            reads.iter().map(|read| env.get(*read).ok_or_else(missing)).collect::<Result<_, _>>()?;
        let id = token.ticket.id();
        let source = &self.chain.context.plan.sources[id.source.index()].name;
        let item = ItemInfo { name: token.ticket.name(), id, source, parts: token.path() };
        encode(&item, &row, &mut self.out.text)
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
        let ended = applied.and_then(|()| match (fan, parts, n_rows) {
            (Fan::One | Fan::AtMostOne, None, 1) => Ok(()),
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
            _ => Err(Refusal::result("a stage gave another number of rows than it may; this is a bug")),
        });
        ended.map_err(|refusal| {
            let over = self.fail(untold(step, parts, n_rows), token, step.stage, refusal);
            self.end_parts(step, token, parts, n_rows);
            over
        })
    }

    /// A row has ended here, well: it is dropped, or has no parts. The folds that wait for it get what it stands for.
    fn give(&mut self, folds: &[FoldTarget], token: &Token, path: PartPath, share: Share) {
        if !folds.is_empty() {
            self.hand(share);
            tell(folds, token, &path, &Arrival::Dropped, share, self.out);
        }
    }

    /// Tells folds that parts which were announced will not come.
    fn end_parts(&mut self, step: &MapStep, token: &Token, parts: Option<u32>, n_rows: usize) {
        let Some(of) = parts else { return };
        // The part in hand when it failed has been told of where it failed. Of none, the folds wait for that one word.
        let untold = if of == 0 { 0..1 } else { u32::try_from(n_rows).unwrap_or(u32::MAX)..of };
        for index in untold {
            let mut path: PartPath = token.path().into();
            path.push(Part { index, of });
            tell(&step.inner_folds, token, &path, &Arrival::Failed, Share::NONE, self.out);
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
        // Before `claim`: a thread that waits for room must hold no row, or the two waits could lock each other.
        let carried = self.keep_all(carries, target.stage, &target.folds, token, env)?;
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
                return Err(self.fail_at(*read, target.stage, &target.folds, token, refusal));
            }
        }
        if let Some(trace) = token.ticket.timeline() {
            trace.queued(target.stage, chain.context.clock.now());
        }
        self.hand(share);
        lease.publish(Token::new(token.ticket.clone(), share, token.path().into(), carried));
        Ok(())
    }

    /// Keeps columns for the stages behind a batch or a fold, `reader`.
    fn keep_all(
        &mut self,
        reads: &[ColumnRef],
        reader: StageId,
        folds: &[FoldTarget],
        token: &Token,
        env: &Env<'_>,
    ) -> Result<OwnedRow, Over> {
        let mut row = OwnedRow::with_capacity(reads.len());
        for read in reads {
            match self.keep(*read, env) {
                Ok(Some(value)) => row.push(value),
                Ok(None) => return Err(self.void()),
                Err(refusal) => return Err(self.fail_at(*read, reader, folds, token, refusal)),
            }
        }
        Ok(row)
    }

    /// Keeps a column for the stages behind a batch or a fold. `None`: the pipeline is being torn down.
    fn keep(&mut self, read: ColumnRef, env: &Env<'_>) -> Result<Option<OwnedValue>, Refusal> {
        let value = env.get(read).ok_or_else(missing)?;
        let Value::Picture(picture) = value else { return OwnedValue::copy_of(&value).map(Some) };
        let known = self.out.row.kept.iter().find(|(column, _)| *column == read);
        if let Some(kept) = picture.kept().or_else(|| known.map(|(_, kept)| Arc::clone(kept))) {
            return Ok(Some(OwnedValue::Picture(kept)));
        }
        let chain = self.chain;
        let arena = chain.pictures.as_ref().ok_or_else(missing)?;
        let (mut kept, mut waited) = (None, Duration::ZERO);
        picture.with_pixels(&mut |pixels| {
            let since = Instant::now();
            if let (None, Some(several)) = (&self.keeping, &chain.several) {
                self.keeping = Some(several.lock().unwrap_or_else(PoisonError::into_inner));
            }
            kept = arena.keep(&pixels)?;
            waited = since.elapsed();
            Ok(())
        })?;
        self.hooks.waited(waited);
        let Some(kept) = kept else { return Ok(None) };
        // The row that came in is the same for all of its parts; what a map makes is not.
        if read.from == chain.origin {
            self.out.row.kept.push((read, Arc::clone(&kept)));
        }
        Ok(Some(OwnedValue::Picture(kept)))
    }

    fn note_decoded(&mut self) -> Result<(), Over> {
        if self.out.row.is_decoded {
            return Ok(());
        }
        self.out.row.is_decoded = true;
        if self.hooks.decoded() { Ok(()) } else { Err(self.void()) }
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
    fn fail(&mut self, folds: &[FoldTarget], token: &Token, stage: StageId, refusal: Refusal) -> Over {
        let failure = self.chain.failure(stage, refusal.kind, refusal.error);
        self.out.row.failed_at.get_or_insert(stage);
        self.out.row.failure.get_or_insert(failure);
        tell(folds, token, token.path(), &Arrival::Failed, Share::NONE, self.out);
        Over
    }

    /// A column could not be made: the stage that gives it is to blame, or else the one that reads it.
    fn fail_at(
        &mut self,
        read: ColumnRef,
        reader: StageId,
        folds: &[FoldTarget],
        token: &Token,
        refusal: Refusal,
    ) -> Over {
        self.fail(folds, token, read.from.stage().unwrap_or(reader), refusal)
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
        return Err(Refusal::result(format!(
            "`{name}` has {given} bytes, and the next stage takes {expected}"
        )));
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
