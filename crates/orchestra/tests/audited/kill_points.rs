//! A worker that dies at any point of the protocol costs no item: what it held is done by others, and what it had half written is no
//! result. Says nothing about blame, which needs more than one death (`poison.rs` at the top, `protocol_faults.rs`).

use crate::common::{Workplace, all_copied, audited, copying, hurried, one_replaced, restarts};
use orchestra_testkit::faulty::FAULT;

const ITEMS: u64 = 60;

/// Before it has run a batch, in its first one, and in a later one.
const POINTS: [&str; 14] = [
    "start",
    "hello",
    "load",
    "loaded",
    "unread:1",
    "run:1",
    "outputs:1",
    "half-answer:1",
    "answered:1",
    "unread:3",
    "run:3",
    "outputs:3",
    "half-answer:3",
    "answered:3",
];

/// On one device with so many workers, and none that stands by.
fn workplace(workers: usize) -> Workplace {
    copying(ITEMS, 4, 1, &format!("workers = {workers}"))
}

#[test]
fn a_worker_that_dies_at_any_point_costs_no_item() {
    audited(async {
        for how in ["kill", "abort", "exit0"] {
            for point in POINTS {
                // The only worker dies: no other worker can have done the batch that it dies of.
                one_replaced(&mut workplace(1), ITEMS, &format!("{how}-at-{point}")).await;
            }
        }
    });
}

#[test]
fn a_worker_that_dies_when_it_is_asked_to_end_harms_nothing() {
    audited(async {
        for how in ["kill", "abort", "exit0"] {
            let fault = format!("{how}-at-hang-up");
            let place = workplace(2);
            let outcome = place.run_with(hurried(place.faulty_workers(&[(FAULT, &fault)]))).await;
            assert_eq!(outcome.exit_code, 0, "`{fault}`: {:?}", outcome.problems);
            all_copied(&place, ITEMS, &fault);
            assert_eq!(restarts(&outcome), 0, "`{fault}`");
        }
    });
}
