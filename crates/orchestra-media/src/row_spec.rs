//! An image spec checked once per row, in the form that the loops need. It touches no pixels.

use orchestra_core::{Channels, DType, Fit, ImageSpec, Layout};

use crate::error::MediaError;
use crate::kernels::Affine;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ElementType {
    F32,
    F16,
    U8,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RowSpec {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// 1 or 3.
    pub(crate) channels: usize,
    pub(crate) layout: Layout,
    pub(crate) element: ElementType,
    /// Whether the row has blue first.
    pub(crate) is_bgr: bool,
    /// In the order of red, green, blue; of one channel all three are equal.
    pub(crate) affine: Affine,
    /// In the order of red, green, blue; of one channel all three are equal.
    pub(crate) pad: [u8; 3],
}

impl RowSpec {
    /// Checks `spec`, and that `row_bytes` is the length of its row.
    pub(crate) fn new(spec: &ImageSpec, row_bytes: usize) -> Result<RowSpec, MediaError> {
        let bad = |what: String| Err(MediaError::BadSpec { what });
        let [height, width] = spec.size;
        if height == 0 || width == 0 {
            return bad(format!("`size` is [{height}, {width}], expected at least 1 pixel on each side"));
        }
        if spec.fit == Fit::Shorter && spec.shorter == 0 {
            return bad("`shorter` is 0, expected at least 1 pixel".to_owned());
        }
        let element = match spec.dtype {
            DType::F32 => ElementType::F32,
            DType::F16 => ElementType::F16,
            DType::U8 => ElementType::U8,
            other => return bad(format!("`dtype` is `{other}`, expected `f32`, `f16` or `u8`")),
        };
        let (width, height, channels) = (width as usize, height as usize, spec.color.count());
        let expected = width
            .checked_mul(height)
            .and_then(|n| n.checked_mul(channels))
            .and_then(|n| n.checked_mul(spec.dtype.size_bytes()));
        match expected {
            None => return bad(format!("`size` is [{height}, {width}], more than memory can hold")),
            Some(expected) if expected != row_bytes => {
                return Err(MediaError::RowLength { expected, found: row_bytes });
            }
            Some(_) => {}
        }
        let affine = if element == ElementType::U8 { IDENTITY } else { fold(spec)? };
        Ok(RowSpec {
            width,
            height,
            channels,
            layout: spec.layout,
            element,
            is_bgr: spec.color == Channels::Bgr,
            affine,
            pad: per_channel(spec, "pad", &spec.pad)?,
        })
    }

    /// The padding of a spec, in the order of red, green, blue.
    pub(crate) fn pad_of(spec: &ImageSpec) -> Result<[u8; 3], MediaError> {
        per_channel(spec, "pad", &spec.pad)
    }

    pub(crate) fn area(&self) -> usize {
        self.width * self.height
    }
}

const IDENTITY: Affine = Affine { factor: [1.0; 3], offset: [0.0; 3] };

/// The values of a list with one entry per channel, in the order of red, green, blue.
fn per_channel<T: Copy>(spec: &ImageSpec, name: &str, list: &[T]) -> Result<[T; 3], MediaError> {
    match (spec.color, list) {
        (Channels::Gray, &[only]) => Ok([only; 3]),
        (Channels::Rgb, &[r, g, b]) | (Channels::Bgr, &[b, g, r]) => Ok([r, g, b]),
        _ => {
            let (found, expected) = (list.len(), spec.color.count());
            let what = format!("`{name}` has {found} values, expected {expected}, one for each channel");
            Err(MediaError::BadSpec { what })
        }
    }
}

/// `(pixel * scale - mean) / std` as one multiply and one add. Worked out in `f64`, so that only the last step rounds.
fn fold(spec: &ImageSpec) -> Result<Affine, MediaError> {
    let mean = per_channel(spec, "mean", &spec.mean)?;
    let std = per_channel(spec, "std", &spec.std)?;
    let mut affine = IDENTITY;
    for c in 0..3 {
        let (mean, std) = (f64::from(mean[c]), f64::from(std[c]));
        affine.factor[c] = (f64::from(spec.scale) / std) as f32;
        affine.offset[c] = (-mean / std) as f32;
        if !affine.factor[c].is_finite() || !affine.offset[c].is_finite() {
            let what = format!("`std` has {std} with mean {mean}, expected a number other than 0");
            return Err(MediaError::BadSpec { what });
        }
    }
    Ok(affine)
}
