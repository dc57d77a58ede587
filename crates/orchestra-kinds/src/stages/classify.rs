//! `kind = "classify"`: the best classes of a tensor of scores, with their labels.

use bincode::{Decode, Encode};
use orchestra_core::data::{ColumnType, ItemError, Label, Schema, Value};
use orchestra_core::shapes::{Emit, RowWork};
use orchestra_core::{DType, Dim, Element, TensorSpec};
use orchestra_plan::{
    Choice as _, Connect, Reported, Runs, Settings, Span, Spanned, StageConnected, StageContext, TypedStage,
    choices, read_labels, settings,
};

use crate::elements::{Number, no_number, read_numbers, too_large, with_number};

settings! {
    #[derive(Debug)]
    pub struct Classify {
        /// how many classes are given, best first
        #[range(1, 1_000_000)]
        top_k: Spanned<u64> = 1,
        /// class names: a text file with one per line, in the order of the classes
        labels: Option<Spanned<String>> => "those of the model",
        /// how numbers of the tensor become scores
        scores: ClassScores = "softmax",
    }
}

choices! {
    #[derive(Encode, Decode)]
    pub enum ClassScores {
        /// of logits
        Softmax = "softmax",
        /// of independent logits
        Sigmoid = "sigmoid",
        /// they are scores already
        None = "none",
    }
}

impl TypedStage for Classify {
    const NAME: &'static str = "classify";
    const ABOUT: &'static str = "Gives the best classes of a tensor with one score per class: label, number and score of each, best first. Of equal ones \
         the first class counts. An item with a score that is no number fails.";
    type Work = Ranking;
}

impl Connect for Classify {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let what = "one score per class, which an infer stage gives";
        let output = stage.column(0, what, |c| c.ty.tensor().is_some())?;
        let input = &stage.inputs[0];
        let tensor = input.gives.0[output].ty.tensor().ok_or(Reported)?.clone();
        self.doubt_scores(stage, &tensor.name);
        let own = match &self.labels {
            Some(written) => Some(read_labels(written, stage.folder, stage.host, stage.diags)?),
            None => None,
        };
        let labels = own.or_else(|| input.labels.clone());
        let classes = classes(stage, input.span, &tensor)?;
        if let (Some(classes), Some(labels)) = (classes, &labels)
            && labels.value.len() != classes
        {
            let n = labels.value.len();
            let message = format!("there are {n} labels for {classes} classes of output `{}`", tensor.name);
            stage
                .error(labels.span, message)
                .help("a labels file has one line per class, in the order of the classes");
        }
        let top_k = self.top_k.value as usize;
        if let Some(classes) = classes
            && top_k > classes
        {
            stage.error(self.top_k.span, format!("`top_k` is {top_k}, but there are {classes} classes"));
        }
        let labels = labels.map_or_else(Vec::new, |l| l.value);
        let said = match self.scores {
            ClassScores::None => "scores as they are",
            scores => scores.name(),
        };
        let named = match labels.len() {
            0 => "class numbers".to_owned(),
            1 => "1 label".to_owned(),
            n => format!("{n} labels"),
        };
        let mut settings = self.json();
        settings["labels"] = labels.clone().into();
        // Each best class prints a number and a name.
        let cost = classes.map(|n| n.saturating_add(top_k.min(n).saturating_mul(16)));
        Ok(StageConnected {
            gives: Schema::of("classes", ColumnType::Labels),
            reads: vec![(0, output)],
            settings,
            details: vec![format!("best {top_k}"), said.to_owned()],
            about: format!("best {top_k}, {named}"),
            runs: Runs::map::<Self>(Ranking::new(self.scores, top_k, classes, labels), cost),
        })
    }
}

/// Whether an operator of ONNX makes probabilities.
pub fn makes_probabilities(operator: &str) -> bool {
    ["Softmax", "Sigmoid", "Normalizer", "TreeEnsembleClassifier", "SVMClassifier"].contains(&operator)
}

impl Classify {
    /// Warns where probabilities would be taken for logits: all of them would become nearly alike.
    fn doubt_scores(&self, stage: &mut StageContext<'_>, output: &str) {
        let input = &stage.inputs[0];
        let operator = input.made_by.get(output).filter(|operator| makes_probabilities(operator));
        if let Some(operator) = operator.filter(|_| self.scores != ClassScores::None) {
            let (name, word) = (stage.name, self.scores.name());
            let what = format!(
                "stage `{name}` takes `{output}` for logits (`scores = \"{word}\"`), and `{operator}` of the model has made probabilities of them"
            );
            stage
                .diags
                .warning(input.span, what)
                .help(format!("write `scores = \"none\"` in stage `{name}`"));
        }
    }
}

/// How many classes the tensor scores, where that is known.
fn classes(stage: &mut StageContext<'_>, span: Span, tensor: &TensorSpec) -> Result<Option<usize>, Reported> {
    let mut wide = tensor.row.iter().filter(|d| **d != Dim::Fixed(1));
    // A row of ones, or of nothing, is a single score.
    let classes = wide.next().copied().unwrap_or(Dim::Fixed(1));
    if tensor.dtype.is_float() && wide.next().is_none() {
        return Ok(classes.fixed());
    }
    let name = stage.name;
    stage
        .error(span, format!("stage `{name}` cannot classify output `{}`", tensor.name))
        .label(format!("it is {tensor}"))
        .help("classify takes one score per class: f32[batch, classes] or f16[batch, classes]")
        .fail()
}

/// Classes without a label whose number is kept as text: as many as classifiers have.
const MOST_NUMBERED: usize = 4_096;

/// How classes become the best ones.
#[derive(Debug, Encode, Decode)]
pub struct Ranking {
    scores: ClassScores,
    top_k: usize,
    labels: Vec<String>,
}

impl Ranking {
    /// A class without a label is called by its number, from 0.
    fn new(scores: ClassScores, top_k: usize, n_classes: Option<usize>, mut labels: Vec<String>) -> Self {
        let named = labels.len().max(n_classes.unwrap_or(0).min(MOST_NUMBERED));
        labels.extend((labels.len()..named).map(|class| class.to_string()));
        Self { scores, top_k, labels }
    }
}

/// The scores of all classes, and the best so far, best first.
#[derive(Default)]
pub struct Ranks(Vec<f32>, Vec<Ranked>);

impl RowWork for Ranking {
    type Scratch = Ranks;
    const IN_LOADER: bool = false;

    fn apply(
        &self,
        Ranks(values, best): &mut Ranks,
        row: &[Value<'_>],
        emit: &mut dyn Emit,
    ) -> Result<(), ItemError> {
        row[0].with_tensor(|tensor| {
            // Classes are ranked by what the model gives: scores that saturate are equal, and the numbers that they come of are not.
            if matches!(tensor.dtype, DType::F64 | DType::I64 | DType::I32) {
                let numbers = tensor.data.chunks_exact(tensor.dtype.size_bytes());
                let wide: Vec<f64> = numbers.map(|v| Element::read(tensor.dtype, v).to_f64()).collect();
                can_be_ranked(tensor.name, wide.iter().copied(), self.scores)?;
                with_number!(tensor.dtype, read => {
                    best_of_wide(tensor.data.as_chunks().0, read, self.top_k, best)
                });
                return scores_of_wide(tensor.name, &wide, self.scores, values);
            }
            read_numbers(tensor, values)?;
            can_be_ranked(tensor.name, values.iter().map(|v| f64::from(*v)), self.scores)?;
            best_of(values, self.top_k, best);
            match self.scores {
                ClassScores::Softmax => softmax(values),
                ClassScores::Sigmoid => values.iter_mut().for_each(|v| *v = 1.0 / (1.0 + (-*v).exp())),
                ClassScores::None => {}
            }
            Ok(())
        })?;
        let classes = best.iter().map(|ranked| ranked.class());
        // Few classes, the usual case, need no memory.
        let mut few = [Label { label: "", class: 0, score: 0.0 }; FEW];
        if best.len() <= FEW && classes.clone().all(|class| class < self.labels.len()) {
            for (place, class) in few.iter_mut().zip(classes) {
                *place = Label { label: &self.labels[class], class: class as u32, score: values[class] };
            }
            return emit.row(&[Value::Labels(&few[..best.len()])]);
        }
        let numbers: Vec<String> = classes.clone().map(|class| class.to_string()).collect();
        let labels: Vec<Label<'_>> = classes
            .zip(&numbers)
            .map(|(class, number)| Label {
                label: self.labels.get(class).unwrap_or(number),
                class: class as u32,
                score: values[class],
            })
            .collect();
        emit.row(&[Value::Labels(&labels)])
    }
}

/// A class with its score, as one number: the better of two classes has the larger one. The score is in the upper half, in the order of
/// numbers; the class is in the lower half, turned over, so that of equal scores the one with the smaller number is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ranked(u64);

impl Ranked {
    /// Worse than any class.
    const NONE: Ranked = Ranked(0);

    /// Of a score that is a number. A row of so many classes that 32 bits cannot number them has 16 GiB.
    fn new(class: usize, score: f32) -> Self {
        let bits = (score + 0.0).to_bits(); // Zeros have one sign: they are equal.
        // Numbers below zero are turned over, all others come after them: then integers compare as the floats do.
        let turned = (bits.cast_signed() >> 31).cast_unsigned() | 1 << 31;
        Self(u64::from(bits ^ turned) << 32 | u64::from(!(class as u32)))
    }

    fn class(self) -> usize {
        !(self.0 as u32) as usize
    }
}

/// Refuses scores of which none says which class is best: NaN, and for `softmax` an infinity that all others vanish beside.
fn can_be_ranked(
    name: &str,
    values: impl Iterator<Item = f64> + Clone,
    scores: ClassScores,
) -> Result<(), ItemError> {
    if let Some(place) = values.clone().position(f64::is_nan) {
        return Err(no_number(name, place));
    }
    let largest = values.fold(None, |largest: Option<f64>, v| Some(largest.map_or(v, |most| most.max(v))));
    if scores == ClassScores::Softmax && largest.is_some_and(f64::is_infinite) {
        let what = match largest {
            Some(f64::INFINITY) => "holds an infinity",
            _ => "holds nothing but minus infinity",
        };
        return Err(ItemError::result(format!("`{name}` {what}, of which softmax makes no score")));
    }
    Ok(())
}

/// As `best_of`, of numbers that differ where they are equal as `f32`.
fn best_of_wide<E, T: Number>(elements: &[E], read: impl Fn(&E) -> T, n: usize, best: &mut Vec<Ranked>) {
    let mut classes: Vec<usize> = (0..elements.len()).collect();
    classes.sort_by(|a, b| {
        read(&elements[*b]).partial_cmp(&read(&elements[*a])).expect("what is NaN is refused before")
    });
    best.clear();
    best.extend(classes.into_iter().take(n).map(|class| Ranked::new(class, 0.0)));
}

/// The scores of logits, as `f32`.
fn scores_of_wide(
    name: &str,
    logits: &[f64],
    scores: ClassScores,
    values: &mut Vec<f32>,
) -> Result<(), ItemError> {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|v| (v - most).exp()).sum();
    values.clear();
    values.extend(logits.iter().map(|v| match scores {
        ClassScores::Softmax => ((v - most).exp() / sum) as f32,
        ClassScores::Sigmoid => (1.0 / (1.0 + (-v).exp())) as f32,
        ClassScores::None => *v as f32,
    }));
    let is_too_large = |(v, score): (&f64, &f32)| v.is_finite() && score.is_infinite();
    match logits.iter().zip(&*values).position(is_too_large) {
        Some(place) => Err(too_large(name, logits[place], place)),
        None => Ok(()),
    }
}

/// The classes with the `n` largest values, largest first, equal ones in the order of their numbers.
fn best_of(values: &[f32], n: usize, best: &mut Vec<Ranked>) {
    best.clear();
    let ranked = values.iter().enumerate().map(|(class, value)| Ranked::new(class, *value));
    if n > FEW {
        best.extend(ranked);
        best.sort_unstable_by(|a, b| b.cmp(a));
        best.truncate(n);
        return;
    }
    // Few of many, the usual case: one pass. What is better than the worst of the best sinks to its place without a branch that depends on
    // the values. In a long row most values are not; in a short one it cannot be foretold which, and to sink in vain is quicker than to ask.
    best.resize(n.min(values.len()), Ranked::NONE);
    let is_short = values.len() <= SHORT;
    for mut sinking in ranked {
        if is_short || best.last().is_some_and(|worst| sinking > *worst) {
            for place in best.iter_mut() {
                (*place, sinking) = (sinking.max(*place), sinking.min(*place));
            }
        }
    }
}

/// Up to so many best classes are found without sorting all.
const FEW: usize = 16;

/// Rows of up to so many classes are short.
const SHORT: usize = 32;

/// exp(x - max) / sum, the form that cannot overflow.
fn softmax(values: &mut [f32]) {
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for v in values.iter_mut() {
        *v = (*v - max).exp();
        sum += *v;
    }
    for v in values.iter_mut() {
        *v /= sum;
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::compare_numbers;
    use orchestra_core::data::TensorView;

    use super::super::shared::testing;
    use super::*;

    type Class = (String, u32, f32);

    fn apply(ranking: &Ranking, tensor: TensorView<'_>) -> Result<Vec<Class>, ItemError> {
        let mut classes = Vec::new();
        testing::apply(ranking, &[Value::Tensor(tensor)], |row| {
            let [Value::Labels(labels)] = row else { panic!("not labels: {row:?}") };
            classes.extend(labels.iter().map(|l| (l.label.to_owned(), l.class, l.score)));
        })?;
        Ok(classes)
    }

    fn classes(values: &[f32], scores: ClassScores, labels: &[&str], top_k: usize) -> Vec<Class> {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let tensor = TensorView { name: "y", dtype: DType::F32, shape: &[values.len()], data: &data };
        let run = |n_classes| {
            let labels = labels.iter().map(|l| (*l).to_owned()).collect();
            apply(&Ranking::new(scores, top_k, n_classes, labels), tensor).unwrap()
        };
        let known = run(Some(values.len()));
        let bits =
            |all: &[Class]| all.iter().map(|(l, c, s)| (l.clone(), *c, s.to_bits())).collect::<Vec<_>>();
        assert_eq!(
            bits(&known),
            bits(&run(None)),
            "it makes no difference whether their number is known in advance"
        );
        known
    }

    #[test]
    fn classes_come_best_first_and_are_called_by_number_without_a_label() {
        let best = classes(&[0.25, 0.5, 0.125], ClassScores::None, &["a", "c"], 9);
        let names: Vec<_> = best.iter().map(|(label, class, _)| (label.as_str(), *class)).collect();
        assert_eq!(names, [("c", 1), ("a", 0), ("2", 2)]);
        assert!(classes(&[0.25], ClassScores::None, &[], 0).is_empty());
    }

    #[test]
    fn softmax_scores_add_up_and_survive_large_logits() {
        let best = classes(&[1000.0, 1001.0, -1000.0], ClassScores::Softmax, &["a", "b"], 3);
        assert_eq!(best.iter().map(|c| c.0.as_str()).collect::<Vec<_>>(), ["b", "a", "2"]);
        assert!((best.iter().map(|c| f64::from(c.2)).sum::<f64>() - 1.0).abs() < 1e-6);
        assert!((best[0].2 - 0.731_058_6).abs() < 1e-6);
    }

    #[test]
    fn ties_are_broken_by_class_number() {
        let best = classes(&[0.25, 0.5, 0.5], ClassScores::None, &[], 9);
        assert_eq!(best.iter().map(|c| c.1).collect::<Vec<_>>(), [1, 2, 0]);
        for zeros in [[0.0, -0.0], [-0.0, 0.0]] {
            for scores in [ClassScores::Softmax, ClassScores::Sigmoid, ClassScores::None] {
                let best = classes(&zeros, scores, &[], 2);
                assert_eq!(best.iter().map(|c| c.1).collect::<Vec<_>>(), [0, 1], "{scores:?}");
                let wide: Vec<u8> = zeros.iter().flat_map(|v| f64::from(*v).to_ne_bytes()).collect();
                let tensor = TensorView { name: "y", dtype: DType::F64, shape: &[2], data: &wide };
                let wide = apply(&Ranking::new(scores, 2, None, Vec::new()), tensor).unwrap();
                assert_eq!(wide, best);
            }
        }
    }

    #[test]
    fn logits_that_differ_are_no_ties_where_their_scores_are_equal() {
        for scores in [ClassScores::Softmax, ClassScores::Sigmoid, ClassScores::None] {
            let best = classes(&[40.0, 50.0, -200.0, -190.0], scores, &[], 4);
            assert_eq!(best.iter().map(|c| c.1).collect::<Vec<_>>(), [1, 0, 3, 2], "{scores:?}");
        }
        let integers = [1 << 24, 1 << 24 | 1, 1 << 53, 1 << 53 | 1];
        let data: Vec<u8> = integers.iter().flat_map(|v: &i64| v.to_ne_bytes()).collect();
        let tensor = TensorView { name: "y", dtype: DType::I64, shape: &[4], data: &data };
        let best = apply(&Ranking::new(ClassScores::Softmax, 4, None, Vec::new()), tensor).unwrap();
        assert_eq!(best.iter().map(|class| class.1).collect::<Vec<_>>(), [3, 2, 1, 0]);
    }

    #[test]
    fn scores_that_differ_as_f64_alone_are_no_ties() {
        let logits = [1.0, 1.0 + f64::EPSILON, 1e300, -1e300, 1e300 * (1.0 + f64::EPSILON)];
        let data: Vec<u8> = logits.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let tensor = TensorView { name: "y", dtype: DType::F64, shape: &[5], data: &data };
        let best = apply(&Ranking::new(ClassScores::Softmax, 5, None, Vec::new()), tensor).unwrap();
        assert_eq!(best.iter().map(|class| class.1).collect::<Vec<_>>(), [4, 2, 1, 0, 3]);
        assert_eq!(best[0].2, 1.0);
        let refused = apply(&Ranking::new(ClassScores::None, 5, None, Vec::new()), tensor).unwrap_err();
        assert!(refused.error.contains("at place 2, which is too large for f32"), "{}", refused.error);
    }

    #[test]
    fn scores_that_are_no_numbers_fail_the_item_and_are_no_class() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let refused = |values: &[f32], scores| {
            let data: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
            let wide: Vec<u8> = values.iter().flat_map(|v| f64::from(*v).to_ne_bytes()).collect();
            let said = [(DType::F32, &data), (DType::F64, &wide)].map(|(dtype, data)| {
                let tensor = TensorView { name: "y", dtype, shape: &[values.len()], data };
                let applied = apply(&Ranking::new(scores, 1, None, Vec::new()), tensor);
                applied.err().map(|item_error| item_error.error)
            });
            assert_eq!(said[0], said[1], "{values:?}");
            said[0].clone()
        };
        for scores in [ClassScores::Softmax, ClassScores::Sigmoid, ClassScores::None] {
            for (values, place) in
                [(&[nan, 5.0, 1.0][..], 0), (&[0.0, nan], 1), (&[nan], 0), (&[inf, nan], 1)]
            {
                let said = refused(values, scores).unwrap();
                assert_eq!(said, format!("`y` holds no number at place {place}: it is NaN"));
            }
            let is_softmax = scores == ClassScores::Softmax;
            for values in [&[0.0, inf, 0.0][..], &[-inf, -inf], &[inf, inf]] {
                assert_eq!(refused(values, scores).is_some(), is_softmax, "{values:?}");
            }
            // A class that is ruled out.
            assert_eq!(refused(&[-inf, 1.0], scores), None);
        }
    }

    #[test]
    fn a_few_best_are_the_first_of_all_sorted() {
        // Few distinct values, so that ties are common.
        let values = [0.5, 1e9, -1.0, 7.25, 0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, -1e-40, -7.0];
        let value = |i: usize| values[i * i % 11 % values.len()];
        let best = |values: &[f32], n| {
            let mut best = Vec::new();
            best_of(values, n, &mut best);
            best.iter().map(|b| b.class()).collect::<Vec<_>>()
        };
        for len in 0..40 {
            let values: Vec<f32> = (0..len).map(value).collect();
            let mut all: Vec<usize> = (0..len).collect();
            all.sort_by(|a, b| compare_numbers(values[*b].into(), values[*a].into()));
            for n in (0..=FEW).chain([FEW + 1, FEW + 100]) {
                assert_eq!(best(&values, n), all[..n.min(len)], "{n} of {len}");
            }
        }
    }
}
