//! Which attempts are not worth going on with, by what they and others have reported at the same step. It ends nothing and reads no clock.
//!
//! *Median*: at each step, the best value of an attempt so far against the median of what the others had at that step (Golovin et al., *Google
//! Vizier*, 2017; as Optuna's `MedianPruner`). *ASHA*: at steps `warmup`, `warmup` · `eta`, `warmup` · `eta`², .. whether it is among the best 1/`eta`
//! of all that have come so far (Li et al., *A System for Massively Parallel Hyperparameter Tuning*, 2020).

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::tasks::best::Goal;

/// When attempts of a table are asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StopEarly {
    pub rule: StopRule,
    /// No attempt is before this step.
    pub warmup: u64,
    /// The place of the metric that counts steps; `None`: values of the objective are counted.
    pub step: Option<usize>,
}

/// Which attempts are asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopRule {
    /// Those that are worse than the median of at least so many others.
    Median {
        /// How many others there must be.
        min_tasks: usize,
    },
    /// Those that are not among the best of this part.
    Asha {
        /// One of so many goes on at each rung.
        eta: u64,
    },
}

/// A step, and the value of the objective there. Steps of a curve rise.
pub type Point = (f64, f64);

/// Why an attempt is asked to end.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The step at which it was judged.
    pub step: f64,
    /// Its best value until then.
    pub value: f64,
    pub against: Against,
}

/// What an attempt was compared with.
#[derive(Debug, Clone, PartialEq)]
pub enum Against {
    /// The median of others.
    Median {
        median: f64,
        /// How many others.
        others: usize,
    },
    /// The best of those that have come as far.
    Best {
        /// How many go on.
        kept: usize,
        /// Of how many.
        of: usize,
    },
}

/// The curves of the tasks of a table.
#[derive(Debug, Clone)]
pub struct Trials {
    rule: StopEarly,
    goal: Goal,
    curves: BTreeMap<usize, Vec<Point>>,
    /// The last step at which each running attempt was judged.
    judged: BTreeMap<usize, f64>,
}

impl Trials {
    /// Those of a table without any curve.
    #[must_use]
    pub fn new(rule: StopEarly, goal: Goal) -> Self {
        Self { rule, goal, curves: BTreeMap::new(), judged: BTreeMap::new() }
    }

    /// The curve of a task that has ended before.
    pub fn know(&mut self, task: usize, curve: Vec<Point>) {
        self.curves.insert(task, curve);
    }

    /// An attempt at a task begins: its curve takes the place of that of the attempt before.
    pub fn begin(&mut self, task: usize) {
        self.curves.remove(&task);
        self.judged.remove(&task);
    }

    /// All that a running attempt has reported so far; whether it is to end. Each step is judged once.
    pub fn report(&mut self, task: usize, curve: &[Point]) -> Option<Verdict> {
        let now = curve.last()?.0;
        self.curves.insert(task, curve.to_vec());
        let before = self.judged.insert(task, now).unwrap_or(f64::NEG_INFINITY);
        if now <= before {
            return None;
        }
        match self.rule.rule {
            StopRule::Median { min_tasks } if now >= self.rule.warmup as f64 => {
                self.below_median(task, now, min_tasks)
            }
            StopRule::Median { .. } => None,
            StopRule::Asha { eta } => {
                let first = self.rule.warmup.max(1) as f64;
                let rungs = std::iter::successors(Some(first), |rung| Some(rung * eta as f64));
                let mut passed = rungs.take_while(|rung| *rung <= now).filter(|rung| *rung > before);
                passed.find_map(|rung| self.not_among_best(task, rung, eta))
            }
        }
    }

    fn below_median(&self, task: usize, step: f64, min_tasks: usize) -> Option<Verdict> {
        let own = self.best_until(task, step)?;
        let others = self.curves.iter().filter(|(other, _)| **other != task);
        let at_step = |(_, curve): (&usize, &Vec<Point>)| Some(until(curve, step)?.last()?.1);
        let mut others: Vec<f64> = others.filter_map(at_step).map(|value| self.goal.cost(value)).collect();
        if others.len() < min_tasks.max(1) {
            return None;
        }
        others.sort_unstable_by(f64::total_cmp);
        let half = others.len() / 2;
        let median = match others.len() % 2 {
            1 => others[half],
            _ => f64::midpoint(others[half - 1], others[half]),
        };
        let against = Against::Median { median: self.value(median), others: others.len() };
        (own > median).then(|| Verdict { step, value: self.value(own), against })
    }

    fn not_among_best(&self, task: usize, rung: f64, eta: u64) -> Option<Verdict> {
        let own = self.best_until(task, rung)?;
        let all = self.curves.keys().filter_map(|task| self.best_until(*task, rung));
        let (better, of) = all.fold((0, 0), |(better, of), cost| (better + usize::from(cost < own), of + 1));
        let kept = (of / usize::try_from(eta).unwrap_or(usize::MAX).max(1)).max(1);
        let against = Against::Best { kept, of };
        (better >= kept).then(|| Verdict { step: rung, value: self.value(own), against })
    }

    /// The least cost of a task that has come as far as this step, until then.
    fn best_until(&self, task: usize, step: f64) -> Option<f64> {
        let costs = until(self.curves.get(&task)?, step)?.iter().map(|(_, value)| self.goal.cost(*value));
        costs.min_by(f64::total_cmp)
    }

    fn value(&self, cost: f64) -> f64 {
        match self.goal {
            Goal::Min => cost,
            Goal::Max => -cost,
        }
    }
}

/// Completes "was asked to end early, because its .. ".
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, value, against } = self;
        match against {
            Against::Median { median, others } => {
                let others = format!("{others} other{}", if *others == 1 { "" } else { "s" });
                write!(f, "{value} at step {step} is worse than {median}, the median of {others}")
            }
            Against::Best { kept, of } => {
                write!(f, "{value} at step {step} is not among the best {kept} of {of}")
            }
        }
    }
}

/// The points of a curve up to a step, at least the first one; `None` for a curve that has not come as far.
fn until(curve: &[Point], step: f64) -> Option<&[Point]> {
    curve.last().filter(|last| last.0 >= step)?;
    Some(&curve[..curve.partition_point(|point| point.0 <= step).max(1)])
}
