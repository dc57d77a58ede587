//! What a run finds out about the memory of its workers: the first one of each model is measured, and as many more are started as fit.
//! Whatever happens meanwhile, no item is lost and no GPU is asked for more than it has.

use orchestra_core::{DeviceId, ErrorClass};

use super::account::Outcome;
use super::gpus::Gpus;
use super::script::*;
use super::stage::Stage;
use crate::trace::DeviceStep;

const GIB: u64 = 1 << 30;

/// So many items for up to four workers on each of these GPUs.
fn stage(items: u64, gpus: &Gpus, devices: usize, label: &str) -> Stage {
    Stage { devices, workers: 4, gpus: Some(gpus.clone()), ..Stage::of(items).named(label) }
}

/// The first worker of each device was loaded before any other one was started.
fn one_at_first(run: &Outcome, device: usize) {
    let mut lives = run.on(device);
    let loaded = lives.next().and_then(|first| first.loaded);
    run.check(loaded.is_some() && lives.all(|l| Some(l.started) >= loaded), "one worker is loaded first");
}

#[tokio::test(start_paused = true)]
async fn each_gpu_gets_one_worker_and_then_as_many_as_fit_beside_the_headroom() {
    for devices in [1, 2, 8] {
        for (gib, counts, fit) in [(24, true, 4), (24, false, 4), (14, true, 2), (14, false, 2), (8, true, 1)]
        {
            let gpus = Gpus { counts, ..Gpus::new(devices, gib) };
            let label = format!("{devices} of {gib} GiB, counted: {counts}");
            let run = stage(800 * devices as u64, &gpus, devices, &label).run(|_| Script::taking(5)).await;
            run.all_done();
            for device in 0..devices {
                one_at_first(&run, device);
                run.check(run.on(device).count() == fit, &format!("{fit} workers on device {device}"));
            }
            run.check(run.added == ((fit - 1) * devices) as u64, "those that were added are counted");
            run.check(run.restarts == 0 && run.exits.is_empty(), "no worker dies of it");
            run.check((0..devices).all(|d| gpus.used(d) == 0), "all memory is given back");
            let told = run.told.as_ref().unwrap().devices();
            let measured =
                |s: &&DeviceStep| matches!(s, DeviceStep::Measured { bytes, .. } if *bytes == 5 * GIB);
            run.check(told.iter().filter(measured).count() == devices, "it is told of each device");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_models_are_measured_one_after_the_other_and_share_a_gpu() {
    for counts in [true, false] {
        let gpus = Gpus { counts, ..Gpus::new(1, 24) };
        let double = Stage { is_double: true, ..stage(400, &gpus, 1, "two models") };
        // The models take turns.
        let run = double
            .run(|l| Script { load_takes: ms(100), ..Script::taking(if l.nth % 2 == 0 { 2 } else { 5 }) })
            .await;
        run.all_done();
        run.check(run.lives[1].started >= run.lives[0].loaded.unwrap(), "one after the other");
        let told = run.told.as_ref().unwrap().devices();
        let measured = |s: &DeviceStep| match s {
            DeviceStep::Measured { bytes, .. } => Some(bytes / GIB),
            _ => None,
        };
        run.check(told.iter().filter_map(measured).eq([5, 2]), &format!("each for itself: {told:?}"));
        let added = told.iter().filter(|s| matches!(s, DeviceStep::WorkersAdded { .. })).count();
        run.check(added == 4, &format!("of 15 GiB each gets two more: {told:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_while_it_is_measured_is_replaced_and_the_next_one_is_measured() {
    let deaths = [
        Script::loading(Load::Dies(SEGFAULT)),
        Script::loading(Load::Dies(KILLED)),
        Script::starting(Start::Dies(SEGFAULT)),
        Script::starting(Start::CannotBeStarted),
        Script::later(ms(1), TimedFault::Dies(SEGFAULT)),
        Script::later(ms(0), TimedFault::Dies(KILLED)),
        Script::at_run(1, RunFault::Die(Point::MidRun, SEGFAULT)),
    ];
    for death in deaths {
        let gpus = Gpus::new(1, 24);
        let label = format!("{:?}, {:?}, {:?}", death.start, death.load, death.later);
        let dies = Script { takes: 5, ..death };
        let run = stage(400, &gpus, 1, &label)
            .run(move |l| if l.nth == 1 { dies.clone() } else { Script::taking(5) })
            .await;
        run.all_done();
        run.check(run.added == 3, "then the others come");
        run.check(gpus.used(0) == 0, "all memory is given back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_more_that_finds_no_memory_is_taken_back_and_the_run_goes_on_with_one() {
    let gpus = Gpus::new(1, 24);
    let stage = stage(400, &gpus, 1, "a second one does not fit");
    // It takes more than the first one did, as if another process had come meanwhile.
    let run = stage.run(|l| Script::taking(if l.nth == 1 { 5 } else { 20 })).await;
    run.all_done();
    run.check(run.starts == 2 && run.added == 0, "one is tried, once");
    run.check(run.lives[0].runs.len() == 100 && run.retries == 0, "the first one does it all");
    run.check(run.restarts == 0 && run.account.no_device.is_none(), "nothing is replaced or given up");
}

#[tokio::test(start_paused = true)]
async fn a_gpu_that_is_lost_while_another_one_works_is_told_once_and_costs_no_item() {
    let gpus = Gpus::new(2, 24);
    let (stage, probe) = (stage(800, &gpus, 2, "lost"), gpus.probe.clone());
    let run = stage
        .run(move |l| {
            // As soon as workers are added to the first one.
            if (l.device, l.nth_here) == (0, 2) {
                probe.lose("GPU-0");
            }
            Script::taking(5)
        })
        .await;
    run.all_done();
    let told = run.told.as_ref().unwrap().devices();
    let lost =
        told.iter().filter(|s| matches!(s, DeviceStep::Lost { why } if why.contains("`GPU-0` is lost")));
    run.check(lost.count() == 1, &format!("{told:?}"));
    run.check(run.account.devices_lost == [DeviceId(0)], "as an event, too");
}

#[tokio::test(start_paused = true)]
async fn on_a_gpu_that_is_planned_full_the_old_worker_ends_before_its_successor_starts() {
    for is_declared in [true, false] {
        let gpus = Gpus::new(1, 10);
        let label = format!("full, declared: {is_declared}");
        let full = Stage {
            workers: 1,
            takes: 6,
            is_declared,
            recycle_after: Some(20),
            ..stage(800, &gpus, 1, &label)
        };
        let run = full.run(|_| Script::taking(6)).await;
        run.all_done();
        run.check(run.exits.is_empty(), &format!("no load fails: {:?}", run.exits));
        run.check((run.restarts, run.retries) == (0, 0), "it is no death, and nothing is run twice");
        run.check(run.starts >= 8, "workers are recycled");
        let most = run.lives.iter().map(|l| run.lives.iter().filter(|o| o.serves_at(l.end())).count()).max();
        run.check(most <= Some(1), "never more than fit");
    }
}

#[tokio::test(start_paused = true)]
async fn a_successor_that_finds_no_memory_is_followed_by_one_that_starts_when_the_old_one_is_gone() {
    // What a worker takes is neither configured nor measured: it is learnt from the first successor.
    let stage = Stage { recycle_after: Some(20), ..Stage::of(800).named("learnt") };
    let fails = Script::loading(Load::Fails(ErrorClass::Overload));
    let run = stage.run(move |l| if l.nth == 2 { fails.clone() } else { Script::honest() }).await;
    run.all_done();
    run.check((run.restarts, run.retries, run.exits.len()) == (0, 0, 1), "one load fails, and no more");
    run.check(run.starts >= 9, "workers are recycled");
    let apart = run.lives[2..].windows(2).all(|pair| pair[1].started >= pair[0].end());
    run.check(apart && run.lives[2].started >= run.lives[0].end(), "one after the other");
}
