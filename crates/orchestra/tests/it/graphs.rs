//! Every shape of graph gives each item exactly one record in each sink, with the right numbers in it.

use std::collections::BTreeSet;

use crate::common::{
    AS_IT_IS, ONE_PIXEL_PER_BLOCK, ROW, Workplace, each_shows_its_own_picture, numbers, pixels, scan,
};
use orchestra_core::DType;
use orchestra_testkit::images;
use orchestra_testkit::models::{self, spec};
use orchestra_testkit::onnx::{Attribute, ModelBuilder};
use orchestra_testkit::records::items;
use orchestra_testkit::{Trap, trap_library};

const NONE: BTreeSet<orchestra_testkit::records::ItemKey> = BTreeSet::new();

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_fails_in_one_branch_has_no_record_in_any_sink_and_one_failure() {
    let mut place = Workplace::with_pictures(20);
    images::write_trap_picture(&place.path("images"), 3, Trap::Fail).unwrap();
    let plain = models::blocks(&place.models(), [1, 32, 32]).unwrap();
    let trap = models::blocks_behind_trap(&place.models(), [1, 32, 32]).unwrap();
    place
        .model("plain", plain, "")
        .model("trap", trap, &format!("custom_ops = [{:?}]", trap_library().unwrap()))
        .image("pixels", "scans", AS_IT_IS)
        .infer("left", "pixels", "plain", 4)
        .infer("right", "pixels", "trap", 4)
        .sink("left", "left", "")
        .sink("right", "right", "")
        .devices(2);
    let outcome = place.run().await;
    Workplace::must_end_with(&outcome, 65);
    let records = place.records(&["left.jsonl", "right.jsonl"]);
    let done = items("scans", (0..20).filter(|i| *i != 3));
    records.must_be(2, &done, &items("scans", [3])).unwrap();
    assert_eq!(records.failure_kind(&scan(3)), Some("model"));
    assert_eq!(records.failed[&scan(3)]["stage"], "right");
    each_shows_its_own_picture(&records, "left.jsonl", "blocks");
    each_shows_its_own_picture(&records, "right.jsonl", "blocks");
}

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
    let outcome = place.run().await;
    Workplace::must_end_with(&outcome, 0);
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
async fn items_of_a_chain_of_models_into_one_sink_end_behind_the_last_model_and_nowhere_else() {
    let mut place = Workplace::with_pictures(80);
    let model = models::affine(&place.models(), &ROW).unwrap();
    place
        .model("affine", model, "workers = 1")
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .infer("once", "pixels", "affine", 4)
        .infer("twice", "once", "affine", 4)
        .sink("twice", "twice", "")
        .devices(1);
    assert!(place.plan().pipelines[0].linear.is_some(), "nothing has to be counted");
    let outcome = place.run().await;
    Workplace::must_end_with(&outcome, 0);
    let records = place.records(&["twice.jsonl"]);
    records.must_be(1, &items("scans", 0..80), &NONE).unwrap();
    for (key, of_item) in &records.done {
        let expected: Vec<f32> = pixels(key.index).iter().map(|x| 2.0 * (2.0 * x + 1.0) + 1.0).collect();
        assert_eq!(numbers(&of_item["twice.jsonl"], "y"), expected, "{key}");
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
        .infer("once", "pixels", "affine", 2)
        .infer("twice", "once", "again", 2)
        .infer("thrice", "twice", "affine", 2)
        .sink("read", "pixels", "")
        .sink("once", "once", "")
        .sink("thrice", "thrice", "")
        // As few slots as there can be: one per stage, of two rows.
        .add("[limits]\nmemory = 1536")
        .devices(1);
    let plan = place.plan();
    let slots: Vec<usize> = plan.batch_stages().map(|(_, infer)| infer.layout.slots).collect();
    assert!(slots.iter().all(|n| *n == 1), "slots are scarce: {slots:?}");
    let outcome = place.run().await;
    Workplace::must_end_with(&outcome, 0);
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
    let stage = &outcome.report.stages["thrice"];
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
        let outcome = place.run().await;
        Workplace::must_end_with(&outcome, 0);
        place.records(&["twice.jsonl"]).must_be(1, &items("scans", 0..256), &NONE).unwrap();
        let reasons = &outcome.report.batches_by_reason;
        assert_eq!((reasons["full"], reasons["drain"]), (8, 0), "{reasons:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pixels_of_every_element_type_pass_through_a_model_unchanged() {
    let mut place = Workplace::with_pictures(12);
    let types = [DType::F32, DType::F16, DType::U8];
    for dtype in types {
        let model = models::identity(&place.models(), dtype, &ROW).unwrap();
        let image = format!("size = [4, 8]\ncolor = \"gray\"\nfilter = \"nearest\"\ndtype = \"{dtype}\"");
        let scale = if dtype == DType::U8 { "" } else { "\nscale = 1.0" };
        place
            .model(dtype.name(), model, "")
            .image(&format!("pixels-{dtype}"), "scans", &format!("{image}{scale}"))
            .infer(&format!("same-{dtype}"), &format!("pixels-{dtype}"), dtype.name(), 4)
            .sink(dtype.name(), &format!("same-{dtype}"), "");
    }
    let outcome = place.devices(1).run().await;
    Workplace::must_end_with(&outcome, 0);
    let records = place.records(&["f32.jsonl", "f16.jsonl", "u8.jsonl"]);
    records.must_be(3, &items("scans", 0..12), &NONE).unwrap();
    for (key, of_item) in &records.done {
        for dtype in types {
            let record = &of_item[&format!("{dtype}.jsonl")];
            assert_eq!(numbers(record, "y"), pixels(key.index), "{key} as {dtype}");
            assert_eq!(record["result"]["y"]["dtype"], dtype.name());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_whose_shape_follows_from_its_values_is_the_item_s_or_ends_the_run() {
    for batch in [1, 4] {
        let mut place = Workplace::with_pictures(21);
        let blocks = models::blocks(&place.models(), ROW).unwrap();
        let columns = models::positive_columns(&place.models(), 32).unwrap();
        place
            .model("blocks", blocks, "")
            .model("columns", columns, "")
            .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
            .infer("flat", "pixels", "blocks", 4)
            .infer("chosen", "flat", "columns", batch)
            .sink("all", "chosen", "")
            .devices(1);
        let outcome = place.run().await;
        if batch > 1 {
            // An item has the columns of all in its batch.
            Workplace::must_end_with(&outcome, 78);
            assert_eq!(place.n_lines("all.jsonl"), 0);
            continue;
        }
        Workplace::must_end_with(&outcome, 0);
        let records = place.records(&["all.jsonl"]);
        records.must_be(1, &items("scans", 0..21), &NONE).unwrap();
        for (key, of_item) in &records.done {
            let record = &of_item["all.jsonl"];
            // One block is always white; the others are the bits of the index.
            let white = key.index.count_ones() as usize + 1;
            assert_eq!(numbers(record, "y"), vec![255.0; white], "{key}: {record}");
            assert_eq!(record["result"]["y"]["shape"], serde_json::json!([white]));
        }
    }
}
