//! Which of several tasks is the best by a metric. It reads no journal.

use serde::{Deserialize, Serialize};

use crate::choices;
use crate::element::compare_numbers;
use crate::named_enum;

named_enum! {
    /// Whether less or more of a metric is better.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Goal {
        /// Less is better.
        Min = "min",
        /// More is better.
        Max = "max",
    }
}

choices! {
    for Goal {
        /// the least one is the best
        Min = "min",
        /// the largest one is the best
        Max = "max",
    }
}

/// What the tasks of a table are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Objective {
    /// The place of the metric among those of the table.
    pub metric: usize,
    /// Whether less or more of it is better.
    pub goal: Goal,
}

impl Goal {
    /// A number that is less for a better value. What is no number is worse than any.
    pub fn cost(self, value: f64) -> f64 {
        match self {
            _ if value.is_nan() => f64::INFINITY,
            Goal::Min => value,
            Goal::Max => -value,
        }
    }
}

/// The best of these tasks by their values: of equals the first, and none whose value is no number.
pub fn best(goal: Goal, values: impl IntoIterator<Item = (usize, f64)>) -> Option<usize> {
    let numbers = values.into_iter().filter(|(_, value)| !value.is_nan());
    numbers.min_by(|(_, a), (_, b)| compare_numbers(goal.cost(*a), goal.cost(*b))).map(|(task, _)| task)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_number_is_never_best_and_of_equals_the_first_is() {
        let values = [(7, f64::NAN), (3, 2.0), (4, 1.0), (5, 1.0)];
        assert_eq!((best(Goal::Min, values), best(Goal::Max, values)), (Some(4), Some(3)));
        assert_eq!(best(Goal::Min, [(7, f64::NAN)]), None);
        for goal in Goal::ALL {
            assert_eq!(
                (best(goal, [(1, 0.0), (2, -0.0)]), best(goal, [(1, -0.0), (2, 0.0)])),
                (Some(1), Some(1))
            );
        }
        assert_eq!(best(Goal::Max, [(7, f64::NEG_INFINITY), (8, f64::NAN)]), Some(7));
    }

    proptest! {
        #[test]
        fn none_is_better_than_the_best(values in prop::collection::vec(any::<f64>(), 1..20)) {
            for goal in Goal::ALL {
                let best = best(goal, values.iter().copied().enumerate());
                prop_assert_eq!(best.is_none(), values.iter().all(|value| value.is_nan()));
                if let Some(best) = best {
                    prop_assert!(values.iter().all(|value| goal.cost(*value) >= goal.cost(values[best])));
                }
            }
        }
    }
}
