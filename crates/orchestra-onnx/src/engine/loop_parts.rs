//! What the rounds of a loop take that lies in no slot: constants of the first round, and the parts of values that a loop steps through. It runs nothing.

use std::borrow::Cow;

use orchestra_core::iteration::{FirstRound, Iteration, LoopInput};
use orchestra_core::row_bytes::{StoredValue, read};
use orchestra_core::{Dim, TensorSpec};
use orchestra_worker::arena::RowMemory;
use orchestra_worker::engine::EngineRunError;
use orchestra_worker::frames::RunErrorKind;

use super::errors;
use super::memory::AlignedBlock;
use super::model::{RowTensor, SessionModel};

/// The values of the rows of a run that a loop steps through.
#[derive(Default)]
pub struct RowParts<'a> {
    /// For each input of [`Iteration::each`] the elements of all parts of each row.
    values: Vec<Vec<&'a [u8]>>,
    /// Parts of each row; [`u32::MAX`] of a loop that steps through nothing.
    pub counts: Vec<u32>,
}

impl<'a> RowParts<'a> {
    /// Reads them out of the values of a run.
    ///
    /// # Errors
    /// A row has no part, or of two inputs another number of them; or these bytes are no such values.
    pub fn read(inputs: &[LoopInput], mut bytes: &'a [u8], rows: usize) -> Result<Self, EngineRunError> {
        let stepped: Vec<&TensorSpec> = inputs
            .iter()
            .filter(|input| input.first == FirstRound::Part)
            .map(|input| &input.tensor)
            .collect();
        let mut values = vec![Vec::with_capacity(rows); stepped.len()];
        let mut counts = vec![u32::MAX; rows];
        for (row, count) in counts.iter_mut().enumerate() {
            for (at, tensor) in stepped.iter().enumerate() {
                let (value, used) =
                    read::<StoredValue<'_>>(bytes).map_err(|error| EngineRunError::of_model(error.error))?;
                bytes = &bytes[used..];
                let (parts, elements) = parts_of(value, tensor).ok_or_else(|| {
                    EngineRunError::of_model(format!(
                        "what input `{}` steps through is no {tensor}",
                        tensor.name
                    ))
                })?;
                let refused = |error| EngineRunError { kind: RunErrorKind::Row(row as u64), error };
                match (parts, at) {
                    (0, _) => {
                        return Err(refused(format!(
                            "there is nothing for input `{}` to step through",
                            tensor.name
                        )));
                    }
                    (parts, 0) => *count = parts,
                    (parts, _) if parts == *count => {}
                    (parts, _) => {
                        let first = &stepped[0].name;
                        let error = format!(
                            "input `{first}` has {count} parts to step through, and input `{}` has {parts}",
                            tensor.name
                        );
                        return Err(refused(error));
                    }
                }
                values[at].push(elements);
            }
        }
        Ok(Self { values, counts })
    }

    /// What the input takes of a row in this round: `bytes` of them.
    pub fn part(&self, each: usize, row: usize, round: usize, bytes: usize) -> Option<&'a [u8]> {
        self.values[each][row].get(round * bytes..(round + 1) * bytes)
    }

    /// The rows, those with the most parts first: so those that have not ended lie together.
    pub fn longest_first(&self) -> Vec<usize> {
        let mut rows: Vec<usize> = (0..self.counts.len()).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(self.counts[*row]));
        rows
    }
}

/// How many parts a value has, and their elements.
fn parts_of<'a>(value: StoredValue<'a>, part: &TensorSpec) -> Option<(u32, &'a [u8])> {
    let StoredValue::Tensor { dtype, shape, data: Cow::Borrowed(data), .. } = value else { return None };
    let (parts, row) = shape.split_first()?;
    let is_part = dtype == part.dtype && row.iter().copied().map(Dim::Fixed).eq(part.row.iter().copied());
    let parts = u32::try_from(*parts).ok().filter(|parts| *parts < u32::MAX && is_part)?;
    (data.len() == part.row_bytes()?.checked_mul(parts as usize)?).then_some((parts, data))
}

/// Memory for what the first round takes that lies in no slot.
pub struct FirstRounds {
    blocks: Vec<AlignedBlock>,
}

impl FirstRounds {
    /// For so many rows, with the constants in place.
    pub fn new(model: &SessionModel, rows: usize) -> Result<Self, EngineRunError> {
        let tensors = &model.inputs[model.in_slots..];
        let block = |(tensor, input): (&RowTensor, &LoopInput)| {
            let bytes = tensor.row_bytes.saturating_mul(rows);
            let mut block = AlignedBlock::zeros(bytes).ok_or_else(|| errors::no_memory(rows))?;
            if let FirstRound::Constant(elements) = &input.first {
                block.fill(elements);
            }
            Ok(block)
        };
        let blocks = tensors.iter().zip(&model.loop_inputs).map(block).collect::<Result<_, _>>()?;
        Ok(Self { blocks })
    }

    /// What so many rows take, the first parts of their values in place.
    pub fn addresses(
        &mut self,
        model: &SessionModel,
        of: &Iteration,
        parts: &RowParts<'_>,
    ) -> Vec<RowMemory<*const u8>> {
        let rows = parts.counts.len();
        for (each, input) in of.each.iter().enumerate() {
            let bytes = model.inputs[*input].row_bytes;
            let block = &mut self.blocks[*input - model.in_slots];
            for row in 0..rows {
                block.write(row * bytes, parts.part(each, row, 0, bytes).unwrap_or_default());
            }
        }
        let tensors = &model.inputs[model.in_slots..];
        let memory = |(block, tensor): (&AlignedBlock, &RowTensor)| RowMemory {
            ptr: block.ptr().cast_const(),
            len: tensor.row_bytes * rows,
        };
        self.blocks.iter().zip(tensors).map(memory).collect()
    }
}
