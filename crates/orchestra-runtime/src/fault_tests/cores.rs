//! What a stage on the cores gets beyond its share: workers, as long as it has work for them and the other stage leaves its cores idle.

use orchestra_core::ErrorClass;

use super::account::Outcome;
use super::fake_process::Launch;
use super::script::*;
use super::stage::Stage;

/// So many items for two stages that share 4 cores, of which the other has nothing to do.
fn stage(items: u64, label: &str) -> Stage {
    Stage { is_double: true, is_on_cores: true, workers: 4, ..Stage::of(items).named(label) }
}

/// Workers that were started of both stages.
fn started(run: &Outcome) -> usize {
    run.on(0).count()
}

#[tokio::test(start_paused = true)]
async fn a_stage_with_more_work_than_its_share_gets_the_cores_that_the_other_leaves_idle() {
    let run = stage(2000, "busy").run(|_| Script::honest()).await;
    run.all_done();
    run.check(
        (started(&run), run.added) == (6, 2),
        "2 for each at first, and 2 more for the one that has work",
    );
}

#[tokio::test(start_paused = true)]
async fn a_stage_that_keeps_up_or_is_done_at_once_gets_no_more_workers() {
    let slow_source = Stage { pause: ms(20), ..stage(400, "it keeps up") };
    for stage in [slow_source, stage(40, "it is done at once")] {
        let run = stage.run(|_| Script::honest()).await;
        run.all_done();
        run.check((started(&run), run.added) == (4, 0), "its share is enough");
    }
}

#[tokio::test(start_paused = true)]
async fn workers_more_that_do_not_start_are_tried_a_few_times_at_most() {
    let fails = Load::Fails(ErrorClass::Overload);
    let kinds = [(fails, 2), (Load::Dies(SEGFAULT), 2), (Load::Dies(KILLED), 2 * 4)];
    for (load, tried) in kinds {
        let script = move |l: Launch| match l.nth {
            1..=4 => Script::honest(),
            _ => Script::loading(load.clone()),
        };
        let run = stage(8000, "more workers die").run(script).await;
        run.all_done();
        run.check((started(&run), run.added) == (4 + tried, 0), "none is left, and none is asked for again");
    }
}
