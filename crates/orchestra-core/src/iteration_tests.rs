use std::time::Duration;

use super::*;
use crate::batching::LeaveReason;
use crate::ids::{DeviceId, SlotId, WorkerId};
use crate::ledger::{Aftermath, Ledger, Rows};
use crate::worker_exit::WorkerExit;

fn iteration(rounds: u32, checkpoint: u32) -> Iteration {
    Iteration { rounds, feed: vec![Feed { output: 0, input: 0 }], until: None, checkpoint }
}

#[test]
fn a_bound_is_met_by_numbers_alone() {
    let until = |or_equal| Until { output: 0, below: 0.5, or_equal };
    assert!(until(false).is_met(0.25) && !until(false).is_met(0.5) && until(true).is_met(0.5));
    assert!(
        until(true).is_met(f64::NEG_INFINITY)
            && !until(true).is_met(f64::NAN)
            && !until(false).is_met(f64::INFINITY)
    );
    let met = |dtype, bytes: &[u8]| until(false).is_met_by(dtype, bytes);
    assert!(met(DType::F32, &0.49_f32.to_ne_bytes()) && !met(DType::F32, &f32::NAN.to_ne_bytes()));
    assert!(
        met(DType::F16, &half::f16::from_f32(0.25).to_ne_bytes())
            && !met(DType::F16, &half::f16::NAN.to_ne_bytes())
    );
    assert!(met(DType::I64, &(-3_i64).to_ne_bytes()) && met(DType::I32, &0_i32.to_ne_bytes()));
    assert!(
        met(DType::Bool, &[0]) && !met(DType::U8, &[1]) && !met(DType::F32, &[0; 3]),
        "and by whole ones"
    );
}

#[test]
fn a_row_ends_in_the_round_that_meets_its_bound_or_in_the_last_one_and_not_again() {
    let of = iteration(4, 0);
    let mut leg = Leg::new(&of, vec![0; 3]);
    assert_eq!(leg.round(|row| row == 1), [1]);
    assert_eq!(leg.round(|row| row == 1), [0; 0]);
    assert_eq!((leg.state(), leg.living().collect::<Vec<_>>()), (LegState::GoesOn, vec![0, 2]));
    assert_eq!(leg.round(|row| row == 2), [2]);
    assert_eq!(leg.round(|_| false), [0]);
    assert_eq!((leg.state(), leg.rounds()), (LegState::Done, vec![4, 1, 3]));
}

#[test]
fn at_a_checkpoint_rows_that_have_ended_stay_where_the_leg_began_and_end_again() {
    let of = iteration(9, 4);
    let mut leg = Leg::new(&of, vec![0; 3]);
    for round in 1..=4 {
        leg.round(|row| row == 1 && round == 2);
    }
    assert_eq!((leg.state(), leg.rounds()), (LegState::Paused, vec![4, 0, 4]));
    // The second leg has what its state says of each row.
    let mut leg = Leg::new(&of, vec![4, 0, 4]);
    for round in 1..=3 {
        leg.round(|row| (row == 1 && round == 2) || row == 0 && round == 3 || row == 2 && round == 1);
    }
    assert_eq!((leg.state(), leg.rounds()), (LegState::Done, vec![7, 2, 5]));
    // Where a leg ends with all rows, that is no checkpoint.
    let mut leg = Leg::new(&of, vec![4, 5]);
    (1..=4).for_each(|_| drop(leg.round(|_| false)));
    assert_eq!(leg.state(), LegState::Paused);
    let mut leg = Leg::new(&of, vec![5, 8]);
    (1..=4).for_each(|_| drop(leg.round(|_| false)));
    assert_eq!((leg.state(), leg.rounds()), (LegState::Done, vec![9, 9]));
}

#[test]
fn what_a_worker_may_say_at_a_checkpoint() {
    let of = iteration(9, 4);
    for (before, now) in [(0, 4), (0, 0), (4, 8), (3, 7)] {
        assert!(of.is_checkpoint(before, now), "{before} {now}");
    }
    for (before, now) in
        [(0, 3), (0, 5), (0, 8), (4, 0), (5, 9), (8, 12), (0, i64::MAX), (i64::MAX, i64::MIN + 3), (0, -4)]
    {
        assert!(!of.is_checkpoint(before, now), "{before} {now}");
    }
    assert!(!iteration(4, 4).has_checkpoints() && !iteration(4, 0).has_checkpoints());
}

#[test]
fn stretches_are_the_rows_again() {
    assert_eq!(stretches([0, 1, 2, 5, 7, 8]), [(0, 3), (5, 1), (7, 2)]);
    assert_eq!(stretches([]), []);
}

/// Rounds that are run for one batch of eight rows, of which row `n` takes `ROUNDS - n`, if its worker dies after every `dies_after` rounds;
/// `None`: a row has failed.
fn rounds_run(checkpoint: u32, dies_after: u32) -> Option<u64> {
    const ROUNDS: u32 = 60;
    const ROWS: usize = 8;
    let of = iteration(ROUNDS, checkpoint);
    let (device, slot) = (DeviceId(0), SlotId(0));
    let mut ledger = Ledger::new(ROWS);
    ledger.expect_device(device);
    ledger.add(Rows { slot, first: 0, count: ROWS }, LeaveReason::Full);
    // As they lie in the input slot.
    let mut state = [0_u32; ROWS];
    let mut found = [None; ROWS];
    let (mut run, mut workers) = (0, 0..);
    'workers: loop {
        let worker = WorkerId(workers.next()?);
        ledger.worker_ready(worker, device);
        let mut left = dies_after;
        while let Some(sent) = ledger.dispatch(Duration::ZERO) {
            let rows = sent.rows.first..sent.rows.first + sent.rows.count;
            let mut leg = Leg::new(&of, state[rows.clone()].to_vec());
            while leg.state() == LegState::GoesOn {
                if left == 0 {
                    let lost = ledger.worker_lost(worker, &WorkerExit::Signal(9), "", Duration::ZERO);
                    if lost.aftermath.iter().any(|after| matches!(after, Aftermath::Failed(_))) {
                        return None;
                    }
                    continue 'workers;
                }
                (left, run) = (left - 1, run + 1);
                let ran = leg.ran + 1;
                leg.round(|row| state[rows.start + row] + ran >= ROUNDS - (rows.start + row) as u32);
            }
            let rounds = leg.rounds();
            match leg.state() {
                LegState::Done => {
                    ledger.done(worker, sent.batch).unwrap();
                    for (row, rounds) in rows.zip(rounds) {
                        assert!(found[row].replace(rounds).is_none(), "a row ends once");
                    }
                }
                _ => {
                    ledger.paused(worker, sent.batch).unwrap();
                    assert!(ledger.paused(worker, sent.batch).is_none(), "a checkpoint counts once");
                    for (state, now) in state[rows].iter_mut().zip(rounds) {
                        assert!(of.is_checkpoint(i64::from(*state), now));
                        *state = now as u32;
                    }
                }
            }
        }
        if ledger.n_batches() == 0 {
            let expected: Vec<_> = (0..ROWS).map(|row| Some(i64::from(ROUNDS) - row as i64)).collect();
            assert_eq!(found.to_vec(), expected, "each row took its rounds, whatever died");
            return Some(run);
        }
    }
}

#[test]
fn with_checkpoints_a_lost_worker_costs_no_more_than_a_leg() {
    // No worker dies: a leg more is no round more, unless a row ends again later in the last leg than the others do, here after 7 and 4 rounds.
    assert_eq!(
        (rounds_run(0, 1000), rounds_run(10, 1000), rounds_run(7, 1000)),
        (Some(60), Some(60), Some(63))
    );
    // A worker that lasts 45 rounds never gets through all 60 of a batch, and its rows fail; with checkpoints it loses 5 of them.
    assert_eq!(rounds_run(0, 45), None);
    assert_eq!(rounds_run(10, 45), Some(65));
    // One that lasts 17 rounds loses 7 each time.
    assert_eq!(rounds_run(10, 17), Some(60 + 5 * 7));
    // And one that dies within the first leg fails them as ever.
    assert_eq!(rounds_run(10, 9), None);
}
