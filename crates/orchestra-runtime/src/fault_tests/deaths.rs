//! A worker that dies, at every point of its life: no item is lost, none is done twice, and what was in its hands is begun once more.

use orchestra_core::WorkerExit;

use super::script::*;
use super::stage::Stage;

const EXITS: [WorkerExit; 5] =
    [KILLED, SEGFAULT, WorkerExit::Signal(6), WorkerExit::Code(0), WorkerExit::Code(3)];

#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_at_any_point_of_a_run_costs_one_restart_and_one_more_attempt() {
    for point in Point::ALL {
        for exit in EXITS {
            let alone = [(1, 1, 1), (2, 1, 1), (5, 1, 1), (1, 2, 1), (3, 2, 1)];
            let streams = (2..=4).flat_map(|streams| [1, 2, 5].map(|nth| (nth, 1, streams)));
            for (nth, workers, streams) in alone.into_iter().chain(streams) {
                let dies = Script::at_run(nth, RunFault::Die(point, exit.clone()));
                let label = format!("{point:?}, {exit}, run {nth} of {workers} with {streams} streams");
                let dynamic = nth == 2; // Outputs of unknown shape travel with the answer.
                let stage = Stage { workers, streams, dynamic, ..Stage::of(120).named(label) };
                let run = stage.run_first(dies).await;
                run.all_done();
                run.check(run.restarts == 1 && run.starts == workers as u64 + 1, "one is replaced");
                run.check(run.exits == [exit.clone()], "it is seen how it ended");
                let is_answered = point == Point::AfterAnswer && streams == 1;
                run.check(run.most_begun() <= if is_answered { 1 } else { 2 }, "nothing is begun in vain");
                // The batches that ran, whole or in halves, and the one that waited behind them.
                run.check(streams > 1 || run.retries <= 3, "only what it held is sent again");
                let open = run.lives[0].runs.iter().filter(|r| r.answered.is_none()).count();
                run.check(open <= streams, "so many run at once");
                let again = (0..120).filter(|i| run.times_begun(*i) == 2).count();
                run.check(again <= 4 * streams, "only what had begun is begun again");
                let ran = run.lives[0].runs.last().is_some_and(|r| r.items.len() == 4);
                run.check(ran, "the fault was in a run");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_while_idle_costs_no_item_an_attempt() {
    for exit in EXITS {
        let dies = Script::later(secs(1), TimedFault::Dies(exit.clone()));
        let mut stage = Stage::of(40).named(format!("{exit}"));
        stage.first_item = secs(5);
        let run = stage.run_first(dies).await;
        run.all_done();
        run.check((run.restarts, run.retries) == (1, 0), "it is replaced before there is work");
        run.check(run.most_begun() == 1, "each item is begun once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_before_it_serves_costs_no_item_an_attempt() {
    let starts = EXITS.map(|exit| Script::starting(Start::Dies(exit)));
    let loads = EXITS.map(|exit| Script::loading(Load::Dies(exit)));
    let others = [Start::CannotBeStarted, Start::Garbage].map(Script::starting);
    for script in starts.into_iter().chain(loads).chain(others) {
        let stage = Stage::of(40).named(format!("{:?}, {:?}", script.start, script.load));
        let run = stage.run_first(script).await;
        run.all_done();
        run.check((run.restarts, run.retries) == (1, 0), "it is replaced");
        run.check(run.most_begun() == 1, "each item is begun once");
    }
}

#[tokio::test(start_paused = true)]
async fn workers_that_all_die_at_any_later_run_still_do_all_the_work() {
    for point in Point::ALL {
        for exit in EXITS {
            let dies = Script::at_run(3, RunFault::Die(point, exit.clone()));
            let run = Stage::of(80).named(format!("{point:?}, {exit}")).run(move |_| dies.clone()).await;
            run.all_done();
            run.check(run.restarts >= 5, "each does two batches or three");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_not_given_on_before_its_worker_is_gone_however_long_a_kill_takes() {
    for takes in [secs(1), secs(7), secs(25)] {
        let mut lingers = Script::at_run(2, RunFault::Hang);
        lingers.kill_takes = takes;
        lingers.ending = Ending::Never;
        let stage = Stage::of(40).named(format!("{takes:?}"));
        let run = stage.run_first(lingers).await;
        run.all_done();
        let (held, gone) = (&run.lives[0].runs[1], run.lives[0].end());
        run.check_time(gone - held.at, secs(10) + takes, secs(10) + takes + ms(250), "it lingers");
        let again = run.begun(held.items[0]).nth(1).map(|(_, run)| run.at);
        run.check(again.is_some_and(|at| at >= gone), "its batch is begun again when it is gone");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_no_kill_can_end_ends_the_run_and_no_other_gets_what_it_held() {
    let mut stuck = Script::at_run(2, RunFault::Hang);
    // It ends when the run is over, so that the audit finds nothing left.
    stuck.kill_takes = secs(60);
    stuck.ending = Ending::Never;
    let mut stage = Stage::of(400);
    stage.workers = 2;
    let run = stage.run_first(stuck).await;
    let why = run.account.no_device.clone().unwrap_or_default();
    for part in ["process 1 of a worker on cuda:0", "within 30 s of SIGKILL", "its state: ", "again to go on"]
    {
        run.check(why.contains(part), &why);
    }
    let held = &run.lives[0].runs[1];
    run.check_time(run.over - held.at, secs(40), secs(40) + ms(500), "the deadline of the batch, and 30 s");
    run.check(run.begun(held.items[0]).count() == 1, "it is given to no other worker");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_keeps_the_stderr_of_a_dead_worker_open_delays_its_batch_by_no_more_than_ten_seconds()
{
    let mut dies = Script::at_run(2, RunFault::Die(Point::MidRun, KILLED));
    dies.stderr_stays_open = secs(55);
    let run = Stage::of(40).run_first(dies).await;
    run.all_done();
    let (held, gone) = (&run.lives[0].runs[1], run.lives[0].end());
    let again = run.begun(held.items[0]).nth(1).expect("it is begun again").1.at;
    run.check_time(again - gone, secs(10), secs(10) + ms(110), "its batch waits for the last words");
}
