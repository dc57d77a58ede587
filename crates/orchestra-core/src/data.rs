//! What flows along the edges of a workflow: schemas of named, typed columns, and the values of one row. Describes and borrows data; only
//! what has to outlive its row is copied.

mod picture;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

pub use crate::failure::ItemError;
pub use picture::{CopyPixels, KeptPicture, ListedPicture, Picture, Pixels};

use crate::image_spec::PixelInput;
use crate::tensor::{DType, Dim, TensorSpec};

/// The columns that a source or a stage gives, in order. Names are unique.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Schema(pub Vec<Column>);

impl Schema {
    pub fn of(name: &str, ty: ColumnType) -> Self {
        Self(vec![Column { name: name.to_owned(), ty }])
    }

    /// The place of a column of the whole row.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|column| column.name == name && column.ty != ColumnType::Placement)
    }

    /// The columns of the whole row: all but those that only what asks for their type reads.
    pub fn whole(&self) -> impl Iterator<Item = &Column> {
        self.0.iter().filter(|column| column.ty != ColumnType::Placement)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.whole().map(|column| column.name.as_str())
    }
}

impl fmt::Display for Schema {
    /// `logits f32[batch, 10], picture`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, column) in self.whole().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            match column.ty {
                ColumnType::Picture => write!(f, "{comma}{}", column.name)?,
                _ => write!(f, "{comma}{} {}", column.name, column.ty)?,
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Column {
    /// What `from = "stage.column"` and records call it.
    pub name: String,
    pub ty: ColumnType,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnType {
    Tensor(TensorSpec),
    /// The pixels of a tensor that the graph of the model normalises: `stored` lies in the row, `model` is what the model then sees.
    Pixels {
        /// What lies in a batch slot, `u8 [height, width, channels]`.
        stored: TensorSpec,
        model: TensorSpec,
        input: PixelInput,
    },
    /// Of a model's output, what is read of it: the largest number along its last dimension, and where that stands. `stored` is `f32 [.., 2]`, a
    /// place and a number for each; `model` is the output.
    Largest {
        stored: TensorSpec,
        model: TensorSpec,
    },
    Picture,
    /// Classes with their scores, best first.
    Labels,
    Text,
    /// The content of a file, whose name ends with this (`png`).
    Bytes(String),
    List(Schema),
    /// A tensor or a text that an item may lack.
    Optional(Box<ColumnType>),
    /// A [`Placement`](crate::Placement), as the tensor that stands for it: where in the picture a row of pixels lies. It is no part of the whole
    /// row; what maps a result back to the picture reads it.
    Placement,
}

impl ColumnType {
    /// The type of its values where they are not missing.
    pub fn required(&self) -> &ColumnType {
        match self {
            ColumnType::Optional(of) => of,
            ty => ty,
        }
    }

    /// The tensor that a model sees, or gives, of it.
    pub fn tensor(&self) -> Option<&TensorSpec> {
        match self {
            ColumnType::Tensor(spec)
            | ColumnType::Pixels { model: spec, .. }
            | ColumnType::Largest { model: spec, .. } => Some(spec),
            ColumnType::Optional(of) => of.tensor(),
            _ => None,
        }
    }

    /// The tensor that lies in memory.
    pub fn stored(&self) -> Option<&TensorSpec> {
        match self {
            ColumnType::Tensor(spec)
            | ColumnType::Pixels { stored: spec, .. }
            | ColumnType::Largest { stored: spec, .. } => Some(spec),
            ColumnType::Optional(of) => of.stored(),
            _ => None,
        }
    }
}

impl ColumnType {
    pub fn list(&self) -> Option<&Schema> {
        if let ColumnType::List(schema) = self { Some(schema) } else { None }
    }

    /// Whether its values are pictures, or lists that hold some.
    pub fn has_pictures(&self) -> bool {
        match self {
            ColumnType::Picture => true,
            ColumnType::List(Schema(columns)) => columns.iter().any(|column| column.ty.has_pictures()),
            ColumnType::Optional(of) => of.has_pictures(),
            _ => false,
        }
    }

    /// Whether a value can be one of this column.
    pub fn fits(&self, value: &OwnedValue) -> bool {
        let is_dim = |(dim, n): (&Dim, &usize)| dim.fixed().is_none_or(|fixed| fixed == *n);
        match (self, value) {
            (ColumnType::Optional(_), OwnedValue::Missing(_)) => true,
            (ColumnType::Optional(of), value) => of.fits(value),
            (ColumnType::Tensor(spec), OwnedValue::Tensor { dtype, shape, data, .. }) => {
                let elements = shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
                *dtype == spec.dtype
                    && spec.row.len() == shape.len()
                    && spec.row.iter().zip(&**shape).all(is_dim)
                    && elements.and_then(|n| n.checked_mul(dtype.size_bytes())) == Some(data.len())
            }
            (ColumnType::Text, OwnedValue::Text(_)) | (ColumnType::Bytes(_), OwnedValue::Bytes(_)) => true,
            (ColumnType::List(Schema(columns)), OwnedValue::List(rows)) => rows.iter().all(|row| {
                row.len() == columns.len()
                    && columns.iter().zip(row).all(|(column, value)| column.ty.fits(value))
            }),
            _ => false,
        }
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ColumnType::Tensor(spec)
            | ColumnType::Pixels { model: spec, .. }
            | ColumnType::Largest { model: spec, .. } => spec.fmt(f),
            ColumnType::Picture => f.write_str("picture"),
            ColumnType::Labels => f.write_str("labels"),
            ColumnType::Text => f.write_str("text"),
            ColumnType::Bytes(format) if format.is_empty() => f.write_str("bytes"),
            ColumnType::Bytes(format) => write!(f, "bytes ({format})"),
            ColumnType::List(rows) => write!(f, "list of ({rows})"),
            ColumnType::Optional(of) => write!(f, "{of}, or missing"),
            ColumnType::Placement => f.write_str("placement"),
        }
    }
}

/// One value of a row, borrowed from where it lies.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// A tensor that lies in memory.
    Tensor(TensorView<'a>),
    /// A tensor that is written once its place is known: into a batch slot, or into the buffer of a sink.
    Unwritten(&'a dyn WriteTensor),
    Picture(&'a dyn Picture),
    /// Classes with their scores, best first.
    Labels(&'a [Label<'a>]),
    Text(&'a str),
    Bytes(&'a [u8]),
    List(&'a [OwnedRow]),
    /// An optional column that the item lacks, with its name.
    Missing(&'a str),
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Tensor(view) => view.fmt(f),
            Value::Unwritten(_) => f.write_str("Unwritten"),
            Value::Picture(_) => f.write_str("Picture"),
            Value::Labels(labels) => labels.fmt(f),
            Value::Text(text) => text.fmt(f),
            Value::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Value::List(rows) => rows.fmt(f),
            Value::Missing(name) => write!(f, "Missing {name:?}"),
        }
    }
}

impl Value<'_> {
    /// Calls `f` with the tensor, which is written first where it lies nowhere yet.
    pub fn with_tensor<R>(
        &self,
        f: impl FnOnce(&TensorView<'_>) -> Result<R, ItemError>,
    ) -> Result<R, ItemError> {
        match self {
            Value::Tensor(view) => f(view),
            Value::Unwritten(tensor) => {
                let spec = tensor.spec();
                let shape: Vec<usize> = spec.row.iter().map(|dim| dim.fixed().unwrap_or(0)).collect();
                let mut data = vec![0; spec.row_bytes().unwrap_or(0)];
                tensor.write(&mut data)?;
                f(&TensorView { name: &spec.name, dtype: spec.dtype, shape: &shape, data: &data })
            }
            Value::Missing(name) => Err(ItemError::missing(name)),
            _ => Err(ItemError::result("internal error: expected a tensor; this is a bug")),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    pub name: &'a str,
    pub dtype: DType,
    pub shape: &'a [usize],
    /// Elements in native byte order, row-major.
    pub data: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Label<'a> {
    /// The name of the class; its number where it has none.
    pub label: &'a str,
    pub class: u32,
    /// Its score. Not a number where the model gave none.
    pub score: f32,
}

/// A tensor that can be written to where it shall lie.
pub trait WriteTensor {
    /// Name, element type and shape. All dimensions of the row are fixed.
    fn spec(&self) -> &TensorSpec;
    /// Writes every byte of `row`, which is `spec().row_bytes()` long and may hold anything before.
    fn write(&self, row: &mut [u8]) -> Result<(), ItemError>;
    /// Writes every byte of the smaller form, where there is one (`Map::packing`).
    ///
    /// # Errors
    /// As `write`, or there is no smaller form.
    fn write_packed(&self, packed: &mut [u8]) -> Result<(), ItemError> {
        let _ = packed;
        Err(ItemError::result("internal error: a tensor has no smaller form; this is a bug"))
    }
}

/// A row that owns its values: what a fold keeps of a part until all parts are there.
pub type OwnedRow = Vec<OwnedValue>;

/// A value that owns its data. Clones share it.
#[derive(Debug, Clone)]
pub enum OwnedValue {
    Tensor {
        name: Arc<str>,
        dtype: DType,
        /// Shape without the batch dimension.
        shape: Arc<[usize]>,
        /// Elements in native byte order, row-major.
        data: Arc<[u8]>,
    },
    Picture(Arc<dyn KeptPicture>),
    Labels(Arc<[(Arc<str>, u32, f32)]>),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
    List(Arc<[OwnedRow]>),
    /// With the name of its column.
    Missing(Arc<str>),
}

impl OwnedValue {
    /// What it is, with the shape of a tensor without the batch dimension.
    pub fn type_text(&self) -> String {
        match self {
            OwnedValue::Tensor { dtype, shape, data, .. } => {
                let bytes = shape.iter().try_fold(dtype.size_bytes(), |n, dim| n.checked_mul(*dim));
                let is_whole = bytes == Some(data.len());
                let of = if is_whole { String::new() } else { format!(" in {} bytes", data.len()) };
                format!("{dtype}{shape:?}{of}")
            }
            OwnedValue::Picture(_) => "picture".to_owned(),
            OwnedValue::Labels(_) => "labels".to_owned(),
            OwnedValue::Text(_) => "text".to_owned(),
            OwnedValue::Bytes(_) => "bytes".to_owned(),
            OwnedValue::List(rows) => format!("list of {}", rows.len()),
            OwnedValue::Missing(_) => "missing".to_owned(),
        }
    }

    /// Copies a value. A picture cannot be kept this way: its pixels belong into memory with a bound, which the caller has.
    ///
    /// # Errors
    /// The value cannot be made, or is a picture.
    pub fn copy_of(value: &Value<'_>) -> Result<Self, ItemError> {
        Ok(match value {
            Value::Tensor(_) | Value::Unwritten(_) => value.with_tensor(|view| {
                Ok(OwnedValue::Tensor {
                    name: view.name.into(),
                    dtype: view.dtype,
                    shape: view.shape.into(),
                    data: view.data.into(),
                })
            })?,
            Value::Picture(_) => return Err(ItemError::result("a picture cannot be kept here")),
            Value::Labels(labels) => {
                OwnedValue::Labels(labels.iter().map(|l| (l.label.into(), l.class, l.score)).collect())
            }
            Value::Text(text) => OwnedValue::Text((*text).into()),
            Value::Bytes(bytes) => OwnedValue::Bytes((*bytes).into()),
            Value::List(rows) => OwnedValue::List((*rows).into()),
            Value::Missing(name) => OwnedValue::Missing((*name).into()),
        })
    }

    /// What it holds, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            OwnedValue::Tensor { data, .. } => data.len(),
            OwnedValue::Labels(labels) => labels.iter().map(|label| size_of_val(label) + label.0.len()).sum(),
            OwnedValue::Text(text) => text.len(),
            OwnedValue::Bytes(bytes) => bytes.len(),
            OwnedValue::List(rows) => {
                rows.iter().flatten().map(|value| size_of_val(value) + value.bytes()).sum()
            }
            OwnedValue::Picture(picture) => picture.value_bytes(),
            OwnedValue::Missing(_) => 0,
        }
    }

    /// The labels, if it holds some: what [`OwnedValue::borrowed`] shows them from.
    pub fn labels(&self) -> Vec<Label<'_>> {
        let OwnedValue::Labels(labels) = self else { return Vec::new() };
        labels.iter().map(|(label, class, score)| Label { label, class: *class, score: *score }).collect()
    }

    /// The value, borrowed; `labels` are those of [`OwnedValue::labels`].
    pub fn borrowed<'a>(&'a self, labels: &'a [Label<'a>]) -> Value<'a> {
        match self {
            OwnedValue::Tensor { name, dtype, shape, data } => {
                Value::Tensor(TensorView { name, dtype: *dtype, shape, data })
            }
            OwnedValue::Picture(picture) => Value::Picture(&**picture),
            OwnedValue::Labels(_) => Value::Labels(labels),
            OwnedValue::Text(text) => Value::Text(text),
            OwnedValue::Bytes(bytes) => Value::Bytes(bytes),
            OwnedValue::List(rows) => Value::List(rows),
            OwnedValue::Missing(name) => Value::Missing(name),
        }
    }

    pub fn with<R>(&self, show: impl FnOnce(Value<'_>) -> R) -> R {
        show(self.borrowed(&self.labels()))
    }
}

/// Shows the values of a row that owns them.
pub fn with_values(row: &[OwnedValue], show: &mut dyn FnMut(&[Value<'_>])) {
    let labels: Vec<Vec<Label<'_>>> = row.iter().map(OwnedValue::labels).collect();
    let values: Vec<Value<'_>> = row.iter().zip(&labels).map(|(value, of)| value.borrowed(of)).collect();
    show(&values);
}

/// The tensor `name` of a shape that is known in full.
pub fn fixed_tensor(name: &str, dtype: DType, row: &[usize]) -> TensorSpec {
    let row = row.iter().copied().map(Dim::Fixed).collect();
    TensorSpec { name: name.to_owned(), dtype, row, batch: Dim::Dynamic }
}
