//! `kind = "ctc"`: the text that a recognition model reads, decoded greedily.

use bincode::{Decode, Encode};
use orchestra_core::data::{Column, ColumnType, ItemError, Schema, TensorView, Value, fixed_tensor};
use orchestra_core::shapes::{Emit, RowWork};
use orchestra_core::{DType, Dim, Element};
use orchestra_plan::tree::Toml;
use orchestra_plan::{
    Choice as _, Connect, Fields, Json, Reported, Runs, Setting, Settings, Span, Spanned, StageConnected,
    StageContext, TypedStage, Word, choices, read_text, settings,
};

use super::classify::makes_probabilities;
use super::shared::largest::largest;
use crate::elements::{Number as _, too_large, with_number};

/// Where the exporter of PP-OCR models for RapidOCR writes the characters, one per line.
const METADATA: &str = "character";

settings! {
    #[derive(Debug)]
    pub struct Ctc {
        /// what the classes stand for, in their order and without the blank: a text file with one character per line; or the entry `character` of the
        /// metadata of the model, as PP-OCR models exported for RapidOCR have it
        charset: Option<Spanned<String>> => "that of the model",
        /// the class that stands for no character
        #[range(0, 10_000_000)]
        blank: Spanned<u64> = 0,
        /// whether a space follows the characters as one more class; or `true` or `false`
        space: Space = "auto",
        /// how outputs of the model become probabilities
        scores: CtcScores = "none",
    }
}

/// Whether a space is one more class; `None`: where the model has a class for it.
#[derive(Debug)]
pub struct Space(Option<bool>);

impl Setting for Space {
    const TYPE: &'static str = "boolean or `\"auto\"`";
    const WORDS: &'static [Word] =
        &[Word { text: "auto", help: "as the number of classes of the model says" }];

    fn read(f: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        let node = &f.entry(key)?.node;
        match &node.value {
            Toml::Boolean(space) => Some(Self(Some(*space))),
            Toml::String(text) if text == "auto" => Some(Self(None)),
            _ => f.wrong(key, node, "true, false or \"auto\"").none(),
        }
    }

    fn of_default(_: &str, _: &Fields<'_, '_>) -> Option<Self> {
        Some(Self(None))
    }

    fn json(&self) -> Json {
        self.0.into()
    }
}

choices! {
    #[derive(Encode, Decode)]
    pub enum CtcScores {
        /// they are probabilities
        None = "none",
        /// they are logits
        Softmax = "softmax",
    }
}

impl TypedStage for Ctc {
    const NAME: &'static str = "ctc";
    const ABOUT: &'static str = "Reads the text of a tensor `[steps, classes]`: the best class of each step, without repetitions and blanks (CTC, decoded greedily). It gives \
         `text`, and `score`: the mean probability of the steps that gave a character, 0 where none did.";
    type Work = CtcDecoder;
}

impl Connect for Ctc {
    /// The probability of a class comes of all of its step's logits.
    fn reads_largest(&self) -> bool {
        self.scores == CtcScores::None
    }

    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let what = "probabilities of classes for each step, which an infer stage gives";
        let place = stage.column(0, what, |c| c.ty.tensor().is_some())?;
        let input = &stage.inputs[0];
        let is_largest = matches!(input.gives.0[place].ty, ColumnType::Largest { .. });
        let tensor = input.gives.0[place].ty.tensor().ok_or(Reported)?.clone();
        self.doubt_scores(stage, &tensor.name);
        let row = (&tensor.row[..], tensor.dtype.is_float());
        let ([steps, classes] | [Dim::Fixed(1), steps, classes], true) = row else {
            let message = format!("stage `{}` cannot read a text of `{}`", stage.name, tensor.name);
            let help = "ctc takes f32[batch, steps, classes] or f16[batch, steps, classes]";
            return stage.error(input.span, message).label(format!("it is {tensor}")).help(help).fail();
        };
        let (steps, classes) = (steps.fixed(), classes.fixed());
        let (charset, span) = self.characters(stage)?;
        let n = charset.len();
        let (least, most) = match self.space.0 {
            Some(true) => (n + 2, n + 2),
            Some(false) => (n + 1, n + 1),
            None => (n + 1, n + 2),
        };
        let reader = CtcDecoder {
            charset: charset.into_iter().chain([" ".to_owned()]).collect(),
            blank: self.blank.value as usize,
            classes: (least, most),
            scores: self.scores,
            is_largest,
        };
        // An exponential is as much as reading this many numbers.
        let per_number = if self.scores == CtcScores::Softmax { 16 } else { 1 };
        let of_step = classes.filter(|_| !is_largest).unwrap_or(1).saturating_mul(per_number);
        let cost = steps.map(|steps| steps.saturating_mul(of_step));
        if let Some(classes) = classes
            && let Err(why) = reader.fits(classes)
        {
            return stage.error(span, format!("the characters of stage `{}` do not fit `{}`: {why}", stage.name, tensor.name))
                .label(format!("it is {tensor}"))
                .help("the characters must be those that the model was trained with; with `space = true` a space follows them").fail();
        }
        if reader.blank >= classes.unwrap_or(most) {
            let (name, blank, last) = (stage.name, reader.blank, most - 1);
            let message = format!("`blank` of stage `{name}` is {blank}, but classes end at {last}");
            let help = "the blank is the first class, 0, or the last";
            return stage.error(self.blank.span, message).help(help).fail();
        }
        let said = if self.scores == CtcScores::Softmax { "logits" } else { "probabilities" };
        let score = fixed_tensor("score", DType::F32, &[]);
        let mut settings = self.json();
        settings["charset"] = reader.charset[..n].join("\n").into();
        Ok(StageConnected {
            gives: Schema(vec![
                Column { name: "text".into(), ty: ColumnType::Text },
                Column { name: "score".into(), ty: ColumnType::Tensor(score) },
            ]),
            reads: vec![(0, place)],
            settings,
            details: vec![format!("{n} characters"), said.to_owned()],
            about: format!("text of {n} characters, {said}"),
            runs: Runs::map::<Self>(reader, cost),
        })
    }
}

impl Ctc {
    /// The characters of the classes, and where they are named.
    fn characters(&self, stage: &mut StageContext<'_>) -> Result<(Vec<String>, Span), Reported> {
        let input = &stage.inputs[0];
        match (&self.charset, input.metadata.get(METADATA)) {
            (Some(written), _) => Ok((file(written, stage)?, written.span)),
            (None, Some(characters)) => Ok((lines(characters), input.span)),
            (None, None) => {
                let (name, from) = (stage.name, input.described());
                let message = format!(
                    "stage `{name}` has no characters: no model with the metadata `{METADATA}` stands behind {from}"
                );
                let help = "name a text file with one character per line, in the order of the classes: charset = \"characters.txt\"";
                stage.error(stage.span, message).help(help).fail()
            }
        }
    }

    /// Warns where logits would be taken for probabilities, or these for logits.
    fn doubt_scores(&self, stage: &mut StageContext<'_>, output: &str) {
        let input = &stage.inputs[0];
        let Some(operator) = input.made_by.get(output) else { return };
        let is_linear = ["Add", "Gemm", "MatMul", "Conv"].contains(&&**operator);
        let (are, right) = match self.scores {
            CtcScores::None if is_linear => ("logits", CtcScores::Softmax),
            CtcScores::Softmax if makes_probabilities(operator) => ("probabilities", CtcScores::None),
            _ => return,
        };
        let (name, right) = (stage.name, right.name());
        let what = format!(
            "`{output}`, which stage `{name}` reads, seems to hold {are}: `{operator}` of the model makes it"
        );
        stage.diags.warning(input.span, what).help(format!("write `scores = \"{right}\"` in stage `{name}`"));
    }
}

/// The lines of a file: a space is a character, so nothing but the ends of lines is cut off.
fn file(written: &Spanned<String>, stage: &mut StageContext<'_>) -> Result<Vec<String>, Reported> {
    let help = "a charset is text with one character per line, in the order of the classes";
    let text = read_text("charset", help, written, stage.folder, stage.host, stage.diags)?;
    let lines = text.strip_suffix('\n').unwrap_or(&text).split('\n');
    Ok(lines.map(|line| line.trim_matches('\r').to_owned()).collect())
}

/// Lines as `str.splitlines` of Python cuts them, with which RapidOCR reads the metadata.
fn lines(text: &str) -> Vec<String> {
    const ENDS: [char; 10] =
        ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
    let text = text.replace("\r\n", "\n");
    text.strip_suffix(ENDS).unwrap_or(&text).split(ENDS).map(str::to_owned).collect()
}

/// What reads texts.
#[derive(Debug, Encode, Decode)]
pub struct CtcDecoder {
    /// The characters, and a space behind them.
    charset: Vec<String>,
    blank: usize,
    /// The least and the most classes that these characters are for, the blank among them.
    classes: (usize, usize),
    scores: CtcScores,
    /// Of a step there are the best class and its probability.
    is_largest: bool,
}

impl RowWork for CtcDecoder {
    type Scratch = String;

    fn apply(&self, text: &mut String, row: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        let score = row[0].with_tensor(|tensor| self.decode(tensor, text))?.to_ne_bytes();
        let score = TensorView { name: "score", dtype: DType::F32, shape: &[], data: &score };
        emit.row(&[Value::Text(text), Value::Tensor(score)])
    }
}

impl CtcDecoder {
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

    /// Writes the text, and gives its score.
    fn decode(&self, tensor: &TensorView<'_>, text: &mut String) -> Result<f32, ItemError> {
        let classes = tensor.shape.last().copied().unwrap_or(0);
        if !self.is_largest {
            self.fits(classes).map_err(|why| {
                ItemError::result(format!("the characters do not fit `{}`: {why}", tensor.name))
            })?;
        }
        text.clear();
        let (mut sum, mut kept, mut last) = (0.0, 0_u32, self.blank);
        for (n, step) in tensor.data.chunks_exact(classes * tensor.dtype.size_bytes()).enumerate() {
            let best = if self.is_largest { self.best(step) } else { largest(tensor.dtype, step) };
            let Some((class, value)) = best else {
                return Err(ItemError::result(format!(
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
            if self.scores == CtcScores::Softmax && value.is_infinite() {
                let error = format!(
                    "step {n} of `{}` holds an infinity, of which softmax makes no score",
                    tensor.name
                );
                return Err(ItemError::result(error));
            }
            if class != last && class != self.blank {
                text.push_str(self.character(class));
                let probability = match self.scores {
                    CtcScores::Softmax => 1.0 / sum_of_powers(tensor.dtype, step, value),
                    CtcScores::None => value,
                };
                sum += f64::from(probability);
                kept += 1;
            }
            last = class;
        }
        Ok(if kept == 0 { 0.0 } else { (sum / f64::from(kept)) as f32 })
    }
}

/// The sum of exp(x - max): the softmax of the largest is 1 over it. No `max` is infinite.
fn sum_of_powers(dtype: DType, step: &[u8], max: f32) -> f32 {
    with_number!(dtype, read => step.as_chunks().0.iter().map(|x| (read(x).to_f32() - max).exp()).sum())
}

#[cfg(test)]
mod tests {
    use super::super::shared::testing::apply;
    use super::*;

    fn reader(charset: &[&str], blank: usize, scores: CtcScores) -> CtcDecoder {
        let n = charset.len();
        let charset = charset.iter().chain(&[" "]).map(|c| (*c).to_owned()).collect();
        CtcDecoder { charset, blank, classes: (n + 1, n + 2), scores, is_largest: false }
    }

    fn decode(reader: &CtcDecoder, classes: usize, values: &[f32]) -> Result<(String, f32), ItemError> {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let shape = [values.len() / classes.max(1), classes];
        let view = TensorView { name: "y", dtype: DType::F32, shape: &shape, data: &data };
        let mut texts = Vec::new();
        apply(reader, &[Value::Tensor(view)], |row| {
            let [Value::Text(text), Value::Tensor(score)] = row else { panic!("not a text: {row:?}") };
            texts.push(((*text).to_owned(), f32::from_ne_bytes(score.data.try_into().unwrap())));
        })?;
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
        let (text, score) = decode(&reader(&["a", "b"], 0, CtcScores::None), 4, &steps(4, &read)).unwrap();
        assert_eq!(text, "aab ", "class 3 is the space");
        assert!((score - (0.8 + 0.6 + 0.9 + 0.5) / 4.0).abs() < 1e-6, "{score}");
        let (text, score) =
            decode(&reader(&["a", "b"], 0, CtcScores::None), 3, &steps(3, &[(0, 0.9), (0, 0.9)])).unwrap();
        assert_eq!((&*text, score), ("", 0.0));
        let last =
            decode(&reader(&["a", "b"], 2, CtcScores::None), 3, &steps(3, &[(0, 0.9), (2, 0.9), (1, 0.9)]))
                .unwrap();
        assert_eq!(last.0, "ab", "the blank may be the last class");
    }

    #[test]
    fn logits_become_probabilities() {
        let values = [1.0_f32, 3.0, 2.0, 900.0, -900.0, 0.0];
        let (text, score) = decode(&reader(&["a", "b"], 0, CtcScores::Softmax), 3, &values).unwrap();
        let expected = 3.0_f64.exp() / (1.0_f64.exp() + 3.0_f64.exp() + 2.0_f64.exp());
        assert_eq!(text, "a");
        assert!((f64::from(score) - expected).abs() < 1e-6, "{score} {expected}");
    }

    #[test]
    fn what_fits_no_characters_or_holds_no_number_fails_the_item() {
        let reader = reader(&["a", "b"], 0, CtcScores::None);
        for classes in [0, 2, 5] {
            let error = decode(&reader, classes, &[0.5; 10]).unwrap_err().error;
            assert!(error.contains(&format!("for {classes} classes")), "{error}");
        }
        let error = decode(&reader, 3, &[0.1, 0.2, 0.3, f32::NAN, f32::NAN, f32::NAN]).unwrap_err().error;
        assert!(error.contains("step 1"), "{error}");
        let error = decode(&reader, 3, &[f32::NAN, 0.2, 0.3]).unwrap_err().error;
        assert!(error.contains("step 0"), "{error}");
        assert_eq!(decode(&reader, 3, &[]).unwrap(), (String::new(), 0.0));
        // Of the blank alone, too.
        let inf = f32::INFINITY;
        for logits in [[-inf; 3], [inf, 0.0, 0.0], [0.0, inf, 0.0]] {
            let reader = CtcDecoder {
                scores: CtcScores::Softmax,
                classes: reader.classes,
                charset: reader.charset.clone(),
                ..reader
            };
            let error = decode(&reader, 3, &logits).unwrap_err().error;
            assert!(error.contains("step 0 of `y` holds an infinity"), "{error}");
        }
    }

    #[test]
    fn a_score_beyond_f32_fails_the_item() {
        let steps: Vec<u8> =
            [0.1, 0.5, 0.4, 0.1, 1e300, 0.1].iter().flat_map(|v: &f64| v.to_ne_bytes()).collect();
        let view = TensorView { name: "y", dtype: DType::F64, shape: &[2, 3], data: &steps };
        for scores in [CtcScores::None, CtcScores::Softmax] {
            let reader = reader(&["a", "b"], 0, scores);
            let refused = apply(&reader, &[Value::Tensor(view)], |_| ()).unwrap_err();
            assert!(refused.error.contains("at place 4, which is too large for f32"), "{}", refused.error);
        }
    }

    #[test]
    fn metadata_is_cut_into_lines_as_python_does() {
        assert_eq!(lines("a\n\u{3000}\r\n \n\nb"), ["a", "\u{3000}", " ", "", "b"]);
        assert_eq!(lines("a\u{2028}b\n"), ["a", "b"]);
    }
}
