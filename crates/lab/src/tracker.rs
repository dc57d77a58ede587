//! Which workers serve, which were struck, and when work went on after that: arithmetic over what a run tells of its workers. It knows no clock and
//! no process; times are given to it.

use std::collections::BTreeMap;
use std::time::Duration;

use orchestra_core::{DeviceId, StageId, WorkerExit, WorkerId};
use orchestra_runtime::WorkerEvent;

use crate::striker::Fault;

/// A strike at a worker that served, and what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strike {
    pub fault: Fault,
    /// Until a batch was completed in the same place again.
    pub recovery: Option<Duration>,
    /// Until another worker of the stage completed a batch.
    pub stall: Option<Duration>,
    /// Until the victim was known to be gone.
    pub notice: Option<Duration>,
    /// Until a worker served in its place.
    pub takeover: Option<Duration>,
    at: Duration,
    stage: StageId,
    victim: WorkerId,
    /// The worker in the victim's place now.
    heir: WorkerId,
}

/// All that was seen of a run's workers.
#[derive(Debug, Default)]
pub struct Tracker {
    workers: BTreeMap<WorkerId, Worker>,
    /// Those for which nothing more is to be measured, and those after them.
    settled: Vec<Strike>,
    open: Vec<Strike>,
    /// Workers that served, are gone, and in whose place no worker serves yet; the longest gone first.
    vacant: Vec<WorkerId>,
    /// Times between two batches of one worker.
    pub gaps: Vec<Duration>,
    /// From the start of a process until its model was loaded and warm: of those that were started before any batch was done.
    pub first_loads: Vec<Duration>,
    /// The same of those that were started later.
    pub later_loads: Vec<Duration>,
    /// Workers that died without a strike.
    pub other_deaths: u64,
    /// When the first batch was done.
    pub first_batch: Option<Duration>,
    /// When the last one was.
    pub last_batch: Option<Duration>,
}

#[derive(Debug)]
struct Worker {
    stage: StageId,
    device: DeviceId,
    /// It was started before any batch was done.
    is_early: bool,
    phase: Phase,
    struck: bool,
    /// Not to be struck before it has finished a batch.
    spared: bool,
    last_done: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Loading,
    Serves,
    /// It is healthy, and another one has its place.
    Leaves,
    Gone,
}

impl Tracker {
    /// Something happened at `now`.
    pub fn saw(&mut self, event: &WorkerEvent, now: Duration) {
        match event {
            WorkerEvent::Started { worker, stage, device, .. } => {
                let born = Worker {
                    stage: *stage,
                    device: *device,
                    is_early: self.first_batch.is_none(),
                    phase: Phase::Loading,
                    struck: false,
                    spared: false,
                    last_done: None,
                };
                self.workers.insert(*worker, born);
            }
            WorkerEvent::Ready { worker, after } => self.ready(*worker, *after),
            WorkerEvent::Serving { worker, replaces } => {
                self.serves(*worker);
                if let Some(old) = replaces {
                    self.inherits(*worker, *old, now);
                }
            }
            WorkerEvent::BatchDone { worker, .. } => self.done(*worker, now),
            WorkerEvent::Ended { worker, exit } => self.ended(*worker, exit, now),
            // Its workers end, which is told of each.
            WorkerEvent::DeviceLost { .. } => {}
        }
    }

    /// Those that may be struck now, lowest id first: they serve.
    pub fn targets(&self) -> Vec<WorkerId> {
        let may = |w: &Worker| match w.phase {
            Phase::Serves => !(w.spared && w.last_done.is_none()),
            Phase::Loading | Phase::Leaves | Phase::Gone => false,
        };
        self.workers.iter().filter(|(_, w)| !w.struck && may(w)).map(|(id, _)| *id).collect()
    }

    /// It was struck at `now`.
    pub fn struck(&mut self, victim: WorkerId, fault: Fault, now: Duration) {
        let Some(worker) = self.workers.get_mut(&victim) else { return };
        worker.struck = true;
        let stage = worker.stage;
        let (recovery, stall, notice, takeover) = (None, None, None, None);
        self.open.push(Strike {
            fault,
            recovery,
            stall,
            notice,
            takeover,
            at: now,
            stage,
            victim,
            heir: victim,
        });
    }

    /// All strikes at workers that served.
    pub fn strikes(&self) -> impl Iterator<Item = &Strike> {
        self.settled.iter().chain(&self.open)
    }

    fn ready(&mut self, worker: WorkerId, after: Duration) {
        let Some(w) = self.workers.get_mut(&worker) else { return };
        let loads = if w.is_early { &mut self.first_loads } else { &mut self.later_loads };
        loads.push(after);
    }

    fn serves(&mut self, worker: WorkerId) {
        if let Some(w) = self.workers.get_mut(&worker) {
            w.phase = Phase::Serves;
        }
    }

    fn inherits(&mut self, heir: WorkerId, named: WorkerId, now: Duration) {
        let old = self.who_served_before(heir, named);
        for strike in self.open.iter_mut().filter(|s| s.heir == old) {
            strike.heir = heir;
            strike.takeover.get_or_insert(now.saturating_sub(strike.at));
        }
        let in_vain = self.workers.get(&old).is_some_and(|w| w.struck && w.last_done.is_none());
        if let Some(w) = self.workers.get_mut(&heir) {
            w.spared = in_vain;
        }
    }

    /// The worker that was the last to serve in the place that `heir` takes from `named`. That may have died before it served, as the heir of one
    /// of whom nothing is told any more. The places of a stage on a device are alike: so it is that which has been empty for longest.
    fn who_served_before(&mut self, heir: WorkerId, named: WorkerId) -> WorkerId {
        if let Some(w) = self.workers.get_mut(&named).filter(|w| w.phase == Phase::Serves) {
            w.phase = Phase::Leaves;
            return named;
        }
        let home = |id: WorkerId| self.workers.get(&id).map(|w| (w.stage, w.device));
        let is_named = self.vacant.iter().position(|id| *id == named);
        let place = is_named.or_else(|| self.vacant.iter().position(|id| home(*id) == home(heir)));
        place.map_or(named, |place| self.vacant.remove(place))
    }

    fn done(&mut self, worker: WorkerId, now: Duration) {
        let Some(w) = self.workers.get_mut(&worker) else { return };
        self.first_batch.get_or_insert(now);
        self.last_batch = Some(now);
        if let Some(before) = w.last_done.replace(now) {
            self.gaps.push(now.saturating_sub(before));
        }
        let stage = w.stage;
        for strike in self.open.iter_mut().filter(|s| s.stage == stage && s.victim != worker) {
            let since = now.saturating_sub(strike.at);
            strike.stall.get_or_insert(since);
            if strike.heir == worker {
                strike.recovery = Some(since);
            }
        }
        // In its place a batch is done only after a worker of the stage has done one, so nothing is left to be measured.
        self.settled.extend(self.open.extract_if(.., |s| s.recovery.is_some()));
    }

    fn ended(&mut self, worker: WorkerId, exit: &WorkerExit, now: Duration) {
        for strike in self.open.iter_mut().filter(|s| s.victim == worker) {
            strike.notice = Some(now.saturating_sub(strike.at));
        }
        let known = self.workers.get_mut(&worker);
        let struck = known.is_some_and(|w| {
            if std::mem::replace(&mut w.phase, Phase::Gone) == Phase::Serves {
                self.vacant.push(worker);
            }
            w.struck
        });
        if !struck && *exit != WorkerExit::Clean {
            self.other_deaths += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: WorkerExit = WorkerExit::Signal(9);

    /// A tracker with a clock that is set by hand, in milliseconds.
    #[derive(Default)]
    struct Scene(Tracker);

    impl Scene {
        fn saw(&mut self, at: u64, event: WorkerEvent) {
            self.0.saw(&event, Duration::from_millis(at));
        }

        fn starts(&mut self, worker: u32, stage: u16) {
            let (worker, stage) = (WorkerId(worker), StageId(stage));
            self.saw(0, WorkerEvent::Started { worker, device: DeviceId(0), stage, pid: None });
        }

        fn ready(&mut self, worker: u32) {
            self.ready_after(worker, 7);
        }

        fn ready_after(&mut self, worker: u32, after: u64) {
            let (worker, after) = (WorkerId(worker), Duration::from_millis(after));
            self.saw(0, WorkerEvent::Ready { worker, after });
        }

        /// It dies while it loads.
        fn fails(&mut self, worker: u32) {
            self.starts(worker, 0);
            self.ends(worker, WorkerExit::Signal(6));
        }

        fn serves(&mut self, worker: u32, replaces: Option<u32>) {
            let (worker, replaces) = (WorkerId(worker), replaces.map(WorkerId));
            self.saw(0, WorkerEvent::Serving { worker, replaces });
        }

        fn takes(&mut self, worker: u32, replaces: Option<u32>) {
            self.starts(worker, 0);
            self.ready(worker);
            self.serves(worker, replaces);
        }

        fn done(&mut self, worker: u32, at: u64) {
            self.saw(at, WorkerEvent::BatchDone { worker: WorkerId(worker), rows: 1 });
        }

        fn ends(&mut self, worker: u32, exit: WorkerExit) {
            self.saw(0, WorkerEvent::Ended { worker: WorkerId(worker), exit });
        }

        fn kill(&mut self, worker: u32, at: u64) {
            self.0.struck(WorkerId(worker), Fault::Kill, Duration::from_millis(at));
            self.ends(worker, KILLED);
        }

        fn targets(&self) -> Vec<u32> {
            self.0.targets().iter().map(|w| w.0).collect()
        }

        /// Of each strike, recovery and stall in milliseconds.
        fn times(&self) -> Vec<(Option<u128>, Option<u128>)> {
            let ms = |d: Option<Duration>| d.map(|d| d.as_millis());
            self.0.strikes().map(|s| (ms(s.recovery), ms(s.stall))).collect()
        }
    }

    #[test]
    fn recovery_ends_with_a_batch_of_the_heir_and_stall_with_one_of_anybody() {
        let mut s = Scene::default();
        s.takes(0, None);
        s.takes(1, None);
        s.done(0, 10);
        s.kill(0, 20);
        s.done(1, 23);
        s.takes(2, Some(0));
        s.done(1, 40);
        assert_eq!(s.times(), [(None, Some(3))]);
        s.done(2, 50);
        s.done(2, 60);
        assert_eq!(s.times(), [(Some(30), Some(3))]);
        assert_eq!(s.0.gaps, [17, 10].map(Duration::from_millis));
        assert_eq!(
            (s.0.first_batch, s.0.last_batch),
            (Some(Duration::from_millis(10)), Some(Duration::from_millis(60)))
        );
    }

    #[test]
    fn what_the_victim_had_said_before_it_died_is_no_recovery() {
        let mut s = Scene::default();
        s.takes(0, None);
        s.0.struck(WorkerId(0), Fault::Kill, Duration::from_millis(5));
        s.done(0, 6);
        assert_eq!(s.times(), [(None, None)]);
    }

    #[test]
    fn an_heir_that_is_struck_hands_the_place_and_the_waiting_on() {
        let mut s = Scene::default();
        s.takes(0, None);
        s.done(0, 1);
        s.kill(0, 10);
        s.takes(1, Some(0));
        s.kill(1, 20);
        s.takes(2, Some(1));
        s.done(2, 35);
        assert_eq!(s.times(), [(Some(25), Some(25)), (Some(15), Some(15))]);
    }

    #[test]
    fn heirs_that_die_while_they_load_pass_the_waiting_and_the_sparing_on() {
        let mut s = Scene::default();
        s.takes(0, None);
        s.kill(0, 10);
        s.fails(1);
        s.fails(2);
        s.takes(3, Some(2));
        assert_eq!(s.targets(), [0; 0], "the last to serve in its place was struck in vain");
        s.done(3, 40);
        assert_eq!(s.times(), [(Some(30), Some(30))]);
        assert_eq!(s.targets(), [3]);
    }

    #[test]
    fn each_of_two_empty_places_goes_to_one_heir() {
        let mut s = Scene::default();
        s.takes(0, None);
        s.takes(1, None);
        s.kill(0, 10);
        s.kill(1, 20);
        s.fails(2);
        s.takes(3, Some(2));
        s.takes(4, Some(0));
        s.done(3, 50);
        s.done(4, 60);
        assert_eq!(s.times(), [(Some(40), Some(40)), (Some(40), Some(30))]);
    }

    #[test]
    fn a_place_of_another_device_is_not_mistaken_for_its_own() {
        let mut s = Scene::default();
        let (worker, stage) = (WorkerId(0), StageId(0));
        s.saw(0, WorkerEvent::Started { worker, device: DeviceId(1), stage, pid: None });
        s.ready(0);
        s.serves(0, None);
        s.kill(0, 10);
        s.fails(1);
        s.takes(2, Some(1));
        s.done(2, 30);
        assert_eq!(s.times(), [(None, Some(20))]);
    }

    #[test]
    fn a_worker_that_is_recycled_leaves_no_place_empty() {
        let mut s = Scene::default();
        s.takes(0, None);
        s.takes(1, Some(0));
        assert_eq!(s.targets(), [1], "the old one only ends its batches");
        s.ends(0, WorkerExit::Clean);
        s.kill(1, 10);
        s.fails(2);
        s.takes(3, Some(2));
        s.done(3, 25);
        assert_eq!(s.times(), [(Some(15), Some(15))]);
    }

    #[test]
    fn loads_at_the_start_and_loads_beside_work_are_kept_apart() {
        let mut s = Scene::default();
        s.starts(0, 0);
        s.starts(1, 0);
        s.ready_after(0, 1);
        s.serves(0, None);
        s.ready_after(1, 2);
        s.done(0, 5);
        s.starts(2, 0);
        s.ready_after(2, 3);
        s.kill(0, 10);
        s.serves(1, Some(0));
        s.serves(2, None);
        s.starts(3, 0);
        s.ready_after(3, 4);
        assert_eq!(s.0.first_loads, [1, 2].map(Duration::from_millis));
        assert_eq!(s.0.later_loads, [3, 4].map(Duration::from_millis));
    }

    #[test]
    fn another_stage_says_nothing_about_this_one() {
        let mut s = Scene::default();
        s.takes(0, None);
        s.starts(1, 1);
        s.serves(1, None);
        s.kill(0, 10);
        s.done(1, 20);
        assert_eq!(s.times(), [(None, None)], "no more work came: it is not measured");
    }

    #[test]
    fn only_those_who_serve_are_targets_and_only_once() {
        let mut s = Scene::default();
        s.starts(0, 0);
        assert_eq!(s.targets(), [0; 0]);
        s.ready(0);
        assert_eq!(s.targets(), [0; 0]);
        s.serves(0, None);
        s.takes(1, None);
        assert_eq!(s.targets(), [0, 1]);
        s.0.struck(WorkerId(0), Fault::Stop, Duration::ZERO);
        assert_eq!(s.targets(), [1], "a stopped one is not struck again");
        s.ends(1, WorkerExit::Clean);
        assert_eq!(s.targets(), [0; 0]);
    }

    #[test]
    fn a_successor_of_one_that_was_struck_in_vain_is_spared_until_it_has_done_a_batch() {
        let mut s = Scene::default();
        s.takes(0, None);
        s.kill(0, 1);
        s.takes(1, Some(0));
        assert_eq!(s.targets(), [0; 0]);
        s.done(1, 5);
        assert_eq!(s.targets(), [1]);
        s.kill(1, 6);
        s.takes(2, Some(1));
        assert_eq!(s.targets(), [2], "its predecessor had done a batch");
    }

    #[test]
    fn deaths_of_other_causes_are_counted_apart() {
        let mut s = Scene::default();
        s.takes(0, None);
        s.takes(1, None);
        s.ends(0, WorkerExit::Signal(6));
        s.ends(1, WorkerExit::Clean);
        assert_eq!(s.0.other_deaths, 1);
        assert!(s.times().is_empty());
    }
}
