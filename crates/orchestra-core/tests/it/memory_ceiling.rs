//! A device whose memory shrinks and grows: what it is sent soon fits, and is as large as it may be again before long.

use std::time::Duration;

use orchestra_core::batching::LeaveReason;
use orchestra_core::ledger::{Ledger, Rows, RunErrorKind};
use orchestra_core::{DeviceId, SlotId, WorkerId};
use proptest::prelude::*;

const HERE: DeviceId = DeviceId(0);
const WORKER: WorkerId = WorkerId(0);

/// Sends `n` full batches through a device with memory for `room` rows. Gives the rows done and how often memory ran out.
fn run(ledger: &mut Ledger, max_batch: usize, n: u32, room: usize) -> (usize, u32) {
    let (mut done, mut faults, mut now) = (0, 0, Duration::ZERO);
    for slot in 0..n {
        ledger.add(Rows { slot: SlotId(slot), first: 0, count: max_batch }, LeaveReason::Full);
        while ledger.n_batches() > 0 {
            let Some(a) = ledger.dispatch(now) else {
                now = ledger.next_due(now).expect("it waits for its time");
                continue;
            };
            assert!(a.rows.count <= ledger.ceiling(HERE));
            if a.rows.count <= room {
                done += ledger.done(WORKER, a.batch).unwrap().rows.count;
            } else {
                faults += 1;
                let _ = ledger.fault(WORKER, a.batch, RunErrorKind::OutOfMemory, String::new(), now).unwrap();
            }
        }
    }
    (done, faults)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_ceiling_falls_under_what_does_not_fit_is_tried_seldom_and_rises_again_when_there_is_room(
        power in 0u32..7, odd in 0usize..3, rooms in proptest::collection::vec(0.0..1.2f64, 1..5)
    ) {
        let max_batch = (1usize << power) + odd;
        let mut ledger = Ledger::new(max_batch);
        ledger.worker_ready(WORKER, HERE);
        for share in rooms {
            let room = ((max_batch as f64 * share) as usize).max(1);
            let (done, faults) = run(&mut ledger, max_batch, 40, room);
            prop_assert_eq!(done, 40 * max_batch, "nothing is lost");
            // A larger batch is only tried after sixteen that went well. It is larger by one step, and comes apart into that many pieces.
            let step = (max_batch / 8).max(1);
            let tries = (40 * max_batch).div_ceil(16);
            let most = u32::try_from(max_batch + tries * (step + 1)).unwrap();
            prop_assert!(faults <= most, "memory ran out {} times, expected at most {}", faults, most);
            if room < max_batch {
                prop_assert!(ledger.ceiling(HERE) <= room + step, "ceiling {} with room for {}", ledger.ceiling(HERE), room);
            }
        }
        // Eight steps of sixteen batches each, and some for a smaller one at the end of each full batch.
        let (_, faults) = run(&mut ledger, max_batch, 40 * 16, usize::MAX);
        prop_assert_eq!((faults, ledger.ceiling(HERE)), (0, max_batch));
    }
}
