//! The output slots of one worker process: which are in use, and by the rows of which slot. It decides nothing about batches.
//!
//! Batches of the same slot at the same worker share an output slot; their rows are different ones. So no more are in use than there are
//! slots, and one is free for every other slot. The lowest free one is taken: of the worker's memory only so many pages are ever touched as
//! batches are with it, or being processed, at a time.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::ledger::Rows;
use orchestra_core::{OutputSlotId, SlotId, WorkerId, locked};
use orchestra_worker::mapping::SharedBytes;
use orchestra_worker::output_region::OutputRegion;

/// Outlives its worker as long as outputs of it are being processed.
#[derive(Debug)]
pub struct OutputSlots {
    region: OutputRegion,
    /// By output slot.
    in_use: Mutex<Vec<Option<OutputSlotUse>>>,
}

#[derive(Debug)]
struct OutputSlotUse {
    by: SlotId,
    batches: usize,
}

/// Room for the outputs of a batch that is with the worker. They cannot be read before it is done.
#[derive(Debug)]
pub struct PendingOutputs {
    of: Arc<OutputSlots>,
    pub slot: OutputSlotId,
    rows: Rows,
}

/// The outputs of a batch that is done, and nothing else of what its worker can write to.
#[derive(Debug)]
pub struct DoneOutputs(PendingOutputs);

impl OutputSlots {
    /// Makes the memory for the outputs of `worker`.
    pub fn create(worker: WorkerId, layout: BatchLayout) -> io::Result<Arc<Self>> {
        let in_use = Mutex::new((0..layout.slots).map(|_| None).collect());
        Ok(Arc::new(Self { region: OutputRegion::create(&format!("outputs-{worker}"), layout)?, in_use }))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    /// Room for the outputs of these rows, which no other batch of this worker has.
    ///
    /// # Panics
    /// If as many other slots have room here as the arena has slots.
    pub fn take(self: &Arc<Self>, rows: Rows) -> PendingOutputs {
        let mut in_use = locked(&self.in_use);
        let same = in_use.iter().position(|place| place.as_ref().is_some_and(|place| place.by == rows.slot));
        let at = same.or_else(|| in_use.iter().position(Option::is_none));
        let at = at.expect("each slot of the arena has at most one output slot, and there are as many");
        in_use[at].get_or_insert(OutputSlotUse { by: rows.slot, batches: 0 }).batches += 1;
        PendingOutputs { of: Arc::clone(self), slot: OutputSlotId(at as u32), rows }
    }

    fn give_back(&self, slot: OutputSlotId) {
        let mut in_use = locked(&self.in_use);
        let place = &mut in_use[slot.index()];
        *place = place
            .take()
            .filter(|place| place.batches > 1)
            .map(|place| OutputSlotUse { batches: place.batches - 1, ..place });
    }
}

impl PendingOutputs {
    /// To be called when the worker has answered that the batch is done: it then leaves these rows alone, unless it is hostile.
    pub fn done(self) -> DoneOutputs {
        DoneOutputs(self)
    }
}

impl Drop for PendingOutputs {
    fn drop(&mut self) {
        self.of.give_back(self.slot);
    }
}

impl DoneOutputs {
    /// What the batch has of output `output`: as many bytes as the parent's layout says; `None` if the shape of that is dynamic.
    pub fn rows(&self, output: usize) -> Option<SharedBytes<'_>> {
        let PendingOutputs { of, slot, rows } = &self.0;
        of.region.rows(*slot, output, rows.first, rows.count)
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::{DType, Dim, TensorSpec};

    use super::*;

    const SLOTS: usize = 3;

    fn slots() -> Arc<OutputSlots> {
        let row = |name: &str| TensorSpec {
            name: name.into(),
            dtype: DType::U8,
            row: vec![Dim::Fixed(5)],
            batch: Dim::Dynamic,
        };
        let layout = BatchLayout::new(&[row("x")], &[row("y")], 8, SLOTS).unwrap();
        OutputSlots::create(WorkerId(1), layout).unwrap()
    }

    fn rows(slot: u32, first: usize, count: usize) -> Rows {
        Rows { slot: SlotId(slot), first, count }
    }

    #[test]
    fn the_lowest_free_output_slot_is_taken_and_there_is_one_for_each_slot() {
        let all = slots();
        let taken: Vec<PendingOutputs> = [2, 0, 1].map(|slot| all.take(rows(slot, 0, 8))).into();
        assert_eq!(taken.iter().map(|outputs| outputs.slot.0).collect::<Vec<_>>(), [0, 1, 2]);
        let mut taken = taken.into_iter();
        drop(taken.next());
        let done = taken.next().unwrap().done();
        assert_eq!(all.take(rows(2, 0, 8)).slot, OutputSlotId(0));
        assert_eq!(done.rows(0).map(SharedBytes::len), Some(40));
        drop(done);
        assert_eq!(all.take(rows(2, 0, 8)).slot, OutputSlotId(0));
    }

    #[test]
    fn batches_of_one_slot_share_an_output_slot_until_the_last_of_them_is_through() {
        let all = slots();
        let halves = [all.take(rows(1, 0, 4)), all.take(rows(1, 4, 4))];
        assert_eq!(halves.each_ref().map(|half| half.slot.0), [0, 0]);
        let [first, second] = halves;
        drop(first);
        let other = all.take(rows(0, 0, 8));
        assert_eq!(other.slot, OutputSlotId(1), "the second half is still with the worker");
        let second = second.done();
        assert_eq!(second.rows(0).map(SharedBytes::len), Some(20), "its own rows alone");
        assert!(second.rows(1).is_none());
        drop(second);
        assert_eq!(all.take(rows(2, 0, 8)).slot, OutputSlotId(0));
    }

    #[test]
    fn outputs_can_be_read_after_their_worker_is_forgotten() {
        let all = slots();
        let done = all.take(rows(0, 2, 1)).done();
        drop(all);
        assert_eq!(done.rows(0).map(SharedBytes::to_vec), Some(vec![0; 5]));
    }
}
