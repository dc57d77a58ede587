//! Memory that runs out: batches shrink and grow again, nothing is lost, and no worker is replaced.

use orchestra_core::FailureKind;
use orchestra_worker::frames::RunErrorKind;

use super::account::Outcome;
use super::script::*;
use super::stage::Stage;

/// Rows of the batches that were answered on a device, in order.
fn sizes(run: &Outcome, device: usize) -> Vec<usize> {
    run.on(device).flat_map(|l| l.runs.iter().map(|r| r.items.len())).collect()
}

fn stage(items: u64, max_batch: usize) -> Stage {
    Stage { max_batch, ..Stage::of(items).named(format!("batches of {max_batch}")) }
}

#[tokio::test(start_paused = true)]
async fn batches_shrink_to_what_fits_and_every_item_is_done() {
    for (max, fits) in [(8, 7), (8, 4), (8, 3), (8, 1), (64, 5), (3, 2)] {
        let run = stage(400, max).run(move |_| Script::with_memory(fits)).await;
        run.all_done();
        run.check(run.restarts == 0, "no worker is replaced");
        let too_large = sizes(&run, 0).iter().filter(|n| **n > fits).count();
        // Two batches are in flight, so both may be too large before the first one is known to be; then the ceiling holds for sixteen
        // batches, and is tried again.
        let allowed = 2 * (max.ilog2() as usize + 1) + 2 * (sizes(&run, 0).len() / 16);
        run.check(too_large <= allowed, &format!("{too_large} of {} were too large", sizes(&run, 0).len()));
    }
}

#[tokio::test(start_paused = true)]
async fn the_ceiling_is_raised_again_when_there_is_memory() {
    let until = secs(1);
    let tight = Script { memory: vec![(secs(0), 3), (until, 100)], ..Script::honest() };
    let run = stage(2_000, 8).run(move |_| tight.clone()).await;
    run.all_done();
    let later = || run.lives[0].runs.iter().filter(|r| r.at > until);
    run.check(later().all(|r| r.answered.is_some()), "each is answered");
    // Sixteen batches as large as the ceiling for each row more, and some that are smaller between them.
    let full = later().position(|r| r.items.len() == 8).unwrap_or(usize::MAX);
    run.check((64..=200).contains(&full), &format!("full again after {full} batches"));
    run.check(later().skip(full).filter(|r| r.items.len() == 8).count() > 50, "and it stays so");
    run.check(run.restarts == 0, "no worker is replaced");
}

#[tokio::test(start_paused = true)]
async fn each_device_has_a_ceiling_of_its_own() {
    let mut two = stage(800, 8);
    two.devices = 2;
    let run = two.run(|l| if l.device == 0 { Script::with_memory(2) } else { Script::honest() }).await;
    run.all_done();
    let of_large = sizes(&run, 1);
    let larger = of_large.iter().filter(|n| **n > 2).count();
    run.check(larger * 10 >= of_large.len() * 9, &format!("{of_large:?}"));
}

#[tokio::test(start_paused = true)]
async fn an_item_that_never_fits_has_the_stage_to_itself_six_times_before_it_fails_by_name() {
    for max in [1, 4, 16] {
        let never = Script::poisoned([21], RunFault::Fails(RunErrorKind::OutOfMemory));
        let run = stage(64, max).run(move |_| never.clone()).await;
        run.all_done_but([21]).failed_as(FailureKind::OutOfMemory);
        run.check(run.restarts == 0, "no worker is replaced");
        let alone: Vec<_> = run.begun(21).filter(|(_, r)| r.items == [21]).map(|(_, r)| r.at).collect();
        run.check(alone.len() == 7, &format!("six times alone after the first: {alone:?}"));
        for (n, pair) in alone.windows(2).enumerate().skip(1) {
            // Doubled from 250 ms on, after each run of 10 ms.
            let pause = ms(250) * 2u32.pow(n as u32) + ms(10);
            run.check_time(pair[1] - pair[0], pause, pause, "another process may give memory back");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_that_fits_again_in_time_is_done() {
    let never_till_then = Script { memory: vec![(secs(0), 0), (secs(6), 4)], ..Script::honest() };
    let run = stage(40, 4).run(move |_| never_till_then.clone()).await;
    run.all_done();
    run.check(run.restarts == 0, "no worker is replaced");
}
