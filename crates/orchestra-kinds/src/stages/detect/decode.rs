//! The settings of a layout, and what they make of a row of outputs. Knows no picture.

use bincode::{Decode, Encode};
use orchestra_core::data::Refusal;
use serde::Serialize;

use super::dbnet::Dbnet;
use super::found::{self, Found};
use super::layout::{Layout, Tensor};
use super::lists::{self, Logits};
use super::yolo;

#[derive(Debug, Clone, Serialize, Encode, Decode)]
#[serde(rename_all = "lowercase")]
pub enum Decoding {
    Boxes(Boxes),
    Texts(Dbnet),
}

/// The settings of all layouts but `dbnet`.
#[derive(Debug, Clone, Serialize, Encode, Decode)]
pub struct Boxes {
    pub layout: Layout,
    pub classes: Option<usize>,
    pub logits: Logits,
    pub threshold: f32,
    pub iou: f64,
    pub max: usize,
    pub is_relative: bool,
    pub background: bool,
}

impl Decoding {
    /// Whether boxes mean nothing without the size of the model's input.
    pub fn needs_row(&self) -> bool {
        match self {
            Decoding::Texts(_) => false,
            Decoding::Boxes(boxes) => match boxes.layout {
                Layout::Yolov5
                | Layout::Yolov8
                | Layout::Yolov8Obb
                | Layout::YoloEnd2end
                | Layout::YoloEnd2endObb
                | Layout::Dbnet => false,
                Layout::Yolox | Layout::Tf | Layout::Ultraface => true,
                Layout::Ssd | Layout::Detr => boxes.is_relative,
            },
        }
    }
}

impl Boxes {
    /// What remains, best first, in pixels of a row of `row` (width, height).
    pub fn found(&self, tensors: &[Tensor], row: [u32; 2], found: &mut Vec<Found>) -> Result<(), Refusal> {
        let (threshold, classes) = (self.threshold, self.classes);
        let scale = if self.is_relative { row.map(f64::from) } else { [1.0; 2] };
        match (self.layout, tensors) {
            (Layout::Yolov5, [tensor]) => yolo::objects(tensor, classes, threshold, found)?,
            (Layout::Yolov8, [tensor]) => yolo::transposed(tensor, classes, threshold, found)?,
            (Layout::Yolov8Obb, [tensor]) => yolo::turned(tensor, threshold, found)?,
            (Layout::YoloEnd2end, [tensor]) => yolo::end_to_end(tensor, threshold, found)?,
            (Layout::YoloEnd2endObb, [tensor]) => yolo::end_to_end_turned(tensor, threshold, found)?,
            (Layout::Yolox, [tensor]) => yolo::grids(tensor, row, classes, threshold, found)?,
            (Layout::Ssd | Layout::Ultraface, [boxes, scores]) => {
                lists::scored(boxes, scores, self.background, scale, threshold, found)?;
            }
            (Layout::Detr, [boxes, scores, labels]) => {
                lists::labelled(boxes, scores, labels, scale, threshold, found)?;
            }
            (Layout::Detr, [boxes, logits]) => {
                lists::queries(boxes, logits, self.logits, scale, threshold, found)?;
            }
            (Layout::Tf, tensors) => lists::tensorflow(tensors, scale, threshold, found)?,
            _ => return Err(Refusal::result("internal error: an output is missing; this is a bug")),
        }
        match self.layout.suppresses() {
            true => found::suppress(found, self.iou, self.max),
            false => found::best(found, self.max),
        }
        Ok(())
    }
}
