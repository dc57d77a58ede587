//! The workers of one stage on one device: who serves which place, and who takes over. Decides; it starts, ends and sends no message.
//!
//! A device has a fixed number of places for a stage.
//!
//! ```text
//! place    held => (held by a new worker, after a pause | parked)
//! worker   Serving => Leaving      recycled, once its successor is ready
//!          Serving => Yielding     recycled where there is no memory for both: its successor is started when it is gone
//!          Successor => Serving    it is ready
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::WorkerId;
use crate::restart::{Death, Restart, RestartBudget, RestartPolicy};
use crate::worker_exit::{Evidence, WorkerExit};

/// Kills from outside that the first worker of a place that was added may die of. The others work meanwhile, so nothing waits for it.
const FIRST_STARTS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerRole {
    /// It serves this place, or will as soon as it is loaded.
    Serving { place: usize },
    /// It loads, to take the place of a healthy worker.
    Successor { place: usize, of: WorkerId },
    /// Its place has another worker, or will have; its end is no loss.
    Leaving,
    /// It still serves this place, and ends so that there is memory for its successor.
    Yielding { place: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceOrder {
    /// Start a worker in this role, and say so to [`WorkerPlaces::joined`].
    Start {
        role: WorkerRole,
        /// The worker whose place it takes, and why; `None` if there was none before.
        instead_of: Option<Predecessor>,
    },
    /// Ask [`WorkerPlaces::start_place`] after this pause.
    StartLater { place: usize, pause: Duration },
    /// Give this worker no more batches, and end it when it has none.
    Drain(WorkerId, Handover),
    /// A place that was added has found no room for its worker, and is taken back; so many are left.
    Withdrawn { left: usize },
    /// A place was given up; so many are left.
    Parked { left: usize },
}

/// In which order a worker and its successor are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handover {
    /// The successor is loaded first: the place is never without a worker.
    SuccessorFirst,
    /// The old one ends first: the device has no memory for both. The place stands still for as long as a load takes.
    OldFirst,
}

/// The worker whose place another one takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predecessor {
    pub worker: WorkerId,
    /// Else it is, or was, being recycled, or it ended as it was asked to, so that a suspect gets a fresh worker.
    pub has_died: bool,
}

#[derive(Debug, Clone)]
struct PlaceState {
    is_parked: bool,
    /// Starts that are left to its first worker: the place was added because a worker should fit. None once one has been ready in it.
    first_starts: usize,
    /// The last worker that it lost, and how.
    lost: Option<Predecessor>,
}

#[derive(Debug, Clone, Copy)]
struct PlaceMember {
    role: WorkerRole,
    is_ready: bool,
}

impl PlaceMember {
    fn holds(&self, wanted: usize) -> bool {
        match self.role {
            WorkerRole::Serving { place }
            | WorkerRole::Successor { place, .. }
            | WorkerRole::Yielding { place } => place == wanted,
            WorkerRole::Leaving => false,
        }
    }
}

#[derive(Debug, Clone)]
pub struct WorkerPlaces {
    places: Vec<PlaceState>,
    members: BTreeMap<WorkerId, PlaceMember>,
    budget: RestartBudget,
    /// The clock of the budget: the time that dead workers had stood, loaded and unharmed. The time that workers take to die is no time
    /// in which things went well: a place whose workers die after a load of a minute would never be given up.
    healthy_time: Duration,
    /// A successor found no memory beside the worker whose place it was to take.
    is_tight: bool,
    /// Those that are to make way for a successor once no other does.
    worn: BTreeSet<WorkerId>,
}

impl WorkerPlaces {
    pub fn new(n_places: usize, policy: RestartPolicy) -> Self {
        Self {
            places: vec![PlaceState { is_parked: false, first_starts: 0, lost: None }; n_places],
            members: BTreeMap::new(),
            budget: RestartBudget::new(policy),
            healthy_time: Duration::ZERO,
            is_tight: false,
            worn: BTreeSet::new(),
        }
    }

    pub fn start(&self) -> Vec<PlaceOrder> {
        (0..self.places.len()).filter_map(|place| self.start_place(place)).collect()
    }

    /// Adds so many places, whose workers should fit, and starts them. One whose first worker does not fit all the same is taken back.
    pub fn grow(&mut self, more: usize) -> Vec<PlaceOrder> {
        let before = self.places.len();
        let place = PlaceState { is_parked: false, first_starts: FIRST_STARTS, lost: None };
        self.places.resize(before + more, place);
        (before..self.places.len()).filter_map(|place| self.start_place(place)).collect()
    }

    pub fn start_place(&self, place: usize) -> Option<PlaceOrder> {
        let p = self.places.get(place)?;
        let is_held = self.members.values().any(|m| m.holds(place));
        let start = || PlaceOrder::Start { role: WorkerRole::Serving { place }, instead_of: p.lost };
        (!p.is_parked && !is_held).then(start)
    }

    pub fn joined(&mut self, worker: WorkerId, role: WorkerRole) {
        self.members.insert(worker, PlaceMember { role, is_ready: false });
    }

    pub fn ready(&mut self, worker: WorkerId) -> Vec<PlaceOrder> {
        let Some(member) = self.members.get_mut(&worker) else { return Vec::new() };
        member.is_ready = true;
        if let WorkerRole::Serving { place } = member.role {
            self.places[place].first_starts = 0;
        }
        let mut orders = Vec::new();
        if let WorkerRole::Successor { place, of } = member.role {
            member.role = WorkerRole::Serving { place };
            orders.extend(
                self.members.contains_key(&of).then_some(PlaceOrder::Drain(of, Handover::SuccessorFirst)),
            );
        }
        orders.extend(self.next_makes_way());
        orders
    }

    /// The next worker that is to make way, if there is one and all places are served.
    fn next_makes_way(&mut self) -> Option<PlaceOrder> {
        if self.worn.is_empty() || !self.is_served() {
            return None;
        }
        loop {
            let worker = self.worn.pop_first()?;
            if let Some(WorkerRole::Serving { place }) = self.members.get(&worker).map(|m| m.role) {
                return Some(self.yields(worker, place));
            }
        }
    }

    /// Those that wait for their turn to make way stay.
    pub fn keep_all(&mut self) {
        self.worn.clear();
    }

    /// A worker completed its first batch: the device works.
    pub fn progressed(&mut self) {
        self.budget.progressed();
    }

    /// A healthy worker is to be replaced. Its successor is ready first, so that the device does not stand still, if there is memory for
    /// both.
    pub fn recycle(&mut self, worker: WorkerId, handover: Handover) -> Vec<PlaceOrder> {
        let Some(WorkerRole::Serving { place }) = self.members.get(&worker).map(|m| m.role) else {
            return Vec::new();
        };
        let successor = WorkerRole::Successor { place, of: worker };
        let old = Predecessor { worker, has_died: false };
        if self.is_tight || handover == Handover::OldFirst {
            if self.is_handing_over() {
                // Together they would leave the device without a worker.
                self.worn.insert(worker);
                return Vec::new();
            }
            return vec![self.yields(worker, place)];
        }
        self.set_role(worker, WorkerRole::Leaving);
        vec![PlaceOrder::Start { role: successor, instead_of: Some(old) }]
    }

    fn yields(&mut self, worker: WorkerId, place: usize) -> PlaceOrder {
        self.set_role(worker, WorkerRole::Yielding { place });
        PlaceOrder::Drain(worker, Handover::OldFirst)
    }

    /// The worker that is about to be reported as ended had stood for so long: loaded, and not running what it died of.
    pub fn add_healthy_time(&mut self, time: Duration) {
        self.healthy_time = self.healthy_time.saturating_add(time);
    }

    pub fn ended(&mut self, worker: WorkerId, death: &Death<'_>) -> Vec<PlaceOrder> {
        let Some(gone) = self.members.remove(&worker) else { return Vec::new() };
        match gone.role {
            WorkerRole::Leaving => Vec::new(),
            WorkerRole::Successor { place, of } if self.members.contains_key(&of) => {
                if death.exit.found_no_memory() {
                    // It will find none at the next bound either, as long as the old one is there.
                    self.is_tight = true;
                    if !self.is_handing_over() {
                        return vec![self.yields(of, place)];
                    }
                    self.worn.insert(of);
                }
                // If not, it tries again at its next bound: the old one still serves.
                self.set_role(of, WorkerRole::Serving { place });
                Vec::new()
            }
            WorkerRole::Yielding { place } if *death.exit == WorkerExit::Clean => {
                let role = WorkerRole::Successor { place, of: worker };
                let instead_of = Some(Predecessor { worker, has_died: false });
                vec![PlaceOrder::Start { role, instead_of }]
            }
            WorkerRole::Serving { place }
            | WorkerRole::Successor { place, .. }
            | WorkerRole::Yielding { place } => self.place_lost(place, worker, death),
        }
    }

    /// The first worker of a place that was added has died of something that the device did to it, or of the last of several kills from
    /// outside, such as those of a memory limit. What is there was to be disturbed by nothing, so it is not tried again.
    fn is_too_much(&mut self, place: usize, exit: &WorkerExit) -> bool {
        let is_ours = exit.evidence() == Evidence::Strong
            || matches!(exit, WorkerExit::LoadFailed { .. } | WorkerExit::HandshakeTimeout);
        let others = (0..self.places.len()).any(|p| p != place && !self.places[p].is_parked);
        let first_starts = &mut self.places[place].first_starts;
        let is_first = *first_starts > 0;
        *first_starts = if is_ours { 0 } else { first_starts.saturating_sub(1) };
        is_first && *first_starts == 0 && others
    }

    fn place_lost(&mut self, place: usize, worker: WorkerId, death: &Death<'_>) -> Vec<PlaceOrder> {
        let lost = Predecessor { worker, has_died: *death.exit != WorkerExit::Clean };
        self.places[place].lost = Some(lost);
        if self.is_too_much(place, death.exit) {
            self.places[place].is_parked = true;
            return vec![PlaceOrder::Withdrawn { left: self.n_open() }];
        }
        match self.budget.died(death, self.healthy_time) {
            Restart::Park => {
                self.places[place].is_parked = true;
                vec![PlaceOrder::Parked { left: self.n_open() }]
            }
            Restart::After(pause) if pause.is_zero() => self.start_place(place).into_iter().collect(),
            Restart::After(pause) => vec![PlaceOrder::StartLater { place, pause }],
        }
    }

    fn n_open(&self) -> usize {
        self.places.iter().filter(|p| !p.is_parked).count()
    }

    /// Some place waits for the successor of a healthy worker.
    fn is_handing_over(&self) -> bool {
        self.members
            .values()
            .any(|m| matches!(m.role, WorkerRole::Yielding { .. } | WorkerRole::Successor { .. }))
    }

    /// Every place that is not parked has its worker, loaded, and there is such a place.
    pub fn is_served(&self) -> bool {
        let is_served = |place: usize| {
            self.members.values().any(|m| m.is_ready && m.role == WorkerRole::Serving { place })
        };
        let mut open = (0..self.places.len()).filter(|p| !self.places[*p].is_parked).peekable();
        open.peek().is_some() && open.all(is_served)
    }

    fn set_role(&mut self, worker: WorkerId, role: WorkerRole) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.role = role;
        }
    }
}

#[cfg(test)]
#[path = "worker_places_tests.rs"]
mod tests;
