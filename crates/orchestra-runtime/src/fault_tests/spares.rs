//! Spare workers: loaded and warm, one takes over when a worker dies, without a load in between; and a spare that misbehaves costs nothing.

use std::time::Duration;

use super::account::Outcome;
use super::script::*;
use super::stage::Stage;

fn stage(items: u64, label: &str) -> Stage {
    Stage { spares: 1, ..Stage::of(items).named(label) }
}

/// From the end of the `nth` worker to the moment when another one began a batch.
fn recovery(run: &Outcome, nth: usize) -> Duration {
    let end = run.lives[nth - 1].end();
    let others = run.lives.iter().filter(|l| l.nth != nth).flat_map(|l| &l.runs);
    others.map(|r| r.at).filter(|at| *at >= end).min().expect("the others go on") - end
}

#[tokio::test(start_paused = true)]
async fn a_spare_goes_on_with_the_work_of_a_dead_worker_at_once() {
    for point in [Point::BeforeReading, Point::MidRun, Point::AfterOutputs, Point::MidAnswer] {
        for exit in [KILLED, SEGFAULT] {
            // The spare is started when all places have been served for a moment, and then takes a load.
            let dies = Script::at_run(60, RunFault::Die(point, exit));
            let dies = Script { load_takes: secs(2), run_takes: ms(100), ..dies };
            let honest = Script { load_takes: secs(2), ..Script::honest() };
            let run = stage(400, &format!("{point:?}"))
                .run(move |l| if l.nth == 1 { dies.clone() } else { honest.clone() })
                .await;
            run.all_done();
            run.check((run.restarts, run.takeovers) == (1, 1), "the spare takes over");
            run.check(recovery(&run, 1) <= ms(2), "at once");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_spare_that_dies_or_cannot_load_costs_no_item_anything() {
    let faults = [
        Script::later(ms(50), Later::Dies(SEGFAULT)),
        Script::later(ms(50), Later::Dies(KILLED)),
        Script::later(ms(50), Later::Freezes),
        Script::later(ms(50), Later::AnswersUnasked),
        Script::loading(Load::Dies(SEGFAULT)),
        Script::loading(Load::Fails(orchestra_core::ErrorClass::Permanent)),
        Script::loading(Load::NeverEnds),
        Script::starting(Start::Silent),
        Script::starting(Start::CannotBeStarted),
    ];
    for fault in faults {
        let label = format!("{:?}, {:?}, {:?}", fault.start, fault.load, fault.later);
        let run = stage(2_000, &label)
            .run(move |l| if l.nth == 1 { Script::honest() } else { fault.clone() })
            .await;
        run.all_done();
        run.check(run.most_begun() == 1 && run.retries == 0, "each item is begun once");
        run.check(run.lives[0].runs.len() == 500, "by the worker that serves");
        run.check(run.over <= ms(5_110), "without a delay");
    }
}

#[tokio::test(start_paused = true)]
async fn workers_that_die_again_and_again_are_replaced_by_spares_without_losing_an_item() {
    for exit in [KILLED, SEGFAULT] {
        let dies = Script::at_run(40, RunFault::Die(Point::MidRun, exit.clone()));
        let mut stage = stage(4_000, &exit.to_string());
        (stage.devices, stage.workers) = (2, 2);
        let run = stage.run(move |_| dies.clone()).await;
        run.all_done();
        run.check(run.takeovers > 0 && run.restarts >= 20, "spares take over");
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_is_given_up_as_fast_with_a_spare_as_without() {
    let run = stage(400, "").run(|_| Script::at_every_run(RunFault::Die(Point::MidRun, SEGFAULT))).await;
    run.check(run.account.no_device.is_some(), "it is the device");
    run.check(run.account.failed.len() <= 2, "hardly an item is blamed");
    run.check(run.over <= secs(10), "it fails fast");
}
