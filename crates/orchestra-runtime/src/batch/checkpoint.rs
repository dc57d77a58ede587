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
    for row in 0..slot.items.len() {
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
/// The rows are with no worker, and nobody else uses them.
pub unsafe fn keep(
    iteration: &Iteration,
    slot: &FilledSlot,
    rows: Rows,
    outputs: &DoneOutputs,
) -> Result<(), String> {
    let place = place_of_rounds(iteration, slot).ok_or("a checkpoint of a stage that has none")?;
    let last = slot.layout().outputs.len().saturating_sub(1);
    let said = outputs.rows(last).filter(|said| said.len() == rows.count * NUMBER);
    let said: &[[u8; NUMBER]] = said.ok_or("a checkpoint without rounds")?.as_chunks().0;
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
            input.copy_from_slice(&state[at * bytes..(at + 1) * bytes]);
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
