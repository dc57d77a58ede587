//! Rows in the worker's own memory: for warm-up, and for batches that must be padded. It never runs a session.

use orchestra_worker::arena::Rows;

use super::host_memory::{Block, HostMemory};
use super::model::{Model, Places, RowTensor};

/// One row block per input and per output of fixed shape, all zeros at first.
pub struct PrivateRows {
    rows: usize,
    inputs: Vec<Block>,
    outputs: Vec<Option<Block>>,
}

impl PrivateRows {
    /// Memory for `rows` rows of every tensor of the model; `None` if there is not so much.
    pub fn new(model: &Model, rows: usize, memory: &HostMemory) -> Option<PrivateRows> {
        let block = |tensor: &RowTensor| memory.zeros(tensor.row_bytes.checked_mul(rows)?);
        let inputs = model.inputs.iter().map(block).collect::<Option<_>>()?;
        let outputs = model.outputs.iter().map(|tensor| match tensor {
            Some(tensor) => Some(Some(block(tensor)?)),
            None => Some(None),
        });
        Some(PrivateRows { rows, inputs, outputs: outputs.collect::<Option<_>>()? })
    }

    /// Where the rows lie. Valid until this is dropped.
    pub fn places(&self) -> Places {
        Places {
            rows: self.rows,
            inputs: self.inputs.iter().map(|b| Rows { ptr: b.ptr().cast_const(), len: b.len() }).collect(),
            outputs: self
                .outputs
                .iter()
                .map(|b| b.as_ref().map(|b| Rows { ptr: b.ptr(), len: b.len() }))
                .collect(),
        }
    }

    /// Takes the inputs at `from`, at most as many rows as there are here, and fills the other rows with zeros.
    ///
    /// # Safety
    /// Nobody writes to the inputs at `from` meanwhile, and no run reads these rows.
    pub unsafe fn copy_in(&mut self, from: &Places) {
        for (block, source) in self.inputs.iter_mut().zip(&from.inputs) {
            let len = source.len.min(block.len());
            // SAFETY: both have at least `len` bytes, and one is private, so they do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(source.ptr, block.ptr(), len);
                std::ptr::write_bytes(block.ptr().add(len), 0, block.len() - len);
            }
        }
    }

    /// Gives the first rows of the outputs to `to`, as many as it has.
    ///
    /// # Safety
    /// Nobody else uses the outputs at `to` meanwhile, and no run writes these rows.
    pub unsafe fn copy_out(&self, to: &Places) {
        for (block, target) in self.outputs.iter().zip(&to.outputs) {
            if let (Some(block), Some(target)) = (block, target) {
                let len = target.len.min(block.len());
                // SAFETY: both have at least `len` bytes, and one is private, so they do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(block.ptr().cast_const(), target.ptr, len) };
            }
        }
    }
}
