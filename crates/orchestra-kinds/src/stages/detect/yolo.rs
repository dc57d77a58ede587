//! YOLO heads as exporters leave them: `yolov5`, `yolov8`, `yolov8_obb`, `yolo_end2end`, `yolo_end2end_obb` and `yolox`. Gives boxes in pixels of the row; suppresses nothing.

use orchestra_core::data::ItemError;

use super::found::{Candidate, Candidates, around, largest};
use super::layout::OutputTensor;
use super::rectangle::Rectangle;

/// `[boxes, 5 + classes]`: centre, sides, whether there is anything, and a score per class; the score of a box is the product.
pub fn objects(tensor: &OutputTensor, found: &mut Candidates<'_>) -> Result<(), ItemError> {
    for numbers in tensor.rows(6)? {
        let object = numbers[4];
        // No product is larger than the factor that all of them have: few boxes get as far as their classes.
        if object < found.threshold {
            continue;
        }
        let scores = numbers[5..].iter().take(found.classes.unwrap_or(usize::MAX)).copied();
        push(largest(scores).map(|(class, score)| (class, score * object)), numbers, found)?;
    }
    Ok(())
}

/// `[4 + classes, boxes]`: centre, sides, and a score per class. Numbers behind the classes (masks, key points) are left alone.
pub fn transposed(tensor: &OutputTensor, found: &mut Candidates<'_>) -> Result<(), ItemError> {
    let [numbers, boxes] = tensor.sides()?;
    if numbers < 5 {
        return Err(tensor.item_error("[4 + classes, boxes]"));
    }
    let classes = found.classes.unwrap_or(numbers - 4).min(numbers - 4);
    let at = |number: usize, n: usize| tensor.values[number * boxes + n];
    for n in 0..boxes {
        let best = largest((0..classes).map(|class| at(4 + class, n)));
        push(best, &[at(0, n), at(1, n), at(2, n), at(3, n)], found)?;
    }
    Ok(())
}

/// `[4 + classes + angle, boxes]`: as [`transposed`], with the angle in radians, clockwise where y goes down, behind the classes.
pub fn turned(tensor: &OutputTensor, found: &mut Candidates<'_>) -> Result<(), ItemError> {
    let [numbers, boxes] = tensor.sides()?;
    if numbers < 6 {
        return Err(tensor.item_error("[4 + classes + angle, boxes]"));
    }
    let at = |number: usize, n: usize| tensor.values[number * boxes + n];
    for n in 0..boxes {
        if let Some((class, score)) = largest((4..numbers - 1).map(|number| at(number, n)))
            && score >= found.threshold
        {
            let rectangle = rectangle([0, 1, 2, 3, numbers - 1].map(|number| at(number, n)));
            found.candidates.push(Candidate::turned(class as u32, score, rectangle));
        }
    }
    Ok(())
}

/// Of a centre, sides, and an angle in radians.
fn rectangle(numbers: [f32; 5]) -> Rectangle {
    let [x, y, width, height, angle] = numbers.map(f64::from);
    Rectangle { centre: [x, y], sides: [width, height], axis: [angle.cos(), angle.sin()] }
}

/// `[boxes, 6]`: left, top, right, bottom, score, class; suppressed by the model. Numbers behind them (masks, key points) are left alone.
pub fn end_to_end(tensor: &OutputTensor, found: &mut Candidates<'_>) -> Result<(), ItemError> {
    for numbers in tensor.rows(6)? {
        if numbers[4] >= found.threshold {
            let corners = [0, 1, 2, 3].map(|at| f64::from(numbers[at]));
            found.candidates.push(Candidate::upright(class_of(tensor, numbers[5])?, numbers[4], corners));
        }
    }
    Ok(())
}

/// `[boxes, 7]`: centre, sides, score, class, and the angle of [`turned`]; suppressed by the model.
pub fn end_to_end_turned(tensor: &OutputTensor, found: &mut Candidates<'_>) -> Result<(), ItemError> {
    for numbers in tensor.rows(7)? {
        if numbers[4] >= found.threshold {
            let rectangle = rectangle([0, 1, 2, 3, 6].map(|at| numbers[at]));
            found.candidates.push(Candidate::turned(class_of(tensor, numbers[5])?, numbers[4], rectangle));
        }
    }
    Ok(())
}

/// As [`objects`], with centres in cells of three grids, one behind the other, and the logarithms of sides.
pub fn grids(
    tensor: &OutputTensor,
    [width, height]: [u32; 2],
    found: &mut Candidates<'_>,
) -> Result<(), ItemError> {
    const STRIDES: [u32; 3] = [8, 16, 32];
    let cells: usize = STRIDES.iter().map(|s| (width / s) as usize * (height / s) as usize).sum();
    let mut rows = tensor.rows(6)?;
    if rows.len() != cells {
        let n = rows.len();
        return Err(ItemError::result(format!(
            "output `{}` has {n} boxes; the grids of a picture of {width} x {height} pixels have {cells} cells",
            tensor.name
        )));
    }
    let mut decoded = Vec::new();
    for stride in STRIDES {
        for y in 0..height / stride {
            for (x, numbers) in (0..width / stride).zip(rows.by_ref()) {
                decoded.clear();
                decoded.extend_from_slice(numbers);
                let stride = stride as f32;
                decoded[0] = (numbers[0] + x as f32) * stride;
                decoded[1] = (numbers[1] + y as f32) * stride;
                decoded[2] = numbers[2].exp() * stride;
                decoded[3] = numbers[3].exp() * stride;
                let scores = numbers[5..].iter().take(found.classes.unwrap_or(usize::MAX)).copied();
                let best = largest(scores).map(|(class, score)| (class, score * numbers[4]));
                push(best, &decoded, found)?;
            }
        }
    }
    Ok(())
}

fn push(best: Option<(usize, f32)>, numbers: &[f32], found: &mut Candidates<'_>) -> Result<(), ItemError> {
    let Some((class, score)) = best else { return Ok(()) };
    if score.is_nan() {
        return Err(ItemError::result("a box has no score: it is 0 times an infinity"));
    }
    if score >= found.threshold {
        let corners = around([0, 1, 2, 3].map(|at| f64::from(numbers[at])));
        found.candidates.push(Candidate::upright(class as u32, score, corners));
    }
    Ok(())
}

/// A class that a model gives as a float.
pub fn class_of(tensor: &OutputTensor, number: f32) -> Result<u32, ItemError> {
    // What is no number is cast to 0.
    let class = number as u32;
    match class as f32 == number {
        true => Ok(class),
        false => {
            Err(ItemError::result(format!("`{}` gives a box the class {number}, which is none", tensor.name)))
        }
    }
}
