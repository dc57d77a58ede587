//! What must hold of the places under any interleaving of loads, deaths and recycling.

use Handover::{OldFirst, SuccessorFirst};
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Ready(usize),
    Die(usize, u8),
    Recycle(usize),
    Progress,
    Due,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0usize..16).prop_map(Step::Ready),
        5 => ((0usize..16), 0u8..7).prop_map(|(w, how)| Step::Die(w, how)),
        2 => (0usize..16).prop_map(Step::Recycle),
        2 => Just(Step::Progress),
        3 => Just(Step::Due),
    ]
}

fn how_it_died(how: u8) -> (WorkerExit, bool) {
    match how {
        0 => (KILLED, true),
        1 => (KILLED, false),
        2 => (CRASHED, false),
        3 => (WorkerExit::Silent, true),
        4 => (WorkerExit::HandshakeTimeout, false),
        5 => (WorkerExit::LoadFailed { class: ErrorClass::Permanent, why: String::new() }, false),
        _ => (no_memory(), false),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn whatever_happens_each_place_has_one_worker_or_a_start_to_come_or_is_parked(
        places in 1usize..4,
        steps in proptest::collection::vec(step(), 0..120),
    ) {
        let mut world = World::new(places);
        let (mut deaths, mut recyclings) = (0, 0);
        for step in steps {
            let members = world.members();
            let pick = |n: usize| members.get(n % members.len().max(1)).copied();
            match step {
                Step::Ready(n) => if let Some(w) = pick(n) { world.ready(w) },
                Step::Die(n, how) => if let Some(w) = pick(n) {
                    let (exit, progressed) = how_it_died(how);
                    deaths += 1;
                    world.end(w, &exit, progressed);
                },
                Step::Recycle(n) => if let Some(w) = pick(n) {
                    recyclings += 1;
                    world.replace(w, if n % 2 == 0 { SuccessorFirst } else { OldFirst });
                },
                Step::Progress => world.worker_places.progressed(),
                Step::Due => for place in std::mem::take(&mut world.waiting) {
                    let order = world.worker_places.start_place(place);
                    world.carry_out(order.into_iter().collect());
                },
            }
            for place in 0..places {
                let parked = world.worker_places.places[place].is_parked;
                let serving = world.in_role(|r| matches!(r, WorkerRole::Serving { place: p } | WorkerRole::Yielding { place: p } if p == place)).len();
                let successors =
                    world.in_role(|r| matches!(r, WorkerRole::Successor { place: p, .. } if p == place)).len();
                let waiting = world.waiting.iter().filter(|p| **p == place).count();
                prop_assert!(serving <= 1 && successors <= 1 && waiting <= 1);
                prop_assert!(parked || serving + successors + waiting >= 1, "place {} is forgotten", place);
                prop_assert!(!parked || serving + successors == 0, "a parked place is served");
            }
            prop_assert!(world.starts <= places + deaths + recyclings, "starts that nothing asked for");
        }
    }
}
