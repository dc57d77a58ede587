//! Whole schedules, interleaved at random.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::ZERO;

fn spec(after: &[usize], gpus: Gpus) -> TaskSpec {
    let cpu = if matches!(gpus, Gpus::None | Gpus::Instead) { WHOLE } else { 0 };
    TaskSpec {
        after: after.to_vec(),
        may_fail: Vec::new(),
        demand: Demand { gpus, gpu_memory: 0, cpu, cores: 0, priority: 10, after_loss: false },
        retries: Retries::default(),
        attempts_before: 0,
        is_done: false,
        is_held: false,
    }
}

fn demand() -> impl Strategy<Value = Gpus> {
    prop_oneof![
        3 => Just(Gpus::None),
        2 => (1..=WHOLE).prop_map(Gpus::Share),
        1 => (1usize..=3).prop_map(Gpus::Count),
        1 => (0usize..3).prop_map(Gpus::This),
    ]
}

fn end() -> impl Strategy<Value = TaskEnd> {
    prop_oneof![
        5 => Just(TaskEnd::Done),
        1 => Just(TaskEnd::OutOfMemory),
        2 => Just(TaskEnd::DeviceLost),
        1 => Just(TaskEnd::Code(1)),
        1 => Just(TaskEnd::Timeout(NOW)),
        1 => Just(TaskEnd::NotStarted(String::new())),
    ]
}

proptest! {
    /// Whatever the order of ends: no slot, core or GPU has two owners, shares of a GPU add up to one at most, nothing starts before what it
    /// comes after, and every task has one end.
    #[test]
    fn every_task_ends_once_and_no_lease_is_given_twice(
        tasks in prop::collection::vec((demand(), prop::collection::vec((0usize..30, any::<bool>()), 0..3), 0usize..3, any::<bool>()), 1..30),
        ends in prop::collection::vec((any::<usize>(), end()), 200),
    ) {
        let specs: Vec<TaskSpec> = tasks.iter().enumerate().map(|(at, (gpus, after, cores, is_done))| {
            let after: BTreeMap<usize, bool> = after.iter().copied().filter(|(t, _)| *t < at).collect();
            let may_fail = after.iter().filter(|(_, may_fail)| **may_fail).map(|(t, _)| *t).collect();
            let retries = Retries { out_of_memory: 1, device_lost: 2, timeout: 1, ..Retries::default() };
            let mut spec = spec(&after.into_keys().collect::<Vec<_>>(), *gpus);
            spec.demand.cores = *cores;
            TaskSpec { retries, may_fail, is_done: *is_done && at % 5 == 0, ..spec }
        }).collect();
        let mut schedule = Schedule::new(specs.clone(), Leases::new(&[0, 0, 0], 2, 3));
        let mut running: BTreeMap<usize, Lease> = BTreeMap::new();
        let mut done: BTreeSet<usize> = (0..specs.len()).filter(|t| specs[*t].is_done).collect();
        let mut ended = done.clone();
        let mut ends = ends.into_iter();
        loop {
            for start in schedule.start(NOW) {
                let spec = &specs[start.task];
                let has_ended = |t: &usize| done.contains(t) || spec.may_fail.contains(t) && ended.contains(t);
                prop_assert!(spec.after.iter().all(has_ended));
                prop_assert!(!ended.contains(&start.task));
                prop_assert!(running.insert(start.task, start.lease).is_none());
            }
            let leases = || running.values();
            let slots: BTreeSet<usize> = leases().map(|lease| lease.slot).collect();
            prop_assert_eq!(slots.len(), running.len());
            let cores: Vec<usize> = leases().flat_map(|lease| lease.cores.clone()).collect();
            prop_assert_eq!(cores.iter().collect::<BTreeSet<_>>().len(), cores.len());
            for gpu in 0..3 {
                let share = running.iter().filter(|(_, lease)| lease.gpus.contains(&gpu)).map(|(task, _)| match specs[*task].demand.gpus {
                    Gpus::Share(share) => share,
                    _ => WHOLE,
                });
                prop_assert!(share.sum::<u32>() <= WHOLE);
            }
            let cpu = running.keys().filter(|task| specs[**task].demand.gpus == Gpus::None);
            prop_assert!(cpu.count() <= 2);
            if running.is_empty() {
                break;
            }
            let (which, end) = ends.next().unwrap_or((0, TaskEnd::Done));
            let task = *running.keys().nth(which % running.len()).unwrap();
            running.remove(&task);
            match schedule.ended(task, end, NOW) {
                After::Done => { prop_assert!(done.insert(task) && ended.insert(task)); }
                After::Failed { skipped } => {
                    prop_assert!(ended.insert(task));
                    for task in skipped {
                        prop_assert!(ended.insert(task));
                    }
                }
                After::Again | After::Stopped => {}
            }
        }
        prop_assert!(schedule.is_over());
        prop_assert_eq!(ended.len(), specs.len());
    }
}

#[test]
fn retries_are_counted_by_class_and_wait_for_their_pause() {
    let pause = Duration::from_secs(5);
    let retries = Retries { timeout: 1, code: 1, pause, ..Retries::default() };
    let task = TaskSpec { retries, attempts_before: 3, ..spec(&[], Gpus::None) };
    let mut schedule = Schedule::new(vec![task], Leases::new(&[], 1, 1));
    assert_eq!(schedule.start(NOW)[0].attempt, 4);
    assert_eq!(schedule.ended(0, TaskEnd::Timeout(NOW), NOW), After::Again);
    assert_eq!((schedule.start(NOW), schedule.wake_at(), schedule.is_over()), (vec![], Some(pause), false));
    assert_eq!(schedule.start(pause)[0].attempt, 5);
    assert_eq!(schedule.ended(0, TaskEnd::Code(1), pause), After::Again, "another class");
    schedule.start(pause * 2);
    assert_eq!(schedule.ended(0, TaskEnd::Code(1), pause), After::Failed { skipped: vec![] });
}

#[test]
fn a_share_that_ran_out_of_memory_is_tried_again_with_the_gpu_to_itself() {
    let retries = Retries { out_of_memory: 1, ..Retries::default() };
    let half = || TaskSpec { retries, ..spec(&[], Gpus::Share(500)) };
    let mut schedule = Schedule::new(vec![half(), half()], Leases::new(&[0], 1, 1));
    assert_eq!(schedule.start(NOW).len(), 2);
    assert_eq!(schedule.ended(0, TaskEnd::OutOfMemory, NOW), After::Again);
    assert_eq!(schedule.start(NOW), [], "the other half is taken");
    assert_eq!(schedule.ended(1, TaskEnd::Done, NOW), After::Done);
    assert_eq!(schedule.start(NOW).len(), 1);
}

#[test]
fn what_is_held_starts_nothing_until_it_has_passed_and_skips_what_comes_after_it_when_it_is_given_up() {
    let held = || TaskSpec { is_held: true, ..spec(&[], Gpus::None) };
    let specs =
        vec![held(), spec(&[0, 2], Gpus::None), spec(&[], Gpus::None), held(), spec(&[3], Gpus::None)];
    let mut schedule = Schedule::new(specs, Leases::new(&[], 4, 4));
    assert_eq!(schedule.start(NOW).iter().map(|start| start.task).collect::<Vec<_>>(), [2]);
    schedule.pass(0);
    assert!(schedule.start(NOW).is_empty(), "it comes after two");
    assert_eq!(schedule.ended(2, TaskEnd::Done, NOW), After::Done);
    assert_eq!(schedule.start(NOW)[0].task, 1);
    assert_eq!(schedule.give_up(3), [4]);
    assert_eq!(schedule.state(4), &TaskState::Skipped(3));
    assert_eq!(schedule.ended(1, TaskEnd::Done, NOW), After::Done);
    assert!(schedule.is_over());
}

#[test]
fn a_gpu_that_models_use_is_given_to_shares_and_to_no_command_alone_until_they_have_ended() {
    let specs = [Gpus::Count(1), Gpus::This(0), Gpus::Share(500), Gpus::Share(WHOLE), Gpus::Count(2)];
    let specs = specs.map(|gpus| spec(&[], gpus)).to_vec();
    let mut schedule = Schedule::new(specs, Leases::new(&[0, 0], 1, 1));
    schedule.leases().await_models(10, [0]);
    assert_eq!(schedule.hand_over(), [0]);
    let starts = |schedule: &mut Schedule| -> Vec<(usize, Vec<usize>)> {
        schedule.start(NOW).into_iter().map(|start| (start.task, start.lease.gpus)).collect()
    };
    assert_eq!(starts(&mut schedule), [(0, vec![1]), (2, vec![0])]);
    assert_eq!(schedule.ended(2, TaskEnd::Done, NOW), After::Done);
    assert_eq!(starts(&mut schedule), [], "one is alone on the other, and this one is used");
    assert!(!schedule.is_over(), "they wait");
    schedule.leases().models_ended(0);
    assert_eq!(starts(&mut schedule), [(1, vec![0])]);
    assert_eq!(schedule.ended(0, TaskEnd::Done, NOW), After::Done);
    assert_eq!(starts(&mut schedule), [(3, vec![1])]);
}

fn with_priority(priority: u32, spec: TaskSpec) -> TaskSpec {
    TaskSpec { demand: Demand { priority, ..spec.demand }, ..spec }
}

fn tasks_of(starts: Vec<Start>) -> Vec<usize> {
    starts.into_iter().map(|start| start.task).collect()
}

#[test]
fn what_a_task_comes_after_is_as_urgent_and_what_comes_after_a_pipeline_holds_none_up() {
    let held = || TaskSpec { is_held: true, ..spec(&[], Gpus::None) };
    let specs = vec![
        with_priority(1, spec(&[], Gpus::Count(1))),
        with_priority(20, spec(&[0], Gpus::None)),
        held(),
        with_priority(90, spec(&[2], Gpus::Count(1))),
    ];
    let mut schedule = Schedule::new(specs, Leases::new(&[0], 4, 4));
    schedule.leases().await_models(10, [0]);
    assert_eq!((schedule.hand_over(), tasks_of(schedule.start(NOW))), (vec![], vec![0]));
    schedule.ended(0, TaskEnd::Done, NOW);
    assert_eq!((schedule.hand_over(), tasks_of(schedule.start(NOW))), (vec![0], vec![1]));
}

#[test]
fn a_run_that_stops_leaves_devices_to_models_once_commands_have_ended() {
    let specs = vec![with_priority(20, spec(&[], Gpus::Count(1))); 2];
    let mut schedule = Schedule::new(specs, Leases::new(&[0], 4, 4));
    schedule.leases().await_models(10, [0]);
    schedule.hand_over();
    assert_eq!(tasks_of(schedule.start(NOW)), [0]);
    schedule.stop();
    assert_eq!(schedule.hand_over(), []);
    schedule.ended(0, TaskEnd::Stopped, NOW);
    assert_eq!(schedule.hand_over(), [0]);
}

proptest! {
    /// With a pipeline that has models on some GPUs and ends only when it has all of them: no GPU is used by models and by a command alone at
    /// once, whatever the priorities, ends and retries, and all comes to its end.
    #[test]
    fn models_and_commands_alone_never_share_a_gpu_and_none_waits_for_ever(
        tasks in prop::collection::vec((demand(), prop::collection::vec(0usize..20, 0..3), 8u32..13, any::<bool>()), 1..20),
        of_models in prop::collection::btree_set(0usize..3, 1..3),
        ends in prop::collection::vec((any::<usize>(), end()), 100),
    ) {
        let n = tasks.len();
        let mut specs: Vec<TaskSpec> = tasks.iter().enumerate().map(|(at, (gpus, after, priority, is_behind))| {
            let mut after: BTreeSet<usize> = after.iter().copied().filter(|t| *t < at).collect();
            if *is_behind && at % 3 == 0 {
                after.insert(n);
            }
            let retries = Retries { out_of_memory: 1, device_lost: 2, timeout: 1, ..Retries::default() };
            TaskSpec { retries, ..with_priority(*priority, spec(&after.into_iter().collect::<Vec<_>>(), *gpus)) }
        }).collect();
        specs.push(TaskSpec { is_held: true, ..spec(&[], Gpus::None) });
        let mut schedule = Schedule::new(specs, Leases::new(&[0, 0, 0], 2, 3));
        schedule.leases().await_models(10, of_models.clone());
        let mut having: BTreeSet<usize> = BTreeSet::new();
        let mut has_ended = false;
        let mut running: BTreeMap<usize, Lease> = BTreeMap::new();
        let mut ends = ends.into_iter();
        loop {
            having.extend(schedule.hand_over());
            for start in schedule.start(NOW) {
                running.insert(start.task, start.lease);
            }
            for lease in running.values() {
                prop_assert!(!lease.gpus.iter().any(|gpu| having.contains(gpu)) || lease.is_share());
            }
            let (which, end) = ends.next().unwrap_or((0, TaskEnd::Done));
            let can_end = !has_ended && having == of_models;
            match running.keys().nth(which % (running.len() + usize::from(can_end)).max(1)).copied() {
                Some(task) => {
                    running.remove(&task);
                    drop(schedule.ended(task, end, NOW));
                }
                None if can_end => {
                    has_ended = true;
                    having.iter().for_each(|gpu| schedule.leases().models_ended(*gpu));
                    having.clear();
                    schedule.pass(n);
                }
                None => break,
            }
        }
        prop_assert!(has_ended && schedule.is_over());
    }
}
