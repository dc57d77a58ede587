//! Both rules, alone and over whole tables in which attempts report in any order.

use proptest::prelude::*;

use super::best::Goal;
use super::stop_early::{Against, Point, StopEarly, StopRule, Trials};

fn trials(rule: StopRule, warmup: u64, goal: Goal) -> Trials {
    Trials::new(StopEarly { rule, warmup, step: None }, goal)
}

fn flat(value: f64, steps: u32) -> Vec<Point> {
    (1..=steps).map(|step| (f64::from(step), value)).collect()
}

fn rule() -> impl Strategy<Value = StopRule> {
    prop_oneof![
        (1usize..5).prop_map(|min_tasks| StopRule::Median { min_tasks }),
        (2u64..5).prop_map(|eta| StopRule::Asha { eta }),
    ]
}

#[test]
fn the_median_rule_waits_for_its_steps_and_for_enough_others() {
    let mut trials = trials(StopRule::Median { min_tasks: 3 }, 2, Goal::Min);
    for (task, value) in [(0, 1.0), (1, 2.0)] {
        assert_eq!(trials.report(task, &flat(value, 5)), None);
    }
    assert_eq!(trials.report(9, &flat(9.0, 3)), None, "two others are too few");
    trials.know(2, flat(3.0, 4));
    trials.begin(9);
    assert_eq!(trials.report(9, &flat(9.0, 1)), None, "it is too early");
    let verdict = trials.report(9, &flat(9.0, 4)).unwrap();
    assert_eq!(verdict.against, Against::Median { median: 2.0, others: 3 });
    assert_eq!(verdict.to_string(), "9 at step 4 is worse than 2, the median of 3 others");
    assert_eq!(trials.report(9, &flat(9.0, 4)), None, "a step is judged once");
    trials.begin(9);
    let mut better_before = flat(9.0, 4);
    better_before[1].1 = 1.5;
    assert_eq!(trials.report(9, &better_before), None, "its best value counts");
    assert_eq!(trials.report(8, &flat(9.0, 5)), None, "two have come as far");
}

#[test]
fn asha_lets_one_of_eta_go_on_at_each_rung() {
    let mut trials = trials(StopRule::Asha { eta: 3 }, 2, Goal::Max);
    assert_eq!(trials.report(0, &flat(0.1, 2)), None, "the first is the best so far");
    assert_eq!(trials.report(1, &flat(0.5, 2)), None, "and so is the next");
    let verdict = trials.report(2, &flat(0.3, 3)).unwrap();
    assert_eq!((verdict.step, &verdict.against), (2.0, &Against::Best { kept: 1, of: 3 }));
    assert_eq!(verdict.to_string(), "0.3 at step 2 is not among the best 1 of 3");
    assert_eq!(trials.report(0, &flat(0.1, 5)), None, "a rung is judged when it is reached");
    assert_eq!(trials.report(1, &flat(0.5, 6)), None);
    assert_eq!(trials.report(0, &flat(0.1, 7)).unwrap().step, 6.0);
    assert!(trials.report(3, &flat(f64::NAN, 2)).is_some(), "what is no number is worse than any");
}

proptest! {
    /// Attempts report one step after the other, in any order, until they are asked to end.
    #[test]
    fn the_best_attempt_is_never_asked_to_end(
        rule in rule(),
        warmup in 0u64..4,
        values in prop::collection::vec(prop::collection::vec(-9i32..9, 12), 2..12),
        order in prop::collection::vec(any::<prop::sample::Index>(), 150),
    ) {
        // The last attempt is better than all others at each step.
        let mut values: Vec<Vec<f64>> = values.iter().map(|of| of.iter().map(|value| f64::from(*value)).collect()).collect();
        let best = values.len() - 1;
        values[best] = vec![-10.0; 12];
        for goal in Goal::ALL {
            let sign = if goal == Goal::Min { 1.0 } else { -1.0 };
            let mut trials = trials(rule, warmup, goal);
            let mut at = vec![Some(0usize); values.len()];
            for which in &order {
                let running: Vec<usize> = (0..values.len()).filter(|task| at[*task].is_some_and(|n| n < 12)).collect();
                if running.is_empty() { break; }
                let task = *which.get(&running);
                let n = at[task].unwrap() + 1;
                let curve: Vec<Point> = (0..n).map(|step| ((step + 1) as f64, sign * values[task][step])).collect();
                let verdict = trials.report(task, &curve);
                if let Some(verdict) = &verdict {
                    prop_assert!(task != best);
                    prop_assert!(verdict.step >= warmup as f64 && verdict.step <= n as f64);
                }
                at[task] = verdict.is_none().then_some(n);
            }
        }
    }

    /// Values go through `best_until` and medians alike: less is better exactly as more of their negatives is.
    #[test]
    fn the_goal_is_a_sign(
        rule in rule(),
        warmup in 0u64..4,
        reports in prop::collection::vec((0usize..6, 1u32..12, -9i32..9), 1..60),
    ) {
        let (mut less, mut more) = (trials(rule, warmup, Goal::Min), trials(rule, warmup, Goal::Max));
        for (task, steps, value) in reports {
            let value = f64::from(value);
            let steps_of = |verdict: Option<super::stop_early::Verdict>| verdict.map(|verdict| verdict.step);
            let (a, b) = (less.report(task, &flat(value, steps)), more.report(task, &flat(-value, steps)));
            prop_assert_eq!(steps_of(a), steps_of(b));
        }
    }

    /// Of attempts that all come to a rung one after the other, no more go on than ASHA says: at most those that were the best when they came,
    /// or among the best 1/eta.
    #[test]
    fn those_that_go_on_are_among_the_best_of_those_before_them(eta in 2u64..5, values in prop::collection::vec(-99i32..99, 1..40)) {
        let mut trials = trials(StopRule::Asha { eta }, 1, Goal::Min);
        for (task, value) in values.iter().enumerate() {
            let goes_on = trials.report(task, &flat(f64::from(*value), 1)).is_none();
            let better = values[..task].iter().filter(|other| *other < value).count();
            prop_assert_eq!(goes_on, better < ((task + 1) / eta as usize).max(1));
        }
    }

    #[test]
    fn an_attempt_alone_is_never_asked_to_end(rule in rule(), steps in prop::collection::vec(1u32..30, 1..10)) {
        let mut trials = trials(rule, 0, Goal::Min);
        for steps in steps {
            prop_assert_eq!(trials.report(0, &flat(f64::NAN, steps)), None);
        }
    }
}
