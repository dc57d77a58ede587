//! What detectors find, and which of it remains. Knows no layout.

use orchestra_core::compare_numbers;

use super::rectangle::Rectangle;

/// Candidates that suppression looks at, the best ones: a threshold near 0 would make it take minutes.
const MOST_CANDIDATES: usize = 30_000;

/// A box with its class, in pixels of the row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    pub class: u32,
    pub score: f32,
    /// Left, top, right, bottom.
    pub corners: [f64; 4],
    /// What `corners` lie around, where the model finds boxes that are turned.
    pub rectangle: Option<Rectangle>,
}

impl Candidate {
    pub fn upright(class: u32, score: f32, corners: [f64; 4]) -> Self {
        Self { class, score, corners, rectangle: None }
    }

    pub fn turned(class: u32, score: f32, rectangle: Rectangle) -> Self {
        let ([x, y], [width, height], [cos, sin]) =
            (rectangle.centre, rectangle.sides, rectangle.axis.map(f64::abs));
        let corners = around([x, y, width * cos + height * sin, width * sin + height * cos]);
        Self { class, score, corners, rectangle: Some(rectangle) }
    }

    fn overlap(&self, other: &Candidate) -> f64 {
        match (&self.rectangle, &other.rectangle) {
            (Some(a), Some(b)) => probabilistic_overlap(a, b),
            _ => overlap(&self.corners, &other.corners),
        }
    }
}

/// What the boxes of a row come to.
pub struct Candidates<'a> {
    pub threshold: f32,
    /// How many classes a box has, where the tensors may hold more than these.
    pub classes: Option<usize>,
    /// Pixels of the row in a unit of the corners, by axis.
    pub scale: [f64; 2],
    pub candidates: &'a mut Vec<Candidate>,
}

impl Candidates<'_> {
    /// In pixels of the row.
    pub fn scaled(&self, corners: &[f32]) -> [f64; 4] {
        [0, 1, 2, 3].map(|at| f64::from(corners[at]) * self.scale[at % 2])
    }
}

/// Sorts by score, best first; equal ones stay in the order of the model. No more than `max` remain.
pub fn best(found: &mut Vec<Candidate>, max: usize) {
    found.sort_by(|a, b| compare_numbers(b.score.into(), a.score.into()));
    found.truncate(max);
}

/// Of boxes of one class that overlap by more than `iou` only the best remains. Best first, no more than `max`.
pub fn suppress(found: &mut Vec<Candidate>, iou: f64, max: usize) {
    best(found, MOST_CANDIDATES);
    let mut kept: Vec<Candidate> = Vec::new();
    for candidate in found.iter() {
        let hides = |k: &Candidate| k.class == candidate.class && k.overlap(candidate) > iou;
        if kept.len() < max && !kept.iter().any(hides) {
            kept.push(*candidate);
        }
    }
    *found = kept;
}

/// The probabilistic IoU of two rectangles as normal distributions: 1 - sqrt(1 - `alike`), where `alike` is their Bhattacharyya coefficient
/// (Llerena and others, "Gaussian Bounding Boxes and Probabilistic Intersection-over-Union for Object Candidate", 2021). A rectangle has the
/// variances of the points within it, side * side / 12. Those without an area overlap nothing.
fn probabilistic_overlap(a: &Rectangle, b: &Rectangle) -> f64 {
    if !a.has_area() || !b.has_area() {
        return 0.0;
    }
    // Variances along x and y, and the covariance.
    let spread = |r: &Rectangle| {
        let ([cos, sin], [along, across]) = (r.axis, r.sides.map(|side| side * side / 12.0));
        [
            along * cos * cos + across * sin * sin,
            along * sin * sin + across * cos * cos,
            (along - across) * cos * sin,
        ]
    };
    let (of_a, of_b) = (spread(a), spread(b));
    let [xx, yy, xy] = [0, 1, 2].map(|at| f64::midpoint(of_a[at], of_b[at]));
    let determinant = xx * yy - xy * xy;
    let [dx, dy] = [0, 1].map(|axis| a.centre[axis] - b.centre[axis]);
    let distance = (dx * dx * yy - 2.0 * dx * dy * xy + dy * dy * xx) / (8.0 * determinant);
    let areas = [a, b].map(|r| r.sides[0] * r.sides[1] / 12.0);
    let alike = (-distance).exp() * (areas[0] * areas[1]).sqrt() / determinant.sqrt();
    // Numbers so large or small that nothing of it is one are no overlap.
    if alike.is_nan() { 0.0 } else { 1.0 - (1.0 - alike).max(0.0).sqrt() }
}

/// Intersection over union. Boxes without an area overlap nothing.
fn overlap(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    let side = |from: usize, to: usize| (a[to].min(b[to]) - a[from].max(b[from])).max(0.0);
    let area = |c: &[f64; 4]| (c[2] - c[0]).max(0.0) * (c[3] - c[1]).max(0.0);
    let both = side(0, 2) * side(1, 3);
    let either = area(a) + area(b) - both;
    if either > 0.0 { both / either } else { 0.0 }
}

/// Left, top, right, bottom of a box that is given by its centre and its sides.
pub fn around([x, y, width, height]: [f64; 4]) -> [f64; 4] {
    [x - width / 2.0, y - height / 2.0, x + width / 2.0, y + height / 2.0]
}

/// The place and the value of the largest number, the first of equal ones; what is no number is never it.
pub fn largest(values: impl Iterator<Item = f32>) -> Option<(usize, f32)> {
    let numbers = values.enumerate().filter(|(_, value)| !value.is_nan());
    numbers.fold(None, |best: Option<(usize, f32)>, (at, value)| match best {
        Some((_, most)) if most >= value => best,
        _ => Some((at, value)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(class: u32, score: f32, corners: [f64; 4]) -> Candidate {
        Candidate::upright(class, score, corners)
    }

    #[test]
    fn of_overlapping_boxes_of_a_class_the_best_remains_and_the_first_of_equal_ones() {
        let a = found(0, 0.5, [0.0, 0.0, 10.0, 10.0]);
        let near = found(0, 0.9, [1.0, 0.0, 11.0, 10.0]);
        let twin = found(0, 0.9, [1.0, 0.5, 11.0, 10.5]);
        let other = found(1, 0.1, a.corners);
        let flat = found(0, 0.3, [5.0, 5.0, 5.0, 5.0]);
        let mut all = vec![a, near, twin, other, flat];
        suppress(&mut all, 0.5, 9);
        assert_eq!(all, [near, flat, other]);
        suppress(&mut all, 0.5, 1);
        assert_eq!(all, [near]);
        let mut zeros = vec![found(0, -0.0, a.corners), found(1, 0.0, a.corners)];
        best(&mut zeros, 9);
        assert_eq!(zeros[0].class, 0, "zeros are equal, whatever their sign");
    }

    #[test]
    fn turned_boxes_hide_each_other_by_what_they_cover_and_not_by_the_upright_boxes_around_them() {
        let turned = |score, angle: f64| {
            let axis = [angle.cos(), angle.sin()];
            Candidate::turned(0, score, Rectangle { centre: [50.0, 50.0], sides: [40.0, 4.0], axis })
        };
        let (one, across) = (turned(0.9, 0.785), turned(0.8, -0.785));
        assert!(overlap(&one.corners, &across.corners) > 0.99 && one.overlap(&across) < 0.2);
        let near = turned(0.7, 0.8);
        let flat = Candidate::turned(0, 0.6, Rectangle { sides: [40.0, 0.0], ..one.rectangle.unwrap() });
        let mut all = vec![flat, near, across, one];
        suppress(&mut all, 0.5, 9);
        assert_eq!(all, [one, across, flat]);
        assert!((one.overlap(&one) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn the_largest_is_the_first_of_equal_ones_and_never_what_is_no_number() {
        assert_eq!(largest([f32::NAN, 1.0, 2.0, 2.0].into_iter()), Some((2, 2.0)));
        assert_eq!(largest([f32::NAN].into_iter()), None);
    }
}
