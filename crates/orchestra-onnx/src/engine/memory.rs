//! Rows in the worker's own memory, which a session uses in place of those in the batch slots: for warm-up, and for batches that must be
//! padded. It never runs a session.

use std::alloc::Layout;
use std::ptr::NonNull;

use orchestra_core::TextInput;
use orchestra_core::batch_layout::SPAN_ALIGN;
use orchestra_worker::arena::RowMemory;
use orchestra_worker::engine::EngineRunError;

use super::errors;
use super::model::{RowAddresses, RowTensor, SessionModel};

/// A block per input and per output of fixed shape, all zeros at first.
pub struct PrivateRows {
    rows: usize,
    inputs: Vec<AlignedBlock>,
    outputs: Vec<Option<AlignedBlock>>,
    /// Texts of a row, for each input of texts.
    n_texts: Vec<usize>,
}

impl PrivateRows {
    /// `rows` rows for every tensor of the model.
    pub fn new(model: &SessionModel, rows: usize) -> Result<Self, EngineRunError> {
        let block = |tensor: &RowTensor| {
            // What no address space holds, no allocator gives.
            AlignedBlock::zeros(tensor.row_bytes.saturating_mul(rows)).ok_or_else(|| errors::no_memory(rows))
        };
        let output = |tensor: &Option<_>| tensor.as_ref().map(block).transpose();
        Ok(Self {
            rows,
            inputs: model.inputs.iter().map(block).collect::<Result<_, _>>()?,
            outputs: model.outputs.iter().map(output).collect::<Result<_, _>>()?,
            n_texts: model.text_inputs.iter().map(TextInput::n_texts).collect(),
        })
    }

    /// All rows of all tensors, and empty texts. Valid until this is dropped.
    pub fn addresses(&self) -> RowAddresses<'static> {
        let input = |block: &AlignedBlock| RowMemory { ptr: block.ptr().cast_const(), len: block.len() };
        let output = |block: &AlignedBlock| RowMemory { ptr: block.ptr(), len: block.len() };
        RowAddresses {
            rows: self.rows,
            inputs: self.inputs.iter().map(input).collect(),
            texts: self.n_texts.iter().map(|n| vec![""; n * self.rows]).collect(),
            outputs: self.outputs.iter().map(|block| block.as_ref().map(output)).collect(),
            trimmed_to: None,
        }
    }

    /// The addresses of all rows, for a session that uses them instead of those in the `slots`, which are fewer. Inputs are there already,
    /// with zeros behind them, and behind texts the same again: a model may refuse a text that no row has.
    ///
    /// # Safety
    /// No other code writes to the inputs at `slots` during the call, and no run uses these rows.
    pub unsafe fn copy_in<'a>(&mut self, slots: &RowAddresses<'a>) -> RowAddresses<'a> {
        for (address, block) in slots.inputs.iter().zip(&self.inputs) {
            let len = address.len.min(block.len());
            // SAFETY: both have at least `len` bytes, and the block is ours, so they do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(address.ptr, block.ptr(), len);
                std::ptr::write_bytes(block.ptr().add(len), 0, block.len() - len);
            }
        }
        let repeated =
            |(texts, n): (&Vec<&'a str>, &usize)| texts.iter().copied().cycle().take(n * self.rows).collect();
        let texts = slots.texts.iter().zip(&self.n_texts).map(repeated).collect();
        RowAddresses { trimmed_to: slots.trimmed_to, texts, ..self.addresses() }
    }

    /// Gives the first rows of the outputs that are here to the `slots`, as many as these have.
    ///
    /// # Safety
    /// No other code uses the outputs at `slots` during the call, and no run writes these rows.
    pub unsafe fn copy_out(&self, slots: &RowAddresses<'_>) {
        for (address, block) in slots.outputs.iter().zip(&self.outputs) {
            if let (Some(address), Some(block)) = (address, block) {
                let len = address.len.min(block.len());
                // SAFETY: both have at least `len` bytes, and the block is ours, so they do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(block.ptr().cast_const(), address.ptr, len) };
            }
        }
    }
}

/// Bytes, aligned like those of the arena. Accessed through its pointer only, so that a session may write while others know the address.
pub struct AlignedBlock {
    start: NonNull<u8>,
    len: usize,
    layout: Layout,
}

// SAFETY: a block is memory that it alone owns.
unsafe impl Send for AlignedBlock {}

impl AlignedBlock {
    pub fn zeros(len: usize) -> Option<AlignedBlock> {
        let layout = Layout::from_size_align(len.max(1), SPAN_ALIGN).ok()?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(AlignedBlock { start, len, layout })
    }

    /// Writes these bytes again and again, to the end.
    pub fn fill(&mut self, bytes: &[u8]) {
        for at in (0..self.len).step_by(bytes.len().max(1)) {
            self.write(at, bytes);
        }
    }

    /// Writes these bytes, as far as there is room.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let len = bytes.len().min(self.len.saturating_sub(at));
        // SAFETY: the block has so many bytes from there on, and is borrowed by this call alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr().add(at.min(self.len)), len) };
    }

    /// Its first byte. Valid until the block is dropped.
    pub fn ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for AlignedBlock {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed only here.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}
