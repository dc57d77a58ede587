//! What a model seems to be for, from its file alone, and a workflow to start from. Runs nothing, and opens no file.

use std::fmt::Write as _;

use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_plan::Choice as _;
use orchestra_plan::{ScalarInput, Signature, UnreadableOutput, toml_key};

use crate::stages::classify::makes_probabilities;
use crate::stages::detect::layout::{DetectorLayout, Form, OutputColumn, OutputHints};
use crate::stages::detect::recognise;
use crate::stages::shared::image_settings::MAX_SIDE;

/// What a model seems to be for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recognised {
    /// `detector`, `classifier` or `unknown`.
    pub purpose: &'static str,
    /// The layout of a detector, as `layout = ".."` of a detect stage names it.
    pub layout: Option<&'static str>,
    /// Layouts that the shapes of the outputs allow, where nothing else tells which one it is.
    pub possible_layouts: Vec<&'static str>,
    /// What it was told by, or what is missing, as a fragment.
    pub why: String,
}

/// Tells what a model is for by the rules by which detect stages tell their layout.
pub fn recognise(signature: &Signature) -> Recognised {
    let tensors = signature.output_tensors();
    let outputs: Vec<OutputColumn<'_>> = tensors.iter().enumerate().collect();
    let is = |purpose, why: String| Recognised { purpose, layout: None, possible_layouts: Vec::new(), why };
    let classifier = || {
        let [output] = &tensors[..] else { return None };
        let mut wide = output.row.iter().filter(|dim| **dim != Dim::Fixed(1));
        let n = wide.next().copied().and_then(Dim::fixed).filter(|n| *n > 1)?;
        let is_float = matches!(output.dtype, DType::F32 | DType::F16);
        (is_float && wide.next().is_none())
            .then(|| is("classifier", format!("its one output holds {n} numbers")))
    };
    match recognise::recognise(&outputs, &signature.metadata) {
        recognise::RecognisedLayout::Is(layout, why) => {
            Recognised { purpose: "detector", layout: Some(layout.name()), possible_layouts: Vec::new(), why }
        }
        recognise::RecognisedLayout::Not(why) => classifier().unwrap_or_else(|| is("unknown", why)),
        recognise::RecognisedLayout::Open(fitting) => classifier().unwrap_or_else(|| Recognised {
            possible_layouts: fitting.iter().copied().map(DetectorLayout::name).collect(),
            ..is("unknown", "neither its metadata nor the names of its outputs tell what it gives".to_owned())
        }),
    }
}

/// The outputs of a model that a sink reads.
struct ReadOutputs {
    /// As `from` names them.
    from: String,
    /// By the file each has a row for each item of a batch.
    have_rows: bool,
}

impl ReadOutputs {
    /// All that stages can read.
    fn of(signature: &Signature) -> Result<Self, String> {
        let (mut names, mut unreadable, mut have_rows) = (Vec::new(), Vec::new(), true);
        for (output, read) in signature.outputs.iter().zip(signature.readable_outputs()) {
            match read {
                Ok(has_rows) => {
                    names.push(format!("outputs.{}", output.name));
                    have_rows &= has_rows;
                }
                Err(UnreadableOutput { name, what, remedy }) => {
                    unreadable.push(format!("`{name}` is {what}: {remedy}"));
                }
            }
        }
        let from = match &names[..] {
            [] => return Err(format!("no stage can read its outputs: {}", unreadable.join("; "))),
            _ if unreadable.is_empty() => quoted("outputs"),
            names => format!("[{}]", names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ")),
        };
        let is_fixed = signature.batch().fixed().is_some_and(|n| n > 1);
        if is_fixed && !have_rows {
            return Err("its batch is fixed, and an output has no row for each item of it: export the model with an open batch".to_owned());
        }
        Ok(Self { from, have_rows })
    }
}

/// A text as TOML has it, which is that of JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A workflow that runs the model in the file `path`, or why there is none.
pub fn workflow(path: &str, signature: &Signature, recognised: &Recognised) -> Result<String, String> {
    if let Some(operator) = signature.training() {
        return Err(format!(
            "the model was exported for training: its `{operator}` has `training_mode = 1`; export it for inference, in PyTorch after `model.eval()`"
        ));
    }
    let outputs = ReadOutputs::of(signature)?;
    let (input, size) = match (&signature.inputs[..], &signature.text_inputs[..]) {
        ([input], []) => (Ok(input), None),
        ([input, size] | [size, input], []) if is_size(size) && pixels(input, signature).is_some() => {
            (Ok(input), Some((&input.name, size)))
        }
        ([], [input]) if input.n_texts() == 1 => (Err(input), None),
        (inputs, texts) => {
            let n = inputs.len() + texts.len();
            if let ([], [input]) = (inputs, texts) {
                let name = &input.name;
                return Err(format!(
                    "its input `{name}` is {input}: a stage has to give a list of as many texts, as a Python stage does"
                ));
            }
            return Err(format!(
                "the model has {n} inputs, and a stage has to be chosen for each: inputs = {{ name = \"stage\", .. }}"
            ));
        }
    };
    let mut text = String::from("version = 1\n\n");
    let reads = match input.map(|input| (input, pixels(input, signature))) {
        Ok((_, Some(pixels))) => {
            text +=
                "[sources.pictures]\nkind = \"images\"\npaths = [\"images\"]  # files, folders, globs\n\n";
            text += &pixels.stage(recognised);
            "pixels"
        }
        Err(input) => {
            text += "[sources.rows]\nkind = \"jsonl\"\npaths = [\"rows/*.jsonl\"]\n";
            let _ = writeln!(text, "columns = {{ {} = \"text\" }}\n", toml_key(&input.name));
            "rows"
        }
        Ok((input, None)) => {
            text += "[sources.rows]\nkind = \"tensors\"\npaths = [\"rows/*.npy\"]  # ";
            let _ = writeln!(text, "each {input}, a row for each item\n");
            "rows"
        }
    };
    let _ = writeln!(text, "[models.model]\npath = {}\n", quoted(path));
    let name = input.map_or_else(|input| &input.name, |input| &input.name);
    if size.is_some() {
        text += "[stages.size]\nkind = \"size\"  # width and height of what the model sees\nfrom = \"pixels\"\n\n";
    }
    let from = feeds(signature, (name, reads), size.map(|(_, size)| &*size.name));
    let _ = writeln!(text, "[stages.outputs]\nkind = \"infer\"\n{from}\nmodel = \"model\"");
    if !outputs.have_rows {
        text += "batch = { max = 1 }  # an output has no row for each item of a batch\n";
    }
    text.push('\n');
    let last = read_outputs(&mut text, signature, recognised).map_or(outputs.from, quoted);
    let _ = writeln!(text, "[sinks.results]\nkind = \"jsonl\"\nfrom = {last}\npath = \"results.jsonl\"");
    Ok(text)
}

/// What feeds the inputs of the model: rows its input `name`, the stage `size` another one if it takes that, and constants the others.
fn feeds(signature: &Signature, (name, reads): (&str, &str), size: Option<&str>) -> String {
    let constant = |scalar: &ScalarInput| {
        let value =
            scalar.dtype.map_or("{ value = \"\" }", |dtype| if dtype == DType::Bool { "false" } else { "0" });
        format!("{} = {value}", toml_key(&scalar.name))
    };
    let size = size.map(|size| format!("{} = \"size\"", toml_key(size)));
    let others: Vec<String> = size.into_iter().chain(signature.scalars.iter().map(constant)).collect();
    let note = if signature.scalars.is_empty() { "" } else { "  # constants: values of your own" };
    match others.is_empty() {
        true => format!("from = \"{reads}\""),
        false => format!("inputs = {{ {} = \"{reads}\", {} }}{note}", toml_key(name), others.join(", ")),
    }
}

/// The stage that makes something of the outputs, if the model is recognised; its name.
fn read_outputs(text: &mut String, signature: &Signature, recognised: &Recognised) -> Option<&'static str> {
    let name = match (recognised.purpose, recognised.layout) {
        ("detector", Some(layout)) => {
            let threshold = if layout == "dbnet" { 0.3 } else { 0.25 };
            *text += "[stages.found]\nkind = \"detect\"\nfrom = \"outputs\"\n";
            let _ = writeln!(text, "layout = \"{layout}\"\nthreshold = {threshold}");
            if has_open_logits(layout, signature) {
                *text += "scores = \"sigmoid\"  # RT-DETR and D-FINE; the names of the outputs do not tell\n";
                *text += "# scores = \"softmax\"  # DETR\n";
            }
            "found"
        }
        ("classifier", _) => {
            *text += "[stages.classes]\nkind = \"classify\"\nfrom = \"outputs\"\ntop_k = 1\n";
            if signature.made_by.values().any(|operator| makes_probabilities(operator)) {
                *text += "scores = \"none\"  # the model gives probabilities\n";
            }
            "classes"
        }
        _ => return None,
    };
    text.push('\n');
    Some(name)
}

/// Whether a detect stage has to be told what the logits become scores by.
fn has_open_logits(layout: &str, signature: &Signature) -> bool {
    let tensors = signature.output_tensors();
    let outputs: Vec<OutputColumn<'_>> = tensors.iter().enumerate().collect();
    let of = DetectorLayout::Detr.of(&outputs, OutputHints::default());
    layout == DetectorLayout::Detr.name() && of.is_some_and(|outputs| outputs.form == Form::OpenQueries)
}

/// Whether an input takes the size by which RT-DETR and D-FINE exports multiply their boxes.
fn is_size(input: &TensorSpec) -> bool {
    input.name == "orig_target_sizes" && input.dtype == DType::I64 && input.row == [Dim::Fixed(2)]
}

struct InspectedPixels {
    layout: &'static str,
    color: &'static str,
    dtype: DType,
    /// Height and width, and whether they had to be guessed.
    size: [usize; 2],
    is_guessed: bool,
}

fn pixels(input: &TensorSpec, signature: &Signature) -> Option<InspectedPixels> {
    let is_channels = |dim: Dim| matches!(dim, Dim::Fixed(1 | 3));
    let (layout, channels, sides) = match input.row[..] {
        [c, h, w] if is_channels(c) => ("nchw", c, [h, w]),
        [h, w, c] if is_channels(c) => ("nhwc", c, [h, w]),
        _ => return None,
    };
    if !matches!(input.dtype, DType::F32 | DType::F16 | DType::U8) {
        return None;
    }
    // As Ultralytics writes it: `[640, 640]`.
    let said = signature.metadata.get("imgsz").and_then(|said| {
        let mut sides =
            said.trim_matches(['[', ']', '(', ')']).split(',').map(|side| side.trim().parse().ok());
        Some([sides.next()??, sides.next()??])
    });
    let side = |at: usize| sides[at].fixed().or_else(|| said.map(|sides: [usize; 2]| sides[at]));
    // A picture of a larger size than that is none.
    if sides.iter().any(|side| side.fixed().is_some_and(|n| n > MAX_SIDE as usize)) {
        return None;
    }
    let size = [0, 1].map(|at| side(at).filter(|n| (1..=MAX_SIDE as usize).contains(n)));
    Some(InspectedPixels {
        layout,
        color: if channels == Dim::Fixed(1) { "gray" } else { "rgb" },
        dtype: input.dtype,
        size: size.map(|side| side.unwrap_or(640)),
        is_guessed: size.contains(&None),
    })
}

impl InspectedPixels {
    fn stage(&self, recognised: &Recognised) -> String {
        let [height, width] = self.size;
        let mut text =
            format!("[stages.pixels]\nkind = \"image\"\nfrom = \"pictures\"\nsize = [{height}, {width}]");
        text += match self.is_guessed {
            true => "  # the model takes any size: choose the one that it was trained with\n",
            false => "\n",
        };
        // DETR and what follows it are trained on stretched pictures.
        if recognised.purpose == "detector" && recognised.layout != Some("detr") {
            text += "fit = \"contain\"\npad = 114\n";
        }
        if self.color != "rgb" {
            let _ = writeln!(text, "color = \"{}\"", self.color);
        }
        if self.layout != "nchw" {
            let _ = writeln!(text, "layout = \"{}\"", self.layout);
        }
        if self.dtype != DType::F32 {
            let _ = writeln!(text, "dtype = \"{}\"", self.dtype);
        }
        if self.dtype != DType::U8 {
            text += "# scale, mean and std: as in training; by default pixels become 0 to 1\n";
        }
        text.push('\n');
        text
    }
}
