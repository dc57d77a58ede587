//! An item that reading and decoding never comes to an end with: it fails alone after `limits.item_timeout`, and another thread goes on with
//! those behind it. The stage that hangs is a kind of this test, because no file does that to a decoder.

use std::sync::{Arc, Condvar, Mutex};

use crate::common::number_stages::{TestStage, is_tensor};
use crate::common::{ONE_PIXEL_PER_BLOCK, Workplace, pixels};
use orchestra::kind::{ColumnType, Schema, Value};
use orchestra_testkit::records::{ItemKey, items};

const ITEMS: u64 = 60;
const STUCK: u64 = 17;

/// `kind = "barrier"`: gives each row on, but keeps the thread that has the row of item [`STUCK`] until it is opened.
#[derive(Debug, Default)]
struct Barrier {
    is_open: Mutex<bool>,
    opened: Condvar,
}

fn kind(barrier: Arc<Barrier>) -> TestStage {
    let gives = |ty: &ColumnType| Schema::of("pixels", ty.clone());
    TestStage::new("barrier", is_tensor, gives, move |inputs, emit| {
        let stuck: Vec<u8> = pixels(STUCK).iter().flat_map(|pixel| pixel.to_ne_bytes()).collect();
        inputs[0].with_tensor(|tensor| {
            if tensor.data == stuck {
                let is_open = barrier.is_open.lock().unwrap();
                drop(barrier.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
            }
            emit.row(&[Value::Tensor(*tensor)])
        })
    })
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
    let barrier = Arc::new(Barrier::default());
    let kinds = orchestra::kinds().with_stage(kind(Arc::clone(&barrier)));
    let outcome = place.run_plan(place.plan_with(kinds)).await;
    // The thread that was given up still holds the row: what it gives now comes too late, and changes nothing.
    *barrier.is_open.lock().unwrap() = true;
    barrier.opened.notify_all();
    Workplace::must_end_with(&outcome, 65);
    let records = place.records(&["results.jsonl"]);
    let done = items("scans", (0..ITEMS).filter(|item| *item != STUCK));
    records.must_be(1, &done, &items("scans", [STUCK])).unwrap();
    let key = ItemKey { source: "scans".into(), index: STUCK };
    assert_eq!(records.failure_kind(&key), Some("timeout"));
    let error = records.failed[&key]["error"].as_str().unwrap();
    assert!(error.contains("longer than limits.item_timeout (5 s)"), "{error}");
}
