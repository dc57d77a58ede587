//! Element types and shapes of tensors. Describes data; never holds it.

use std::fmt;

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

use crate::choices::{Choice, Word};

/// Declares the element types: each with its name, what NumPy calls it, its code in `.npy` files, and the type of one element.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident: $name:literal, $numpy:literal, $code:literal, $of:ty;)*) => {
        /// An element type that a model input or output may have. Journals, frames and workers in other languages know a type by its place in
        /// this list, so a new one comes last.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum DType {
            $($(#[$doc])* $variant,)*
        }

        impl DType {
            /// Every element type, in the order in which messages list them.
            pub const ALL: [DType; [$($name),*].len()] = [$(DType::$variant),*];

            pub const fn size_bytes(self) -> usize {
                match self {
                    $(DType::$variant => size_of::<$of>(),)*
                }
            }

            /// The name used in workflow files, records and messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $(DType::$variant => $name,)*
                }
            }

            pub const fn numpy_name(self) -> &'static str {
                match self {
                    $(DType::$variant => $numpy,)*
                }
            }

            /// The code in the header of a `.npy` file, without the order of bytes.
            pub const fn npy_code(self) -> &'static str {
                match self {
                    $(DType::$variant => $code,)*
                }
            }
        }

        impl Choice for DType {
            const WORDS: &'static [Word] = &[$(Word { text: $name, help: "" }),*];
            const ALL: &'static [Self] = &DType::ALL;
        }
    };
}

dtypes! {
    /// IEEE 754 binary32.
    F32: "f32", "float32", "f4", f32;
    /// IEEE 754 binary16.
    F16: "f16", "float16", "f2", half::f16;
    /// Signed 64-bit integer.
    I64: "i64", "int64", "i8", i64;
    /// Signed 32-bit integer.
    I32: "i32", "int32", "i4", i32;
    /// Unsigned byte.
    U8: "u8", "uint8", "u1", u8;
    /// One byte, 0 or 1.
    Bool: "bool", "bool", "b1", u8;
    /// IEEE 754 binary64.
    F64: "f64", "float64", "f8", f64;
    /// Signed 16-bit integer.
    I16: "i16", "int16", "i2", i16;
}

impl DType {
    /// Whether numbers of it go into an input of a model or a stage that takes `wanted`. Numbers of CSV and JSON are f64, and what they are
    /// for is known where they go; each is converted by the rule of [`Element::append`](crate::Element::append).
    pub fn goes_into(self, wanted: DType) -> bool {
        match (self, wanted) {
            (DType::F64, wanted) => wanted != DType::Bool,
            (DType::F32 | DType::F16, DType::F64) => true,
            _ => self == wanted,
        }
    }

    /// Whether it has fractions, infinities and NaN.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::F64)
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
    pub dtype: DType,
    /// Shape of one item, for example `[3, 224, 224]`.
    pub row: Vec<Dim>,
    /// The model's first dimension: `Dynamic`, or the only batch size it accepts.
    pub batch: Dim,
}

/// Most dimensions of a tensor, wherever its shape comes from: NumPy has no more. Records write each as a list within a list, and so do functions
/// that call themselves.
pub const MAX_RANK: usize = 64;

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
        write_shape(f, self.dtype.name(), self.batch, &self.row)
    }
}

fn write_shape(f: &mut fmt::Formatter<'_>, elements: &str, batch: Dim, row: &[Dim]) -> fmt::Result {
    match batch {
        Dim::Fixed(n) => write!(f, "{elements}[{n}")?,
        Dim::Dynamic => write!(f, "{elements}[batch")?,
    }
    for d in row {
        write!(f, ", {d}")?;
    }
    f.write_str("]")
}

/// A tensor of texts that a model takes. Texts lie in no slot: they travel beside the rows of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct TextInput {
    pub name: String,
    /// Shape of one item, as in [`TensorSpec::row`].
    pub row: Vec<Dim>,
    pub batch: Dim,
}

impl TextInput {
    /// Most texts of one item.
    pub const MAX_TEXTS: usize = 4096;

    /// Texts of one item: an open dimension has one.
    pub fn n_texts(&self) -> usize {
        self.row.iter().filter_map(|dim| dim.fixed()).fold(1, usize::saturating_mul)
    }
}

impl fmt::Display for TextInput {
    /// `text[batch, 1]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_shape(f, "text", self.batch, &self.row)
    }
}
