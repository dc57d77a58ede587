//! Brings a picture to the height of its row while its lines come one by one, so that only few of them are ever in memory. It decodes nothing.
//!
//! The pixels are those of `fast_image_resize`, to the last bit: the same weights in the same 16 bits, and sums of whole numbers.

use std::collections::VecDeque;

use orchestra_core::{Fit, ImageSpec, ResizeFilter};

use crate::flatten::Flattening;
use crate::geometry::{AxisSpan, fitted_part};
use crate::kernels::{add_weighted, round_sums};
use crate::picture::{PictureInfo, PixelKind, View};
use crate::row_spec::RowSpec;

/// Bits of a weight, and of a sum without its 8 bits of a pixel and 2 for weights below 0 and beyond 1.
const WEIGHT_BITS: u32 = 15;
const MOST_PRECISION: u32 = 22;

/// All of a spec that the pixels of a lowered picture depend on.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Purpose {
    size: [u32; 2],
    fit: Fit,
    shorter: u32,
    filter: ResizeFilter,
    channels: usize,
    pad: [u8; 3],
}

impl Purpose {
    fn of(spec: &ImageSpec) -> Option<(Purpose, RowSpec)> {
        let row = RowSpec::new(spec, spec.tensor().row_bytes()?).ok()?;
        let &ImageSpec { size, fit, shorter, filter, .. } = spec;
        Some((Purpose { size, fit, shorter, filter, channels: row.channels, pad: row.pad }, row))
    }
}

/// A picture of its own width and of the height that the part in the row has.
#[derive(Debug)]
pub(crate) struct Lowered {
    purpose: Purpose,
    change: Option<Flattening>,
    width: usize,
    channels: usize,
    lines: Vec<LineWeights>,
    precision: u32,
    /// Sums of lines that are not whole yet; the first is that of line `n_done`.
    open: VecDeque<Vec<i32>>,
    spare: Vec<Vec<i32>>,
    flat: Vec<u8>,
    n_done: usize,
    n_taken: usize,
    pixels: Vec<u8>,
}

/// Which lines of the picture a line of the row is made of.
#[derive(Debug, PartialEq)]
struct LineWeights {
    first: usize,
    weights: Vec<i16>,
}

impl Lowered {
    /// For rows of `specs`, which must all be made of the same pixels; `None` where that is not so, where the nearest pixel is wanted, where lines
    /// are added, and where it would take more than `most_bytes`.
    pub(crate) fn for_rows(specs: &[&ImageSpec], info: &PictureInfo, most_bytes: usize) -> Option<Lowered> {
        let (first, others) = specs.split_first()?;
        let (purpose, row) = Purpose::of(first)?;
        if purpose.filter == ResizeFilter::Nearest || !others.iter().all(|spec| is_for(&purpose, spec)) {
            return None;
        }
        let fitted = fitted_part(purpose.fit, purpose.shorter, purpose.size, info.shown_size());
        let (_, y) = fitted.stored_spans(info);
        let height = if info.orientation.transpose { fitted.dest.width } else { fitted.dest.height };
        if height as f64 > y.length {
            return None;
        }
        let change = Flattening::needed(info.kind, &row);
        let channels = change.map_or(info.kind.channels(), Flattening::channels);
        let width = info.width as usize;
        // Lanczos has 7 lines open at a time, of 4 bytes a value.
        if width.checked_mul(channels)?.checked_mul(height + 7 * size_of::<i32>())? > most_bytes {
            return None;
        }
        let (lines, precision) = lines(info.height, y, height, purpose.filter);
        Some(Lowered {
            purpose,
            change,
            width,
            channels,
            lines,
            precision,
            open: VecDeque::new(),
            spare: Vec::new(),
            flat: Vec::new(),
            n_done: 0,
            n_taken: 0,
            pixels: Vec::with_capacity(width * channels * height),
        })
    }

    /// Whether rows of `spec` can be made of it.
    pub(crate) fn is_for(&self, spec: &ImageSpec) -> bool {
        is_for(&self.purpose, spec)
    }

    /// The next line of the picture, from the top on, in the channels that the picture has.
    pub(crate) fn take(&mut self, line: &[u8]) {
        let y = self.n_taken;
        self.n_taken += 1;
        let line = match self.change {
            Some(change) => {
                self.flat.resize(self.width * self.channels, 0);
                change.run(line, &mut self.flat);
                &self.flat
            }
            None => line,
        };
        while let Some(next) = self.lines.get(self.n_done + self.open.len())
            && next.first <= y
        {
            let mut sums = self.spare.pop().unwrap_or_default();
            sums.clear();
            sums.resize(line.len(), 1 << (self.precision - 1));
            self.open.push_back(sums);
        }
        for (made, sums) in self.lines[self.n_done..].iter().zip(&mut self.open) {
            if let Some(&weight) = made.weights.get(y - made.first) {
                add_weighted::run(line, i32::from(weight), sums);
            }
        }
        while let Some(made) = self.lines.get(self.n_done)
            && made.first + made.weights.len() <= y + 1
            && let Some(sums) = self.open.pop_front()
        {
            let start = self.pixels.len();
            self.pixels.resize(start + sums.len(), 0);
            round_sums::run(&sums, self.precision, &mut self.pixels[start..]);
            self.spare.push(sums);
            self.n_done += 1;
        }
    }

    /// All of it, once all lines have been taken.
    pub(crate) fn view(&self) -> Option<View<'_>> {
        let whole = self.n_done == self.lines.len();
        whole.then(|| View::packed(&self.pixels, self.width, self.n_done, self.channels))
    }

    pub(crate) fn kind(&self) -> PixelKind {
        if self.channels == 1 { PixelKind::Gray } else { PixelKind::Rgb }
    }
}

fn is_for(purpose: &Purpose, spec: &ImageSpec) -> bool {
    Purpose::of(spec).is_some_and(|(other, _)| other == *purpose)
}

/// The weights of `count` lines that show the part `span` of `side` lines, and the bits behind their point. In the order of operations of
/// `fast_image_resize`, which has them from Pillow: other orders round differently.
fn lines(side: u32, span: AxisSpan, count: usize, filter: ResizeFilter) -> (Vec<LineWeights>, u32) {
    let (weigh, support): (fn(f64) -> f64, f64) = match filter {
        ResizeFilter::Nearest | ResizeFilter::Bilinear => (bilinear, 1.0),
        ResizeFilter::Bicubic => (catmull_rom, 2.0),
        ResizeFilter::Lanczos3 => (lanczos3, 3.0),
    };
    let scale = (span.start + span.length - span.start) / count as f64;
    let stretch = scale.max(1.0);
    let (radius, unstretch) = (support * stretch, 1.0 / stretch);
    let exact: Vec<(usize, Vec<f64>)> = (0..count)
        .map(|line| {
            let centre = span.start + (line as f64 + 0.5) * scale;
            let first = (centre - radius).floor().max(0.0) as u32;
            let end = (centre + radius).ceil().min(f64::from(side)) as u32;
            let centre = centre - 0.5;
            let weights = (first..end).map(|y| weigh((f64::from(y) - centre) * unstretch));
            let n_zero = weights.clone().take_while(|weight| *weight == 0.0).count();
            let mut weights: Vec<f64> = weights.skip(n_zero).collect();
            let sum: f64 = weights.iter().sum();
            while weights.last() == Some(&0.0) {
                weights.pop();
            }
            if sum != 0.0 {
                weights.iter_mut().for_each(|weight| *weight /= sum);
            }
            (first as usize + n_zero, weights)
        })
        .collect();
    let largest = exact.iter().flat_map(|(_, weights)| weights).fold(0.0, |most: f64, w| most.max(*w));
    let fits = |bits: &u32| ((largest * f64::from(1u32 << (bits + 1))).round() as i32) < 1 << WEIGHT_BITS;
    let precision = (0..MOST_PRECISION).find(|bits| !fits(bits)).unwrap_or(MOST_PRECISION - 1);
    let one = f64::from(1u32 << precision);
    let lines = exact.into_iter().map(|(first, weights)| LineWeights {
        first,
        weights: weights.into_iter().map(|weight| (weight * one).round() as i16).collect(),
    });
    (lines.collect(), precision)
}

fn bilinear(x: f64) -> f64 {
    (1.0 - x.abs()).max(0.0)
}

fn catmull_rom(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn lanczos3(x: f64) -> f64 {
    let sinc =
        |x: f64| if x == 0.0 { 1.0 } else { (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI) };
    if (-3.0..3.0).contains(&x) { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}
