//! Ledger, queue, blame, ceiling, batching, worker places and lineage as one world under random interleavings: whatever happens, every item ends
//! once, only those fail that are to blame, no batch waits without a reason, and everything that was lent comes back.

use std::fs;
use std::path::{Path, PathBuf};

use crate::world::{Op, Setup, World, ops, setups};
use proptest::prelude::*;
use proptest::test_runner::{FailurePersistence, FileFailurePersistence};

/// The seeds of cases that once failed. All properties run all of them first, whichever had failed.
const KEPT: FileFailurePersistence = FileFailurePersistence::Direct("proptest-regressions/interleavings.txt");

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(KEPT)),
        max_shrink_iters: 4000,
        ..ProptestConfig::with_cases(cases)
    }
}

#[test]
fn every_case_that_was_kept_for_these_properties_is_run_again() {
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("interleavings.") && !name.ends_with(".rs")
    };
    let files_in = |folder: &str| {
        let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(is_ours).collect::<Vec<_>>()
    };
    let files = [files_in("tests"), files_in("proptest-regressions")].concat();
    let n_cases = |path: &PathBuf| {
        fs::read_to_string(path).unwrap().lines().filter(|line| line.starts_with("cc ")).count()
    };
    let n_written: usize = files.iter().map(n_cases).sum();
    assert_eq!(KEPT.load_persisted_failures2(None).len(), n_written, "{files:?}");
    assert!(n_written > 0, "{files:?}");
}

/// The world after all of this, at its end.
fn played(setup: &Setup, ops: &[Op], choices: &[u8]) -> World {
    let mut world = World::new(setup);
    for op in ops {
        world.apply(op);
    }
    world.run_out(choices);
    world.check_end();
    world
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn whatever_happens_every_item_ends_once_and_only_those_to_blame_fail(
        setup in setups(), ops in ops(), choices in proptest::collection::vec(any::<u8>(), 1..40)
    ) {
        played(&setup, &ops, &choices);
    }

    #[test]
    fn the_same_holds_where_workers_run_several_batches_at_once(
        setup in setups(), ops in ops(), choices in proptest::collection::vec(any::<u8>(), 1..40),
        streams in 2usize..=4, plenty in any::<bool>(),
    ) {
        let setup = if plenty { setup.with_plenty_of_work() } else { setup };
        let world = played(&Setup { streams, ..setup }, &ops, &choices);
        prop_assert!(!plenty || world.n_open() == 0);
    }

    #[test]
    fn where_there_is_harmless_work_no_device_that_works_is_given_up_and_nothing_stays_open(
        setup in setups(), ops in ops(), choices in proptest::collection::vec(any::<u8>(), 1..40)
    ) {
        let setup = setup.with_plenty_of_work();
        let world = played(&setup, &ops, &choices);
        prop_assert_eq!(world.n_open(), 0);
    }
}
