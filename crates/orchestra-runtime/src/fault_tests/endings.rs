//! What workers are told of a run that is stopped. That it leaves nothing behind, whatever they do: `random`.

use super::script::*;
use super::stage::{Stage, Stop};

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
