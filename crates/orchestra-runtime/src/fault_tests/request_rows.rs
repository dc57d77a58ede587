//! Requests of many rows: however their rows are spread over batches, each request gets the outputs of its own rows, once, and nothing is left of one that
//! fails, is dropped or comes too late.

use std::ops::Range;
use std::sync::Arc;

use futures::future::{join_all, poll_immediate};
use orchestra_core::data::{OwnedRow, OwnedValue};
use orchestra_core::{DType, FailureKind};
use orchestra_worker::frames::RunErrorKind;
use tokio::time::{Instant, sleep};

use super::fake_process::Launch;
use super::fake_worker::answer_to;
use super::log::Log;
use super::panics::{BUG, Throws};
use super::recorder::TelemetryRecorder;
use super::requests::{all_is_home, start_with, traced, whatever_dies};
use super::script::*;
use super::stage::Stage;
use crate::batch::outputs::CopiedOutput;
use crate::requests::{ProcessError, RequestFlow, RequestRows, RequestTerms};
use crate::trace::ItemEnd;

/// The items of a request, each a row.
struct Items(Range<u64>);

impl RequestRows for Items {
    fn count(&self) -> usize {
        (self.0.end - self.0.start) as usize
    }

    fn write(&self, _: usize, rows: Range<usize>, to: &mut [u8]) {
        let items = self.0.clone().skip(rows.start).take(rows.len());
        to.copy_from_slice(&items.flat_map(|item| (item as f32).to_ne_bytes()).collect::<Vec<_>>());
    }

    fn row(&self, row: usize) -> OwnedRow {
        let data = ((self.0.start + row as u64) as f32).to_ne_bytes().into();
        vec![OwnedValue::Tensor { name: "x".into(), dtype: DType::F32, shape: [1, 1, 1].into(), data }]
    }
}

/// Asks about these items. Gives whether the outputs are theirs, one for each.
async fn ask(flow: &RequestFlow, items: Range<u64>, terms: RequestTerms) -> Result<bool, ProcessError> {
    let admitted = flow.admit(terms).await?;
    let rows = Items(items.clone());
    let mut pieces = admitted.in_time(admitted.rows("rows", &rows)).await?;
    pieces.sort_by_key(|piece| piece.first);
    let mut given = Vec::new();
    for piece in pieces {
        assert_eq!(piece.first, given.len(), "no row is missing or doubled");
        let [CopiedOutput::Tensor { data, .. }] = &piece.columns[..] else { panic!("{:?}", piece.columns) };
        given.extend(data.chunks(4).map(|number| f32::from_ne_bytes(number.try_into().unwrap())));
        assert_eq!(given.len(), piece.first + piece.count);
    }
    Ok(given == items.map(answer_to).collect::<Vec<_>>())
}

/// So many requests of 1 to 25 rows: fewer and more than a batch has.
fn requests(n: u64) -> impl Iterator<Item = Range<u64>> {
    (0..n).map(|nth| nth * 100..nth * 100 + 1 + nth * 7 % 25)
}

async fn until_all_is_home(flow: &RequestFlow) {
    while flow.waiting() > 0 || flow.observer().slots_in_use() > 0 {
        sleep(ms(1)).await;
    }
    all_is_home(flow);
}

fn n_begun(log: &Log) -> usize {
    log.lives().into_iter().flat_map(|life| life.runs).map(|run| run.items.len()).sum()
}

#[tokio::test(start_paused = true)]
async fn each_request_gets_the_outputs_of_its_rows_whatever_dies_and_whoever_goes() {
    let (stage, scripts) = whatever_dies();
    for script in scripts {
        let log = Log::start();
        let flow = start_with(&stage, &log, 1024, script).await.unwrap();
        let asked = requests(60).map(|items| {
            let flow = &flow;
            async move {
                let mut asked = Box::pin(ask(flow, items.clone(), RequestTerms::default()));
                if items.start % 300 == 0 {
                    // It has some of its rows, or none.
                    assert!(poll_immediate(&mut asked).await.is_none());
                    return;
                }
                assert_eq!(asked.await, Ok(true), "{items:?}");
            }
        });
        join_all(asked).await;
        until_all_is_home(&flow).await;
        assert!(log.lives().iter().any(|life| life.ended.is_some()), "a worker died");
        flow.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_without_a_result_fails_its_request_by_number_and_no_other() {
    for fault in [RunFault::Die(Point::MidRun, SEGFAULT), RunFault::Fails(RunErrorKind::Model)] {
        let log = Log::start();
        let kind = if fault == RunFault::Fails(RunErrorKind::Model) {
            FailureKind::Model
        } else {
            FailureKind::Crash
        };
        let poisoned = move |_: Launch| Script::poisoned([307, 1400], fault.clone());
        let stage = Stage { workers: 2, ..Stage::of(0) };
        let flow = start_with(&stage, &log, 1024, poisoned).await.unwrap();
        let asked = requests(20).map(|items| ask(&flow, items, RequestTerms::default()));
        for (items, answer) in requests(20).zip(join_all(asked).await) {
            match [307, 1400].into_iter().find(|item| items.contains(item)) {
                None => assert_eq!(answer, Ok(true), "{items:?}"),
                Some(item) => {
                    let Err(ProcessError::Failed { row, failure }) = answer else { panic!("{answer:?}") };
                    assert_eq!((row as u64, failure.kind), (item - items.start, kind));
                }
            }
        }
        until_all_is_home(&flow).await;
        flow.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_request_that_is_late_no_more_rows_are_begun_and_its_place_comes_back() {
    let log = Log::start();
    let slow = |_: Launch| Script { run_takes: secs(1), ..Script::honest() };
    let flow = start_with(&Stage::of(0), &log, 1, slow).await.unwrap();
    let deadline = Some(Instant::now() + ms(2_500));
    let late = ask(&flow, 0..1_000, RequestTerms { deadline, ..RequestTerms::default() }).await;
    assert_eq!(late, Err(ProcessError::Deadline));
    until_all_is_home(&flow).await;
    assert!(n_begun(&log) < 100, "{}", n_begun(&log));
    assert_eq!(ask(&flow, 0..30, RequestTerms::default()).await, Ok(true));
    until_all_is_home(&flow).await;
    flow.close().await;
}

/// The rows of a large request take turns with those that come later, the higher priority first.
#[tokio::test(start_paused = true)]
async fn a_small_request_does_not_wait_for_the_last_row_of_a_large_one() {
    let log = Log::start();
    let slow = |_: Launch| Script { run_takes: secs(1), ..Script::honest() };
    let flow = start_with(&Stage::of(0), &log, 8, slow).await.unwrap();
    let began = Instant::now();
    let small = async {
        let end = ask(&flow, 5_000..5_001, RequestTerms { priority: 1, ..RequestTerms::default() }).await;
        (end, began.elapsed())
    };
    let (large, (small, after)) = tokio::join!(ask(&flow, 0..1_000, RequestTerms::default()), small);
    assert_eq!((large, small), (Ok(true), Ok(true)));
    assert!(after < began.elapsed() / 4, "{after:?}");
    until_all_is_home(&flow).await;
    flow.close().await;
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_pipeline_that_falls_over_are_asked_again_as_a_whole() {
    for times in [3, 4] {
        let flow = traced(Throws::new("batcher", times), |_| Script::honest()).await;
        for answer in join_all(requests(60).map(|items| ask(&flow, items, RequestTerms::default()))).await {
            match answer {
                Ok(is_own) => assert!(times == 3 && is_own),
                Err(over) => assert!(times == 4 && over.to_string().contains(BUG), "{over}"),
            }
        }
        all_is_home(&flow);
        flow.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_rows_or_for_its_answer_is_told_when_the_flow_ends() {
    let log = Log::start();
    let hangs = |_: Launch| Script::at_every_run(RunFault::Hang);
    let flow = Arc::new(start_with(&Stage::of(0), &log, 1024, hangs).await.unwrap());
    let asked: Vec<_> = requests(60)
        .map(|items| {
            let flow = Arc::clone(&flow);
            tokio::spawn(async move { ask(&flow, items, RequestTerms::default()).await })
        })
        .collect();
    while flow.waiting() < 8 {
        tokio::task::yield_now().await;
    }
    flow.end("enough");
    for asked in asked {
        assert_eq!(asked.await.unwrap(), Err(ProcessError::Over("enough".to_owned())));
    }
    Arc::into_inner(flow).unwrap().close().await;
}

#[tokio::test(start_paused = true)]
async fn each_row_is_told_to_the_tracer_once_with_its_batch() {
    let told = TelemetryRecorder::default();
    let refuses = |_: Launch| Script::poisoned([107], RunFault::Fails(RunErrorKind::Model));
    let flow = traced(told.clone(), refuses).await;
    let asked = [0..20, 100..110].map(|items| ask(&flow, items, RequestTerms::default()));
    let ends = join_all(asked).await;
    assert!(ends[0] == Ok(true) && matches!(&ends[1], Err(ProcessError::Failed { row: 7, .. })));
    until_all_is_home(&flow).await;
    let items = told.items();
    let mut indices: Vec<u64> = items.iter().map(|item| item.id.index).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..30).collect::<Vec<_>>());
    let failed = items.iter().filter(|item| item.end != ItemEnd::Done);
    assert_eq!(failed.map(|item| item.id.index).collect::<Vec<_>>(), [27]);
    assert!(items.iter().all(|item| !item.steps.batches.is_empty() || item.id.index >= 20));
    flow.close().await;
}
