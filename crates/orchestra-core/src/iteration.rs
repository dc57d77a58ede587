//! The loop of a model over its own outputs: which output becomes which input of the next round, which rows have ended with a round, and how
//! far each row is. It knows no engine and touches no tensor but the one number of a row that a bound is set for.
//!
//! A worker runs a batch in *legs*. A leg begins with the state that lies in the input slot, and ends when all rows have ended, or after so
//! many rounds as there are between checkpoints. A row that ends before the others gives the outputs of that round. If the leg ends in a
//! checkpoint, that row stays where the leg began, and ends again in the next one, beside rows that run anyway; so a checkpoint is nothing
//! but the state of the rows that go on, and a batch is done at once. It costs at most as many rounds more as a leg has, in the last leg.

use bincode::{Decode, Encode};
use serde::Serialize;

use crate::element::Element;
use crate::tensor::{DType, Dim, TensorSpec};

/// The name of the output that says how many rounds a row took.
pub const ROUNDS: &str = "rounds";

/// The settings of a loop. Inputs and outputs are meant by their places in the model.
#[derive(Debug, Clone, PartialEq, Serialize, Encode, Decode)]
pub struct Iteration {
    /// The most rounds of a row, at least 1.
    pub rounds: u32,
    /// What each round takes of the one before. No output and no input is in two of these.
    pub feed: Vec<Feed>,
    /// Ends a row before that.
    pub until: Option<Until>,
    /// Rounds between two checkpoints; 0: there is none.
    pub checkpoint: u32,
}

/// An output that becomes an input of the next round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Encode, Decode)]
pub struct Feed {
    /// Of the model.
    pub output: usize,
    /// Of the model; of the same type and shape.
    pub input: usize,
}

/// A bound below which a row has ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Encode, Decode)]
pub struct Until {
    /// Of the model, one number per row.
    pub output: usize,
    pub below: f64,
    /// Whether the bound itself is low enough.
    pub or_equal: bool,
}

impl Until {
    /// Whether a value meets the bound. What is no number never does.
    pub fn is_met(&self, value: f64) -> bool {
        value < self.below || (self.or_equal && value <= self.below)
    }

    /// The same for the element of `dtype` with which `bytes` begin, in native byte order; nothing is met by less than one.
    pub fn is_met_by(&self, dtype: DType, bytes: &[u8]) -> bool {
        bytes.len() >= dtype.size_bytes() && self.is_met(Element::read(dtype, bytes).to_f64())
    }
}

impl Iteration {
    /// The output `rounds`: behind those of the model in the slots.
    pub fn rounds_output() -> TensorSpec {
        TensorSpec { name: ROUNDS.to_owned(), dtype: DType::I64, row: Vec::new(), batch: Dim::Dynamic }
    }

    /// What lies behind the inputs of the model in the slots: the rounds that brought a row to its state. Only where there are checkpoints.
    pub fn rounds_input(&self) -> Option<TensorSpec> {
        self.has_checkpoints().then(Self::rounds_output)
    }

    /// Whether a batch may be left at a checkpoint: whether there are more rounds than up to the first of them.
    pub fn has_checkpoints(&self) -> bool {
        self.checkpoint > 0 && self.checkpoint < self.rounds
    }

    /// Whether a worker that leaves a batch at a checkpoint may say of a row that `now` rounds brought it to its state, after `before`
    /// did: none since then, or as many as there are between checkpoints, and fewer than there may be.
    pub fn is_checkpoint(&self, before: i64, now: i64) -> bool {
        now == before
            || (before.checked_add(i64::from(self.checkpoint)) == Some(now) && now < i64::from(self.rounds))
    }
}

#[derive(Debug)]
pub struct Leg<'a> {
    of: &'a Iteration,
    /// Per row: rounds before this leg.
    before: Vec<u32>,
    /// Per row: rounds in all, once it has ended.
    ended: Vec<Option<u32>>,
    ran: u32,
    n_living: usize,
}

/// Where a leg is after a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegState {
    /// There is another round.
    GoesOn,
    /// It is left at a checkpoint, with rows that have not ended.
    Paused,
    /// All rows have ended.
    Done,
}

impl<'a> Leg<'a> {
    /// A leg of rows that so many rounds have brought to the state they are in.
    pub fn new(of: &'a Iteration, before: Vec<u32>) -> Self {
        Self { of, ended: vec![None; before.len()], n_living: before.len(), before, ran: 0 }
    }

    /// Counts a round, and says which rows end with it, ascending. `is_met` says whether a row meets the bound.
    pub fn round(&mut self, mut is_met: impl FnMut(usize) -> bool) -> Vec<usize> {
        self.ran = self.ran.saturating_add(1);
        let mut ends = Vec::new();
        for (row, (ended, before)) in self.ended.iter_mut().zip(&self.before).enumerate() {
            let rounds = before.saturating_add(self.ran);
            if ended.is_none() && (rounds >= self.of.rounds || is_met(row)) {
                *ended = Some(rounds);
                ends.push(row);
            }
        }
        self.n_living -= ends.len();
        ends
    }

    pub fn state(&self) -> LegState {
        match self.n_living {
            0 => LegState::Done,
            _ if self.of.has_checkpoints() && self.ran >= self.of.checkpoint => LegState::Paused,
            _ => LegState::GoesOn,
        }
    }

    /// The rows that have not ended, ascending.
    pub fn living(&self) -> impl Iterator<Item = usize> {
        self.ended.iter().enumerate().filter(|(_, ended)| ended.is_none()).map(|(row, _)| row)
    }

    /// Per row, what is said of it when the leg is left: the rounds that it took, or, at a checkpoint, those that brought it to the state
    /// it is kept in, which is that at the beginning of the leg for a row that has ended.
    pub fn rounds(&self) -> Vec<i64> {
        let is_done = self.state() == LegState::Done;
        let rows = self.ended.iter().zip(&self.before);
        rows.map(|(ended, before)| match ended {
            Some(rounds) if is_done => i64::from(*rounds),
            Some(_) => i64::from(*before),
            None => i64::from(before.saturating_add(self.ran)),
        })
        .collect()
    }
}

/// Ascending rows as stretches of consecutive ones: first and how many.
pub fn stretches(rows: impl IntoIterator<Item = usize>) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for row in rows {
        match found.last_mut() {
            Some((first, count)) if *first + *count == row => *count += 1,
            _ => found.push((row, 1)),
        }
    }
    found
}

#[cfg(test)]
#[path = "iteration_tests.rs"]
mod tests;
