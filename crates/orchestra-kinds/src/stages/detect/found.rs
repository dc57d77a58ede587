//! What detectors find, and which of it remains. Knows no layout.

/// Candidates that suppression looks at, the best ones: a threshold near 0 would make it take minutes.
const MOST_CANDIDATES: usize = 30_000;

/// A box with its class, in pixels of the row: left, top, right, bottom.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    pub class: u32,
    pub score: f32,
    pub corners: [f64; 4],
}

/// Sorts by score, best first; equal ones stay in the order of the model. No more than `max` remain.
pub fn best(found: &mut Vec<Found>, max: usize) {
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    found.truncate(max);
}

/// Of boxes of one class that overlap by more than `iou` only the best remains. Best first, no more than `max`.
pub fn suppress(found: &mut Vec<Found>, iou: f64, max: usize) {
    best(found, MOST_CANDIDATES);
    let mut kept: Vec<Found> = Vec::new();
    for candidate in found.iter() {
        let hides = |k: &Found| k.class == candidate.class && overlap(&k.corners, &candidate.corners) > iou;
        if kept.len() < max && !kept.iter().any(hides) {
            kept.push(*candidate);
        }
    }
    *found = kept;
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

    fn found(class: u32, score: f32, corners: [f64; 4]) -> Found {
        Found { class, score, corners }
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
    }

    #[test]
    fn the_largest_is_the_first_of_equal_ones_and_never_what_is_no_number() {
        assert_eq!(largest([f32::NAN, 1.0, 2.0, 2.0].into_iter()), Some((2, 2.0)));
        assert_eq!(largest([f32::NAN].into_iter()), None);
    }
}
