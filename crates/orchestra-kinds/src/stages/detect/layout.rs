//! How the outputs of a detector are laid out: which layouts there are, which one a model has, and which of its outputs is what. Decodes nothing.

use std::collections::BTreeMap;

use orchestra_core::data::Refusal;
use orchestra_core::{DType, Dim, TensorSpec};
use serde::Serialize;

/// A family of detectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    Yolov5,
    Yolov8,
    Yolov8Obb,
    YoloEnd2end,
    Yolox,
    Ssd,
    Detr,
    Tf,
    Ultraface,
    Dbnet,
}

impl Layout {
    /// As `layout = ".."` names them.
    pub const ALL: [(&str, Layout); 10] = [
        ("yolov5", Layout::Yolov5),
        ("yolov8", Layout::Yolov8),
        ("yolov8_obb", Layout::Yolov8Obb),
        ("yolo_end2end", Layout::YoloEnd2end),
        ("yolox", Layout::Yolox),
        ("ssd", Layout::Ssd),
        ("detr", Layout::Detr),
        ("tf", Layout::Tf),
        ("ultraface", Layout::Ultraface),
        ("dbnet", Layout::Dbnet),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, layout)| *layout == self).map_or("", |(name, _)| name)
    }

    /// Whether its boxes overlap, so that all but the best of a place are left out.
    pub fn suppresses(self) -> bool {
        matches!(
            self,
            Layout::Yolov5
                | Layout::Yolov8
                | Layout::Yolov8Obb
                | Layout::Yolox
                | Layout::Ssd
                | Layout::Ultraface
        )
    }

    /// What its outputs are, for messages.
    pub fn outputs(self) -> &'static str {
        match self {
            Layout::Yolov5 => "[boxes, 5 + classes]",
            Layout::Yolov8 => "[4 + classes, boxes]",
            Layout::Yolov8Obb => "[4 + classes + angle, boxes]",
            Layout::YoloEnd2end => "[boxes, 6]: corners, score, class",
            Layout::Yolox => "[cells of three grids, 5 + classes]",
            Layout::Ssd | Layout::Ultraface => "`boxes` [boxes, 4] and `scores` [boxes, classes]",
            Layout::Detr => {
                "`labels`, `boxes` [boxes, 4] and `scores`; or `dets` [boxes, 4] and `labels` [boxes, classes]; or `pred_boxes` and `logits`"
            }
            Layout::Tf => {
                "`detection_boxes`, `detection_scores`, `detection_classes`, and `num_detections` or not"
            }
            Layout::Dbnet => "[1, height, width]: how likely each pixel belongs to a text",
        }
    }
}

/// The outputs of a model in the order in which its layout reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outputs {
    /// Places among the columns of the stage.
    pub columns: Vec<usize>,
    pub form: Form,
}

/// What tells apart two forms of a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Only,
    /// `detr`: a class and a score for each box.
    Labelled,
    /// `detr`: centres and sides from 0 to 1, and a logit for each class.
    Queries,
    /// As `Queries`, with names under which models with sigmoids and with softmaxes are known.
    OpenQueries,
}

/// An output: its place among the columns of the stage, and what it is.
pub type Output<'a> = (usize, &'a TensorSpec);

fn fixed(tensor: &TensorSpec, at: usize) -> Option<usize> {
    tensor.row.get(at).copied().and_then(Dim::fixed)
}

fn is_float(tensor: &TensorSpec) -> bool {
    matches!(tensor.dtype, DType::F32 | DType::F16)
}

/// Whether a tensor can be `[.., n]` of two dimensions.
fn can_end_in(tensor: &TensorSpec, n: usize) -> bool {
    tensor.row.len() == 2 && is_float(tensor) && fixed(tensor, 1).is_none_or(|last| last == n)
}

fn named<'a>(outputs: &[Output<'a>], name: &str) -> Option<Output<'a>> {
    // TensorFlow numbers the outputs of an operator.
    outputs.iter().find(|(_, tensor)| tensor.name.strip_suffix(":0").unwrap_or(&tensor.name) == name).copied()
}

impl Layout {
    /// Which output is what, if a model with these can have this layout. `classes`: how many there are, where that is known.
    pub fn of(self, outputs: &[Output<'_>], classes: Option<usize>) -> Option<Outputs> {
        let only = |fits: &dyn Fn(&TensorSpec) -> bool| {
            let mut fitting = outputs.iter().filter(|(_, tensor)| is_float(tensor) && fits(tensor));
            let (column, _) = fitting.next().filter(|_| fitting.next().is_none())?;
            Some(Outputs { columns: vec![*column], form: Form::Only })
        };
        // At least one class.
        let wide = |tensor: &TensorSpec, at: usize, more: usize| {
            let fits = |n: usize| classes.map_or(n > more, |classes| n == more + classes);
            tensor.row.len() == 2 && fixed(tensor, at).is_none_or(fits)
        };
        match self {
            Layout::Yolov5 | Layout::Yolox => only(&|tensor| wide(tensor, 1, 5)),
            // Behind the classes may stand what belongs to masks or key points.
            Layout::Yolov8 => only(&|tensor| {
                tensor.row.len() == 2 && fixed(tensor, 0).is_none_or(|n| n >= 4 + classes.unwrap_or(1))
            }),
            Layout::Yolov8Obb => only(&|tensor| {
                let fits = |n: usize| classes.map_or(n >= 6, |classes| n == 5 + classes);
                tensor.row.len() == 2 && fixed(tensor, 0).is_none_or(fits)
            }),
            Layout::YoloEnd2end => only(&|tensor| can_end_in(tensor, 6)),
            Layout::Ssd | Layout::Ultraface => {
                let (boxes, scores) = match (named(outputs, "boxes"), named(outputs, "scores")) {
                    (Some(boxes), Some(scores)) => (boxes, scores),
                    _ => match outputs {
                        [a, b] if can_end_in(a.1, 4) && fixed(b.1, 1) != Some(4) => (*a, *b),
                        [a, b] if can_end_in(b.1, 4) && fixed(a.1, 1) != Some(4) => (*b, *a),
                        _ => return None,
                    },
                };
                let fits =
                    can_end_in(boxes.1, 4) && is_float(scores.1) && (1..=2).contains(&scores.1.row.len());
                fits.then(|| Outputs { columns: vec![boxes.0, scores.0], form: Form::Only })
            }
            Layout::Detr => {
                let of = |name: &str| named(outputs, name);
                let is_list = |output: &Output<'_>| output.1.row.len() == 1;
                let is_logits = |output: &Output<'_>| output.1.row.len() == 2 && is_float(output.1);
                if let (Some(boxes), Some(scores), Some(labels)) = (of("boxes"), of("scores"), of("labels")) {
                    let fits = can_end_in(boxes.1, 4) && is_list(&scores) && is_list(&labels);
                    let columns = vec![boxes.0, scores.0, labels.0];
                    return fits.then_some(Outputs { columns, form: Form::Labelled });
                }
                let (boxes, logits, form) = match (of("dets"), of("labels"), of("pred_boxes"), of("logits")) {
                    (Some(boxes), Some(logits), _, _) => (boxes, logits, Form::Queries),
                    (_, _, Some(boxes), Some(logits)) => (boxes, logits, Form::OpenQueries),
                    _ => return None,
                };
                let fits = can_end_in(boxes.1, 4) && is_logits(&logits);
                fits.then(|| Outputs { columns: vec![boxes.0, logits.0], form })
            }
            Layout::Tf => {
                let names = ["detection_boxes", "detection_scores", "detection_classes"];
                let found = names.map(|name| named(outputs, name));
                let [Some(boxes), Some(scores), Some(classes)] = found else { return None };
                let is_list = |output: Output<'_>| output.1.row.len() == 1;
                let count = named(outputs, "num_detections");
                let columns = [Some(boxes), Some(scores), Some(classes), count];
                (can_end_in(boxes.1, 4) && is_list(scores) && is_list(classes)).then(|| Outputs {
                    columns: columns.into_iter().flatten().map(|(column, _)| column).collect(),
                    form: Form::Only,
                })
            }
            Layout::Dbnet => only(&|tensor| match tensor.row.len() {
                3 => fixed(tensor, 0).is_none_or(|n| n == 1),
                2 => true,
                _ => false,
            }),
        }
    }
}

/// What is known of the layout of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recognised {
    /// It has this one, for this reason.
    Is(Layout, String),
    /// It can have any of these, or none.
    Open(Vec<Layout>),
    /// It is no detector of boxes, for this reason.
    Not(String),
}

/// Tells the layout of a model by the names of its outputs and by what those who exported it wrote into its file. Shapes alone decide nothing:
/// they are the same for outputs that mean different things.
pub fn recognise(
    outputs: &[Output<'_>],
    metadata: &BTreeMap<String, String>,
    classes: Option<usize>,
) -> Recognised {
    let fits = |layout: &Layout| layout.of(outputs, classes).is_some();
    let by_name = |layout: Layout| {
        let names: Vec<_> = outputs.iter().map(|(_, tensor)| format!("`{}`", tensor.name)).collect();
        Recognised::Is(layout, format!("its outputs are called {}", names.join(", ")))
    };
    if fits(&Layout::Tf) {
        return by_name(Layout::Tf);
    }
    if fits(&Layout::Detr) {
        return by_name(Layout::Detr);
    }
    let two_classes = named(outputs, "scores").is_some_and(|(_, scores)| fixed(scores, 1) == Some(2));
    if named(outputs, "boxes").is_some() && two_classes && outputs.len() == 2 && fits(&Layout::Ultraface) {
        return by_name(Layout::Ultraface);
    }
    // What Ultralytics' exporters of all generations write.
    if metadata.contains_key("names") && metadata.contains_key("stride") {
        let task = metadata.get("task").map(String::as_str);
        match task {
            Some("detect" | "segment" | "pose" | "obb") | None => {}
            Some(task) => return Recognised::Not(format!("its metadata says `task = {task}`")),
        }
        let end_to_end = metadata.get("end2end").is_some_and(|said| said.eq_ignore_ascii_case("true"));
        let layouts: &[Layout] = match (task, end_to_end) {
            (Some("obb"), true) => &[],
            (Some("obb"), false) => &[Layout::Yolov8Obb],
            (_, true) => &[Layout::YoloEnd2end],
            // YOLOv5 says no task.
            (None, false) => &[Layout::Yolov5, Layout::Yolov8],
            (Some(_), false) => &[Layout::Yolov8, Layout::YoloEnd2end],
        };
        // Only masks and key points stand behind the classes.
        let is_exact = |layout: &Layout| {
            let rows = classes.filter(|_| !matches!(task, Some("segment" | "pose"))).map(|n| n + 4);
            let of = |(_, tensor): &Output<'_>| {
                tensor.row.len() == 2 && fixed(tensor, 0).is_none_or(|n| rows.is_none_or(|rows| n == rows))
            };
            *layout != Layout::Yolov8 || outputs.iter().any(of)
        };
        let fitting: Vec<Layout> = layouts.iter().copied().filter(|l| fits(l) && is_exact(l)).collect();
        let said = match task {
            Some(task) => format!("its metadata names classes and says `task = {task}`"),
            None => "its metadata names classes and a stride, and no task".to_owned(),
        };
        return match fitting[..] {
            [one] => Recognised::Is(one, format!("{said}, and its output is {}", one.outputs())),
            _ => Recognised::Open(fitting),
        };
    }
    Recognised::Open(Layout::ALL.iter().map(|(_, layout)| *layout).filter(fits).collect())
}

/// The class names in the metadata of a model: `{0: 'person', 1: "driver's door"}`, as Python prints them, or a JSON list or object.
pub fn names(metadata: &BTreeMap<String, String>) -> Option<Vec<String>> {
    /// More classes than any detector has.
    const MOST: usize = 1 << 16;
    let text = metadata.get("names")?.trim();
    let (open, rest) = (text.chars().next()?, text.get(1..)?);
    let close = match open {
        '{' => '}',
        '[' => ']',
        _ => return None,
    };
    let mut rest = rest.strip_suffix(close)?.trim();
    let mut names = Vec::new();
    while !rest.is_empty() && names.len() < MOST {
        if open == '{' {
            let (number, after) = rest.split_once(':')?;
            let number: usize = number.trim().trim_matches(['"', '\'']).parse().ok()?;
            if number != names.len() {
                return None;
            }
            rest = after.trim_start();
        }
        let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let mut name = String::new();
        let mut escaped = false;
        let mut chars = rest[1..].char_indices();
        let end = loop {
            let (at, c) = chars.next()?;
            match c {
                _ if escaped => {
                    name.push(c);
                    escaped = false;
                }
                '\\' => escaped = true,
                c if c == quote => break at,
                c => name.push(c),
            }
        };
        names.push(name);
        rest = rest[1 + end + 1..].trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    (!names.is_empty() && rest.is_empty()).then_some(names)
}

/// An output of one row, as numbers.
#[derive(Debug, Default)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

impl Tensor {
    /// The rows of a matrix of at least so many columns.
    pub fn rows(&self, least: usize) -> Result<std::slice::ChunksExact<'_, f32>, Refusal> {
        match self.shape[..] {
            [_, columns] if columns >= least => Ok(self.values.chunks_exact(columns)),
            _ => Err(self.refusal(&format!("[boxes, {least}] or more numbers each"))),
        }
    }

    /// Rows and columns of a matrix.
    pub fn sides(&self) -> Result<[usize; 2], Refusal> {
        match self.shape[..] {
            [rows, columns] => Ok([rows, columns]),
            _ => Err(self.refusal("a matrix")),
        }
    }

    /// The item fails: the output is not what it should be.
    pub fn refusal(&self, expected: &str) -> Refusal {
        Refusal::result(format!("output `{}` is {:?}, expected {expected}", self.name, self.shape))
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::data::fixed_tensor;

    use super::*;

    fn recognised(outputs: &[(&str, &[usize])], metadata: &[(&str, &str)]) -> Recognised {
        let tensors: Vec<_> = outputs.iter().map(|(name, row)| fixed_tensor(name, DType::F32, row)).collect();
        let outputs: Vec<Output<'_>> = tensors.iter().enumerate().collect();
        let metadata: BTreeMap<_, _> =
            metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let classes = names(&metadata).map(|names| names.len());
        recognise(&outputs, &metadata, classes)
    }

    #[test]
    fn a_layout_is_told_by_names_and_metadata_and_never_by_a_shape_alone() {
        let is = |recognised: Recognised| match recognised {
            Recognised::Is(layout, _) => Some(layout.name()),
            _ => None,
        };
        let two = [("names", "{0: 'a', 1: 'b'}"), ("stride", "32"), ("task", "detect")];
        assert_eq!(is(recognised(&[("output0", &[6, 8400])], &two)), Some("yolov8"));
        assert_eq!(is(recognised(&[("output0", &[300, 6])], &two)), Some("yolo_end2end"));
        let end = [two[0], two[1], two[2], ("end2end", "True")];
        assert_eq!(is(recognised(&[("output0", &[300, 6])], &end)), Some("yolo_end2end"));
        assert_eq!(is(recognised(&[("output", &[25200, 7])], &two[..2])), Some("yolov5"));
        assert_eq!(is(recognised(&[("output", &[6, 7])], &two[..2])), None, "either");
        let obb = [two[0], two[1], ("task", "obb"), ("end2end", "True")];
        assert_eq!(is(recognised(&[("output0", &[7, 8400])], &obb[..3])), Some("yolov8_obb"));
        assert_eq!(is(recognised(&[("output0", &[6, 8400])], &obb[..3])), None, "no angle");
        assert_eq!(is(recognised(&[("output0", &[300, 7])], &obb)), None);
        assert_eq!(is(recognised(&[("dets", &[300, 4]), ("labels", &[300, 91])], &[])), Some("detr"));
        let ultraface: [(&str, &[usize]); 2] = [("scores", &[4420, 2]), ("boxes", &[4420, 4])];
        assert_eq!(is(recognised(&ultraface, &[])), Some("ultraface"));
        let Recognised::Open(open) = recognised(&[("output0", &[84, 8400])], &[]) else { panic!() };
        assert!(open.contains(&Layout::Yolov8) && open.contains(&Layout::Yolov5));
        let classify = [("names", "{0: 'a'}"), ("stride", "1"), ("task", "classify")];
        assert!(matches!(recognised(&[("output0", &[1000])], &classify), Recognised::Not(_)));
    }

    #[test]
    fn class_names_are_read_as_python_prints_them_and_rubbish_gives_none() {
        let read = |text: &str| names(&BTreeMap::from([("names".to_owned(), text.to_owned())]));
        assert_eq!(read(r#"{0: 'a, b', 1: "d's", 2: 'it\'s'}"#).unwrap(), ["a, b", "d's", "it's"]);
        assert_eq!(read(r#"["x", "ü"]"#).unwrap(), ["x", "ü"]);
        for rubbish in ["", "{", "{}", "{1: 'a'}", "{0: a}", "{0: 'a", "['a' 'b'", "é", "[é]", "{0: 'a\\"] {
            assert_eq!(read(rubbish), None, "{rubbish}");
        }
    }
}
