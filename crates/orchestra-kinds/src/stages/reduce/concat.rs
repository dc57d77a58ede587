//! `op = "concat"`: rows as bytes, and back, or joined to one. The runtime brings them into the order of the items.

use std::collections::BTreeMap;

use orchestra_core::DType;
use orchestra_core::data::{ItemError, OwnedRow, OwnedValue, Value};
use orchestra_core::row_bytes::{StoredValue, read, write};
use orchestra_core::shapes::{InOrder, ItemInfo, Join, Reduce, ReducedRow, Reduction};

use super::merged::{By, RowKey};
use crate::sources::reading::limits::LARGEST_TENSOR;

/// The column of the names of items whose tensors are stacked.
pub const NAMES: &str = "names";

/// Keeps each row with the name of its item.
#[derive(Debug)]
pub struct Concat {
    /// `None`: each row is one of the result.
    pub joining: Option<Joining>,
}

/// The tensors of rows with one key become one row.
#[derive(Debug, Clone)]
pub struct Joining {
    pub stage: String,
    /// A column is the last of a row.
    pub by: By,
    /// TensorFiles lie along a new first dimension, and the names of their items are one more column.
    pub stacks: bool,
}

impl Reduce for Concat {
    /// The row, and where rows are joined, its key behind it.
    fn contribute(&self, item: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        let key = match &self.joining {
            Some(Joining { stage, by, .. }) => Some(by.key(stage, item, row.last())?),
            None => None,
        };
        let has_column = self.joining.as_ref().is_some_and(|joining| joining.by == By::Column);
        let row = &row[..row.len() - usize::from(has_column)];
        if let (Some(_), Some(Value::Missing(name))) =
            (&key, row.iter().find(|value| matches!(value, Value::Missing(_))))
        {
            return Err(ItemError::missing(name));
        }
        let values: Vec<StoredValue<'_>> = row.iter().map(StoredValue::of).collect::<Result<_, _>>()?;
        write(&(item.name, values), out)?;
        key.map_or(Ok(()), |key| write(&key, out))
    }

    fn reduction(&self) -> Reduction<'_> {
        Reduction::InOrder(self)
    }
}

impl InOrder for Concat {
    fn row(&self, contribution: &[u8]) -> Result<ReducedRow, ItemError> {
        let ((item, values), _): ((String, Vec<StoredValue<'_>>), usize) = read(contribution)?;
        Ok(ReducedRow { item, values: values.into_iter().map(StoredValue::into_value).collect() })
    }

    fn join(&self) -> Option<Box<dyn Join>> {
        let stacks = self.joining.as_ref()?.stacks;
        Some(Box::new(JoinedGroups { stacks, ..JoinedGroups::default() }))
    }
}

/// TensorFiles of rows with one key, one behind the other along their first dimension or a new one. Their data is in memory, at most [`LARGEST_TENSOR`]
/// of a column over all keys.
#[derive(Default)]
struct JoinedGroups {
    stacks: bool,
    groups: BTreeMap<RowKey, TensorGroup>,
    bytes: Vec<usize>,
}

#[derive(Default)]
struct TensorGroup {
    columns: Vec<JoinedTensor>,
    /// Of the items; none unless tensors are stacked.
    names: Vec<OwnedRow>,
}

struct JoinedTensor {
    name: String,
    dtype: DType,
    /// Of the first dimension.
    len: usize,
    inner: Vec<usize>,
    data: Vec<u8>,
}

impl Join for JoinedGroups {
    fn add(&mut self, contribution: &[u8]) -> Result<(), ItemError> {
        let ((item, values), used): ((String, Vec<StoredValue<'_>>), usize) = read(contribution)?;
        let (key, _): (RowKey, usize) = read(&contribution[used..])?;
        let TensorGroup { columns, names } = self.groups.entry(key).or_default();
        let is_first = columns.is_empty();
        self.bytes.resize(values.len() + 1, 0);
        let mut grow = |at: usize, name: &str, by: usize| {
            self.bytes[at] += by;
            match self.bytes[at] > LARGEST_TENSOR {
                true => Err(ItemError::result(format!(
                    "`{name}` would be more than 1 GiB with item `{item}`: without `join` or `stack` each row has a record of its own"
                ))),
                false => Ok(()),
            }
        };
        if self.stacks {
            // A row with one value, and what that owns.
            let bytes = size_of::<OwnedRow>() + size_of::<OwnedValue>() + item.len();
            grow(values.len(), NAMES, bytes)?;
        }
        for (at, value) in values.into_iter().enumerate() {
            let StoredValue::Tensor { name, dtype, shape, data } = value else {
                return Err(ItemError::result("internal error: what is joined is no tensor; this is a bug"));
            };
            // A number without dimensions is an array of one.
            let (len, inner) = match shape.split_first() {
                Some((len, inner)) if !self.stacks => (*len, inner),
                _ => (1, &shape[..]),
            };
            grow(at, &name, data.len())?;
            if is_first {
                let (name, inner, data) = (name.into_owned(), inner.to_vec(), data.into_owned());
                columns.push(JoinedTensor { name, dtype, len, inner, data });
                continue;
            }
            let column = columns.get_mut(at).ok_or_else(|| ItemError::result("its rows are damaged"))?;
            if (dtype, inner) != (column.dtype, &column.inner[..]) {
                let before = (column.dtype, &column.inner);
                return Err(ItemError::result(format!(
                    "`{name}` of item `{item}` has rows of {dtype} {inner:?}, and those before it of {} {:?}: without `join` or `stack` each row has a record of its own",
                    before.0, before.1
                )));
            }
            column.len += len;
            column.data.extend_from_slice(&data);
        }
        if self.stacks {
            names.push(vec![OwnedValue::Text(item.into())]);
        }
        Ok(())
    }

    fn rows(self: Box<Self>) -> Result<Vec<ReducedRow>, ItemError> {
        let tensor = |column: JoinedTensor| OwnedValue::Tensor {
            name: column.name.into(),
            dtype: column.dtype,
            shape: std::iter::once(column.len).chain(column.inner).collect(),
            data: column.data.into(),
        };
        let row = |((_, item), TensorGroup { columns, names }): (RowKey, TensorGroup)| ReducedRow {
            item,
            values: columns
                .into_iter()
                .map(tensor)
                .chain(self.stacks.then(|| OwnedValue::List(names.into())))
                .collect(),
        };
        Ok(self.groups.into_iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::data::TensorView;
    use orchestra_core::{ItemId, SourceId};

    use super::*;

    fn joining(by: By) -> Concat {
        Concat { joining: Some(Joining { stage: "all".to_owned(), by, stacks: false }) }
    }

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
        let concat = joining(By::Nothing);
        assert!(concat.join().unwrap().rows().unwrap().is_empty(), "nothing gives no row");
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
            let [ReducedRow { item, values }] = &join.rows().unwrap()[..] else { panic!() };
            let [OwnedValue::Tensor { shape, data, .. }] = &values[..] else { panic!("{values:?}") };
            assert_eq!((&item[..], &shape[..], &data[..]), ("all", expected, &all[..]));
        }
        let mut join = concat.join().unwrap();
        join.add(&contribution(&concat, "a", &[1, 2], &[1.0, 2.0])).unwrap();
        let error = join.add(&contribution(&concat, "b", &[1, 3], &[1.0; 3])).unwrap_err().error;
        assert!(error.contains("`x` of item `b` has rows of f32 [3]") && error.contains("[2]"), "{error}");
        assert!(join.add(b"\xff\xff\xff").is_err());
    }

    #[test]
    fn rows_with_one_key_are_joined_in_the_order_of_their_items() {
        let concat = joining(By::Folder);
        let mut join = concat.join().unwrap();
        for (item, x) in [("b/0", 1.0), ("a/1", 2.0), ("b/2", 3.0), ("0", 4.0)] {
            join.add(&contribution(&concat, item, &[1], &[x])).unwrap();
        }
        let rows = join.rows().unwrap();
        let of = |row: &ReducedRow| match &row.values[..] {
            [OwnedValue::Tensor { shape, data, .. }] => {
                let numbers: Vec<f32> = data.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect();
                assert_eq!(shape[..], [numbers.len()]);
                (row.item.clone(), numbers)
            }
            other => panic!("{other:?}"),
        };
        let expected = [(".", vec![4.0]), ("a", vec![2.0]), ("b", vec![1.0, 3.0])];
        assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), expected.map(|(key, x)| (key.to_owned(), x)));
    }
    #[test]
    fn tensors_are_stacked_along_a_new_dimension_beside_the_names_of_their_items() {
        let mut concat = joining(By::Nothing);
        concat.joining.as_mut().unwrap().stacks = true;
        for (shape, expected) in [(&[2][..], &[3, 2][..]), (&[], &[3]), (&[1, 3], &[3, 1, 3])] {
            let mut join = concat.join().unwrap();
            let n = shape.iter().product();
            for (item, first) in [("c", 1.0), ("a", 2.0), ("b", 3.0)] {
                join.add(&contribution(&concat, item, shape, &vec![first; n])).unwrap();
            }
            let other = join.add(&contribution(&concat, "d", &[5, 2, 3], &[0.0; 30])).unwrap_err().error;
            assert!(other.contains("`x` of item `d` has rows of f32 [5, 2, 3]"), "{other}");
            let [ReducedRow { item, values }] = &join.rows().unwrap()[..] else { panic!() };
            let [OwnedValue::Tensor { shape, data, .. }, OwnedValue::List(names)] = &values[..] else {
                panic!("{values:?}")
            };
            let all: Vec<u8> = [1.0_f32, 2.0, 3.0].iter().flat_map(|x| x.to_ne_bytes().repeat(n)).collect();
            assert_eq!((&item[..], &shape[..], &data[..]), ("all", expected, &all[..]));
            assert_eq!(format!("{names:?}"), r#"[[Text("c")], [Text("a")], [Text("b")]]"#);
        }
    }
}
