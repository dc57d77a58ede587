//! Rows with one key become one: what a row adds, what is known so far, and the row that is made of it. Reads no keys of a file.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};
use orchestra_core::data::{
    Column, ColumnType, ItemError, OwnedValue, Schema, TensorView, Value, fixed_tensor,
};
use orchestra_core::row_bytes::{read, write};
use orchestra_core::shapes::{ItemInfo, Merge, MergeState, Reduce, ReducedRow, Reduction};
use orchestra_core::{DType, Element, ItemId, TensorSpec};
use orchestra_plan::choices;

use super::cell::{Accumulator, OUTSIDE, Op};
use super::exact::{Narrow, Wide};

choices! {
    pub enum ReduceOver {
        /// each element by itself, so the result has the shape of a row
        Rows = "rows",
        /// all elements of all rows, to one number
        Elements = "elements",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Nothing,
    Folder,
    Column,
}

/// What is made of the rows.
#[derive(Debug)]
pub struct Reduced {
    pub stage: String,
    /// What the column of the result is called.
    pub column: String,
    pub op: Option<Op>,
    pub over: ReduceOver,
    pub by: By,
    /// Of the elements that are read.
    pub dtype: DType,
    pub shape: Vec<usize>,
}

/// What rows have in common that are reduced together: a number to sort by, and its text.
pub type RowKey = (i64, String);

impl Reduced {
    pub fn n_cells(&self) -> usize {
        if self.op.is_some() { self.shape.iter().fold(1, |n, dim| n.saturating_mul(*dim)) } else { 0 }
    }

    /// The columns of a result, but for the counts: name, type and what is behind the dimensions of the cells.
    pub fn columns(&self) -> Vec<(&str, DType, Option<usize>)> {
        match &self.op {
            None => Vec::new(),
            Some(Op::Histogram(edges)) => vec![
                (&self.column, DType::I64, Some(edges.len() - 1)),
                ("outside", DType::I64, Some(OUTSIDE)),
            ],
            Some(Op::Sum) if !self.dtype.is_float() => vec![(&self.column, DType::I64, None)],
            Some(Op::Sum | Op::Mean) => vec![(&self.column, DType::F64, None)],
            Some(Op::Min | Op::Max) => vec![(&self.column, self.least_dtype(), None)],
        }
    }

    /// That of the least and the largest number: every number that is read is one of it.
    fn least_dtype(&self) -> DType {
        match self.dtype {
            DType::F64 => DType::F64,
            DType::F32 | DType::F16 => DType::F32,
            _ => DType::I64,
        }
    }

    /// How much is kept for each element and key: the counts of a histogram, or 1. A sum of `f64` is as large as several others.
    pub fn numbers_per_cell(&self) -> usize {
        match &self.op {
            Some(Op::Sum | Op::Mean) if self.dtype == DType::F64 => size_of::<Wide>() / size_of::<Narrow>(),
            Some(Op::Histogram(edges)) => edges.len() - 1 + OUTSIDE,
            _ => 1,
        }
    }

    pub fn gives(&self) -> Schema {
        let shape = |inner: Option<usize>| self.shape.iter().copied().chain(inner).collect::<Vec<_>>();
        let columns =
            self.columns().into_iter().map(|(name, dtype, inner)| fixed_tensor(name, dtype, &shape(inner)));
        let counts = ["rows", "items"].map(|name| fixed_tensor(name, DType::I64, &[]));
        let column = |spec: TensorSpec| Column { name: spec.name.clone(), ty: ColumnType::Tensor(spec) };
        Schema(columns.chain(counts).map(column).collect())
    }
}

impl By {
    /// The key of a row of `stage`; `key` is its column, where that decides.
    pub fn key(self, stage: &str, item: &ItemInfo<'_>, key: Option<&Value<'_>>) -> Result<RowKey, ItemError> {
        match (self, key) {
            (By::Nothing, _) => Ok((0, stage.to_owned())),
            (By::Folder, _) => {
                Ok((0, item.name.rsplit_once('/').map_or(".", |(folder, _)| folder).to_owned()))
            }
            (By::Column, Some(Value::Labels(labels))) => {
                let best =
                    labels.first().ok_or_else(|| ItemError::result("it has no class to reduce it by"))?;
                Ok((i64::from(best.class), best.label.to_owned()))
            }
            (By::Column, Some(value)) => {
                value.with_tensor(|view| match Element::read(view.dtype, view.data) {
                    Element::Int(v) => Ok((v, v.to_string())),
                    Element::Bool(v) => Ok((i64::from(v), v.to_string())),
                    Element::Float(_) | Element::Double(_) => {
                        Err(ItemError::result("internal error: a key is no integer; this is a bug"))
                    }
                })
            }
            (By::Column, None) => Err(ItemError::result("internal error: a key is missing; this is a bug")),
        }
    }
}

impl Reduce for Reduced {
    /// The key, and behind it the elements of the row as they are; or the cell of all of them.
    fn contribute(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        write(&self.by.key(&self.stage, item, row.get(1))?, out)?;
        let (Some(op), Some(value)) = (&self.op, row.first()) else { return Ok(()) };
        value.with_tensor(|view| {
            for (place, bytes) in view.data.chunks_exact(view.dtype.size_bytes()).enumerate() {
                if let Some(why) = op.refuses(Element::read(view.dtype, bytes)) {
                    return Err(ItemError::result(format!("at place {place} `{}` holds {why}", view.name)));
                }
            }
            self.tensor(op, view, out)
        })
    }

    fn reduction(&self) -> Reduction<'_> {
        Reduction::Merged(self)
    }
}

impl Reduced {
    /// The elements of a row as they are; or the cell of all of them.
    fn tensor(&self, op: &Op, view: &TensorView<'_>, out: &mut Vec<u8>) -> Result<(), ItemError> {
        match self.over {
            ReduceOver::Rows if view.data.len() != self.n_cells() * view.dtype.size_bytes() => {
                let (shape, expected) = (view.shape, &self.shape);
                Err(ItemError::result(format!(
                    "a row to reduce has shape {shape:?}, and the others have {expected:?}"
                )))
            }
            ReduceOver::Rows => {
                out.extend_from_slice(view.data);
                Ok(())
            }
            ReduceOver::Elements => {
                let mut cell = op.cell(view.dtype);
                let elements = view.data.chunks_exact(view.dtype.size_bytes());
                elements.for_each(|bytes| op.add(&mut cell, Element::read(view.dtype, bytes)));
                write(&cell, out)
            }
        }
    }
}

impl Merge for Reduced {
    fn state<'a>(&'a self, saved: Option<&[u8]>) -> Result<Box<dyn MergeState + 'a>, ItemError> {
        let groups = saved.map_or(Ok((BTreeMap::new(), 0)), read)?.0;
        Ok(Box::new(MergedState { of: self, groups }))
    }
}

/// What is known of the rows with one key.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
struct MergedGroup {
    rows: u64,
    items: u64,
    /// The item of the last row: the rows of an item come together.
    last: (u16, u64),
    cells: Vec<Accumulator>,
}

struct MergedState<'a> {
    of: &'a Reduced,
    groups: BTreeMap<RowKey, MergedGroup>,
}

impl MergeState for MergedState<'_> {
    fn add(&mut self, item: ItemId, contribution: &[u8]) -> Result<(), ItemError> {
        let (key, used): (RowKey, usize) = read(contribution)?;
        let (rest, item) = (&contribution[used..], (item.source.0, item.index));
        let (of, op) = (self.of, self.of.op.as_ref());
        let group = self.groups.entry(key).or_insert_with(|| MergedGroup {
            rows: 0,
            items: 0,
            last: item,
            cells: op.map_or_else(Vec::new, |op| vec![op.cell(of.dtype); of.n_cells()]),
        });
        group.items += u64::from(group.rows == 0 || group.last != item);
        group.rows += 1;
        group.last = item;
        match (op, of.over) {
            (None, _) => {}
            (Some(op), ReduceOver::Rows) => {
                let elements = rest.chunks_exact(of.dtype.size_bytes());
                group
                    .cells
                    .iter_mut()
                    .zip(elements)
                    .for_each(|(cell, bytes)| op.add(cell, Element::read(of.dtype, bytes)));
            }
            (Some(_), ReduceOver::Elements) => {
                let (other, _): (Accumulator, usize) = read(rest)?;
                group.cells.iter_mut().for_each(|cell| cell.merge(&other));
            }
        }
        Ok(())
    }

    fn save(&self) -> Result<Vec<u8>, ItemError> {
        let mut out = Vec::new();
        write(&self.groups, &mut out)?;
        Ok(out)
    }

    fn rows(&self) -> Result<Vec<ReducedRow>, ItemError> {
        self.groups.iter().map(|((_, name), group)| self.of.row(name, group)).collect()
    }
}

impl Reduced {
    fn row(&self, name: &str, group: &MergedGroup) -> Result<ReducedRow, ItemError> {
        let count = |name: &str, n: u64| tensor(name, DType::I64, Vec::new(), n.to_ne_bytes().to_vec());
        let mut values = Vec::new();
        for (column, dtype, inner) in self.columns() {
            let shape = self.shape.iter().copied().chain(inner).collect();
            let mut data = Vec::new();
            for cell in &group.cells {
                self.write(cell, column, dtype, &mut data)?;
            }
            values.push(tensor(column, dtype, shape, data));
        }
        values.extend([count("rows", group.rows), count("items", group.items)]);
        Ok(ReducedRow { item: name.to_owned(), values })
    }

    /// Appends what one column says of a cell.
    fn write(
        &self,
        cell: &Accumulator,
        column: &str,
        dtype: DType,
        out: &mut Vec<u8>,
    ) -> Result<(), ItemError> {
        let Some(op) = &self.op else { return Ok(()) };
        match cell {
            Accumulator::Counts(counts) => {
                let (bins, outside) = counts.split_at(counts.len() - OUTSIDE);
                let part = if column == "outside" { outside } else { bins };
                out.extend(part.iter().flat_map(|n| n.to_ne_bytes()));
            }
            _ if dtype == DType::F64 => {
                let number = cell.to_f64(op);
                if *op == Op::Sum && number.is_infinite() {
                    return Err(ItemError::result(format!("its {column} is beyond what f64 holds")));
                }
                out.extend(number.to_ne_bytes());
            }
            // A number that was one, so nothing is rounded.
            _ if dtype == DType::F32 => out.extend((cell.to_f64(op) as f32).to_ne_bytes()),
            _ => {
                let beyond = || ItemError::result(format!("its {column} is beyond what 64 bits hold"));
                out.extend(cell.to_i64(op).ok_or_else(beyond)?.to_ne_bytes());
            }
        }
        Ok(())
    }
}

fn tensor(name: &str, dtype: DType, shape: Vec<usize>, data: Vec<u8>) -> OwnedValue {
    OwnedValue::Tensor { name: name.into(), dtype, shape: shape.into(), data: data.into() }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
