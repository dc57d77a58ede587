//! Brings the wanted part of a picture to its size in the row, and turns it upright. It knows no colours and no numbers.
//!
//! Resampling runs on the stored picture, and only the small result is turned: that is the same picture, since filters are
//! symmetric, and costs a fraction.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use orchestra_core::ResizeFilter;

use crate::geometry::{AxisSpan, FittedPart, Rect};
use crate::orientation::Orientation;
use crate::picture::{PictureInfo, View};

/// Rows beyond the wanted part that a filter reaches where it enlarges: Lanczos has 3 lobes.
const REACH: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct Resampler {
    resizer: Resizer,
    /// What has its width already, but not its height.
    between: Vec<u8>,
    /// The resized part, as stored.
    resized: Vec<u8>,
    turned: Vec<u8>,
    columns: Vec<usize>,
    rows: Vec<usize>,
}

impl Resampler {
    /// The pixels that go to `fitted.dest`, upright and of that size. Nothing is copied where nothing has to be done.
    pub(crate) fn fit<'a>(
        &'a mut self,
        source: View<'a>,
        info: &PictureInfo,
        fitted: &FittedPart,
        filter: ResizeFilter,
    ) -> View<'a> {
        if filter == ResizeFilter::Nearest {
            return self.nearest(source, info, fitted);
        }
        self.fit_part(source, fitted.stored_spans(info), info.orientation, fitted.dest, filter)
    }

    /// The same, of a picture that has the height of the part already.
    pub(crate) fn fit_width<'a>(
        &'a mut self,
        source: View<'a>,
        info: &PictureInfo,
        fitted: &FittedPart,
        filter: ResizeFilter,
    ) -> View<'a> {
        let (x, _) = fitted.stored_spans(info);
        let y = AxisSpan { start: 0.0, length: source.height as f64 };
        self.fit_part(source, (x, y), info.orientation, fitted.dest, filter)
    }

    fn fit_part<'a>(
        &'a mut self,
        source: View<'a>,
        (x, y): (AxisSpan, AxisSpan),
        turn: Orientation,
        dest: Rect,
        filter: ResizeFilter,
    ) -> View<'a> {
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
    fn nearest(&mut self, source: View<'_>, info: &PictureInfo, fitted: &FittedPart) -> View<'_> {
        let turn = info.orientation;
        let factor = info.reduction.factor() as usize;
        let (width, height, channels) = (source.width, source.height, source.channels);
        let shown = if turn.transpose { (height, width) } else { (width, height) };
        let dest = fitted.dest;
        let xs = fitted.nearest_columns().map(|x| (x / factor).min(shown.0 - 1));
        let ys = fitted.nearest_rows().map(|y| (y / factor).min(shown.1 - 1));
        turn.offsets((width, height), channels, xs, ys, &mut self.columns, &mut self.rows);
        self.turned.resize(dest.width * dest.height * channels, 0);
        gather(source.bytes, &self.columns, &self.rows, channels, &mut self.turned);
        View::packed(&self.turned, dest.width, dest.height, channels)
    }

    /// Antialiased convolution of the part `x`, `y` of `source` into the packed rows `target`, `width` by `height`.
    ///
    /// `Resizer` makes rows of their height before it makes their width. Where rows are added, their width comes first: it is less work, and a
    /// picture that is low and very wide needs no more memory than the larger of source and target.
    fn convolve(
        &mut self,
        source: View<'_>,
        (x, y): (AxisSpan, AxisSpan),
        (width, height): (usize, usize),
        filter: ResizeFilter,
        target: &mut [u8],
    ) {
        if height as f64 <= y.length {
            return resize(&mut self.resizer, source, (x, y), (width, height), filter, target);
        }
        let top = (y.start as usize).saturating_sub(REACH);
        let bottom = ((y.start + y.length).ceil() as usize + REACH).min(source.height);
        let rows = AxisSpan { start: top as f64, length: (bottom - top) as f64 };
        self.between.resize(width * (bottom - top) * source.channels, 0);
        resize(&mut self.resizer, source, (x, rows), (width, bottom - top), filter, &mut self.between);
        let between = View::packed(&self.between, width, bottom - top, source.channels);
        let whole = AxisSpan { start: 0.0, length: width as f64 };
        let y = AxisSpan { start: y.start - top as f64, length: y.length };
        resize(&mut self.resizer, between, (whole, y), (width, height), filter, target);
    }

    /// Gives memory beyond `keep_bytes` back.
    pub(crate) fn shrink(&mut self, keep_bytes: usize) {
        if self.resizer.size_of_internal_buffers() > keep_bytes {
            self.resizer.reset_internal_buffers();
        }
        if self.between.capacity() > keep_bytes {
            self.between = Vec::new();
        }
    }
}

/// The part `x`, `y` of `source`, whose rows follow each other without a gap, as `width` by `height` pixels.
fn resize(
    resizer: &mut Resizer,
    source: View<'_>,
    spans: (AxisSpan, AxisSpan),
    size: (usize, usize),
    filter: ResizeFilter,
    target: &mut [u8],
) {
    // `Resizer::resize` takes any pixel, and compiles the code of all 13 kinds here: two minutes.
    if source.channels == 1 {
        resize_typed::<U8>(resizer, source, spans, size, filter, target);
    } else {
        resize_typed::<U8x3>(resizer, source, spans, size, filter, target);
    }
}

fn resize_typed<P: PixelTrait>(
    resizer: &mut Resizer,
    source: View<'_>,
    (x, y): (AxisSpan, AxisSpan),
    (width, height): (usize, usize),
    filter: ResizeFilter,
    target: &mut [u8],
) {
    let filter = match filter {
        ResizeFilter::Nearest => FilterType::Box,
        ResizeFilter::Bilinear => FilterType::Bilinear,
        ResizeFilter::Bicubic => FilterType::CatmullRom,
        ResizeFilter::Lanczos3 => FilterType::Lanczos3,
    };
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(filter))
        .crop(x.start, y.start, x.length, y.length);
    let from = TypedImageRef::<P>::from_buffer(source.width as u32, source.height as u32, source.bytes);
    let from = from.expect("a source has all its pixels");
    let to = TypedImage::<P>::from_buffer(width as u32, height as u32, target);
    let mut to = to.expect("a target has room for all its pixels");
    resizer.resize_typed(&from, &mut to, &options).expect("spans lie inside the picture");
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

#[cfg(test)]
mod tests {
    use fast_image_resize::CpuExtensions;

    use super::*;

    /// Bytes that differ from their neighbours, black and white among them, where filters overshoot.
    fn noise(length: usize) -> Vec<u8> {
        let mut state = 0x2545_f491_u32;
        let byte = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 24) as u8
        };
        std::iter::repeat_with(byte).take(length).collect()
    }

    #[test]
    fn a_row_is_the_same_to_the_byte_whatever_instructions_the_processor_has() {
        let (width, height) = (157, 93);
        let parts = [
            (AxisSpan { start: 0.0, length: 157.0 }, AxisSpan { start: 0.0, length: 93.0 }),
            (AxisSpan { start: 3.25, length: 101.5 }, AxisSpan { start: 7.75, length: 61.125 }),
        ];
        // Smaller, much smaller, larger, and of sides that fill no vector.
        let sizes = [(7, 5), (64, 48), (33, 17), (1, 1), (201, 131), (311, 9), (9, 211)];
        // Miri takes half a minute for each.
        let most = if cfg!(miri) { 1 } else { usize::MAX };
        for channels in [1, 3] {
            let bytes = noise(width * height * channels);
            let source = View::packed(&bytes, width, height, channels);
            for filter in
                [ResizeFilter::Bilinear, ResizeFilter::Bicubic, ResizeFilter::Lanczos3].into_iter().take(most)
            {
                for (part, size) in parts.iter().flat_map(|part| sizes.map(|size| (*part, size))).take(most) {
                    let row = |resizer| {
                        let mut row = vec![0; size.0 * size.1 * channels];
                        let mut resampler = Resampler { resizer, ..Resampler::default() };
                        resampler.convolve(source, part, size, filter, &mut row);
                        row
                    };
                    let mut scalar = Resizer::new();
                    // SAFETY: code without vector instructions runs on every processor.
                    unsafe { scalar.set_cpu_extensions(CpuExtensions::None) };
                    assert!(row(Resizer::new()) == row(scalar), "{filter:?} {channels} {part:?} {size:?}");
                }
            }
        }
    }
}
