//! The largest of many numbers and its place, as fast as memory gives them. Knows no shapes.

use orchestra_core::DType;

use crate::elements::{Number, with_number};

/// Numbers that are compared at once: four registers of SSE, two of AVX.
const LANES: usize = 16;
/// Numbers after which the largest so far is looked at. The place is then searched for in one such block alone.
const BLOCK: usize = 64 * LANES;

/// The place of the largest number of `data` with its value: the first of equal ones. `None` where there is none, or one is NaN.
pub fn largest(dtype: DType, data: &[u8]) -> Option<(usize, f32)> {
    with_number!(dtype, read => largest_of(data.as_chunks().0, read).map(|(place, value)| (place, value.to_f32())))
}

/// The same of elements that `read` reads.
pub fn largest_of<E, T: Number>(values: &[E], read: impl Fn(&E) -> T) -> Option<(usize, T)> {
    let more = |a: T, b: T| if b > a { b } else { a };
    let (mut start, mut max, mut has_nan) = (0, T::LEAST, false);
    for (n, block) in values.chunks(BLOCK).enumerate() {
        // A comparison with NaN is false, so such a value changes no lane.
        let (mut lanes, mut nans) = ([T::LEAST; LANES], [false; LANES]);
        let (groups, rest) = block.as_chunks::<LANES>();
        for group in groups {
            for ((lane, nan), value) in lanes.iter_mut().zip(&mut nans).zip(group) {
                let value = read(value);
                *nan |= value.is_nan();
                *lane = more(*lane, value);
            }
        }
        has_nan |= nans.contains(&true) || rest.iter().any(|value| read(value).is_nan());
        let of_block = lanes.into_iter().chain(rest.iter().map(&read)).fold(T::LEAST, more);
        if of_block > max {
            (start, max) = (n * BLOCK, of_block);
        }
    }
    if has_nan {
        return None;
    }
    // Where `max` is the least of all no block was better than none, and all are searched.
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
    fn nothing_is_the_largest_beside_what_is_no_number() {
        let (nan, least) = (f32::NAN, f32::NEG_INFINITY);
        assert_eq!((place(&[1.0, nan, 2.0]), place(&[nan; 40]), place(&[])), (None, None, None));
        assert_eq!((place(&[least, least]), place(&[1.0, f32::INFINITY])), (Some(0), Some(1)));
        for at in [0, LANES, BLOCK, BLOCK + LANES + 3] {
            let mut values = vec![1.0; BLOCK + LANES + 4];
            values[at] = nan;
            assert_eq!(place(&values), None, "{at}");
        }
    }

    #[test]
    fn other_elements_are_compared_as_numbers() {
        let doubles = [1.0, 1.0 + f64::EPSILON].map(f64::to_ne_bytes).concat();
        assert_eq!(largest(DType::F64, &doubles), Some((1, 1.0)));
        let integers = [i64::MAX - 1, i64::MAX].map(i64::to_ne_bytes).concat();
        assert_eq!(largest(DType::I64, &integers).map(|(place, _)| place), Some(1));
        let halves: Vec<u8> =
            [0.5, 2.0, -3.0].iter().flat_map(|v| half::f16::from_f32(*v).to_ne_bytes()).collect();
        assert_eq!(largest(DType::F16, &halves), Some((1, 2.0)));
        assert_eq!(largest(DType::U8, &[3, 200, 7]), Some((1, 200.0)));
    }
}
