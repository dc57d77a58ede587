//! A sum of many numbers without rounding, so that the order in which they come does not matter. Knows no tensors.

use bincode::{Decode, Encode};

use orchestra_core::Element;

/// Sums of `f32`, halves and integers. An `f32` has bits 0 to 276 behind and before the point and an `i64` bits 149 to 211, so 2^64 numbers of
/// either kind fit.
pub type Narrow = ExactSum<6, 149>;

/// Sums of `f64`, of which each has bits 0 to 2097: 2^64 of them fit.
pub type Wide = ExactSum<34, 1074>;

/// A fixed-point number of `LIMBS` times 64 bits in two's complement, in units of 2^-`POINT`: those of the smallest float above zero.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct ExactSum<const LIMBS: usize, const POINT: usize> {
    /// How many numbers are in it.
    pub n: u64,
    /// Least significant first.
    limbs: [u64; LIMBS],
}

impl<const LIMBS: usize, const POINT: usize> Default for ExactSum<LIMBS, POINT> {
    fn default() -> Self {
        Self { n: 0, limbs: [0; LIMBS] }
    }
}

impl<const LIMBS: usize, const POINT: usize> ExactSum<LIMBS, POINT> {
    /// Adds a number, which is finite, and an `f64` only where the sum is `Wide`.
    pub fn add(&mut self, element: Element) {
        self.n += 1;
        match element {
            Element::Int(v) => self.add_shifted(v.unsigned_abs(), POINT, v < 0),
            Element::Bool(v) => self.add_shifted(u64::from(v), POINT, false),
            Element::Float(_) | Element::Double(_) => {
                let bits = element.to_f64().to_bits();
                let exponent = (bits >> 52 & 0x7ff) as usize;
                let fraction = bits & ((1 << 52) - 1) | u64::from(exponent > 0) << 52;
                // Of an `f64` made of an `f32` the bits below the smallest one are zero.
                let shift = exponent.max(1) + POINT;
                match shift.checked_sub(1075) {
                    Some(shift) => self.add_shifted(fraction, shift, bits >> 63 == 1),
                    None => {
                        let below = (1075 - shift) as u32;
                        self.add_shifted(fraction.checked_shr(below).unwrap_or(0), 0, bits >> 63 == 1);
                    }
                }
            }
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.n += other.n;
        self.add_limbs(0, &other.limbs);
    }

    /// The sum, if all of it were integers and it is one of 64 bits.
    pub fn to_i64(&self) -> Option<i64> {
        let (first, from) = (POINT / 64, POINT % 64);
        let [low, middle, high] = [0, 1, 2].map(|at| u128::from(self.limbs[first + at]));
        let bits = (middle << 64 | low) >> from | high << (128 - from);
        i64::try_from(bits.cast_signed()).ok()
    }

    /// The sum, rounded once: to the nearest `f64`, of two nearest ones to the even one.
    pub fn to_f64(&self) -> f64 {
        self.divided_by(1)
    }

    /// The mean, rounded once. Of nothing it is no number.
    pub fn mean(&self) -> f64 {
        match self.n {
            0 => f64::NAN,
            n => self.divided_by(n),
        }
    }

    fn divided_by(&self, n: u64) -> f64 {
        let is_negative = self.limbs[LIMBS - 1] >> 63 == 1;
        // Limbs more below the point, for the bits of a quotient that is smaller than a unit.
        let mut quotient = vec![0; LIMBS + BELOW];
        quotient[BELOW..].copy_from_slice(&self.limbs);
        if is_negative {
            negate(&mut quotient);
        }
        let mut rest = 0u128;
        for limb in quotient.iter_mut().rev() {
            let part = rest << 64 | u128::from(*limb);
            *limb = (part / u128::from(n)) as u64; // rest < n, so it has 64 bits
            rest = part % u128::from(n);
        }
        let size = round(&quotient, POINT + BELOW * 64, rest > 0);
        if is_negative { -size } else { size }
    }

    fn add_shifted(&mut self, size: u64, shift: usize, is_negative: bool) {
        let bits = u128::from(size) << (shift % 64);
        let mut limbs = [0; LIMBS];
        limbs[shift / 64] = bits as u64; // the lower half
        limbs[shift / 64 + 1] = (bits >> 64) as u64;
        if is_negative {
            negate(&mut limbs);
            self.add_limbs(shift / 64, &limbs);
        } else {
            self.add_limbs(shift / 64, &limbs[..shift / 64 + 2]);
        }
    }

    /// Adds limbs of which those below `from` are zero, and those behind them, too.
    fn add_limbs(&mut self, from: usize, limbs: &[u64]) {
        let mut carry = false;
        for (at, limb) in self.limbs.iter_mut().enumerate().skip(from) {
            match limbs.get(at) {
                Some(other) => (*limb, carry) = carrying_add(*limb, *other, carry),
                None if carry => (*limb, carry) = limb.overflowing_add(1),
                None => return,
            }
        }
    }
}

/// Limbs below the smallest unit: a mean of 2^64 numbers has 53 bits above them, or is below the smallest `f64`.
const BELOW: usize = 2;

fn carrying_add(one: u64, other: u64, carry: bool) -> (u64, bool) {
    let (sum, first) = one.overflowing_add(other);
    let (sum, second) = sum.overflowing_add(u64::from(carry));
    (sum, first || second)
}

fn negate(limbs: &mut [u64]) {
    let mut carry = true;
    for limb in limbs {
        (*limb, carry) = (!*limb).overflowing_add(u64::from(carry));
    }
}

/// The nearest `f64` to a number in units of 2^-`point`; `has_rest`: it is a little larger.
fn round(limbs: &[u64], point: usize, has_rest: bool) -> f64 {
    let Some(top) = limbs.iter().rposition(|limb| *limb != 0) else { return 0.0 };
    let highest = top * 64 + 63 - limbs[top].leading_zeros() as usize;
    // The last bit that the result has: 52 below the highest, and no smaller than 2^-1074.
    let last = highest.saturating_sub(52).max(point.saturating_sub(1074));
    let bit = |at: usize| limbs[at / 64] >> (at % 64) & 1 == 1;
    let mut fraction = (last..=highest).rev().fold(0u64, |all, at| all << 1 | u64::from(bit(at)));
    let is_half_or_more = last > 0 && bit(last - 1);
    let is_more = has_rest || (0..last.saturating_sub(1)).any(bit);
    if is_half_or_more && (is_more || fraction & 1 == 1) {
        fraction += 1;
    }
    // Two powers of two, of which each is an `f64`: their product may be smaller than the smallest normal one.
    let exponent = last as i32 - point as i32;
    let power = |exponent: i32| f64::from_bits(((1023 + exponent) as u64) << 52);
    (fraction as f64) * power(exponent / 2) * power(exponent - exponent / 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(values: &[f32]) -> Narrow {
        let mut sum = Narrow::default();
        values.iter().for_each(|v| sum.add(Element::Float(*v)));
        sum
    }

    fn wide(values: &[f64]) -> Wide {
        let mut sum = Wide::default();
        values.iter().for_each(|v| sum.add(Element::Double(*v)));
        sum
    }

    #[test]
    fn nothing_is_lost_between_large_and_small() {
        let tiny = f64::from_bits(1);
        let (one, most) = (1.0_f64, f64::MAX);
        assert_eq!(wide(&[most, tiny, -most]).to_f64(), tiny);
        assert_eq!(wide(&[most, most, -most]).to_f64(), most);
        assert_eq!(wide(&[most, most]).to_f64(), f64::INFINITY, "beyond the largest");
        assert_eq!(wide(&[most, most]).mean(), most);
        assert_eq!(wide(&[tiny, 0.0]).mean(), 0.0, "half of the smallest goes to the even one");
        assert_eq!(wide(&[tiny, tiny, tiny, 0.0]).mean(), tiny);
        assert_eq!(wide(&[-0.0, -0.0]).to_f64().to_bits(), 0, "a sum of zeros is the positive one");
        assert_eq!(wide(&[one, 2f64.powi(-53)]).to_f64(), 1.0, "a tie goes to the even one");
        assert_eq!(wide(&[one, 2f64.powi(-53), tiny]).to_f64(), 1.0 + f64::EPSILON);
        assert_eq!(wide(&[0.1; 10]).to_f64(), 1.0);
        assert_eq!(sum(&[f32::MAX, 1e-45, -f32::MAX]).to_f64(), f64::from(1e-45_f32));
        assert_eq!(sum(&[f32::MAX, f32::MAX]).to_f64(), 2.0 * f64::from(f32::MAX));
        assert_eq!(sum(&[1e-45, 0.0]).mean(), f64::from(1e-45_f32) / 2.0);
        assert!(sum(&[]).mean().is_nan());
    }

    #[test]
    fn integers_are_exact_up_to_64_bits() {
        let of = |values: &[i64]| {
            let mut sum = Narrow::default();
            values.iter().for_each(|v| sum.add(Element::Int(*v)));
            sum
        };
        assert_eq!(of(&[i64::MAX, i64::MIN, -1, 3]).to_i64(), Some(1));
        assert_eq!(of(&[i64::MIN]).to_i64(), Some(i64::MIN));
        assert_eq!(of(&[i64::MAX, 1]).to_i64(), None);
        assert_eq!(of(&[i64::MIN, -1]).to_i64(), None);
        assert_eq!(of(&[1, 2, 4]).mean(), 7.0 / 3.0);
    }

    proptest! {
        #[test]
        fn of_numbers_whose_sum_is_exact_in_f64_it_is_that_sum(
            values in proptest::collection::vec((-(1i64 << 40)..1 << 40, -30i32..-10), 0..50)
        ) {
            // Multiples of 2^-30 below 2^30: their sum has less than 53 bits once each is an `f32`.
            let values: Vec<f32> = values.iter().map(|(v, e)| ((v >> 20) as f64 * 2f64.powi(*e)) as f32).collect();
            let doubles: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
            let plain: f64 = doubles.iter().sum();
            prop_assert_eq!((sum(&values).to_f64(), wide(&doubles).to_f64()), (plain, plain));
        }

        #[test]
        fn order_and_grouping_change_no_bit(
            (values, shuffled) in proptest::collection::vec(proptest::num::f64::NORMAL | proptest::num::f64::SUBNORMAL | proptest::num::f64::ZERO, 0..40)
                .prop_flat_map(|v| (Just(v.clone()), Just(v).prop_shuffle())),
            cut in 0usize..40,
        ) {
            let (first, second) = shuffled.split_at(cut.min(shuffled.len()));
            let mut merged = wide(first);
            merged.merge(&wide(second));
            prop_assert_eq!(&merged, &wide(&values));
        }

        #[test]
        fn a_single_number_comes_out_as_it_went_in(bits: u64, half: u32) {
            for v in [f64::from_bits(bits), f64::from(f32::from_bits(half))] {
                prop_assert!(!v.is_finite() || wide(&[v]).to_f64() == v);
            }
            let v = f32::from_bits(half);
            prop_assert!(!v.is_finite() || sum(&[v]).to_f64() == f64::from(v));
        }
    }
}
