//! Where the rows of a batch lie in a stage's arena. Arithmetic only: the memory itself belongs to `orchestra-worker`.
//!
//! The arena of a stage is one block of shared memory, cut in two: first the input slots, then the output slots. A worker maps
//! the first part read-only and the second read-write.
//!
//! ```text
//! | slot 0 inputs | slot 1 inputs | ... | page | slot 0 outputs | slot 1 outputs | ... |
//!   each: input "a" rows 0..max, input "b" rows 0..max, ...   (every region starts at a multiple of 64 bytes)
//! ```

use bincode::{Decode, Encode};
use thiserror::Error;

use crate::ids::SlotId;
use crate::tensor::TensorSpec;

/// Regions start at multiples of this many bytes: a cache line, and what SIMD kernels like best.
pub const REGION_ALIGN: usize = 64;
/// The output part starts at a multiple of this many bytes, so that it can be mapped on its own.
pub const PAGE: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// An input has an open dimension, so its row has no size.
    #[error("input `{0}` has a dimension of unknown size")]
    OpenInput(String),
    #[error("the batch slots would need more memory than can be addressed")]
    TooLarge,
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Region {
    pub tensor: TensorSpec,
    /// Bytes from the start of the slot's input (or output) part.
    pub offset: usize,
    pub row_bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct BatchLayout {
    /// Rows of a slot: those of the largest batch, or of as many as may go to a worker together.
    pub max_rows: usize,
    pub slots: usize,
    /// One region per model input, in the order of the model.
    pub inputs: Vec<Region>,
    /// One per model output, in the order of the model; `None` where its shape is only known after the run (it then travels in
    /// the done frame).
    pub outputs: Vec<Option<Region>>,
    pub input_slot_bytes: usize,
    pub output_slot_bytes: usize,
}

impl BatchLayout {
    /// Lays out `slots` slots of `max_rows` rows for a model with these inputs and outputs.
    pub fn new(
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
        max_rows: usize,
        slots: usize,
    ) -> Result<Self, LayoutError> {
        let mut input_slot_bytes = 0;
        let inputs = inputs
            .iter()
            .map(|t| {
                let row_bytes = t.row_bytes().ok_or_else(|| LayoutError::OpenInput(t.name.clone()))?;
                place(&mut input_slot_bytes, t, row_bytes, max_rows)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut output_slot_bytes = 0;
        let outputs = outputs
            .iter()
            .map(|t| t.row_bytes().map(|b| place(&mut output_slot_bytes, t, b, max_rows)).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        let layout = Self { max_rows, slots, inputs, outputs, input_slot_bytes, output_slot_bytes };
        let total = input_slot_bytes
            .checked_add(output_slot_bytes)
            .and_then(|n| n.checked_mul(slots))
            .and_then(|n| n.checked_add(PAGE));
        match total {
            Some(n) if n <= isize::MAX as usize => Ok(layout),
            _ => Err(LayoutError::TooLarge),
        }
    }

    pub fn slot_bytes(&self) -> usize {
        self.input_slot_bytes + self.output_slot_bytes
    }

    /// Bytes of the input part of the arena, a multiple of the page size.
    pub fn inputs_bytes(&self) -> usize {
        (self.input_slot_bytes * self.slots).next_multiple_of(PAGE)
    }

    pub fn outputs_bytes(&self) -> usize {
        (self.output_slot_bytes * self.slots).next_multiple_of(PAGE)
    }

    pub fn total_bytes(&self) -> usize {
        self.inputs_bytes() + self.outputs_bytes()
    }

    /// Offset from the start of the arena of `row` of input `input` in `slot`.
    pub fn input_offset(&self, slot: SlotId, input: usize, row: usize) -> usize {
        let r = &self.inputs[input];
        self.input_slot_bytes * slot.index() + r.offset + r.row_bytes * row
    }

    /// Offset from the start of the arena of `row` of output `output` in `slot`; `None` for an output of dynamic shape.
    pub fn output_offset(&self, slot: SlotId, output: usize, row: usize) -> Option<usize> {
        let r = self.outputs[output].as_ref()?;
        Some(self.inputs_bytes() + self.output_slot_bytes * slot.index() + r.offset + r.row_bytes * row)
    }
}

fn place(
    end: &mut usize,
    tensor: &TensorSpec,
    row_bytes: usize,
    max_rows: usize,
) -> Result<Region, LayoutError> {
    let offset = *end;
    let bytes = row_bytes.checked_mul(max_rows).ok_or(LayoutError::TooLarge)?;
    *end = offset
        .checked_add(bytes)
        .and_then(|n| n.checked_next_multiple_of(REGION_ALIGN))
        .ok_or(LayoutError::TooLarge)?;
    Ok(Region { tensor: tensor.clone(), offset, row_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, Dim};

    fn spec(name: &str, dtype: DType, row: &[Dim]) -> TensorSpec {
        TensorSpec { name: name.into(), dtype, row: row.to_vec(), batch: Dim::Dynamic }
    }

    #[test]
    fn regions_never_overlap_and_the_output_part_starts_on_a_page() {
        let layout = BatchLayout::new(
            &[spec("a", DType::F32, &[Dim::Fixed(3)]), spec("b", DType::U8, &[Dim::Fixed(5)])],
            &[spec("y", DType::F32, &[Dim::Fixed(10)]), spec("n", DType::I64, &[Dim::Dynamic])],
            7,
            3,
        )
        .unwrap();
        assert_eq!(layout.inputs_bytes() % PAGE, 0);
        assert!(layout.outputs[1].is_none());
        let mut spans = Vec::new();
        for s in 0..3 {
            for (i, r) in layout.inputs.iter().enumerate() {
                let at = layout.input_offset(SlotId(s), i, 0);
                spans.push(at..at + r.row_bytes * 7);
            }
            let at = layout.output_offset(SlotId(s), 0, 0).unwrap();
            spans.push(at..at + 40 * 7);
        }
        spans.sort_by_key(|s| s.start);
        assert!(spans.windows(2).all(|w| w[0].end <= w[1].start));
        assert!(spans.iter().all(|s| s.start % REGION_ALIGN == 0 && s.end <= layout.total_bytes()));
    }

    #[test]
    fn sizes_beyond_the_address_space_are_refused() {
        let huge = spec("a", DType::I64, &[Dim::Fixed(usize::MAX / 16)]);
        assert_eq!(BatchLayout::new(&[huge], &[], 64, 4), Err(LayoutError::TooLarge));
    }
}
