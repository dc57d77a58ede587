//! How the outputs of a detector are laid out: which layouts there are, and which of the outputs of a model is what. Decodes nothing.

use bincode::{Decode, Encode};
use orchestra_core::data::ItemError;
use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_plan::choices;
use serde::Serialize;

choices! {
    #[derive(Serialize, Encode, Decode)]
    #[serde(rename_all = "snake_case")]
    pub enum DetectorLayout {
        /// also v7
        Yolov5 = "yolov5",
        /// v8 to v12
        Yolov8 = "yolov8",
        /// turned boxes, v8 to v12
        Yolov8Obb = "yolov8_obb",
        /// v10, v26, or exported with `nms = True`
        YoloEnd2end = "yolo_end2end",
        /// turned boxes of these
        YoloEnd2endObb = "yolo_end2end_obb",
        Yolox = "yolox",
        Ssd = "ssd",
        /// RT-DETR, D-FINE, RF-DETR; an input `orig_target_sizes` reads a `size` stage
        Detr = "detr",
        /// `detection_boxes`, ..
        Tf = "tf",
        Ultraface = "ultraface",
        /// texts
        Dbnet = "dbnet",
    }
}

impl DetectorLayout {
    /// Whether its boxes overlap, so that all but the best of a place are left out.
    pub fn suppresses(self) -> bool {
        matches!(
            self,
            DetectorLayout::Yolov5
                | DetectorLayout::Yolov8
                | DetectorLayout::Yolov8Obb
                | DetectorLayout::Yolox
                | DetectorLayout::Ssd
                | DetectorLayout::Ultraface
        )
    }

    /// Whether its boxes may be turned, so that each has a polygon, too.
    pub fn turns(self) -> bool {
        matches!(self, DetectorLayout::Yolov8Obb | DetectorLayout::YoloEnd2endObb | DetectorLayout::Dbnet)
    }

    /// What its outputs are, for messages.
    pub fn outputs(self) -> &'static str {
        match self {
            DetectorLayout::Yolov5 => "[boxes, 5 + classes]",
            DetectorLayout::Yolov8 => "[4 + classes, boxes]",
            DetectorLayout::Yolov8Obb => "[4 + classes + angle, boxes]",
            DetectorLayout::YoloEnd2end => "[boxes, 6]: corners, score, class",
            DetectorLayout::YoloEnd2endObb => "[boxes, 7]: centre, sides, score, class, angle",
            DetectorLayout::Yolox => "[cells of three grids, 5 + classes]",
            DetectorLayout::Ssd | DetectorLayout::Ultraface => {
                "`boxes` [boxes, 4] and `scores` [boxes, classes]"
            }
            DetectorLayout::Detr => {
                "`labels`, `boxes` [boxes, 4] and `scores`; or `dets` [boxes, 4] and `labels` [boxes, classes]; or `pred_boxes` and `logits`"
            }
            DetectorLayout::Tf => {
                "`detection_boxes`, `detection_scores`, `detection_classes`, and `num_detections` or not"
            }
            DetectorLayout::Dbnet => "[1, height, width]: how likely each pixel belongs to a text",
        }
    }
}

/// The outputs of a model in the order in which its layout reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutOutputs {
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

/// What the file of a model says of its outputs.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutputHints {
    pub classes: Option<usize>,
    /// Masks or key points stand behind each box.
    pub has_more: bool,
}

/// An output: its place among the columns of the stage, and what it is.
pub type OutputColumn<'a> = (usize, &'a TensorSpec);

pub fn fixed(tensor: &TensorSpec, at: usize) -> Option<usize> {
    tensor.row.get(at).copied().and_then(Dim::fixed)
}

fn is_float(tensor: &TensorSpec) -> bool {
    matches!(tensor.dtype, DType::F32 | DType::F16)
}

/// Whether a tensor can be `[.., n]` of two dimensions.
fn can_end_in(tensor: &TensorSpec, n: usize) -> bool {
    tensor.row.len() == 2 && is_float(tensor) && fixed(tensor, 1).is_none_or(|last| last == n)
}

pub fn named<'a>(outputs: &[OutputColumn<'a>], name: &str) -> Option<OutputColumn<'a>> {
    // TensorFlow numbers the outputs of an operator.
    outputs.iter().find(|(_, tensor)| tensor.name.strip_suffix(":0").unwrap_or(&tensor.name) == name).copied()
}

impl DetectorLayout {
    /// Which output is what, if a model with these can have this layout.
    pub fn of(
        self,
        outputs: &[OutputColumn<'_>],
        OutputHints { classes, has_more }: OutputHints,
    ) -> Option<LayoutOutputs> {
        let only = |fits: &dyn Fn(&TensorSpec) -> bool| {
            let mut fitting = outputs.iter().filter(|(_, tensor)| is_float(tensor) && fits(tensor));
            let (column, _) = fitting.next().filter(|_| fitting.next().is_none())?;
            Some(LayoutOutputs { columns: vec![*column], form: Form::Only })
        };
        // At least one class.
        let wide = |tensor: &TensorSpec, at: usize, more: usize| {
            let fits = |n: usize| classes.map_or(n > more, |classes| n == more + classes);
            tensor.row.len() == 2 && fixed(tensor, at).is_none_or(fits)
        };
        match self {
            DetectorLayout::Yolov5 | DetectorLayout::Yolox => only(&|tensor| wide(tensor, 1, 5)),
            DetectorLayout::Yolov8 => only(&|tensor| {
                let fits = |n: usize| match classes {
                    Some(classes) if !has_more => n == 4 + classes,
                    _ => n >= 4 + classes.unwrap_or(1),
                };
                tensor.row.len() == 2 && fixed(tensor, 0).is_none_or(fits)
            }),
            DetectorLayout::Yolov8Obb => only(&|tensor| {
                let fits = |n: usize| classes.map_or(n >= 6, |classes| n == 5 + classes);
                tensor.row.len() == 2 && fixed(tensor, 0).is_none_or(fits)
            }),
            DetectorLayout::YoloEnd2end if has_more => {
                only(&|tensor| tensor.row.len() == 2 && fixed(tensor, 1).is_none_or(|n| n > 6))
            }
            DetectorLayout::YoloEnd2end => only(&|tensor| can_end_in(tensor, 6)),
            DetectorLayout::YoloEnd2endObb => only(&|tensor| can_end_in(tensor, 7)),
            DetectorLayout::Ssd | DetectorLayout::Ultraface => {
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
                fits.then(|| LayoutOutputs { columns: vec![boxes.0, scores.0], form: Form::Only })
            }
            DetectorLayout::Detr => {
                let of = |name: &str| named(outputs, name);
                let is_list = |output: &OutputColumn<'_>| output.1.row.len() == 1;
                let is_logits = |output: &OutputColumn<'_>| output.1.row.len() == 2 && is_float(output.1);
                if let (Some(boxes), Some(scores), Some(labels)) = (of("boxes"), of("scores"), of("labels")) {
                    let fits = can_end_in(boxes.1, 4) && is_list(&scores) && is_list(&labels);
                    let columns = vec![boxes.0, scores.0, labels.0];
                    return fits.then_some(LayoutOutputs { columns, form: Form::Labelled });
                }
                let (boxes, logits, form) = match (of("dets"), of("labels"), of("pred_boxes"), of("logits")) {
                    (Some(boxes), Some(logits), _, _) => (boxes, logits, Form::Queries),
                    (_, _, Some(boxes), Some(logits)) => (boxes, logits, Form::OpenQueries),
                    _ => return None,
                };
                let fits = can_end_in(boxes.1, 4) && is_logits(&logits);
                fits.then(|| LayoutOutputs { columns: vec![boxes.0, logits.0], form })
            }
            DetectorLayout::Tf => {
                let names = ["detection_boxes", "detection_scores", "detection_classes"];
                let found = names.map(|name| named(outputs, name));
                let [Some(boxes), Some(scores), Some(classes)] = found else { return None };
                let is_list = |output: OutputColumn<'_>| output.1.row.len() == 1;
                let count = named(outputs, "num_detections");
                let columns = [Some(boxes), Some(scores), Some(classes), count];
                (can_end_in(boxes.1, 4) && is_list(scores) && is_list(classes)).then(|| LayoutOutputs {
                    columns: columns.into_iter().flatten().map(|(column, _)| column).collect(),
                    form: Form::Only,
                })
            }
            DetectorLayout::Dbnet => only(&|tensor| match tensor.row.len() {
                3 => fixed(tensor, 0).is_none_or(|n| n == 1),
                2 => true,
                _ => false,
            }),
        }
    }
}

/// An output of one row, as numbers.
#[derive(Debug, Default)]
pub struct OutputTensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

impl OutputTensor {
    /// The rows of a matrix of at least so many columns.
    pub fn rows(&self, least: usize) -> Result<std::slice::ChunksExact<'_, f32>, ItemError> {
        match self.shape[..] {
            [_, columns] if columns >= least => Ok(self.values.chunks_exact(columns)),
            _ => Err(self.item_error(&format!("[boxes, {least}] or more numbers each"))),
        }
    }

    /// Rows and columns of a matrix.
    pub fn sides(&self) -> Result<[usize; 2], ItemError> {
        match self.shape[..] {
            [rows, columns] => Ok([rows, columns]),
            _ => Err(self.item_error("a matrix")),
        }
    }

    /// The item fails: the output is not what it should be.
    pub fn item_error(&self, expected: &str) -> ItemError {
        ItemError::result(format!("output `{}` is {:?}, expected {expected}", self.name, self.shape))
    }
}
