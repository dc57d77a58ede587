//! SIGINT and SIGTERM: the first finishes what is in flight, the second kills the workers; both end with 130, and the same command
//! completes the run exactly.

use crate::common::{Blocks, Workplace, write_pictures};
use orchestra_testkit::Trap;
use orchestra_testkit::images::write_trap_picture;
use orchestra_testkit::records::items;
use orchestra_testkit::striker::workers_of;
use rustix::process::Signal;

const ITEMS: u64 = 2_000;

#[test]
fn a_run_that_is_interrupted_says_so_and_is_completed_later() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Workplace::with_gate(ITEMS);
        let mut run = place.start_until(300);
        run.signal(signal);
        run.must_say("stopping: finishing what is in flight");
        place.open_gate();
        let ended = run.wait();
        ended.must_exit(130).must_say(&["stopping: finishing what is in flight", "What is done is kept"]);
        place.nothing_is_left();
        let report = place.report();
        let done = report["items"]["done"].as_u64().unwrap();
        assert!((300..ITEMS).contains(&done), "{report}");
        assert_eq!(place.n_results() as u64, done);
        assert_eq!(report["exit_code"], 130);
        place.run(&[]).must_exit(0).must_say(&["going on: "]);
        place.holds_exactly(ITEMS);
        assert_eq!(place.report()["items"]["resumed"], done);
        place.nothing_is_left();
    }
}

#[test]
fn one_sigterm_under_load_ends_a_run_within_the_grace_period_however_long_a_batch_takes() {
    let place = Workplace::with_gate(ITEMS);
    place.close_gate_after(300);
    let mut run = place.start(&["--set", "limits.grace=500ms", "--set", "limits.batch_timeout=1h"]);
    run.must_reach("the run is under way", || place.n_results() >= 300);
    // The gate stays closed: all workers have batches that they cannot finish, and all slots are full behind them.
    run.signal(Signal::TERM);
    let ended = run.wait();
    ended
        .must_exit(130)
        .must_say(&["stopping: finishing what is in flight", "takes longer than `limits.grace`"]);
    place.nothing_is_left();
    place.open_gate();
    let done = place.report()["items"]["done"].as_u64().unwrap();
    assert!((300..ITEMS).contains(&done) && place.n_results() as u64 == done, "{done}");
    place.run(&[]).must_exit(0).must_say(&["going on: "]);
    place.holds_exactly(ITEMS);
    place.nothing_is_left();
}

/// The picture that hangs keeps a batch in flight for ever, so that the first signal alone cannot end the run.
#[test]
fn a_second_signal_ends_a_run_whose_model_hangs() {
    for signal in [Signal::INT, Signal::TERM] {
        // One item in a batch: the one that hangs takes no other with it, and only it has to wait for its deadline.
        let place = Workplace::with_blocks(&Blocks { trap: true, batch: 1, ..Blocks::default() });
        let n = 500;
        write_pictures(&place.images(), n);
        write_trap_picture(&place.images(), 0, Trap::Hang).unwrap();
        let mut run = place.start(&["--set", "limits.batch_timeout=1h"]);
        run.must_reach("results come in beside the batch that hangs", || place.n_results() >= 100);
        run.signal(signal);
        run.must_say("stopping: finishing what is in flight");
        run.signal(signal);
        run.wait().must_exit(130).must_say(&["stopping now: workers are killed", "What is done is kept"]);
        place.nothing_is_left();
        place.run(&["--set", "limits.batch_timeout=5s"]).must_exit(65).must_say(&["going on: "]);
        let records = place.must_hold(&items("scans", 1..n), &items("scans", [0]));
        assert_eq!(records.failure_kind(items("scans", [0]).first().unwrap()), Some("timeout"));
        place.nothing_is_left();
    }
}

/// A process that the model has left behind holds the worker's socket open, so the second signal has to wait for its end for a while:
/// time for a third one.
#[test]
fn a_third_signal_ends_the_command_at_once_and_the_run_is_completed_later() {
    for signals in [[Signal::INT, Signal::INT, Signal::INT], [Signal::TERM, Signal::INT, Signal::TERM]] {
        let place = Workplace::with_blocks(&Blocks { trap: true, ..Blocks::default() });
        write_pictures(&place.images(), 500);
        for index in 0..64 {
            write_trap_picture(&place.images(), index, Trap::Fork).unwrap();
        }
        write_trap_picture(&place.images(), 64, Trap::Hang).unwrap();
        let mut run =
            place.start(&["--set", "limits.batch_timeout=1h", "--set", "models.blocks.sandbox=off"]);
        run.must_reach("results come in", || place.n_results() >= 100);
        run.signal(signals[0]);
        run.must_say("stopping: finishing what is in flight");
        run.signal(signals[1]);
        run.must_say("stopping now: workers are killed");
        run.signal(signals[2]);
        let ended = run.wait().exited(130);
        // It went without a word about results: there was no time for that.
        assert!(!ended.stderr.contains("What is done is kept"), "{}", ended.stderr);
        place.end_strangers();
        place.no_process_is_left();
        // Nothing of it is to be left behind again.
        write_pictures(&place.images(), 65);
        place.run(&[]).must_exit(0).must_say(&["going on: "]);
        place.holds_exactly(500);
        place.nothing_is_left();
    }
}

/// However many signals come, of whatever kind and as quickly as they can: the command ends, leaves no worker, and goes on exactly.
#[test]
fn a_hail_of_signals_ends_the_command_and_harms_nothing() {
    let place = Workplace::with_gate(ITEMS);
    for round in 0..4 {
        place.close_gate_after(200);
        let before = place.n_results();
        let mut run = place.start(&[]);
        let pid = run.pid();
        // In the middle of the run, or when its workers begin to load.
        let is_under_way = || match round % 2 {
            0 => place.n_results() > before,
            _ => !workers_of(pid).is_empty(),
        };
        run.must_reach("it goes on", is_under_way);
        let send = run.signaller();
        run.until("it ends", || {
            send(Signal::INT);
            send(Signal::TERM);
            false
        });
        run.wait().must_exit(130);
        place.no_process_is_left();
    }
    place.open_gate();
    place.run(&[]).must_exit(0);
    place.holds_exactly(ITEMS);
    place.nothing_is_left();
}
