//! A sum of many numbers without rounding, so that the order in which they come does not matter. Knows no tensors.

use bincode::{Decode, Encode};

use crate::elements::Element;

const LIMBS: usize = 6;

/// Bits behind the binary point: the smallest `f32` above zero is 2^-149.
const POINT: usize = 149;

/// A fixed-point number of 384 bits in two's complement, in units of 2^-149. An `f32` has bits 0 to 276 and an `i64` bits 149 to 211, so 2^64
/// numbers of either kind fit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct ExactSum {
    /// How many numbers are in it.
    pub n: u64,
    /// Least significant first.
    limbs: [u64; LIMBS],
    /// Some were no number, or infinite.
    has_nan: bool,
    has_plus_infinity: bool,
    has_minus_infinity: bool,
}

impl ExactSum {
    pub fn add(&mut self, element: Element) {
        self.n += 1;
        match element {
            Element::Int(v) => self.add_shifted(v.unsigned_abs(), POINT, v < 0),
            Element::Bool(v) => self.add_shifted(u64::from(v), POINT, false),
            Element::Float(v) if v.is_nan() => self.has_nan = true,
            Element::Float(f32::INFINITY) => self.has_plus_infinity = true,
            Element::Float(f32::NEG_INFINITY) => self.has_minus_infinity = true,
            Element::Float(v) => {
                let bits = v.to_bits();
                let exponent = bits >> 23 & 0xff;
                let fraction = u64::from(bits & 0x7f_ffff | u32::from(exponent > 0) << 23);
                self.add_shifted(fraction, exponent.max(1) as usize - 1, v.is_sign_negative());
            }
        }
    }

    pub fn merge(&mut self, other: &ExactSum) {
        self.n += other.n;
        self.add_limbs(0, &other.limbs);
        self.has_nan |= other.has_nan;
        self.has_plus_infinity |= other.has_plus_infinity;
        self.has_minus_infinity |= other.has_minus_infinity;
    }

    /// The sum, if all of it were integers and it is one of 64 bits.
    pub fn to_i64(&self) -> Option<i64> {
        let [_, _, low, middle, high, _] = self.limbs;
        let from = POINT % 64;
        let bits = (u128::from(middle) << 64 | u128::from(low)) >> from | u128::from(high) << (128 - from);
        i64::try_from(bits.cast_signed()).ok()
    }

    /// The sum, rounded once: to the nearest `f32`, of two nearest ones to the even one.
    pub fn to_f32(&self) -> f32 {
        self.divided_by(1)
    }

    /// The mean, rounded once. Of nothing it is no number.
    pub fn mean(&self) -> f32 {
        match self.n {
            0 => f32::NAN,
            n => self.divided_by(n),
        }
    }

    fn divided_by(&self, n: u64) -> f32 {
        if self.has_nan || self.has_plus_infinity && self.has_minus_infinity {
            return f32::NAN;
        }
        if self.has_plus_infinity || self.has_minus_infinity {
            return if self.has_plus_infinity { f32::INFINITY } else { f32::NEG_INFINITY };
        }
        let is_negative = self.limbs[LIMBS - 1] >> 63 == 1;
        // A limb more below the point: a quotient too small to have 24 bits above it is below the smallest `f32`.
        let mut quotient = [0; LIMBS + 1];
        quotient[1..].copy_from_slice(&self.limbs);
        if is_negative {
            negate(&mut quotient);
        }
        let mut rest = 0u128;
        for limb in quotient.iter_mut().rev() {
            let part = rest << 64 | u128::from(*limb);
            *limb = (part / u128::from(n)) as u64; // rest < n, so it has 64 bits
            rest = part % u128::from(n);
        }
        let size = round(&quotient, rest > 0);
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

fn carrying_add(one: u64, other: u64, carry: bool) -> (u64, bool) {
    let (sum, first) = one.overflowing_add(other);
    let (sum, second) = sum.overflowing_add(u64::from(carry));
    (sum, first || second)
}

/// Two's complement.
fn negate(limbs: &mut [u64]) {
    let mut carry = true;
    for limb in limbs {
        (*limb, carry) = (!*limb).overflowing_add(u64::from(carry));
    }
}

/// The nearest `f32` to a number in units of 2^-213; `has_rest`: it is a little larger.
fn round(limbs: &[u64; LIMBS + 1], has_rest: bool) -> f32 {
    const BELOW: usize = 64;
    let Some(top) = limbs.iter().rposition(|limb| *limb != 0) else { return 0.0 };
    let highest = top * 64 + 63 - limbs[top].leading_zeros() as usize;
    // The last bit that the result has: 23 below the highest, and no smaller than 2^-149.
    let last = highest.saturating_sub(23).max(BELOW);
    let bit = |at: usize| limbs[at / 64] >> (at % 64) & 1 == 1;
    let mut fraction = (last..=highest).rev().fold(0u32, |all, at| all << 1 | u32::from(bit(at)));
    let is_half_or_more = bit(last - 1);
    let is_more = has_rest || (0..last - 1).any(bit);
    if is_half_or_more && (is_more || fraction & 1 == 1) {
        fraction += 1;
    }
    // 2^(last - 213), which an `f64` holds, as it does the product; beyond the largest `f32` it is infinite.
    let unit = f64::from_bits(((1023 + last - BELOW - POINT) as u64) << 52);
    (f64::from(fraction) * unit) as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(values: &[f32]) -> ExactSum {
        let mut sum = ExactSum::default();
        values.iter().for_each(|v| sum.add(Element::Float(*v)));
        sum
    }

    #[test]
    fn nothing_is_lost_between_large_and_small() {
        assert_eq!(sum(&[f32::MAX, 1e-45, -f32::MAX]).to_f32(), 1e-45);
        assert_eq!(sum(&[f32::MAX, f32::MAX, -f32::MAX]).to_f32(), f32::MAX);
        assert_eq!(sum(&[f32::MAX, f32::MAX]).to_f32(), f32::INFINITY, "beyond the largest");
        assert_eq!(sum(&[f32::MAX, f32::MAX]).mean(), f32::MAX);
        assert_eq!(sum(&[1e-45, 0.0]).mean(), 0.0, "half of the smallest goes to the even one");
        assert_eq!(sum(&[1e-45, 1e-45, 1e-45, 0.0]).mean(), 1e-45);
        assert_eq!(sum(&[-0.0, -0.0]).to_f32().to_bits(), 0, "a sum of zeros is the positive one");
        assert_eq!(sum(&[1.0, 2f32.powi(-24)]).to_f32(), 1.0, "a tie goes to the even one");
        assert_eq!(sum(&[1.0, 2f32.powi(-24), 1e-45]).to_f32(), 1.0 + f32::EPSILON);
    }

    #[test]
    fn what_is_no_number_or_infinite_stays_so() {
        assert!(sum(&[1.0, f32::NAN, 2.0]).to_f32().is_nan());
        assert!(sum(&[f32::INFINITY, f32::NEG_INFINITY]).mean().is_nan());
        assert_eq!(sum(&[f32::NEG_INFINITY, f32::MAX]).mean(), f32::NEG_INFINITY);
        assert!(sum(&[]).mean().is_nan());
    }

    #[test]
    fn integers_are_exact_up_to_64_bits() {
        let of = |values: &[i64]| {
            let mut sum = ExactSum::default();
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
        fn of_numbers_whose_sum_is_exact_in_f64_it_is_that_sum_rounded(
            values in proptest::collection::vec((-(1i64 << 40)..1 << 40, -30i32..-10), 0..50)
        ) {
            // Multiples of 2^-30 below 2^30: their sum has less than 53 bits once each is an `f32`.
            let values: Vec<f32> = values.iter().map(|(v, e)| ((v >> 20) as f64 * 2f64.powi(*e)) as f32).collect();
            let plain: f64 = values.iter().map(|v| f64::from(*v)).sum();
            prop_assert_eq!(sum(&values).to_f32(), plain as f32);
        }

        #[test]
        fn order_and_grouping_change_no_bit(
            (values, shuffled) in proptest::collection::vec(any::<f32>(), 0..40)
                .prop_flat_map(|v| (Just(v.clone()), Just(v).prop_shuffle())),
            cut in 0usize..40,
        ) {
            let (first, second) = shuffled.split_at(cut.min(shuffled.len()));
            let mut merged = sum(first);
            merged.merge(&sum(second));
            prop_assert_eq!(&merged, &sum(&values));
        }

        #[test]
        fn a_single_number_comes_out_as_it_went_in(bits: u32) {
            let v = f32::from_bits(bits);
            let out = sum(&[v]).to_f32();
            prop_assert!(out == v || v.is_nan() && out.is_nan());
        }
    }
}
