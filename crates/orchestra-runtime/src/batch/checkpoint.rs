//! Checkpoints of a loop: the state that a worker left in its outputs becomes the inputs of its rows, so that any worker goes on from there.
//! Only the process of the run writes inputs, and what the worker says of rounds is checked before that. It decides nothing about batches.

use orchestra_core::Iteration;
use orchestra_core::ledger::Rows;

use crate::batch::output_slots::DoneOutputs;
use crate::batch::slot_pool::FilledSlot;

/// Bytes of a number of rounds.
const NUMBER: usize = size_of::<i64>();

/// No round lies behind any row of the slot. What an earlier use of it has left there goes.
///
/// # Safety
/// No row of the slot is with a worker.
pub unsafe fn begin(iteration: &Iteration, slot: &FilledSlot) {
    let Some(rounds) = place_of_rounds(iteration, slot) else { return };
    for row in 0..slot.tokens.len() {
        // SAFETY: as the caller vouches.
        unsafe { slot.input_row_mut(rounds, row) }.fill(0);
    }
}

/// Lays the state of `rows`, which their worker has left at a checkpoint in `outputs`, into their inputs.
///
/// # Errors
/// What the worker left cannot be: nothing was changed.
///
/// # Safety
/// The rows are with no worker, and have no other user.
pub unsafe fn keep(
    iteration: &Iteration,
    slot: &FilledSlot,
    rows: Rows,
    outputs: &DoneOutputs,
) -> Result<(), String> {
    let place = place_of_rounds(iteration, slot).ok_or("a checkpoint of a stage that has none")?;
    let last = slot.layout().outputs.len().saturating_sub(1);
    let said = outputs.rows(last).filter(|said| said.len() == rows.count * NUMBER);
    let said = said.ok_or("a checkpoint without rounds")?.to_vec();
    let said: &[[u8; NUMBER]] = said.as_chunks().0;
    let mut further = Vec::new();
    for (at, now) in said.iter().enumerate() {
        // SAFETY: as the caller vouches.
        let before = unsafe { slot.input_row_mut(place, rows.first + at) };
        let (before, now) = (number(before), i64::from_ne_bytes(*now));
        if !iteration.is_checkpoint(before, now) {
            return Err(format!("a checkpoint after {now} rounds of a row that had {before}"));
        }
        if now > before {
            further.push((at, now));
        }
    }
    if further.is_empty() {
        return Err("a checkpoint at which no row is further".to_owned());
    }
    for feed in &iteration.feed {
        let state = outputs.rows(feed.output).filter(|state| state.len().is_multiple_of(rows.count));
        let state = state.ok_or("a checkpoint without its state")?;
        let bytes = state.len() / rows.count;
        for (at, _) in &further {
            // SAFETY: as the caller vouches.
            let input = unsafe { slot.input_row_mut(feed.input, rows.first + at) };
            // The planner has checked that both have one size.
            state.slice(at * bytes..(at + 1) * bytes).copy_to(input);
        }
    }
    for (at, now) in further {
        // SAFETY: as the caller vouches.
        unsafe { slot.input_row_mut(place, rows.first + at) }.copy_from_slice(&now.to_ne_bytes());
    }
    Ok(())
}

/// Behind the inputs of the model: the rounds of each row.
fn place_of_rounds(iteration: &Iteration, slot: &FilledSlot) -> Option<usize> {
    slot.layout().inputs.len().checked_sub(1).filter(|_| iteration.has_checkpoints())
}

fn number(bytes: &[u8]) -> i64 {
    bytes.first_chunk().map_or(0, |bytes| i64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use orchestra_core::batch_layout::BatchLayout;
    use orchestra_core::iteration::Feed;
    use orchestra_core::{DType, Dim, ItemId, SlotId, SourceId, TensorSpec, WorkerId};
    use orchestra_worker::arena::{Arena, SharedMemory, WorkerArena};

    use super::*;
    use crate::batch::output_slots::OutputSlots;
    use crate::batch::slot_pool::SlotPool;
    use crate::context::RunClock;
    use crate::flow::ticket::Ticket;
    use crate::flow::token::Token;

    const ROWS: usize = 4;

    fn spec(name: &str) -> TensorSpec {
        TensorSpec { name: name.into(), dtype: DType::I64, row: vec![Dim::Fixed(1)], batch: Dim::Dynamic }
    }

    /// A filled slot of which row `n` is `n`, and what a worker gives: the state `y` and the rounds of each row.
    struct Place {
        iteration: Iteration,
        slot: FilledSlot,
        outputs: Arc<OutputSlots>,
        worker: WorkerArena,
    }

    impl Place {
        fn new() -> Place {
            let iteration = Iteration {
                rounds: 10,
                feed: vec![Feed { output: 0, input: 0 }],
                until: None,
                checkpoint: 4,
            };
            let inputs: Vec<TensorSpec> =
                [spec("x"), spec("kept")].into_iter().chain(iteration.rounds_input()).collect();
            let layout =
                BatchLayout::new(&inputs, &[spec("y"), Iteration::rounds_output()], ROWS, 1).unwrap();
            let outputs = OutputSlots::create(WorkerId(1), layout.clone()).unwrap();
            let arena = Arena::create("checkpoint", layout.clone()).unwrap();
            let memory = SharedMemory { inputs: arena.fd(), outputs: outputs.fd() };
            let worker = WorkerArena::map(memory.try_clone_to_owned().unwrap(), layout).unwrap();
            let pool = SlotPool::new(arena, RunClock::start(), 1, Arc::default(), Box::new(|| {}));
            for index in 0..ROWS as u64 {
                let mut lease = pool.claim_now().or_else(|| pool.claim()).unwrap();
                (0..3).for_each(|input| lease.input_mut(input).copy_from_slice(&index.to_ne_bytes()));
                let id = ItemId { source: SourceId(0), index };
                lease.publish(Token::whole(Ticket::alone(id, index, "", b"")));
            }
            let slot = pool.next_filled().unwrap();
            // SAFETY: here and below, there is no worker.
            unsafe { begin(&iteration, &slot) };
            Place { iteration, slot, outputs, worker }
        }

        /// What the worker gives for all rows, and a checkpoint of `rows`.
        fn checkpoint(&self, state: [i64; ROWS], rounds: [i64; ROWS], rows: Rows) -> Result<(), String> {
            let pending = self.outputs.take(rows);
            for (output, values) in [(0, state), (1, rounds)] {
                let place = self.worker.output_rows(pending.slot, output, 0, ROWS).unwrap();
                let bytes: Vec<u8> = values.iter().flat_map(|n| n.to_ne_bytes()).collect();
                // SAFETY: as above.
                unsafe { place.ptr.copy_from_nonoverlapping(bytes.as_ptr(), place.len) };
            }
            // SAFETY: as above.
            unsafe { keep(&self.iteration, &self.slot, rows, &pending.done()) }
        }

        fn input(&self, input: usize) -> [i64; ROWS] {
            // SAFETY: as above.
            std::array::from_fn(|row| number(unsafe { self.slot.input_row_mut(input, row) }))
        }
    }

    #[test]
    fn rows_that_are_further_have_the_state_that_their_worker_left_and_no_others() {
        let place = Place::new();
        let all = Rows { slot: SlotId(0), first: 0, count: ROWS };
        assert_eq!(place.input(2), [0; ROWS], "no round lies behind a row, whatever lay there");
        place.checkpoint([50, 51, 52, 53], [4, 0, 4, 4], all).unwrap();
        assert_eq!((place.input(0), place.input(2)), ([50, 1, 52, 53], [4, 0, 4, 4]));
        // The two halves are with other workers now.
        place.checkpoint([60, 61, 62, 63], [8, 4, 9, 9], Rows { count: 2, ..all }).unwrap();
        place.checkpoint([70, 71, 72, 73], [9, 9, 4, 8], Rows { first: 2, count: 2, ..all }).unwrap();
        assert_eq!((place.input(0), place.input(2)), ([60, 61, 52, 73], [8, 4, 4, 8]));
        assert_eq!(place.input(1), [0, 1, 2, 3], "what is not fed stays");
    }

    #[test]
    fn a_checkpoint_that_cannot_be_changes_nothing() {
        let place = Place::new();
        let all = Rows { slot: SlotId(0), first: 0, count: ROWS };
        for rounds in [[0; ROWS], [4, 4, 4, 5], [4, 4, 4, 8], [-4, 4, 4, 4], [4, i64::MIN, 4, i64::MAX]] {
            let why = place.checkpoint([9; ROWS], rounds, all).unwrap_err();
            assert!(why.starts_with("a checkpoint "), "{why}");
            assert_eq!((place.input(0), place.input(2)), ([0, 1, 2, 3], [0; ROWS]));
        }
    }
}
