//! Ledger, queue, blame, ceiling, batching, crews and gather as one world under random interleavings: whatever happens, every item ends
//! once, only those fail that are to blame, nobody waits for nothing, and everything that was lent comes back.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod world;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use world::{World, ops, setups};

/// Cases that once failed are kept, and run first.
fn config(cases: u32) -> ProptestConfig {
    let kept = FileFailurePersistence::Direct("proptest-regressions/interleavings.txt");
    ProptestConfig {
        failure_persistence: Some(Box::new(kept)),
        max_shrink_iters: 4000,
        ..ProptestConfig::with_cases(cases)
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn whatever_happens_every_item_ends_once_and_only_the_guilty_fail(
        setup in setups(), ops in ops(), choices in proptest::collection::vec(any::<u8>(), 1..40)
    ) {
        let mut world = World::new(&setup);
        for op in &ops {
            world.apply(op);
        }
        world.run_out(&choices);
        world.check_end();
    }

    #[test]
    fn where_there_is_work_that_harms_nobody_no_device_that_works_is_given_up_and_nothing_stays_open(
        setup in setups(), ops in ops(), choices in proptest::collection::vec(any::<u8>(), 1..40)
    ) {
        let setup = setup.with_plenty_of_work();
        let mut world = World::new(&setup);
        for op in &ops {
            world.apply(op);
        }
        world.run_out(&choices);
        world.check_end();
        prop_assert_eq!(world.n_open(), 0);
    }
}
