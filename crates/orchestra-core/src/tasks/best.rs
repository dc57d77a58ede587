//! Which of several tasks is the best by a metric. It reads no journal.

use serde::{Deserialize, Serialize};

use crate::choices;
use crate::element::compare_numbers;
use crate::named_enum;
use crate::tasks::metric::{MetricValues, TaskMetrics};

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

named_enum! {
    /// Which value of a metric counts, of all that a command reports.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum CurveValue {
        /// The last one.
        Last = "last",
        /// The best of all.
        Best = "best",
    }
}

choices! {
    for CurveValue {
        /// the last one that a task has reported
        Last = "last",
        /// the best one that it has ever reported
        Best = "best",
    }
}

/// What tasks are compared by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Objective {
    pub metric: String,
    /// Whether less or more of it is better.
    pub goal: Goal,
    pub value: CurveValue,
}

impl Goal {
    /// The best value of a metric; no number where there was no finite one.
    pub fn best_of(self, values: &MetricValues) -> f64 {
        match self {
            Goal::Min => values.min,
            Goal::Max => values.max,
        }
    }

    /// A number that is less for a better value.
    fn cost(self, value: f64) -> f64 {
        match self {
            Goal::Min => value,
            Goal::Max => -value,
        }
    }
}

impl Objective {
    /// The value that counts; `None` where it is no finite number.
    pub fn value_of(&self, metrics: &TaskMetrics) -> Option<f64> {
        let values = metrics.get(&self.metric)?;
        let value = match self.value {
            CurveValue::Last => values.last,
            CurveValue::Best => self.goal.best_of(values),
        };
        value.is_finite().then_some(value)
    }
}

/// The best of these tasks by their values: of equals the first, and none whose value is no finite number.
pub fn best(goal: Goal, values: impl IntoIterator<Item = (usize, f64)>) -> Option<usize> {
    let numbers = values.into_iter().filter(|(_, value)| value.is_finite());
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
        assert_eq!(best(Goal::Max, [(7, f64::NEG_INFINITY), (8, f64::NAN)]), None);
        assert_eq!(
            best(Goal::Max, [(7, f64::INFINITY), (8, -1.0)]),
            Some(8),
            "what has grown beyond all numbers"
        );
    }

    #[test]
    fn the_last_or_the_best_value_of_a_curve_counts_and_no_other() {
        let of = |values: &[f64], goal, value| {
            let mut read = MetricValues::NONE;
            values.iter().for_each(|value| read.add(*value));
            let metrics = TaskMetrics::from([("loss".to_owned(), read)]);
            Objective { metric: "loss".to_owned(), goal, value }.value_of(&metrics)
        };
        let curve = [0.5, f64::NAN, 0.25, f64::INFINITY, 0.75];
        assert_eq!(of(&curve, Goal::Min, CurveValue::Last), Some(0.75));
        assert_eq!(of(&curve, Goal::Min, CurveValue::Best), Some(0.25));
        assert_eq!(of(&curve, Goal::Max, CurveValue::Best), Some(0.75));
        assert_eq!(of(&curve[..2], Goal::Min, CurveValue::Last), None, "its last one is no number");
        assert_eq!(of(&curve[..2], Goal::Min, CurveValue::Best), Some(0.5));
        assert_eq!(of(&curve[1..2], Goal::Min, CurveValue::Best), None);
        let other = Objective { metric: "acc".to_owned(), goal: Goal::Max, value: CurveValue::Last };
        assert_eq!(other.value_of(&TaskMetrics::new()), None);
    }

    proptest! {
        #[test]
        fn none_is_better_than_the_best(values in prop::collection::vec(any::<f64>(), 1..20)) {
            for goal in Goal::ALL {
                let best = best(goal, values.iter().copied().enumerate());
                prop_assert_eq!(best.is_none(), values.iter().all(|value| !value.is_finite()));
                if let Some(best) = best {
                    let mut finite = values.iter().filter(|value| value.is_finite());
                    prop_assert!(finite.all(|value| goal.cost(*value) >= goal.cost(values[best])));
                }
            }
        }
    }
}
