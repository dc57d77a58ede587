//! An item that reading and decoding never comes to an end with: it fails alone after `limits.item_timeout`, and another thread goes on with
//! those behind it. The stage that hangs is a kind of this test, because no file does that to a decoder.

use std::sync::{Arc, Condvar, Mutex};

use crate::common::{ONE_PIXEL_PER_BLOCK, Workplace, pixels};
use orchestra::kind::{
    Connect, Draft, Emit, Fields, Map, MapRun, Refusal, Reported, Runs, StageConnected, StageContext,
    StageKind, Value,
};
use orchestra_testkit::records::{ItemKey, items};

const ITEMS: u64 = 60;
const STUCK: u64 = 17;

/// `kind = "barrier"`: gives each row on, but keeps the thread that has the row of item [`STUCK`] until it is opened.
#[derive(Debug, Clone, Default)]
struct Barrier(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl StageKind for Barrier {
    fn name(&self) -> &'static str {
        "barrier"
    }

    fn about(&self) -> &'static str {
        "Keeps the thread of one row."
    }

    fn read(&self, _: &mut Fields<'_, '_>) -> Option<Draft> {
        Some(Draft::Stage(Box::new(self.clone())))
    }
}

impl Connect for Barrier {
    fn connect(&self, stage: &mut StageContext<'_>) -> Result<StageConnected, Reported> {
        let gives = stage.inputs[0].gives.clone();
        Ok(StageConnected {
            gives,
            reads: vec![(0, 0)],
            runs: Runs::Map(Arc::new(self.clone())),
            settings: serde_json::Value::Null,
            details: Vec::new(),
            about: "barrier".to_owned(),
        })
    }
}

impl Map for Barrier {
    fn start(&self) -> Box<dyn MapRun> {
        Box::new(self.clone())
    }

    fn cost(&self) -> usize {
        1
    }
}

impl MapRun for Barrier {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), Refusal> {
        let stuck: Vec<u8> = pixels(STUCK).iter().flat_map(|pixel| pixel.to_ne_bytes()).collect();
        inputs[0].with_tensor(|tensor| {
            if tensor.data == stuck {
                let is_open = self.0.is_open.lock().unwrap();
                drop(self.0.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
            }
            emit.row(&[Value::Tensor(*tensor)])
        })
    }
}

impl Barrier {
    fn open(&self) {
        *self.0.is_open.lock().unwrap() = true;
        self.0.opened.notify_all();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_hangs_in_a_loader_fails_alone_after_its_time() {
    let mut place = Workplace::with_pictures(ITEMS);
    place
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .add("[stages.kept]\nkind = \"barrier\"\nfrom = \"pixels\"")
        .sink("results", "kept", "")
        .add("[limits]\nitem_timeout = \"5s\"")
        .devices(1);
    let barrier = Barrier::default();
    let outcome = place.run_plan(place.plan_with(orchestra::kinds().with_stage(barrier.clone()))).await;
    // The thread that was given up still holds the row: what it gives now comes too late, and changes nothing.
    barrier.open();
    Workplace::must_end_with(&outcome, 65);
    let records = place.records(&["results.jsonl"]);
    let done = items("scans", (0..ITEMS).filter(|item| *item != STUCK));
    records.must_be(1, &done, &items("scans", [STUCK])).unwrap();
    let key = ItemKey { source: "scans".into(), index: STUCK };
    assert_eq!(records.failure_kind(&key), Some("timeout"));
    let error = records.failed[&key]["error"].as_str().unwrap();
    assert!(error.contains("longer than limits.item_timeout (5 s)"), "{error}");
}
