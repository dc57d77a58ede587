//! Deadlines, to the tick: a worker that is late in anything is killed when its time is over, and no earlier. Time is virtual, so it may be
//! asserted.

use std::time::Duration;

use orchestra_core::WorkerExit;

use super::fake_process::STREAM;
use super::script::*;
use super::stage::{Stage, Stop};

/// Deadlines are looked at so often.
const TICK: Duration = ms(250);

#[tokio::test(start_paused = true)]
async fn a_batch_that_hangs_is_taken_away_at_its_deadline() {
    for timeout in [ms(700), secs(10), secs(60)] {
        for nth in [1, 2, 5] {
            let mut stage = Stage::of(40).named(format!("{timeout:?}, run {nth}"));
            stage.batch_timeout = timeout;
            let run = stage.run_first(Script::at_run(nth, RunFault::Hang)).await;
            run.all_done();
            run.check(run.exits == [WorkerExit::Hung], "it hung");
            let hung = run.lives[0].runs.last().expect("it ran something");
            run.check_time(run.lives[0].end() - hung.at, timeout, timeout + TICK, "it is killed");
            // A worker that has done nothing yet is replaced after a first pause of 100 ms, a quarter more or less.
            let pause = if nth == 1 { (ms(75), ms(125)) } else { (ms(0), ms(0)) };
            let again = run.begun(hung.items[0]).nth(1).expect("it is begun again").1.at;
            let (from, to) = (timeout + pause.0 + ms(100), timeout + TICK + pause.1 + ms(100));
            run.check_time(again - hung.at, from, to, "it is begun again");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_freezes_before_a_load_that_its_socket_does_not_hold_is_replaced() {
    let stage = Stage { spec_bytes: 2 * STREAM, ..Stage::of(10) };
    let run = stage.run_first(Script::starting(Start::Freezes)).await;
    run.all_done().check(run.exits == [WorkerExit::Silent], "it is given up");
}

#[tokio::test(start_paused = true)]
async fn a_slow_worker_is_left_alone_as_long_as_each_batch_keeps_its_deadline() {
    let slow = Script { run_takes: ms(9_900), ..Script::honest() };
    let mut stage = Stage::of(40);
    stage.workers = 2;
    let run = stage.run(move |_| slow.clone()).await;
    run.all_done();
    run.check((run.restarts, run.retries) == (0, 0), "no worker is replaced");
    run.check_time(run.over, ms(49_600), ms(49_610), "five batches each");
}

#[tokio::test(start_paused = true)]
async fn an_answer_at_the_very_deadline_counts_once_or_not_at_all() {
    for late in (9_950..10_350).step_by(10) {
        for kill_takes in [ms(0), ms(40)] {
            let mut script = Script::at_run(2, RunFault::Slow(ms(late)));
            script.kill_takes = kill_takes;
            let run = Stage::of(40).named(format!("{late} ms, {kill_takes:?}")).run_first(script).await;
            run.all_done();
            run.check(run.most_begun() <= 2, "it is begun at most once more");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_heart_stops_is_killed_after_three_seconds_of_silence() {
    // The last heartbeat is up to 250 ms older than the stop.
    let (from, to) = (ms(2_750), ms(3_250));
    let in_a_run = Stage::of(40).run_first(Script::at_run(2, RunFault::Freeze)).await;
    let stopped = in_a_run.lives[0].runs[1].at;
    in_a_run.all_done().check_time(in_a_run.lives[0].end() - stopped, from, to, "in a run");

    let mut stage = Stage::of(40);
    stage.first_item = secs(20);
    let idle = stage.run_first(Script::later(ms(1_100), TimedFault::Freezes)).await;
    let stopped = idle.lives[0].loaded.expect("it was loaded") + ms(1_100);
    idle.all_done().check_time(idle.lives[0].end() - stopped, from, to, "while idle");
    idle.check(idle.most_begun() == 1, "no item suffers");

    let loading = Stage::of(40).run_first(Script::loading(Load::Freezes)).await;
    loading.all_done().check_time(loading.lives[0].end(), secs(3), to, "while loading");
    for run in [in_a_run, idle, loading] {
        run.check(run.exits == [WorkerExit::Silent], "it fell silent");
        run.check(run.restarts == 1, "it is replaced");
    }
}

#[tokio::test(start_paused = true)]
async fn where_silence_proves_nothing_while_a_worker_is_busy_the_deadline_of_what_it_does_counts() {
    let stage = || Stage { beats_while_busy: false, batch_timeout: secs(20), ..Stage::of(40) };
    let in_a_run = stage().run_first(Script::at_run(2, RunFault::Freeze)).await;
    let stopped = in_a_run.lives[0].runs[1].at;
    in_a_run.all_done().check(in_a_run.exits == [WorkerExit::Hung], "it hung");
    in_a_run.check_time(in_a_run.lives[0].end() - stopped, secs(20), secs(20) + TICK, "in a run");

    let late = Stage { first_item: secs(20), ..stage() };
    let idle = late.run_first(Script::later(ms(1_100), TimedFault::Freezes)).await;
    idle.all_done().check(idle.exits == [WorkerExit::Silent], "it is idle, and falls silent");

    let loading = stage().run_first(Script::loading(Load::Freezes)).await;
    loading.all_done().check_time(loading.lives[0].end(), secs(600), secs(600) + TICK, "while loading");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_never_says_hello_is_killed_after_ten_seconds() {
    for start in [Start::Silent, Start::LoadedFirst] {
        let run = Stage::of(40).run_first(Script::starting(start)).await;
        run.all_done().check(run.exits == [WorkerExit::HandshakeTimeout], "it said no hello");
        run.check_time(run.lives[0].end(), secs(10), secs(10) + TICK, "it is killed");
        run.check_time(run.lives[1].started - run.lives[0].end(), ms(75), ms(125), "it is replaced");
    }
}

#[tokio::test(start_paused = true)]
async fn a_load_may_take_ten_minutes_as_long_as_the_heart_beats() {
    let slow = Script { load_takes: secs(599), ..Script::honest() };
    let run = Stage::of(40).run_first(slow).await;
    run.all_done().check(run.restarts == 0, "it is left alone");
    let run = Stage::of(40).run_first(Script::loading(Load::NeverEnds)).await;
    run.all_done().check(run.restarts == 1, "it is replaced");
    run.check_time(run.lives[0].end(), secs(600), secs(600) + TICK, "it is killed");
}

#[tokio::test(start_paused = true)]
async fn a_load_that_waits_for_another_worker_has_its_time_when_the_wait_is_over() {
    let stage = || Stage { bound: secs(10_000), ..Stage::of(40) };
    let waits = Load::WaitsFor(secs(1500));
    let slow = Script { load_takes: secs(599), ..Script::loading(waits.clone()) };
    let run = stage().run_first(slow).await;
    run.all_done().check(run.restarts == 0, "it is left alone");
    let run = stage().run_first(Script { load_takes: secs(700), ..Script::loading(waits) }).await;
    run.all_done().check(run.restarts == 1, "it is replaced");
    run.check_time(run.lives[0].end(), secs(2100) - TICK, secs(2100) + TICK, "it is killed");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_told_to_end_has_five_seconds() {
    for (ending, from, to) in [
        (Ending::AtOnce, ms(0), ms(0)),
        (Ending::After(secs(4)), secs(4), secs(4)),
        (Ending::Never, secs(5), secs(5) + TICK),
    ] {
        let run = Stage::of(40).run_first(Script { ending, ..Script::honest() }).await;
        run.all_done();
        let told = run.lives[0].told.expect("it was told to end");
        run.check_time(run.lives[0].end() - told, from, to, "it ends");
        run.check(run.exits.is_empty(), "it ended as asked");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_at_once_kills_its_workers_and_one_that_is_stopped_politely_asks_them() {
    for (how, told) in [(Stop::Politely, true), (Stop::AtOnce, false)] {
        let mut stage = Stage::of(400).named(format!("{how:?}"));
        stage.stop = Some((ms(333), how));
        let run = stage.run(|_| Script::honest()).await;
        run.check(run.lives[0].told.is_some() == told, "as it was asked");
        run.check_time(run.lives[0].end(), ms(333), ms(333), "without delay");
    }
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_was_stopped_itself_blames_no_worker_for_it() {
    for slept in [secs(2), secs(30), secs(3600)] {
        let slow = Script { run_takes: secs(2), ..Script::honest() };
        let clock = tokio::spawn(async move {
            tokio::time::sleep(ms(7_300)).await;
            tokio::time::advance(slept).await;
        });
        let run = Stage { bound: secs(10_000), ..Stage::of(40).named(format!("{slept:?}")) };
        let run = run.run(move |_| slow.clone()).await;
        clock.await.unwrap();
        run.all_done();
        run.check((run.restarts, run.retries) == (0, 0), "no worker is replaced");
    }
}
