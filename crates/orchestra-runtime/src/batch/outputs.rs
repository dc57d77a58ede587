//! What a completed batch has of the outputs of its stage, row by row. What a worker says of shapes and sizes is checked here.

use std::sync::Arc;

use bytes::Bytes;
use orchestra_core::data::{Column, ColumnType, Label, OwnedRow, OwnedValue, Pixels, TensorView, Value};
use orchestra_core::model_output::texts;
use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_worker::frames::DynamicOutput;
use orchestra_worker::mapping::SharedBytes;

use crate::batch::list_outputs::{labels_of, list_of};
use crate::messages::CompletedBatch;

impl CompletedBatch {
    /// What this batch has of each output of the stage, which are those that its schema lists.
    pub fn outputs<'a>(&'a self, columns: &'a [Column]) -> Result<Vec<OutputRows<'a>>, String> {
        let output = |(i, column): (usize, &'a Column)| {
            let Column { name, ty } = column;
            Ok(match ty {
                ColumnType::Text => OutputRows::Texts(
                    self.values(i, name, "a text in UTF-8", |bytes| std::str::from_utf8(bytes).ok())?,
                ),
                ColumnType::Bytes(_) => OutputRows::Bytes(self.values(i, name, "bytes", Some)?),
                ColumnType::Labels => OutputRows::Labels(self.values(i, name, "labels", labels_of)?),
                ColumnType::List(columns) => OutputRows::Lists(self.values(
                    i,
                    name,
                    "a list of its columns, of at most 1048576 values,",
                    |bytes| list_of(bytes, columns),
                )?),
                ColumnType::Picture => OutputRows::Pictures(self.pictures(i, name)?),
                ty => self.tensors(i, ty.stored().ok_or_else(|| missing(name))?)?,
            })
        };
        columns.iter().enumerate().map(output).collect()
    }

    /// A value for each row of an output that lies in no slot: `read` makes it of its bytes, or says that they are none.
    fn values<'a, T>(
        &'a self,
        i: usize,
        name: &str,
        what: &str,
        read: impl Fn(&'a [u8]) -> Option<T>,
    ) -> Result<Vec<T>, String> {
        let packed = self.dynamic.iter().find(|d| d.output == i).ok_or_else(|| missing(name))?;
        let each = texts::unpack_bytes(&packed.data).filter(|each| each.len() == self.rows.count);
        let values = each.and_then(|each| each.into_iter().map(read).collect());
        values.ok_or_else(|| format!("output `{name}` has not {what} for each item"))
    }

    fn pictures<'a>(&'a self, i: usize, name: &str) -> Result<Vec<Pixels<'a>>, String> {
        let outputs = self.dynamic.iter().filter(|d| d.output == i);
        let pieces = open_rows(name, DType::U8, self.rows.count, outputs)?;
        let pixels = |row| {
            let (shape, bytes) = open_row(&pieces, row);
            Pixels::of(shape, bytes)
        };
        let pictures = (0..self.rows.count).map(pixels).collect::<Option<_>>();
        pictures.ok_or_else(|| {
            format!("output `{name}` has not a picture u8 [height, width, 1 or 3] for each item")
        })
    }

    fn tensors<'a>(&'a self, i: usize, spec: &'a TensorSpec) -> Result<OutputRows<'a>, String> {
        let mut pieces = self.dynamic.iter().filter(|d| d.output == i).peekable();
        if pieces.peek().is_some() {
            let pieces = open_rows(&spec.name, spec.dtype, self.rows.count, pieces)?;
            return Ok(OutputRows::Open { spec, pieces });
        }
        let fixed = |d: &Dim| d.fixed().ok_or_else(|| missing(&spec.name));
        let shape: Vec<usize> = spec.row.iter().map(fixed).collect::<Result<_, _>>()?;
        let row_bytes = shape.iter().product::<usize>() * spec.dtype.size_bytes();
        match self.outputs.as_ref().and_then(|outputs| outputs.rows(i)) {
            Some(data) if data.len() == self.rows.count * row_bytes => {
                Ok(OutputRows::Tensors { spec, shape, row_bytes, data })
            }
            _ => Err(format!("output `{}` has not the size that its shape says", spec.name)),
        }
    }
}

/// An output of open shape of so many rows: in one piece, or in several where rows have other shapes.
fn open_rows<'a>(
    name: &str,
    dtype: DType,
    rows: usize,
    outputs: impl Iterator<Item = &'a DynamicOutput>,
) -> Result<Vec<OpenRows<'a>>, String> {
    let (mut pieces, mut shapes, mut end) = (Vec::new(), Vec::new(), 0_usize);
    for of in outputs {
        // Nothing that is made of it may take its word for a size.
        if !of.is_sound() || of.dtype != dtype {
            return Err(format!("output `{name}` has not the type and size that the worker says"));
        }
        shapes.push(&of.shape);
        let [count, shape @ ..] = &of.shape[..] else { continue };
        let row_bytes = shape.iter().product::<usize>() * dtype.size_bytes();
        end = end.saturating_add(*count);
        pieces.push(OpenRows { end, shape, row_bytes, data: &of.data });
    }
    if end == rows && pieces.len() == shapes.len() {
        return Ok(pieces);
    }
    let shapes = shapes.iter().map(|shape| format!("{shape:?}")).collect::<Vec<_>>().join(", ");
    Err(format!(
        "output `{name}` has shape {shapes} for {rows} items and cannot be split; set `batch = {{ max = 1 }}`"
    ))
}

/// The shape and the bytes of a row.
fn open_row<'a>(pieces: &[OpenRows<'a>], row: usize) -> (&'a [usize], &'a [u8]) {
    open_rows_at(pieces, row, 1)
}

/// The shape of rows of one piece, and their bytes.
fn open_rows_at<'a>(pieces: &[OpenRows<'a>], row: usize, count: usize) -> (&'a [usize], &'a [u8]) {
    let piece = pieces.partition_point(|piece| piece.end <= row);
    let first = if piece == 0 { 0 } else { pieces[piece - 1].end };
    let OpenRows { shape, row_bytes, data, .. } = &pieces[piece];
    (shape, &data[(row - first) * row_bytes..(row - first + count) * row_bytes])
}

/// So many bytes at an address that fits every type of element.
fn aligned(n: usize, write: impl FnOnce(&mut [u8])) -> Bytes {
    let mut words = vec![0_u64; n.div_ceil(size_of::<u64>())];
    write(&mut bytemuck::cast_slice_mut(&mut words)[..n]);
    Bytes::from_owner(AlignedWords(words)).slice(..n)
}

struct AlignedWords(Vec<u64>);

impl AsRef<[u8]> for AlignedWords {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

fn missing(name: &str) -> String {
    format!("output `{name}` is missing")
}

pub enum OutputRows<'a> {
    Tensors {
        spec: &'a TensorSpec,
        shape: Vec<usize>,
        row_bytes: usize,
        data: SharedBytes<'a>,
    },
    /// Tensors that came in a frame.
    Open {
        spec: &'a TensorSpec,
        pieces: Vec<OpenRows<'a>>,
    },
    Texts(Vec<&'a str>),
    Bytes(Vec<&'a [u8]>),
    Pictures(Vec<Pixels<'a>>),
    Labels(Vec<Vec<Label<'a>>>),
    Lists(Vec<Arc<[OwnedRow]>>),
}

/// What a batch gave for some rows, in memory of their own.
#[derive(Debug, Clone, PartialEq)]
pub enum CopiedOutput {
    Tensor {
        dtype: DType,
        /// The shape of each row.
        row: Vec<usize>,
        /// At an address that fits every type of element.
        data: Bytes,
    },
    Texts(Vec<String>),
}

/// Rows of one shape.
pub struct OpenRows<'a> {
    /// The row behind the last of them.
    end: usize,
    shape: &'a [usize],
    row_bytes: usize,
    data: &'a [u8],
}

impl OutputRows<'_> {
    /// As many of `count` rows from `first` on as have one shape, which is at least one.
    pub fn alike(&self, first: usize, count: usize) -> usize {
        let OutputRows::Open { pieces, .. } = self else { return count };
        let piece = pieces.partition_point(|piece| piece.end <= first);
        count.min(pieces[piece].end - first)
    }

    /// A copy of these rows, which have one shape; lists of texts one behind the other. `None`: they are neither numbers nor texts.
    pub fn copy(&self, first: usize, count: usize) -> Option<CopiedOutput> {
        Some(match self {
            OutputRows::Tensors { spec, shape, row_bytes, data } => {
                let data = data.slice(first * row_bytes..(first + count) * row_bytes);
                let data = aligned(data.len(), |to| data.copy_to(to));
                CopiedOutput::Tensor { dtype: spec.dtype, row: shape.clone(), data }
            }
            OutputRows::Open { spec, pieces } => {
                let (row, data) = open_rows_at(pieces, first, count);
                let data = aligned(data.len(), |to| to.copy_from_slice(data));
                CopiedOutput::Tensor { dtype: spec.dtype, row: row.to_vec(), data }
            }
            OutputRows::Texts(texts) => {
                let texts = texts[first..first + count].iter();
                CopiedOutput::Texts(texts.map(|text| (*text).to_owned()).collect())
            }
            OutputRows::Lists(lists) => {
                let values = lists[first..first + count].iter().flat_map(|rows| rows.iter()).flatten();
                let text = |value: &OwnedValue| match value {
                    OwnedValue::Text(text) => Some(text.to_string()),
                    _ => None,
                };
                CopiedOutput::Texts(values.map(text).collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }

    /// A row, which is copied to `copy` where its worker could still write to it.
    pub fn row<'a>(&'a self, row: usize, copy: &'a mut Vec<u8>) -> Value<'a> {
        match self {
            OutputRows::Tensors { spec, shape, row_bytes, data } => {
                data.slice(row * row_bytes..(row + 1) * row_bytes).copy_into(copy);
                Value::Tensor(TensorView { name: &spec.name, dtype: spec.dtype, shape, data: copy })
            }
            OutputRows::Open { spec, pieces } => {
                let (shape, data) = open_row(pieces, row);
                Value::Tensor(TensorView { name: &spec.name, dtype: spec.dtype, shape, data })
            }
            OutputRows::Texts(texts) => Value::Text(texts[row]),
            OutputRows::Bytes(bytes) => Value::Bytes(bytes[row]),
            OutputRows::Pictures(pictures) => Value::Picture(&pictures[row]),
            OutputRows::Labels(labels) => Value::Labels(&labels[row]),
            OutputRows::Lists(lists) => Value::List(&lists[row]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(shape: &[usize]) -> DynamicOutput {
        let data = (0..shape.iter().product::<usize>() as u8).collect();
        DynamicOutput { output: 0, dtype: DType::U8, shape: shape.to_vec(), data }
    }

    #[test]
    fn rows_of_several_shapes_come_in_pieces_and_no_other_number_of_them_is_believed() {
        let row = vec![Dim::Dynamic, Dim::Fixed(2)];
        let spec = TensorSpec { name: "y".into(), dtype: DType::U8, row, batch: Dim::Dynamic };
        let pieces = [piece(&[2, 1, 2]), piece(&[1, 3, 2]), piece(&[1, 0, 2])];
        let read =
            |rows, outputs: &'_ [DynamicOutput]| open_rows("y", DType::U8, rows, outputs.iter()).is_ok();
        let rows =
            OutputRows::Open { spec: &spec, pieces: open_rows("y", DType::U8, 4, pieces.iter()).unwrap() };
        let shown = |row| match rows.row(row, &mut Vec::new()) {
            Value::Tensor(TensorView { shape, data, .. }) => (shape.to_vec(), data.to_vec()),
            _ => panic!("it is no tensor"),
        };
        assert_eq!(shown(0), (vec![1, 2], vec![0, 1]));
        assert_eq!(shown(1), (vec![1, 2], vec![2, 3]));
        assert_eq!(shown(2), (vec![3, 2], vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(shown(3), (vec![0, 2], vec![]));
        let long = DynamicOutput { data: vec![0], ..piece(&[1, 1, 2]) };
        for (rows, pieces) in
            [(3, &pieces[..]), (5, &pieces[..]), (1, &[long]), (1, &[piece(&[]), piece(&[1, 2])])]
        {
            assert!(!read(rows, pieces));
        }
    }
}
