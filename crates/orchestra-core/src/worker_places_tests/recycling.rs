//! How a healthy worker is followed by another one.

use Handover::OldFirst;

use super::*;

#[test]
fn a_worker_whose_successor_dies_goes_on_and_one_that_dies_first_is_followed_by_its_successor() {
    let mut world = World::new(1);
    world.all_ready();
    let old = world.serving(0)[0];
    world.recycle(old);
    let successor = world.in_role(|r| matches!(r, Role::Successor { .. }))[0];
    world.end(successor, &CRASHED, false);
    assert_eq!(world.serving(0), [old]);
    world.recycle(old);
    let successor = world.in_role(|r| matches!(r, Role::Successor { .. }))[0];
    world.end(old, &KILLED, true);
    world.ready(successor);
    assert_eq!((world.serving(0), &world.drained[..]), (vec![successor], &[][..]));
}

#[test]
fn where_there_is_no_memory_for_both_the_old_one_ends_before_its_successor_starts() {
    let mut world = World::new(2);
    world.all_ready();
    let old = world.serving(1)[0];
    world.replace(old, OldFirst);
    assert_eq!((&world.yielding[..], world.starts), (&[old][..], 2));
    let other = world.serving(0)[0];
    for worker in [old, other] {
        world.replace(worker, OldFirst);
        assert_eq!(world.yielding.len(), 1, "it is asked once, and no other meanwhile");
    }
    world.end(old, &WorkerExit::Clean, true);
    let successor = world.in_role(|r| r == Role::Successor { place: 1, of: old });
    assert_eq!((successor.len(), world.starts, world.waiting.len()), (1, 3, 0));
    world.replace(other, OldFirst);
    assert_eq!(world.yielding.len(), 1, "until the successor is loaded");
    world.ready(successor[0]);
    assert_eq!((world.serving(1), &world.drained[..]), (successor, &[][..]));
    assert_eq!(world.yielding, [old, other], "then it is the turn of the one that waited");
    // One that dies while it makes way is a death like any other.
    world.end(other, &CRASHED, false);
    assert_eq!(world.waiting, [0]);
}

#[test]
fn a_successor_without_memory_makes_the_old_one_end_first_from_then_on() {
    let mut world = World::new(1);
    world.all_ready();
    let old = world.serving(0)[0];
    world.recycle(old);
    let successor = world.in_role(|r| matches!(r, Role::Successor { .. }))[0];
    world.end(successor, &no_memory(), false);
    assert_eq!(world.yielding, [old]);
    world.end(old, &WorkerExit::Clean, true);
    world.all_ready();
    let second = world.serving(0)[0];
    world.recycle(second);
    assert_eq!((&world.yielding[..], world.starts), (&[old, second][..], 3), "it is not tried again");
    // Nor do two end at once.
    let mut world = World::new(2);
    world.all_ready();
    let old = [world.serving(0)[0], world.serving(1)[0]];
    old.iter().for_each(|worker| world.recycle(*worker));
    for successor in world.in_role(|r| matches!(r, Role::Successor { .. })) {
        world.end(successor, &no_memory(), false);
    }
    assert_eq!((world.yielding.len(), world.serving(0).len() + world.serving(1).len()), (1, 1));
    let first = world.yielding[0];
    world.end(first, &WorkerExit::Clean, true);
    world.all_ready();
    assert_eq!(world.yielding.len(), 2, "the other one ends when the first is replaced");
}

#[test]
fn of_workers_that_reach_their_bound_together_each_makes_way_once_and_one_at_a_time() {
    let mut world = World::new(4);
    world.all_ready();
    let old: Vec<WorkerId> = world.members();
    old.iter().chain(&old).for_each(|worker| world.replace(*worker, OldFirst));
    for n in 1..=old.len() {
        assert_eq!(world.yielding.len(), n);
        let leaves = world.yielding[n - 1];
        world.end(leaves, &WorkerExit::Clean, true);
        world.all_ready();
    }
    assert_eq!((&world.yielding, world.starts), (&old, 8));
    assert!(world.worker_places.is_served());
}
