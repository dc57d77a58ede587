//! Lists and labels that a program gives, one for each item: read by the columns that it has declared. What a worker says of lengths is checked here.

use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Label, ListedPicture, OwnedRow, OwnedValue, Schema};

/// Values of a list, those of lists within it included: what is kept of each takes some ten bytes, however few it has.
const MOST_VALUES: usize = 1 << 20;

/// The list of an item; `None` where the bytes are none with these columns, or it has too many values.
pub fn list_of(bytes: &[u8], columns: &Schema) -> Option<Arc<[OwnedRow]>> {
    let mut reader = ListReader { bytes, left: MOST_VALUES };
    let rows = reader.rows(columns)?;
    reader.bytes.is_empty().then_some(rows)
}

/// The labels of an item, which travel as a list with the columns `label`, `class` (i64) and `score` (f32).
pub fn labels_of(bytes: &[u8]) -> Option<Vec<Label<'_>>> {
    let mut reader = ListReader { bytes, left: MOST_VALUES };
    let labels = reader.labels()?;
    reader.bytes.is_empty().then_some(labels)
}

struct ListReader<'a> {
    bytes: &'a [u8],
    /// Values that there may still be.
    left: usize,
}

impl<'a> ListReader<'a> {
    fn rows(&mut self, Schema(columns): &Schema) -> Option<Arc<[OwnedRow]>> {
        let n = self.count(columns.len())?;
        (0..n).map(|_| columns.iter().map(|column| self.value(column)).collect()).collect()
    }

    /// How many rows of so many columns follow, for which there is room.
    fn count(&mut self, columns: usize) -> Option<usize> {
        let n = self.int()?;
        self.left = self.left.checked_sub(n.checked_mul(columns.max(1))?)?;
        Some(n)
    }

    fn labels(&mut self) -> Option<Vec<Label<'a>>> {
        let n = self.count(3)?;
        let label = |_| {
            let label = std::str::from_utf8(self.bytes()?).ok()?;
            let class = i64::from_ne_bytes(self.bytes()?.try_into().ok()?);
            let score = f32::from_ne_bytes(self.bytes()?.try_into().ok()?);
            Some(Label { label, class: u32::try_from(class).ok()?, score })
        };
        (0..n).map(label).collect()
    }

    fn value(&mut self, Column { name, ty }: &Column) -> Option<OwnedValue> {
        Some(match ty {
            ColumnType::Text => OwnedValue::Text(std::str::from_utf8(self.bytes()?).ok()?.into()),
            ColumnType::Bytes(_) => OwnedValue::Bytes(self.bytes()?.into()),
            ColumnType::List(columns) => OwnedValue::List(self.rows(columns)?),
            ColumnType::Labels => {
                let labels = self.labels()?;
                OwnedValue::Labels(labels.iter().map(|l| (l.label.into(), l.class, l.score)).collect())
            }
            ColumnType::Picture => {
                let shape = [self.int()?, self.int()?, self.int()?];
                OwnedValue::Picture(Arc::new(ListedPicture::new(shape, self.bytes()?)?))
            }
            ColumnType::Tensor(spec) => {
                let shape: Vec<usize> = spec.row.iter().map(|_| self.int()).collect::<Option<_>>()?;
                let data = self.bytes()?.into();
                let value = OwnedValue::Tensor {
                    name: name.as_str().into(),
                    dtype: spec.dtype,
                    shape: shape.into(),
                    data,
                };
                return ty.fits(&value).then_some(value);
            }
            _ => return None,
        })
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.int()?;
        let (bytes, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(bytes)
    }

    /// As everywhere in the protocol: one byte below 251, else so many bytes as that says, little-endian.
    fn int(&mut self) -> Option<usize> {
        let (&first, rest) = self.bytes.split_first()?;
        let len = match first {
            0..=250 => {
                self.bytes = rest;
                return Some(usize::from(first));
            }
            251 => 2,
            252 => 4,
            253 => 8,
            254.. => return None,
        };
        let (number, rest) = rest.split_at_checked(len)?;
        self.bytes = rest;
        let mut whole = [0; 8];
        whole[..len].copy_from_slice(number);
        usize::try_from(u64::from_le_bytes(whole)).ok()
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::{DType, Dim, TensorSpec};

    use super::*;

    fn columns() -> Schema {
        let row = vec![Dim::Fixed(2), Dim::Dynamic];
        let tensor = TensorSpec { name: "x".into(), dtype: DType::I16, row, batch: Dim::Dynamic };
        let column = |name: &str, ty| Column { name: name.to_owned(), ty };
        let inner = Schema(vec![column("t", ColumnType::Text)]);
        Schema(vec![column("x", ColumnType::Tensor(tensor)), column("of", ColumnType::List(inner))])
    }

    /// Two rows: a tensor of two by one and a list of two texts, and one of two by none and an empty list.
    const LIST: [u8; 18] = [2, 2, 1, 4, 1, 0, 2, 0, 2, 1, b'a', 0, 2, 0, 0, 0, 251, 0];

    #[test]
    fn a_list_is_what_was_packed_and_no_part_or_change_of_it_is_taken_for_more_than_there_is() {
        let whole = &LIST[..16];
        let rows = list_of(whole, &columns()).unwrap();
        assert_eq!(rows.len(), 2);
        let [OwnedValue::Tensor { shape, data, .. }, OwnedValue::List(inner)] = &rows[0][..] else {
            panic!("{rows:?}")
        };
        assert_eq!((&shape[..], &data[..], inner.len()), (&[2, 1][..], &[1, 0, 2, 0][..], 2));
        for cut in 0..whole.len() {
            assert!(list_of(&whole[..cut], &columns()).is_none(), "{cut}");
        }
        assert!(list_of(&LIST, &columns()).is_none(), "bytes behind its end");
        for at in 0..whole.len() {
            for byte in [0, 1, 3, 200, 251, 252, 253, 254, 255] {
                let mut changed = whole.to_vec();
                changed[at] = byte;
                drop(list_of(&changed, &columns()));
            }
        }
        let many = [252, 0xff, 0xff, 0xff, 0xff];
        assert!(list_of(&many, &columns()).is_none());
        let texts = Schema::of("t", ColumnType::Text);
        let empty = |n: u32| [&[252][..], &n.to_le_bytes(), &vec![0; n as usize]].concat();
        assert!(
            list_of(&empty(1 << 20), &texts).is_some() && list_of(&empty((1 << 20) + 1), &texts).is_none()
        );
    }
}
