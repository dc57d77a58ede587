//! `streams`: several batches at once in one worker process, real models and real faults. Exact times and bounds are those of the tests
//! over fake workers.

use crate::common::{
    AS_IT_IS, Workplace, audited, copying, each_shows_its_own_picture, one_replaced, restarts,
};
use orchestra_testkit::images;
use orchestra_testkit::records::items;
use orchestra_testkit::{Trap, models, trap_library};

const ITEMS: u64 = 200;

/// One worker that runs two batches at once, with this fault in the first process.
async fn one_fault(fault: &str) {
    let mut place = copying(ITEMS, 4, 1, "workers = 1\nstreams = 2");
    one_replaced(&mut place, ITEMS, fault).await;
}

#[test]
fn a_worker_that_is_killed_while_two_batches_run_costs_no_item() {
    audited(async {
        for n in [1, 2, 7] {
            one_fault(&format!("kill-beside:{n}")).await;
        }
    });
}

#[test]
fn one_of_two_batches_that_hangs_crashes_or_breaks_its_device_costs_no_item() {
    audited(async {
        for fault in ["hang-on-batch:3", "segfault-on-batch:3", "exit0-on-batch:2", "device-error-on-batch:5"]
        {
            one_fault(fault).await;
        }
    });
}

/// Real sessions, each of them with two workers that run so many batches at once.
fn trapped(streams: usize, traps: &[(u64, Trap)]) -> Workplace {
    let mut place = Workplace::with_pictures(ITEMS);
    for (index, trap) in traps {
        images::write_trap_picture(&place.path("images"), *index, *trap).unwrap();
    }
    let model = models::blocks_behind_trap(&place.models(), [1, 32, 32]).unwrap();
    let keys = format!(
        "workers = 2\nstreams = {streams}\ncustom_ops = [{:?}]\nsandbox_write = \"gate\"",
        trap_library().unwrap()
    );
    place
        .model("trap", model, &keys)
        .image("pixels", "scans", AS_IT_IS)
        .infer("read", "pixels", "trap", 8)
        .sink("all", "read", "")
        .devices(1);
    place
}

#[test]
fn poison_fails_alone_by_name_and_what_ran_beside_it_is_done() {
    audited(async {
        for streams in [2, 4] {
            let traps = [(50, Trap::Segfault), (51, Trap::Abort), (120, Trap::Fail), (199, Trap::Exit)];
            let place = trapped(streams, &traps);
            let outcome = place.run().await;
            Workplace::must_end_with(&outcome, 65);
            let is_bad = |i: &u64| traps.iter().any(|(bad, _)| bad == i);
            let records = place.records(&["all.jsonl"]);
            let (done, failed) = ((0..ITEMS).filter(|i| !is_bad(i)), (0..ITEMS).filter(is_bad));
            records.must_be(1, &items("scans", done), &items("scans", failed)).unwrap();
            each_shows_its_own_picture(&records, "all.jsonl", "blocks");
            // Three of them kill, each at most log2(8) + 2 workers.
            assert!((3..=15).contains(&restarts(&outcome)), "{:?}", outcome.report.devices);
        }
    });
}
