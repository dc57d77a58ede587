//! `kind = "detect"`: boxes with classes and scores out of what an object detector gives, in pixels of the picture.

use std::ops::RangeInclusive;

use orchestra_plan::{Draft, Fields, Key, Limits, StageKind, Words, key};

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

use connect::DetectDraft;
use layout::Layout;
use lists::Logits;

pub struct Detect;

/// `boxes`: whether they are relative.
const BOXES: Words<bool, 2> = Words::new([
    ("relative", true, "from 0 to 1 of the sides of the model's input"),
    ("pixels", false, "in pixels of the model's input"),
]);

const KEYS: [Key; 12] = [
    key(
        "layout",
        "text",
        "told by the model's metadata and the names of its outputs",
        "how the outputs of the model are laid out; of turned boxes and of texts it gives the column `polygon`, too, which may reach beyond the picture",
    )
    .one_of(&Layout::WORDS.words),
    key(
        "threshold",
        "number",
        "0.25; 0.3 with `dbnet`",
        "boxes with a lower score are left out: of `ssd`, and of `detr` with a sigmoid, a box counts for each class whose score suffices, else for its best \
         class; with `dbnet`, pixels that are no more likely belong to no text",
    ),
    key(
        "iou",
        "number",
        "0.45",
        "of boxes of one class that overlap by more than this (intersection over union; with `yolov8_obb` the probabilistic one of Ultralytics, ProbIoU) the \
         best remains",
    ),
    key(
        "max",
        "integer",
        "300; 1000 with `dbnet`",
        "how many boxes remain, the best ones; with `dbnet`, how many regions are looked at",
    )
    .from_to(1, 100_000),
    key(
        "labels",
        "text",
        "those of the model, else of its metadata",
        "class names: a text file with one per line, in the order of the classes",
    ),
    key(
        "boxes",
        "text",
        "\"relative\"; \"pixels\" with `labels`, `boxes` and `scores`",
        "only with `ssd` and `detr`: what the numbers of boxes are",
    )
    .one_of(&BOXES.words),
    key("background", "true or false", "true", "only with `ssd`: whether the first class stands for nothing"),
    key(
        "scores",
        "text",
        "required for outputs `pred_boxes` and `logits`",
        "only there: how logits become scores",
    )
    .one_of(&Logits::WORDS.words),
    key(
        "box_threshold",
        "number",
        "0.5",
        "only with `dbnet`: texts whose pixels are less likely than this on average are left out",
    ),
    key(
        "unclip",
        "number",
        "1.6",
        "only with `dbnet`: boxes grow on each side by their area times this, divided by their perimeter",
    ),
    key(
        "min_size",
        "number",
        "3",
        "only with `dbnet`: the shortest side of a text before it grows, in pixels of the map",
    ),
    key("dilate", "true or false", "false", "only with `dbnet`: whether regions grow by a pixel first"),
];

impl StageKind for Detect {
    fn name(&self) -> &'static str {
        "detect"
    }

    fn about(&self) -> &'static str {
        "Turns what an object detector gives into `detections`, a list of `label`, `class`, `score` and `box` (left, top, right, bottom), best first. Boxes \
         are in pixels of the picture that the item or part was made of, whatever the `image` or `crop` stage in front of the model did to it. It reads all \
         outputs of an infer stage."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn read(&self, f: &mut Fields<'_, '_>, _: &Limits) -> Option<Draft> {
        let before = f.diags.errors().count();
        let draft = DetectDraft {
            layout: f.word("layout", &Layout::WORDS),
            threshold: f.entry("threshold").map(|_| share(f, "threshold")),
            iou: share(f, "iou"),
            max: f.integer("max").map(|max| max.value as usize),
            labels: f.string("labels"),
            is_relative: f.word("boxes", &BOXES).map(|word| word.value),
            has_background: f.flag("background"),
            scores: f.word("scores", &Logits::WORDS).map(|word| word.value),
            box_threshold: share(f, "box_threshold"),
            unclip: number(f, "unclip", 0.0..=100.0),
            min_size: number(f, "min_size", 0.0..=10_000.0),
            dilates: f.flag("dilate"),
            written: KEYS.iter().filter_map(|key| Some((key.name, f.entry(key.name)?.node.span))).collect(),
        };
        (f.diags.errors().count() == before).then(|| Draft::Stage(Box::new(draft)))
    }
}

fn share(f: &mut Fields<'_, '_>, key: &str) -> f64 {
    number(f, key, 0.0..=1.0)
}

fn number(f: &mut Fields<'_, '_>, key: &str, range: RangeInclusive<f64>) -> f64 {
    let number = f.number_or_default(key);
    if !range.contains(&number.value) {
        f.bad(key, number.span, &format!("must be from {} to {}", range.start(), range.end()));
    }
    number.value
}
