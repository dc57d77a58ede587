//! Brings the wanted part of a picture to its size in the row, and turns it upright. It knows no colours and no numbers.
//!
//! Resampling runs on the stored picture, and only the small result is turned: that is the same picture, since filters are
//! symmetric, and costs a fraction.

use orchestra_core::ResizeFilter;

use crate::convolve::{self, Columns, Rows, SLACK};
use crate::geometry::{Placement, Span};
use crate::orientation::Orientation;
use crate::picture::{PictureInfo, View};
use crate::taps::Taps;

/// Resampler and its reused memory.
#[derive(Debug, Default)]
pub(crate) struct Resampler {
    across: Taps,
    down: Taps,
    /// Two rows that have their height already, but not their width.
    between: Vec<u8>,
    /// Where the rows begin that become one.
    firsts: Vec<usize>,
    /// A row that is made and not needed.
    last: Vec<u8>,
    /// The resized part, as stored.
    resized: Vec<u8>,
    /// The turned part.
    turned: Vec<u8>,
    columns: Vec<usize>,
    rows: Vec<usize>,
}

impl Resampler {
    /// The pixels that go to `placement.dest`, upright and of that size. Nothing is copied where nothing has to be done.
    pub(crate) fn fit<'a>(
        &'a mut self,
        source: View<'a>,
        info: &PictureInfo,
        placement: &Placement,
        filter: ResizeFilter,
    ) -> View<'a> {
        let turn = info.orientation;
        if filter == ResizeFilter::Nearest {
            return self.nearest(source, info, placement);
        }
        let (x, y) = placement.stored_spans(info);
        let dest = placement.dest;
        let (width, height) =
            if turn.transpose { (dest.height, dest.width) } else { (dest.width, dest.height) };
        let channels = source.channels;
        let part = match (x.pixels(), y.pixels()) {
            (Some((left, w)), Some((top, h))) if (w, h) == (width, height) => {
                let bytes = &source.bytes[top * source.stride + left * channels..];
                View { bytes, width, height, ..source }
            }
            _ => {
                // Taken out of `self`, since the result is read while the turn is written.
                let mut resized = std::mem::take(&mut self.resized);
                resized.resize(width * height * channels, 0);
                self.convolve(source, (x, y), (width, height), filter, &mut resized);
                self.resized = resized;
                View::packed(&self.resized, width, height, channels)
            }
        };
        if turn == Orientation::UPRIGHT {
            return part;
        }
        let (columns, rows) = (&mut self.columns, &mut self.rows);
        turn.offsets((width, height), channels, 0..dest.width, 0..dest.height, columns, rows);
        // A part that was not resized still lies in the rows of the whole picture.
        restride(if turn.transpose { columns } else { rows }, width * channels, part.stride);
        self.turned.resize(dest.width * dest.height * channels, 0);
        gather(part.bytes, columns, rows, channels, &mut self.turned);
        View::packed(&self.turned, dest.width, dest.height, channels)
    }

    /// Pillow's nearest neighbour, straight from the stored picture into the upright part.
    fn nearest(&mut self, source: View<'_>, info: &PictureInfo, placement: &Placement) -> View<'_> {
        let turn = info.orientation;
        let factor = info.reduction.factor() as usize;
        let (width, height, channels) = (source.width, source.height, source.channels);
        let shown = if turn.transpose { (height, width) } else { (width, height) };
        let dest = placement.dest;
        let xs = placement.nearest_columns().map(|x| (x / factor).min(shown.0 - 1));
        let ys = placement.nearest_rows().map(|y| (y / factor).min(shown.1 - 1));
        turn.offsets((width, height), channels, xs, ys, &mut self.columns, &mut self.rows);
        self.turned.resize(dest.width * dest.height * channels, 0);
        gather(source.bytes, &self.columns, &self.rows, channels, &mut self.turned);
        View::packed(&self.turned, dest.width, dest.height, channels)
    }

    /// Antialiased convolution of the part `x`, `y` of `source` into the packed rows `target`, `width` by `height`.
    ///
    /// Two rows are made at a time, first of their height and then of their width: what lies between stays in the processor's cache, and an
    /// extreme picture needs no more memory than two of its rows.
    fn convolve(
        &mut self,
        source: View<'_>,
        (x, y): (Span, Span),
        (width, height): (usize, usize),
        filter: ResizeFilter,
        target: &mut [u8],
    ) {
        let channels = source.channels;
        let (across, down) = (&mut self.across, &mut self.down);
        across.prepare(source.width, x, width, filter);
        down.prepare(source.height, y, height, filter);
        let (left, right) = across.range();
        let seen = (right.min(source.width) - left) * channels;
        // What lies behind the picture has no weight.
        let length = (right - left) * channels + SLACK;
        self.between.clear();
        self.between.resize(length * 2, 0);
        let (upper, lower) = self.between.split_at_mut(length);
        let columns = Columns::new(across, left, channels);
        let firsts = &mut self.firsts;
        let mut shrink = |row: usize, out: &mut [u8]| {
            let start = down.starts[row] as usize;
            firsts.clear();
            firsts.extend(
                (start..start + down.count)
                    .map(|y| y.min(source.height - 1) * source.stride + left * channels),
            );
            let weights = &down.weights[row * down.count..][..down.count];
            let rows = Rows { bytes: source.bytes, firsts, weights, precision: down.precision };
            convolve::down(rows, &mut out[..seen]);
        };
        let packed = width * channels;
        for (pair, out) in target.chunks_mut(packed * 2).enumerate() {
            shrink(pair * 2, upper);
            let (first, second) = out.split_at_mut(packed);
            if second.is_empty() {
                // The last row of an odd number, alone: it is made twice.
                self.last.resize(packed, 0);
                convolve::across(columns, [upper, upper], [first, &mut self.last]);
            } else {
                shrink(pair * 2 + 1, lower);
                convolve::across(columns, [upper, lower], [first, second]);
            }
        }
    }

    /// Gives memory beyond `keep_bytes` back.
    pub(crate) fn shrink(&mut self, keep_bytes: usize) {
        self.across.shrink(keep_bytes);
        self.down.shrink(keep_bytes);
    }
}

/// Rescales offsets that count rows of `packed` bytes to rows of `stride` bytes.
fn restride(offsets: &mut [usize], packed: usize, stride: usize) {
    if packed != stride {
        for offset in offsets {
            *offset = *offset / packed * stride;
        }
    }
}

/// Copies the pixel at `columns[x] + rows[y]` to position `(x, y)` of packed rows.
fn gather(source: &[u8], columns: &[usize], rows: &[usize], channels: usize, out: &mut [u8]) {
    for (out, row) in out.chunks_exact_mut(columns.len() * channels).zip(rows) {
        let source = &source[*row..];
        if channels == 1 {
            for (out, column) in out.iter_mut().zip(columns) {
                *out = source[*column];
            }
        } else {
            for (out, column) in out.as_chunks_mut::<3>().0.iter_mut().zip(columns) {
                out.copy_from_slice(&source[*column..*column + 3]);
            }
        }
    }
}
