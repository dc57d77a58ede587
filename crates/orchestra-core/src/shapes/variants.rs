//! The maps of a `matrix`: one makes a part of a row for each of its variants, and those behind it do with a part what its variant says. A variant
//! is a combination of the matrix's values, known by its place among all of them.

use std::sync::Arc;

use bincode::{Decode, Encode};
use smallvec::SmallVec;

use super::{Emit, FanOut, KindSettings, Map, MapRun, Registry, RowWork};
use crate::data::{ItemError, TensorView, Value, WriteTensor};
use crate::left_out::LeftOut;
use crate::tensor::{DType, TensorSpec};

/// What loader processes know [`VariantParts`] by.
pub const MATRIX: &str = "matrix";
/// What they know [`VariantMap`] by.
pub const VARIANTS: &str = "matrix variants";

/// A value of a matrix, as a column of the parts that have it.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum MatrixValue {
    Text(String),
    Tensor {
        name: String,
        dtype: DType,
        shape: Vec<usize>,
        /// In native byte order.
        data: Vec<u8>,
    },
}

/// Makes a part for each variant: the variant's place, i64, and then its values.
#[derive(Debug, Encode, Decode)]
pub struct VariantParts(pub Vec<Vec<MatrixValue>>);

/// A map for each variant. Behind the columns that the maps read it reads the variant's place, in each of the matrices that it depends on.
#[derive(Debug)]
pub struct VariantMap {
    pub maps: Vec<Variant>,
    /// How many variants each of these matrices has.
    pub counts: Vec<usize>,
    /// Columns whose tensors differ in size, by their places, as large as the largest of them: smaller ones lie at the start of each axis.
    pub padded: Vec<Option<TensorSpec>>,
}

#[derive(Debug)]
pub struct Variant {
    /// `scale=0.5`
    pub label: String,
    pub map: Arc<dyn Map>,
    /// The places of what it reads among the columns that all of them read.
    pub reads: Vec<usize>,
}

impl RowWork for VariantParts {
    type Scratch = ();
    const FAN: FanOut = FanOut::Parts;

    fn apply(&self, (): &mut (), _: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        emit.parts(self.0.len())?;
        for (place, values) in (0_i64..).zip(&self.0) {
            let place = place.to_ne_bytes();
            let place =
                Value::Tensor(TensorView { name: "variant", dtype: DType::I64, shape: &[], data: &place });
            let row: SmallVec<[Value<'_>; 4]> =
                [place].into_iter().chain(values.iter().map(MatrixValue::value)).collect();
            emit.row(&row)?;
        }
        Ok(())
    }
}

impl MatrixValue {
    fn value(&self) -> Value<'_> {
        match self {
            MatrixValue::Text(text) => Value::Text(text),
            MatrixValue::Tensor { name, dtype, shape, data } => {
                Value::Tensor(TensorView { name, dtype: *dtype, shape, data })
            }
        }
    }
}

impl VariantMap {
    /// The same map in a loader process, of what [`Map::to_wire`] wrote down.
    pub fn from_wire(settings: &KindSettings, kinds: &dyn Registry) -> Option<Arc<dyn Map>> {
        type OfVariant = (String, KindSettings, Vec<usize>);
        let (maps, counts, padded): (Vec<OfVariant>, _, _) = settings.read()?;
        let variant = |(label, map, reads)| Some(Variant { label, map: kinds.map(&map)?, reads });
        let maps = maps.into_iter().map(variant).collect::<Option<_>>()?;
        Some(Arc::new(Self { maps, counts, padded }))
    }
}

impl Map for VariantMap {
    fn fan(&self) -> FanOut {
        self.maps.first().map_or(FanOut::One, |variant| variant.map.fan())
    }

    fn start(&self) -> Box<dyn MapRun> {
        let variant = |of: &Variant| (of.label.clone(), of.reads.clone(), of.map.start());
        Box::new(VariantRun {
            runs: self.maps.iter().map(variant).collect(),
            counts: self.counts.clone(),
            padded: self.padded.clone(),
        })
    }

    fn cost(&self) -> usize {
        self.maps.iter().map(|variant| variant.map.cost()).max().unwrap_or(0)
    }

    fn to_wire(&self) -> Option<KindSettings> {
        let variant = |of: &Variant| Some((of.label.clone(), of.map.to_wire()?, of.reads.clone()));
        let maps = self.maps.iter().map(variant).collect::<Option<Vec<_>>>()?;
        KindSettings::of(VARIANTS, &(maps, &self.counts, &self.padded))
    }
}

struct VariantRun {
    runs: Vec<(String, Vec<usize>, Box<dyn MapRun>)>,
    counts: Vec<usize>,
    padded: Vec<Option<TensorSpec>>,
}

impl MapRun for VariantRun {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        let bug = || ItemError::result("internal error: a row has no variant; this is a bug");
        let of_maps = inputs.len().checked_sub(self.counts.len()).ok_or_else(bug)?;
        let (inputs, places) = inputs.split_at(of_maps);
        let mut variant = 0;
        for (count, place) in self.counts.iter().zip(places) {
            let place = place.with_tensor(|view| {
                let place = <[u8; 8]>::try_from(view.data).map(i64::from_ne_bytes);
                place.ok().and_then(|place| usize::try_from(place).ok()).ok_or_else(bug)
            })?;
            variant = variant * count + place;
        }
        let (label, reads, run) = self.runs.get_mut(variant).ok_or_else(bug)?;
        let inputs = reads.iter().map(|at| inputs.get(*at).copied()).collect::<Option<SmallVec<[_; 4]>>>();
        let mut emit = PaddedEmit { emit, padded: &self.padded };
        run.apply(&inputs.ok_or_else(bug)?, &mut emit).map_err(|item_error| {
            match item_error.error.is_empty() {
                // It says that a stage behind this one has ended the row.
                true => item_error,
                false => ItemError { error: format!("[{label}] {}", item_error.error), ..item_error },
            }
        })
    }
}

struct PaddedEmit<'a> {
    emit: &'a mut dyn Emit,
    padded: &'a [Option<TensorSpec>],
}

impl Emit for PaddedEmit<'_> {
    fn parts(&mut self, n: usize) -> Result<(), ItemError> {
        self.emit.parts(n)
    }

    fn row(&mut self, row: &[Value<'_>]) -> Result<(), ItemError> {
        if self.padded.iter().all(Option::is_none) {
            return self.emit.row(row);
        }
        let specs = self.padded.iter().map(Option::as_ref).chain(std::iter::repeat(None));
        let padded: SmallVec<[Option<PaddedTensor<'_>>; 4]> = row
            .iter()
            .zip(specs)
            .map(|(value, spec)| Some(PaddedTensor { value: *value, spec: spec? }))
            .collect();
        let mut whole: SmallVec<[Value<'_>; 4]> = SmallVec::new();
        for (value, padded) in row.iter().zip(&padded) {
            whole.push(padded.as_ref().map_or(*value, |padded| Value::Unwritten(padded)));
        }
        self.emit.row(&whole)
    }

    fn left_out(&mut self, what: LeftOut, n: u64) {
        self.emit.left_out(what, n);
    }
}

/// A tensor at the start of each axis of a larger one, with zeros behind it.
struct PaddedTensor<'a> {
    value: Value<'a>,
    spec: &'a TensorSpec,
}

impl WriteTensor for PaddedTensor<'_> {
    fn spec(&self) -> &TensorSpec {
        self.spec
    }

    fn write(&self, row: &mut [u8]) -> Result<(), ItemError> {
        let whole = self.spec.fixed_row().unwrap_or_default();
        if let Value::Unwritten(tensor) = self.value
            && tensor.spec().fixed_row().as_ref() == Some(&whole)
        {
            return tensor.write(row);
        }
        self.value.with_tensor(|view| {
            let (size, shape) = (view.dtype.size_bytes(), view.shape);
            let fits = shape.len() == whole.len() && shape.iter().zip(&whole).all(|(n, most)| n <= most);
            let n_bytes = |shape: &[usize]| shape.iter().product::<usize>() * size;
            if !fits || n_bytes(shape) != view.data.len() || n_bytes(&whole) != row.len() {
                return Err(ItemError::result("internal error: a row is larger than planned; this is a bug"));
            }
            row.fill(0);
            let Some((line, outer)) = shape.split_last() else {
                row.copy_from_slice(view.data);
                return Ok(());
            };
            let line_bytes = line * size;
            for (n, line) in view.data.chunks_exact(line_bytes.max(1)).enumerate() {
                // The place of the line in the larger tensor, axis by axis from the last to the first.
                let (mut rest, mut at, mut step) = (n, 0, whole[outer.len()]);
                for axis in (0..outer.len()).rev() {
                    at += rest % outer[axis] * step;
                    rest /= outer[axis];
                    step *= whole[axis];
                }
                row[at * size..][..line_bytes].copy_from_slice(line);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::fixed_tensor;
    use crate::shapes::map_of;

    /// Gives its number, as a tensor of so many elements.
    #[derive(Debug, Encode, Decode)]
    struct Fill(u8, Vec<usize>);

    impl RowWork for Fill {
        type Scratch = ();

        fn apply(&self, (): &mut (), row: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
            if let [Value::Text("bad")] = row {
                return Err(ItemError::result("it is bad"));
            }
            let data: Vec<u8> = (0..self.1.iter().product()).map(|n: usize| self.0 + n as u8).collect();
            let view = TensorView { name: "x", dtype: DType::U8, shape: &self.1, data: &data };
            emit.row(&[Value::Tensor(view), Value::Text("as it is")])
        }
    }

    struct Kinds;

    impl Registry for Kinds {
        fn fetch(&self, _: &KindSettings) -> Option<Arc<dyn super::super::Fetch>> {
            None
        }

        fn map(&self, settings: &KindSettings) -> Option<Arc<dyn Map>> {
            match &*settings.kind {
                VARIANTS => VariantMap::from_wire(settings, self),
                kind => super::super::map_from::<Fill>(
                    if kind == "fill" { "fill" } else { return None },
                    settings,
                ),
            }
        }
    }

    #[derive(Default)]
    struct Rows(Vec<(Vec<u8>, usize)>, Option<usize>);

    impl Emit for Rows {
        fn parts(&mut self, n: usize) -> Result<(), ItemError> {
            self.1 = Some(n);
            Ok(())
        }

        fn row(&mut self, row: &[Value<'_>]) -> Result<(), ItemError> {
            row[0].with_tensor(|view| {
                self.0.push((view.data.to_vec(), row.len()));
                Ok(())
            })
        }
    }

    fn place(place: i64) -> Vec<u8> {
        place.to_ne_bytes().to_vec()
    }

    fn scalar(data: &[u8]) -> Value<'_> {
        Value::Tensor(TensorView { name: "variant", dtype: DType::I64, shape: &[], data })
    }

    fn variants(padded: Vec<Option<TensorSpec>>) -> Arc<dyn Map> {
        let variant = |n: u8| Variant {
            label: format!("n={n}"),
            map: map_of("fill", Fill(10 * n, vec![2, usize::from(n % 2) + 1]), None),
            reads: vec![usize::from(n % 2)],
        };
        Arc::new(VariantMap { maps: (0..6).map(variant).collect(), counts: vec![3, 2], padded })
    }

    #[test]
    fn a_row_becomes_a_part_for_each_variant_with_its_place_and_its_values() {
        let value = |n: u8| MatrixValue::Tensor {
            name: "n".to_owned(),
            dtype: DType::U8,
            shape: Vec::new(),
            data: vec![n],
        };
        let parts = VariantParts(vec![vec![value(7), MatrixValue::Text("a".to_owned())], vec![value(8)]]);
        let mut rows = Rows::default();
        map_of(MATRIX, parts, None).start().apply(&[], &mut rows).unwrap();
        assert_eq!((rows.1, rows.0), (Some(2), vec![(place(0), 3), (place(1), 2)]));
    }

    #[test]
    fn each_variant_has_its_own_map_and_reads_also_in_another_process() {
        let here = variants(vec![Some(fixed_tensor("x", DType::U8, &[3, 2])), None]);
        let there = Kinds.map(&here.to_wire().unwrap()).unwrap();
        for map in [here, there] {
            let (mut run, mut rows) = (map.start(), Rows::default());
            for (first, second) in [(0, 0), (1, 0), (2, 1)] {
                let places = [place(first), place(second)];
                let row = [Value::Text("good"), Value::Text("bad"), scalar(&places[0]), scalar(&places[1])];
                let ended = run.apply(&row, &mut rows);
                // An odd one reads the second column.
                assert_eq!(
                    ended.map_err(|e| e.error),
                    match second {
                        0 => Ok(()),
                        _ => Err("[n=5] it is bad".to_owned()),
                    }
                );
            }
            assert_eq!(rows.0, [(vec![0, 0, 1, 0, 0, 0], 2), (vec![20, 0, 21, 0, 0, 0], 2)]);
            let wrong = [Value::Text("good"), Value::Text("good"), scalar(&[0; 8]), scalar(&[255; 8])];
            assert!(run.apply(&wrong, &mut rows).is_err() && run.apply(&wrong[3..], &mut rows).is_err());
        }
    }

    #[test]
    fn a_tensor_lies_at_the_start_of_each_axis_of_a_larger_one() {
        let whole = fixed_tensor("x", DType::I16, &[2, 3, 4]);
        let data: Vec<u8> = (1_i16..=8).flat_map(i16::to_ne_bytes).collect();
        let view = TensorView { name: "x", dtype: DType::I16, shape: &[2, 2, 2], data: &data };
        let mut row = [9; 48];
        let padded = PaddedTensor { value: Value::Tensor(view), spec: &whole };
        padded.write(&mut row).unwrap();
        let numbers: Vec<i16> = row.as_chunks().0.iter().map(|bytes| i16::from_ne_bytes(*bytes)).collect();
        let first = [1, 2, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0];
        let second = [5, 6, 0, 0, 7, 8, 0, 0, 0, 0, 0, 0];
        assert_eq!(numbers, [first, second].concat());
        let large = TensorView { shape: &[2, 4, 1], ..view };
        assert!(PaddedTensor { value: Value::Tensor(large), spec: &whole }.write(&mut row).is_err());
        assert!(padded.write(&mut row[1..]).is_err());
    }
}
