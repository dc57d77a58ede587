//! Turns tensors into result records: nested lists, or classes with scores. Pure functions over bytes; writes no file.

use half::f16;
use orchestra_core::{DType, Failure};
use orchestra_plan::Scores;
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use crate::ticket::Ticket;

/// One item's tensor.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Its name in the model.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Shape without the batch dimension.
    pub shape: &'a [usize],
    /// Elements in native byte order, row-major.
    pub data: &'a [u8],
}

#[derive(Serialize)]
struct Line<'a, R> {
    item: &'a str,
    index: u64,
    source: &'a str,
    result: R,
}

/// Appends one line of a results file, with its newline: `{"item", "index", "source", "result"}`. On an error `out` is as before.
pub fn result_line<R: Serialize>(
    ticket: &Ticket,
    source: &str,
    result: &R,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    line(&Line { item: ticket.name(), index: ticket.id().index, source, result }, out)
}

/// One line of `failures.jsonl`, with its newline.
pub fn failure_line(ticket: &Ticket, source: &str, failure: &Failure) -> Vec<u8> {
    let mut out = Vec::new();
    #[derive(Serialize)]
    struct FailureLine<'a> {
        item: &'a str,
        index: u64,
        source: &'a str,
        stage: &'a str,
        kind: &'a str,
        error: &'a str,
        attempts: u32,
    }
    let failure = FailureLine {
        item: ticket.name(),
        index: ticket.id().index,
        source,
        stage: &failure.stage,
        kind: failure.kind.as_str(),
        error: &failure.error,
        attempts: failure.attempts,
    };
    line(&failure, &mut out).expect("strings and numbers always serialise");
    out
}

fn line<T: Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), String> {
    let before = out.len();
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        out.truncate(before);
        return Err(error.to_string());
    }
    out.push(b'\n');
    Ok(())
}

/// Serialises as `{"<tensor name>": {"dtype", "shape", "data": [nested lists]}}`. Floats that are no numbers become `null`.
pub struct Tensors<'a>(pub &'a [TensorView<'a>]);

impl Serialize for Tensors<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Body<'a> {
            dtype: DType,
            shape: &'a [usize],
            data: Nested<'a>,
        }
        serializer.collect_map(self.0.iter().map(|t| {
            let data = Nested { dtype: t.dtype, shape: t.shape, data: t.data };
            (t.name, Body { dtype: t.dtype, shape: t.shape, data })
        }))
    }
}

struct Nested<'a> {
    dtype: DType,
    shape: &'a [usize],
    data: &'a [u8],
}

impl Serialize for Nested<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some((&n, rest)) = self.shape.split_first() else {
            return element(self.dtype, self.data).serialize(serializer);
        };
        let step = rest.iter().product::<usize>() * self.dtype.size_bytes();
        let mut seq = serializer.serialize_seq(Some(n))?;
        for i in 0..n {
            let data = self.data.get(i * step..(i + 1) * step).unwrap_or_default();
            seq.serialize_element(&Nested { dtype: self.dtype, shape: rest, data })?;
        }
        seq.end()
    }
}

enum Element {
    Float(f32),
    Int(i64),
    Bool(bool),
}

impl Serialize for Element {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Element::Float(v) => serializer.serialize_f32(*v),
            Element::Int(v) => serializer.serialize_i64(*v),
            Element::Bool(v) => serializer.serialize_bool(*v),
        }
    }
}

/// One element. Missing bytes read as zeros; tensors are checked before they come here.
fn element(dtype: DType, data: &[u8]) -> Element {
    fn bytes<const N: usize>(data: &[u8]) -> [u8; N] {
        data.first_chunk::<N>().copied().unwrap_or([0; N])
    }
    match dtype {
        DType::F32 => Element::Float(f32::from_ne_bytes(bytes(data))),
        DType::F16 => Element::Float(f16::from_ne_bytes(bytes(data)).to_f32()),
        DType::I64 => Element::Int(i64::from_ne_bytes(bytes(data))),
        DType::I32 => Element::Int(i64::from(i32::from_ne_bytes(bytes(data)))),
        DType::U8 => Element::Int(i64::from(bytes::<1>(data)[0])),
        DType::Bool => Element::Bool(bytes::<1>(data)[0] != 0),
    }
}

/// Makes lines of classes out of scores: `"result": [{"label", "class", "score"}, ...]`, best first, equal scores in the order of their
/// class numbers. What all lines have in common is written once, in advance.
#[derive(Debug)]
pub struct ClassLines {
    scores: Scores,
    top_k: usize,
    /// By source: all between the index and the first class.
    sources: Vec<String>,
    /// By class: all of it before the score.
    classes: Vec<String>,
}

/// What few lines exceed.
const USUAL_LINE: usize = 256;

/// Classes without a label that are written in advance: as many as classifiers have, and less than half a megabyte.
const MOST_NUMBERED: usize = 4_096;

/// Memory that [`ClassLines`] keeps from item to item.
#[derive(Debug, Default)]
pub struct Scratch {
    values: Vec<f32>,
    /// The best so far, best first.
    best: Vec<Ranked>,
}

/// A class with its score, as one number: the better of two classes has the larger one. The score is in the upper half, in the order of
/// `f32::total_cmp`; the class is in the lower half, turned over, so that of equal scores the one with the smaller number is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ranked(u64);

impl Ranked {
    /// Worse than any class.
    const NONE: Ranked = Ranked(0);

    /// A score that is no number ranks with the worst. A row of so many classes that 32 bits cannot number them has 16 GiB.
    fn new(class: usize, score: f32) -> Self {
        let bits = if score.is_nan() { f32::NEG_INFINITY } else { score }.to_bits();
        // Numbers below zero are turned over, all others come after them: then integers compare as the floats do.
        let turned = (bits.cast_signed() >> 31).cast_unsigned() | 1 << 31;
        Self(u64::from(bits ^ turned) << 32 | u64::from(!(class as u32)))
    }

    fn class(self) -> usize {
        !(self.0 as u32) as usize
    }
}

impl ClassLines {
    /// For the `top_k` best of `n_classes` classes, if it is known how many there are. A class without a label is called by its number,
    /// from 0.
    #[must_use]
    pub fn new(
        scores: Scores,
        top_k: usize,
        n_classes: Option<usize>,
        labels: &[String],
        sources: &[&str],
    ) -> Self {
        let sources = sources.iter().map(|name| format!(r#","source":{},"result":["#, quoted(name)));
        let written = labels.len().max(n_classes.unwrap_or(0).min(MOST_NUMBERED));
        let classes = (0..written).map(|class| match labels.get(class) {
            Some(label) => before_score(label, class),
            None => before_score(&class.to_string(), class),
        });
        Self { scores, top_k, sources: sources.collect(), classes: classes.collect() }
    }

    /// How many classes a line has at most.
    #[must_use]
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// Appends the line of one item, with its newline. On an error `out` is as before.
    pub fn line(
        &self,
        ticket: &Ticket,
        tensor: &TensorView<'_>,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let before = out.len();
        let written = self.write(ticket, tensor, scratch, out);
        written.map_err(|error| {
            out.truncate(before);
            error.to_string()
        })
    }

    fn write(
        &self,
        ticket: &Ticket,
        tensor: &TensorView<'_>,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> Result<(), serde_json::Error> {
        let Scratch { values, best } = scratch;
        read_floats(tensor, values);
        match self.scores {
            Scores::Softmax => softmax(values),
            Scores::Sigmoid => values.iter_mut().for_each(|v| *v = 1.0 / (1.0 + (-*v).exp())),
            Scores::None => {}
        }
        best_of(values, self.top_k, best);
        out.reserve(USUAL_LINE);
        out.extend_from_slice(br#"{"item":"#);
        serde_json::to_writer(&mut *out, ticket.name())?;
        out.extend_from_slice(br#","index":"#);
        serde_json::to_writer(&mut *out, &ticket.id().index)?;
        let source = self.sources.get(ticket.id().source.index()).map_or(r#","result":["#, String::as_str);
        out.extend_from_slice(source.as_bytes());
        for (place, class) in best.iter().map(|ranked| ranked.class()).enumerate() {
            if place > 0 {
                out.push(b',');
            }
            match self.classes.get(class) {
                Some(text) => out.extend_from_slice(text.as_bytes()),
                None => out.extend_from_slice(before_score(&class.to_string(), class).as_bytes()),
            }
            // A score that is no number becomes `null`.
            serde_json::to_writer(&mut *out, &values[class])?;
            out.push(b'}');
        }
        out.extend_from_slice(b"]}\n");
        Ok(())
    }
}

fn before_score(label: &str, class: usize) -> String {
    format!(r#"{{"label":{},"class":{class},"score":"#, quoted(label))
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn read_floats(tensor: &TensorView<'_>, values: &mut Vec<f32>) {
    values.clear();
    let elements = tensor.data.chunks_exact(tensor.dtype.size_bytes());
    if tensor.dtype == DType::F32 {
        // By far the most common, and worth its own loop.
        values.extend(tensor.data.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)));
        return;
    }
    values.extend(elements.map(|bytes| match element(tensor.dtype, bytes) {
        Element::Float(v) => v,
        Element::Int(v) => v as f32,
        Element::Bool(v) => f32::from(u8::from(v)),
    }));
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
    // the values. In a long row most values are not; in a short one nobody can foretell which, and to sink in vain is quicker than to ask.
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
    use std::path::Path;

    use orchestra_core::{ItemId, SourceId};

    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_ne_bytes()).collect()
    }

    fn ticket() -> Ticket {
        Ticket::alone(ItemId { source: SourceId(0), index: 17 }, 0, "a \"b\"\n.png", Path::new(""))
    }

    #[test]
    fn a_tensor_becomes_nested_lists_of_its_shape() {
        let data = bytes(&[1.0, 2.5, f32::NAN, -4.0]);
        let t = TensorView { name: "y", dtype: DType::F32, shape: &[2, 1, 2], data: &data };
        let mut line = Vec::new();
        result_line(&ticket(), "scans", &Tensors(&[t]), &mut line).unwrap();
        let expected = concat!(
            r#"{"item":"a \"b\"\n.png","index":17,"source":"scans","#,
            r#""result":{"y":{"dtype":"f32","shape":[2,1,2],"data":[[[1.0,2.5]],[[null,-4.0]]]}}}"#,
            "\n"
        );
        assert_eq!(String::from_utf8(line).unwrap(), expected);
    }

    #[test]
    fn every_element_type_keeps_its_values() {
        let cases: [(DType, Vec<u8>, &str); 6] = [
            (DType::F32, 1.5f32.to_ne_bytes().to_vec(), "1.5"),
            (DType::F16, f16::from_f32(-0.25).to_ne_bytes().to_vec(), "-0.25"),
            (DType::I64, i64::MIN.to_ne_bytes().to_vec(), "-9223372036854775808"),
            (DType::I32, (-7i32).to_ne_bytes().to_vec(), "-7"),
            (DType::U8, vec![255], "255"),
            (DType::Bool, vec![1], "true"),
        ];
        for (dtype, data, text) in cases {
            let json = serde_json::to_string(&Nested { dtype, shape: &[], data: &data }).unwrap();
            assert_eq!(json, text, "{dtype}");
        }
    }

    fn classes(values: &[f32], scores: Scores, labels: &[&str], top_k: usize) -> serde_json::Value {
        let data = bytes(values);
        let t = TensorView { name: "y", dtype: DType::F32, shape: &[values.len()], data: &data };
        let labels: Vec<String> = labels.iter().map(|l| (*l).to_owned()).collect();
        let mut out = b"before".to_vec();
        let line = |n_classes, out: &mut Vec<u8>| {
            let lines = ClassLines::new(scores, top_k, n_classes, &labels, &["sc\"ans"]);
            lines.line(&ticket(), &t, &mut Scratch::default(), out).unwrap();
        };
        line(Some(values.len()), &mut out);
        let mut unknown = b"before".to_vec();
        line(None, &mut unknown);
        assert_eq!(out, unknown, "it makes no difference whether their number is known in advance");
        let text = String::from_utf8(out).unwrap();
        serde_json::from_str(text.strip_prefix("before").unwrap().strip_suffix('\n').unwrap()).unwrap()
    }

    #[test]
    fn a_line_of_classes_says_item_index_source_and_classes_best_first() {
        let line = classes(&[0.25, 0.5, f32::NAN], Scores::None, &["a\nb", "c\"d"], 9);
        let expected = serde_json::json!({
            "item": "a \"b\"\n.png", "index": 17, "source": "sc\"ans", "result": [
                { "label": "c\"d", "class": 1, "score": 0.5 },
                { "label": "a\nb", "class": 0, "score": 0.25 },
                { "label": "2", "class": 2, "score": null },
            ]
        });
        assert_eq!(line, expected);
        assert_eq!(classes(&[0.25], Scores::None, &[], 0)["result"], serde_json::json!([]));
    }

    #[test]
    fn softmax_scores_add_up_and_survive_large_logits() {
        let line = classes(&[1000.0, 1001.0, -1000.0], Scores::Softmax, &["a", "b"], 3);
        let result = line["result"].as_array().unwrap();
        assert_eq!(result.iter().map(|c| c["label"].as_str().unwrap()).collect::<Vec<_>>(), ["b", "a", "2"]);
        let scores: Vec<f64> = result.iter().map(|c| c["score"].as_f64().unwrap()).collect();
        assert!((scores.iter().sum::<f64>() - 1.0).abs() < 1e-6);
        assert!((scores[0] - 0.731_058_6).abs() < 1e-6);
    }

    #[test]
    fn ties_are_broken_by_class_number_and_no_number_comes_last() {
        let line = classes(&[f32::NAN, 0.5, 0.5], Scores::None, &[], 9);
        let order: Vec<u64> =
            line["result"].as_array().unwrap().iter().map(|c| c["class"].as_u64().unwrap()).collect();
        assert_eq!(order, [1, 2, 0]);
    }

    #[test]
    fn a_few_best_are_the_first_of_all_sorted() {
        // Few distinct values, so that ties are common.
        let values = [0.5, f32::NAN, -1.0, 7.25, 0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, -1e-40, -7.0];
        let value = |i: usize| values[i * i % 11 % values.len()];
        let rank = |v: f32| if v.is_nan() { f32::NEG_INFINITY } else { v };
        let best = |values: &[f32], n| {
            let mut best = Vec::new();
            best_of(values, n, &mut best);
            best.iter().map(|b| b.class()).collect::<Vec<_>>()
        };
        for len in 0..40 {
            let values: Vec<f32> = (0..len).map(value).collect();
            let mut all: Vec<usize> = (0..len).collect();
            all.sort_by(|a, b| rank(values[*b]).total_cmp(&rank(values[*a])));
            for n in (0..=FEW).chain([FEW + 1, FEW + 100]) {
                assert_eq!(best(&values, n), all[..n.min(len)], "{n} of {len}");
            }
        }
    }
}
