//! Brings the wanted part of a picture to its size in the row, and turns it upright. It knows no colours and no numbers.
//!
//! Resampling runs on the stored picture, and only the small result is turned: that is the same picture, since filters are
//! symmetric, and costs a fraction.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use orchestra_core::ResizeFilter;

use crate::error::{MediaError, panic_text};
use crate::geometry::{Placement, Span};
use crate::orientation::Orientation;
use crate::picture::View;

/// Intermediate pixels from which on the order of the two passes is chosen for memory instead of speed.
const MANY_PIXELS: f64 = (1 << 24) as f64;

/// Resampler and its reused memory.
#[derive(Debug, Default)]
pub(crate) struct Resampler {
    resizer: Resizer,
    /// The resized part, as stored.
    resized: Vec<u8>,
    /// Result of a first pass that had to be made apart.
    first_pass: Vec<u8>,
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
        turn: Orientation,
        placement: &Placement,
        filter: ResizeFilter,
    ) -> Result<View<'a>, MediaError> {
        let filter = match filter {
            ResizeFilter::Nearest => return Ok(self.nearest(source, turn, placement)),
            ResizeFilter::Bilinear => FilterType::Bilinear,
            ResizeFilter::Bicubic => FilterType::CatmullRom,
            ResizeFilter::Lanczos3 => FilterType::Lanczos3,
        };
        let (x, y) = placement.stored_spans(turn, source.width as u32, source.height as u32);
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
                let target = Target { bytes: &mut resized, width, height };
                let result = self.convolve(source, (x, y), target, filter);
                self.resized = resized;
                result?;
                View::packed(&self.resized, width, height, channels)
            }
        };
        if turn == Orientation::UPRIGHT {
            return Ok(part);
        }
        let (columns, rows) = (&mut self.columns, &mut self.rows);
        turn.offsets((width, height), channels, 0..dest.width, 0..dest.height, columns, rows);
        // A part that was not resized still lies in the rows of the whole picture.
        restride(if turn.transpose { columns } else { rows }, width * channels, part.stride);
        self.turned.resize(dest.width * dest.height * channels, 0);
        gather(part.bytes, columns, rows, channels, &mut self.turned);
        Ok(View::packed(&self.turned, dest.width, dest.height, channels))
    }

    /// Pillow's nearest neighbour, straight from the stored picture into the upright part.
    fn nearest(&mut self, source: View<'_>, turn: Orientation, placement: &Placement) -> View<'_> {
        let (width, height, channels) = (source.width, source.height, source.channels);
        let shown = if turn.transpose { (height, width) } else { (width, height) };
        let dest = placement.dest;
        let xs = placement.nearest_columns().map(|x| x.min(shown.0 - 1));
        let ys = placement.nearest_rows().map(|y| y.min(shown.1 - 1));
        turn.offsets((width, height), channels, xs, ys, &mut self.columns, &mut self.rows);
        self.turned.resize(dest.width * dest.height * channels, 0);
        gather(source.bytes, &self.columns, &self.rows, channels, &mut self.turned);
        View::packed(&self.turned, dest.width, dest.height, channels)
    }

    /// Antialiased convolution of the part `x`, `y` of `source` into `target`.
    fn convolve(
        &mut self,
        source: View<'_>,
        (x, y): (Span, Span),
        target: Target<'_>,
        filter: FilterType,
    ) -> Result<(), MediaError> {
        let Target { width, height, .. } = target;
        // The resizer shrinks the height first and keeps `x.length * height` pixels meanwhile. Of a very wide picture that
        // would be gigabytes, so there the width goes first.
        let (kept, other) = (x.length * height as f64, width as f64 * source.height as f64);
        if kept <= MANY_PIXELS || kept <= other {
            return self.pass(source, (x, y), target, filter);
        }
        let mut first_pass = std::mem::take(&mut self.first_pass);
        first_pass.resize(width * source.height * source.channels, 0);
        let all_rows = Span { start: 0.0, length: source.height as f64 };
        let middle = Target { bytes: &mut first_pass, width, height: source.height };
        let result = self.pass(source, (x, all_rows), middle, filter).and_then(|()| {
            let middle = View::packed(&first_pass, width, source.height, source.channels);
            let all_columns = Span { start: 0.0, length: width as f64 };
            self.pass(middle, (all_columns, y), target, filter)
        });
        self.first_pass = first_pass;
        result
    }

    /// One call of the resizer. A panic in it is an error of this picture.
    fn pass(
        &mut self,
        source: View<'_>,
        (x, y): (Span, Span),
        target: Target<'_>,
        filter: FilterType,
    ) -> Result<(), MediaError> {
        let pixel = if source.channels == 1 { PixelType::U8 } else { PixelType::U8x3 };
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(filter))
            .crop(x.start, y.start, x.length, y.length)
            .use_alpha(false);
        let resizer = &mut self.resizer;
        let outcome = catch_unwind(AssertUnwindSafe(|| -> Result<(), String> {
            let from = ImageRef::new(source.width as u32, source.height as u32, source.bytes, pixel)
                .map_err(|e| e.to_string())?;
            let mut to = Image::from_slice_u8(target.width as u32, target.height as u32, target.bytes, pixel)
                .map_err(|e| e.to_string())?;
            resizer.resize(&from, &mut to, &options).map_err(|e| e.to_string())
        }));
        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => Err(MediaError::Resize { reason }),
            Err(panic) => {
                self.resizer = Resizer::new();
                Err(MediaError::Resize { reason: format!("the resizer gave up: {}", panic_text(&*panic)) })
            }
        }
    }

    /// Gives memory beyond `keep_bytes` back.
    pub(crate) fn shrink(&mut self, keep_bytes: usize) {
        if self.resizer.size_of_internal_buffers() > keep_bytes {
            self.resizer.reset_internal_buffers();
        }
        self.first_pass.clear();
        self.first_pass.shrink_to(keep_bytes);
    }
}

/// Where a pass writes: packed rows.
struct Target<'a> {
    bytes: &'a mut [u8],
    width: usize,
    height: usize,
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
