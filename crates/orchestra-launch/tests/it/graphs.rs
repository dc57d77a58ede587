//! Every shape of graph gives each item exactly one record in each sink, with the right numbers in it.

use std::collections::BTreeSet;

use crate::common::{ONE_PIXEL_PER_BLOCK, ROW, Workplace, numbers, pixels};
use orchestra_core::DType;
use orchestra_testkit::models::{self, spec};
use orchestra_testkit::onnx::{Attribute, ModelBuilder};
use orchestra_testkit::records::items;

const NONE: BTreeSet<orchestra_testkit::records::ItemKey> = BTreeSet::new();

/// f32 `fine` of row shape 1 by 8 by 16 is averaged to the shape of `coarse`, 1 by 4 by 8; `sum` and `difference` of both.
fn two_sizes(place: &Workplace) -> std::path::PathBuf {
    let halve = [("kernel_shape", Attribute::Ints(vec![2, 2])), ("strides", Attribute::Ints(vec![2, 2]))];
    ModelBuilder::new("two_sizes")
        .input(&spec("coarse", DType::F32, &ROW))
        .input(&spec("fine", DType::F32, &[1, 8, 16]))
        .output(&spec("sum", DType::F32, &ROW))
        .output(&spec("difference", DType::F32, &ROW))
        .node("AveragePool", &["fine"], &["halved"], &halve)
        .node("Add", &["coarse", "halved"], &["sum"], &[])
        .node("Sub", &["coarse", "halved"], &["difference"], &[])
        .write(&place.models())
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_image_stages_of_one_source_feed_the_two_inputs_of_a_model_with_the_same_item() {
    let mut place = Workplace::with_pictures(50);
    let model = two_sizes(&place);
    place
        .model("two", model, "")
        .image("coarse", "scans", ONE_PIXEL_PER_BLOCK)
        .image("fine", "scans", "size = [8, 16]\ncolor = \"gray\"\nfilter = \"nearest\"\nscale = 0.5")
        .infer_of("both", "inputs = { fine = \"fine\", coarse = \"coarse\" }", "two", 8)
        .sink("all", "both", "")
        .devices(2);
    Workplace::ended_with(place.run(), 0).await;
    let records = place.records(&["all.jsonl"]);
    records.must_be(1, &items("scans", 0..50), &NONE).unwrap();
    for (key, of_item) in &records.done {
        let record = &of_item["all.jsonl"];
        let drawn = pixels(key.index);
        let times = |factor: f32| drawn.iter().map(|p| p * factor).collect::<Vec<_>>();
        assert_eq!(numbers(record, "sum"), times(1.5), "{key}");
        assert_eq!(numbers(record, "difference"), times(0.5), "{key}");
        assert_eq!(record["result"]["sum"]["shape"], serde_json::json!(ROW));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_models_under_backpressure_gives_every_item_to_the_sinks_of_all_its_stages() {
    let mut place = Workplace::with_pictures(150);
    let model = models::affine(&place.models(), &ROW).unwrap();
    place
        .model("affine", model.clone(), "workers = 1")
        .model("again", model, "workers = 1")
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .infer("once", "pixels", "affine", 32)
        .infer("twice", "once", "again", 32)
        .infer("thrice", "twice", "affine", 32)
        .sink("read", "pixels", "")
        .sink("once", "once", "")
        .sink("thrice", "thrice", "")
        // As few slots as there can be: one per stage, a page of inputs and one of outputs.
        .add("[limits]\nmemory = \"24KiB\"")
        .devices(1);
    let plan = place.plan();
    let slots: Vec<usize> = plan.batch_stages().map(|(_, infer)| infer.layout.slots).collect();
    assert!(slots.iter().all(|n| *n == 1), "slots are scarce: {slots:?}");
    let outcome = Workplace::ended_with(place.run(), 0).await;
    let records = place.records(&["read.jsonl", "once.jsonl", "thrice.jsonl"]);
    records.must_be(3, &items("scans", 0..150), &NONE).unwrap();
    for (key, of_item) in &records.done {
        let drawn = pixels(key.index);
        let once: Vec<f32> = drawn.iter().map(|p| 2.0 * p + 1.0).collect();
        let thrice: Vec<f32> = once.iter().map(|y| 2.0 * (2.0 * y + 1.0) + 1.0).collect();
        assert_eq!(numbers(&of_item["read.jsonl"], "pixels"), drawn, "{key}");
        assert_eq!(numbers(&of_item["once.jsonl"], "y"), once, "{key}");
        assert_eq!(numbers(&of_item["thrice.jsonl"], "y"), thrice, "{key}");
    }
    let stage = outcome.report.stages.iter().find(|stage| stage.name == "thrice").unwrap();
    assert_eq!((stage.entered, stage.out, stage.failed), (150, 150, 0));
}

/// A stage that hears too early that nothing more will come sends what it has in pieces, and may end before it has done everything.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_stage_is_told_to_the_one_behind_after_its_last_batch() {
    const ROUNDS: usize = 5;
    for _ in 0..ROUNDS {
        let mut place = Workplace::with_pictures(256);
        let model = models::affine(&place.models(), &[1, 64, 64]).unwrap();
        place
            .model("affine", model, "workers = 1")
            .image("pixels", "scans", "size = [64, 64]\ncolor = \"gray\"")
            .infer("once", "pixels", "affine", 64)
            .infer("twice", "once", "affine", 64)
            .sink("twice", "twice", "")
            .devices(1)
            // Only full batches leave, and what is left at the end.
            .set("wait = \"5ms\"", "wait = \"1h\"");
        let outcome = Workplace::ended_with(place.run(), 0).await;
        place.records(&["twice.jsonl"]).must_be(1, &items("scans", 0..256), &NONE).unwrap();
        let reasons = &outcome.report.batches_by_reason;
        assert_eq!((reasons["full"], reasons["drain"]), (8, 0), "{reasons:?}");
    }
}
