//! What a completed batch has of the outputs of its stage, row by row. What a worker says of shapes and sizes is checked here.

use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, OwnedRow, Schema, TensorView, Value};
use orchestra_core::model_output::texts;
use orchestra_core::{Dim, TensorSpec};
use orchestra_worker::frames::DynamicOutput;
use orchestra_worker::mapping::SharedBytes;

use crate::batch::list_outputs::list_of;
use crate::messages::CompletedBatch;

impl CompletedBatch {
    /// What this batch has of each output of the stage, which are those that its schema lists.
    pub fn outputs<'a>(&'a self, columns: &'a [Column]) -> Result<Vec<OutputRows<'a>>, String> {
        let output = |(i, column): (usize, &'a Column)| {
            let dynamic = self.dynamic.iter().find(|d| d.output == i);
            match &column.ty {
                ColumnType::Text => self.texts(&column.name, dynamic),
                ColumnType::List(columns) => self.lists(&column.name, columns, dynamic),
                ty => self.tensors(i, ty.stored().ok_or_else(|| missing(&column.name))?, dynamic),
            }
        };
        columns.iter().enumerate().map(output).collect()
    }

    fn texts<'a>(&self, name: &str, dynamic: Option<&'a DynamicOutput>) -> Result<OutputRows<'a>, String> {
        let packed = dynamic.ok_or_else(|| missing(name))?;
        let texts = texts::unpack(&packed.data).filter(|texts| texts.len() == self.rows.count);
        let texts = texts.ok_or_else(|| format!("output `{name}` has not a text in UTF-8 for each item"))?;
        Ok(OutputRows::Texts(texts))
    }

    fn lists<'a>(
        &self,
        name: &str,
        columns: &Schema,
        dynamic: Option<&'a DynamicOutput>,
    ) -> Result<OutputRows<'a>, String> {
        let packed = texts::unpack_bytes(&dynamic.ok_or_else(|| missing(name))?.data);
        let lists = packed.map(|all| all.into_iter().map(|bytes| list_of(bytes, columns)).collect());
        let lists: Option<Vec<_>> = lists.flatten().filter(|lists: &Vec<_>| lists.len() == self.rows.count);
        let lists = lists.ok_or_else(|| {
            format!("output `{name}` has not a list of its columns, of at most 1048576 values, for each item")
        })?;
        Ok(OutputRows::Lists(lists))
    }

    fn tensors<'a>(
        &'a self,
        i: usize,
        spec: &'a TensorSpec,
        dynamic: Option<&'a DynamicOutput>,
    ) -> Result<OutputRows<'a>, String> {
        let rows = self.rows.count;
        let shape = match dynamic {
            // Nothing that is made of it may take its word for a size.
            Some(d) if !d.is_sound() || d.dtype != spec.dtype => {
                Err(format!("output `{}` has not the type and size that the worker says", spec.name))
            }
            Some(d) if d.shape.first() == Some(&rows) => Ok(d.shape[1..].to_vec()),
            Some(d) => Err(format!(
                "output `{}` has shape {:?} for {rows} items and cannot be split; set `batch = {{ max = 1 }}`",
                spec.name, d.shape
            )),
            None => {
                let fixed = |d: &Dim| d.fixed().ok_or_else(|| missing(&spec.name));
                spec.row.iter().map(fixed).collect()
            }
        }?;
        let row_bytes = shape.iter().product::<usize>() * spec.dtype.size_bytes();
        let data = match dynamic {
            Some(d) => Some(RowData::Here(&d.data)),
            None => self.outputs.as_ref().and_then(|outputs| outputs.rows(i)).map(RowData::Shared),
        };
        match data {
            Some(data) if data.len() == rows * row_bytes => {
                Ok(OutputRows::Tensors { spec, shape, row_bytes, data })
            }
            _ => Err(format!("output `{}` has not the size that its shape says", spec.name)),
        }
    }
}

fn missing(name: &str) -> String {
    format!("output `{name}` is missing")
}

pub enum OutputRows<'a> {
    Tensors { spec: &'a TensorSpec, shape: Vec<usize>, row_bytes: usize, data: RowData<'a> },
    Texts(Vec<&'a str>),
    Lists(Vec<Arc<[OwnedRow]>>),
}

#[derive(Clone, Copy)]
pub enum RowData<'a> {
    /// Of an output that came in a frame.
    Here(&'a [u8]),
    Shared(SharedBytes<'a>),
}

impl RowData<'_> {
    fn len(self) -> usize {
        match self {
            Self::Here(data) => data.len(),
            Self::Shared(data) => data.len(),
        }
    }
}

impl OutputRows<'_> {
    /// A row, which is copied to `copy` where its worker could still write to it.
    pub fn row<'a>(&'a self, row: usize, copy: &'a mut Vec<u8>) -> Value<'a> {
        match self {
            OutputRows::Tensors { spec, shape, row_bytes, data } => {
                let span = row * row_bytes..(row + 1) * row_bytes;
                let data = match data {
                    RowData::Here(data) => &data[span],
                    RowData::Shared(data) => {
                        data.slice(span).copy_into(copy);
                        copy
                    }
                };
                Value::Tensor(TensorView { name: &spec.name, dtype: spec.dtype, shape, data })
            }
            OutputRows::Texts(texts) => Value::Text(texts[row]),
            OutputRows::Lists(lists) => Value::List(&lists[row]),
        }
    }
}
