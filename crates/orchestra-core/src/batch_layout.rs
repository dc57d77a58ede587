//! Where the rows of a batch lie in shared memory. Arithmetic only: the memory itself belongs to `orchestra-worker`.
//!
//! The inputs of a stage are one block, its arena. Each worker has a block of its own for outputs, with as many output slots as the arena
//! has slots.
//!
//! ```text
//! arena:   | slot 0 | slot 1 | ...          each: input "a" rows 0..max, input "b" rows 0..max, ...
//! outputs: | output slot 0 | 1 | ...        each: output "y" rows 0..max, ...
//!                                           (every span starts at a multiple of 64 bytes)
//! ```

use bincode::{Decode, Encode};
use thiserror::Error;

use crate::ids::{OutputSlotId, SlotId};
use crate::tensor::TensorSpec;

/// Spans start at multiples of this many bytes: a cache line, and what SIMD kernels like best.
pub const SPAN_ALIGN: usize = 64;
/// Blocks are multiples of this many bytes.
pub const PAGE: usize = 4096;
/// Output slots of at least so many bytes start at pages, so that some of them can be page-locked without the others.
const LARGE_OUTPUTS: usize = 16 * PAGE;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// An input has an open dimension, so its row has no size.
    #[error("input `{0}` has a dimension of unknown size")]
    OpenInput(String),
    #[error("the batch slots would need more memory than can be addressed")]
    TooLarge,
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct TensorSpan {
    pub tensor: TensorSpec,
    /// Bytes from the start of the slot, or of the output slot.
    pub offset: usize,
    pub row_bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct BatchLayout {
    /// Rows of a slot: those of the largest batch.
    pub slot_rows: usize,
    /// Slots of the arena, and output slots of each worker.
    pub slots: usize,
    /// One span per model input, in the order of the model.
    pub inputs: Vec<TensorSpan>,
    /// One per model output, in the order of the model; `None` where its shape is only known after the run (it then travels in
    /// the done frame).
    pub outputs: Vec<Option<TensorSpan>>,
    pub input_slot_bytes: usize,
    pub output_slot_bytes: usize,
}

impl BatchLayout {
    /// Lays out `slots` slots of `slot_rows` rows for a model with these inputs and outputs.
    pub fn new(
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
        slot_rows: usize,
        slots: usize,
    ) -> Result<Self, LayoutError> {
        let mut input_slot_bytes = 0;
        let inputs = inputs
            .iter()
            .map(|t| {
                let row_bytes = t.row_bytes().ok_or_else(|| LayoutError::OpenInput(t.name.clone()))?;
                place(&mut input_slot_bytes, t, row_bytes, slot_rows)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut output_slot_bytes = 0;
        let outputs = outputs
            .iter()
            .map(|t| t.row_bytes().map(|b| place(&mut output_slot_bytes, t, b, slot_rows)).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        if output_slot_bytes >= LARGE_OUTPUTS {
            output_slot_bytes =
                output_slot_bytes.checked_next_multiple_of(PAGE).ok_or(LayoutError::TooLarge)?;
        }
        let layout = Self { slot_rows, slots, inputs, outputs, input_slot_bytes, output_slot_bytes };
        let total = input_slot_bytes
            .checked_add(output_slot_bytes)
            .and_then(|n| n.checked_mul(slots))
            .and_then(|n| n.checked_add(PAGE));
        match total {
            Some(n) if n <= isize::MAX as usize => Ok(layout),
            _ => Err(LayoutError::TooLarge),
        }
    }

    /// Bytes of a slot and of an output slot.
    pub fn slot_bytes(&self) -> usize {
        self.input_slot_bytes + self.output_slot_bytes
    }

    /// Bytes of the arena, a multiple of the page size.
    pub fn inputs_bytes(&self) -> usize {
        (self.input_slot_bytes * self.slots).next_multiple_of(PAGE)
    }

    /// Bytes of the outputs of one worker, a multiple of the page size.
    pub fn outputs_bytes(&self) -> usize {
        (self.output_slot_bytes * self.slots).next_multiple_of(PAGE)
    }

    /// Bytes of the arena, and of as many output slots as there are batches at a time.
    pub fn total_bytes(&self) -> usize {
        self.inputs_bytes() + self.outputs_bytes()
    }

    /// Offset from the start of the arena of `row` of input `input` in `slot`.
    pub fn input_offset(&self, slot: SlotId, input: usize, row: usize) -> usize {
        let r = &self.inputs[input];
        self.input_slot_bytes * slot.index() + r.offset + r.row_bytes * row
    }

    /// Offset from the start of a worker's outputs of `row` of output `output` in `slot`; `None` for an output of dynamic shape.
    pub fn output_offset(&self, slot: OutputSlotId, output: usize, row: usize) -> Option<usize> {
        let r = self.outputs.get(output)?.as_ref()?;
        Some(self.output_slot_bytes * slot.index() + r.offset + r.row_bytes * row)
    }
}

fn place(
    end: &mut usize,
    tensor: &TensorSpec,
    row_bytes: usize,
    slot_rows: usize,
) -> Result<TensorSpan, LayoutError> {
    let offset = *end;
    let bytes = row_bytes.checked_mul(slot_rows).ok_or(LayoutError::TooLarge)?;
    *end = offset
        .checked_add(bytes)
        .and_then(|n| n.checked_next_multiple_of(SPAN_ALIGN))
        .ok_or(LayoutError::TooLarge)?;
    Ok(TensorSpan { tensor: tensor.clone(), offset, row_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, Dim};

    fn spec(name: &str, dtype: DType, row: &[Dim]) -> TensorSpec {
        TensorSpec { name: name.into(), dtype, row: row.to_vec(), batch: Dim::Dynamic }
    }

    #[test]
    fn spans_never_overlap() {
        let layout = BatchLayout::new(
            &[spec("a", DType::F32, &[Dim::Fixed(3)]), spec("b", DType::U8, &[Dim::Fixed(5)])],
            &[
                spec("y", DType::F32, &[Dim::Fixed(10)]),
                spec("n", DType::I64, &[Dim::Dynamic]),
                spec("z", DType::U8, &[Dim::Fixed(1)]),
            ],
            7,
            3,
        )
        .unwrap();
        assert!(layout.outputs[1].is_none() && layout.output_offset(OutputSlotId(0), 1, 0).is_none());
        let apart = |mut spans: Vec<std::ops::Range<usize>>, bytes: usize| {
            spans.sort_by_key(|s| s.start);
            assert!(spans.windows(2).all(|w| w[0].end <= w[1].start));
            assert!(spans.iter().all(|s| s.start % SPAN_ALIGN == 0 && s.end <= bytes));
        };
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for s in 0..3 {
            for (i, r) in layout.inputs.iter().enumerate() {
                let at = layout.input_offset(SlotId(s), i, 0);
                inputs.push(at..at + r.row_bytes * 7);
            }
            for (i, r) in layout.outputs.iter().enumerate() {
                let Some(at) = layout.output_offset(OutputSlotId(s), i, 0) else { continue };
                outputs.push(at..at + r.as_ref().unwrap().row_bytes * 7);
            }
        }
        assert_eq!((inputs.len(), outputs.len()), (6, 6));
        apart(inputs, layout.inputs_bytes());
        apart(outputs, layout.outputs_bytes());
    }

    #[test]
    fn large_output_slots_start_at_pages_and_small_ones_lie_close() {
        let bytes_of = |row: usize| {
            let output = spec("y", DType::U8, &[Dim::Fixed(row)]);
            BatchLayout::new(&[], &[output], 1, 2).unwrap().output_slot_bytes
        };
        assert_eq!((bytes_of(100), bytes_of(60_000)), (128, 60_032));
        assert_eq!((bytes_of(LARGE_OUTPUTS), bytes_of(LARGE_OUTPUTS + 1)), (16 * PAGE, 17 * PAGE));
    }

    #[test]
    fn sizes_beyond_the_address_space_are_refused() {
        let huge = spec("a", DType::I64, &[Dim::Fixed(usize::MAX / 16)]);
        assert_eq!(BatchLayout::new(&[huge], &[], 64, 4), Err(LayoutError::TooLarge));
    }
}
