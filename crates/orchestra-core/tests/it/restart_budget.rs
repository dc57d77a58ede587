//! Whatever dies, and whenever: each death is judged by those that count beside it, and by nothing else.

use std::time::Duration;

use orchestra_core::restart::{Death, Restart, RestartBudget, RestartPolicy};
use orchestra_core::worker_exit::Evidence;
use orchestra_core::{ErrorClass, WorkerExit};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Event {
    /// A worker completed its first batch.
    Progress,
    Death {
        exit: WorkerExit,
        progressed: bool,
        bisecting: bool,
        jitter: f64,
    },
}

fn exits() -> impl Strategy<Value = WorkerExit> {
    let load_failed = |class| WorkerExit::LoadFailed { class, why: "x".into() };
    prop_oneof![
        6 => Just(WorkerExit::Signal(11)),
        6 => Just(WorkerExit::Signal(9)),
        1 => Just(WorkerExit::Code(1)),
        1 => Just(WorkerExit::Hung),
        1 => Just(WorkerExit::Silent),
        1 => Just(WorkerExit::HandshakeTimeout),
        1 => Just(WorkerExit::Garbled("x".into())),
        1 => Just(WorkerExit::SpawnFailed("x".into())),
        1 => Just(load_failed(ErrorClass::Overload)),
        1 => Just(load_failed(ErrorClass::Permanent)),
        1 => Just(WorkerExit::ProtocolMismatch("x".into())),
        1 => Just(WorkerExit::DeviceLost("it fell off the bus".into())),
        1 => Just(WorkerExit::Clean),
    ]
}

/// What happens, each so many milliseconds after what was before.
fn history() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let rarely = proptest::bool::weighted(0.1);
    let death = (exits(), rarely, rarely, 0.0..1.0f64).prop_map(|(exit, progressed, bisecting, jitter)| {
        Event::Death { exit, progressed, bisecting, jitter }
    });
    let event = prop_oneof![1 => Just(Event::Progress), 16 => death];
    let gap = prop_oneof![3 => 0u64..500, 1 => 0u64..30_000];
    proptest::collection::vec((gap, event), 0..120)
}

fn policies() -> impl Strategy<Value = RestartPolicy> {
    (0usize..8, 0usize..20, 1u64..90).prop_map(|(budget, outside_budget, window)| RestartPolicy {
        budget,
        outside_budget,
        window: Duration::from_secs(window),
        ..RestartPolicy::default()
    })
}

/// Whether a death says something of its place: it is of the worker's own doing, or it came from outside.
fn counts(event: &Event) -> Option<Evidence> {
    match event {
        Event::Death { exit, progressed: false, bisecting: false, .. } if !is_settled(exit) => {
            Some(exit.evidence())
        }
        _ => None,
    }
}

/// What is judged by itself, whatever came before.
fn is_settled(exit: &WorkerExit) -> bool {
    matches!(exit, WorkerExit::Clean | WorkerExit::DeviceLost(_)) || can_never_load(exit)
}

fn can_never_load(exit: &WorkerExit) -> bool {
    matches!(
        exit,
        WorkerExit::ProtocolMismatch(_) | WorkerExit::LoadFailed { class: ErrorClass::Permanent, .. }
    )
}

proptest! {
    #[test]
    fn a_place_is_given_up_exactly_when_more_died_in_the_window_without_progress_than_the_budget_allows(
        policy in policies(), history in history()
    ) {
        let mut budget = RestartBudget::new(policy);
        let (mut now, mut recent) = (Duration::ZERO, Vec::new());
        for (gap, event) in &history {
            now += Duration::from_millis(*gap);
            let Event::Death { exit, progressed, bisecting, jitter } = event else {
                budget.progressed();
                recent.clear();
                continue;
            };
            let (progressed, bisecting) = (*progressed, *bisecting);
            let decision = budget.died(&Death { exit, progressed, bisecting, jitter: *jitter }, now);
            let expected = match counts(event) {
                Some(evidence) => {
                    let is_outside = evidence == Evidence::Weak;
                    recent.push((is_outside, now));
                    let is_like_it = |(outside, at): &&(bool, Duration)| {
                        *outside == is_outside && now - *at <= policy.window
                    };
                    let n = recent.iter().filter(is_like_it).count();
                    let most = if is_outside { policy.outside_budget } else { policy.budget };
                    let pause = match is_outside {
                        true => policy.first_pause / 10,
                        // Doubled with each, up to a bound.
                        false => policy.longest_pause.min(policy.first_pause * (1 << (n - 1).min(16))),
                    };
                    if n > most { Restart::Park } else { Restart::After(pause.mul_f64(0.75 + 0.5 * jitter)) }
                }
                None if matches!(exit, WorkerExit::DeviceLost(_)) => Restart::Park,
                None if can_never_load(exit) && !progressed && !bisecting => Restart::Park,
                None => Restart::After(Duration::ZERO),
            };
            prop_assert_eq!(decision, expected, "{:?}", event);
        }
    }
}
