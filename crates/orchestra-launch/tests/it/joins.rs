//! Rows of one item, or of one part, that come by several ways are read together: once each, whatever is dropped, fails or dies on one of the
//! ways, and the item ends once.

use std::collections::BTreeSet;

use crate::common::number_stages::{
    NUMBER, SCATTER, Stage, TestStage, emit_numbers, is_tensor, n_parts, numbers_of,
};
use crate::common::{ONE_PIXEL_PER_BLOCK, Workplace, numbers, scan};
use orchestra_launch::kind::{ColumnType, DType, ItemError, Kinds, Value};
use orchestra_testkit::models;
use orchestra_testkit::records::items;
use serde_json::Value as Json;

/// Refuses the numbers `[27, _]`, which the affine model makes of item 13, and panics over `[47, _]`.
const PICKY: Stage = Stage {
    name: "picky",
    parts: None,
    work: |row, emit| match row[0] as u64 {
        27 => Err(ItemError::result("item 13 is not wanted")),
        47 => panic!("item 23"),
        _ => emit(row),
    },
};

/// Reads a picture and two tensors: how wide the picture is, and the first number of each tensor.
fn beside() -> TestStage {
    let reads =
        |at: usize, ty: &ColumnType| if at == 0 { *ty == ColumnType::Picture } else { is_tensor(at, ty) };
    TestStage::new("beside", reads, numbers_of::<3>, |inputs, emit| {
        let [Value::Picture(picture), a, b] = inputs else { panic!("other inputs than were asked for") };
        let mut row = [0.0; 3];
        picture.with_pixels(&mut |pixels| {
            row[0] = pixels.width as f32;
            Ok(())
        })?;
        for (place, tensor) in [(1, a), (2, b)] {
            row[place] = tensor.with_tensor(|t| Ok(f32::from_ne_bytes(*t.data.first_chunk().unwrap())))?;
        }
        emit_numbers(emit, &row)
    })
}

fn kinds() -> Kinds {
    orchestra_launch::kinds().with_stage(SCATTER).with_stage(PICKY).with_stage(NUMBER).with_stage(beside())
}

/// Pictures to numbers to two models, of which one doubles and adds 1 and the other passes on.
fn forked(items: u64) -> Workplace {
    let mut place = Workplace::with_pictures(items);
    let affine = models::affine(&place.models(), &[2]).unwrap();
    let identity = models::identity(&place.models(), DType::F32, &[2]).unwrap();
    place
        .model("affine", affine, "workers = 2")
        .model("same", identity, "workers = 1")
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .add("[stages.number]\nkind = \"number\"\nfrom = \"pixels\"")
        .infer("double", "number", "affine", 4)
        .infer("plain", "number", "same", 16)
        .devices(1);
    place
}

/// A sink of two stages.
fn both(place: &mut Workplace, a: &str, b: &str) {
    place.add(&format!("[sinks.both]\nkind = \"jsonl\"\nfrom = [\"{a}\", \"{b}\"]"));
}

fn first(value: &Json) -> f64 {
    value["data"][0].as_f64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_fails_or_is_dropped_on_one_way_leaves_nothing_behind_on_the_other() {
    const ITEMS: u64 = 300;
    let mut place = forked(ITEMS);
    place
        .add("[stages.picky]\nkind = \"picky\"\nfrom = \"double\"")
        .add("[stages.few]\nkind = \"filter\"\nfrom = \"plain\"\nkeep = \"y[0] < 100\"")
        .add("[stages.kept]\nkind = \"filter\"\nfrom = [\"picky\", \"few\"]\nkeep = \"picky[0] != 15\"")
        .sink("kept", "kept", "")
        .sink("alone", "plain", "");
    let outcome = Workplace::ended_with(place.run_plan(place.plan_with(kinds())), 65).await;
    assert_eq!((outcome.report.items.done, outcome.report.items.failed), (ITEMS - 2, 2));
    assert_eq!(place.indices("failures.jsonl"), [13, 23].into());
    // 100 and more are dropped on one way, 7 behind the join.
    assert_eq!(place.indices("kept.jsonl"), (0..100).filter(|index| ![7, 13, 23].contains(index)).collect());
    assert_eq!(place.n_lines("alone.jsonl") as u64, ITEMS - 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_are_joined_part_by_part_and_gathered_with_what_was_carried() {
    const ITEMS: u64 = 400;
    let mut place = forked(ITEMS);
    place
        .add("[stages.parts]\nkind = \"scatter\"\nfrom = \"pixels\"")
        .infer("a", "parts", "affine", 4)
        .infer("b", "parts", "same", 8)
        .add("[stages.odd]\nkind = \"filter\"\nfrom = \"b\"\nkeep = \"y[1] != 2\"")
        .add("[stages.all]\nkind = \"gather\"\nfrom = [\"a\", \"odd\"]");
    // The parts of an item and what a model makes of the whole of it.
    both(&mut place, "all", "plain");
    let run = place.start_plan(place.plan_with(kinds())).await;
    place.kill_while_it_runs(&run, 5, 50).await;
    Workplace::ended_with(run.wait(), 0).await;
    let records = place.lines("both.jsonl");
    assert_eq!(records.len() as u64, ITEMS);
    for record in &records {
        let index = record["index"].as_u64().unwrap();
        let numbers = |value: &Json| [&value[0], &value[1]].map(|n| n.as_f64().unwrap());
        let found: Vec<_> = record["result"]["all"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| (numbers(&part["a"]), numbers(&part["odd"])))
            .collect();
        let of = |part: u64| {
            let (i, p) = (index as f64, part as f64);
            ([2.0 * i + 1.0, 2.0 * p + 1.0], [i, p])
        };
        let expected: Vec<_> = (0..n_parts(index)).filter(|part| *part != 2).map(of).collect();
        assert_eq!(found, expected, "item {index}");
        assert_eq!(first(&record["result"]["plain"]), index as f64);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_is_carried_to_a_stage_that_reads_it_beside_two_models() {
    const ITEMS: u64 = 200;
    let mut place = forked(ITEMS);
    place
        .add("[stages.beside]\nkind = \"beside\"\nfrom = [\"scans\", \"double\", \"plain\"]")
        .sink("beside", "beside", "");
    Workplace::ended_with(place.run_plan(place.plan_with(kinds())), 0).await;
    let records = place.records(&["beside.jsonl"]);
    records.must_be(1, &items("scans", 0..ITEMS), &BTreeSet::new()).unwrap();
    for index in 0..ITEMS {
        let row = numbers(&records.done[&scan(index)]["beside.jsonl"], "x");
        assert!(row[0] > 0.0);
        assert_eq!(row[1..], [2.0 * index as f32 + 1.0, index as f32]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_that_wait_at_joins_in_any_order_leave_room_for_what_they_wait_for() {
    const ITEMS: u64 = 600;
    let mut place = forked(ITEMS);
    place
        .add("[stages.ab]\nkind = \"beside\"\nfrom = [\"scans\", \"double\", \"plain\"]")
        .add("[stages.ba]\nkind = \"beside\"\nfrom = [\"scans\", \"plain\", \"double\"]")
        .add("[stages.fa]\nkind = \"filter\"\nfrom = [\"scans\", \"double\"]\nkeep = \"double[0] >= 0\"")
        .add("[stages.fb]\nkind = \"filter\"\nfrom = [\"scans\", \"plain\"]\nkeep = \"plain[0] >= 0\"")
        .add("[stages.twice]\nkind = \"beside\"\nfrom = [\"fa.scans\", \"fa.double\", \"fb.plain\"]")
        .add("[limits]\nmemory = \"64KiB\"")
        .sink("ab", "ab", "")
        .sink("ba", "ba", "")
        .sink("twice", "twice", "");
    Workplace::ended_with(place.run_plan(place.plan_with(kinds())), 0).await;
    let records = place.records(&["ab.jsonl", "ba.jsonl", "twice.jsonl"]);
    records.must_be(3, &items("scans", 0..ITEMS), &BTreeSet::new()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_later_row_carries_is_joined_and_two_filters_are_passed_by_what_passes_both() {
    const ITEMS: u64 = 100;
    let mut place = forked(ITEMS);
    place
        .add("[stages.parts]\nkind = \"scatter\"\nfrom = \"pixels\"")
        .add("[stages.all]\nkind = \"gather\"\nfrom = \"parts\"")
        .add("[stages.low]\nkind = \"filter\"\nfrom = \"double\"\nkeep = \"y[0] < 121\"")
        .add("[stages.high]\nkind = \"filter\"\nfrom = \"double\"\nkeep = \"y[0] > 21\"")
        // A gather gives no columns of before: they come by a way of their own, whatever the order.
        .add("[sinks.beside]\nkind = \"jsonl\"\nfrom = [\"number\", \"all\"]")
        .add("[sinks.before]\nkind = \"jsonl\"\nfrom = [\"number\", \"all\", \"plain\"]")
        .add("[sinks.middle]\nkind = \"jsonl\"\nfrom = [\"low\", \"high\"]");
    Workplace::ended_with(place.run_plan(place.plan_with(kinds())), 0).await;
    for file in ["beside.jsonl", "before.jsonl"] {
        assert_eq!(place.n_lines(file) as u64, ITEMS);
    }
    for record in &place.lines("beside.jsonl") {
        let index = record["index"].as_u64().unwrap();
        assert_eq!(first(&record["result"]["number"]), index as f64);
        assert_eq!(record["result"]["all"].as_array().unwrap().len() as u64, n_parts(index));
    }
    assert_eq!(place.indices("middle.jsonl"), (11..60).collect());
}
