//! Workers that say something wrong: whatever it is, it counts as no result, and costs at most the worker that said it.

use orchestra_core::{FailureKind, WorkerExit};
use orchestra_worker::frames::RunErrorKind;

use super::account::Outcome;
use super::script::*;
use super::stage::Stage;

/// Forty items; the first worker has this fault at its third run, the others are honest.
async fn with_fault(fault: RunFault, dynamic: bool) -> Outcome {
    let mut stage = Stage::of(40).named(format!("{fault:?}, dynamic {dynamic}"));
    stage.dynamic = dynamic;
    let script = Script::at_run(3, fault);
    stage.run_first(script).await
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_makes_no_sense_is_no_result_and_ends_its_worker() {
    let faults = [
        RunFault::AnswersFor(Other::Unknown),
        RunFault::AnswersFor(Other::Earlier),
        RunFault::AnswersFor(Other::Next),
        RunFault::AnswersTwice,
        RunFault::Garbage,
        RunFault::SecondHello,
    ];
    for fault in faults {
        for dynamic in [false, true] {
            let run = with_fault(fault.clone(), dynamic).await;
            run.all_done();
            run.check(run.restarts == 1, "it is replaced");
            run.check(matches!(run.exits[..], [WorkerExit::Garbled(_)]), "it made no sense");
            run.check(run.most_begun() <= 2, "what it held is begun once more");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_believed_that_comes_right_behind_nonsense() {
    let run = with_fault(RunFault::SecondHelloThenRight, false).await;
    run.all_done();
    run.check(matches!(run.exits[..], [WorkerExit::Garbled(_)]), "it made no sense");
    run.check(run.most_begun() == 2, "the batch that it answered is begun once more");
}

#[tokio::test(start_paused = true)]
async fn half_an_answer_is_no_result_when_nothing_follows() {
    let end = with_fault(RunFault::Die(Point::MidAnswer, WorkerExit::Code(1)), false).await;
    end.all_done().check(end.exits == [WorkerExit::Code(1)], "it ended by itself");
    let silence = with_fault(RunFault::HalfAnswerThenSilence, false).await;
    silence.all_done().check(silence.exits == [WorkerExit::Silent], "it fell silent");
    for run in [end, silence] {
        run.check(run.most_begun() == 2, "what it held is begun once more");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_no_request_ends_its_worker_and_costs_no_item_an_attempt() {
    let script = Script::later(secs(1), TimedFault::AnswersUnasked);
    let mut stage = Stage::of(40);
    stage.first_item = secs(5);
    let run = stage.run_first(script).await;
    run.all_done();
    run.check(run.restarts == 1 && run.most_begun() == 1, "it is replaced before there is work");
}

#[tokio::test(start_paused = true)]
async fn an_answer_with_an_odd_output_fails_its_items_by_name_and_the_worker_lives_on() {
    for dynamic in [false, true] {
        for odd in [
            OutputFault::MoreRows,
            OutputFault::FewerRows,
            OutputFault::OtherType,
            OutputFault::HugeShape,
            OutputFault::Drops,
            OutputFault::FailsBeyond,
        ] {
            let run = with_fault(RunFault::AnswersOddly(odd), dynamic).await;
            run.all_done_but(8..12).failed_as(FailureKind::Result);
            run.check((run.restarts, run.retries) == (0, 0), "no worker is replaced");
        }
    }
    let run = with_fault(RunFault::AnswersOddly(OutputFault::Missing), true).await;
    run.all_done_but(8..12).failed_as(FailureKind::Result);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_model_for_a_whole_batch_costs_no_item_that_passes_alone() {
    let run = with_fault(RunFault::Fails(RunErrorKind::Model), false).await;
    run.all_done();
    run.check(run.restarts == 0, "no worker is replaced");
    run.check(run.most_begun() == 2, "its halves are begun once");
}

#[tokio::test(start_paused = true)]
async fn an_item_that_the_model_refuses_fails_alone_by_name() {
    for (batch, at_most) in [(1, 1), (4, 3), (32, 6)] {
        let refuses = Script::poisoned([13, 57], RunFault::Fails(RunErrorKind::Model));
        let mut stage = Stage::of(100).named(format!("batches of {batch}"));
        stage.max_batch = batch;
        let run = stage.run(move |_| refuses.clone()).await;
        run.all_done_but([13, 57]).failed_as(FailureKind::Model);
        run.check(run.restarts == 0, "no worker is replaced");
        run.check(run.most_begun() <= at_most, "it is found by halving");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_device_breaks_is_replaced_whether_it_exits_or_not() {
    let exits = with_fault(RunFault::Fails(RunErrorKind::Device), false).await;
    exits.all_done().check(exits.restarts == 1, "it is replaced");
    let stays = with_fault(RunFault::BreaksAndStays, false).await;
    stays.all_done().check(stays.restarts == 1, "it is replaced");
    let broken = stays.lives[0].runs[2].answered.expect("it said so");
    stays.check_time(stays.lives[0].end() - broken, secs(5), secs(5) + ms(250), "it is killed");
    for run in [exits, stays] {
        run.check(run.most_begun() == 2, "what it held is begun once more");
    }
    for streams in 2..=4 {
        for fault in [RunFault::Fails(RunErrorKind::Device), RunFault::BreaksAndStays] {
            for max_batch in [1, 4] {
                let label = format!("{streams} streams, {fault:?}, batches of {max_batch}");
                let stage = Stage { max_batch, streams, ..Stage::of(120).named(label) };
                let run = stage.run_first(Script::at_run(3, fault.clone())).await;
                run.all_done();
                run.check(
                    run.restarts == 1 && run.most_begun() <= 2,
                    "one is replaced, and nothing begun thrice",
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_floods_its_stderr_delays_no_batch() {
    let mut noisy = Script::honest();
    noisy.noise = 1000;
    let run = Stage::of(40).run(move |_| noisy.clone()).await;
    run.all_done();
    run.check((run.restarts, run.retries) == (0, 0), "no worker is replaced");
    run.check_time(run.over, ms(200), ms(200) + ms(10), "a load and ten batches");
}
