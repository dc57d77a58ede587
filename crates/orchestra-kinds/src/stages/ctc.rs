//! `kind = "ctc"`: the text that a recognition model reads, decoded greedily.

use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::data::{Column, ColumnType, Refusal, Schema, TensorView, Value, fixed_tensor};
use orchestra_core::shapes::{Emit, KindSettings, Map, MapRun};
use orchestra_core::{DType, Dim, Element};
use orchestra_plan::tree::Value as Toml;
use orchestra_plan::{
    At, Connect, Draft, Fields, Key, Limits, Runs, StageConnected, StageContext, StageKind, Words, key,
    read_text,
};

use super::shared::largest::largest;
use crate::elements::{Number as _, too_large, with_number};

pub struct Ctc;

/// Where the exporter of PP-OCR models for RapidOCR writes the characters, one per line.
const METADATA: &str = "character";

const KEYS: [Key; 4] = [
    key(
        "charset",
        "text",
        "that of the model",
        "what the classes stand for, in their order and without the blank: a text file with one character per line; or the entry `character` of the \
         metadata of the model, as PP-OCR models exported for RapidOCR have it",
    ),
    key("blank", "integer", "0", "the class that stands for no character").from_to(0, 10_000_000),
    key(
        "space",
        "boolean or `\"auto\"`",
        "\"auto\"",
        "whether a space follows the characters as one more class; or `true` or `false`",
    )
    .one_of(&SPACE.words),
    key("scores", "text", "\"none\"", "how outputs of the model become probabilities").one_of(&SCORES.words),
];

/// `space`, where it is no boolean.
const SPACE: Words<(), 1> = Words::new([("auto", (), "as the number of classes of the model says")]);

/// `scores`: whether outputs are logits.
const SCORES: Words<bool, 2> =
    Words::new([("none", false, "they are probabilities"), ("softmax", true, "they are logits")]);

impl StageKind for Ctc {
    fn name(&self) -> &'static str {
        "ctc"
    }

    fn about(&self) -> &'static str {
        "Reads the text of a tensor `[steps, classes]`: the best class of each step, without repetitions and blanks (CTC, decoded greedily). It gives \
         `text`, and `score`: the mean probability of the steps that gave a character, 0 where none did."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn read(&self, f: &mut Fields<'_, '_>, _: &Limits) -> Option<Draft> {
        let space = match f.entry("space").map(|entry| &entry.node) {
            None => None,
            Some(node) => match &node.value {
                Toml::Boolean(space) => Some(*space),
                Toml::String(text) if SPACE.value(text).is_some() => None,
                _ => {
                    f.wrong("space", node, "true, false or \"auto\"");
                    return None;
                }
            },
        };
        let is_softmax = f.word_or_default("scores", &SCORES).value;
        let blank = f.integer_or_default("blank");
        Some(Draft::Stage(Box::new(CtcDraft { charset: f.string("charset"), blank, space, is_softmax })))
    }

    fn revive(&self, settings: &KindSettings) -> Option<Arc<dyn Map>> {
        Some(Arc::new(settings.read::<CtcMap>()?))
    }
}

#[derive(Debug)]
struct CtcDraft {
    charset: Option<At<String>>,
    blank: At<u64>,
    /// `None`: where the model has a class for it.
    space: Option<bool>,
    is_softmax: bool,
}

impl Connect for CtcDraft {
    /// The probability of a class comes of all of its step's logits.
    fn reads_largest(&self) -> bool {
        !self.is_softmax
    }

    fn connect(&self, stage: &mut StageContext<'_>) -> Option<StageConnected> {
        let what = "probabilities of classes for each step, which an infer stage gives";
        let place = stage.column(0, what, |c| c.ty.tensor().is_some())?;
        let input = &stage.inputs[0];
        let is_largest = matches!(input.gives.0[place].ty, ColumnType::Largest { .. });
        let tensor = input.gives.0[place].ty.tensor()?.clone();
        let floats = tensor.dtype.is_float();
        let (steps, classes) = match tensor.row[..] {
            [steps, classes] | [Dim::Fixed(1), steps, classes] if floats => (steps.fixed(), classes.fixed()),
            _ => {
                let message = format!("stage `{}` cannot read a text of `{}`", stage.name, tensor.name);
                stage
                    .diags
                    .error(input.span, message)
                    .label(format!("it is {tensor}"))
                    .help("ctc takes f32[batch, steps, classes] or f16[batch, steps, classes]");
                return None;
            }
        };
        let (charset, span) = match &self.charset {
            Some(written) => (file(written, stage)?, written.span),
            None => match input.metadata.get(METADATA) {
                Some(characters) => (lines(characters), input.span),
                None => {
                    let (name, from) = (stage.name, input.described());
                    let message = format!(
                        "stage `{name}` has no characters: no model with the metadata `{METADATA}` stands behind {from}"
                    );
                    stage.diags.error(stage.span, message).help(
                        "name a text file with one character per line, in the order of the classes: charset = \"characters.txt\"",
                    );
                    return None;
                }
            },
        };
        let n = charset.len();
        let (least, most) = match self.space {
            Some(true) => (n + 2, n + 2),
            Some(false) => (n + 1, n + 1),
            None => (n + 1, n + 2),
        };
        let map = CtcMap {
            charset: charset.into_iter().chain([" ".to_owned()]).collect(),
            blank: self.blank.value as usize,
            classes: (least, most),
            is_softmax: self.is_softmax,
            is_largest,
            cost: steps
                .zip(classes.filter(|_| !is_largest).or(Some(1)))
                .map(|(steps, n)| steps.saturating_mul(n)),
        };
        if let Some(classes) = classes
            && let Err(why) = map.fits(classes)
        {
            stage
                .diags
                .error(span, format!("the characters of stage `{}` do not fit `{}`: {why}", stage.name, tensor.name))
                .label(format!("it is {tensor}"))
                .help("the characters must be those that the model was trained with; with `space = true` a space follows them");
            return None;
        }
        if map.blank >= classes.unwrap_or(most) {
            let message = format!(
                "`blank` of stage `{}` is {}, but classes end at {}",
                stage.name,
                map.blank,
                most - 1
            );
            stage.diags.error(self.blank.span, message).help("the blank is the first class, 0, or the last");
            return None;
        }
        let said = if self.is_softmax { "logits" } else { "probabilities" };
        Some(StageConnected {
            gives: Schema(vec![
                Column { name: "text".into(), ty: ColumnType::Text },
                Column {
                    name: "score".into(),
                    ty: ColumnType::Tensor(fixed_tensor("score", DType::F32, &[])),
                },
            ]),
            reads: vec![(0, place)],
            settings: serde_json::json!({
                "output": place, "charset": map.charset[..n].join("\n"), "blank": map.blank, "space": self.space,
                "softmax": self.is_softmax,
            }),
            details: vec![format!("{n} characters"), said.to_owned()],
            about: format!("text of {n} characters, {said}"),
            runs: Runs::Map(Arc::new(map)),
        })
    }
}

/// The lines of a file: a space is a character, so nothing but the ends of lines is cut off.
fn file(written: &At<String>, stage: &mut StageContext<'_>) -> Option<Vec<String>> {
    let help = "a charset is text with one character per line, in the order of the classes";
    let text = read_text("charset", help, written, stage.folder, stage.host, stage.diags)?;
    let lines = text.strip_suffix('\n').unwrap_or(&text).split('\n');
    Some(lines.map(|line| line.trim_matches('\r').to_owned()).collect())
}

/// Lines as `str.splitlines` of Python cuts them, with which RapidOCR reads the metadata.
fn lines(text: &str) -> Vec<String> {
    const ENDS: [char; 10] =
        ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
    let text = text.replace("\r\n", "\n");
    text.strip_suffix(ENDS).unwrap_or(&text).split(ENDS).map(str::to_owned).collect()
}

#[derive(Debug, Clone, Encode, Decode)]
struct CtcMap {
    /// The characters, and a space behind them.
    charset: Arc<[String]>,
    blank: usize,
    /// The least and the most classes that these characters are for, the blank among them.
    classes: (usize, usize),
    is_softmax: bool,
    /// Of a step there are the best class and its probability.
    is_largest: bool,
    /// Numbers that are read for a row, where that is known.
    cost: Option<usize>,
}

impl CtcMap {
    /// Whether a model of so many classes can have been trained with these characters; if not, why.
    fn fits(&self, classes: usize) -> Result<(), String> {
        let (least, most) = self.classes;
        if (least..=most).contains(&classes) {
            return Ok(());
        }
        let n = self.charset.len() - 1;
        let wanted = match (most - least, least - n) {
            (0, 1) => format!("{least} with the blank"),
            (0, _) => format!("{least} with the blank and a space"),
            _ => format!("{least} with the blank, {most} with a space as well"),
        };
        let are = if n == 1 { "is 1 character".to_owned() } else { format!("are {n} characters") };
        Err(format!("there {are} ({wanted}) for {classes} classes"))
    }

    /// The best class of a step and its probability, as a worker gave them; `None` where that is neither a class nor a number.
    fn best(&self, step: &[u8]) -> Option<(usize, f32)> {
        let ([class, value], []) = step.as_chunks() else { return None };
        let (class, value) = (f32::from_ne_bytes(*class), f32::from_ne_bytes(*value));
        let is_class = class >= 0.0 && (class as usize) < self.classes.1;
        (is_class && !value.is_nan()).then_some((class as usize, value))
    }

    fn character(&self, class: usize) -> &str {
        &self.charset[if class > self.blank { class - 1 } else { class }]
    }
}

impl Map for CtcMap {
    fn start(&self) -> Box<dyn MapRun> {
        Box::new(CtcRun { map: self.clone(), text: String::new() })
    }

    fn cost(&self) -> usize {
        // An exponential is as much as reading this many numbers.
        const EXPONENTIAL: usize = 16;
        self.cost.map_or(usize::MAX, |n| if self.is_softmax { n.saturating_mul(EXPONENTIAL) } else { n })
    }

    fn in_loader(&self) -> Option<KindSettings> {
        KindSettings::of(Ctc.name(), self)
    }
}

struct CtcRun {
    map: CtcMap,
    text: String,
}

impl MapRun for CtcRun {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        let [steps] = inputs else { return Err(Refusal::result("the output to read a text of is missing")) };
        let score = steps.with_tensor(|tensor| self.decode(tensor))?;
        let score = score.to_ne_bytes();
        let score = TensorView { name: "score", dtype: DType::F32, shape: &[], data: &score };
        emit.row(&[Value::Text(&self.text), Value::Tensor(score)])
    }
}

impl CtcRun {
    /// Writes the text, and gives its score.
    fn decode(&mut self, tensor: &TensorView<'_>) -> Result<f32, Refusal> {
        let classes = tensor.shape.last().copied().unwrap_or(0);
        if !self.map.is_largest {
            self.map.fits(classes).map_err(|why| {
                Refusal::result(format!("the characters do not fit `{}`: {why}", tensor.name))
            })?;
        }
        self.text.clear();
        let (mut sum, mut kept, mut last) = (0.0, 0_u32, self.map.blank);
        for (n, step) in tensor.data.chunks_exact(classes * tensor.dtype.size_bytes()).enumerate() {
            let best = if self.map.is_largest { self.map.best(step) } else { largest(tensor.dtype, step) };
            let Some((class, value)) = best else {
                return Err(Refusal::result(format!(
                    "step {n} of `{}` holds no number: it is NaN",
                    tensor.name
                )));
            };
            let size = tensor.dtype.size_bytes();
            if value.is_infinite() && tensor.dtype == DType::F64 {
                let number = Element::read(tensor.dtype, &step[class * size..]).to_f64();
                if number.is_finite() {
                    return Err(too_large(tensor.name, number, n * classes + class));
                }
            }
            if class != last && class != self.map.blank {
                self.text.push_str(self.map.character(class));
                let probability = match self.map.is_softmax {
                    true => 1.0 / sum_of_powers(tensor.dtype, step, value),
                    false => value,
                };
                if probability.is_nan() {
                    let error = format!(
                        "step {n} of `{}` holds an infinity, of which softmax makes no score",
                        tensor.name
                    );
                    return Err(Refusal::result(error));
                }
                sum += f64::from(probability);
                kept += 1;
            }
            last = class;
        }
        Ok(if kept == 0 { 0.0 } else { (sum / f64::from(kept)) as f32 })
    }
}

/// The sum of exp(x - max): the softmax of the largest is 1 over it. NaN where the largest is infinite.
fn sum_of_powers(dtype: DType, step: &[u8], max: f32) -> f32 {
    with_number!(dtype, read => step.as_chunks().0.iter().map(|x| (read(x).to_f32() - max).exp()).sum())
}

#[cfg(test)]
mod tests {
    use super::super::shared::testing::each_row;
    use super::*;

    fn map(charset: &[&str], blank: usize, is_softmax: bool) -> CtcMap {
        let n = charset.len();
        let charset = charset.iter().chain(&[" "]).map(|c| (*c).to_owned()).collect();
        CtcMap { charset, blank, classes: (n + 1, n + 2), is_softmax, is_largest: false, cost: None }
    }

    fn decode(map: &CtcMap, classes: usize, values: &[f32]) -> Result<(String, f32), Refusal> {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let shape = [values.len() / classes.max(1), classes];
        let view = TensorView { name: "y", dtype: DType::F32, shape: &shape, data: &data };
        let mut texts = Vec::new();
        let mut emit = each_row(|row| {
            let [Value::Text(text), Value::Tensor(score)] = row else { panic!("not a text: {row:?}") };
            texts.push(((*text).to_owned(), f32::from_ne_bytes(score.data.try_into().unwrap())));
        });
        map.start().apply(&[Value::Tensor(view)], &mut emit)?;
        drop(emit);
        Ok(texts.remove(0))
    }

    /// A step for each class, with its probability; the other classes share the rest.
    fn steps(classes: usize, best: &[(usize, f32)]) -> Vec<f32> {
        let mut values = Vec::new();
        for (class, p) in best {
            let rest = (1.0 - p) / (classes - 1) as f32;
            values.extend((0..classes).map(|c| if c == *class { *p } else { rest }));
        }
        values
    }

    #[test]
    fn repetitions_and_blanks_are_dropped_and_the_kept_steps_make_the_score() {
        let read = [(0, 0.9), (1, 0.8), (1, 0.7), (0, 0.9), (1, 0.6), (2, 0.9), (2, 0.9), (3, 0.5), (0, 1.0)];
        let (text, score) = decode(&map(&["a", "b"], 0, false), 4, &steps(4, &read)).unwrap();
        assert_eq!(text, "aab ", "class 3 is the space");
        assert!((score - (0.8 + 0.6 + 0.9 + 0.5) / 4.0).abs() < 1e-6, "{score}");
        let (text, score) = decode(&map(&["a", "b"], 0, false), 3, &steps(3, &[(0, 0.9), (0, 0.9)])).unwrap();
        assert_eq!((&*text, score), ("", 0.0));
        let last =
            decode(&map(&["a", "b"], 2, false), 3, &steps(3, &[(0, 0.9), (2, 0.9), (1, 0.9)])).unwrap();
        assert_eq!(last.0, "ab", "the blank may be the last class");
    }

    #[test]
    fn logits_become_probabilities() {
        let values = [1.0_f32, 3.0, 2.0, 900.0, -900.0, 0.0];
        let (text, score) = decode(&map(&["a", "b"], 0, true), 3, &values).unwrap();
        let expected = 3.0_f64.exp() / (1.0_f64.exp() + 3.0_f64.exp() + 2.0_f64.exp());
        assert_eq!(text, "a");
        assert!((f64::from(score) - expected).abs() < 1e-6, "{score} {expected}");
    }

    #[test]
    fn what_fits_no_characters_or_holds_no_number_fails_the_item() {
        let map = map(&["a", "b"], 0, false);
        for classes in [0, 2, 5] {
            let error = decode(&map, classes, &[0.5; 10]).unwrap_err().error;
            assert!(error.contains(&format!("for {classes} classes")), "{error}");
        }
        let error = decode(&map, 3, &[0.1, 0.2, 0.3, f32::NAN, f32::NAN, f32::NAN]).unwrap_err().error;
        assert!(error.contains("step 1"), "{error}");
        let error = decode(&map, 3, &[f32::NAN, 0.2, 0.3]).unwrap_err().error;
        assert!(error.contains("step 0"), "{error}");
        assert_eq!(decode(&map, 3, &[]).unwrap(), (String::new(), 0.0));
    }

    #[test]
    fn a_score_beyond_f32_fails_the_item() {
        let steps: Vec<u8> =
            [0.1, 0.5, 0.4, 0.1, 1e300, 0.1].iter().flat_map(|v: &f64| v.to_ne_bytes()).collect();
        let view = TensorView { name: "y", dtype: DType::F64, shape: &[2, 3], data: &steps };
        for is_softmax in [false, true] {
            let map = map(&["a", "b"], 0, is_softmax);
            let refused = map.start().apply(&[Value::Tensor(view)], &mut each_row(|_| ())).unwrap_err();
            assert!(refused.error.contains("at place 4, which is too large for f32"), "{}", refused.error);
        }
    }

    #[test]
    fn metadata_is_cut_into_lines_as_python_does() {
        assert_eq!(lines("a\n\u{3000}\r\n \n\nb"), ["a", "\u{3000}", " ", "", "b"]);
        assert_eq!(lines("a\u{2028}b\n"), ["a", "b"]);
    }
}
