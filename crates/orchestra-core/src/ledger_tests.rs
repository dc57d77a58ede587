//! Properties of the ledger under random interleavings of deliveries, faults and deaths.

use proptest::prelude::*;

use super::*;
use crate::ids::SlotId;

fn rows(slot: u32, count: usize) -> Rows {
    Rows { slot: SlotId(slot), first: 0, count }
}

const T: Duration = Duration::ZERO;

#[derive(Debug, Clone)]
enum Step {
    Add(usize),
    WorkerReady(u16),
    Dispatch,
    Done(usize),
    Fault(usize, u8),
    Die(usize, u8),
    StaleDone(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1usize..9).prop_map(Step::Add),
        2 => (0u16..3).prop_map(Step::WorkerReady),
        6 => Just(Step::Dispatch),
        4 => (0usize..16).prop_map(Step::Done),
        2 => ((0usize..16), 0u8..3).prop_map(|(w, k)| Step::Fault(w, k)),
        2 => ((0usize..16), 0u8..4).prop_map(|(w, k)| Step::Die(w, k)),
        1 => (0usize..16).prop_map(Step::StaleDone),
    ]
}

#[derive(Default)]
struct World {
    added: Vec<(u32, usize)>,
    ended: Vec<(u32, usize)>,
    held: Vec<(WorkerId, BatchId)>,
    answered: Vec<(WorkerId, BatchId)>,
    alive: Vec<WorkerId>,
    next_worker: u32,
}

impl World {
    fn end(&mut self, r: Rows) {
        self.ended.extend((r.first..r.first + r.count).map(|i| (r.slot.0, i)));
    }

    fn after(&mut self, a: Aftermath) {
        if let Aftermath::Failed(f) = a {
            assert_eq!(f.rows.count, 1, "only single items are failed");
            self.end(f.rows);
        }
    }

    fn apply(&mut self, ledger: &mut Ledger, step: Step) {
        match step {
            Step::Add(n) => {
                let slot = u32::try_from(self.added.len()).unwrap();
                self.added.push((slot, n));
                ledger.add(rows(slot, n), LeaveReason::Full);
            }
            Step::WorkerReady(device) => {
                let id = WorkerId(self.next_worker);
                self.next_worker += 1;
                self.alive.push(id);
                ledger.worker_ready(id, DeviceId(device));
            }
            Step::Dispatch => {
                if let Some(a) = ledger.dispatch(T) {
                    assert!(a.rows.count >= 1);
                    self.held.push((a.worker, a.batch));
                }
            }
            Step::Done(i) => {
                if let Some((w, b)) = self.pick(i) {
                    let c = ledger.done(w, b, T).expect("it holds the batch");
                    self.answered.push((w, b));
                    self.end(c.rows);
                }
            }
            Step::Fault(i, kind) => {
                if let Some((w, b)) = self.pick(i) {
                    let fault = [RunFault::Model, RunFault::OutOfMemory, RunFault::Device][usize::from(kind)];
                    let a = ledger.fault(w, b, fault, "no".into(), T).expect("it holds the batch");
                    self.answered.push((w, b));
                    self.after(a);
                    if fault == RunFault::Device {
                        self.lose(ledger, w, &WorkerExit::Code(71));
                    }
                }
            }
            Step::Die(i, kind) => {
                if self.alive.is_empty() {
                    return;
                }
                let w = self.alive[i % self.alive.len()];
                let exit =
                    [WorkerExit::Signal(9), WorkerExit::Signal(11), WorkerExit::Hung, WorkerExit::Clean]
                        [usize::from(kind)]
                    .clone();
                self.lose(ledger, w, &exit);
            }
            Step::StaleDone(i) => {
                if !self.answered.is_empty() {
                    let (w, b) = self.answered[i % self.answered.len()];
                    assert_eq!(ledger.done(w, b, T), None, "an answer counts once");
                }
            }
        }
    }

    fn lose(&mut self, ledger: &mut Ledger, w: WorkerId, exit: &WorkerExit) {
        self.alive.retain(|x| *x != w);
        self.held.retain(|(x, _)| *x != w);
        for a in ledger.worker_lost(w, exit, "").aftermath {
            self.after(a);
        }
    }

    fn pick(&mut self, i: usize) -> Option<(WorkerId, BatchId)> {
        if self.held.is_empty() {
            return None;
        }
        let at = i % self.held.len();
        Some(self.held.remove(at))
    }

    fn everything_ends(mut self, ledger: &mut Ledger) {
        for _ in 0..100_000 {
            if ledger.n_batches() == 0 {
                break;
            }
            if self.alive.is_empty() {
                self.apply(ledger, Step::WorkerReady(0));
            }
            if let Some(a) = ledger.dispatch(Duration::from_secs(3600)) {
                self.held.push((a.worker, a.batch));
            }
            self.apply(ledger, Step::Done(0));
        }
        assert_eq!(ledger.n_batches(), 0, "nothing waits for ever");
        let mut all: Vec<(u32, usize)> =
            self.added.iter().flat_map(|&(s, n)| (0..n).map(move |i| (s, i))).collect();
        self.ended.sort_unstable();
        all.sort_unstable();
        assert_eq!(self.ended, all, "every row ends exactly once");
    }
}

proptest! {
    #[test]
    fn every_row_ends_exactly_once_whatever_happens(steps in proptest::collection::vec(step(), 0..200)) {
        let mut ledger = Ledger::new(8);
        let mut world = World::default();
        for s in steps {
            world.apply(&mut ledger, s);
        }
        world.everything_ends(&mut ledger);
    }
}

#[test]
fn what_a_dead_worker_had_not_begun_is_sent_again_without_a_stain() {
    let mut ledger = Ledger::new(4);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.add(rows(0, 4), LeaveReason::Full);
    ledger.add(rows(1, 4), LeaveReason::Full);
    let (a, b) = (ledger.dispatch(T).unwrap(), ledger.dispatch(T).unwrap());
    let lost = ledger.worker_lost(WorkerId(0), &WorkerExit::Signal(9), "");
    assert!(matches!(lost.aftermath[..], [Aftermath::Requeued(_), Aftermath::Requeued(_)]));
    ledger.worker_ready(WorkerId(1), DeviceId(0));
    let again = ledger.dispatch(T).unwrap();
    assert_eq!((again.rows, again.attempt, again.reason), (a.rows, 2, LeaveReason::Retry));
    let second = ledger.dispatch(T).unwrap();
    assert_eq!((second.rows, second.attempt, second.reason), (b.rows, 1, LeaveReason::Retry));
}

#[test]
fn a_worker_that_reports_a_broken_device_stains_only_the_batch_it_reported() {
    let mut ledger = Ledger::new(1);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.add(rows(0, 1), LeaveReason::Full);
    ledger.add(rows(1, 1), LeaveReason::Full);
    let (a, b) = (ledger.dispatch(T).unwrap(), ledger.dispatch(T).unwrap());
    let _ = ledger.fault(WorkerId(0), a.batch, RunFault::Device, "sick".into(), T);
    assert_eq!(ledger.dispatch(T), None, "it gets nothing more");
    let lost = ledger.worker_lost(WorkerId(0), &WorkerExit::Code(71), "");
    assert!(matches!(lost.aftermath[..], [Aftermath::Requeued(_)]));
    ledger.worker_ready(WorkerId(1), DeviceId(0));
    let next = [ledger.dispatch(T).unwrap(), ledger.dispatch(T).unwrap()];
    let attempts: Vec<_> = next.iter().map(|n| (n.rows, n.attempt)).collect();
    assert_eq!(attempts, [(a.rows, 2), (b.rows, 1)], "what had not begun is not an attempt");
}

#[test]
fn out_of_memory_halves_the_batch_and_what_follows_is_cut_to_the_ceiling() {
    let mut ledger = Ledger::new(8);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.add(rows(0, 8), LeaveReason::Full);
    let a = ledger.dispatch(T).unwrap();
    assert_eq!(
        ledger.fault(WorkerId(0), a.batch, RunFault::OutOfMemory, String::new(), T),
        Some(Aftermath::Split(a.batch))
    );
    assert_eq!(ledger.ceiling(DeviceId(0)), 4);
    ledger.add(rows(1, 8), LeaveReason::Full);
    let mut seen = Vec::new();
    while let Some(a) = ledger.dispatch(T) {
        seen.push((a.rows.slot.0, a.rows.first, a.rows.count));
        ledger.done(WorkerId(0), a.batch, T).unwrap();
    }
    assert_eq!(seen, [(0, 0, 4), (0, 4, 4), (1, 0, 4), (1, 4, 4)]);
}

#[test]
fn an_item_that_never_fits_is_failed_after_it_had_the_device_to_itself_for_a_while() {
    let mut ledger = Ledger::new(1);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.add(rows(0, 1), LeaveReason::Full);
    let mut now = T;
    let end = loop {
        let a = ledger.dispatch(now).expect("it is due");
        match ledger.fault(WorkerId(0), a.batch, RunFault::OutOfMemory, "no memory".into(), now).unwrap() {
            Aftermath::Failed(f) => break f,
            Aftermath::Requeued(_) => {
                assert_eq!(ledger.dispatch(now), None, "not at once");
                now = ledger.next_due().unwrap();
            }
            Aftermath::Split(_) => panic!("a single row cannot be split"),
        }
    };
    assert_eq!(end.kind, FailureKind::OutOfMemory);
    assert!(now >= Duration::from_secs(5), "whoever holds the memory has had time to give it back");
}

#[test]
fn while_a_batch_runs_alone_nothing_else_is_sent() {
    let mut ledger = Ledger::new(1);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.worker_ready(WorkerId(1), DeviceId(0));
    ledger.add(rows(0, 1), LeaveReason::Full);
    let a = ledger.dispatch(T).unwrap();
    let _ = ledger.fault(a.worker, a.batch, RunFault::OutOfMemory, String::new(), T);
    let later = ledger.next_due().unwrap();
    let alone = ledger.dispatch(later).unwrap();
    ledger.add(rows(1, 1), LeaveReason::Full);
    assert_eq!(ledger.dispatch(later), None);
    let _ = ledger.done(alone.worker, alone.batch, later);
    assert!(ledger.dispatch(later).is_some());
}

#[test]
fn a_device_on_which_everything_dies_fails_nobody_while_another_one_works() {
    let mut ledger = Ledger::new(4);
    let (mut next_worker, mut deaths, mut done) = (1, 0, 0);
    ledger.worker_ready(WorkerId(0), DeviceId(1));
    for slot in 0..20 {
        ledger.add(rows(slot, 4), LeaveReason::Full);
    }
    while ledger.n_batches() > 0 {
        let sick = WorkerId(next_worker);
        next_worker += 1;
        ledger.worker_ready(sick, DeviceId(0));
        let mut healthy = Vec::new();
        while let Some(a) = ledger.dispatch(T) {
            if a.worker == WorkerId(0) {
                healthy.push(a.batch);
            }
        }
        for batch in healthy {
            done += ledger.done(WorkerId(0), batch, T).unwrap().rows.count;
        }
        let lost = ledger.worker_lost(sick, &WorkerExit::Signal(11), "");
        assert!(lost.aftermath.iter().all(|a| !matches!(a, Aftermath::Failed(_))), "nobody is failed");
        deaths += 1;
        assert!(deaths < 1000);
    }
    assert_eq!(done, 80);
}

#[test]
fn a_lone_device_on_which_everything_dies_spends_its_budget_before_items_are_blamed_for_it() {
    let mut ledger = Ledger::new(8);
    for slot in 0..10 {
        ledger.add(rows(slot, 8), LeaveReason::Full);
    }
    for i in 0..6 {
        ledger.worker_ready(WorkerId(i), DeviceId(0));
        while ledger.dispatch(T).is_some() {}
        let lost = ledger.worker_lost(WorkerId(i), &WorkerExit::Signal(11), "");
        assert!(!lost.bisecting, "each of these deaths counts against the device");
        assert!(lost.aftermath.iter().all(|a| !matches!(a, Aftermath::Failed(_))));
    }
}

#[test]
fn bisection_among_healthy_work_costs_the_device_no_more_than_three_deaths_in_a_row() {
    for poison in [0, 31, 63] {
        let mut ledger = Ledger::new(64);
        ledger.add(rows(0, 64), LeaveReason::Full);
        let (mut failed, mut crashes, mut counted, mut most, mut worker) = (Vec::new(), 0, 0, 0, 0);
        while ledger.n_batches() > 0 {
            ledger.worker_ready(WorkerId(worker), DeviceId(0));
            worker += 1;
            while let Some(a) = ledger.dispatch(T) {
                if !(a.rows.first..a.rows.first + a.rows.count).contains(&poison) {
                    let _ = ledger.done(a.worker, a.batch, T);
                    counted = 0;
                    continue;
                }
                crashes += 1;
                let lost = ledger.worker_lost(a.worker, &WorkerExit::Signal(6), "");
                counted += u32::from(!lost.bisecting);
                most = most.max(counted);
                failed.extend(lost.aftermath.into_iter().filter_map(|a| match a {
                    Aftermath::Failed(f) => Some(f.rows.first),
                    Aftermath::Requeued(_) | Aftermath::Split(_) => None,
                }));
                break;
            }
        }
        assert_eq!(failed, [poison]);
        assert!(crashes <= 9 && most <= 3, "{crashes} crashes, {most} counted in a row");
    }
}

#[test]
fn workers_that_always_die_at_their_second_batch_get_nobody_failed() {
    let mut ledger = Ledger::new(4);
    for slot in 0..15 {
        ledger.add(rows(slot, 4), LeaveReason::Full);
    }
    let (mut worker, mut done) = (0, 0);
    while ledger.n_batches() > 0 {
        let id = WorkerId(worker);
        worker += 1;
        assert!(worker < 1000);
        ledger.worker_ready(id, DeviceId(0));
        let Some(first) = ledger.dispatch(T) else { panic!("something waits") };
        done += ledger.done(id, first.batch, T).unwrap().rows.count;
        let _ = ledger.dispatch(T);
        let lost = ledger.worker_lost(id, &WorkerExit::Signal(11), "");
        assert!(lost.aftermath.iter().all(|a| !matches!(a, Aftermath::Failed(_))));
    }
    assert_eq!(done, 60);
}

#[test]
fn what_was_sent_before_is_not_counted_as_new() {
    let mut ledger = Ledger::new(2);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.add(rows(0, 2), LeaveReason::Full);
    ledger.add(rows(1, 2), LeaveReason::Full);
    assert!(ledger.dispatch(T).unwrap().first_time && ledger.dispatch(T).unwrap().first_time);
    let _ = ledger.worker_lost(WorkerId(0), &WorkerExit::Signal(9), "");
    ledger.worker_ready(WorkerId(1), DeviceId(0));
    assert!(!ledger.dispatch(T).unwrap().first_time && !ledger.dispatch(T).unwrap().first_time);
}

#[test]
fn an_idle_worker_is_preferred_and_one_that_just_failed_is_not() {
    let mut ledger = Ledger::new(2);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.worker_ready(WorkerId(1), DeviceId(1));
    for s in 0..3 {
        ledger.add(rows(s, 2), LeaveReason::Full);
    }
    let a = ledger.dispatch(T).unwrap();
    let b = ledger.dispatch(T).unwrap();
    assert_eq!((a.worker, b.worker), (WorkerId(0), WorkerId(1)));
    let _ = ledger.fault(WorkerId(0), a.batch, RunFault::Device, String::new(), T);
    let _ = ledger.done(WorkerId(1), b.batch, T);
    assert_eq!(ledger.dispatch(T).unwrap().worker, WorkerId(1));
}

#[test]
fn a_kill_storm_fails_nobody() {
    let mut ledger = Ledger::new(1);
    ledger.add(rows(0, 1), LeaveReason::Full);
    for i in 0..500 {
        ledger.worker_ready(WorkerId(2 * i), DeviceId(0));
        ledger.dispatch(T).unwrap();
        // The storm also hits workers that hold nothing.
        ledger.worker_ready(WorkerId(2 * i + 1), DeviceId(0));
        let _ = ledger.worker_lost(WorkerId(2 * i + 1), &WorkerExit::Signal(9), "");
        let lost = ledger.worker_lost(WorkerId(2 * i), &WorkerExit::Signal(9), "");
        assert!(matches!(lost.aftermath[..], [Aftermath::Requeued(_)]));
    }
}

#[test]
fn a_draining_worker_gets_nothing_new_and_says_when_it_is_empty() {
    let mut ledger = Ledger::new(2);
    ledger.worker_ready(WorkerId(0), DeviceId(0));
    ledger.add(rows(0, 2), LeaveReason::Full);
    ledger.add(rows(1, 2), LeaveReason::Full);
    let a = ledger.dispatch(T).unwrap();
    assert!(!ledger.drain_worker(WorkerId(0)));
    assert_eq!(ledger.dispatch(T), None);
    let _ = ledger.done(WorkerId(0), a.batch, T);
    assert!(ledger.holds_nothing(WorkerId(0)));
}
