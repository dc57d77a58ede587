//! `op = "concat"`: rows as bytes, and back. The runtime brings them into the order of the items.

use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::DType;
use orchestra_core::data::{OwnedRow, OwnedValue, Refusal, Value};
use orchestra_core::shapes::{InOrder, ItemInfo, Reduce, ReducedRow, Reduction};

use super::merged::{decode, encode};

/// Keeps each row with the name of its item.
#[derive(Debug)]
pub struct Concat;

impl Reduce for Concat {
    fn contribute(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), Refusal> {
        let values: OwnedRow = row.iter().map(OwnedValue::copy_of).collect::<Result<_, _>>()?;
        let stored = (item.name, stored(&values)?);
        encode(&stored, out)
    }

    fn reduction(&self) -> Reduction<'_> {
        Reduction::InOrder(self)
    }
}

impl InOrder for Concat {
    fn row(&self, contribution: &[u8]) -> Result<ReducedRow, Refusal> {
        let ((item, values), _): ((String, Vec<Stored>), usize) = decode(contribution)?;
        Ok(ReducedRow { item, values: values.into_iter().map(Stored::value).collect() })
    }
}

#[derive(Encode, Decode)]
enum Stored {
    Tensor { name: String, dtype: DType, shape: Vec<usize>, data: Vec<u8> },
    Labels(Vec<(String, u32, f32)>),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Vec<Stored>>),
}

fn stored(row: &OwnedRow) -> Result<Vec<Stored>, Refusal> {
    let of = |value: &OwnedValue| {
        Ok(match value {
            OwnedValue::Tensor { name, dtype, shape, data } => {
                let (name, shape, data) = (name.to_string(), shape.to_vec(), data.to_vec());
                Stored::Tensor { name, dtype: *dtype, shape, data }
            }
            OwnedValue::Labels(labels) => Stored::Labels(
                labels.iter().map(|(label, class, score)| (label.to_string(), *class, *score)).collect(),
            ),
            OwnedValue::Text(text) => Stored::Text(text.to_string()),
            OwnedValue::Bytes(bytes) => Stored::Bytes(bytes.to_vec()),
            OwnedValue::List(rows) => Stored::List(rows.iter().map(stored).collect::<Result<_, _>>()?),
            OwnedValue::Picture(_) => {
                return Err(Refusal::result("internal error: a picture cannot be kept; this is a bug"));
            }
        })
    };
    row.iter().map(of).collect()
}

impl Stored {
    fn value(self) -> OwnedValue {
        match self {
            Stored::Tensor { name, dtype, shape, data } => {
                OwnedValue::Tensor { name: name.into(), dtype, shape: shape.into(), data: data.into() }
            }
            Stored::Labels(labels) => OwnedValue::Labels(
                labels.into_iter().map(|(label, class, score)| (Arc::from(label), class, score)).collect(),
            ),
            Stored::Text(text) => OwnedValue::Text(text.into()),
            Stored::Bytes(bytes) => OwnedValue::Bytes(bytes.into()),
            Stored::List(rows) => OwnedValue::List(
                rows.into_iter().map(|row| row.into_iter().map(Stored::value).collect()).collect(),
            ),
        }
    }
}
