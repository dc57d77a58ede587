//! What is known of the numbers of one place: their sum, the least of them, or how many lie in each bin. Knows no tensors and no rows.

use bincode::{Decode, Encode};
use orchestra_core::{DType, Element};

use super::exact::{Narrow, Wide};

/// What is computed of numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    Sum,
    Mean,
    Min,
    Max,
    /// The edges of the bins, ascending: bin `i` holds numbers from edge `i` on and below edge `i + 1`, the last one also its upper edge.
    Histogram(Vec<f64>),
}

impl Op {
    /// Edges of bins of the same width.
    pub fn histogram(low: f64, high: f64, bins: u64) -> Self {
        let edge = |i: u64| if i == bins { high } else { low + (high - low) * i as f64 / bins as f64 };
        Op::Histogram((0..=bins).map(edge).collect())
    }

    /// Whether each bin is wider than nothing, and none ends at an infinity.
    pub fn has_bins(&self) -> bool {
        let Op::Histogram(edges) = self else { return false };
        edges.iter().all(|edge| edge.is_finite()) && edges.windows(2).all(|bin| bin[0] < bin[1])
    }

    /// Of no number of this type.
    pub fn cell(&self, dtype: DType) -> Accumulator {
        match self {
            Op::Sum | Op::Mean if dtype == DType::F64 => Accumulator::WideSum(Box::default()),
            Op::Sum | Op::Mean => Accumulator::Sum(Narrow::default()),
            Op::Min | Op::Max => Accumulator::Least(None),
            Op::Histogram(edges) => Accumulator::Counts(vec![0; edges.len() - 1 + OUTSIDE]),
        }
    }

    /// Why a number cannot be added, where it cannot.
    pub fn refuses(&self, element: Element) -> Option<&'static str> {
        let number = element.to_f64();
        match self {
            _ if number.is_nan() => Some("no number: it is NaN"),
            Op::Sum | Op::Mean if number.is_infinite() => Some("an infinity, which has no sum and no mean"),
            _ => None,
        }
    }

    /// Adds a number that it does not refuse.
    pub fn add(&self, cell: &mut Accumulator, element: Element) {
        match (self, cell) {
            (Op::Sum | Op::Mean, Accumulator::Sum(sum)) => sum.add(element),
            (Op::Sum | Op::Mean, Accumulator::WideSum(sum)) => sum.add(element),
            (_, Accumulator::Least(key)) => {
                let new = key_of(element);
                let new = if *self == Op::Max { !new } else { new };
                *key = Some(key.map_or(new, |key| key.min(new)));
            }
            (Op::Histogram(edges), Accumulator::Counts(counts)) => counts[bin(edges, element)] += 1,
            _ => debug_assert!(false, "a cell is of its operation"),
        }
    }
}

/// Behind the bins: how many are below the first edge, or above the last one.
pub const OUTSIDE: usize = 2;

/// What is known of some numbers. The same in whatever order they came.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Accumulator {
    Sum(Narrow),
    WideSum(Box<Wide>),
    /// The least key of all; see [`key_of`]. That of the largest number is turned over.
    Least(Option<i64>),
    Counts(Vec<u64>),
}

impl Accumulator {
    pub fn merge(&mut self, other: &Accumulator) {
        match (self, other) {
            (Accumulator::Sum(sum), Accumulator::Sum(other)) => sum.merge(other),
            (Accumulator::WideSum(sum), Accumulator::WideSum(other)) => sum.merge(other),
            (Accumulator::Least(key), Accumulator::Least(other)) => {
                *key = match (*key, *other) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
            (Accumulator::Counts(counts), Accumulator::Counts(other)) => {
                counts.iter_mut().zip(other).for_each(|(count, other)| *count += other);
            }
            _ => debug_assert!(false, "cells of one stage are of one operation"),
        }
    }

    /// As a number with a fraction; NaN of nothing.
    pub fn to_f64(&self, op: &Op) -> f64 {
        match self {
            Accumulator::Sum(sum) if *op == Op::Mean => sum.mean(),
            Accumulator::Sum(sum) => sum.to_f64(),
            Accumulator::WideSum(sum) if *op == Op::Mean => sum.mean(),
            Accumulator::WideSum(sum) => sum.to_f64(),
            Accumulator::Least(Some(key)) => {
                let key = if *op == Op::Max { !*key } else { *key };
                f64::from_bits(turned(key).cast_unsigned())
            }
            Accumulator::Least(None) | Accumulator::Counts(_) => f64::NAN,
        }
    }

    /// As an integer; `None` where it is none of 64 bits.
    pub fn to_i64(&self, op: &Op) -> Option<i64> {
        match self {
            Accumulator::Sum(sum) => sum.to_i64(),
            Accumulator::Least(key) => key.map(|key| if *op == Op::Max { !key } else { key }),
            Accumulator::WideSum(_) | Accumulator::Counts(_) => None,
        }
    }
}

/// An integer for each number, in the order of the numbers, zero below zero first.
fn key_of(element: Element) -> i64 {
    element.to_i64().unwrap_or_else(|| turned(element.to_f64().to_bits().cast_signed()))
}

/// Numbers below zero are turned over, so that integers compare as the floats do. It is its own inverse.
fn turned(bits: i64) -> i64 {
    if bits < 0 { bits ^ i64::MAX } else { bits }
}

fn bin(edges: &[f64], element: Element) -> usize {
    let v = element.to_f64();
    let bins = edges.len() - 1;
    match (v < edges[0], v > edges[bins]) {
        (true, _) => bins,
        (_, true) => bins + 1,
        _ => (edges.partition_point(|edge| *edge <= v) - 1).min(bins - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(op: &Op, values: &[f32]) -> Accumulator {
        let mut cell = op.cell(DType::F32);
        values.iter().for_each(|v| op.add(&mut cell, Element::Float(*v)));
        cell
    }

    #[test]
    fn a_bin_has_its_lower_edge_and_the_last_one_both() {
        let op = Op::histogram(-1.0, 1.0, 4);
        let values = [-1.0, -0.5, -0.500_001, 0.0, 0.499, 0.5, 1.0, 1.000_001, -7.0, f32::INFINITY];
        assert_eq!(all(&op, &values), Accumulator::Counts(vec![2, 1, 2, 2, 1, 2]));
        let thirds = Op::histogram(0.0, 1.0, 3);
        let Op::Histogram(edges) = &thirds else { unreachable!() };
        assert_eq!((edges[0], edges[3]), (0.0, 1.0));
        assert_eq!(all(&thirds, &[0.0, 0.33, 0.34, 0.67, 1.0]), Accumulator::Counts(vec![2, 1, 2, 0, 0]));
    }

    #[test]
    fn a_range_that_floats_cannot_cut_into_bins_has_none() {
        for (low, high, bins, has_bins) in [
            (0.0, 1.0, 65_536, true),
            (-8e307, 8e307, 1, true),
            (0.0, 1e300, 65_536, true),
            (-1e308, 1e308, 10, false),
            (0.0, 1e305, 65_536, false),
            (f64::NEG_INFINITY, 0.0, 10, false),
            (0.0, f64::INFINITY, 1, false),
            (0.0, f64::NAN, 1, false),
            (1.0, 1.0 + f64::EPSILON, 1, true),
            (1.0, 1.0 + f64::EPSILON, 2, false),
            (0.0, f64::from_bits(2), 2, true),
        ] {
            assert_eq!(Op::histogram(low, high, bins).has_bins(), has_bins, "{low} {high} {bins}");
        }
    }

    #[test]
    fn the_least_and_the_largest_are_found_on_both_sides_of_zero() {
        let values = [0.0, -0.0, -2.5, 1e-45, f32::NEG_INFINITY, 3.0];
        assert_eq!(all(&Op::Min, &values).to_f64(&Op::Min), f64::NEG_INFINITY);
        assert_eq!(all(&Op::Max, &values).to_f64(&Op::Max), 3.0);
        assert_eq!(all(&Op::Min, &[0.0, -0.0]).to_f64(&Op::Min).to_bits(), (-0.0_f64).to_bits());
        assert_eq!(all(&Op::Max, &[-0.0, 0.0]).to_f64(&Op::Max).to_bits(), 0);
        assert_eq!(all(&Op::Max, &[-1.0, -1e-45]).to_f64(&Op::Max), -f64::from(1e-45_f32));
        let mut ints = Op::Max.cell(DType::I64);
        [i64::MIN, -3, i64::MIN].iter().for_each(|v| Op::Max.add(&mut ints, Element::Int(*v)));
        assert_eq!(ints.to_i64(&Op::Max), Some(-3));
    }
}
