//! What a run tells its tracer, with real files, workers and a journal: each item and each batch once, however the run ends. Deaths of workers, and
//! what is told of each batch, are in `fault_tests/recorder.rs`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{AS_IT_IS, ROW, Workplace, bounded, until};
use orchestra_launch::trace::{
    BatchNumber, BatchTrace, EndedItems, ItemTrace, RunBegan, RunEnded, RunTracer, Tracer,
};
use orchestra_launch::{RunHandle, StartOptions};
use orchestra_testkit::models;

const ITEMS: u64 = 300;

/// Keeps what it is told.
#[derive(Default)]
struct Told {
    numbers: AtomicU64,
    batches: Mutex<Vec<Arc<BatchTrace>>>,
    items: Mutex<Vec<ItemTrace>>,
    ends: Mutex<Vec<RunEnded>>,
}

struct Follows(Arc<Told>);

impl Tracer for Follows {
    fn begin(&self, _: RunBegan) -> Arc<dyn RunTracer> {
        Arc::clone(&self.0) as Arc<dyn RunTracer>
    }
}

impl RunTracer for Told {
    fn number_batch(&self) -> BatchNumber {
        BatchNumber { number: self.numbers.fetch_add(1, Ordering::Relaxed), context: None }
    }

    fn batch_ended(&self, batch: Arc<BatchTrace>) {
        self.batches.lock().unwrap().push(batch);
    }

    fn items_ended(&self, items: &[EndedItems]) {
        let mut told = self.items.lock().unwrap();
        told.extend(items.iter().flat_map(EndedItems::items).map(|item| item.trace()));
    }

    fn ended(&self, end: RunEnded) {
        self.ends.lock().unwrap().push(end);
    }
}

/// Two models in a row, so that rows go from one to the next; a third of a second of work.
fn workplace() -> Workplace {
    let mut place = Workplace::with_pictures(ITEMS);
    let affine = models::affine(&place.models(), &[1, 32, 32]).unwrap();
    place
        .model("affine", affine, "workers = 1")
        .gated("slow", 2)
        .image("pixels", "scans", AS_IT_IS)
        .infer("first", "pixels", "affine", 4)
        .infer("second", "first", "slow", 4)
        .sink("all", "second", "")
        .devices(1);
    place
}

async fn start(place: &Workplace) -> (Arc<Told>, RunHandle) {
    let told = Arc::new(Told::default());
    let trace = Some(Arc::new(Follows(Arc::clone(&told))) as Arc<dyn Tracer>);
    let run = place.start_with(StartOptions { trace, ..place.options() }).await;
    (told, run)
}

/// Every batch that was sent is told once, and every item at most once; gives how many items were told.
fn told_once(told: &Told) -> u64 {
    let mut numbers: Vec<u64> = told.batches.lock().unwrap().iter().map(|b| b.number.number).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..told.numbers.load(Ordering::Relaxed)), "each batch once");
    let items = told.items.lock().unwrap();
    let ids: BTreeSet<_> = items.iter().map(|i| i.id).collect();
    assert_eq!(ids.len(), items.len(), "each item once");
    items.len() as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_goes_to_several_sinks_is_told_once() {
    let mut place = Workplace::with_pictures(60);
    let affine = models::affine(&place.models(), &ROW).unwrap();
    place
        .model("affine", affine, "workers = 1")
        .image("pixels", "scans", crate::common::ONE_PIXEL_PER_BLOCK)
        .infer("one", "pixels", "affine", 4)
        .infer("two", "pixels", "affine", 3)
        .sink("first", "one", "")
        .sink("second", "two", "ordered = true")
        .sink("raw", "pixels", "")
        .devices(1);
    let (told, run) = start(&place).await;
    Workplace::must_end_with(&bounded("the run ends", run.wait()).await, 0);
    assert_eq!(told_once(&told), 60);
    for item in told.items.lock().unwrap().iter() {
        let steps = &item.steps;
        assert_eq!((steps.queued.len(), steps.batches.len()), (2, 2), "both branches");
        assert!(steps.batches.iter().all(|b| b.ended <= item.handed && b.processed.get().is_some()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_interrupted_aborted_or_dropped_tells_its_end_and_every_batch() {
    for how in ["interrupted", "aborted", "dropped"] {
        let place = workplace();
        // Whatever is done to the run comes before its end.
        place.gate().close_after(40).unwrap();
        let (told, run) = start(&place).await;
        until("there are results", || place.n_lines("all.jsonl") > 20).await;
        let stop = run.stop_handle();
        let outcome = match how {
            "interrupted" => {
                stop.interrupt();
                place.gate().open().unwrap();
                Some(bounded("the run ends", run.wait()).await)
            }
            "aborted" => {
                stop.abort();
                Some(bounded("the run ends", run.wait()).await)
            }
            _ => {
                drop(run);
                None
            }
        };
        until("the run has dropped its tracer", || Arc::strong_count(&told) == 1).await;
        let items = told_once(&told);
        let ends = told.ends.lock().unwrap();
        assert_eq!(ends.len(), 1, "{how}");
        assert_eq!(ends[0].exit_code, outcome.as_ref().map(|_| 130));
        if let Some(outcome) = outcome {
            assert_eq!(items, outcome.report.items.done, "{how}: what is written is told");
        }
    }
}
