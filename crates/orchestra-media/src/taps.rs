//! Which pixels of an axis make each pixel of the resized axis, and with which weight. It touches no pixels.
//!
//! Formula: Pillow's `precompute_coeffs` in `Resample.c`; the weights are whole numbers, so that every processor gets the same sums.

use std::f64::consts::PI;

use orchestra_core::ResizeFilter;

use crate::geometry::Span;

/// Below this a weight fits 16 bits, with room for what rounding adds to it.
const LARGEST_WEIGHT: f64 = 32_000.0;

/// Weights keep at most so many bits behind the point: a sum of 255 times all of them, negative lobes included, still fits 32 bits.
const MOST_PRECISION: u32 = 22;

/// The weights of one axis. Its memory is reused, and so is its content while the axes do not change.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    made_for: Option<(usize, Span, usize, ResizeFilter)>,
    /// For each target pixel the first source pixel that it takes.
    pub(crate) starts: Vec<u32>,
    /// Source pixels that each target pixel takes, an even number. What is too many has weight 0, and may lie beyond the axis.
    pub(crate) count: usize,
    /// `count` weights for each target pixel, which sum up to `1 << precision`.
    pub(crate) weights: Vec<i16>,
    pub(crate) precision: u32,
    exact: Vec<f64>,
}

impl Taps {
    /// Makes the weights that bring `span` of an axis of `side` pixels to `target` pixels.
    pub(crate) fn prepare(&mut self, side: usize, span: Span, target: usize, filter: ResizeFilter) {
        let key = (side, span, target, filter);
        if self.made_for == Some(key) {
            return;
        }
        self.made_for = Some(key);
        let scale = span.length / target as f64;
        let stretch = scale.max(1.0);
        let support = reach(filter) * stretch;
        let window = support.ceil() as usize * 2 + 1;
        self.starts.clear();
        self.exact.clear();
        self.exact.resize(window * target, 0.0);
        let (mut longest, mut largest) = (1, 0.0_f64);
        for (at, weights) in self.exact.chunks_exact_mut(window).enumerate() {
            let centre = span.start + (at as f64 + 0.5) * scale;
            // `as` takes negative numbers to 0.
            let first = ((centre - support + 0.5) as usize).min(side - 1);
            let end = ((centre + support + 0.5) as usize).clamp(first + 1, side).min(first + window);
            let used = &mut weights[..end - first];
            let mut sum = 0.0;
            for (tap, weight) in used.iter_mut().enumerate() {
                *weight = curve(filter, ((first + tap) as f64 - centre + 0.5) / stretch);
                sum += *weight;
            }
            if sum == 0.0 {
                // A centre on the very edge by rounding: the nearest pixel.
                (used[0], sum) = (1.0, 1.0);
            }
            for weight in used.iter_mut() {
                *weight /= sum;
                largest = largest.max(weight.abs());
            }
            longest = longest.max(used.len());
            self.starts.push(first as u32);
        }
        self.count = longest.next_multiple_of(2);
        self.quantise(window, largest);
    }

    /// To whole numbers: as many bits as the largest weight leaves, and the rounding errors of a pixel on its largest weight, so that a flat
    /// area keeps its colour.
    fn quantise(&mut self, window: usize, largest: f64) {
        let fits = |bits: &u32| largest * f64::from(1_u32 << bits) < LARGEST_WEIGHT;
        self.precision = (0..=MOST_PRECISION).rev().find(fits).unwrap_or(0);
        let one = 1_i32 << self.precision;
        self.weights.clear();
        self.weights.resize(self.count * self.starts.len(), 0);
        let kept = self.count.min(window);
        for (exact, weights) in self.exact.chunks_exact(window).zip(self.weights.chunks_exact_mut(self.count))
        {
            let mut sum = 0;
            let mut heaviest = 0;
            for (tap, exact) in exact[..kept].iter().enumerate() {
                weights[tap] = (exact * f64::from(one)).round() as i16;
                sum += i32::from(weights[tap]);
                if weights[tap] > weights[heaviest] {
                    heaviest = tap;
                }
            }
            weights[heaviest] = (i32::from(weights[heaviest]) + one - sum) as i16;
        }
    }

    /// The source pixels that any target pixel takes, from the first to behind the last; the last may lie beyond the axis.
    pub(crate) fn range(&self) -> (usize, usize) {
        let first = self.starts.first().map_or(0, |s| *s as usize);
        let last = self.starts.last().map_or(0, |s| *s as usize);
        (first, last + self.count)
    }

    /// Gives memory beyond `keep_bytes` back.
    pub(crate) fn shrink(&mut self, keep_bytes: usize) {
        if self.exact.capacity() * size_of::<f64>() > keep_bytes {
            *self = Taps::default();
        }
    }
}

/// How far a filter reaches from its centre, in pixels.
fn reach(filter: ResizeFilter) -> f64 {
    match filter {
        ResizeFilter::Nearest => 0.5,
        ResizeFilter::Bilinear => 1.0,
        ResizeFilter::Bicubic => 2.0,
        ResizeFilter::Lanczos3 => 3.0,
    }
}

fn curve(filter: ResizeFilter, x: f64) -> f64 {
    let x = x.abs();
    match filter {
        ResizeFilter::Nearest if x <= 0.5 => 1.0,
        ResizeFilter::Bilinear if x < 1.0 => 1.0 - x,
        ResizeFilter::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
        ResizeFilter::Bicubic if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
        ResizeFilter::Lanczos3 if x < 3.0 => sinc(x) * sinc(x / 3.0),
        _ => 0.0,
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_every_pixel_sum_up_to_one_and_lie_inside_the_axis() {
        let mut taps = Taps::default();
        for filter in [ResizeFilter::Bilinear, ResizeFilter::Bicubic, ResizeFilter::Lanczos3] {
            for (side, start, length, target) in [
                (500, 62.5, 375.0, 224),
                (1, 0.0, 1.0, 9),
                (7, 0.1, 6.8, 300),
                (70_000, 3.0, 69_000.0, 2),
                (32, 0.0, 32.0, 32),
            ] {
                taps.prepare(side, Span { start, length }, target, filter);
                assert_eq!(taps.starts.len(), target);
                for (start, weights) in taps.starts.iter().zip(taps.weights.chunks_exact(taps.count)) {
                    assert_eq!(weights.iter().map(|w| i32::from(*w)).sum::<i32>(), 1 << taps.precision);
                    let beyond = side.saturating_sub(*start as usize).min(taps.count);
                    assert!(weights[beyond..].iter().all(|w| *w == 0), "{filter:?} {side} {target}");
                }
            }
        }
    }

    #[test]
    fn an_axis_that_keeps_its_size_keeps_its_pixels() {
        let mut taps = Taps::default();
        for filter in [ResizeFilter::Bilinear, ResizeFilter::Bicubic, ResizeFilter::Lanczos3] {
            taps.prepare(9, Span { start: 0.0, length: 9.0 }, 9, filter);
            for (at, (start, weights)) in
                taps.starts.iter().zip(taps.weights.chunks_exact(taps.count)).enumerate()
            {
                let heaviest = weights.iter().position(|w| i32::from(*w) == 1 << taps.precision);
                assert_eq!(heaviest.map(|tap| tap + *start as usize), Some(at), "{filter:?}");
            }
        }
    }
}
