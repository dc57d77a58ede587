//! Detectors that give boxes, scores and classes as tensors of their own: `ssd`, `ultraface`, `detr` and `tf`. Suppresses nothing.

use bincode::{Decode, Encode};
use orchestra_core::data::ItemError;
use orchestra_plan::choices;
use serde::Serialize;

use super::found::{Candidate, Candidates, around, largest};
use super::layout::OutputTensor;
use super::yolo::class_of;

choices! {
    /// What the scores of classes are: independent of each other, or of all classes and of nothing, which is the last.
    #[derive(Serialize, Encode, Decode)]
    #[serde(rename_all = "lowercase")]
    pub enum Logits {
        /// each by itself (RT-DETR, D-FINE)
        Sigmoid = "sigmoid",
        /// with a last class that stands for nothing (DETR)
        Softmax = "softmax",
    }
}

/// Boxes `[boxes, 4]` (corners) and scores `[boxes, classes]`, `[classes, boxes]` or `[boxes]`; with `background` the first class is nothing. A box counts
/// for each class whose score suffices, as torchvision and TensorFlow have it.
pub fn scored(
    boxes: &OutputTensor,
    scores: &OutputTensor,
    background: bool,
    found: &mut Candidates<'_>,
) -> Result<(), ItemError> {
    let corners = boxes.rows(4)?;
    let n = corners.len();
    let (classes, step, next) = match scores.shape[..] {
        [boxes] if boxes == n => (1, 1, 1),
        [boxes, classes] if boxes == n => (classes, classes, 1),
        [classes, boxes] if boxes == n => (classes, 1, n),
        _ => return Err(scores.item_error(&format!("scores of {n} boxes"))),
    };
    let first = usize::from(background && classes > 1);
    for (at, corners) in corners.enumerate() {
        for class in first..classes {
            let score = scores.values[at * step + class * next];
            if score >= found.threshold {
                found.candidates.push(Candidate::upright(class as u32, score, found.scaled(corners)));
            }
        }
    }
    Ok(())
}

/// Boxes `[boxes, 4]` (corners), with scores and classes `[boxes]`.
pub fn labelled(
    boxes: &OutputTensor,
    scores: &OutputTensor,
    labels: &OutputTensor,
    found: &mut Candidates<'_>,
) -> Result<(), ItemError> {
    let corners = boxes.rows(4)?;
    if scores.values.len() != corners.len() || labels.values.len() != corners.len() {
        return Err(scores.item_error(&format!("a score and a label for each of {} boxes", corners.len())));
    }
    for ((corners, score), label) in corners.zip(&scores.values).zip(&labels.values) {
        if *score >= found.threshold {
            found.candidates.push(Candidate::upright(
                class_of(labels, *label)?,
                *score,
                found.scaled(corners),
            ));
        }
    }
    Ok(())
}

/// Boxes `[boxes, 4]` (centre and sides) and logits `[boxes, classes]`: every pair of a box and a class counts.
pub fn queries(
    boxes: &OutputTensor,
    logits: &OutputTensor,
    kind: Logits,
    found: &mut Candidates<'_>,
) -> Result<(), ItemError> {
    let centres = boxes.rows(4)?;
    let [n, classes] = logits.sides()?;
    if n != centres.len() || classes == 0 {
        return Err(logits.item_error(&format!("logits of {} boxes", centres.len())));
    }
    let logits_name = &logits.name;
    for (centre, logits) in centres.zip(logits.values.chunks_exact(classes)) {
        let corners = around(found.scaled(centre));
        let mut push = |class: usize, score: f64| {
            if score >= f64::from(found.threshold) {
                found.candidates.push(Candidate::upright(class as u32, score as f32, corners));
            }
        };
        match kind {
            Logits::Sigmoid => {
                let scores = logits.iter().map(|v| 1.0 / (1.0 + (-f64::from(*v)).exp()));
                scores.enumerate().for_each(|(class, score)| push(class, score));
            }
            Logits::Softmax => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let power = |v: &f32| f64::from(*v - most).exp();
                let sum: f64 = logits.iter().map(power).sum();
                if !sum.is_finite() {
                    let error =
                        format!("`{}` holds an infinity, of which softmax makes no score", logits_name);
                    return Err(ItemError::result(error));
                }
                if let Some((class, logit)) = largest(logits[..classes - 1].iter().copied()) {
                    push(class, power(&logit) / sum);
                }
            }
        }
    }
    Ok(())
}

/// Boxes `[boxes, 4]` (top, left, bottom, right, from 0 to 1), scores, classes, and how many of them count.
pub fn tensorflow(tensors: &[OutputTensor], found: &mut Candidates<'_>) -> Result<(), ItemError> {
    let [boxes, scores, classes, rest @ ..] = tensors else {
        return Err(ItemError::result("internal error: an output is missing; this is a bug"));
    };
    let corners = boxes.rows(4)?;
    let counted = rest.first().and_then(|n| n.values.first()).map_or(usize::MAX, |n| n.round() as usize);
    if scores.values.len() != corners.len() || classes.values.len() != corners.len() {
        return Err(scores.item_error(&format!("a score and a class for each of {} boxes", corners.len())));
    }
    for ((corners, score), class) in corners.zip(&scores.values).zip(&classes.values).take(counted) {
        if *score >= found.threshold {
            let turned = [corners[1], corners[0], corners[3], corners[2]];
            found.candidates.push(Candidate::upright(
                class_of(classes, *class)?,
                *score,
                found.scaled(&turned),
            ));
        }
    }
    Ok(())
}
