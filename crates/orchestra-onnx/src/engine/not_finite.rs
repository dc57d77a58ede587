//! Finds items that have NaN or infinities, and did not bring them: they may be those of others in their batch. It runs nothing.

use orchestra_core::DType;
use orchestra_worker::frames::DynamicOutput;

use super::model::SessionModel;
use super::rows_alone::FinishedBatch;

/// What is the worst of some numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finiteness {
    Finite,
    Infinite,
    NaN,
}

/// The rows whose outputs have NaN, or else infinities that other rows do not have, though their inputs are finite.
///
/// # Safety
/// No other code writes to inputs and outputs of the batch.
pub unsafe fn suspects(model: &SessionModel, ran: &FinishedBatch<'_>) -> (Finiteness, Vec<usize>) {
    let n = ran.slots.rows;
    let mut rows = vec![Finiteness::Finite; n];
    for (tensor, addresses) in model.outputs.iter().zip(&ran.slots.outputs) {
        if let (Some(tensor), Some(at)) = (tensor, addresses) {
            // SAFETY: the rows are mapped, and the run that wrote them is over.
            let bytes = unsafe { std::slice::from_raw_parts(at.ptr.cast_const(), at.len) };
            note(&mut rows, tensor.dtype, tensor.row_bytes, bytes);
        }
    }
    for DynamicOutput { output, dtype, data, .. } in ran.dynamic {
        if model.texts[*output].is_none() {
            note(&mut rows, *dtype, data.len() / n, data);
        }
    }
    let worst = rows.iter().copied().max().unwrap_or(Finiteness::Finite);
    if worst == Finiteness::Finite || (worst == Finiteness::Infinite && !rows.contains(&Finiteness::Finite)) {
        return (Finiteness::Finite, Vec::new());
    }
    let mut brought = vec![Finiteness::Finite; n];
    for (tensor, at) in model.inputs.iter().zip(&ran.slots.inputs) {
        // SAFETY: the rows are mapped, and the caller vouches that they have no writer.
        let bytes = unsafe { std::slice::from_raw_parts(at.ptr, at.len) };
        note(&mut brought, tensor.dtype, tensor.row_bytes, bytes);
    }
    let first: Vec<usize> =
        (0..n).filter(|row| rows[*row] == worst && brought[*row] == Finiteness::Finite).collect();
    if first.is_empty() { (Finiteness::Finite, first) } else { (worst, first) }
}

fn note(rows: &mut [Finiteness], dtype: DType, row_bytes: usize, bytes: &[u8]) {
    if dtype.is_float() && row_bytes > 0 {
        rows.iter_mut()
            .zip(bytes.chunks_exact(row_bytes))
            .for_each(|(row, of)| *row = (*row).max(worst(dtype, of)));
    }
}

/// Without its sign, the bits of a float are a number that is the larger the larger the float is, and largest for NaN.
fn worst(dtype: DType, bytes: &[u8]) -> Finiteness {
    let [largest, infinite] = match dtype {
        DType::F16 => {
            let largest = bytes.as_chunks().0.iter().map(|half| u16::from_ne_bytes(*half) & 0x7fff).max();
            [u64::from(largest.unwrap_or(0)), 0x7c00]
        }
        DType::F32 => {
            let largest =
                bytes.as_chunks().0.iter().map(|float| f32::from_ne_bytes(*float).abs().to_bits()).max();
            [u64::from(largest.unwrap_or(0)), u64::from(f32::INFINITY.to_bits())]
        }
        DType::F64 => {
            let largest =
                bytes.as_chunks().0.iter().map(|float| f64::from_ne_bytes(*float).abs().to_bits()).max();
            [largest.unwrap_or(0), f64::INFINITY.to_bits()]
        }
        DType::I64 | DType::I32 | DType::I16 | DType::U8 | DType::Bool => [0, 1],
    };
    match largest.cmp(&infinite) {
        std::cmp::Ordering::Less => Finiteness::Finite,
        std::cmp::Ordering::Equal => Finiteness::Infinite,
        std::cmp::Ordering::Greater => Finiteness::NaN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_the_numbers_of_each_row_is_found_in_every_float() {
        let f32s = |of: &[f32]| of.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
        let f64s = |of: &[f32]| of.iter().flat_map(|v| f64::from(*v).to_ne_bytes()).collect::<Vec<u8>>();
        let f16s = |of: &[f32]| {
            let bits = |v: &f32| match v {
                v if v.is_nan() => 0xfe00_u16,
                v if v.is_infinite() => 0xfc00,
                _ => 0xfbff,
            };
            of.iter().flat_map(|v| bits(v).to_ne_bytes()).collect::<Vec<u8>>()
        };
        let rows = [1.0, f32::MAX, -1.0, f32::NEG_INFINITY, f32::INFINITY, -f32::NAN, f32::NAN, 0.0];
        for (dtype, bytes) in
            [(DType::F32, f32s(&rows)), (DType::F64, f64s(&rows)), (DType::F16, f16s(&rows))]
        {
            let mut found = vec![Finiteness::Finite; 4];
            note(&mut found, dtype, 2 * dtype.size_bytes(), &bytes);
            assert_eq!(
                found,
                [Finiteness::Finite, Finiteness::Infinite, Finiteness::NaN, Finiteness::NaN],
                "{dtype}"
            );
        }
    }
}
