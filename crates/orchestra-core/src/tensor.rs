//! Element types and shapes of tensors. Describes data; never holds it.

use std::fmt;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// An element type that a model input or output may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned byte.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Every element type, in the order in which messages list them.
    pub const ALL: [DType; 6] = [DType::F32, DType::F16, DType::I64, DType::I32, DType::U8, DType::Bool];

    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// The name used in workflow files, records and messages.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One dimension of a tensor: a number, or open until a run fixes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
pub enum Dim {
    /// Always this many.
    Fixed(usize),
    /// Known only when the model has run (or, for the batch dimension, when the batch is formed).
    Dynamic,
}

impl Dim {
    /// The number, if there is one.
    pub fn fixed(self) -> Option<usize> {
        match self {
            Dim::Fixed(n) => Some(n),
            Dim::Dynamic => None,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Dynamic => f.write_str("?"),
        }
    }
}

/// A tensor that a stage takes or gives, per item: `row` is the shape **without** the batch dimension.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct TensorSpec {
    /// The name in the model, or `pixels` for the output of an `image` stage.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape of one item, for example `[3, 224, 224]`.
    pub row: Vec<Dim>,
    /// The model's first dimension: `Dynamic`, or the only batch size it accepts.
    pub batch: Dim,
}

impl TensorSpec {
    /// Elements of one item, if no dimension of it is open.
    pub fn row_len(&self) -> Option<usize> {
        self.row.iter().try_fold(1usize, |n, d| n.checked_mul(d.fixed()?))
    }

    /// Bytes of one item, if no dimension of it is open.
    pub fn row_bytes(&self) -> Option<usize> {
        self.row_len()?.checked_mul(self.dtype.size_bytes())
    }

    /// The fixed row shape, if no dimension of it is open.
    pub fn fixed_row(&self) -> Option<Vec<usize>> {
        self.row.iter().map(|d| d.fixed()).collect()
    }
}

impl fmt::Display for TensorSpec {
    /// `f32[batch, 3, 224, 224]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.batch {
            Dim::Fixed(n) => write!(f, "{}[{n}", self.dtype)?,
            Dim::Dynamic => write!(f, "{}[batch", self.dtype)?,
        }
        for d in &self.row {
            write!(f, ", {d}")?;
        }
        f.write_str("]")
    }
}
