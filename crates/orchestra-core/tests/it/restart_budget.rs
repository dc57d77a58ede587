//! Whatever dies, and whenever: a device with progress is not parked, one without is before long, and pauses have bounds.

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
    prop_oneof![
        Just(WorkerExit::Signal(11)),
        Just(WorkerExit::Signal(9)),
        Just(WorkerExit::Code(1)),
        Just(WorkerExit::Hung),
        Just(WorkerExit::Silent),
        Just(WorkerExit::HandshakeTimeout),
        Just(WorkerExit::Garbled("x".into())),
        Just(WorkerExit::SpawnFailed("x".into())),
        Just(WorkerExit::LoadFailed { class: ErrorClass::Overload, why: "x".into() }),
    ]
}

fn permanent() -> impl Strategy<Value = WorkerExit> {
    prop_oneof![
        Just(WorkerExit::LoadFailed { class: ErrorClass::Permanent, why: "x".into() }),
        Just(WorkerExit::ProtocolMismatch("x".into())),
    ]
}

fn deaths(exits: impl Strategy<Value = WorkerExit>) -> impl Strategy<Value = Event> {
    let rarely = proptest::bool::weighted(0.1);
    (exits, rarely, rarely, 0.0..1.0f64).prop_map(|(exit, progressed, bisecting, jitter)| Event::Death {
        exit,
        progressed,
        bisecting,
        jitter,
    })
}

/// Events without workers that were asked to end, each so many milliseconds after the one before.
fn history() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![1 => Just(Event::Progress), 8 => deaths(exits())];
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

/// Plays a history; gives the decisions, and the time after the last event.
fn play(budget: &mut RestartBudget, history: &[(u64, Event)]) -> (Vec<Option<Restart>>, Duration) {
    let mut now = Duration::ZERO;
    let decisions = history.iter().map(|(gap, event)| {
        now += Duration::from_millis(*gap);
        match event {
            Event::Progress => {
                budget.progressed();
                None
            }
            Event::Death { exit, progressed, bisecting, jitter } => {
                let death = Death { exit, progressed: *progressed, bisecting: *bisecting, jitter: *jitter };
                Some(budget.died(&death, now))
            }
        }
    });
    let decisions = decisions.collect();
    (decisions, now)
}

/// Deaths that count against the device in the window before and at `at`, since the last progress there: of its own doing, and from
/// outside.
fn counted(history: &[(u64, Event)], at: usize, window: Duration) -> (usize, usize) {
    let times: Vec<u64> = history
        .iter()
        .scan(0, |t, (gap, _)| {
            *t += gap;
            Some(*t)
        })
        .collect();
    let since = history[..at].iter().rposition(|(_, e)| matches!(e, Event::Progress)).unwrap_or(0);
    let (mut own, mut outside) = (0, 0);
    for (i, (_, event)) in history.iter().enumerate().take(at + 1).skip(since) {
        let Event::Death { exit, progressed: false, bisecting: false, .. } = event else { continue };
        if u128::from(times[at] - times[i]) > window.as_millis() {
            continue;
        }
        *(if exit.evidence() == Evidence::Weak { &mut outside } else { &mut own }) += 1;
    }
    (own, outside)
}

proptest! {
    #[test]
    fn a_device_is_parked_exactly_when_more_died_in_the_window_without_progress_than_the_budget_allows(
        policy in policies(), history in history()
    ) {
        let (decisions, _) = play(&mut RestartBudget::new(policy), &history);
        for (i, (decision, (_, event))) in decisions.iter().zip(&history).enumerate() {
            let (Some(decision), Event::Death { exit, progressed, bisecting, .. }) = (decision, event) else { continue };
            let (own, outside) = counted(&history, i, policy.window);
            let spent = if exit.evidence() == Evidence::Weak {
                outside > policy.outside_budget
            } else {
                own > policy.budget
            };
            let parks = !progressed && !bisecting && spent;
            prop_assert_eq!(decision == &Restart::Park, parks, "death {} of {} own and {} outside", i, own, outside);
        }
    }

    #[test]
    fn a_worker_that_ended_as_asked_is_replaced_at_once_and_spends_nothing(
        policy in policies(), history in history(), jitter in 0.0..1.0f64
    ) {
        let mut budget = RestartBudget::new(policy);
        let (_, end) = play(&mut budget, &history);
        let spent = budget.spent();
        for _ in 0..policy.budget + policy.outside_budget + 2 {
            let death = Death { exit: &WorkerExit::Clean, progressed: false, bisecting: false, jitter };
            prop_assert_eq!(budget.died(&death, end), Restart::After(Duration::ZERO));
        }
        prop_assert_eq!(budget.spent(), spent);
    }

    #[test]
    fn pauses_are_bounded_grow_with_the_deaths_and_are_never_nothing_for_a_death_that_counts(
        policy in policies(), history in history(), jitter in 0.0..1.0f64
    ) {
        let (decisions, _) = play(&mut RestartBudget::new(policy), &history);
        let longest = policy.longest_pause.mul_f64(1.25);
        for (decision, (_, event)) in decisions.iter().zip(&history) {
            let (Some(Restart::After(pause)), Event::Death { progressed, bisecting, .. }) = (decision, event) else { continue };
            prop_assert!(*pause <= longest);
            prop_assert_eq!(pause.is_zero(), *progressed || *bisecting);
        }
        let policy = RestartPolicy { budget: 40, ..policy };
        let mut budget = RestartBudget::new(policy);
        let mut last = Duration::ZERO;
        for _ in 0..40 {
            let exit = WorkerExit::Signal(11);
            let death = Death { exit: &exit, progressed: false, bisecting: false, jitter };
            let Restart::After(pause) = budget.died(&death, Duration::ZERO) else { panic!("the budget is 40") };
            prop_assert!(pause >= last);
            last = pause;
        }
    }

    #[test]
    fn a_death_that_comes_later_is_never_judged_more_harshly(
        policy in policies(), history in history(), exit in exits(), earlier in 0u64..90_000, more in 0u64..90_000
    ) {
        let mut budget = RestartBudget::new(policy);
        let (_, end) = play(&mut budget, &history);
        let death = Death { exit: &exit, progressed: false, bisecting: false, jitter: 0.5 };
        let at = |ms: u64| budget.clone().died(&death, end + Duration::from_millis(ms));
        match (at(earlier), at(earlier + more)) {
            (Restart::After(soon), Restart::After(late)) => prop_assert!(late <= soon),
            (Restart::After(_), Restart::Park) => prop_assert!(false, "parked for dying later"),
            (Restart::Park, _) => {}
        }
    }

    #[test]
    fn what_can_never_work_is_parked_at_once_whatever_came_before(
        policy in policies(), history in history(), exit in permanent()
    ) {
        let mut budget = RestartBudget::new(policy);
        let (_, end) = play(&mut budget, &history);
        let death = Death { exit: &exit, progressed: false, bisecting: false, jitter: 0.5 };
        prop_assert_eq!(budget.died(&death, end), Restart::Park);
    }
}
