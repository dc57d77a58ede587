//! The largest of many numbers and its place, as fast as memory gives them. Knows no shapes.

use half::f16;
use orchestra_core::DType;

/// Numbers that are compared at once: four registers of SSE, two of AVX.
const LANES: usize = 16;
/// Numbers after which the largest so far is looked at. The place is then searched for in one such block alone.
const BLOCK: usize = 64 * LANES;

/// The place of the largest number of `data` with its value: the first of equal ones. What is no number is never the largest; `None` where
/// nothing else is there.
pub fn largest(dtype: DType, data: &[u8]) -> Option<(usize, f32)> {
    match dtype {
        DType::F32 => largest_of(data.as_chunks().0, |bytes| f32::from_ne_bytes(*bytes)),
        DType::F16 => largest_of(data.as_chunks().0, |bytes| f16::from_ne_bytes(*bytes).to_f32()),
        dtype => {
            let elements: Vec<&[u8]> = data.chunks_exact(dtype.size_bytes()).collect();
            largest_of(&elements, |bytes| crate::elements::element(dtype, bytes).to_f32())
        }
    }
}

fn largest_of<T>(values: &[T], read: impl Fn(&T) -> f32) -> Option<(usize, f32)> {
    let (mut start, mut max) = (0, f32::NEG_INFINITY);
    for (n, block) in values.chunks(BLOCK).enumerate() {
        // A comparison with what is no number is false, so such a value changes no lane.
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let (groups, rest) = block.as_chunks::<LANES>();
        for group in groups {
            for (lane, value) in lanes.iter_mut().zip(group) {
                let value = read(value);
                *lane = if value > *lane { value } else { *lane };
            }
        }
        let of_block = lanes.into_iter().chain(rest.iter().map(&read)).fold(f32::NEG_INFINITY, f32::max);
        if of_block > max {
            (start, max) = (n * BLOCK, of_block);
        }
    }
    // Where `max` is minus infinity no block was better than none, and all are searched.
    values[start..].iter().position(|value| read(value) == max).map(|place| (start + place, max))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(values: &[f32]) -> Option<usize> {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        largest(DType::F32, &data).map(|(place, _)| place)
    }

    #[test]
    fn it_is_the_first_of_the_largest_wherever_that_lies() {
        for len in [1, LANES - 1, LANES, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5] {
            for at in [0, len / 3, len / 2, len - 1] {
                let mut values: Vec<f32> = (0..len).map(|i| -1.0 - (i * 7 % 31) as f32).collect();
                values[at] = 0.5;
                assert_eq!(place(&values), Some(at), "{at} of {len}");
                values[len - 1] = values[at];
                assert_eq!(place(&values), Some(at), "{at} of {len}, and the last");
            }
        }
    }

    #[test]
    fn what_is_no_number_is_never_the_largest() {
        let (nan, least) = (f32::NAN, f32::NEG_INFINITY);
        assert_eq!(place(&[nan, 1.0, nan, 2.0]), Some(3));
        assert_eq!(place(&[nan, least, nan]), Some(1));
        assert_eq!((place(&[nan; 40]), place(&[])), (None, None));
    }

    #[test]
    fn other_elements_are_compared_as_numbers() {
        let halves: Vec<u8> = [0.5, 2.0, -3.0].iter().flat_map(|v| f16::from_f32(*v).to_ne_bytes()).collect();
        assert_eq!(largest(DType::F16, &halves), Some((1, 2.0)));
        assert_eq!(largest(DType::U8, &[3, 200, 7]), Some((1, 200.0)));
    }
}
