//! Lists of detections as stages behind a detector read them: their columns, and what a row holds. It finds none.

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, ItemError, OwnedRow, OwnedValue, Schema};
use orchestra_core::{DType, Element};

/// Where the rows of a list have what; only `box` is in all lists.
#[derive(Debug, Clone, Copy, Encode, Decode)]
pub struct DetectionColumns {
    pub corners: usize,
    pub score: Option<usize>,
    pub polygon: Option<usize>,
    pub class: Option<usize>,
    pub label: Option<usize>,
}

/// A row of a list.
#[derive(Debug)]
pub struct Detection<'a> {
    /// Left, top, right, bottom in pixels; they may be no numbers.
    pub corners: [f32; 4],
    pub score: Option<f32>,
    /// The four corners of a turned rectangle, x before y.
    pub polygon: Option<[f32; 8]>,
    pub class: Option<i64>,
    pub label: Option<&'a str>,
}

impl DetectionColumns {
    /// Returns `None` where rows have no `box`.
    pub fn of(schema: &Schema) -> Option<Self> {
        let tensor = |name: &str, dtype: DType, n: usize| {
            let at = schema.position(name)?;
            let spec = schema.0[at].ty.tensor()?;
            (spec.dtype == dtype && spec.row_len() == Some(n)).then_some(at)
        };
        Some(Self {
            corners: tensor("box", DType::F32, 4)?,
            score: tensor("score", DType::F32, 1),
            polygon: tensor("polygon", DType::F32, 8),
            class: tensor("class", DType::I64, 1),
            label: schema.position("label").filter(|at| schema.0[*at].ty == ColumnType::Text),
        })
    }

    pub fn read<'a>(&self, n: usize, row: &'a OwnedRow) -> Result<Detection<'a>, ItemError> {
        let lacks = |what: &str| ItemError::result(format!("box {n} has no {what}"));
        let score = self.score.map(|at| floats_of(row, at).ok_or_else(|| lacks("score")));
        let polygon = self.polygon.map(|at| floats_of(row, at).ok_or_else(|| lacks("polygon")));
        Ok(Detection {
            corners: floats_of(row, self.corners).ok_or_else(|| lacks("four corners"))?,
            score: score.transpose()?.map(|[score]| score),
            polygon: polygon.transpose()?,
            class: self.class.and_then(|at| match row.get(at)? {
                OwnedValue::Tensor { data, dtype, .. } => Element::read(*dtype, data).to_i64(),
                _ => None,
            }),
            label: self.label.and_then(|at| match row.get(at)? {
                OwnedValue::Text(label) => Some(&**label),
                _ => None,
            }),
        })
    }
}

fn floats_of<const N: usize>(row: &OwnedRow, column: usize) -> Option<[f32; N]> {
    let OwnedValue::Tensor { dtype: DType::F32, data, .. } = row.get(column)? else { return None };
    let chunks: &[[u8; 4]; N] = data.as_chunks().0.try_into().ok()?;
    Some(chunks.map(f32::from_ne_bytes))
}

/// The corners of box `n`, each of which has to be a place.
pub fn finite(n: usize, corners: [f32; 4]) -> Result<[f64; 4], ItemError> {
    if corners.iter().all(|v| v.is_finite()) {
        return Ok(corners.map(f64::from));
    }
    let [a, b, c, d] = corners;
    Err(ItemError::result(format!("box {n} is ({a}, {b}, {c}, {d}), which is no place in a picture")))
}
