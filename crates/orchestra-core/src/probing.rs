//! What a few runs of a model say of its outputs: along which axis the items of a batch lie, if along any, and whether each has alone what it has among
//! others. It compares; it runs nothing.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::element::Element;
use crate::model_output::{BatchAxis, Mixing, ProbedAlone, ProbedOutput};
use crate::tensor::DType;

/// Changes with what is tried and how it is judged: what was found before is not believed then.
pub const EDITION: u32 = 7;

/// How the words of a probe begin that could not load its model.
pub const DOES_NOT_LOAD: &str = "ONNX Runtime does not load it";

/// The items of a batch in whose place another one is tried, one after the other. One would not do: a model that turns a batch round leaves its
/// middle where it was, and one that adds up what came before leaves the first alone.
pub fn replaced(batch: usize) -> Vec<usize> {
    let mut places = match batch {
        0 | 1 => Vec::new(),
        n => vec![0, n / 2, n - 1],
    };
    places.dedup();
    places
}

/// How far apart numbers of one item may lie and count as the same: this part of them, and of what is usual at their place in an item, and a
/// little. Kernels round otherwise in batches of another size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    pub part: f64,
    pub of_usual: f64,
    pub least: f64,
}

impl Tolerance {
    pub const ON_CPU: Tolerance = Tolerance { part: 2e-4, of_usual: 1e-4, least: 1e-5 };
    /// GPUs take another algorithm for another size, and may compute in fewer bits than the numbers have.
    pub const ON_GPU: Tolerance = Tolerance { part: 1e-2, of_usual: 1e-2, least: 1e-3 };

    /// The numbers of f16 lie a thousandth apart.
    fn of(self, dtype: DType) -> Tolerance {
        if dtype == DType::F16 { Self::ON_GPU } else { self }
    }
}

/// Of the elements of an item that are not 0, no larger part may differ beyond that: what was rounded otherwise may have tipped a few choices.
const FEW: f64 = 0.001;

/// Or a single one of so many, by no more than this part of what is usual among them: a step of a model that is quantized.
const MANY: usize = 16;
const STEP: f64 = 0.25;

/// In how many items, at least, and in which part of them, the same element must differ to be no such chance.
const AGAIN: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedOutput {
    pub batch: usize,
    pub shape: Vec<usize>,
    pub elements: Elements,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Elements {
    /// Numbers in native byte order.
    Numbers(DType, Vec<u8>),
    Texts(Vec<String>),
}

#[derive(Debug, Clone)]
pub struct ProbeRuns {
    /// Items and shapes of all of them: batches of several sizes, of several values each.
    pub all: Vec<(usize, Vec<usize>)>,
    /// The last of them,
    pub before: ObservedOutput,
    /// the same with another item in each of the places [`replaced`],
    pub replaced: Vec<(usize, ObservedOutput)>,
    /// `before`, run again,
    pub again: ObservedOutput,
    /// a batch of its first item alone, which has as many,
    pub same: ObservedOutput,
    /// `before` with fewer items, where the model takes them,
    pub fewer: Vec<ObservedOutput>,
    /// and with its first item alone, twice, where the model takes that.
    pub alone: Option<[ObservedOutput; 2]>,
}

impl ProbeRuns {
    pub fn judge(&self, name: &str) -> ProbedOutput {
        let axes = (0..self.before.shape.len()).filter_map(|axis| self.follows(axis));
        let axes: Vec<_> =
            axes.map(|(axis, per_item)| (axis, per_item, self.mixing(axis, per_item))).collect();
        let is_apart = |mixing: &Mixing| *mixing < Mixing::Placed;
        let fitting: Vec<_> = axes.iter().filter(|(_, _, mixing)| is_apart(mixing)).collect();
        let (batch, mixing) = match (&fitting[..], &axes[..]) {
            (&[&(axis, per_item, mixing)], _) | (_, &[(axis, per_item, mixing)]) => {
                (BatchAxis::Axis { axis, per_item }, mixing)
            }
            // With one item in a batch all axes of length 1 are alike.
            (_, &[(axis, per_item, mixing), ..]) if self.all.iter().all(|(batch, _)| *batch == 1) => {
                (BatchAxis::Axis { axis, per_item }, mixing)
            }
            // Of two axes either would do by these runs, or none does.
            (_, &[(axis, per_item, _), ..]) => (BatchAxis::Axis { axis, per_item }, Mixing::Mixed),
            (_, []) => (BatchAxis::None, Mixing::Apart),
        };
        let shapes = self.all.iter().map(|(_, shape)| shape.clone()).collect();
        let (row, alone) = (self.row(batch), self.alone());
        ProbedOutput { name: name.to_owned(), batch, shapes, row, mixing, alone }
    }

    fn alone(&self) -> Option<ProbedAlone> {
        let [once, again] = self.alone.as_ref()?;
        let of_one = || self.all.iter().filter(|(batch, _)| *batch == 1);
        let dim = |axis: usize| {
            let length = once.shape[axis];
            of_one().all(|(_, shape)| shape.get(axis) == Some(&length)).then_some(length)
        };
        Some(ProbedAlone {
            shape: (0..once.shape.len()).map(dim).collect(),
            is_steady: once.shape == again.shape && !once.differs_from(again),
        })
    }

    /// The axis, if its length is that of the batch, times the same number, in all runs. Where all batches have one size, that number is 1.
    fn follows(&self, axis: usize) -> Option<(usize, usize)> {
        let of = |batch: usize, shape: &[usize]| {
            let length = *shape.get(axis)?;
            (length.is_multiple_of(batch) && shape.len() == self.before.shape.len()).then_some(length / batch)
        };
        let per_item = of(self.before.batch, &self.before.shape).filter(|n| *n > 0)?;
        let has_sizes = self.all.iter().any(|(batch, _)| *batch != self.before.batch);
        let is_same = self.all.iter().all(|(batch, shape)| of(*batch, shape) == Some(per_item));
        // Several entries of an item along another axis than the first are no row as the model gives it.
        (is_same && (per_item == 1 || (has_sizes && axis == 0))).then_some((axis, per_item))
    }

    /// What the values of one item change, at worst.
    fn mixing(&self, axis: usize, per_item: usize) -> Mixing {
        if self.again.shape != self.before.shape || self.again.differs_from(&self.before) {
            return Mixing::Unsteady;
        }
        let of_each = self.replaced.iter().map(|(item, after)| self.mixing_by(*item, after, axis, per_item));
        match of_each.max().unwrap_or(Mixing::Apart) {
            Mixing::Apart if self.tells_the_place(axis, per_item) => Mixing::Placed,
            mixing => mixing,
        }
    }

    /// Whether an item has other values at another place of the batch, or in a smaller one.
    fn tells_the_place(&self, axis: usize, per_item: usize) -> bool {
        let (same, before) = (&self.same, &self.before);
        let differs = |(one, of_one), (other, of_other)| {
            let (one, other): (&ObservedOutput, &ObservedOutput) = (one, other);
            one.differs(of_one, other, of_other, axis, per_item)
        };
        (1..before.batch).any(|item| differs((same, item), (same, 0)))
            || differs((same, 0), (before, 0))
            || self
                .fewer
                .iter()
                .any(|fewer| (0..fewer.batch).any(|item| differs((fewer, item), (before, item))))
    }

    /// What is changed by `item`, for another of which the output is `after`.
    fn mixing_by(&self, item: usize, after: &ObservedOutput, axis: usize, per_item: usize) -> Mixing {
        let before = &self.before;
        if before.shape != after.shape {
            return Mixing::Apart; // Its shape differs by the values: nothing can be told.
        }
        let stride: usize = before.shape[axis + 1..].iter().product();
        let is_of_another = |place: usize| place / stride % before.shape[axis] / per_item != item;
        let mut others = (0..before.shape.iter().product()).filter(|place| is_of_another(*place));
        match others
            .any(|place| !before.elements.is_near(place, &after.elements, place, || 0.0, Tolerance::ON_CPU))
        {
            true => Mixing::Mixed,
            false => Mixing::Apart,
        }
    }

    /// The dimensions that are the same in all runs.
    fn row(&self, batch: BatchAxis) -> Vec<Option<usize>> {
        let dim = |axis: usize| {
            let length = self.before.shape[axis];
            self.all.iter().all(|(_, shape)| shape.get(axis) == Some(&length)).then_some(length)
        };
        let all = 0..self.before.shape.len();
        match batch {
            BatchAxis::None => all.map(dim).collect(),
            BatchAxis::Axis { axis, per_item } => {
                let each = (per_item > 1).then_some(Some(per_item));
                each.into_iter().chain(all.filter(|other| *other != axis).map(dim)).collect()
            }
        }
    }
}

impl ObservedOutput {
    /// Whether numbers of an output of the same shape differ, beyond rounding.
    fn differs_from(&self, other: &Self) -> bool {
        (0..self.shape.iter().product())
            .any(|place| !self.elements.is_near(place, &other.elements, place, || 0.0, Tolerance::ON_CPU))
    }

    /// Whether an item has other values than one of `other`, beyond rounding. What has another shape for each values tells nothing.
    fn differs(&self, item: usize, other: &Self, of_other: usize, axis: usize, per_item: usize) -> bool {
        let is_like = |shape: &[usize], batch| shape.get(axis) == Some(&(batch * per_item));
        let rest = |shape: &[usize]| (shape[..axis].to_vec(), shape[axis + 1..].to_vec());
        if !is_like(&self.shape, self.batch)
            || !is_like(&other.shape, other.batch)
            || rest(&self.shape) != rest(&other.shape)
        {
            return false;
        }
        let outer: usize = self.shape[..axis].iter().product();
        let block = per_item * self.shape[axis + 1..].iter().product::<usize>();
        let place = |of: &Self, item: usize, n: usize| (n / block * of.batch + item) * block + n % block;
        let differ = (0..outer * block).filter(|n| {
            let (at, of_other) = (place(self, item, *n), place(other, of_other, *n));
            let usual = || usual((0..self.batch).map(|item| self.elements.size(place(self, item, *n))));
            !self.elements.is_near(at, &other.elements, of_other, usual, Tolerance::ON_CPU)
        });
        differ.count() as f64 > FEW * (outer * block) as f64
    }
}

/// What an output holds for an item, in its batch and alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub in_batch: ObservedOutput,
    pub alone: ObservedOutput,
}

impl Pair {
    /// The first of these pairs that is none: what an item has in its batch is not what it has alone, in these words.
    pub fn that_differs(pairs: &[Pair], near: Tolerance) -> Option<(usize, String)> {
        // Elements that differ in several items, by their place in an item.
        let mut again = BTreeMap::<usize, usize>::new();
        for (at, Pair { in_batch, alone }) in pairs.iter().enumerate() {
            if in_batch.shape != alone.shape {
                let words =
                    format!("the shape {:?} in its batch, and {:?} alone", in_batch.shape, alone.shape);
                return Some((at, words));
            }
            let elements = in_batch.shape.iter().product();
            let usual = |n: usize| usual(pairs.iter().map(|pair| pair.in_batch.elements.size(n)));
            let is_near = |n: usize| in_batch.elements.is_near(n, &alone.elements, n, || usual(n), near);
            let differ: Vec<usize> = (0..elements).filter(|n| !is_near(*n)).collect();
            if differ.is_empty() {
                continue;
            }
            differ.iter().for_each(|n| *again.entry(*n).or_default() += 1);
            // No rounding makes a number of what is none.
            let is_nan =
                |n: &usize| [in_batch, alone].iter().any(|of| of.elements.float(*n).is_some_and(f64::is_nan));
            let is_again = |n: &&usize| again[n] >= AGAIN && AGAIN * again[n] >= pairs.len();
            let first = differ.iter().find(is_again).or(differ.first());
            let is_set = |n: &usize| in_batch.elements.is_set(*n) || alone.elements.is_set(*n);
            let set: Vec<f64> = (0..elements).filter(is_set).map(|n| in_batch.elements.size(n)).collect();
            let n_set = set.len();
            let step = STEP * self::usual(set.into_iter());
            let is_step = || {
                let [one, other] = [in_batch, alone].map(|of| of.elements.number(differ[0]));
                n_set >= MANY && one.zip(other).is_some_and(|(one, other)| (one - other).abs() <= step)
            };
            let is_few = (differ.len() as f64 <= FEW * n_set as f64 || differ.len() == 1 && is_step())
                && !differ.iter().any(|n| is_again(&n) || is_nan(n));
            if let Some(n) = first.filter(|_| !is_few) {
                let [in_batch, alone] = [in_batch, alone].map(|of| of.elements.show(*n));
                return Some((at, format!("{in_batch} as element {n} in its batch, and {alone} alone")));
            }
        }
        None
    }
}

impl Elements {
    /// How many bytes they hold.
    pub fn bytes(&self) -> usize {
        match self {
            Elements::Numbers(_, data) => data.len(),
            Elements::Texts(texts) => texts.iter().map(String::len).sum(),
        }
    }

    /// Whether these two are the same but for rounding, where a number of this size is usual.
    fn is_near(
        &self,
        place: usize,
        other: &Elements,
        of_other: usize,
        usual: impl Fn() -> f64,
        near: Tolerance,
    ) -> bool {
        let (Elements::Numbers(dtype, one), Elements::Numbers(_, theirs)) = (self, other) else {
            return self.text(place) == other.text(of_other);
        };
        if bytes(*dtype, one, place) == bytes(*dtype, theirs, of_other) {
            return true;
        }
        match self.float(place).zip(other.float(of_other)) {
            Some((a, b)) if a.is_finite() && b.is_finite() => {
                let Tolerance { part, of_usual, least } = near.of(*dtype);
                let apart = (a - b).abs();
                let allowed = part * a.abs().max(b.abs()) + least;
                apart <= allowed || apart <= allowed + of_usual * usual()
            }
            Some((a, b)) => a.is_nan() && b.is_nan(),
            None => false,
        }
    }

    fn float(&self, place: usize) -> Option<f64> {
        let Elements::Numbers(dtype, data) = self else { return None };
        float(*dtype, bytes(*dtype, data, place)?)
    }

    fn number(&self, place: usize) -> Option<f64> {
        let Elements::Numbers(dtype, data) = self else { return None };
        Some(Element::read(*dtype, bytes(*dtype, data, place)?).to_f64())
    }

    /// A number without its sign; 0 where there is none that is finite.
    fn size(&self, place: usize) -> f64 {
        self.number(place).map(f64::abs).filter(|number| number.is_finite()).unwrap_or_default()
    }

    /// Whether it is not 0, or a text.
    fn is_set(&self, place: usize) -> bool {
        let Elements::Numbers(dtype, data) = self else { return true };
        bytes(*dtype, data, place).is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0))
    }

    fn show(&self, place: usize) -> String {
        match self {
            Elements::Texts(texts) => format!("{:?}", texts.get(place).map_or("", String::as_str)),
            Elements::Numbers(dtype, data) => bytes(*dtype, data, place)
                .map(|bytes| match Element::read(*dtype, bytes) {
                    Element::Float(v) => v.to_string(),
                    Element::Double(v) => v.to_string(),
                    Element::Int(v) => v.to_string(),
                    Element::Bool(v) => v.to_string(),
                })
                .unwrap_or_default(),
        }
    }

    fn text(&self, place: usize) -> Option<&str> {
        match self {
            Elements::Numbers(..) => None,
            Elements::Texts(texts) => texts.get(place).map(String::as_str),
        }
    }
}

fn bytes(dtype: DType, data: &[u8], place: usize) -> Option<&[u8]> {
    let size = dtype.size_bytes();
    data.get(place * size..(place + 1) * size)
}

/// The middle one of these sizes, so that a few which are far larger, as those of what is masked, do not count.
fn usual(sizes: impl Iterator<Item = f64>) -> f64 {
    let mut sizes: Vec<f64> = sizes.collect();
    sizes.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    sizes.get(sizes.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

fn float(dtype: DType, bytes: &[u8]) -> Option<f64> {
    dtype.is_float().then(|| Element::read(dtype, bytes).to_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a model gives for a batch of these items.
    fn runs(batches: &[usize], model: impl Fn(&[f32]) -> (Vec<usize>, Vec<f32>)) -> ProbedOutput {
        let run = |items: &[f32]| {
            let (shape, values) = model(items);
            let bytes = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
            ObservedOutput { batch: items.len(), shape, elements: Elements::Numbers(DType::F32, bytes) }
        };
        let noise = [0.3, 0.9, 0.7, 0.2];
        let mut all = Vec::new();
        for n in batches {
            all.extend([run(&vec![0.0; *n]), run(&noise[..*n])].map(|run| (run.batch, run.shape)));
        }
        let most = *batches.last().unwrap();
        let with_other = |place: usize| {
            let mut items = noise[..most].to_vec();
            items[place] = 0.1;
            (place, run(&items))
        };
        let before = run(&noise[..most]);
        let replaced = replaced(most).into_iter().map(with_other).collect();
        let again = run(&noise[..most]);
        let same = run(&vec![noise[0]; most]);
        let fewer = batches[..batches.len() - 1].iter().map(|n| run(&noise[..*n])).collect();
        let alone = batches.contains(&1).then(|| [(); 2].map(|()| run(&noise[..1])));
        ProbeRuns { all, before, replaced, again, same, fewer, alone }.judge("y")
    }

    fn axis_of(batches: &[usize], model: impl Fn(&[f32]) -> (Vec<usize>, Vec<f32>)) -> BatchAxis {
        let found = runs(batches, model);
        if found.mixing >= Mixing::Placed { BatchAxis::None } else { found.batch }
    }

    const SIZES: &[usize] = &[1, 2, 3];

    #[test]
    fn the_axis_that_follows_the_batch_is_found_wherever_it_is() {
        assert_eq!(axis_of(SIZES, |x| (vec![x.len()], x.to_vec())), BatchAxis::FIRST);
        assert_eq!(axis_of(SIZES, |x| (vec![1, x.len()], x.to_vec())), BatchAxis::along(1));
        let layers = |x: &[f32]| (vec![2, x.len(), 1], [x, x].concat());
        assert_eq!(axis_of(SIZES, layers), BatchAxis::along(1));
        assert_eq!(runs(SIZES, layers).row, [Some(2), Some(1)]);
        let each = |x: &[f32]| (vec![2 * x.len()], x.iter().flat_map(|v| [*v, -v]).collect());
        assert_eq!(axis_of(SIZES, each), BatchAxis::Axis { axis: 0, per_item: 2 });
        assert_eq!(runs(SIZES, each).row, [Some(2)]);
        // Of one size alone.
        assert_eq!(axis_of(&[4], |x| (vec![x.len(), 4], x.repeat(4))), BatchAxis::along(1));
        assert_eq!(axis_of(&[4], |x| (vec![8, 1], x.repeat(2))), BatchAxis::None);
    }

    #[test]
    fn an_item_alone_has_a_shape_and_a_steadiness_of_its_own() {
        let squeezed = |x: &[f32]| (if x.len() == 1 { vec![4] } else { vec![x.len(), 4] }, x.repeat(4));
        let found = runs(SIZES, squeezed);
        assert_eq!((found.batch, found.alone.unwrap().shape), (BatchAxis::None, vec![Some(4)]));
        let hits = |x: &[f32]| x.iter().copied().filter(|v| *v > 0.1).collect::<Vec<_>>();
        let found = runs(SIZES, |x| (vec![1, hits(x).len()], hits(x)));
        assert_eq!(found.alone.unwrap().shape, [Some(1), None]);
        // Rows of several dimensions of length 1, of a model that takes no more than one item.
        let found = runs(&[1], |x| (vec![1, 2, 1], x.repeat(2)));
        assert_eq!((found.batch, found.mixing), (BatchAxis::FIRST, Mixing::Apart));
        let count = std::cell::Cell::new(0.0);
        let random = |x: &[f32]| {
            count.set(count.get() + 1.0);
            (vec![x.len()], x.iter().map(|v| v + if x.len() == 1 { count.get() } else { 0.0 }).collect())
        };
        assert!(!runs(SIZES, random).alone.unwrap().is_steady);
        assert_eq!(runs(&[4], random).alone, None);
    }

    #[test]
    fn what_has_no_row_for_each_item_has_none() {
        assert_eq!(axis_of(SIZES, |x| (vec![], vec![x.iter().sum()])), BatchAxis::None);
        assert_eq!(axis_of(SIZES, |_| (vec![2], vec![0.0; 2])), BatchAxis::None);
        let hits = |x: &[f32]| x.iter().copied().filter(|v| *v > 0.8).collect::<Vec<_>>();
        assert_eq!(axis_of(SIZES, |x| (vec![hits(x).len(), 1], hits(x))), BatchAxis::None);
        let all = |x: &[f32]| x.iter().copied().filter(|v| *v > 0.0).collect::<Vec<_>>();
        assert_eq!(axis_of(SIZES, |x| (vec![all(x).len()], all(x))), BatchAxis::None, "zeros tell");
        // Every two items have a number.
        let pairs = |x: &[f32]| x.iter().flat_map(|a| x.iter().map(move |b| a * b)).collect();
        assert_eq!(axis_of(SIZES, |x| (vec![x.len(), x.len()], pairs(x))), BatchAxis::None);
        // The halves of items do not lie beside each other.
        assert_eq!(axis_of(SIZES, |x| (vec![2 * x.len()], x.repeat(2))), BatchAxis::None);
    }

    #[test]
    fn items_that_change_each_other_have_no_rows() {
        let mean = |x: &[f32]| x.iter().sum::<f32>() / x.len() as f32;
        let centred = |x: &[f32]| (vec![x.len()], x.iter().map(|v| v - mean(x)).collect());
        assert_eq!(axis_of(SIZES, centred), BatchAxis::None);
        let summed = |x: &[f32]| {
            let sums = x.iter().scan(0.0, |sum, v| {
                *sum += v;
                Some(*sum)
            });
            (vec![x.len()], sums.collect())
        };
        assert_eq!(axis_of(SIZES, summed), BatchAxis::None);
        let turned = |x: &[f32]| (vec![x.len()], x.iter().rev().copied().collect());
        assert_eq!(axis_of(SIZES, turned), BatchAxis::None);
        assert_eq!(axis_of(&[4], turned), BatchAxis::None);
        let next =
            |x: &[f32]| (vec![x.len()], (0..x.len()).map(|i| x[i] + x.get(i + 1).unwrap_or(&0.0)).collect());
        assert_eq!(axis_of(SIZES, next), BatchAxis::None);
        let largest_first = |x: &[f32]| {
            let mut sorted = x.to_vec();
            sorted.sort_by(|a, b| b.partial_cmp(a).unwrap());
            (vec![x.len()], sorted)
        };
        assert_eq!(axis_of(SIZES, largest_first), BatchAxis::None);
        // As models do that quantize a whole batch at once.
        let rounded = |x: &[f32]| (vec![x.len()], x.iter().map(|v| v + mean(x) / 100.0).collect());
        assert_eq!(axis_of(SIZES, rounded), BatchAxis::None);
        let found = runs(SIZES, centred);
        assert_eq!((found.batch, found.mixing), (BatchAxis::FIRST, Mixing::Mixed));
    }

    #[test]
    fn what_tells_the_place_or_the_number_of_items_belongs_to_none() {
        let numbered = |x: &[f32]| {
            (vec![x.len(), 2], x.iter().zip(0_u8..).flat_map(|(v, at)| [640.0 * v, at.into()]).collect())
        };
        assert_eq!(runs(SIZES, numbered).mixing, Mixing::Placed);
        assert_eq!(runs(&[4], numbered).mixing, Mixing::Placed);
        let shared = |x: &[f32]| (vec![x.len()], x.iter().map(|v| v / x.len() as f32).collect());
        assert_eq!(runs(SIZES, shared).mixing, Mixing::Placed);
        let last =
            |x: &[f32]| (vec![1, x.len()], x.iter().zip(1_u8..).map(|(v, n)| v * f32::from(n)).collect());
        assert_eq!(runs(SIZES, last).mixing, Mixing::Placed);
        // Kernels for other sizes round otherwise.
        let rounded = |x: &[f32]| (vec![x.len()], x.iter().map(|v| v + 1e-7 * x.len() as f32).collect());
        assert_eq!(runs(SIZES, rounded).mixing, Mixing::Apart);
    }

    #[test]
    fn what_is_another_at_every_run_is_judged_by_its_shape() {
        let count = std::cell::Cell::new(0.0);
        let random = |x: &[f32]| {
            count.set(count.get() + 1.0);
            (vec![x.len()], x.iter().map(|v| v + count.get()).collect())
        };
        assert_eq!(axis_of(SIZES, random), BatchAxis::FIRST);
        assert_eq!(runs(SIZES, random).mixing, Mixing::Unsteady);
    }

    /// What of items is told from what they are alone, if `model` gives this for a batch of them.
    fn compared(items: &[f32], model: impl Fn(&[f32]) -> (Vec<usize>, Vec<f32>)) -> Option<usize> {
        let observed = |values: &[f32]| {
            let bytes = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
            ObservedOutput {
                batch: 1,
                shape: vec![values.len()],
                elements: Elements::Numbers(DType::F32, bytes),
            }
        };
        let (shape, batch) = model(items);
        let row = batch.len() / shape[0];
        let pairs = items.iter().zip(batch.chunks(row)).map(|(item, in_batch)| Pair {
            in_batch: observed(in_batch),
            alone: observed(&model(&[*item]).1),
        });
        Pair::that_differs(&pairs.collect::<Vec<_>>(), Tolerance::ON_CPU).map(|(at, _)| at)
    }

    #[test]
    fn an_item_that_is_another_one_alone_is_found_and_rounding_is_not() {
        let items = [3.0, 1.0, 2.0, 5.0, 4.0];
        let row = |v: f32, n: usize| (0_u16..).take(n).map(move |k| v * f32::from(k + 1));
        let as_they_are =
            |x: &[f32]| (vec![x.len()], x.iter().flat_map(|v| row(*v, 2000)).collect::<Vec<_>>());
        assert_eq!(compared(&items, as_they_are), None);
        // As long as the longest.
        let padded = |x: &[f32]| {
            let longest = x.iter().copied().fold(0.0, f32::max) as usize;
            (vec![x.len()], x.iter().flat_map(|v| row(*v, longest)).collect())
        };
        assert_eq!(compared(&items, padded), Some(0));
        let scaled =
            |x: &[f32]| (vec![x.len()], x.iter().map(|v| v * (1.0 + 5e-4 * x.len() as f32)).collect());
        assert_eq!(compared(&items, scaled), Some(0));
        let rounded =
            |x: &[f32]| (vec![x.len()], x.iter().map(|v| v * (1.0 + 2e-6 * x.len() as f32)).collect());
        assert_eq!(compared(&items, rounded), None);
        let swapped = |x: &[f32]| {
            let mut swapped = x.to_vec();
            if x.len() > 2 {
                swapped.swap(1, 2);
            }
            (vec![x.len()], swapped)
        };
        assert_eq!(compared(&items, swapped), Some(1));
        // One of 2,000 numbers tells the place, in all items; or it tipped over in one of them.
        let told = |x: &[f32], of: &[usize]| {
            let mut values = as_they_are(x).1;
            for at in of.iter().filter(|at| **at < x.len()) {
                values[2000 * at + 7] += 9.0;
            }
            (vec![x.len()], values)
        };
        assert_eq!(compared(&items, |x| told(x, &[1, 2, 3, 4])), Some(3));
        assert_eq!(compared(&items, |x| told(x, &[2])), None);
        // Nearly all are 0; or one is so large that nothing beside it would count.
        let hidden = |x: &[f32], first: f32| {
            let most = x.iter().copied().fold(0.0, f32::max);
            let rows = x.iter().flat_map(|v| [first, v / most].into_iter().chain([0.0; 2000]));
            (vec![x.len()], rows.collect::<Vec<_>>())
        };
        for first in [0.0, f32::MIN] {
            assert_eq!(compared(&items, |x| hidden(x, first)), Some(0), "{first}");
        }
        // A step of a quantized model is one of many; in three items it is none.
        let stepped = |x: &[f32], of: usize| {
            let mut values: Vec<f32> = x.iter().flat_map(|v| row(*v, 20)).collect();
            if x.len() > 1 {
                (0..of).for_each(|at| values[20 * at + 3] += 0.5);
            }
            (vec![x.len()], values)
        };
        assert_eq!(compared(&items, |x| stepped(x, 1)), None);
        assert_eq!(compared(&items, |x| stepped(x, 3)), Some(2));
    }
}
