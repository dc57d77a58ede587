//! `op = "concat"`: rows as bytes, and back, or joined to one. The runtime brings them into the order of the items.

use std::mem;
use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::DType;
use orchestra_core::data::{OwnedRow, OwnedValue, Refusal, Value};
use orchestra_core::shapes::{InOrder, ItemInfo, Join, Reduce, ReducedRow, Reduction};

use super::merged::{decode, encode};
use crate::sources::columns::LARGEST_TENSOR;

/// Keeps each row with the name of its item.
#[derive(Debug)]
pub struct Concat {
    /// The name of the stage, where its tensors become one row.
    pub joined: Option<String>,
}

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

    fn join(&self) -> Option<Box<dyn Join>> {
        let stage = self.joined.clone()?;
        Some(Box::new(Joined { stage, columns: Vec::new() }))
    }
}

/// Tensors of rows, one behind the other along their first dimension. Their data is in memory, at most [`LARGEST_TENSOR`] of a column.
struct Joined {
    stage: String,
    /// Empty before the first row.
    columns: Vec<JoinedTensor>,
}

struct JoinedTensor {
    name: String,
    dtype: DType,
    /// Of the first dimension.
    len: usize,
    /// The other dimensions.
    inner: Vec<usize>,
    data: Vec<u8>,
}

impl Join for Joined {
    fn add(&mut self, contribution: &[u8]) -> Result<(), Refusal> {
        let ((item, values), _): ((String, Vec<Stored>), usize) = decode(contribution)?;
        let is_first = self.columns.is_empty();
        for (at, value) in values.into_iter().enumerate() {
            let Stored::Tensor { name, dtype, shape, mut data } = value else {
                return Err(Refusal::result("internal error: what is joined is no tensor; this is a bug"));
            };
            // A number without dimensions is an array of one.
            let (len, inner) = shape.split_first().map_or((1, &[][..]), |(len, inner)| (*len, inner));
            if is_first {
                let (inner, data) = (inner.to_vec(), mem::take(&mut data));
                self.columns.push(JoinedTensor { name, dtype, len, inner, data });
                continue;
            }
            let column = self.columns.get_mut(at).ok_or_else(|| Refusal::result("its rows are damaged"))?;
            if (dtype, inner) != (column.dtype, &column.inner[..]) {
                let before = (column.dtype, &column.inner);
                return Err(Refusal::result(format!(
                    "`{name}` of item `{item}` has rows of {dtype} {inner:?}, and those before it of {} {:?}",
                    before.0, before.1
                )));
            }
            if column.data.len() + data.len() > LARGEST_TENSOR {
                return Err(Refusal::result(format!(
                    "`{name}` would be more than 1 GiB with item `{item}`: without `join` each row has a record of its own"
                )));
            }
            column.len += len;
            column.data.append(&mut data);
        }
        Ok(())
    }

    fn row(self: Box<Self>) -> Result<Option<ReducedRow>, Refusal> {
        let tensor = |column: JoinedTensor| OwnedValue::Tensor {
            name: column.name.into(),
            dtype: column.dtype,
            shape: std::iter::once(column.len).chain(column.inner).collect(),
            data: column.data.into(),
        };
        let values: OwnedRow = self.columns.into_iter().map(tensor).collect();
        Ok((!values.is_empty()).then_some(ReducedRow { item: self.stage, values }))
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

#[cfg(test)]
mod tests {
    use orchestra_core::data::TensorView;
    use orchestra_core::{ItemId, SourceId};

    use super::*;

    /// The contribution of a row with one tensor.
    fn contribution(concat: &Concat, item: &str, shape: &[usize], data: &[f32]) -> Vec<u8> {
        let data: Vec<u8> = data.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let view = TensorView { name: "x", dtype: DType::F32, shape, data: &data };
        let info =
            ItemInfo { name: item, id: ItemId { source: SourceId(0), index: 0 }, source: "s", parts: &[] };
        let mut out = Vec::new();
        concat.contribute(&info, &[Value::Tensor(view)], &mut out).unwrap();
        out
    }

    #[test]
    fn tensors_are_joined_along_their_first_dimension_and_others_refused_by_name() {
        let concat = Concat { joined: Some("all".to_owned()) };
        assert!(concat.join().unwrap().row().unwrap().is_none(), "nothing gives no row");
        for (shapes, expected) in [
            ([&[2, 2][..], &[0, 2], &[1, 2]], &[3, 2][..]),
            ([&[][..], &[], &[]], &[3]),
            ([&[1][..], &[3], &[0]], &[4]),
        ] {
            let mut join = concat.join().unwrap();
            let mut all = Vec::new();
            for (at, shape) in shapes.into_iter().enumerate() {
                let numbers: Vec<f32> = (0..shape.iter().product()).map(|n| (10 * at + n) as f32).collect();
                join.add(&contribution(&concat, "a", shape, &numbers)).unwrap();
                all.extend(numbers.iter().flat_map(|x| x.to_ne_bytes()));
            }
            let ReducedRow { item, values } = join.row().unwrap().unwrap();
            let [OwnedValue::Tensor { shape, data, .. }] = &values[..] else { panic!("{values:?}") };
            assert_eq!((&*item, &shape[..], &data[..]), ("all", expected, &all[..]));
        }
        let mut join = concat.join().unwrap();
        join.add(&contribution(&concat, "a", &[1, 2], &[1.0, 2.0])).unwrap();
        let error = join.add(&contribution(&concat, "b", &[1, 3], &[1.0; 3])).unwrap_err().error;
        assert!(error.contains("`x` of item `b` has rows of f32 [3]") && error.contains("[2]"), "{error}");
        assert!(join.add(b"\xff\xff\xff").is_err());
    }
}
