//! Properties of the places: single decisions, by name.

use Handover::SuccessorFirst;

use super::*;
use crate::failure::ErrorClass;

#[path = "worker_places_tests/interleavings.rs"]
mod interleavings;

fn died(exit: &WorkerExit, progressed: bool) -> Death<'_> {
    Death { exit, progressed, bisecting: false, jitter: 0.5 }
}

const KILLED: WorkerExit = WorkerExit::Signal(9);
const CRASHED: WorkerExit = WorkerExit::Signal(11);

fn no_memory() -> WorkerExit {
    WorkerExit::LoadFailed { class: ErrorClass::Overload, why: "out of memory".into() }
}

/// Carries orders out as a device would: workers are started at once, pauses are noted.
struct World {
    worker_places: WorkerPlaces,
    next: u32,
    waiting: Vec<usize>,
    drained: Vec<WorkerId>,
    yielding: Vec<WorkerId>,
    withdrawn: usize,
    left: Option<usize>,
    starts: usize,
}

impl World {
    fn new(places: usize) -> Self {
        let worker_places = WorkerPlaces::new(places, RestartPolicy::default());
        let mut world = Self {
            worker_places,
            next: 0,
            waiting: Vec::new(),
            drained: Vec::new(),
            yielding: Vec::new(),
            withdrawn: 0,
            left: None,
            starts: 0,
        };
        let orders = world.worker_places.start();
        world.carry_out(orders);
        world
    }

    /// All places served.
    fn at_rest(places: usize) -> Self {
        let mut world = Self::new(places);
        world.all_ready();
        world
    }

    fn carry_out(&mut self, orders: Vec<PlaceOrder>) {
        for order in orders {
            match order {
                PlaceOrder::Start { role, .. } => {
                    let worker = WorkerId(self.next);
                    self.next += 1;
                    self.starts += 1;
                    self.worker_places.joined(worker, role);
                }
                PlaceOrder::StartLater { place, .. } => self.waiting.push(place),
                PlaceOrder::Drain(worker, SuccessorFirst) => self.drained.push(worker),
                PlaceOrder::Drain(worker, Handover::OldFirst) => self.yielding.push(worker),
                PlaceOrder::Withdrawn { .. } => self.withdrawn += 1,
                PlaceOrder::Parked { left } => self.left = Some(left),
            }
        }
    }

    fn ready(&mut self, worker: WorkerId) {
        let orders = self.worker_places.ready(worker);
        self.carry_out(orders);
    }

    fn all_ready(&mut self) {
        for worker in self.members() {
            self.ready(worker);
        }
    }

    fn end(&mut self, worker: WorkerId, exit: &WorkerExit, progressed: bool) {
        let orders = self.worker_places.ended(worker, &died(exit, progressed));
        self.carry_out(orders);
    }

    fn replace(&mut self, worker: WorkerId, handover: Handover) {
        let orders = self.worker_places.recycle(worker, handover);
        self.carry_out(orders);
    }

    fn members(&self) -> Vec<WorkerId> {
        self.worker_places.members.keys().copied().collect()
    }

    fn in_role(&self, wanted: impl Fn(WorkerRole) -> bool) -> Vec<WorkerId> {
        self.worker_places.members.iter().filter(|(_, m)| wanted(m.role)).map(|(id, _)| *id).collect()
    }

    fn serving(&self, place: usize) -> Vec<WorkerId> {
        self.in_role(|r| r == WorkerRole::Serving { place })
    }
}

#[test]
fn deaths_are_forgotten_for_time_in_which_workers_stood_and_not_for_time_that_they_took_to_die() {
    let window = RestartPolicy::default().window;
    for (stood, is_parked) in [(Duration::ZERO, true), (window / 10, true), (window / 2, false)] {
        let mut world = World::at_rest(1);
        for _ in 1..20 {
            let Some(dead) = world.serving(0).first().copied() else { break };
            world.worker_places.add_healthy_time(stood);
            world.end(dead, &CRASHED, false);
            for place in std::mem::take(&mut world.waiting) {
                let order = world.worker_places.start_place(place);
                world.carry_out(order.into_iter().collect());
            }
        }
        assert_eq!(world.left == Some(0), is_parked, "they had stood for {stood:?} each");
    }
}

#[test]
fn a_place_that_was_added_is_taken_back_if_its_first_worker_does_not_fit_and_costs_the_others_nothing() {
    for exit in [no_memory(), CRASHED, WorkerExit::Code(1)] {
        let mut world = World::at_rest(1);
        let orders = world.worker_places.grow(2);
        world.carry_out(orders);
        let (fits, does_not) = (world.serving(1)[0], world.serving(2)[0]);
        world.end(does_not, &exit, false);
        world.ready(fits);
        assert_eq!((world.withdrawn, world.left, world.starts), (1, None, 3));
        assert!(world.waiting.is_empty() && world.worker_places.is_served());
        assert_eq!(world.worker_places.budget.spent(), 0);
        // From now on it is a place like the others.
        world.end(fits, &no_memory(), false);
        assert_eq!((world.withdrawn, &world.waiting[..]), (1, &[1][..]));
    }
    let mut world = World::at_rest(1);
    let orders = world.worker_places.grow(1);
    world.carry_out(orders);
    for _ in 1..FIRST_STARTS {
        world.end(world.serving(1)[0], &KILLED, false);
        assert_eq!(
            (world.withdrawn, &world.waiting[..]),
            (0, &[1][..]),
            "a process outside the run did that"
        );
        let order = world.worker_places.start_place(world.waiting.remove(0));
        world.carry_out(order.into_iter().collect());
    }
    world.end(world.serving(1)[0], &KILLED, false);
    assert_eq!((world.withdrawn, world.left, &world.waiting[..]), (1, None, &[][..]), "it does so always");
}

#[test]
fn of_workers_that_reach_their_bound_together_each_makes_way_once_and_one_at_a_time() {
    let mut world = World::new(4);
    world.all_ready();
    let old: Vec<WorkerId> = world.members();
    old.iter().chain(&old).for_each(|worker| world.replace(*worker, Handover::OldFirst));
    for n in 1..=old.len() {
        assert_eq!(world.yielding.len(), n);
        let leaves = world.yielding[n - 1];
        world.end(leaves, &WorkerExit::Clean, true);
        world.all_ready();
    }
    assert_eq!((&world.yielding, world.starts), (&old, 8));
    assert!(world.worker_places.is_served());
}
