//! Workers that run several batches at once: those that ran in a worker that died are told apart, what had not begun has no stain, and each
//! batch has its own deadline.

use orchestra_core::WorkerExit;

use super::script::*;
use super::stage::Stage;

const STREAMS: [usize; 3] = [2, 3, 4];
fn stage(items: u64, streams: usize) -> Stage {
    Stage { streams, ..Stage::of(items).named(format!("{streams} streams")) }
}

#[tokio::test(start_paused = true)]
async fn as_many_batches_run_at_once_as_there_are_streams() {
    for streams in [1, 2, 4, 8] {
        let slow = Script { run_takes: secs(1), ..Script::honest() };
        let run = stage(128, streams).run_first(slow).await;
        run.all_done();
        let rounds = secs(32 / streams as u64);
        run.check_time(run.over, ms(100) + rounds, ms(110) + rounds, "32 batches");
        run.check((run.restarts, run.retries) == (0, 0), "nothing is sent twice");
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
            let run = stage(2_000, streams).run_first(Script::at_run(nth, RunFault::Hang)).await;
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
