//! When a dead worker is replaced, and when its place is given up: pauses, budgets, and crash loops that end.

use std::time::Duration;

use orchestra_core::{ErrorClass, WorkerExit};

use super::account::Outcome;
use super::script::*;
use super::stage::Stage;

/// The pauses between the end of each worker and the start of the next.
fn pauses(run: &Outcome) -> Vec<Duration> {
    run.lives.windows(2).map(|pair| pair[1].started - pair[0].end()).collect()
}

/// Pause `n`, counted from 0, of workers that die without progress: doubled each time, a quarter more or less.
fn check_pauses(run: &Outcome, first: Duration) {
    for (n, pause) in pauses(run).into_iter().enumerate() {
        let usual = first * 2u32.pow(n as u32);
        run.check_time(pause, usual.mul_f64(0.75), usual.mul_f64(1.25), &format!("pause {n}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_at_the_start_ends_with_the_sixth_death_and_its_last_words() {
    let starts =
        [Start::CannotBeStarted, Start::Dies(WorkerExit::Code(3)), Start::Dies(SEGFAULT), Start::Garbage];
    let loads = [
        Load::Dies(SEGFAULT),
        Load::Dies(WorkerExit::Code(0)),
        Load::Fails(ErrorClass::Transient),
        Load::Fails(ErrorClass::Overload),
    ];
    let scripts = starts.map(Script::starting).into_iter().chain(loads.map(Script::loading));
    for mut script in scripts {
        script.says = "libfoo.so: cannot open shared object file".to_owned();
        let label = format!("{:?}, {:?}", script.start, script.load);
        let says = if script.start == Start::CannotBeStarted { "no such program" } else { "libfoo.so" };
        let run = Stage::of(40).named(label).run(move |_| script.clone()).await;
        let why = run.account.no_device.clone().unwrap_or_default();
        run.check(why.contains(says) && why.contains("`read`"), "it says why");
        run.check(run.account.failed.is_empty(), "no item is blamed");
        run.check((run.starts, run.restarts) == (6, 5), "five are forgiven");
        check_pauses(&run, ms(100));
        // 0.1 + 0.2 + 0.4 + 0.8 + 1.6 s, a quarter more or less, and six loads of 0.1 s.
        run.check_time(run.over, ms(2_325), ms(3_875) + ms(600), "it fails fast");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_ends_also_when_each_worker_takes_long_to_die() {
    let mut crashes_late = Script::loading(Load::Dies(SEGFAULT));
    crashes_late.load_takes = secs(25);
    let mut no_memory = Script::loading(Load::Fails(ErrorClass::Overload));
    no_memory.load_takes = secs(45);
    let slow_loads = [(crashes_late, secs(25)), (no_memory, secs(45))];
    let deadlines = [
        (Script::starting(Start::Silent), secs(10) + ms(250)),
        (Script::loading(Load::NeverEnds), secs(600) + ms(250)),
    ];
    for (script, each) in slow_loads.into_iter().chain(deadlines) {
        let mut stage = Stage::of(40).named(format!("{:?}, {:?}", script.start, script.load));
        stage.bound = secs(7200);
        let run = stage.run(move |_| script.clone()).await;
        run.check(run.account.no_device.is_some(), "the place is given up");
        run.check(run.account.failed.is_empty(), "no item is blamed");
        run.check(run.starts == 6, "five are forgiven");
        check_pauses(&run, ms(100));
        run.check_time(run.over, each * 6, each * 6 + ms(3_900), "it ends");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_can_never_load_is_tried_once() {
    let mut scripts = vec![Script::loading(Load::Fails(ErrorClass::Permanent))];
    scripts.extend([Start::OtherBuild, Start::OtherProtocol, Start::SeesEveryDevice].map(Script::starting));
    for script in scripts {
        let stage = Stage::of(40).named(format!("{:?}, {:?}", script.start, script.load));
        let run = stage.run(move |_| script.clone()).await;
        run.check(run.starts == 1, "no second try");
        let why = run.account.no_device.clone().unwrap_or_default();
        run.check(
            [
                "no room for the model",
                "use the worker executable",
                "without `CUDA_VISIBLE_DEVICES`, expected `GPU-0`",
            ]
            .iter()
            .any(|w| why.contains(w)),
            &why,
        );
        run.check_time(run.over, ms(0), ms(100), "at once");
    }
}

#[tokio::test(start_paused = true)]
async fn one_place_that_is_given_up_leaves_the_work_to_the_others() {
    let mut stage = Stage::of(60);
    stage.workers = 3;
    let cannot = Script::loading(Load::Fails(ErrorClass::Permanent));
    let run = stage.run(move |l| if l.nth < 3 { cannot.clone() } else { Script::honest() }).await;
    run.all_done();
    run.check(run.starts == 3, "no worker is replaced");
}

#[tokio::test(start_paused = true)]
async fn deaths_from_outside_before_any_progress_are_forgiven_a_hundred_times() {
    let killed = Script::starting(Start::Dies(KILLED));
    let run = Stage::of(40).run(move |_| killed.clone()).await;
    run.check(run.account.no_device.is_some(), "the place is given up");
    run.check(run.starts == 101, "a hundred are forgiven");
    for pause in pauses(&run) {
        run.check_time(pause, ms(7), ms(13), "a short pause");
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_on_which_every_batch_hangs_or_crashes_is_given_up_and_hardly_an_item_is_blamed() {
    for (fault, within) in
        [(RunFault::Hang, secs(61 * 12)), (RunFault::Die(Point::MidRun, SEGFAULT), secs(10))]
    {
        for max_batch in [1, 4, 16, 64] {
            let stage =
                Stage { max_batch, batch_timeout: secs(60), bound: secs(24 * 3600), ..Stage::of(1_000) };
            let script = Script::at_every_run(fault.clone());
            let run =
                stage.named(format!("batches of {max_batch}: {fault:?}")).run(move |_| script.clone()).await;
            run.check(run.account.no_device.is_some(), "it is the device, or the model");
            run.check(run.account.failed.len() <= 2, "few items are blamed for it");
            run.check(run.over <= within, "within a few deadlines");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn deaths_of_workers_that_had_stood_idle_for_long_are_no_crash_loop() {
    let mut stage = Stage::of(40);
    stage.first_item = secs(1_200);
    let dies = Script::later(secs(100), TimedFault::Dies(SEGFAULT));
    let run = stage.run(move |l| if l.nth <= 10 { dies.clone() } else { Script::honest() }).await;
    run.all_done();
    run.check(run.restarts == 10, "each is replaced");
    run.check(pauses(&run).iter().all(|p| *p <= ms(250)), "and soon");
}
