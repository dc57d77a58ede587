//! Workers that run several batches at once: those that ran in a worker that died are told apart, what had not begun has no stain, and each
//! batch has its own deadline.

use orchestra_core::{FailureKind, WorkerExit};
use orchestra_worker::frames::RunErrorKind;

use super::account::Outcome;
use super::script::*;
use super::stage::Stage;

const STREAMS: [usize; 3] = [2, 3, 4];
const EXITS: [WorkerExit; 3] = [KILLED, SEGFAULT, WorkerExit::Code(3)];

fn stage(items: u64, streams: usize) -> Stage {
    Stage { streams, ..Stage::of(items).named(format!("{streams} streams")) }
}

/// The first worker lives like this, the others are honest.
async fn first(stage: Stage, script: Script) -> Outcome {
    stage.run(move |l| if l.nth == 1 { script.clone() } else { Script::honest() }).await
}

/// Crashes that finding one item may cost. One that is alone in its batch is only suspected when it dies beside others.
fn at_most(max_batch: usize) -> u64 {
    u64::from(max_batch.ilog2()) + 2 + u64::from(max_batch == 1)
}

#[tokio::test(start_paused = true)]
async fn as_many_batches_run_at_once_as_there_are_streams() {
    for streams in [1, 2, 4, 8] {
        let slow = Script { run_takes: secs(1), ..Script::honest() };
        let run = first(stage(128, streams), slow).await;
        run.all_done();
        let rounds = secs(32 / streams as u64);
        run.check_time(run.over, ms(100) + rounds, ms(110) + rounds, "32 batches");
        run.check((run.restarts, run.retries) == (0, 0), "nothing is sent twice");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_at_any_point_costs_what_it_had_begun_one_more_attempt_and_the_rest_none() {
    for streams in STREAMS {
        for point in Point::ALL {
            for exit in EXITS {
                for nth in [1, 2, 5] {
                    let dies = Script::at_run(nth, RunFault::Die(point, exit.clone()));
                    let stage = stage(120, streams).named(format!("{streams}, {point:?}, {exit}, {nth}"));
                    let run = first(stage, dies).await;
                    run.all_done();
                    run.check(run.restarts == 1 && run.exits == [exit.clone()], "one is replaced");
                    run.check(run.most_begun() <= 2, "nothing is begun a third time");
                    let open = run.lives[0].runs.iter().filter(|r| r.answered.is_none()).count();
                    run.check(open <= streams, "so many run at once");
                    let again = (0..120).filter(|i| run.times_begun(*i) == 2).count();
                    run.check(again <= 4 * streams, "only what had begun is begun again");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_poison_item_fails_alone_and_whatever_ran_beside_it_is_done() {
    for streams in STREAMS {
        for max_batch in [1, 2, 4, 16] {
            for item in [0, 201, 399] {
                let poison = Script::poisoned([item], RunFault::Die(Point::MidRun, SEGFAULT));
                let label = format!("{item} in batches of {max_batch}, {streams} streams");
                let stage = Stage { max_batch, ..stage(400, streams) }.named(label);
                let run = stage.run(move |_| poison.clone()).await;
                run.all_done_but([item]).failed_as(FailureKind::Crash);
                let crashes = run.exits.len() as u64;
                run.check(crashes <= at_most(max_batch), &format!("{crashes} crashes"));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn several_poison_items_are_found_also_when_they_run_at_the_same_time() {
    for streams in STREAMS {
        for poison in [&[3, 400, 801][..], &[400, 401], &[400, 408, 416, 424], &[8, 9, 10, 11]] {
            for does in [RunFault::Die(Point::AfterOutputs, WorkerExit::Signal(6)), RunFault::Hang] {
                let is_hang = does == RunFault::Hang;
                let script = Script::poisoned(poison.iter().copied(), does);
                let label = format!("{poison:?}, {streams} streams, hang: {is_hang}");
                let mut stage = Stage { max_batch: 8, ..stage(1_000, streams) }.named(label);
                stage.workers = 2;
                let run = stage.run(move |_| script.clone()).await;
                run.all_done_but(poison.iter().copied());
                let crashes = run.exits.len() as u64;
                run.check(crashes <= at_most(8) * poison.len() as u64, &format!("{crashes} crashes"));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspect_never_runs_beside_another_batch() {
    for streams in STREAMS {
        let script = Script::poisoned([77, 300], RunFault::Die(Point::MidRun, SEGFAULT));
        let mut stage = Stage { max_batch: 8, ..stage(600, streams) };
        stage.workers = 2;
        let run = stage.run(move |_| script.clone()).await;
        run.all_done_but([77, 300]);
        for life in &run.lives {
            let span = |r: &super::log::Begun| (r.at, r.answered.unwrap_or(life.end()));
            for suspect in life.runs.iter().filter(|r| r.attempt > 1) {
                let (from, to) = span(suspect);
                let beside = life.runs.iter().filter(|r| r.batch != suspect.batch);
                let apart = beside.map(span).all(|(begun, ended)| ended <= from || begun >= to);
                run.check(apart, &format!("worker {} runs {suspect:?} beside another one", life.nth));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_hangs_is_taken_away_at_its_own_deadline_while_others_go_on() {
    for streams in STREAMS {
        for nth in [1, 2, 5] {
            let run = first(stage(2_000, streams), Script::at_run(nth, RunFault::Hang)).await;
            run.all_done();
            run.check(run.exits == [WorkerExit::Hung], "it hung");
            let life = &run.lives[0];
            let hung = &life.runs[nth as usize - 1];
            run.check_time(life.end() - hung.at, secs(10), secs(10) + ms(250), "it is killed");
            run.check(life.runs.len() > nth as usize + 20, "the other streams go on meanwhile");
            run.check(run.most_begun() <= 2, "nothing is begun a third time");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_that_breaks_under_several_batches_costs_no_item() {
    for streams in STREAMS {
        for fault in [RunFault::Fails(RunErrorKind::Device), RunFault::BreaksAndStays] {
            for max_batch in [1, 4] {
                let label = format!("{streams} streams, {fault:?}, batches of {max_batch}");
                let stage = Stage { max_batch, ..stage(120, streams) }.named(label);
                let run = first(stage, Script::at_run(3, fault.clone())).await;
                run.all_done();
                run.check(run.restarts == 1, "one is replaced");
                run.check(run.most_begun() <= 2, "nothing is begun a third time");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_for_a_batch_that_waits_is_one_of_a_worker_that_has_lost_its_way() {
    let run = first(stage(120, 2), Script::at_run(2, RunFault::AnswersFor(Other::Next))).await;
    run.all_done();
    run.check(matches!(&run.exits[..], [WorkerExit::Garbled(_)]), "it is not believed");
}
