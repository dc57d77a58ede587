//! `kind = "detect"`: boxes with classes and scores out of what an object detector gives, in pixels of the picture.

use orchestra_plan::{Spanned, TypedStage, choices, settings};

mod connect;
pub mod dbnet;
mod decode;
mod found;
pub mod layout;
mod lists;
pub mod recognise;
mod rectangle;
mod run;
#[cfg(test)]
mod tests;
mod yolo;

use layout::DetectorLayout;
use lists::Logits;
use run::Detecting;

settings! {
    #[derive(Debug)]
    pub struct Detect {
        /// how the outputs of the model are laid out; of turned boxes and of texts it gives the column `polygon`, too, which may reach beyond the picture
        layout: Option<Spanned<DetectorLayout>> => "told by the model's metadata and the names of its outputs",
        /// boxes with a lower score are left out: of `ssd`, and of `detr` with a sigmoid, a box counts for each class whose score suffices, else for its best
        /// class; with `dbnet`, pixels that are no more likely belong to no text
        #[range(0, 1)]
        threshold: Option<f64> => "0.25; 0.3 with `dbnet`",
        /// of boxes of one class that overlap by more than this (intersection over union; with `yolov8_obb` the probabilistic one of Ultralytics, ProbIoU) the
        /// best remains
        #[range(0, 1)]
        iou: f64 = 0.45,
        /// how many boxes remain, the best ones; with `dbnet`, how many regions are looked at
        #[range(1, 100_000)]
        max: Option<u32> => "300; 1000 with `dbnet`",
        /// class names: a text file with one per line, in the order of the classes
        labels: Option<Spanned<String>> => "those of the model, else of its metadata",
        /// only with `ssd` and `detr`: what the numbers of boxes are
        boxes: Option<DetectUnits> => "\"relative\"; \"pixels\" with `labels`, `boxes` and `scores`",
        /// only with `ssd`: whether the first class stands for nothing
        background: bool = true,
        /// only there: how logits become scores
        scores: Option<Logits> => "required for outputs `pred_boxes` and `logits`",
        /// only with `dbnet`: texts whose pixels are less likely than this on average are left out
        #[range(0, 1)]
        box_threshold: f64 = 0.5,
        /// only with `dbnet`: boxes grow on each side by their area times this, divided by their perimeter
        #[range(0, 100)]
        unclip: f64 = 1.6,
        /// only with `dbnet`: the shortest side of a text before it grows, in pixels of the map
        #[range(0, 10_000)]
        min_size: f64 = 3,
        /// only with `dbnet`: whether regions grow by a pixel first
        dilate: bool = false,
    }
}

choices! {
    pub enum DetectUnits {
        /// from 0 to 1 of the sides of the model's input
        Relative = "relative",
        /// in pixels of the model's input
        Pixels = "pixels",
    }
}

impl TypedStage for Detect {
    const NAME: &'static str = "detect";
    const ABOUT: &'static str = "Turns what an object detector gives into `detections`, a list of `label`, `class`, `score` and `box` (left, top, right, bottom), best first. Boxes \
         are in pixels of the picture that the item or part was made of, whatever the `image` or `crop` stage in front of the model did to it. It reads all \
         outputs of an infer stage. A class that is no number of one fails the item; boxes without an area, or outside of the picture, are left out and counted.";
    type Work = Detecting;
}
