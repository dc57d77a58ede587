//! Spare workers: one that is loaded takes the place of a worker that dies, and nothing is lost, whatever happens to either of them.
//! Says nothing about how long that takes.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{AS_IT_IS, Workplace, bounded, each_shows_its_own_picture, until};
use orchestra::{
    DeviceKind, Launched, Launcher, ProcessLauncher, RunHandle, RunOutcome, StartOptions, WorkerEvent,
    WorkerExit, WorkerId, WorkerMemory,
};
use orchestra_testkit::Trap;
use orchestra_testkit::faulty::FAULT;
use orchestra_testkit::records::items;
use orchestra_testkit::striker::{Fault, strike};
use orchestra_testkit::{images, models, trap_library};

/// Seconds of work for one worker, so that a run goes on while something is waited for. Most tests stop it after that.
const ITEMS: u64 = 4_000;
const SLOW: usize = 500;

/// What happened to the workers of a run, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<WorkerEvent>>>);

impl Log {
    fn events(&self) -> Vec<WorkerEvent> {
        self.0.lock().unwrap().clone()
    }

    fn at(&self, wanted: impl Fn(&WorkerEvent) -> bool) -> Option<usize> {
        self.events().iter().position(wanted)
    }

    fn started(&self) -> Vec<(WorkerId, u32)> {
        let started = |e: &WorkerEvent| match e {
            WorkerEvent::Started { worker, pid, .. } => Some((*worker, pid.unwrap())),
            _ => None,
        };
        self.events().iter().filter_map(started).collect()
    }

    fn is_ready(&self, worker: WorkerId) -> bool {
        self.at(|e| matches!(e, WorkerEvent::Ready { worker: w, .. } if *w == worker)).is_some()
    }

    fn serves(&self, worker: WorkerId) -> bool {
        self.at(|e| matches!(e, WorkerEvent::Serving { worker: w, .. } if *w == worker)).is_some()
    }

    fn exit(&self, worker: WorkerId) -> Option<WorkerExit> {
        self.events().iter().find_map(|e| match e {
            WorkerEvent::Ended { worker: w, exit } if *w == worker => Some(exit.clone()),
            _ => None,
        })
    }

    /// Who took the place of this worker, and whether as a spare.
    fn successor(&self, of: WorkerId) -> Option<(WorkerId, bool)> {
        self.events().iter().find_map(|e| match e {
            WorkerEvent::Serving { worker, replaces, was_spare } if *replaces == Some(of) => {
                Some((*worker, *was_spare))
            }
            _ => None,
        })
    }

    /// A live worker that is loaded and gets no batches.
    fn standing_by(&self) -> Option<WorkerId> {
        let mut started = self.started().into_iter().map(|(w, _)| w);
        started.find(|w| self.is_ready(*w) && !self.serves(*w) && self.exit(*w).is_none())
    }

    /// A live worker that gets batches.
    fn serving(&self) -> Option<WorkerId> {
        let mut started = self.started().into_iter().map(|(w, _)| w);
        started.find(|w| self.serves(*w) && self.exit(*w).is_none())
    }

    fn strike(&self, worker: WorkerId, fault: Fault) {
        let (_, pid) = self.started().into_iter().find(|(w, _)| *w == worker).unwrap();
        assert!(strike(std::process::id(), pid, fault), "{worker} is gone already");
    }

    async fn until_one_stands_by(&self) -> WorkerId {
        // One that is loaded to serve counts as standing by until it does, so another worker has to serve already.
        let mut found = None;
        until("a spare stands by", || {
            found = self.serving().and_then(|_| self.standing_by());
            found.is_some()
        })
        .await;
        found.unwrap()
    }
}

fn workplace(n: u64, steps: usize, model: &str) -> Workplace {
    let mut place = Workplace::with_pictures(n);
    let slow = models::slow_blocks(&place.models(), [1, 32, 32], steps).unwrap();
    place
        .model("slow", slow, model)
        .image("pixels", "scans", AS_IT_IS)
        .infer("read", "pixels", "slow", 1)
        .sink("all", "read", "")
        .devices(1)
        .one_by_one();
    place
}

fn listening(place: &Workplace, log: &Log) -> StartOptions {
    let events = Arc::clone(&log.0);
    let hook = move |event: &WorkerEvent| events.lock().unwrap().push(event.clone());
    StartOptions { events: Some(Arc::new(hook)), ..place.options() }
}

/// A run of a workplace, and what is heard of its workers.
async fn start(place: &Workplace) -> (RunHandle, Log) {
    let log = Log::default();
    (place.start_with(listening(place, &log)).await, log)
}

/// Stops a run in order. What it has done is there once, and nothing else is.
async fn stop(place: &Workplace, run: RunHandle) -> RunOutcome {
    let stop = run.stop_handle();
    stop.interrupt();
    let outcome = bounded("the run ends", run.wait()).await;
    Workplace::must_end_with(&outcome, 130);
    let records = place.records(&["all.jsonl"]);
    each_shows_its_own_picture(&records, "all.jsonl", "blocks");
    assert_eq!(records.done.len() as u64, outcome.report.items.done);
    assert_eq!(place.n_lines("all.jsonl") as u64, outcome.report.items.done);
    assert!(records.failed.is_empty(), "{:?}", records.failed);
    assert_eq!(place.workers(), [], "no worker outlives its run");
    outcome
}

fn complete(place: &Workplace, n: u64) {
    let records = place.records(&["all.jsonl"]);
    records.must_be(1, &items("scans", 0..n), &BTreeSet::new()).unwrap();
    each_shows_its_own_picture(&records, "all.jsonl", "blocks");
}

/// Starts workers in one way until so many were started, and all others in another.
struct FirstThen {
    first: ProcessLauncher,
    left: AtomicUsize,
    then: ProcessLauncher,
}

impl Launcher for FirstThen {
    fn launch(
        &self,
        device: &DeviceKind,
        env: &[(&str, &str)],
        memory: WorkerMemory<'_>,
    ) -> io::Result<Launched> {
        let is_first = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        let launcher = if is_first.is_ok() { &self.first } else { &self.then };
        launcher.launch(device, env, memory)
    }
}

/// A run whose first worker is honest, and whose spares all have this fault.
async fn start_with_spares_that(fault: &str, place: &Workplace) -> (RunHandle, Log) {
    let log = Log::default();
    let launcher = FirstThen {
        first: place.workers_of_ours(),
        left: AtomicUsize::new(1),
        then: place.faulty_workers(&[(FAULT, fault)]),
    };
    let mut options = StartOptions { launcher: Some(Arc::new(launcher)), ..listening(place, &log) };
    options.restart.first_pause = Duration::from_millis(5);
    options.timeouts.handshake = Duration::from_secs(3600);
    (place.start_with(options).await, log)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_place_of_a_killed_worker_is_taken_by_a_spare_that_was_loaded_before() {
    let place = workplace(ITEMS, SLOW, "workers = 1\nspare = 1");
    let (run, log) = start(&place).await;
    let spare = log.until_one_stands_by().await;
    let killed = log.serving().unwrap();
    log.strike(killed, Fault::Kill);
    until("its place is taken", || log.successor(killed).is_some()).await;
    assert_eq!(log.successor(killed), Some((spare, true)));
    let has_worked =
        |e: &WorkerEvent| matches!(e, WorkerEvent::BatchDone { worker, rows: 1 } if *worker == spare);
    until("it works", || log.at(has_worked).is_some()).await;
    let loaded = log.at(|e| matches!(e, WorkerEvent::Ready { worker, .. } if *worker == spare));
    let died = log.at(|e| matches!(e, WorkerEvent::Ended { worker, .. } if *worker == killed));
    assert!(loaded.unwrap() < died.unwrap(), "{:#?}", log.events());
    assert_eq!(log.exit(killed), Some(WorkerExit::Signal(9)));
    let next = log.until_one_stands_by().await;
    assert!(next != spare);
    let device = stop(&place, run).await.report.devices[0].clone();
    assert_eq!((device.workers, device.spares, device.starts), (1, 1, 3), "{device:?}");
    assert_eq!((device.restarts, device.spare_takeovers), (1, 1), "{device:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_model_has_a_spare_unasked_and_none_when_it_is_declined() {
    let place = workplace(ITEMS, SLOW, "workers = 1");
    let (run, log) = start(&place).await;
    log.until_one_stands_by().await;
    assert_eq!(stop(&place, run).await.report.devices[0].spares, 1);
    let place = workplace(ITEMS, SLOW, "workers = 1\nspare = 0");
    let (run, log) = start(&place).await;
    until("it works", || log.serving().is_some()).await;
    let killed = log.serving().unwrap();
    log.strike(killed, Fault::Kill);
    until("its place is taken", || log.successor(killed).is_some()).await;
    assert_eq!(log.successor(killed).map(|(_, was_spare)| was_spare), Some(false));
    let device = stop(&place, run).await.report.devices[0].clone();
    assert_eq!((device.spares, device.starts, device.restarts, device.spare_takeovers), (0, 2, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_spare_is_replaced_and_the_worker_that_serves_goes_on() {
    let place = workplace(ITEMS, SLOW, "workers = 1\nspare = 1");
    let (run, log) = start(&place).await;
    let spare = log.until_one_stands_by().await;
    let serving = log.serving().unwrap();
    log.strike(spare, Fault::Kill);
    until("its death is known", || log.exit(spare).is_some()).await;
    let next = log.until_one_stands_by().await;
    assert!(next != spare);
    assert_eq!(log.exit(serving), None);
    let device = stop(&place, run).await.report.devices[0].clone();
    assert_eq!((device.starts, device.restarts, device.spare_takeovers), (3, 1, 0), "{device:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spare_that_is_killed_while_it_loads_is_replaced() {
    let place = workplace(ITEMS, SLOW, "workers = 1\nspare = 1");
    let (run, log) = start(&place).await;
    until("a spare is started", || log.started().len() == 2).await;
    let (spare, _) = log.started()[1];
    log.strike(spare, Fault::Kill);
    let next = log.until_one_stands_by().await;
    assert!(next != spare && log.exit(spare).is_some());
    stop(&place, run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spare_that_still_loads_takes_the_place_and_no_second_load_is_begun_for_it() {
    let place = workplace(ITEMS, SLOW, "workers = 1\nspare = 1");
    let (run, log) = start(&place).await;
    until("a spare is started", || log.started().len() == 2).await;
    let (killed, spare) = (log.started()[0].0, log.started()[1].0);
    log.strike(killed, Fault::Kill);
    until("its place is taken", || log.successor(killed).is_some()).await;
    assert_eq!(log.successor(killed), Some((spare, true)));
    stop(&place, run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_and_its_spare_that_are_killed_together_are_both_replaced() {
    let place = workplace(ITEMS, SLOW, "workers = 1\nspare = 1");
    let (run, log) = start(&place).await;
    for round in 0..6 {
        let spare = log.until_one_stands_by().await;
        until("a worker serves", || log.serving().is_some()).await;
        let serving = log.serving().unwrap();
        let order = if round % 2 == 0 { [serving, spare] } else { [spare, serving] };
        for worker in order {
            log.strike(worker, Fault::Kill);
        }
        until("both are gone", || order.iter().all(|w| log.exit(*w).is_some())).await;
    }
    log.until_one_stands_by().await;
    until("a worker serves", || log.serving().is_some()).await;
    let device = stop(&place, run).await.report.devices[0].clone();
    assert_eq!(device.restarts, 12, "each of twelve deaths is made up for: {device:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_spare_is_ended_and_replaced() {
    let place = workplace(ITEMS, SLOW, "workers = 1\nspare = 1");
    let (run, log) = start(&place).await;
    let spare = log.until_one_stands_by().await;
    log.strike(spare, Fault::Stop);
    until("it is given up", || log.exit(spare).is_some()).await;
    assert_eq!(log.exit(spare), Some(WorkerExit::Silent));
    log.until_one_stands_by().await;
    stop(&place, run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_place_of_a_frozen_worker_is_taken_by_the_spare() {
    let place = workplace(ITEMS, SLOW, "workers = 1\nspare = 1");
    let (run, log) = start(&place).await;
    let spare = log.until_one_stands_by().await;
    let frozen = log.serving().unwrap();
    log.strike(frozen, Fault::Stop);
    until("its place is taken", || log.successor(frozen).is_some()).await;
    assert_eq!(log.successor(frozen), Some((spare, true)));
    assert_eq!(log.exit(frozen), Some(WorkerExit::Silent));
    stop(&place, run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spares_that_cannot_load_are_given_up_and_the_worker_that_serves_does_all_the_work() {
    const N: u64 = 60;
    for fault in ["load-failed", "die-on-load", "garbage"] {
        let place = workplace(N, SLOW, "workers = 1\nspare = 2");
        let (run, log) = start_with_spares_that(fault, &place).await;
        let outcome = bounded("the run ends", run.wait()).await;
        Workplace::must_end_with(&outcome, 0);
        complete(&place, N);
        assert!(log.started().len() >= 2, "`{fault}`: no spare was started");
        assert_eq!(outcome.report.devices[0].spare_takeovers, 0, "`{fault}`");
        assert_eq!(place.workers(), []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spare_that_is_loading_when_the_run_ends_is_not_waited_for() {
    const N: u64 = 60;
    let place = workplace(N, SLOW, "workers = 1\nspare = 1");
    // It would not say hello for an hour.
    let (run, log) = start_with_spares_that("never-hello", &place).await;
    let outcome = bounded("the run ends", run.wait()).await;
    Workplace::must_end_with(&outcome, 0);
    assert_eq!(log.started().len(), 2, "there was a spare");
    assert_eq!(log.exit(log.started()[1].0), Some(WorkerExit::Clean), "it was ended by us");
    complete(&place, N);
    assert_eq!(place.workers(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loop_at_start_ends_the_run_with_69_and_the_last_words_as_without_spares() {
    for (script, says) in
        [("echo no such driver >&2; exit 3", "no such driver"), ("kill -SEGV $$", "killed by SIGSEGV")]
    {
        let place = workplace(12, 1, "workers = 2\nspare = 2");
        let mut launcher = place.workers_of_ours();
        launcher.program = "/bin/sh".into();
        launcher.args = vec!["-c".into(), script.into()];
        let mut options = StartOptions { launcher: Some(Arc::new(launcher)), ..place.options() };
        options.restart.first_pause = Duration::from_millis(5);
        let outcome = place.run_with(options).await;
        Workplace::must_end_with(&outcome, 69);
        let said = outcome.problems.join("\n");
        assert!(said.contains(says), "`{script}`: {said}");
        let device = &outcome.report.devices[0];
        assert_eq!((outcome.report.items.read, device.spare_takeovers), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_die_at_their_first_batch_end_the_run_with_69_however_many_spares_there_are() {
    let place = workplace(120, 1, "workers = 2\nspare = 4");
    let workers = place.faulty_workers(&[(FAULT, "abort-on-batch:1")]);
    let mut options = StartOptions { launcher: Some(Arc::new(workers)), ..place.options() };
    options.restart.first_pause = Duration::from_millis(5);
    let outcome = place.run_with(options).await;
    Workplace::must_end_with(&outcome, 69);
    assert!(outcome.report.items.failed <= 24, "{:?}", outcome.report.items);
}

#[tokio::test(flavor = "multi_thread")]
async fn spares_are_the_successors_of_recycled_workers_and_that_is_no_restart() {
    const N: u64 = 200;
    let place = workplace(N, 100, "workers = 1\nspare = 1\nrecycle = { batches = 20 }");
    let log = Log::default();
    let outcome = place.run_with(listening(&place, &log)).await;
    Workplace::must_end_with(&outcome, 0);
    complete(&place, N);
    let device = &outcome.report.devices[0];
    assert_eq!(device.restarts, 0, "{device:?}");
    assert_eq!(device.batches, N, "no batch ran twice: {device:?}");
    let exits: Vec<_> = log.started().iter().map(|(w, _)| log.exit(*w)).collect();
    assert!(exits.iter().all(|e| *e == Some(WorkerExit::Clean)), "{exits:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recycled_worker_hands_over_to_the_spare_that_stands_by() {
    // So many that the spare is there long before.
    let place = workplace(ITEMS, SLOW, "workers = 1\nspare = 1\nrecycle = { batches = 150 }");
    let (run, log) = start(&place).await;
    let spare = log.until_one_stands_by().await;
    let old = log.serving().unwrap();
    until("it is recycled", || log.successor(old).is_some()).await;
    assert_eq!(log.successor(old), Some((spare, true)));
    until("the old one ends", || log.exit(old).is_some()).await;
    assert_eq!(log.exit(old), Some(WorkerExit::Clean));
    let device = stop(&place, run).await.report.devices[0].clone();
    assert!(device.spare_takeovers >= 1 && device.restarts == 0, "{device:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poison_item_is_blamed_alone_although_spares_stand_in_for_those_it_kills() {
    const N: u64 = 200;
    let mut place = Workplace::with_pictures(N);
    for index in [50, 51, 120] {
        images::write_trap_picture(&place.path("images"), index, Trap::Abort).unwrap();
    }
    let trap = models::blocks_behind_trap(&place.models(), [1, 32, 32]).unwrap();
    place
        .model(
            "trap",
            trap,
            &format!(
                "workers = 2\nspare = 2\ncustom_ops = [{:?}]\nsandbox_write = \"gate\"",
                trap_library().unwrap()
            ),
        )
        .image("pixels", "scans", AS_IT_IS)
        .infer("read", "pixels", "trap", 8)
        .sink("all", "read", "")
        .devices(1);
    let outcome = place.run().await;
    Workplace::must_end_with(&outcome, 65);
    let poison = items("scans", [50, 51, 120]);
    let done = items("scans", 0..N).difference(&poison).cloned().collect();
    let records = place.records(&["all.jsonl"]);
    records.must_be(1, &done, &poison).unwrap();
    each_shows_its_own_picture(&records, "all.jsonl", "blocks");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_kills_on_workers_and_spares_loses_and_doubles_nothing() {
    const N: u64 = 1_000;
    let place = workplace(N, 100, "workers = 2\nspare = 1");
    let (run, log) = start(&place).await;
    let mut kills = 0;
    let mut ended = std::pin::pin!(run.wait());
    let mut look = tokio::time::interval(Duration::from_millis(5));
    let outcome = bounded("the run ends", async {
        loop {
            tokio::select! {
                outcome = &mut ended => break outcome,
                _ = look.tick() => {
                    let due = kills < 20 && place.n_lines("all.jsonl") >= kills * 30;
                    if due && place.kill_a_worker(kills % 3 != 0) {
                        kills += 1;
                    }
                }
            }
        }
    })
    .await;
    Workplace::must_end_with(&outcome, 0);
    complete(&place, N);
    assert!(kills >= 10, "{kills} kills");
    let device = &outcome.report.devices[0];
    assert!(device.spare_takeovers >= 1, "{device:?}");
    assert_eq!(place.workers(), []);
    let each_ended = log.started().iter().all(|(w, _)| log.exit(*w).is_some());
    assert!(each_ended, "each worker that was started has ended: {:#?}", log.events());
}
