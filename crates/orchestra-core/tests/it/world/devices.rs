//! The workers of the world: how they are started, what kills them, and who takes their place.

use orchestra_core::ledger::{Rows, RunErrorKind};
use orchestra_core::restart::Death;
use orchestra_core::worker_exit::Evidence;
use orchestra_core::worker_places::{Handover, PlaceOrder, WorkerRole};
use orchestra_core::{ErrorClass, WorkerExit, WorkerId};

use super::*;

/// How long a worker takes to end when it is asked to.
const HANG_UP: Duration = Duration::from_millis(1);

impl World {
    pub(super) fn outcome(&self, worker: WorkerId, rows: Rows) -> Outcome {
        let w = &self.workers[&worker];
        if self.sick.contains(&w.device) || self.is_due_to_break(w) {
            return Outcome::Dies(WorkerExit::Signal(11));
        }
        if rows.count > self.rooms[w.device] {
            return Outcome::Faults(RunErrorKind::OutOfMemory);
        }
        let mut of_rows = self.items_of(rows).into_iter().map(|i| self.setup.poison.get(&i)).enumerate();
        let poison = of_rows.find_map(|(row, poison)| Some((row, poison?)));
        match poison {
            None => Outcome::Done,
            Some((_, Poison::Segfault)) => Outcome::Dies(WorkerExit::Signal(11)),
            Some((_, Poison::Exit)) => Outcome::Dies(WorkerExit::Code(0)),
            Some((_, Poison::Hang)) => Outcome::Dies(WorkerExit::Hung),
            Some((_, Poison::BreaksDevice)) => Outcome::Faults(RunErrorKind::Device),
            Some((_, Poison::Refused)) => Outcome::Faults(RunErrorKind::Model),
            Some((row, Poison::Rejected)) => Outcome::Faults(RunErrorKind::Row(row as u64)),
        }
    }

    pub(super) fn is_due_to_break(&self, w: &Worker) -> bool {
        matches!(self.setup.devices[w.device].health, Health::BreaksAt(n) if w.begun + 1 >= n)
    }

    pub(super) fn kill_any(&mut self, i: usize, frozen: bool) {
        let all: Vec<_> = self.workers.keys().copied().collect();
        if self.kills_left == 0 || all.is_empty() {
            return;
        }
        self.kills_left -= 1;
        let exit = if frozen { WorkerExit::Silent } else { WorkerExit::Signal(9) };
        self.die(all[i % all.len()], &exit);
    }

    pub(super) fn recycle_any(&mut self, i: usize) {
        let has_worn = |w: &Worker| w.phase == Phase::Serving && w.completed > 0;
        let serving: Vec<_> = self.workers.iter().filter(|(_, w)| has_worn(w)).map(|(id, _)| *id).collect();
        if let Some(&worker) = serving.get(i % serving.len().max(1)) {
            let device = self.workers[&worker].device;
            let handover = [Handover::SuccessorFirst, Handover::OldFirst][i % 2];
            let orders = self.worker_places[device].recycle(worker, handover);
            self.carry_out(device, orders);
        }
    }

    pub(super) fn lose_device(&mut self) {
        let lost = self.setup.devices.iter().position(|d| d.health == Health::WillBeLost);
        self.sick.extend(lost);
    }

    pub(super) fn set_room(&mut self, device: usize, rows: usize) {
        let device = device % self.setup.devices.len();
        if self.setup.devices[device].health != Health::NoMemory {
            self.rooms[device] = rows;
        }
    }

    /// A worker is gone: the ledger says what that means for what it held, and the places say who comes instead.
    pub(super) fn die(&mut self, worker: WorkerId, exit: &WorkerExit) {
        let Some(w) = self.workers.remove(&worker) else { return };
        let evidence = exit.evidence();
        // The batch for which it reported a broken device is gone already.
        let n_begun = self.setup.streams - usize::from(w.broken);
        if evidence == Evidence::Strong && !w.broken && !w.holds.is_empty() {
            self.devices[w.device].died();
        }
        for (at, &(batch, rows)) in w.holds.iter().enumerate() {
            self.stale.push((worker, batch));
            self.waits_again(rows);
            if at >= n_begun {
                continue;
            }
            match evidence {
                Evidence::Strong => self.killed_by(&w, rows),
                Evidence::Weak => self.killed_under(rows),
                Evidence::None => {}
            }
        }
        let held: Vec<_> = w.holds.iter().map(|(b, _)| *b).collect();
        let lost = self.ledger.worker_lost(worker, exit, "ouch", self.now);
        assert_eq!(lost.held, held);
        for outcome in lost.outcomes {
            self.after(outcome);
        }
        let death = Death { exit, progressed: w.completed > 0, bisecting: lost.bisecting, jitter: 0.5 };
        let orders = self.worker_places[w.device].ended(worker, &death);
        self.carry_out(w.device, orders);
    }

    /// A worker that reports a broken device is as good as dead.
    pub(super) fn died_of(&mut self, worker: WorkerId, rows: Rows) {
        let w = self.workers.remove(&worker).expect("it has just reported");
        self.devices[w.device].died();
        self.killed_by(&w, rows);
        self.workers.insert(worker, w);
    }

    pub(super) fn drain(&mut self, worker: WorkerId, handover: Handover) {
        let empty = self.ledger.drain_worker(worker, handover);
        if let Some(w) = self.workers.get_mut(&worker) {
            w.draining = true;
            assert_eq!(empty, w.holds.is_empty());
        }
        self.end_if_drained(worker);
    }

    pub(super) fn end_if_drained(&mut self, worker: WorkerId) {
        if self.workers.get(&worker).is_some_and(|w| w.draining && w.holds.is_empty()) {
            assert!(self.ledger.is_draining(worker) && self.ledger.holds_nothing(worker));
            self.at(self.now + HANG_UP, Timer::Ended(worker));
        }
    }

    pub(super) fn carry_out(&mut self, device: usize, orders: impl IntoIterator<Item = PlaceOrder>) {
        for order in orders {
            match order {
                PlaceOrder::Start { role, .. } => self.start_worker(device, role),
                PlaceOrder::StartLater { place, pause } => {
                    self.at(self.now + pause, Timer::StartPlace(device, place));
                }
                PlaceOrder::Drain(worker, handover) => self.drain(worker, handover),
                PlaceOrder::Parked { left: 0 } => self.device_gone(device),
                PlaceOrder::Parked { .. } | PlaceOrder::Withdrawn { .. } => {}
            }
        }
    }

    fn start_worker(&mut self, device: usize, role: WorkerRole) {
        let worker = WorkerId(self.next_worker);
        self.next_worker += 1;
        let w = Worker {
            device,
            phase: Phase::Loading,
            draining: false,
            broken: false,
            holds: VecDeque::new(),
            completed: 0,
            begun: 0,
        };
        self.workers.insert(worker, w);
        self.worker_places[device].joined(worker, role);
        self.at(self.now + self.setup.devices[device].load, Timer::Loaded(worker));
    }

    fn loaded(&mut self, worker: WorkerId) {
        let Some(w) = self.workers.get_mut(&worker) else { return };
        let device = w.device;
        if let Health::NeverLoads { permanent } = self.setup.devices[device].health {
            let class = if permanent { ErrorClass::Permanent } else { ErrorClass::Overload };
            return self.die(worker, &WorkerExit::LoadFailed { class, why: "no".into() });
        }
        w.phase = Phase::Serving;
        self.ledger.worker_ready(worker, device_id(device));
        let orders = self.worker_places[device].ready(worker);
        self.carry_out(device, orders);
    }

    fn device_gone(&mut self, device: usize) {
        self.check_given_up(device);
        self.gone.insert(device);
        self.ledger.device_gone(device_id(device));
    }

    pub(super) fn fire(&mut self, timer: Timer) {
        match timer {
            Timer::Look => {}
            Timer::Loaded(worker) => self.loaded(worker),
            Timer::Ended(worker) => self.die(worker, &WorkerExit::Clean),
            Timer::StartPlace(device, place) => {
                let order = self.worker_places[device].start_place(place);
                self.carry_out(device, order);
            }
        }
    }
}
