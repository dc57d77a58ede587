//! The values of rows that a loader process has made, in its region.

use std::sync::{Arc, LazyLock};

use orchestra_core::data::{
    Column, ColumnType, CopyPixels, ItemError, Label, Picture, Pixels, TensorView, Value, WriteTensor,
};
use orchestra_core::shapes::Packing;
use orchestra_core::{DType, Dim, FailureKind, Placement, TensorSpec};
use orchestra_plan::ColumnRef;
use orchestra_worker::loader::LoaderRegion;
use orchestra_worker::loader::events::SentValue;
use orchestra_worker::mapping::SharedBytes;
use smallvec::SmallVec;

pub struct CellType {
    pub read: ColumnRef,
    pub column: Column,
    /// Its smaller form, where it has one.
    pub packing: Option<Arc<dyn Packing>>,
}

/// Bytes of a small tensor: numbers of a table, and where pixels lie in their picture.
const SMALL: usize = 128;

/// A value as it was sent. Nothing of it is believed before it is looked at.
pub enum ReceivedValue<'a> {
    Missing(&'a str),
    Text(&'a str),
    Labels(Vec<Label<'a>>),
    Picture(SentPicture<'a>),
    Bytes(Vec<u8>),
    /// A small tensor, or one of a shape that the plan does not know.
    Copied {
        name: &'a str,
        dtype: DType,
        shape: &'a [usize],
        data: SmallVec<[u8; SMALL]>,
    },
    Tensor(SentTensor<'a>),
}

impl<'a> ReceivedValue<'a> {
    /// `None`: it is not what the plan says, or lies outside of the region.
    pub fn new(of: &'a CellType, sent: &'a SentValue, region: &'a LoaderRegion) -> Option<Self> {
        let CellType { column, packing, .. } = of;
        let may_be_missing = matches!(column.ty, ColumnType::Optional(_));
        Some(match (column.ty.required(), sent) {
            (_, SentValue::Missing) if may_be_missing => ReceivedValue::Missing(&column.name),
            (ColumnType::Picture, &SentValue::Picture { at, width, height, channels }) => {
                let channels = usize::from(channels);
                let len = (width as usize).checked_mul(height as usize)?.checked_mul(channels)?;
                let is_picture = width > 0 && height > 0 && matches!(channels, 1 | 3);
                let bytes = region.bytes(at, len).filter(|_| is_picture)?;
                ReceivedValue::Picture(SentPicture { size: [width, height], channels, bytes })
            }
            (ColumnType::Labels, SentValue::Labels(labels)) => {
                let label = |(label, class, score): &'a (String, u32, f32)| Label {
                    label,
                    class: *class,
                    score: *score,
                };
                ReceivedValue::Labels(labels.iter().map(label).collect())
            }
            (ColumnType::Text, SentValue::Text(text)) => ReceivedValue::Text(text),
            (ColumnType::Bytes(_), SentValue::Bytes { at, len }) => {
                ReceivedValue::Bytes(region.bytes(*at, usize::try_from(*len).ok()?)?.to_vec())
            }
            (ty, SentValue::Packed { at }) => {
                let (spec, packing) = ty.stored().zip(packing.as_deref())?;
                let packed = region.bytes(*at, packing.bytes())?;
                ReceivedValue::Tensor(SentTensor { spec, packing: Some(packing), data: packed })
            }
            (ty, SentValue::Tensor { at, shape }) => {
                let spec @ TensorSpec { name, dtype, row, .. } = spec_of(ty)?;
                let is_allowed = |(dim, n): (&Dim, &usize)| dim.fixed().is_none_or(|fixed| fixed == *n);
                let elements = shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim))?;
                let bytes = elements.checked_mul(dtype.size_bytes())?;
                let is_of = row.len() == shape.len() && row.iter().zip(shape).all(is_allowed);
                let data = region.bytes(*at, bytes).filter(|_| is_of)?;
                if bytes > SMALL && spec.fixed_row().is_some() {
                    return Some(ReceivedValue::Tensor(SentTensor { spec, packing: None, data }));
                }
                let mut copy = SmallVec::from_elem(0, bytes);
                data.copy_to(&mut copy);
                ReceivedValue::Copied { name, dtype: *dtype, shape, data: copy }
            }
            _ => return None,
        })
    }

    pub fn value(&self) -> Value<'_> {
        match self {
            ReceivedValue::Missing(name) => Value::Missing(name),
            ReceivedValue::Text(text) => Value::Text(text),
            ReceivedValue::Labels(labels) => Value::Labels(labels),
            ReceivedValue::Picture(picture) => Value::Picture(picture),
            ReceivedValue::Bytes(bytes) => Value::Bytes(bytes),
            ReceivedValue::Copied { name, dtype, shape, data } => {
                Value::Tensor(TensorView { name, dtype: *dtype, shape, data })
            }
            ReceivedValue::Tensor(tensor) => Value::Unwritten(tensor),
        }
    }
}

/// The tensor that lies in memory for a value of this type.
fn spec_of(ty: &ColumnType) -> Option<&TensorSpec> {
    static PLACEMENT: LazyLock<TensorSpec> = LazyLock::new(Placement::tensor);
    match ty {
        ColumnType::Placement => Some(&PLACEMENT),
        ty => ty.stored(),
    }
}

/// A tensor that is copied to where it shall lie, or made there of its smaller form in the region of a loader.
pub struct SentTensor<'a> {
    spec: &'a TensorSpec,
    packing: Option<&'a dyn Packing>,
    data: SharedBytes<'a>,
}

impl WriteTensor for SentTensor<'_> {
    fn spec(&self) -> &TensorSpec {
        self.spec
    }

    fn write(&self, row: &mut [u8]) -> Result<(), ItemError> {
        match self.packing {
            Some(packing) => packing.unpack(&self.data.to_vec(), row),
            None if self.data.len() == row.len() => {
                self.data.copy_to(row);
                Ok(())
            }
            None => {
                let (name, given, expected) = (&self.spec.name, self.data.len(), row.len());
                Err(ItemError::result(format!(
                    "`{name}` has {given} bytes, and the next stage takes {expected}"
                )))
            }
        }
    }
}

/// A picture that a loader has decoded. It is copied when it is shown or kept.
pub struct SentPicture<'a> {
    size: [u32; 2],
    channels: usize,
    bytes: SharedBytes<'a>,
}

impl Picture for SentPicture<'_> {
    fn with_pixels(
        &self,
        show: &mut dyn FnMut(Pixels<'_>) -> Result<(), ItemError>,
    ) -> Result<(), ItemError> {
        let ([width, height], channels) = (self.size, self.channels);
        show(Pixels { width, height, channels, bytes: &self.bytes.to_vec() })
    }

    fn copy_pixels(&self, copy: &mut CopyPixels<'_>) -> Result<(), ItemError> {
        copy(self.size, self.channels, &|place| self.bytes.copy_to(place))
    }

    fn size(&self) -> Result<[u32; 2], ItemError> {
        Ok(self.size)
    }
}

/// Of an item of which a process sends what the plan does not know.
pub fn out_of_order() -> ItemError {
    let error = "the loader gave something else than the plan says; this is a bug, or a loader that ran wild"
        .to_owned();
    ItemError { kind: FailureKind::Crash, error }
}

#[cfg(test)]
mod tests {
    use orchestra_core::SourceId;
    use orchestra_plan::Origin;

    use super::*;

    /// Each element is twice its byte.
    #[derive(Debug)]
    struct Doubled;

    impl Packing for Doubled {
        fn bytes(&self) -> usize {
            4
        }

        fn unpack(&self, packed: &[u8], row: &mut [u8]) -> Result<(), ItemError> {
            row.iter_mut().zip(packed).for_each(|(to, from)| *to = from * 2);
            Ok(())
        }
    }

    #[test]
    fn a_packed_value_is_read_within_the_region_and_nowhere_else() {
        let spec =
            TensorSpec { name: "t".into(), dtype: DType::U8, row: vec![Dim::Fixed(4)], batch: Dim::Dynamic };
        let column = Column { name: "t".into(), ty: ColumnType::Tensor(spec) };
        let region = LoaderRegion::new(4096).unwrap();
        let from = Origin::Source(SourceId(0));
        let row = |packing: Option<Arc<dyn Packing>>, at| {
            let of = CellType { read: ColumnRef { from, column: 0 }, column: column.clone(), packing };
            let sent = SentValue::Packed { at };
            let cell = ReceivedValue::new(&of, &sent, &region)?;
            let Value::Unwritten(tensor) = cell.value() else { panic!("a tensor to be written") };
            let mut row = [7; 4];
            tensor.write(&mut row).unwrap();
            Some(row)
        };
        let doubled = || Some(Arc::new(Doubled) as Arc<dyn Packing>);
        assert_eq!(row(doubled(), 4096), Some([0; 4]));
        assert_eq!(row(doubled(), 8188), Some([0; 4]));
        for outside in [0, 4092, 8189, 8192, u64::MAX - 1, u64::MAX] {
            assert_eq!(row(doubled(), outside), None, "{outside}");
        }
        // Sent where the plan has no smaller form.
        assert_eq!(row(None, 4096), None);
    }
}
