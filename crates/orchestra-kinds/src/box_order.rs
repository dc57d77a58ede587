//! The orders in which boxes of a picture may come.

/// An order of boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Given,
    Score,
    LeftToRight,
    TopToBottom,
    /// Lines from top to bottom, each from left to right.
    Reading,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    pub score: f32,
    /// The middle of the box.
    pub x: f64,
    pub y: f64,
    /// The shorter side of what is turned.
    pub height: f64,
}

impl Order {
    /// Each with its name in a workflow file.
    pub const ALL: [(&'static str, Order); 5] = [
        ("given", Order::Given),
        ("score", Order::Score),
        ("left-to-right", Order::LeftToRight),
        ("top-to-bottom", Order::TopToBottom),
        ("reading", Order::Reading),
    ];

    /// The name in a workflow file.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, order)| *order == self).expect("all orders are listed").0
    }

    /// Stable: equal ones stay in the order of the model.
    pub fn sort<T>(self, mut found: Vec<(Place, T)>) -> Vec<T> {
        let by = |key: fn(&Place) -> f64| {
            move |(a, _): &(Place, T), (b, _): &(Place, T)| key(a).total_cmp(&key(b))
        };
        match self {
            Order::Given => {}
            Order::Score => found.sort_by(by(|place| -f64::from(place.score))),
            Order::LeftToRight => found.sort_by(by(|place| place.x)),
            Order::TopToBottom => found.sort_by(by(|place| place.y)),
            Order::Reading => {
                found.sort_by(by(|place| place.y));
                let mut rest = &mut found[..];
                while let Some((first, _)) = rest.first() {
                    let first = *first;
                    // Of one line are those whose middle is less than half of a height below that of its uppermost.
                    let is_of_line = |place: &Place| place.y - first.y < first.height.min(place.height) / 2.0;
                    let n = rest.iter().skip(1).take_while(|(place, _)| is_of_line(place)).count() + 1;
                    let (line, below) = rest.split_at_mut(n);
                    line.sort_by(by(|place| place.x));
                    rest = below;
                }
            }
        }
        found.into_iter().map(|(_, value)| value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_one_after_the_other_and_what_is_no_number_ends_nothing() {
        let place = |score, x, y| Place { score, x, y, height: 20.0 };
        let boxes =
            [place(0.5, 90.0, 3.0), place(0.9, 10.0, 9.0), place(0.7, 50.0, 31.0), place(0.6, 10.0, 34.0)];
        let sorted = |order: Order| order.sort(boxes.into_iter().zip(0..).collect());
        assert_eq!(sorted(Order::Given), [0, 1, 2, 3]);
        assert_eq!(sorted(Order::Reading), [1, 0, 3, 2]);
        assert_eq!(sorted(Order::TopToBottom), [0, 1, 2, 3]);
        assert_eq!(sorted(Order::LeftToRight), [1, 3, 2, 0]);
        assert_eq!(sorted(Order::Score), [1, 2, 3, 0]);
        let rubbish = [place(f32::NAN, f64::NAN, f64::INFINITY), place(0.0, 0.0, f64::NAN), boxes[0]];
        for (_, order) in Order::ALL {
            assert_eq!(order.sort(rubbish.into_iter().zip(0..).collect()).len(), 3);
        }
    }
}
