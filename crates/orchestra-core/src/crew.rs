//! The workers of one stage on one device: who serves which place, who stands by as a spare, and who takes over. Decides; it starts,
//! ends and tells nobody.
//!
//! A device has a fixed number of places for a stage. A spare holds none: it is loaded and gets no batches, until the worker of some
//! place dies or is recycled. Then it takes that place, loaded or not, and another spare is started behind it.
//!
//! ```text
//! place    held => (held by a spare | held by a new worker, after a pause | parked)
//! worker   Serving => Leaving      recycled, once its successor is ready
//!          Successor => Serving    it is ready
//!          Spare => (Serving | Successor)
//! ```
//!
//! Serving comes first: a spare is started only when every place that is not parked has its worker. What a death says about a place is
//! decided by the same [`RestartBudget`] with spares as without, so a spare never keeps a place alive that is to be parked. It only
//! saves the load: the pause that the budget asks for falls on the next spare.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::WorkerId;
use crate::restart::{Death, Restart, RestartBudget, RestartPolicy};

/// How long all places have to be served before the first spare is started: a run that is over sooner pays nothing for spares.
pub const SETTLING: Duration = Duration::from_millis(250);

/// What a worker is there for. Places are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It serves this place, or will as soon as it is loaded.
    Serving {
        /// Which.
        place: usize,
    },
    /// It loads, to take the place of a healthy worker.
    Successor {
        /// Which place.
        place: usize,
        /// Whose.
        of: WorkerId,
    },
    /// Its place has another worker, or will have; its end is no loss.
    Leaving,
    /// It stands by.
    Spare,
}

/// What has to be done now, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Start a worker in this role, and say so to [`Crew::joined`].
    Start {
        /// Its role.
        role: Role,
        /// The worker whose place among the serving or the spare ones it takes; `None` if there was none before.
        instead_of: Option<WorkerId>,
    },
    /// Ask [`Crew::start_place`] after this pause.
    StartLater {
        /// Which place.
        place: usize,
        /// How long.
        pause: Duration,
    },
    /// Ask [`Crew::start_spares`] after this pause.
    LookLater(Duration),
    /// This spare serves from now on, or as soon as it is loaded.
    Promote {
        /// Which.
        spare: WorkerId,
        /// Whose place it takes.
        instead_of: WorkerId,
        /// Whether that one died; else it is being recycled.
        why: Vacancy,
    },
    /// Give this worker no more batches, and end it when it has none.
    Drain(WorkerId),
    /// A place was given up; so many are left.
    Parked {
        /// Places that are not parked.
        left: usize,
    },
    /// No further spare is started; places are not concerned.
    SparesGivenUp,
    /// Nobody needs this spare any more.
    Dismiss(WorkerId),
}

/// Why a place needs another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vacancy {
    /// Its worker died.
    Death,
    /// Its worker has served for long enough.
    Recycling,
}

#[derive(Debug, Clone)]
struct Place {
    is_parked: bool,
    /// The last worker that died in it.
    lost: Option<WorkerId>,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    role: Role,
    is_ready: bool,
}

impl Member {
    fn holds(&self, wanted: usize) -> bool {
        matches!(self.role, Role::Serving { place } | Role::Successor { place, .. } if place == wanted)
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Crew {
    places: Vec<Place>,
    members: BTreeMap<WorkerId, Member>,
    budget: RestartBudget,
    /// Spares wanted.
    n_spares: usize,
    /// Spares have a budget of their own, so that what happens to idle ones harms no place.
    spare_budget: RestartBudget,
    /// The clock of both budgets: the time that dead workers had stood, loaded and unharmed. The time that workers take to die is no time
    /// in which things went well: a place whose workers die after a load of a minute would never be given up.
    stood: Duration,
    /// Spares that died and have not been replaced yet.
    lost_spares: Vec<WorkerId>,
    /// When the next spare may be started; `None` until all places have been served for the first time.
    spare_due: Option<Duration>,
    look_at: Option<Duration>,
}

impl Crew {
    /// A crew without workers.
    #[must_use]
    pub fn new(n_places: usize, n_spares: usize, policy: RestartPolicy) -> Self {
        Self {
            places: vec![Place { is_parked: false, lost: None }; n_places],
            members: BTreeMap::new(),
            budget: RestartBudget::new(policy),
            n_spares,
            spare_budget: RestartBudget::new(policy),
            stood: Duration::ZERO,
            lost_spares: Vec::new(),
            spare_due: None,
            look_at: None,
        }
    }

    /// Starts a worker in every place.
    #[must_use]
    pub fn start(&self) -> Vec<Order> {
        (0..self.places.len()).filter_map(|place| self.start_place(place)).collect()
    }

    /// A worker for this place, if it needs one.
    #[must_use]
    pub fn start_place(&self, place: usize) -> Option<Order> {
        let p = self.places.get(place)?;
        let is_held = self.members.values().any(|m| m.holds(place));
        let start = || Order::Start { role: Role::Serving { place }, instead_of: p.lost };
        (!p.is_parked && !is_held).then(start)
    }

    /// A worker was started in this role.
    pub fn joined(&mut self, worker: WorkerId, role: Role) {
        self.members.insert(worker, Member { role, is_ready: false });
    }

    /// Whether some worker is loading.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        self.members.values().any(|m| !m.is_ready && m.role != Role::Leaving)
    }

    /// The spares that are to be started now. The caller sees to it that no other worker of the device is loading.
    pub fn start_spares(&mut self, now: Duration) -> Vec<Order> {
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = None;
        }
        if !self.is_complete() || self.n_spares_now() >= self.n_spares {
            return Vec::new();
        }
        let due = *self.spare_due.get_or_insert(now + SETTLING);
        if now >= due {
            return vec![Order::Start { role: Role::Spare, instead_of: self.lost_spares.pop() }];
        }
        if self.look_at.is_some_and(|at| at <= due) {
            return Vec::new(); // It was asked for before.
        }
        self.look_at = Some(due);
        vec![Order::LookLater(due - now)]
    }

    /// A worker is loaded.
    pub fn ready(&mut self, worker: WorkerId) -> Vec<Order> {
        let Some(member) = self.members.get_mut(&worker) else { return Vec::new() };
        member.is_ready = true;
        let Role::Successor { place, of } = member.role else { return Vec::new() };
        member.role = Role::Serving { place };
        if self.members.contains_key(&of) { vec![Order::Drain(of)] } else { Vec::new() }
    }

    /// A worker completed its first batch: the device works.
    pub fn progressed(&mut self) {
        self.budget.progressed();
        self.spare_budget.progressed();
    }

    /// A healthy worker is to be replaced. Its successor is ready first, so that the device does not stand still.
    pub fn recycle(&mut self, worker: WorkerId) -> Vec<Order> {
        let Some(member) = self.members.get_mut(&worker) else { return Vec::new() };
        let Role::Serving { place } = member.role else { return Vec::new() };
        member.role = Role::Leaving;
        let successor = Role::Successor { place, of: worker };
        let Some(spare) = self.best_spare() else {
            return vec![Order::Start { role: successor, instead_of: Some(worker) }];
        };
        let promote = Order::Promote { spare, instead_of: worker, why: Vacancy::Recycling };
        let is_ready = self.members.get(&spare).is_some_and(|s| s.is_ready);
        self.set_role(spare, if is_ready { Role::Serving { place } } else { successor });
        if is_ready { vec![promote, Order::Drain(worker)] } else { vec![promote] }
    }

    /// The worker that is about to be reported as ended had stood for so long: loaded, and not running what it died of.
    pub fn had_stood(&mut self, time: Duration) {
        self.stood = self.stood.saturating_add(time);
    }

    /// A worker is gone.
    pub fn ended(&mut self, worker: WorkerId, death: &Death<'_>, now: Duration) -> Vec<Order> {
        let Some(gone) = self.members.remove(&worker) else { return Vec::new() };
        match gone.role {
            Role::Leaving => Vec::new(),
            Role::Spare => self.spare_lost(worker, death, now),
            Role::Successor { place, of } if self.members.contains_key(&of) => {
                // Try again at the next bound: the old one still serves.
                self.set_role(of, Role::Serving { place });
                Vec::new()
            }
            Role::Serving { place } | Role::Successor { place, .. } => {
                self.place_lost(place, worker, death, now)
            }
        }
    }

    fn place_lost(&mut self, place: usize, worker: WorkerId, death: &Death<'_>, now: Duration) -> Vec<Order> {
        self.places[place].lost = Some(worker);
        match self.budget.died(death, self.stood) {
            Restart::Park => self.park(place),
            Restart::After(pause) => match self.best_spare() {
                Some(spare) => {
                    self.no_spare_before(now + pause);
                    self.set_role(spare, Role::Serving { place });
                    vec![Order::Promote { spare, instead_of: worker, why: Vacancy::Death }]
                }
                None if pause.is_zero() => self.start_place(place).into_iter().collect(),
                None => vec![Order::StartLater { place, pause }],
            },
        }
    }

    fn park(&mut self, place: usize) -> Vec<Order> {
        self.places[place].is_parked = true;
        let left = self.places.iter().filter(|p| !p.is_parked).count();
        let mut orders = vec![Order::Parked { left }];
        if left == 0 {
            let spares: Vec<WorkerId> = self.spares().map(|(id, _)| id).collect();
            for spare in spares {
                self.set_role(spare, Role::Leaving);
                orders.push(Order::Dismiss(spare));
            }
        }
        orders
    }

    fn spare_lost(&mut self, worker: WorkerId, death: &Death<'_>, now: Duration) -> Vec<Order> {
        match self.spare_budget.died(death, self.stood) {
            Restart::After(pause) => {
                self.lost_spares.push(worker);
                self.no_spare_before(now + pause);
                Vec::new()
            }
            Restart::Park => {
                self.n_spares = 0;
                vec![Order::SparesGivenUp]
            }
        }
    }

    fn no_spare_before(&mut self, at: Duration) {
        self.spare_due = Some(self.spare_due.map_or(at, |due| due.max(at)));
    }

    /// One that is loaded, else the one that has been loading for longest.
    fn best_spare(&self) -> Option<WorkerId> {
        self.spares().min_by_key(|(id, m)| (!m.is_ready, *id)).map(|(id, _)| id)
    }

    fn spares(&self) -> impl Iterator<Item = (WorkerId, &Member)> {
        self.members.iter().filter(|(_, m)| m.role == Role::Spare).map(|(id, m)| (*id, m))
    }

    fn n_spares_now(&self) -> usize {
        self.spares().count()
    }

    /// Every place that is not parked has its worker, and there is such a place.
    fn is_complete(&self) -> bool {
        let is_served =
            |place: usize| self.members.values().any(|m| m.is_ready && m.role == Role::Serving { place });
        let mut open = (0..self.places.len()).filter(|p| !self.places[*p].is_parked).peekable();
        open.peek().is_some() && open.all(is_served)
    }

    fn set_role(&mut self, worker: WorkerId, role: Role) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.role = role;
        }
    }
}

#[cfg(test)]
#[path = "crew_tests.rs"]
mod tests;
