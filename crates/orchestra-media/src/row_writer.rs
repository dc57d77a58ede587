//! Writes upright pixels of the right size into a row: channel order, normalisation, layout, padding. Each value once.

use half::f16;
use half::slice::HalfFloatSliceExt;
use orchestra_core::{ImageSpec, Layout};

use crate::error::MediaError;
use crate::geometry::Rect;
use crate::kernels::{Affine, byte_planes, interleaved, line, planes, spread, swap};
use crate::picture::View;
use crate::row_spec::{ElementType, RowSpec};

/// Pixels that are worked out in `f32` before they are stored as `f16`.
const TILE: usize = 256;
/// Pixels of padding written at once.
const PAD_RUN: usize = 64;

/// Memory for rows whose address does not suit their element type.
#[derive(Debug, Default)]
pub(crate) struct AlignedRow {
    floats: Vec<f32>,
    halves: Vec<f16>,
}

/// Writes `part` to `dest` of the row and padding around it.
pub(crate) fn write(spec: &RowSpec, part: View<'_>, dest: Rect, row: &mut [u8], spare: &mut AlignedRow) {
    match spec.element {
        ElementType::U8 => fill(spec, part, dest, row),
        ElementType::F32 => {
            // SAFETY: every four bytes are a valid `f32`.
            if let ([], floats, []) = unsafe { row.align_to_mut::<f32>() } {
                return fill(spec, part, dest, floats);
            }
            spare.floats.resize(row.len() / 4, 0.0);
            fill(spec, part, dest, &mut spare.floats);
            for (bytes, value) in row.as_chunks_mut().0.iter_mut().zip(&spare.floats) {
                *bytes = value.to_ne_bytes();
            }
        }
        ElementType::F16 => {
            // SAFETY: every two bytes are a valid `f16`.
            if let ([], halves, []) = unsafe { row.align_to_mut::<f16>() } {
                return fill(spec, part, dest, halves);
            }
            spare.halves.resize(row.len() / 2, f16::ZERO);
            fill(spec, part, dest, &mut spare.halves);
            for (bytes, value) in row.as_chunks_mut().0.iter_mut().zip(&spare.halves) {
                *bytes = value.to_ne_bytes();
            }
        }
    }
}

/// Writes the row of `spec` from the pixels that it is made of: a row of [`ImageSpec::packed`]. Any bytes are pixels.
///
/// # Errors
/// When `packed` or `row` has another length, or when `spec` is none that a plan would let pass. The row holds nothing of use then.
pub fn unpack(spec: &ImageSpec, packed: &[u8], row: &mut [u8]) -> Result<(), MediaError> {
    let row_spec = RowSpec::new(spec, row.len())?;
    let RowSpec { width, height, channels, .. } = row_spec;
    let (expected, found) = (width * height * channels, packed.len());
    if expected != found {
        return Err(MediaError::RowLength { expected, found });
    }
    let whole = Rect { x: 0, y: 0, width, height };
    write(&row_spec, View::packed(packed, width, height, channels), whole, row, &mut AlignedRow::default());
    Ok(())
}

trait RowElement: Copy {
    /// Writes a run of pixels from position `at` on. The three planes of a planar row are `area` values apart.
    fn run(spec: &RowSpec, source: &[u8], channels: usize, at: usize, row: &mut [Self]);
}

/// Runs from the top left to the bottom right: padding, a row of the part, padding, and so on.
fn fill<T: RowElement>(spec: &RowSpec, part: View<'_>, dest: Rect, row: &mut [T]) {
    let is_whole = dest.width == spec.width && dest.height == spec.height;
    if let (true, Some(run)) = (is_whole, part.run()) {
        return T::run(spec, run, part.channels, 0, row);
    }
    let mut written = 0;
    for y in 0..dest.height {
        let start = (dest.y + y) * spec.width + dest.x;
        pad(spec, written, start, row);
        T::run(spec, part.row(y), part.channels, start, row);
        written = start + dest.width;
    }
    pad(spec, written, spec.area(), row);
}

/// Padding from pixel `from` to pixel `to`.
fn pad<T: RowElement>(spec: &RowSpec, from: usize, to: usize, row: &mut [T]) {
    let mut colours = [0; PAD_RUN * 3];
    if from == to {
        return;
    }
    for pixel in colours.chunks_exact_mut(spec.channels) {
        pixel.copy_from_slice(&spec.pad[..spec.channels]);
    }
    for at in (from..to).step_by(PAD_RUN) {
        let count = PAD_RUN.min(to - at);
        T::run(spec, &colours[..count * spec.channels], spec.channels, at, row);
    }
}

/// The three planes of a planar row, red first, from pixel `at` on.
fn planes_at<'a, T>(spec: &RowSpec, at: usize, row: &'a mut [T]) -> [&'a mut [T]; 3] {
    let (first, rest) = row.split_at_mut(spec.area());
    let (second, third) = rest.split_at_mut(spec.area());
    let (red, blue) = if spec.is_bgr { (third, first) } else { (first, third) };
    [&mut red[at..], &mut second[at..], &mut blue[at..]]
}

/// Factors and offsets in the order of the row.
fn row_order(spec: &RowSpec) -> Affine {
    let mut affine = spec.affine;
    if spec.is_bgr {
        affine.factor.reverse();
        affine.offset.reverse();
    }
    affine
}

impl RowElement for f32 {
    fn run(spec: &RowSpec, source: &[u8], channels: usize, at: usize, row: &mut [f32]) {
        let count = source.len() / channels;
        match (channels, spec.channels, spec.layout) {
            (1, 1, _) => {
                line::run(source, spec.affine.factor[0], spec.affine.offset[0], &mut row[at..at + count])
            }
            (1, _, Layout::Nchw) => {
                for (c, plane) in planes_at(spec, at, row).into_iter().enumerate() {
                    line::run(source, spec.affine.factor[c], spec.affine.offset[c], &mut plane[..count]);
                }
            }
            (1, _, Layout::Nhwc) => spread::run(source, &row_order(spec), &mut row[at * 3..(at + count) * 3]),
            (_, _, Layout::Nchw) => {
                let [red, green, blue] = planes_at(spec, at, row);
                planes::run(source, &spec.affine, red, green, blue);
            }
            (_, _, Layout::Nhwc) => {
                let out = &mut row[at * 3..(at + count) * 3];
                if spec.is_bgr {
                    for (out, source) in out.chunks_mut(TILE * 3).zip(source.chunks(TILE * 3)) {
                        let mut swapped = [0; TILE * 3];
                        let swapped = &mut swapped[..source.len()];
                        swap::run(source, swapped);
                        interleaved::run(swapped, &row_order(spec), out);
                    }
                } else {
                    interleaved::run(source, &spec.affine, out);
                }
            }
        }
    }
}

impl RowElement for f16 {
    fn run(spec: &RowSpec, source: &[u8], channels: usize, at: usize, row: &mut [f16]) {
        let mut tile = [0.0; TILE * 3];
        for (index, source) in source.chunks(TILE * channels).enumerate() {
            let at = at + index * TILE;
            let count = source.len() / channels;
            // A small row of its own, of the same layout.
            let tile_spec = RowSpec { width: count, height: 1, ..*spec };
            let tile = &mut tile[..count * spec.channels];
            f32::run(&tile_spec, source, channels, 0, tile);
            if spec.channels == 3 && spec.layout == Layout::Nchw {
                for (c, values) in tile.chunks_exact(count).enumerate() {
                    row[c * spec.area() + at..][..count].convert_from_f32_slice(values);
                }
            } else {
                row[at * spec.channels..][..tile.len()].convert_from_f32_slice(tile);
            }
        }
    }
}

impl RowElement for u8 {
    fn run(spec: &RowSpec, source: &[u8], channels: usize, at: usize, row: &mut [u8]) {
        let count = source.len() / channels;
        match (channels, spec.channels, spec.layout) {
            (1, 1, _) => row[at..at + count].copy_from_slice(source),
            (1, _, Layout::Nchw) => {
                for plane in planes_at(spec, at, row) {
                    plane[..count].copy_from_slice(source);
                }
            }
            (1, _, Layout::Nhwc) => {
                let out = &mut row[at * 3..(at + count) * 3];
                for (out, gray) in out.as_chunks_mut::<3>().0.iter_mut().zip(source) {
                    *out = [*gray; 3];
                }
            }
            (_, _, Layout::Nchw) => {
                let [red, green, blue] = planes_at(spec, at, row);
                byte_planes::run(source, red, green, blue);
            }
            (_, _, Layout::Nhwc) => {
                let out = &mut row[at * 3..(at + count) * 3];
                if spec.is_bgr { swap::run(source, out) } else { out.copy_from_slice(source) }
            }
        }
    }
}
