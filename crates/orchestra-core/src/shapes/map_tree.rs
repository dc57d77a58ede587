//! The one executor of maps, in a loader process and behind batches and folds: takes a row through the maps that stand behind it, each inside of the one
//! before, up to the leaves, which take rows on. It knows no kind, no share and nothing of the leaves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bincode::{Decode, Encode};
use smallvec::SmallVec;

use super::{Emit, FanOut, Map, MapRun};
use crate::data::{ItemError, Value};
use crate::ids::{ColumnRef, Origin, StageId};
use crate::left_out::LeftOut;

/// What reads a row: a map, or a leaf, by its place.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum StepOf<M: 'static> {
    Map(MapStepOf<M>),
    Leaf(usize),
}

/// A map, and what reads the rows that it makes.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct MapStepOf<M: 'static> {
    pub stage: StageId,
    /// Its place among the maps of a chain. A stage that stands at several places has as many of them.
    pub at: usize,
    pub map: M,
    pub reads: Vec<ColumnRef>,
    pub next: Vec<StepOf<M>>,
}

pub type Step = StepOf<Arc<dyn Map>>;
pub type MapStep = MapStepOf<Arc<dyn Map>>;

/// A row and the rows that it was made of, innermost first: what the steps behind it can read.
#[derive(Clone, Copy)]
pub struct RowScope<'a> {
    pub from: Origin,
    pub row: &'a [Value<'a>],
    pub carried: &'a [(ColumnRef, Value<'a>)],
    pub up: Option<&'a RowScope<'a>>,
}

/// Takes what maps make, in the order in which a row comes to them. After the first failure nothing more comes of the row.
pub trait Leaves {
    /// A map has made a row, which the steps behind it get now.
    fn made(&mut self, at: usize, stage: StageId, row: &[Value<'_>]);

    /// A map makes so many rows, at least one, and each is a part of its own.
    fn parts(&mut self, at: usize, n: u32) -> Result<(), ItemError>;

    /// A map has dropped its row, or makes no parts of it.
    fn nothing(&mut self, at: usize) -> Result<(), ItemError>;

    fn leaf(&mut self, leaf: usize, scope: &RowScope<'_>) -> Result<(), RowEnded>;

    fn fail(&mut self, stage: StageId, item_error: ItemError) -> RowEnded;

    /// As [`Emit::left_out`].
    fn left_out(&mut self, stage: StageId, what: LeftOut, n: u64);
}

/// The row is over; [`Leaves`] know why.
#[derive(Debug)]
pub struct RowEnded;

/// The maps of a chain at work, by their place. One that has panicked is started anew.
#[derive(Default)]
pub struct MapRuns {
    runs: Vec<Option<Box<dyn MapRun>>>,
    /// Rows that entered and left each of them since they were last counted.
    pub counts: SmallVec<[MapCount; 2]>,
}

/// How many rows a map has taken and given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub struct MapCount {
    pub entered: u64,
    pub left: u64,
}

/// A row on its way.
pub struct Walk<'w> {
    pub runs: &'w mut MapRuns,
    pub leaves: &'w mut dyn Leaves,
}

impl<'a> RowScope<'a> {
    /// A column that the plan lets a step read.
    ///
    /// # Errors
    /// It is not there, which is a bug.
    pub fn get(&self, read: ColumnRef) -> Result<Value<'a>, ItemError> {
        let mut at = Some(self);
        while let Some(scope) = at {
            if let Some((_, value)) = scope.carried.iter().find(|(column, _)| *column == read) {
                return Ok(*value);
            }
            if let (true, Some(value)) = (scope.from == read.from, scope.row.get(read.column)) {
                return Ok(*value);
            }
            at = scope.up;
        }
        Err(ItemError::result("internal error: a column that a stage reads is missing; this is a bug"))
    }
}

impl From<RowEnded> for ItemError {
    /// For maps to pass on.
    fn from(_: RowEnded) -> ItemError {
        ItemError::result("")
    }
}

impl MapCount {
    /// Adds counts, which a process may have made up.
    pub fn add_all(counts: &mut SmallVec<[MapCount; 2]>, more: &[MapCount]) {
        counts.resize(counts.len().max(more.len()), MapCount::default());
        for (count, more) in counts.iter_mut().zip(more) {
            count.entered = count.entered.saturating_add(more.entered);
            count.left = count.left.saturating_add(more.left);
        }
    }
}

impl MapRuns {
    /// Takes the map out for a row.
    fn begin(&mut self, at: usize, map: &dyn Map) -> Box<dyn MapRun> {
        if self.runs.len() <= at {
            self.runs.resize_with(at + 1, || None);
        }
        if self.counts.len() <= at {
            self.counts.resize(at + 1, MapCount::default());
        }
        self.counts[at].entered += 1;
        self.runs[at].take().unwrap_or_else(|| map.start())
    }
}

impl Walk<'_> {
    pub fn steps(&mut self, steps: &[Step], scope: &RowScope<'_>) -> Result<(), RowEnded> {
        steps.iter().try_for_each(|step| match step {
            Step::Map(map) => self.map(map, scope),
            Step::Leaf(leaf) => self.leaves.leaf(*leaf, scope),
        })
    }

    fn map(&mut self, step: &MapStep, scope: &RowScope<'_>) -> Result<(), RowEnded> {
        let (at, fan) = (step.at, step.map.fan());
        let mut run = self.runs.begin(at, &*step.map);
        let mut rows = MapEmitter { walk: self, step, scope, fan, parts: None, n_rows: 0, is_over: false };
        // A panic in a map is a bug of ours; it fails the item by name instead of losing it.
        let applied = catch_unwind(AssertUnwindSafe(|| {
            let inputs: Result<SmallVec<[Value<'_>; 4]>, _> =
                step.reads.iter().map(|read| scope.get(*read)).collect();
            let applied = inputs.and_then(|inputs| run.apply(&inputs, &mut rows));
            (run, applied)
        }));
        let MapEmitter { parts, n_rows, is_over, .. } = rows;
        let applied = match applied {
            Ok((run, applied)) => {
                self.runs.runs[at] = Some(run);
                applied
            }
            Err(_) => Err(ItemError::result("internal error while the item was worked on; this is a bug")),
        };
        if is_over {
            return Err(RowEnded);
        }
        let ended = applied.and_then(|()| match (fan, parts, n_rows) {
            (FanOut::One | FanOut::AtMostOne, None, 1) => Ok(()),
            (FanOut::AtMostOne, None, 0) | (FanOut::Parts, Some(0), 0) => self.leaves.nothing(at),
            (FanOut::Parts, Some(parts), n) if parts == n => Ok(()),
            _ => Err(another_number()),
        });
        ended.map_err(|item_error| self.leaves.fail(step.stage, item_error))
    }
}

struct MapEmitter<'w, 'r, 'e> {
    walk: &'w mut Walk<'r>,
    step: &'w MapStep,
    scope: &'w RowScope<'e>,
    fan: FanOut,
    parts: Option<u32>,
    n_rows: u32,
    /// A step behind the map has ended the row.
    is_over: bool,
}

impl Emit for MapEmitter<'_, '_, '_> {
    fn parts(&mut self, n: usize) -> Result<(), ItemError> {
        if self.fan != FanOut::Parts || self.parts.is_some() {
            return Err(another_number());
        }
        let n = u32::try_from(n).map_err(|_| too_many_parts())?;
        if n > 0 {
            self.walk.leaves.parts(self.step.at, n)?;
        }
        self.parts = Some(n);
        Ok(())
    }

    fn row(&mut self, row: &[Value<'_>]) -> Result<(), ItemError> {
        let most = match self.fan {
            FanOut::One | FanOut::AtMostOne => 1,
            FanOut::Parts => self.parts.unwrap_or(0),
        };
        if self.n_rows >= most {
            return Err(another_number());
        }
        let MapStep { stage, at, ref next, .. } = *self.step;
        self.n_rows += 1;
        self.walk.runs.counts[at].left += 1;
        self.walk.leaves.made(at, stage, row);
        let scope = RowScope { from: Origin::Stage(stage), row, carried: &[], up: Some(self.scope) };
        self.walk.steps(next, &scope).map_err(|over| {
            self.is_over = true;
            over.into()
        })
    }

    fn left_out(&mut self, what: LeftOut, n: u64) {
        self.walk.leaves.left_out(self.step.stage, what, n);
    }
}

fn another_number() -> ItemError {
    ItemError::result("a stage gave another number of rows than it may; this is a bug")
}

/// Of an item that cannot be split so often.
pub fn too_many_parts() -> ItemError {
    ItemError::result("the item became more parts than can be counted")
}
