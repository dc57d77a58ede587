//! What a loader process made of an item, as the rows of a source and of maps.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::vec::IntoIter;

use orchestra_core::data::{
    Column, ColumnType, Label, Picture, Pixels, Refusal, Schema, TensorView, Value, WriteTensor,
};
use orchestra_core::shapes::{Emit, Map, MapRun, Packing};
use orchestra_core::{DType, FailureKind, ImageSpec, Placement, TensorSpec};
use orchestra_worker::loader::LoaderRegion;
use orchestra_worker::loader::events::{Event, SentValue};
use smallvec::SmallVec;

use super::process::LoadedItem;

/// The events of the item in hand, shared by the source and the maps of a chain: they are taken in their order.
#[derive(Clone, Default)]
pub struct ItemEvents(Arc<Mutex<Option<Item>>>);

struct Item {
    events: IntoIter<Event>,
    region: Arc<LoaderRegion>,
}

impl ItemEvents {
    pub fn set(&self, loaded: LoadedItem) {
        *self.lock() = Some(Item { events: loaded.events.into_iter(), region: loaded.region });
    }

    /// Its region can be used again.
    pub fn clear(&self) {
        *self.lock() = None;
    }

    fn next(&self) -> Option<(Event, Arc<LoaderRegion>)> {
        let mut item = self.lock();
        let item = item.as_mut()?;
        Some((item.events.next()?, Arc::clone(&item.region)))
    }

    /// Events that have not been taken.
    fn n_left(&self) -> u64 {
        self.lock().as_ref().map_or(0, |item| item.events.len() as u64)
    }

    /// The bytes that were read of the item, or why there is nothing.
    pub fn read(&self) -> Result<u64, Refusal> {
        match self.next() {
            Some((Event::Read(read), _)) => read.map_err(Refusal::from),
            _ => Err(out_of_order()),
        }
    }

    pub fn with_row(&self, gives: &SentColumns, show: &mut dyn FnMut(&[Value<'_>])) -> Result<(), Refusal> {
        match self.next() {
            Some((Event::Row(sent), region)) => gives.with_row(sent, &region, |row| {
                show(row);
                Ok(())
            }),
            _ => Err(out_of_order()),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Item>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The columns of a source or a map, and which of them are sent.
pub struct SentColumns {
    columns: Vec<Column>,
    /// The place of each column among those that are sent.
    sent: Vec<Option<usize>>,
    /// The smaller form of each column that has one.
    packings: Vec<Option<Arc<dyn Packing>>>,
}

impl SentColumns {
    /// `map` has the rows made of those of another; a source has none.
    pub fn new(gives: &Schema, sends: &[usize], map: Option<&dyn Map>) -> Self {
        let columns = 0..gives.0.len();
        let place = |column| sends.iter().position(|sent| *sent == column);
        let packings = columns.clone().map(|column| map?.packing(column)).collect();
        Self { sent: columns.map(place).collect(), columns: gives.0.clone(), packings }
    }

    fn with_row(
        &self,
        sent: Vec<SentValue>,
        region: &LoaderRegion,
        show: impl FnOnce(&[Value<'_>]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut sent: SmallVec<[Option<SentValue>; 2]> = sent.into_iter().map(Some).collect();
        let cells: SmallVec<[Cell<'_>; 2]> = self
            .columns
            .iter()
            .zip(self.packings.iter().zip(&self.sent))
            .map(|(column, (packing, place))| {
                let sent = place.and_then(|at| sent.get_mut(at)?.take());
                Cell::new(column, packing.as_deref(), sent, region)
            })
            .collect();
        // Others say why when they are read.
        for cell in &cells {
            if let Cell::Refused(RefusedValue { column, refusal: Some(why) }) = cell
                && matches!(
                    column.ty.required(),
                    ColumnType::Bytes(_) | ColumnType::Text | ColumnType::Labels
                )
            {
                return Err(why.clone());
            }
        }
        let labels: SmallVec<[Vec<Label<'_>>; 2]> = cells.iter().map(Cell::labels).collect();
        let row: SmallVec<[Value<'_>; 2]> =
            cells.iter().zip(&labels).map(|(cell, labels)| cell.value(labels)).collect();
        show(&row)
    }
}

/// The run of a map that a loader process has run.
pub struct Replay {
    pub events: ItemEvents,
    pub gives: SentColumns,
}

impl MapRun for Replay {
    fn apply(&mut self, _: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        loop {
            match self.events.next() {
                // Each of them has a row, or the map was refused: a number beyond that was made up.
                Some((Event::Parts(n), _)) if n <= self.events.n_left() => {
                    emit.parts(usize::try_from(n).unwrap_or(usize::MAX))?;
                }
                Some((Event::Row(sent), region)) => {
                    self.gives.with_row(sent, &region, |row| emit.row(row))?
                }
                Some((Event::Applied(applied), _)) => return applied.map_err(Refusal::from),
                _ => return Err(out_of_order()),
            }
        }
    }
}

/// A value as it was sent. Nothing of it is believed before it is looked at.
enum Cell<'a> {
    Tensor { name: &'a str, dtype: DType, shape: Vec<usize>, data: &'a [u8] },
    Picture(SentPicture<'a>),
    Labels(Vec<(String, u32, f32)>),
    Text(String),
    Bytes(&'a [u8]),
    Packed(PackedTensor<'a>),
    Missing(&'a str),
    Refused(RefusedValue<'a>),
}

impl<'a> Cell<'a> {
    fn new(
        column: &'a Column,
        packing: Option<&'a dyn Packing>,
        sent: Option<SentValue>,
        region: &'a LoaderRegion,
    ) -> Self {
        let refused = |refusal| Cell::Refused(RefusedValue { column, refusal: Some(refusal) });
        let (ty, may_be_missing) = (column.ty.required(), matches!(column.ty, ColumnType::Optional(_)));
        let cell = match (ty, sent) {
            (_, None) => return Cell::Refused(RefusedValue { column, refusal: None }),
            (_, Some(SentValue::Refused(why))) => return refused(why.into()),
            (ColumnType::Picture, Some(SentValue::Picture { at, width, height, channels })) => {
                SentPicture::new(at, width, height, channels, region).map(Cell::Picture)
            }
            (_, Some(SentValue::Missing)) => may_be_missing.then_some(Cell::Missing(&column.name)),
            (ColumnType::Labels, Some(SentValue::Labels(labels))) => Some(Cell::Labels(labels)),
            (ColumnType::Text, Some(SentValue::Text(text))) => Some(Cell::Text(text)),
            (ColumnType::Bytes(_), Some(SentValue::Bytes { at, len })) => {
                usize::try_from(len).ok().and_then(|len| region.bytes(at, len)).map(Cell::Bytes)
            }
            (ty, Some(SentValue::Packed { at })) => ty.stored().zip(packing).and_then(|(spec, packing)| {
                let packed = region.bytes(at, packing.bytes())?;
                Some(Cell::Packed(PackedTensor { spec, packing, packed }))
            }),
            (ty, Some(SentValue::Tensor { at, len, shape })) => spec_of(ty).and_then(|spec| {
                let len = usize::try_from(len).ok()?;
                let elements = shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim))?;
                let data = region.bytes(at, len)?;
                (elements.checked_mul(spec.dtype.size_bytes())? == len && is_of(spec, &shape))
                    .then_some(Cell::Tensor { name: &spec.name, dtype: spec.dtype, shape, data })
            }),
            _ => None,
        };
        cell.unwrap_or_else(|| refused(out_of_order()))
    }

    fn labels(&self) -> Vec<Label<'_>> {
        let Cell::Labels(labels) = self else { return Vec::new() };
        labels.iter().map(|(label, class, score)| Label { label, class: *class, score: *score }).collect()
    }

    fn value<'b>(&'b self, labels: &'b [Label<'b>]) -> Value<'b> {
        match self {
            Cell::Tensor { name, dtype, shape, data } => {
                Value::Tensor(TensorView { name, dtype: *dtype, shape, data })
            }
            Cell::Picture(picture) => Value::Picture(picture),
            Cell::Labels(_) => Value::Labels(labels),
            Cell::Text(text) => Value::Text(text),
            Cell::Bytes(bytes) => Value::Bytes(bytes),
            Cell::Packed(tensor) => Value::Unwritten(tensor),
            Cell::Missing(name) => Value::Missing(name),
            Cell::Refused(value) if value.column.ty == ColumnType::Picture => Value::Picture(value),
            Cell::Refused(value) => Value::Unwritten(value),
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

/// Whether a shape is one that the plan allows.
fn is_of(spec: &TensorSpec, shape: &[usize]) -> bool {
    spec.row.len() == shape.len()
        && spec.row.iter().zip(shape).all(|(dim, n)| dim.fixed().is_none_or(|fixed| fixed == *n))
}

/// Pixels in the region of a loader.
struct SentPicture<'a> {
    width: u32,
    height: u32,
    channels: usize,
    bytes: &'a [u8],
}

impl<'a> SentPicture<'a> {
    fn new(at: u64, width: u32, height: u32, channels: u8, region: &'a LoaderRegion) -> Option<Self> {
        let channels = usize::from(channels);
        let len = (width as usize).checked_mul(height as usize)?.checked_mul(channels)?;
        let is_picture = width > 0 && height > 0 && matches!(channels, 1 | 3);
        is_picture.then_some(Self { width, height, channels, bytes: region.bytes(at, len)? })
    }
}

impl Picture for SentPicture<'_> {
    fn decode(&self, _: Option<&ImageSpec>) -> Result<(), Refusal> {
        Ok(())
    }

    fn write_row(&self, _: &ImageSpec, _: &mut [u8]) -> Result<(), Refusal> {
        Err(Refusal::result("a picture that a loader has decoded is read as pixels; this is a bug"))
    }

    fn with_pixels(&self, show: &mut dyn FnMut(Pixels<'_>) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let Self { width, height, channels, bytes } = *self;
        show(Pixels { width, height, channels, bytes })
    }

    fn size(&self) -> Result<[u32; 2], Refusal> {
        Ok([self.width, self.height])
    }
}

/// A tensor that is made where it shall lie, of its smaller form in the region of a loader.
struct PackedTensor<'a> {
    spec: &'a TensorSpec,
    packing: &'a dyn Packing,
    packed: &'a [u8],
}

impl WriteTensor for PackedTensor<'_> {
    fn spec(&self) -> &TensorSpec {
        self.spec
    }

    fn write(&self, row: &mut [u8]) -> Result<(), Refusal> {
        self.packing.unpack(self.packed, row)
    }
}

/// A value that could not be made: what reads it fails with the reason.
struct RefusedValue<'a> {
    column: &'a Column,
    /// `None`: nothing here reads it, so it was not sent.
    refusal: Option<Refusal>,
}

impl RefusedValue<'_> {
    fn refusal(&self) -> Refusal {
        let not_sent = || Refusal::result("internal error: a column was not sent; this is a bug");
        self.refusal.clone().unwrap_or_else(not_sent)
    }
}

impl WriteTensor for RefusedValue<'_> {
    fn spec(&self) -> &TensorSpec {
        const NOTHING: &TensorSpec = &TensorSpec {
            name: String::new(),
            dtype: DType::U8,
            row: Vec::new(),
            batch: orchestra_core::Dim::Dynamic,
        };
        self.column.ty.stored().unwrap_or(NOTHING)
    }

    fn write(&self, _: &mut [u8]) -> Result<(), Refusal> {
        Err(self.refusal())
    }
}

impl Picture for RefusedValue<'_> {
    fn decode(&self, _: Option<&ImageSpec>) -> Result<(), Refusal> {
        Err(self.refusal())
    }

    fn write_row(&self, _: &ImageSpec, _: &mut [u8]) -> Result<(), Refusal> {
        Err(self.refusal())
    }

    fn with_pixels(&self, _: &mut dyn FnMut(Pixels<'_>) -> Result<(), Refusal>) -> Result<(), Refusal> {
        Err(self.refusal())
    }

    fn size(&self) -> Result<[u32; 2], Refusal> {
        Err(self.refusal())
    }
}

fn out_of_order() -> Refusal {
    let error = "the loader gave something else than the plan says; this is a bug, or a loader that ran wild"
        .to_owned();
    Refusal { kind: FailureKind::Crash, error }
}

#[cfg(test)]
mod tests {
    use orchestra_core::Dim;

    use super::*;

    /// Each element is twice its byte.
    #[derive(Debug)]
    struct Doubled;

    impl Packing for Doubled {
        fn bytes(&self) -> usize {
            4
        }

        fn unpack(&self, packed: &[u8], row: &mut [u8]) -> Result<(), Refusal> {
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
        let row = |packing: Option<&dyn Packing>, at| {
            let mut row = [7; 4];
            let cell = Cell::new(&column, packing, Some(SentValue::Packed { at }), &region);
            let Value::Unwritten(tensor) = cell.value(&[]) else { panic!("a tensor to be written") };
            tensor.write(&mut row).map(|()| row)
        };
        assert_eq!(row(Some(&Doubled), 4096), Ok([0; 4]));
        assert_eq!(row(Some(&Doubled), 8188), Ok([0; 4]));
        for outside in [0, 4092, 8189, 8192, u64::MAX - 1, u64::MAX] {
            assert_eq!(row(Some(&Doubled), outside).unwrap_err().kind, FailureKind::Crash, "{outside}");
        }
        // Sent where the plan has no smaller form.
        assert_eq!(row(None, 4096).unwrap_err().kind, FailureKind::Crash);
    }
}
