//! The loop of a model over its own outputs: which output becomes which input of the next round, which rows have ended with a round, and how
//! far each row is. It knows no engine and touches no tensor but the one number of a row that a bound is set for.
//!
//! A batch runs until all of its rows have ended. A row that ends before the others gives the outputs of that round. A loop may step through its rows: then
//! each round takes the next part of a row, and the row ends with its last part.

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
    /// The inputs that take the next part of the row in each round, along its first dimension. None of them is fed.
    pub each: Vec<usize>,
    /// The outputs of which a row has those of all rounds, one behind the other.
    pub collect: Vec<usize>,
    /// Ends a row before that.
    pub until: Option<Until>,
}

/// An output that becomes an input of the next round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Encode, Decode)]
pub struct Feed {
    /// Of the model.
    pub output: usize,
    /// Of the model, among its inputs in slots and, behind them, those that lie in none; of the same type and shape.
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

/// An input of a loop that lies in no slot.
#[derive(Debug, Clone, PartialEq, Encode, Decode, Serialize)]
pub struct LoopInput {
    /// What a round takes of it.
    pub tensor: TensorSpec,
    pub first: FirstRound,
}

/// What the first round takes.
#[derive(Debug, Clone, PartialEq, Encode, Decode, Serialize)]
pub enum FirstRound {
    /// The first part of a value of the row. The inputs of this sort have the values of a row in their order.
    Part,
    /// The same for each row: all elements of a row in native byte order, or one, which fills it.
    Constant(Vec<u8>),
}

impl Iteration {
    /// The output `rounds`: behind those of the model in the slots.
    pub fn rounds_output() -> TensorSpec {
        TensorSpec { name: ROUNDS.to_owned(), dtype: DType::I64, row: Vec::new(), batch: Dim::Dynamic }
    }
}

/// How far the rows of a batch are.
#[derive(Debug)]
pub struct RowRounds {
    /// Per row: the most rounds.
    most: Vec<u32>,
    /// Per row: the rounds that it took, once it has ended.
    ended: Vec<Option<u32>>,
    ran: u32,
    n_living: usize,
}

impl RowRounds {
    /// Before the first round of rows that have so many parts each; of so many rows without parts, [`u32::MAX`] of each.
    pub fn new(of: &Iteration, parts: &[u32]) -> Self {
        let most = parts.iter().map(|parts| of.rounds.min(*parts)).collect();
        Self { most, ended: vec![None; parts.len()], ran: 0, n_living: parts.len() }
    }

    /// Counts a round, and says which rows end with it, ascending. `is_met` says whether a row meets the bound.
    pub fn round(&mut self, mut is_met: impl FnMut(usize) -> bool) -> Vec<usize> {
        self.ran = self.ran.saturating_add(1);
        let mut ends = Vec::new();
        for (row, (ended, most)) in self.ended.iter_mut().zip(&self.most).enumerate() {
            if ended.is_none() && (self.ran >= *most || is_met(row)) {
                *ended = Some(self.ran);
                ends.push(row);
            }
        }
        self.n_living -= ends.len();
        ends
    }

    /// Rows that have not ended, ascending.
    pub fn living(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.ended.iter().enumerate().filter(|(_, ended)| ended.is_none()).map(|(row, _)| row)
    }

    /// Per row, the rounds that it took; `None` as long as some row has not ended.
    pub fn all(&self) -> Option<Vec<i64>> {
        (self.n_living == 0).then(|| self.ended.iter().flatten().map(|rounds| i64::from(*rounds)).collect())
    }
}

/// Rows that lie at other places in a loop, as stretches that can be moved at once: the first place, the first row, and how many.
pub fn stretches(moves: impl IntoIterator<Item = (usize, usize)>) -> Vec<(usize, usize, usize)> {
    let mut found: Vec<(usize, usize, usize)> = Vec::new();
    for (place, row) in moves {
        match found.last_mut() {
            Some((first, of, count)) if *first + *count == place && *of + *count == row => *count += 1,
            _ => found.push((place, row, 1)),
        }
    }
    found
}

#[cfg(test)]
#[path = "iteration_tests.rs"]
mod tests;
