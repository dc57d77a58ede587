//! Properties of the places: single decisions, by name.

use Handover::SuccessorFirst;

use super::*;
use crate::failure::ErrorClass;

#[path = "worker_places_tests/interleavings.rs"]
mod interleavings;
#[path = "worker_places_tests/recycling.rs"]
mod recycling;

const NOW: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(10);

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
    promoted: Vec<(WorkerId, WorkerId)>,
    dismissed: Vec<WorkerId>,
    left: Option<usize>,
    starts: usize,
    given_up: bool,
}

impl World {
    fn new(places: usize, spares: usize) -> Self {
        let worker_places = WorkerPlaces::new(places, spares, RestartPolicy::default());
        let mut world = Self {
            worker_places,
            next: 0,
            waiting: Vec::new(),
            drained: Vec::new(),
            yielding: Vec::new(),
            withdrawn: 0,
            promoted: Vec::new(),
            dismissed: Vec::new(),
            left: None,
            starts: 0,
            given_up: false,
        };
        let orders = world.worker_places.start();
        world.carry_out(orders);
        world
    }

    /// All places served and all spares ready.
    fn at_rest(places: usize, spares: usize) -> Self {
        let mut world = Self::new(places, spares);
        world.all_ready();
        world.man_spares(NOW);
        world.man_spares(NOW + SETTLING);
        while world.worker_places.is_loading() {
            world.all_ready();
            world.man_spares(NOW + SETTLING);
        }
        world
    }

    fn carry_out(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Start { role, .. } => {
                    let worker = WorkerId(self.next);
                    self.next += 1;
                    self.starts += 1;
                    self.worker_places.joined(worker, role);
                }
                Order::StartLater { place, .. } => self.waiting.push(place),
                Order::LookLater(_) => {}
                Order::Promote { spare, instead_of } => self.promoted.push((spare, instead_of.worker)),
                Order::Drain(worker, SuccessorFirst) => self.drained.push(worker),
                Order::Drain(worker, Handover::OldFirst) => self.yielding.push(worker),
                Order::Withdrawn { .. } => self.withdrawn += 1,
                Order::Parked { left } => self.left = Some(left),
                Order::SparesGivenUp => self.given_up = true,
                Order::Dismiss(worker) => self.dismissed.push(worker),
            }
        }
    }

    fn man_spares(&mut self, now: Duration) {
        if !self.worker_places.is_loading() {
            let orders = self.worker_places.start_spares(now, SuccessorFirst);
            self.carry_out(orders);
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

    fn end(&mut self, worker: WorkerId, exit: &WorkerExit, progressed: bool, now: Duration) {
        let orders = self.worker_places.ended(worker, &died(exit, progressed), now);
        self.carry_out(orders);
    }

    fn recycle(&mut self, worker: WorkerId) {
        self.replace(worker, SuccessorFirst);
    }

    fn replace(&mut self, worker: WorkerId, handover: Handover) {
        let orders = self.worker_places.recycle(worker, handover);
        self.carry_out(orders);
    }

    fn members(&self) -> Vec<WorkerId> {
        self.worker_places.members.keys().copied().collect()
    }

    fn in_role(&self, wanted: impl Fn(Role) -> bool) -> Vec<WorkerId> {
        self.worker_places.members.iter().filter(|(_, m)| wanted(m.role)).map(|(id, _)| *id).collect()
    }

    fn spare(&self) -> WorkerId {
        self.in_role(|r| r == Role::Spare)[0]
    }

    fn serving(&self, place: usize) -> Vec<WorkerId> {
        self.in_role(|r| r == Role::Serving { place })
    }
}

#[test]
fn a_spare_takes_the_place_of_a_dead_worker_without_a_start_and_another_one_follows() {
    let mut world = World::at_rest(2, 1);
    assert_eq!(world.starts, 3);
    let (spare, dead) = (world.spare(), world.serving(1)[0]);
    world.end(dead, &KILLED, true, LATER);
    assert_eq!(world.promoted, [(spare, dead)]);
    assert_eq!(world.serving(1), [spare]);
    assert_eq!(world.starts, 3, "taking over starts nothing");
    world.man_spares(LATER);
    assert_eq!(world.starts, 4);
    assert_ne!(world.spare(), spare);
}

#[test]
fn spares_wait_until_all_places_are_served_and_the_run_has_settled() {
    let mut world = World::new(2, 1);
    world.man_spares(LATER);
    world.ready(WorkerId(0));
    world.man_spares(LATER);
    assert_eq!(world.starts, 2, "a place is still loading");
    world.ready(WorkerId(1));
    assert_eq!(world.worker_places.start_spares(LATER, SuccessorFirst), [Order::LookLater(SETTLING)]);
    assert_eq!(world.worker_places.start_spares(LATER, SuccessorFirst), [], "one look is enough");
    world.man_spares(LATER + SETTLING);
    assert_eq!(world.starts, 3);
}

#[test]
fn spares_are_loaded_one_after_the_other() {
    let mut world = World::new(1, 3);
    world.all_ready();
    world.man_spares(NOW);
    for n in 1..=3 {
        world.man_spares(LATER);
        world.man_spares(LATER);
        assert_eq!(world.starts, 1 + n);
        world.all_ready();
    }
    world.man_spares(LATER);
    assert_eq!(world.starts, 4, "no more than were asked for");
}

#[test]
fn a_spare_that_still_loads_takes_the_place_instead_of_another_load() {
    let mut world = World::new(1, 1);
    world.all_ready();
    world.man_spares(NOW);
    world.man_spares(LATER);
    let (spare, dead) = (world.spare(), world.serving(0)[0]);
    world.end(dead, &CRASHED, true, LATER);
    assert_eq!((world.serving(0), world.starts), (vec![spare], 2));
    world.man_spares(LATER);
    assert_eq!(world.starts, 2, "the place comes before the next spare");
    world.ready(spare);
    world.man_spares(LATER);
    assert_eq!(world.starts, 3);
}

#[test]
fn the_pause_of_the_budget_falls_on_the_next_spare() {
    let mut world = World::at_rest(1, 1);
    let dead = world.serving(0)[0];
    world.end(dead, &CRASHED, false, LATER);
    assert_eq!(world.waiting, [] as [usize; 0], "the place does not wait");
    let orders = world.worker_places.start_spares(LATER, SuccessorFirst);
    assert!(
        matches!(orders[..], [Order::LookLater(pause)] if pause >= Duration::from_millis(50)),
        "{orders:?}"
    );
    world.man_spares(LATER + Duration::from_secs(1));
    assert_eq!(world.starts, 3);
}

#[test]
fn a_spare_keeps_no_place_alive_that_is_to_be_parked() {
    let mut world = World::at_rest(2, 1);
    let spare = world.spare();
    let exit = WorkerExit::LoadFailed { class: ErrorClass::Permanent, why: "no such device".into() };
    let first = world.serving(0)[0];
    world.end(first, &exit, false, LATER);
    assert_eq!((world.left, world.promoted.len()), (Some(1), 0));
    assert_eq!(world.spare(), spare, "it stands by for the other place");
    let second = world.serving(1)[0];
    world.end(second, &exit, false, LATER);
    assert_eq!((world.left, &world.dismissed[..]), (Some(0), &[spare][..]));
    world.end(spare, &WorkerExit::Clean, false, LATER);
    world.man_spares(LATER * 2);
    assert_eq!((world.members(), world.starts), (vec![], 3));
}

#[test]
fn a_crash_loop_parks_a_place_with_a_spare_after_as_many_deaths_as_without() {
    for spares in [0, 1, 4] {
        let mut world = World::at_rest(1, spares);
        let mut deaths = 0;
        while world.left.is_none() {
            let dead = world.serving(0)[0];
            world.end(dead, &CRASHED, false, LATER);
            deaths += 1;
            for place in std::mem::take(&mut world.waiting) {
                let order = world.worker_places.start_place(place);
                world.carry_out(order.into_iter().collect());
            }
        }
        assert_eq!(deaths, RestartPolicy::default().budget + 1, "with {spares} spares");
    }
}

#[test]
fn workers_that_end_as_asked_without_a_result_are_replaced_at_once_however_often() {
    let mut world = World::at_rest(1, 0);
    for n in 1..20 {
        let old = world.serving(0)[0];
        let orders = world.worker_places.ended(old, &died(&WorkerExit::Clean, false), LATER);
        let renewed = Some(Predecessor { worker: old, has_died: false });
        assert_eq!(
            orders,
            [Order::Start { role: Role::Serving { place: 0 }, instead_of: renewed }],
            "it did not die"
        );
        world.carry_out(orders);
        assert_eq!((world.left, world.waiting.len(), world.starts), (None, 0, 1 + n));
    }
}

#[test]
fn deaths_are_forgotten_for_time_in_which_workers_stood_and_not_for_time_that_they_took_to_die() {
    let window = RestartPolicy::default().window;
    for (stood, is_parked) in [(Duration::ZERO, true), (window / 10, true), (window / 2, false)] {
        let mut world = World::at_rest(1, 0);
        for n in 1..20 {
            let Some(dead) = world.serving(0).first().copied() else { break };
            world.worker_places.had_stood(stood);
            world.end(dead, &CRASHED, false, window * 10 * n);
            for place in std::mem::take(&mut world.waiting) {
                let order = world.worker_places.start_place(place);
                world.carry_out(order.into_iter().collect());
            }
        }
        assert_eq!(world.left == Some(0), is_parked, "they had stood for {stood:?} each");
    }
}

#[test]
fn a_dead_spare_is_replaced_and_one_that_cannot_load_is_given_up_without_harm() {
    let mut world = World::at_rest(1, 1);
    let spare = world.spare();
    world.end(spare, &KILLED, false, LATER);
    let now = LATER + Duration::from_secs(1);
    let orders = world.worker_places.start_spares(now, SuccessorFirst);
    let dead = Some(Predecessor { worker: spare, has_died: true });
    assert_eq!(orders, [Order::Start { role: Role::Spare, instead_of: dead }]);
    world.carry_out(orders);
    let spare = world.spare();
    let exit = WorkerExit::LoadFailed { class: ErrorClass::Permanent, why: "out of address space".into() };
    world.end(spare, &exit, false, now);
    assert!(world.given_up);
    world.man_spares(now * 10);
    assert_eq!(world.starts, 3);
    let server = world.serving(0)[0];
    world.end(server, &CRASHED, true, now);
    assert_eq!(world.serving(0).len(), 1, "the place is served as without spares");
}

#[test]
fn idle_spares_that_crash_do_not_spend_the_budget_of_the_places() {
    let mut world = World::at_rest(1, 1);
    let mut now = LATER;
    while !world.given_up {
        let spare = world.spare();
        world.end(spare, &CRASHED, false, now);
        now += Duration::from_secs(11);
        world.man_spares(now);
    }
    let server = world.serving(0)[0];
    world.end(server, &CRASHED, false, now);
    assert_eq!((world.left, world.waiting.len()), (None, 1));
}

#[test]
fn a_place_that_was_added_is_taken_back_if_its_first_worker_does_not_fit_and_costs_the_others_nothing() {
    for exit in [no_memory(), CRASHED, WorkerExit::Code(1)] {
        let mut world = World::at_rest(1, 0);
        let orders = world.worker_places.grow(2);
        world.carry_out(orders);
        let (fits, does_not) = (world.serving(1)[0], world.serving(2)[0]);
        world.end(does_not, &exit, false, LATER);
        world.ready(fits);
        assert_eq!((world.withdrawn, world.left, world.starts), (1, None, 3));
        assert!(world.waiting.is_empty() && world.worker_places.is_served());
        assert_eq!(world.worker_places.budget.spent(), 0);
        // From now on it is a place like the others.
        world.end(fits, &no_memory(), false, LATER);
        assert_eq!((world.withdrawn, &world.waiting[..]), (1, &[1][..]));
    }
    let mut world = World::at_rest(1, 0);
    let orders = world.worker_places.grow(1);
    world.carry_out(orders);
    world.end(world.serving(1)[0], &KILLED, false, LATER);
    assert_eq!((world.withdrawn, &world.waiting[..]), (0, &[1][..]), "a process outside the run did that");
}
