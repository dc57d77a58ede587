//! The settings of a layout, and what they make of a row of outputs. Knows no picture.

use bincode::{Decode, Encode};
use orchestra_core::data::ItemError;
use serde::Serialize;

use super::dbnet::Dbnet;
use super::found::{self, Candidate, Candidates};
use super::layout::{DetectorLayout, OutputTensor};
use super::lists::{self, Logits};
use super::yolo;

#[derive(Debug, Clone, Serialize, Encode, Decode)]
#[serde(rename_all = "lowercase")]
pub enum Decoding {
    Boxes(BoxDecoding),
    Texts(Dbnet),
}

/// The settings of all layouts but `dbnet`.
#[derive(Debug, Clone, Serialize, Encode, Decode)]
pub struct BoxDecoding {
    pub layout: DetectorLayout,
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
                DetectorLayout::Yolov5
                | DetectorLayout::Yolov8
                | DetectorLayout::Yolov8Obb
                | DetectorLayout::YoloEnd2end
                | DetectorLayout::YoloEnd2endObb
                | DetectorLayout::Dbnet => false,
                DetectorLayout::Yolox | DetectorLayout::Tf | DetectorLayout::Ultraface => true,
                DetectorLayout::Ssd | DetectorLayout::Detr => boxes.is_relative,
            },
        }
    }
}

impl BoxDecoding {
    /// What remains, best first, in pixels of a row of `row` (width, height).
    pub fn found(
        &self,
        tensors: &[OutputTensor],
        row: [u32; 2],
        found: &mut Vec<Candidate>,
    ) -> Result<(), ItemError> {
        let scale = if self.is_relative { row.map(f64::from) } else { [1.0; 2] };
        let into =
            &mut Candidates { threshold: self.threshold, classes: self.classes, scale, candidates: found };
        match (self.layout, tensors) {
            (DetectorLayout::Yolov5, [tensor]) => yolo::objects(tensor, into)?,
            (DetectorLayout::Yolov8, [tensor]) => yolo::transposed(tensor, into)?,
            (DetectorLayout::Yolov8Obb, [tensor]) => yolo::turned(tensor, into)?,
            (DetectorLayout::YoloEnd2end, [tensor]) => yolo::end_to_end(tensor, into)?,
            (DetectorLayout::YoloEnd2endObb, [tensor]) => yolo::end_to_end_turned(tensor, into)?,
            (DetectorLayout::Yolox, [tensor]) => yolo::grids(tensor, row, into)?,
            (DetectorLayout::Ssd | DetectorLayout::Ultraface, [boxes, scores]) => {
                lists::scored(boxes, scores, self.background, into)?;
            }
            (DetectorLayout::Detr, [boxes, scores, labels]) => {
                lists::labelled(boxes, scores, labels, into)?;
            }
            (DetectorLayout::Detr, [boxes, logits]) => lists::queries(boxes, logits, self.logits, into)?,
            (DetectorLayout::Tf, tensors) => lists::tensorflow(tensors, into)?,
            _ => return Err(ItemError::result("internal error: an output is missing; this is a bug")),
        }
        match self.layout.suppresses() {
            true => found::suppress(found, self.iou, self.max),
            false => found::best(found, self.max),
        }
        Ok(())
    }
}
