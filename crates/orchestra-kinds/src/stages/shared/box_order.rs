//! The orders in which boxes of a picture may come.

use bincode::{Decode, Encode};
use orchestra_core::compare_numbers;
use orchestra_plan::choices;

choices! {
    #[derive(Encode, Decode)]
    pub enum BoxOrder {
        /// as they come
        Given = "given",
        /// best first
        Score = "score",
        /// by the middle of the box
        LeftToRight = "left-to-right",
        /// by the middle of the box
        TopToBottom = "top-to-bottom",
        /// by lines, each from left to right
        Reading = "reading",
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoxPosition {
    pub score: f32,
    /// The middle of the box.
    pub x: f64,
    pub y: f64,
    /// The shorter side of what is turned.
    pub height: f64,
}

impl BoxOrder {
    /// Stable: equal ones stay in the order of the model.
    pub fn sort<T>(self, mut found: Vec<(BoxPosition, T)>) -> Vec<T> {
        let by = |key: fn(&BoxPosition) -> f64| {
            move |(a, _): &(BoxPosition, T), (b, _): &(BoxPosition, T)| compare_numbers(key(a), key(b))
        };
        match self {
            BoxOrder::Given => {}
            BoxOrder::Score => found.sort_by(by(|position| -f64::from(position.score))),
            BoxOrder::LeftToRight => found.sort_by(by(|position| position.x)),
            BoxOrder::TopToBottom => found.sort_by(by(|position| position.y)),
            BoxOrder::Reading => {
                found.sort_by(by(|position| position.y));
                let mut rest = &mut found[..];
                while let Some((first, _)) = rest.first() {
                    let first = *first;
                    // Of one line are those whose middle is less than half of a height below that of its uppermost.
                    let is_of_line = |position: &BoxPosition| {
                        position.y - first.y < first.height.min(position.height) / 2.0
                    };
                    let n = rest.iter().skip(1).take_while(|(position, _)| is_of_line(position)).count() + 1;
                    let (line, below) = rest.split_at_mut(n);
                    line.sort_by(by(|position| position.x));
                    rest = below;
                }
            }
        }
        found.into_iter().map(|(_, value)| value).collect()
    }
}

#[cfg(test)]
mod tests {
    use orchestra_plan::Choice as _;

    use super::*;

    #[test]
    fn lines_are_read_one_after_the_other_and_what_is_no_number_ends_nothing() {
        let position = |score, x, y| BoxPosition { score, x, y, height: 20.0 };
        let boxes = [
            position(0.5, 90.0, 3.0),
            position(0.9, 10.0, 9.0),
            position(0.7, 50.0, 31.0),
            position(0.6, 10.0, 34.0),
        ];
        let sorted = |order: BoxOrder| order.sort(boxes.into_iter().zip(0..).collect());
        assert_eq!(sorted(BoxOrder::Given), [0, 1, 2, 3]);
        assert_eq!(sorted(BoxOrder::Reading), [1, 0, 3, 2]);
        assert_eq!(sorted(BoxOrder::TopToBottom), [0, 1, 2, 3]);
        assert_eq!(sorted(BoxOrder::LeftToRight), [1, 3, 2, 0]);
        assert_eq!(sorted(BoxOrder::Score), [1, 2, 3, 0]);
        let zeros = [position(0.0, 0.0, -0.0), position(-0.0, -0.0, 0.0), position(0.0, 0.0, 0.0)];
        for order in BoxOrder::ALL.iter().copied() {
            assert_eq!(order.sort(zeros.into_iter().zip(0..).collect()), [0, 1, 2], "equal ones stay");
        }
        let rubbish = [position(f32::NAN, f64::NAN, f64::INFINITY), position(0.0, 0.0, f64::NAN), boxes[0]];
        for order in BoxOrder::ALL.iter().copied() {
            assert_eq!(order.sort(rubbish.into_iter().zip(0..).collect()).len(), 3);
        }
    }
}
