//! Several devices, of which some are sick: healthy ones do the work, no item is blamed for a device, and only the loss of the last one ends
//! the run.

use orchestra_core::{ErrorClass, WorkerExit};
use orchestra_worker::frames::RunErrorKind;

use super::account::Outcome;
use super::script::*;
use super::stage::Stage;

/// Device 0 has workers of this kind, device 1 honest ones.
async fn one_of_two(items: u64, sick: Script, label: &str) -> Outcome {
    let mut stage = Stage::of(items).named(label);
    stage.devices = 2;
    stage.run(move |l| if l.device == 0 { sick.clone() } else { Script::honest() }).await
}

#[tokio::test(start_paused = true)]
async fn a_device_that_is_sick_attracts_no_work_and_holds_up_no_healthy_one() {
    let fails = |fault| Script { run_takes: ms(1), ..Script::at_every_run(fault) };
    let refuses = |sick| Script { run_takes: ms(0), ..sick };
    let model = || Script::at_every_run(RunFault::Fails(RunErrorKind::Model));
    // How many batches it is given at most, and how long it may delay the others. Six deaths, and it is given up; one that refuses is tried
    // less and less often.
    for (label, sick, most, delay) in [
        ("segfault", fails(RunFault::Die(Point::BeforeReading, SEGFAULT)), 6, 300),
        ("device error", fails(RunFault::Fails(RunErrorKind::Device)), 6, 300),
        ("garbage", fails(RunFault::Garbage), 6, 300),
        ("exit", fails(RunFault::Die(Point::MidRun, WorkerExit::Code(0))), 6, 300),
        ("memory for 1", Script::with_memory(1), usize::MAX, 200),
        ("memory for 2", Script::with_memory(2), usize::MAX, 200),
        ("no memory", refuses(Script::with_memory(0)), 16, 400),
        ("model errors", refuses(model()), 16, 400),
    ] {
        let run = one_of_two(400, sick, label).await;
        run.all_done();
        run.check(run.batches_begun_on(0) <= most, "it is given little");
        run.check(most == 6 || run.restarts == 0, "a worker that lives is not replaced");
        // A load and a hundred batches on one device.
        run.check(run.over <= ms(1_100 + delay), "the healthy one is not held up");
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_two_devices_lost_for_good_leaves_all_work_to_the_other() {
    let lost = [
        ("never loads", Script::loading(Load::Fails(ErrorClass::Permanent))),
        ("crash loop", Script::loading(Load::Dies(SEGFAULT))),
        ("never says hello", Script::starting(Start::Silent)),
        ("never gets through a load", Script::loading(Load::NeverEnds)),
        ("hangs in every run", Script::at_every_run(RunFault::Hang)),
        ("freezes in every run", Script::at_every_run(RunFault::Freeze)),
    ];
    for (label, script) in lost {
        let run = one_of_two(400, script, label).await;
        run.all_done();
        run.check(run.lives.iter().filter(|l| l.device == 1).count() == 1, "the other one is left alone");
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_lost_in_the_middle_gives_what_it_held_to_the_other() {
    let run = {
        let mut stage = Stage::of(400);
        stage.devices = 2;
        let dies = Script::at_run(10, RunFault::Die(Point::MidRun, SEGFAULT));
        let never_again = Script::loading(Load::Fails(ErrorClass::Permanent));
        stage
            .run(move |l| match (l.device, l.nth_here) {
                (0, 1) => dies.clone(),
                (0, _) => never_again.clone(),
                _ => Script::honest(),
            })
            .await
    };
    run.all_done();
    run.check(run.batches_begun_on(0) == 10 && run.starts == 3, "it is tried once more");
    run.check(run.most_begun() == 2, "what it held is begun once more");
}

#[tokio::test(start_paused = true)]
async fn when_all_devices_are_lost_the_run_ends_with_the_last_words_of_a_worker() {
    let mut stage = Stage::of(400);
    stage.devices = 3;
    let run = stage
        .run(|l| {
            let mut script = match l.device {
                0 => Script::loading(Load::Fails(ErrorClass::Permanent)),
                1 => Script::at_every_run(RunFault::Fails(RunErrorKind::Device)),
                _ => Script::at_every_run(RunFault::Die(Point::MidRun, SEGFAULT)),
            };
            script.says = format!("the driver of device {} is unhappy", l.device);
            script
        })
        .await;
    let why = run.account.no_device.clone().unwrap_or_default();
    run.check(why.contains("`read`") && why.contains("is unhappy"), &why);
    run.check(run.account.done.is_empty(), "nothing can have been done");
    run.check(run.account.failed.len() <= 8, "few items are blamed for it");
    run.check(run.over <= secs(10), "it fails fast");
}

#[tokio::test(start_paused = true)]
async fn a_device_that_comes_back_is_used_again() {
    let mut stage = Stage::of(400);
    stage.devices = 2;
    let run = stage
        .run(|l| match (l.device, l.nth_here) {
            (0, 1..=4) => Script::at_every_run(RunFault::Fails(RunErrorKind::Device)),
            (0, _) => Script::honest(),
            _ => Script { run_takes: ms(100), ..Script::honest() },
        })
        .await;
    run.all_done();
    run.check(run.batches_begun_on(0) >= 80, "it does most of the work");
}
