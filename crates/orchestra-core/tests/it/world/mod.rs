//! A run without processes: items fill slots, batches close, a ledger gives them to workers that die in every way, replacements come for the
//! workers, and a lineage joins what comes out. Time is a number. What must always hold is asserted while it runs (`checks.rs`).

mod checks;
mod devices;
mod setup;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use orchestra_core::batching::{BatchPolicy, Decision, LeaveReason, OpenBatch};
use orchestra_core::worker_places::WorkerPlaces;

use orchestra_core::ledger::{Assignment, FailedBatchOutcome, FailedRow, Ledger, Rows, RunErrorKind};
use orchestra_core::lineage::{End, Finished, Lineage, Share};
use orchestra_core::restart::RestartPolicy;
use orchestra_core::{BatchId, DeviceId, Failure, ItemId, SlotId, SourceId, WorkerExit, WorkerId};

use checks::Life;
pub use setup::{DeviceSetup, Health, Op, Poison, Setup, ops, setups};
use smallvec::SmallVec;

/// Rounds within which everything that was begun ends.
const ROUNDS: usize = 200_000;
/// How long a worker takes for a batch when nothing else is said.
const ROUND: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timer {
    /// The batcher looks again.
    Look,
    Loaded(WorkerId),
    Ended(WorkerId),
    StartPlace(usize, usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Loading,
    Serving,
}

#[derive(Debug)]
struct Worker {
    device: usize,
    phase: Phase,
    draining: bool,
    broken: bool,
    holds: VecDeque<(BatchId, Rows)>,
    completed: u32,
    begun: u32,
}

#[derive(Debug)]
struct Slot {
    items: Vec<u64>,
    /// Records that are still to come of it.
    left: usize,
}

#[derive(Debug)]
struct Open {
    slot: u32,
    items: Vec<u64>,
    since: Duration,
}

/// The ledger and the decisions around it, what they decide about, and what must come of it.
pub struct World {
    setup: Setup,
    now: Duration,
    ledger: Ledger,
    policy: BatchPolicy,
    lineage: Lineage<u64, u64>,
    /// What the open branches of an item still stand for.
    shares: HashMap<u64, Share>,
    worker_places: Vec<WorkerPlaces>,
    gone: BTreeSet<usize>,
    sick: BTreeSet<usize>,
    rooms: Vec<usize>,
    workers: BTreeMap<WorkerId, Worker>,
    next_worker: u32,
    timers: BTreeMap<(Duration, u64), Timer>,
    next_timer: u64,
    arrived: u64,
    drained: bool,
    open: Option<Open>,
    free_slots: Vec<u32>,
    slots: BTreeMap<u32, Slot>,
    /// Completed rows that one sink has not seen.
    unreported: Vec<Rows>,
    /// Answers that count no more, or never did.
    stale: Vec<(WorkerId, BatchId)>,
    kills_left: u32,
    lives: Vec<Life>,
    ended: Vec<u64>,
    devices: Vec<checks::DeviceLife>,
}

impl World {
    pub fn new(setup: &Setup) -> Self {
        let mut ledger = Ledger::new(setup.max_batch).with_streams(setup.streams).with_ready(setup.ready);
        let n = setup.devices.len();
        (0..n).for_each(|d| ledger.expect_device(device_id(d)));
        let worker_places = |d: &DeviceSetup| WorkerPlaces::new(d.workers, RestartPolicy::default());
        let mut world = Self {
            now: Duration::ZERO,
            ledger,
            policy: BatchPolicy { max_batch: setup.max_batch, enough: setup.max_batch, wait: setup.wait },
            lineage: Lineage::new(setup.ordered),
            shares: HashMap::new(),
            worker_places: setup.devices.iter().map(worker_places).collect(),
            gone: BTreeSet::new(),
            sick: (0..n).filter(|d| setup.devices[*d].health == Health::Kills).collect(),
            rooms: setup.devices.iter().map(|d| d.room).collect(),
            workers: BTreeMap::new(),
            next_worker: 0,
            timers: BTreeMap::new(),
            next_timer: 0,
            arrived: 0,
            drained: false,
            open: None,
            free_slots: (0..setup.slots).collect(),
            slots: BTreeMap::new(),
            unreported: Vec::new(),
            stale: Vec::new(),
            kills_left: setup.kills,
            lives: (0..setup.items).map(|_| Life::default()).collect(),
            ended: Vec::new(),
            devices: setup.devices.iter().map(|_| checks::DeviceLife::default()).collect(),
            setup: setup.clone(),
        };
        for d in 0..n {
            let orders = world.worker_places[d].start();
            world.carry_out(d, orders);
        }
        world.pump();
        world
    }

    pub fn apply(&mut self, op: &Op) {
        match *op {
            Op::Arrive(n) => self.arrive(n),
            Op::Step { worker, second } => self.step_any(worker, second),
            Op::Report(i) => self.report_any(i),
            Op::Stale(i) => self.answer_late(i),
            Op::Kill { worker, frozen } => self.kill_any(worker, frozen),
            Op::Recycle(i) => self.recycle_any(i),
            Op::Wait(ms) => self.wait(Duration::from_millis(ms)),
            Op::LoseDevice => self.lose_device(),
            Op::Room { device, rows } => self.set_room(device, rows),
        }
        self.pump();
    }

    /// Lets everything that was begun come to its end, with these choices for what happens first.
    pub fn run_out(&mut self, choices: &[u8]) {
        for round in 0..ROUNDS {
            let choice = usize::from(choices.get(round % choices.len().max(1)).copied().unwrap_or(0));
            while !self.unreported.is_empty() {
                self.report_any(choice);
            }
            self.arrive(usize::MAX);
            self.drained = self.arrived == self.setup.items;
            self.pump();
            if self.is_over() {
                return;
            }
            let busy = self.busy();
            if busy.is_empty() {
                // What was withdrawn just now is reported first.
                if self.unreported.is_empty() {
                    self.wait_for_next_timer();
                }
                continue;
            }
            // One, some or all of the workers come on.
            for i in 0..=(choice % busy.len()) {
                let worker = busy[(choice + i) % busy.len()];
                if self.workers.contains_key(&worker) {
                    self.step(worker, choice % self.setup.streams);
                    self.pump();
                }
            }
            self.wait(ROUND * u32::from(choice % 4 == 0));
            self.pump();
        }
        panic!("the run does not come to an end: {}", self.describe());
    }

    // ---- The source and its slots

    fn arrive(&mut self, n: usize) {
        for _ in 0..n {
            if self.arrived == self.setup.items {
                return;
            }
            if self.open.is_none() {
                let Some(slot) = self.free_slots.pop() else { return };
                self.open = Some(Open { slot, items: Vec::new(), since: self.now });
            }
            let item = self.arrived;
            self.arrived += 1;
            let open = self.open.as_mut().expect("it was opened above");
            open.items.push(item);
            if open.items.len() == self.setup.max_batch {
                self.close(LeaveReason::Full);
            }
        }
    }

    fn close(&mut self, reason: LeaveReason) {
        let Some(Open { slot, items, .. }) = self.open.take() else { return };
        let count = items.len();
        items.iter().for_each(|i| self.lives[*i as usize].closed(count));
        self.slots.insert(slot, Slot { left: items.len() * self.setup.sinks, items });
        self.ledger.add(Rows { slot: SlotId(slot), first: 0, count }, reason);
    }

    fn items_of(&self, rows: Rows) -> Vec<u64> {
        self.slots[&rows.slot.0].items[rows.first..rows.first + rows.count].to_vec()
    }

    fn records_came(&mut self, slot: SlotId, n: usize) {
        let slot = slot.0;
        let of = self.slots.get_mut(&slot).expect("its rows have no end yet");
        of.left -= n;
        if of.left == 0 {
            self.slots.remove(&slot);
            self.free_slots.push(slot);
        }
    }

    // ---- The batcher

    fn pump(&mut self) {
        loop {
            while let Some(assignment) = self.dispatch() {
                self.replace_workers();
                match self.items_of(assignment.rows).iter().all(|item| self.is_gone(*item)) {
                    true => self.withdrawn(assignment),
                    false => self.sent(assignment),
                }
            }
            self.replace_workers();
            while let Some(row) = self.ledger.next_confirmed() {
                self.fail(row);
            }
            if let Some(due) = self.ledger.next_due(self.now) {
                assert!(due > self.now);
                self.at(due, Timer::Look);
            }
            let as_seen = |o: &Open| OpenBatch { rows: o.items.len(), oldest_since: o.since };
            let open = self.open.as_ref().map(as_seen);
            match self.policy.decide(open, self.ledger.idle_workers(self.now), self.drained, self.now) {
                Decision::Leave(reason) => self.close(reason),
                Decision::LookAgainAt(at) => {
                    self.at(at, Timer::Look);
                    break;
                }
                Decision::Keep => break,
            }
        }
        self.check_that_no_batch_waits_without_reason();
    }

    /// The real batcher is not told of a filled slot where the ledger says that there is no room, so nothing may be sent then.
    fn dispatch(&mut self) -> Option<Assignment> {
        let has_room = self.ledger.has_room();
        let assignment = self.ledger.dispatch(self.now);
        assert!(has_room || assignment.is_none(), "no room, and yet {assignment:?} is sent");
        assignment
    }

    fn replace_workers(&mut self) {
        while let Some(worker) = self.ledger.next_to_replace() {
            self.workers.get_mut(&worker).expect("only workers that are there are replaced").draining = true;
            self.end_if_drained(worker);
        }
    }

    fn sent(&mut self, a: Assignment) {
        self.check_assignment(&a);
        let w = self.workers.get_mut(&a.worker).expect("only workers that are there get batches");
        w.holds.push_back((a.batch, a.rows));
        for item in self.items_of(a.rows) {
            self.lives[item as usize].sent(a.worker);
        }
    }

    /// Whether nobody waits for this item by the time it could be sent.
    fn is_gone(&self, item: u64) -> bool {
        item % 11 == 3 && !self.setup.poison.contains_key(&item)
    }

    /// It is not sent, and its items have an end.
    fn withdrawn(&mut self, a: Assignment) {
        self.check_assignment(&a);
        self.ledger.withdraw(a.worker, a.batch);
        assert_eq!(self.ledger.done(a.worker, a.batch), None, "nobody holds it");
        for item in self.items_of(a.rows) {
            let life = &mut self.lives[item as usize];
            life.sent(a.worker);
            life.ends(true);
        }
        self.unreported.extend(std::iter::repeat_n(a.rows, self.setup.sinks));
    }

    fn waits_again(&mut self, rows: Rows) {
        for item in self.items_of(rows) {
            self.lives[item as usize].waits_again(self.now);
        }
    }

    fn fail(&mut self, row: FailedRow) {
        assert_eq!(row.rows.count, 1, "only single items are failed");
        assert!(row.attempts >= 1 && !row.error.is_empty());
        let item = self.items_of(row.rows)[0];
        self.lives[item as usize].ends(false);
        let failure = Failure { stage: "s".into(), kind: row.kind, error: row.error, attempts: row.attempts };
        self.report(item, Err(failure));
        self.records_came(row.rows.slot, self.setup.sinks);
    }

    fn after(&mut self, outcome: FailedBatchOutcome) {
        if let FailedBatchOutcome::Failed(row) = outcome {
            self.fail(row);
        }
    }

    // ---- The sinks

    fn report_any(&mut self, i: usize) {
        if self.unreported.is_empty() {
            return;
        }
        let rows = self.unreported.swap_remove(i % self.unreported.len());
        for item in self.items_of(rows) {
            self.report(item, Ok(item));
        }
        self.records_came(rows.slot, rows.count);
    }

    fn report(&mut self, item: u64, report: Result<u64, Failure>) {
        let mut finished = Vec::new();
        let id = ItemId { source: SourceId(0), index: item };
        // Each sink stands for as much; the last one for what the division leaves, too.
        let left = self.shares.entry(item).or_insert(Share::WHOLE);
        let mut whole = Share::WHOLE;
        let each = whole.cut(self.setup.sinks).expect("a whole can be cut in so few");
        let share = if report.is_err() || left.minus(each) < each { *left } else { each };
        *left = left.minus(share);
        let (records, failure) = match report {
            Ok(record) => (SmallVec::from_iter([record]), None),
            Err(failure) => (SmallVec::new(), Some(failure)),
        };
        self.lineage.end(id, item, item, End { share, records, failure }, &mut finished);
        for Finished { ticket, ending } in finished {
            self.check_ending(ticket, &ending);
            self.ended.push(ticket);
        }
    }

    // ---- Workers and time

    fn busy(&self) -> Vec<WorkerId> {
        self.workers.iter().filter(|(_, w)| !w.holds.is_empty() && !w.broken).map(|(id, _)| *id).collect()
    }

    fn step_any(&mut self, i: usize, second: bool) {
        let busy = self.busy();
        if !busy.is_empty() {
            let at = if second { 1 } else { i / busy.len() % self.setup.streams };
            self.step(busy[i % busy.len()], at);
        }
    }

    /// A worker comes on with one of the batches that it runs, or answers for the next one first.
    fn step(&mut self, worker: WorkerId, at: usize) {
        let w = &self.workers[&worker];
        let at = at.min(w.holds.len().saturating_sub(1));
        let Some(&(_, rows)) = w.holds.get(at) else { return };
        let outcome = self.outcome(worker, rows);
        if at >= self.setup.streams && outcome != Outcome::Done {
            return;
        }
        if let Some(w) = self.workers.get_mut(&worker) {
            w.begun += 1;
        }
        match outcome {
            Outcome::Done => self.done(worker, at),
            Outcome::Faults(fault) => self.fault(worker, at, fault),
            Outcome::Dies(exit) => self.die(worker, &exit),
        }
    }

    fn done(&mut self, worker: WorkerId, at: usize) {
        let w = self.workers.get_mut(&worker).expect("it runs a batch");
        let (batch, rows) = w.holds.remove(at).expect("it holds so many");
        w.completed += 1;
        let (device, is_first) = (w.device, w.completed == 1);
        let completed = self.ledger.done(worker, batch).expect("it holds the batch");
        assert_eq!((completed.rows, completed.device), (rows, device_id(device)));
        self.stale.push((worker, batch));
        self.devices[device].succeeded();
        for item in self.items_of(rows) {
            self.lives[item as usize].ends(true);
        }
        self.unreported.extend(std::iter::repeat_n(rows, self.setup.sinks));
        if is_first {
            self.worker_places[device].progressed();
        }
        self.end_if_drained(worker);
    }

    fn fault(&mut self, worker: WorkerId, at: usize, fault: RunErrorKind) {
        let w = self.workers.get_mut(&worker).expect("it runs a batch");
        let (batch, rows) = w.holds.remove(at).expect("it holds so many");
        w.broken = fault == RunErrorKind::Device;
        let device = w.device;
        self.stale.push((worker, batch));
        self.waits_again(rows);
        match fault {
            RunErrorKind::Device => self.died_of(worker, rows),
            RunErrorKind::OutOfMemory => self.no_memory_for(device, rows),
            RunErrorKind::Model => self.refused(device, rows),
            RunErrorKind::Row(_) | RunErrorKind::Shape | RunErrorKind::Mixed | RunErrorKind::TooLarge => {}
        }
        let outcome = self.ledger.fault(worker, batch, fault, "no".into(), self.now);
        self.after(outcome.expect("it holds the batch"));
        if fault == RunErrorKind::Device {
            self.die(worker, &WorkerExit::Code(71));
        }
        self.end_if_drained(worker);
    }

    fn answer_late(&mut self, i: usize) {
        let others = self.workers.iter().flat_map(|(id, w)| {
            let not_its_own = self.workers.keys().filter(move |o| *o != id);
            not_its_own.flat_map(move |o| w.holds.iter().map(move |(b, _)| (*o, *b)))
        });
        let stale: Vec<_> = self.stale.iter().copied().chain(others).collect();
        if let Some((worker, batch)) = stale.get(i % stale.len().max(1)) {
            assert_eq!(self.ledger.done(*worker, *batch), None, "an answer counts once");
            let fault = self.ledger.fault(*worker, *batch, RunErrorKind::Model, "no".into(), self.now);
            assert_eq!(fault, None, "an answer counts once");
        }
    }

    fn at(&mut self, at: Duration, timer: Timer) {
        if timer == Timer::Look && self.timers.iter().any(|((t, _), x)| *x == timer && *t == at) {
            return;
        }
        self.timers.insert((at, self.next_timer), timer);
        self.next_timer += 1;
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(entry) = self.timers.first_entry().filter(|e| e.key().0 <= end) {
            let ((at, _), timer) = entry.remove_entry();
            self.time_passes(at.max(self.now));
            self.fire(timer);
            self.pump();
        }
        self.time_passes(end);
    }

    fn wait_for_next_timer(&mut self) {
        let next = self.timers.first_key_value().map(|((at, _), _)| *at);
        let Some(at) = next else { panic!("nothing will ever happen again: {}", self.describe()) };
        self.wait(at.saturating_sub(self.now));
    }
}

/// What becomes of a batch at a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Done,
    Faults(RunErrorKind),
    Dies(WorkerExit),
}

fn device_id(d: usize) -> DeviceId {
    DeviceId(u16::try_from(d).expect("there are few"))
}
