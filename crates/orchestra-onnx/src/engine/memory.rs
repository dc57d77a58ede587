//! Rows in the worker's own memory, which a session uses in place of those in the batch slots: for warm-up, for batches that must be padded,
//! and page-locked between a GPU and slots that it may not copy from or to by itself. One more copy in memory takes less time there than the
//! copies of pageable memory that CUDA makes otherwise, a little at a time. It never runs a session.

use orchestra_worker::arena::Rows;

use super::host_memory::Block;
use super::model::{Model, RowAddresses, RowTensor};
use super::page_lock::Refused;

/// A block per input and per output of fixed shape, all zeros at first; `None` where the slots' own rows are used.
pub struct PrivateRows {
    rows: usize,
    inputs: Vec<Option<Block>>,
    outputs: Vec<Option<Block>>,
}

impl PrivateRows {
    /// Rows for every tensor of the model, out of `block`, which is asked for so many bytes.
    pub fn new<E>(model: &Model, rows: usize, block: impl Fn(usize) -> Result<Block, E>) -> Result<Self, E> {
        Self::for_some(model, rows, [true; 2], block)
    }

    /// Rows for the largest batch, in place of those slots that were refused.
    pub fn for_refused<E>(
        model: &Model,
        refused: &Refused,
        block: impl Fn(usize) -> Result<Block, E>,
    ) -> Result<Self, E> {
        Self::for_some(model, model.max_rows, [refused.inputs.is_some(), refused.outputs.is_some()], block)
    }

    fn for_some<E>(
        model: &Model,
        rows: usize,
        [inputs, outputs]: [bool; 2],
        block: impl Fn(usize) -> Result<Block, E>,
    ) -> Result<Self, E> {
        // What no address space holds, no allocator gives.
        let block = |tensor: &RowTensor| block(tensor.row_bytes.saturating_mul(rows));
        let input = |tensor| inputs.then(|| block(tensor)).transpose();
        let output = |tensor: &Option<_>| tensor.as_ref().filter(|_| outputs).map(block).transpose();
        Ok(Self {
            rows,
            inputs: model.inputs.iter().map(input).collect::<Result<_, _>>()?,
            outputs: model.outputs.iter().map(output).collect::<Result<_, _>>()?,
        })
    }

    pub fn bytes(&self) -> usize {
        self.inputs.iter().chain(&self.outputs).flatten().map(Block::len).sum()
    }

    /// All rows of all tensors. Valid until this is dropped.
    pub fn addresses(&self) -> RowAddresses {
        let input = |block: &Block| Rows { ptr: block.ptr().cast_const(), len: block.len() };
        let output = |block: &Block| Rows { ptr: block.ptr(), len: block.len() };
        RowAddresses {
            rows: self.rows,
            inputs: self.inputs.iter().flatten().map(input).collect(),
            outputs: self.outputs.iter().map(|block| block.as_ref().map(output)).collect(),
            trimmed_to: None,
        }
    }

    /// The addresses of `rows` rows that a session uses instead of those in the `slots`, which are fewer only where every tensor has a block
    /// here. Inputs are there already, with zeros behind them.
    ///
    /// # Safety
    /// No other code writes to the inputs at `slots` during the call, and no run uses these rows.
    pub unsafe fn copy_in(&mut self, slots: &RowAddresses, rows: usize) -> RowAddresses {
        let mut addresses = RowAddresses { rows, ..slots.clone() };
        let bytes = |block: &Block| block.len() / self.rows.max(1) * rows.min(self.rows);
        for (address, block) in addresses.inputs.iter_mut().zip(&self.inputs) {
            let Some(block) = block else { continue };
            let (len, all) = (address.len.min(block.len()), bytes(block));
            // SAFETY: both have at least `len` bytes, and the block, which is ours, has `all`, so they do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(address.ptr, block.ptr(), len);
                std::ptr::write_bytes(block.ptr().add(len), 0, all.saturating_sub(len));
            }
            *address = Rows { ptr: block.ptr().cast_const(), len: all };
        }
        for (address, block) in addresses.outputs.iter_mut().zip(&self.outputs) {
            if let (Some(address), Some(block)) = (address, block) {
                *address = Rows { ptr: block.ptr(), len: bytes(block) };
            }
        }
        addresses
    }

    /// Gives the first rows of the outputs that are here to the `slots`, as many as these have.
    ///
    /// # Safety
    /// No other code uses the outputs at `slots` during the call, and no run writes these rows.
    pub unsafe fn copy_out(&self, slots: &RowAddresses) {
        #[cfg(test)]
        super::cuda_runtime::fake::copies_out();
        for (address, block) in slots.outputs.iter().zip(&self.outputs) {
            if let (Some(address), Some(block)) = (address, block) {
                let len = address.len.min(block.len());
                // SAFETY: both have at least `len` bytes, and the block is ours, so they do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(block.ptr().cast_const(), address.ptr, len) };
            }
        }
    }
}
