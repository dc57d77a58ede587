//! A run that is stopped in the middle of anything leaves nothing behind: no worker, no actor, no task, no slot. What had an end by then has
//! one.

use super::script::*;
use super::stage::{Stage, Stop};

fn scripts() -> Vec<(&'static str, Script)> {
    let slow = |script: Script| Script { run_takes: ms(150), ..script };
    vec![
        ("honest", slow(Script::honest())),
        ("dies in a run", slow(Script::at_run(3, RunFault::Die(Point::MidRun, SEGFAULT)))),
        ("dies in every run", slow(Script::at_every_run(RunFault::Die(Point::MidRun, SEGFAULT)))),
        ("dies loading", Script::loading(Load::Dies(SEGFAULT))),
        ("loads for ever", Script::loading(Load::NeverEnds)),
        ("freezes loading", Script::loading(Load::Freezes)),
        ("says nothing", Script::starting(Start::Silent)),
        ("hangs", slow(Script::at_run(2, RunFault::Hang))),
        ("freezes", slow(Script::at_run(2, RunFault::Freeze))),
        ("talks nonsense", slow(Script::at_run(2, RunFault::Garbage))),
        ("does not end", Script { ending: Ending::Never, ..slow(Script::honest()) }),
        ("ends late", Script { ending: Ending::After(secs(3)), ..slow(Script::honest()) }),
        ("dies slowly", Script { kill_takes: secs(4), ending: Ending::Never, ..slow(Script::honest()) }),
        ("has no memory", slow(Script::with_memory(0))),
        ("keeps stderr open", Script { stderr_stays_open: secs(8), ..slow(Script::honest()) }),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_at_any_time_leaves_nothing_behind() {
    for (name, script) in scripts() {
        for at in [0, 30, 100, 130, 260, 390, 520, 700, 1_300] {
            for how in [Stop::Politely, Stop::AtOnce] {
                let mut stage = Stage::of(400).named(format!("{name}, {how:?} after {at} ms"));
                (stage.workers, stage.recycle_after) = (2, Some(3));
                stage.stop = Some((ms(at), how));
                let script = script.clone();
                let run = stage.run(move |_| script.clone()).await;
                run.check(run.account.done.len() < 400, "it was stopped in the middle");
            }
        }
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
