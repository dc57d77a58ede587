//! One batch of a loop on its way through the rounds: which rows still take part, and what is copied to and from the memory of the loop before and after each
//! round. It runs no session.

use orchestra_core::DType;
use orchestra_core::iteration::{Iteration, RowRounds, stretches};
use orchestra_worker::frames::DynamicOutput;

use super::iteration::{CopyDirection, LoopDevice, LoopTensors};
use super::loop_parts::RowParts;
use super::model::{RowAddresses, SessionModel};

/// The rows of a run on their way through the rounds. They lie in the memory of the loop in an order of their own: those with the most parts first, so that
/// those that are at work are the first ones.
pub struct RunningLoop<'a> {
    iteration: &'a Iteration,
    model: &'a SessionModel,
    place: &'a LoopDevice,
    addresses: &'a RowAddresses<'a>,
    parts: &'a RowParts<'a>,
    /// For each place in the memory of the loop the row that lies there, without padding.
    order: Vec<usize>,
    /// By places.
    pub rounds: RowRounds,
    watched: Option<BoundOutput<'a>>,
    /// For each output that is collected, for each row those of all rounds.
    collected: Vec<Vec<Vec<u8>>>,
}

impl<'a> RunningLoop<'a> {
    pub fn new(
        iteration: &'a Iteration,
        model: &'a SessionModel,
        place: &'a LoopDevice,
        addresses: &'a RowAddresses<'a>,
        parts: &'a RowParts<'a>,
    ) -> Self {
        let order = parts.longest_first();
        let counts: Vec<u32> = order.iter().map(|row| parts.counts[*row]).collect();
        Self {
            iteration,
            model,
            place,
            addresses,
            parts,
            rounds: RowRounds::new(iteration, &counts),
            watched: BoundOutput::new(iteration, model, addresses.rows),
            collected: vec![vec![Vec::new(); order.len()]; iteration.collect.len()],
            order,
        }
    }

    /// How many rows the next round runs: none behind the last that has not ended, unless the batch is padded to its size.
    pub fn rows_to_run(&self) -> usize {
        let is_padded = self.model.batch.is_some() || self.addresses.rows > self.order.len();
        if is_padded || self.iteration.each.is_empty() {
            return self.addresses.rows;
        }
        self.rounds.living().next_back().map_or(0, |last| last + 1)
    }

    /// Copies what the first round takes.
    ///
    /// # Safety
    /// As for [`BoundSession::run`].
    pub unsafe fn copy_in(&self, memory: &LoopTensors) -> ort::Result<()> {
        let padding = self.order.len()..self.addresses.rows;
        let rows = self.order.iter().copied().chain(padding).enumerate();
        let moves = stretches(rows);
        for ((to, from), tensor) in memory.inputs.iter().zip(&self.addresses.inputs).zip(&self.model.inputs) {
            for (place, row, count) in &moves {
                let bytes = tensor.row_bytes;
                // SAFETY: both have these rows, and no writer meanwhile.
                unsafe {
                    let (to, from) = (to.ptr.add(place * bytes), from.ptr.add(row * bytes));
                    self.place.copy(to, from, count * bytes, CopyDirection::In)?;
                }
            }
        }
        self.place.synchronize()
    }

    /// Copies what this round takes of the rows that have not ended.
    ///
    /// # Safety
    /// The memory has no other user.
    pub unsafe fn copy_parts(&self, memory: &LoopTensors, round: usize) -> ort::Result<()> {
        for (each, input) in self.iteration.each.iter().enumerate() {
            let bytes = self.model.inputs[*input].row_bytes;
            for place in self.rounds.living() {
                let Some(part) = self.parts.part(each, self.order[place], round, bytes) else { continue };
                // SAFETY: the memory has room for this row.
                unsafe {
                    let to = memory.inputs[*input].ptr.add(place * bytes);
                    self.place.copy(to, part.as_ptr(), part.len(), CopyDirection::In)?;
                }
            }
        }
        if self.iteration.each.is_empty() { Ok(()) } else { self.place.synchronize() }
    }

    /// Takes what a round gave: what is collected of rows that had not ended before it, and all outputs of rows that end with it.
    ///
    /// # Safety
    /// The run is over, and the rows at the addresses of the run have no other user.
    pub unsafe fn take(&mut self, memory: &LoopTensors, round: usize) -> ort::Result<()> {
        // Where each output of this round lies.
        let lies = |output: usize| match self.iteration.feed.iter().find(|feed| feed.output == output) {
            Some(feed) if round % 2 == 1 => memory.inputs[feed.input].ptr,
            _ => memory.outputs[output].ptr,
        };
        if let Some(watched) = &mut self.watched {
            let (to, len) = (watched.values.as_mut_ptr(), watched.values.len());
            // SAFETY: the run is over, and the buffer is as long as the output.
            unsafe { self.place.copy(to, lies(watched.output), len, CopyDirection::Out) }?;
        }
        for (output, rows) in self.iteration.collect.iter().zip(&mut self.collected) {
            let bytes = self.model.outputs[*output].as_ref().map_or(0, |tensor| tensor.row_bytes);
            let mut all = vec![0; self.rounds.living().next_back().map_or(0, |last| (last + 1) * bytes)];
            // SAFETY: the output has so many rows at least.
            unsafe { self.place.copy(all.as_mut_ptr(), lies(*output), all.len(), CopyDirection::Out) }?;
            for place in self.rounds.living() {
                rows[self.order[place]].extend_from_slice(&all[place * bytes..(place + 1) * bytes]);
            }
        }
        let watched = &self.watched;
        let ends = self.rounds.round(|place| watched.as_ref().is_some_and(|watched| watched.is_met(place)));
        for (place, row, count) in stretches(ends.into_iter().map(|place| (place, self.order[place]))) {
            for (output, to) in self.addresses.outputs.iter().enumerate() {
                let (Some(tensor), Some(to)) = (&self.model.outputs[output], to) else { continue };
                let bytes = tensor.row_bytes;
                // SAFETY: both have these rows.
                unsafe {
                    let (to, from) = (to.ptr.add(row * bytes), lies(output).add(place * bytes));
                    self.place.copy(to, from, count * bytes, CopyDirection::Out)?;
                }
            }
        }
        Ok(())
    }

    /// The rounds of each row, and what is collected, for each stretch of rows with as many rounds.
    pub fn end(self, rounds: &[i64]) -> (Vec<i64>, Vec<DynamicOutput>) {
        let mut of_rows = vec![0; rounds.len()];
        self.order.iter().zip(rounds).for_each(|(row, rounds)| of_rows[*row] = *rounds);
        let mut outputs = Vec::new();
        for (output, rows) in self.iteration.collect.iter().zip(self.collected) {
            let Some(tensor) = &self.model.outputs[*output] else { continue };
            let row = tensor.row.iter().map(|n| *n as usize);
            for (rounds, data) in of_rows.iter().zip(rows) {
                let rounds = *rounds as usize;
                match outputs.last_mut() {
                    Some(DynamicOutput { output: of, shape, data: all, .. })
                        if of == output && shape[1] == rounds =>
                    {
                        shape[0] += 1;
                        all.extend_from_slice(&data);
                    }
                    _ => {
                        let shape = [1, rounds].into_iter().chain(row.clone()).collect();
                        outputs.push(DynamicOutput { output: *output, dtype: tensor.dtype, shape, data });
                    }
                }
            }
        }
        (of_rows, outputs)
    }
}

/// The output that a bound is set for, after a round.
struct BoundOutput<'a> {
    of: &'a Iteration,
    output: usize,
    dtype: DType,
    values: Vec<u8>,
}

impl<'a> BoundOutput<'a> {
    fn new(of: &'a Iteration, model: &SessionModel, rows: usize) -> Option<Self> {
        let output = of.until.as_ref()?.output;
        let tensor = model.outputs.get(output)?.as_ref()?;
        Some(Self { of, output, dtype: tensor.dtype, values: vec![0; tensor.row_bytes * rows] })
    }

    fn is_met(&self, row: usize) -> bool {
        let value = self.values.get(row * self.dtype.size_bytes()..).unwrap_or_default();
        self.of.until.is_some_and(|until| until.is_met_by(self.dtype, value))
    }
}
