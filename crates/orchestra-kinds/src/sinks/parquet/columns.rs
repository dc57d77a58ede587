//! Rows as bytes, and bytes as columns: a row is written by the thread that has it, in the order of its schema, and many of them are taken apart
//! into columns when a file is made. Knows no Parquet but its way to flatten lists: repetition and definition levels.

use half::f16;
use orchestra_core::DType;
use orchestra_core::data::{Column, ColumnType, ItemError, OwnedRow, Schema, TensorView, Value};
use orchestra_core::shapes::ItemInfo;

use super::super::shared::column_names;

#[derive(Debug, Clone, PartialEq)]
pub enum ColumnNode {
    Leaf(LeafType),
    /// A count and so many values.
    List(Box<ColumnNode>),
    /// None or one, as a count of 0 or 1 and the value.
    Optional(Box<ColumnNode>),
    /// A value of each, by name.
    Struct(Vec<(String, ColumnNode)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeafType {
    Bool,
    U8,
    U32,
    I32,
    I64,
    I16,
    F32,
    F64,
    Text,
    Bytes,
}

#[derive(Debug)]
pub struct RecordColumns {
    schema: Schema,
    /// A `Struct`.
    pub node: ColumnNode,
}

impl RecordColumns {
    /// Those of a record of these; fails with the column that cannot be written.
    pub fn new(schema: &Schema) -> Result<Self, Box<Column>> {
        let of_item = [LeafType::Text, LeafType::I64, LeafType::Text];
        let mut fields: Vec<(String, ColumnNode)> =
            column_names::OF_ITEM.map(str::to_owned).into_iter().zip(of_item.map(ColumnNode::Leaf)).collect();
        let names = column_names::unique(schema, |_, called| vec![called.to_owned()]).concat();
        for (column, name) in schema.0.iter().zip(names) {
            fields.push((name, node_of(column)?));
        }
        Ok(Self { schema: schema.clone(), node: ColumnNode::Struct(fields) })
    }

    pub fn write(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        bytes(item.name.as_bytes(), out)?;
        out.extend_from_slice(&item.id.index.cast_signed().to_le_bytes());
        bytes(item.source.as_bytes(), out)?;
        values(&self.schema, row, out)
    }
}

fn node_of(column: &Column) -> Result<ColumnNode, Box<Column>> {
    let list = |node| ColumnNode::List(Box::new(node));
    Ok(match &column.ty {
        ColumnType::Tensor(spec)
        | ColumnType::Pixels { stored: spec, .. }
        | ColumnType::Largest { stored: spec, .. } => {
            let leaf = match spec.dtype {
                DType::F32 | DType::F16 => LeafType::F32,
                DType::I64 => LeafType::I64,
                DType::F64 => LeafType::F64,
                DType::I32 => LeafType::I32,
                DType::I16 => LeafType::I16,
                DType::U8 => LeafType::U8,
                DType::Bool => LeafType::Bool,
            };
            spec.row.iter().fold(ColumnNode::Leaf(leaf), |node, _| list(node))
        }
        ColumnType::Labels => {
            let fields = [("label", LeafType::Text), ("class", LeafType::U32), ("score", LeafType::F32)];
            list(ColumnNode::Struct(
                fields.map(|(name, leaf)| (name.to_owned(), ColumnNode::Leaf(leaf))).into(),
            ))
        }
        ColumnType::Text => ColumnNode::Leaf(LeafType::Text),
        ColumnType::Bytes(_) => ColumnNode::Leaf(LeafType::Bytes),
        ColumnType::List(schema) => {
            let fields = schema.0.iter().map(|column| Ok((column.name.clone(), node_of(column)?)));
            list(ColumnNode::Struct(fields.collect::<Result<_, Box<Column>>>()?))
        }
        ColumnType::Optional(of) => ColumnNode::Optional(Box::new(node_of(&Column {
            name: column.name.clone(),
            ty: (**of).clone(),
        })?)),
        ColumnType::Picture | ColumnType::Placement => return Err(Box::new(column.clone())),
    })
}

fn count(n: usize, out: &mut Vec<u8>) -> Result<(), ItemError> {
    let n =
        u32::try_from(n).map_err(|_| ItemError::result("the record has a list of more than 4e9 values"))?;
    out.extend_from_slice(&n.to_le_bytes());
    Ok(())
}

fn bytes(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ItemError> {
    count(bytes.len(), out)?;
    out.extend_from_slice(bytes);
    Ok(())
}

fn values(schema: &Schema, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
    for (column, value) in schema.0.iter().zip(row) {
        if let ColumnType::Optional(_) = column.ty {
            let is_missing = matches!(value, Value::Missing(_));
            count(usize::from(!is_missing), out)?;
            if is_missing {
                continue;
            }
        }
        match (value, &column.ty) {
            (Value::Labels(labels), _) => {
                count(labels.len(), out)?;
                for label in *labels {
                    bytes(label.label.as_bytes(), out)?;
                    out.extend_from_slice(&label.class.to_le_bytes());
                    out.extend_from_slice(&label.score.to_le_bytes());
                }
            }
            (Value::Text(text), _) => bytes(text.as_bytes(), out)?,
            (Value::Bytes(content), _) => bytes(content, out)?,
            (Value::List(rows), ColumnType::List(schema)) => {
                count(rows.len(), out)?;
                rows.iter().try_for_each(|row| owned(schema, row, out))?;
            }
            (value, _) => value.with_tensor(|view| tensor(view, view.shape, view.data, out))?,
        }
    }
    Ok(())
}

fn owned(schema: &Schema, row: &OwnedRow, out: &mut Vec<u8>) -> Result<(), ItemError> {
    let labels: Vec<_> = row.iter().map(|value| value.labels()).collect();
    let row: Vec<_> = row.iter().zip(&labels).map(|(value, labels)| value.borrowed(labels)).collect();
    values(schema, &row, out)
}

fn tensor(view: &TensorView<'_>, shape: &[usize], data: &[u8], out: &mut Vec<u8>) -> Result<(), ItemError> {
    let Some((&n, rest)) = shape.split_first() else {
        elements(view.dtype, data, out);
        return Ok(());
    };
    count(n, out)?;
    if rest.is_empty() {
        elements(view.dtype, data, out);
        return Ok(());
    }
    let step = rest.iter().product::<usize>() * view.dtype.size_bytes();
    (0..n)
        .try_for_each(|at| tensor(view, rest, data.get(at * step..(at + 1) * step).unwrap_or_default(), out))
}

/// In little-endian order; halves become `f32` and short integers `i32`, which hold each of them.
fn elements(dtype: DType, data: &[u8], out: &mut Vec<u8>) {
    match dtype {
        DType::F16 => {
            let floats = data.as_chunks().0.iter().map(|half| f16::from_ne_bytes(*half).to_f32());
            out.extend(floats.flat_map(f32::to_le_bytes));
        }
        DType::I16 => {
            let integers = data.as_chunks().0.iter().map(|short| i32::from(i16::from_ne_bytes(*short)));
            out.extend(integers.flat_map(i32::to_le_bytes));
        }
        _ if cfg!(target_endian = "big") => {
            out.extend(data.chunks_exact(dtype.size_bytes()).flat_map(|bytes| bytes.iter().rev()));
        }
        _ => out.extend_from_slice(data),
    }
}

/// All values of a leaf, and where each stands in the lists around it.
#[derive(Debug, Default)]
pub struct LeafValues {
    /// Those of numbers one behind the other, in little-endian order.
    pub bytes: Vec<u8>,
    pub texts: Vec<Vec<u8>>,
    /// How many of the lists and optional columns around it have a value here.
    pub definition: Vec<i16>,
    /// Which of the lists around it goes on here; 0: none, a row begins.
    pub repetition: Vec<i16>,
}

/// How many leaves there are below.
pub fn n_leaves(node: &ColumnNode) -> usize {
    match node {
        ColumnNode::Leaf(_) => 1,
        ColumnNode::List(of) | ColumnNode::Optional(of) => n_leaves(of),
        ColumnNode::Struct(fields) => fields.iter().map(|(_, field)| n_leaves(field)).sum(),
    }
}

/// Takes a row apart; `leaves` are those of `node`. `None` where the bytes are no such row.
pub fn take_apart(node: &ColumnNode, row: &[u8], leaves: &mut [LeafValues]) -> Option<()> {
    let mut left = row;
    take(node, &mut left, Around { lists: 0, levels: 0, repetition: 0 }, leaves)?;
    left.is_empty().then_some(())
}

/// What is around a value.
#[derive(Clone, Copy)]
struct Around {
    lists: i16,
    /// Lists, and what may be missing.
    levels: i16,
    /// The repetition level of the first value.
    repetition: i16,
}

impl LeafValues {
    /// A place where nothing stands.
    fn leave_out(&mut self, around: Around) {
        self.definition.push(around.levels);
        self.repetition.push(around.repetition);
    }
}

fn take(node: &ColumnNode, left: &mut &[u8], around: Around, leaves: &mut [LeafValues]) -> Option<()> {
    let within = Around { levels: around.levels + 1, ..around };
    match node {
        ColumnNode::Leaf(leaf) => {
            let [values] = leaves else { return None };
            match leaf.size() {
                Some(size) => values.bytes.extend_from_slice(left.split_off(..size)?),
                None => {
                    let n = number(left)?;
                    values.texts.push(left.split_off(..n)?.to_vec());
                }
            }
            values.definition.push(around.levels);
            values.repetition.push(around.repetition);
        }
        ColumnNode::Optional(of) => match number(left)? {
            0 => leaves.iter_mut().for_each(|values| values.leave_out(around)),
            _ => take(of, left, within, leaves)?,
        },
        ColumnNode::List(of) => {
            let n = number(left)?;
            if n == 0 {
                leaves.iter_mut().for_each(|values| values.leave_out(around));
                return Some(());
            }
            let lists = around.lists + 1;
            if let (ColumnNode::Leaf(leaf), [values]) = (&**of, &mut *leaves)
                && let Some(size) = leaf.size()
            {
                // All at once: by far the most values are those of tensors.
                values.bytes.extend_from_slice(left.split_off(..n.checked_mul(size)?)?);
                values.definition.extend(std::iter::repeat_n(within.levels, n));
                values.repetition.push(around.repetition);
                values.repetition.extend(std::iter::repeat_n(lists, n - 1));
                return Some(());
            }
            for at in 0..n {
                let repetition = if at == 0 { around.repetition } else { lists };
                take(of, left, Around { lists, repetition, ..within }, leaves)?;
            }
        }
        ColumnNode::Struct(fields) => {
            let mut leaves = leaves;
            for (_, field) in fields {
                let (of_field, rest) = leaves.split_at_mut_checked(n_leaves(field))?;
                take(field, left, around, of_field)?;
                leaves = rest;
            }
        }
    }
    Some(())
}

fn number(left: &mut &[u8]) -> Option<usize> {
    let bytes = left.split_off(..4)?.first_chunk().copied()?;
    Some(u32::from_le_bytes(bytes) as usize)
}

impl LeafType {
    /// Bytes of a value; `None`: it says so itself.
    fn size(self) -> Option<usize> {
        match self {
            LeafType::Bool | LeafType::U8 => Some(1),
            LeafType::U32 | LeafType::I32 | LeafType::I16 | LeafType::F32 => Some(4),
            LeafType::I64 | LeafType::F64 => Some(8),
            LeafType::Text | LeafType::Bytes => None,
        }
    }
}
