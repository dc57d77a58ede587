//! A graph as the protocol sees it: one item a request, whose records come back as tensors. A record of a sink is an element of the output `SINK`,
//! as JSON; columns of numbers and texts are outputs of their own, `SINK.COLUMN`.

use bytes::Bytes;
use orchestra::kind::{Column, ColumnType, OwnedValue, StoredValue};
use orchestra::{DType, Flow, Item, Record, Tensor};

use crate::call::{Data, NamedData};
use crate::datatype::Datatype;
use crate::error::{ErrorKind, ServeError};
use crate::protocol::TensorMetadata;

const ANY: i64 = -1;

/// What it takes: a dimension is as long as the item has it.
pub fn inputs(flow: &Flow) -> Vec<TensorMetadata> {
    flow.inputs().iter().map(|column| metadata(column.name.clone(), column, None)).collect()
}

/// What it gives: the first dimension counts records.
pub fn outputs(flow: &Flow) -> Vec<TensorMetadata> {
    let mut outputs = Vec::new();
    for (sink, columns) in flow.outputs() {
        let datatype = Datatype::Bytes.name().to_owned();
        outputs.push(TensorMetadata { name: sink.clone(), datatype, shape: vec![ANY] });
        let own = columns.iter().filter(|column| is_tensor(&column.ty));
        outputs.extend(own.map(|column| metadata(format!("{sink}.{}", column.name), column, Some(ANY))));
    }
    outputs
}

fn is_tensor(ty: &ColumnType) -> bool {
    matches!(ty, ColumnType::Tensor(_) | ColumnType::Text)
}

fn metadata(name: String, column: &Column, records: Option<i64>) -> TensorMetadata {
    let tensor = column.ty.required().tensor();
    let dims = tensor.map_or(&[][..], |tensor| &tensor.row);
    let texts = matches!(column.ty.required(), ColumnType::List(_)).then_some(ANY);
    let dims = texts.into_iter().chain(dims.iter().map(|dim| dim.fixed().map_or(ANY, |dim| dim as i64)));
    let mut shape: Vec<i64> = records.into_iter().chain(dims).collect();
    if shape.is_empty() {
        shape.push(1);
    }
    let datatype = Datatype::of(tensor.map(|tensor| tensor.dtype)).name().to_owned();
    TensorMetadata { name, datatype, shape }
}

/// The item of a request.
pub fn item(flow: &Flow, inputs: Vec<NamedData>) -> Result<Item, ServeError> {
    let columns = flow.inputs();
    if let [Column { name, ty: ColumnType::Picture }] = &columns[..] {
        return match <[NamedData; 1]>::try_from(inputs) {
            Ok([input]) if input.name == *name => Ok(Item::bytes(one_of_bytes(input)?)),
            _ => Err(ServeError::invalid(format!(
                "the graph takes one input `{name}`, whose one element of type BYTES is the content of a picture file"
            ))),
        };
    }
    let value = |input: NamedData| {
        let column = columns.iter().find(|column| column.name == input.name);
        let column = column.ok_or_else(|| {
            let names: Vec<&str> = columns.iter().map(|column| &*column.name).collect();
            ServeError::invalid(format!(
                "the graph has no input `{}`; inputs: `{}`",
                input.name,
                names.join("`, `")
            ))
        })?;
        let name = input.name.clone();
        let value = match column.ty.required() {
            ColumnType::Text => OwnedValue::Text(text_of(input)?.into()),
            _ => fitted(column, input.into_tensor()?).into(),
        };
        Ok((name, value))
    };
    let values = inputs.into_iter().map(value).collect::<Result<Vec<_>, ServeError>>()?;
    Ok(Item::columns(values))
}

/// Clients send one item as a batch of one, too.
fn fitted(column: &Column, tensor: Tensor) -> Tensor {
    let rank = column.ty.required().tensor().map_or(0, |spec| spec.row.len());
    match tensor.shape() {
        [1, row @ ..] if row.len() == rank => {
            let row = row.to_vec();
            tensor.reshaped(row).expect("it has as many elements")
        }
        _ => tensor,
    }
}

fn one_of_bytes(input: NamedData) -> Result<Bytes, ServeError> {
    let wrong = || ServeError::invalid(format!("input `{}` is one element of type BYTES", input.name));
    let Data::Bytes(elements) = &input.data else { return Err(wrong()) };
    let [element] = &elements[..] else { return Err(wrong()) };
    Ok(element.clone())
}

fn text_of(input: NamedData) -> Result<String, ServeError> {
    let name = input.name.clone();
    String::from_utf8(one_of_bytes(input)?.into())
        .map_err(|_| ServeError::invalid(format!("input `{name}` is no text in UTF-8")))
}

/// The output `SINK` or `SINK.COLUMN` of these records, which is one of [`outputs`].
pub fn output(name: &str, flow: &Flow, records: &[Record]) -> Result<NamedData, ServeError> {
    let bug = || internal(format!("the sinks do not give `{name}` any more; load the graph again"));
    let (sink, column) = name.split_once('.').map_or((name, None), |(sink, column)| (sink, Some(column)));
    let records: Vec<&Record> = records.iter().filter(|record| record.sink() == sink).collect();
    let Some(column) = column else {
        let json = |record: &&Record| Ok(Bytes::from(record.json().map_err(internal)?.to_string()));
        let elements: Vec<Bytes> = records.iter().map(json).collect::<Result<_, ServeError>>()?;
        return NamedData::new(name, vec![elements.len()], Data::Bytes(elements));
    };
    let sinks = flow.outputs();
    let (_, columns) = sinks.iter().find(|(of, _)| of == sink).ok_or_else(bug)?;
    let found = columns.iter().enumerate().find(|(_, of)| of.name == column);
    let (at, column) = found.ok_or_else(bug)?;
    let values: Vec<Vec<StoredValue<'_>>> =
        records.iter().map(|record| record.values().map_err(internal)).collect::<Result<_, _>>()?;
    stacked(name, column, values.iter().map(|row| &row[at]))
}

fn internal(error: impl std::fmt::Display) -> ServeError {
    ServeError::new(ErrorKind::Internal, error.to_string())
}

/// One tensor of a column of several records.
fn stacked<'a>(
    name: &str,
    column: &Column,
    values: impl ExactSizeIterator<Item = &'a StoredValue<'a>>,
) -> Result<NamedData, ServeError> {
    let n = values.len();
    let (mut texts, mut bytes, mut first) = (Vec::new(), Vec::new(), None);
    for value in values {
        match value {
            StoredValue::Text(text) => texts.push(Bytes::from(text.to_string())),
            StoredValue::Tensor { shape, data, .. } => {
                if first.get_or_insert(shape) != &shape {
                    return Err(ServeError::invalid(format!(
                        "records of `{name}` have different shapes and are no tensor: ask for the JSON of the sink"
                    )));
                }
                bytes.extend_from_slice(data);
            }
            other => return Err(internal(format!("`{name}` holds {other:?}; this is a bug"))),
        }
    }
    let dtype = column.ty.tensor().map(|tensor| tensor.dtype);
    let Some(dtype) = dtype else { return NamedData::new(name, vec![n], Data::Bytes(texts)) };
    let row = first.cloned().unwrap_or_else(|| vec![0; column.ty.tensor().map_or(0, |spec| spec.row.len())]);
    numbers(name, dtype, n, row, bytes)
}

fn numbers(
    name: &str,
    dtype: DType,
    n: usize,
    row: Vec<usize>,
    bytes: Vec<u8>,
) -> Result<NamedData, ServeError> {
    let shape = [vec![n], row].concat();
    let tensor = Tensor::from_bytes(dtype, shape.clone(), bytes).map_err(internal)?;
    NamedData::new(name, shape, Data::Numbers(tensor))
}
