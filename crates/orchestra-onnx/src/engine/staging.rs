//! Page-locked rows between a GPU and batch slots that it may not copy from or to by itself. One more copy in memory takes less time than
//! the copies of pageable memory that CUDA makes otherwise, a little at a time. It neither locks nor runs anything.

use super::host_memory::{Block, HostMemory};
use super::model::{Model, Places};
use super::page_lock::Refused;
use orchestra_worker::arena::Rows;

/// Rows for one batch: inputs, outputs or both.
pub struct Staging {
    inputs: Option<Vec<Block>>,
    /// As the model's outputs: `None` where the runtime allocates.
    outputs: Option<Vec<Option<Block>>>,
}

impl Staging {
    /// Rows for the largest batch, in place of those slots that were refused; or why there are none.
    pub fn new(model: &Model, refused: &Refused, memory: &HostMemory) -> Result<Staging, String> {
        let block = |row_bytes: usize| {
            let bytes = row_bytes.checked_mul(model.max_rows).ok_or("the rows are too large")?;
            memory.page_locked(bytes)
        };
        let inputs = || model.inputs.iter().map(|tensor| block(tensor.row_bytes)).collect();
        let outputs =
            model.outputs.iter().map(|tensor| tensor.as_ref().map(|t| block(t.row_bytes)).transpose());
        Ok(Staging {
            inputs: refused.inputs.as_ref().map(|_| inputs()).transpose()?,
            outputs: refused.outputs.as_ref().map(|_| outputs.collect::<Result<_, String>>()).transpose()?,
        })
    }

    /// How many bytes it takes.
    pub fn bytes(&self) -> usize {
        let inputs = self.inputs.iter().flatten();
        inputs.chain(self.outputs.iter().flatten().flatten()).map(Block::len).sum()
    }

    /// The places that a session uses instead of those in the `slots`; inputs are there already.
    ///
    /// # Safety
    /// Nobody writes to the inputs at `slots` meanwhile, and no run uses these rows.
    pub unsafe fn copy_in(&mut self, slots: &Places) -> Places {
        let mut places = slots.clone();
        for (place, block) in places.inputs.iter_mut().zip(self.inputs.iter().flatten()) {
            let len = place.len.min(block.len());
            // SAFETY: both have at least `len` bytes, and the block is ours, so they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(place.ptr, block.ptr(), len) };
            *place = Rows { ptr: block.ptr().cast_const(), len };
        }
        for (place, block) in places.outputs.iter_mut().zip(self.outputs.iter().flatten()) {
            if let (Some(place), Some(block)) = (place, block) {
                *place = Rows { ptr: block.ptr(), len: place.len.min(block.len()) };
            }
        }
        places
    }

    /// Gives outputs that are here to the `slots`.
    ///
    /// # Safety
    /// Nobody else uses the outputs at `slots` meanwhile, and no run writes these rows.
    pub unsafe fn copy_out(&self, slots: &Places) {
        for (place, block) in slots.outputs.iter().zip(self.outputs.iter().flatten()) {
            if let (Some(place), Some(block)) = (place, block) {
                let len = place.len.min(block.len());
                // SAFETY: both have at least `len` bytes, and the block is ours, so they do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(block.ptr().cast_const(), place.ptr, len) };
            }
        }
    }
}
