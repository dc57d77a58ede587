//! Items that become many parts: every part of every item is in the records, in its order, whatever is dropped, fails or dies on the way,
//! and the item ends once.

use std::collections::BTreeSet;

use crate::common::number_stages::{NUMBER, SCATTER, Stage, index_of, n_parts};
use crate::common::{ONE_PIXEL_PER_BLOCK, Workplace};
use orchestra_launch::kind::{ItemError, Kinds};
use orchestra_testkit::models;

/// Each row becomes two parts.
const TWICE: Stage = Stage {
    name: "twice",
    parts: Some(|_| 2),
    work: |row, emit| (0..2).try_for_each(|half| emit(&[row[0], 10.0 * row[1] + half as f32])),
};

/// Refuses part 3 of item 13 and panics over part 1 of item 23.
const PICKY: Stage = Stage {
    name: "picky",
    parts: None,
    work: |row, emit| match (row[0] as u64, row[1] as u64) {
        (27, 7) => Err(ItemError::result("part 3 of item 13 is not wanted")),
        (47, 3) => panic!("part 1 of item 23"),
        _ => emit(row),
    },
};

fn kinds() -> Kinds {
    orchestra_launch::kinds().with_stage(SCATTER).with_stage(TWICE).with_stage(PICKY)
}

/// Pictures to parts to a model of small batches, so that parts of many items share them.
fn scattered(items: u64) -> Workplace {
    let mut place = Workplace::with_pictures(items);
    let model = models::affine(&place.models(), &[2]).unwrap();
    place
        .model("affine", model, "workers = 2")
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .add("[stages.parts]\nkind = \"scatter\"\nfrom = \"pixels\"")
        .infer("read", "parts", "affine", 4);
    place
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_of_which_a_part_fails_has_one_failure_and_no_record() {
    const ITEMS: u64 = 60;
    let mut place = scattered(ITEMS);
    place
        .add("[stages.picky]\nkind = \"picky\"\nfrom = \"read\"")
        .add("[stages.all]\nkind = \"gather\"\nfrom = \"picky\"")
        .sink("gathered", "all", "")
        .sink("each", "read", "")
        .devices(1);
    Workplace::ended_with(place.run_plan(place.plan_with(kinds())), 65).await;
    let failures = place.lines("failures.jsonl");
    let of = |index: u64| failures.iter().find(|f| f["index"] == index).unwrap();
    assert_eq!(failures.len(), 2, "{failures:?}");
    assert!(of(13)["error"].as_str().unwrap().contains("not wanted"), "{failures:?}");
    assert!(of(23)["error"].as_str().unwrap().contains("this is a bug"), "{failures:?}");
    assert!(failures.iter().all(|failure| failure["stage"] == "picky"));
    assert_eq!(
        place.indices("gathered.jsonl"),
        (0..ITEMS).filter(|index| ![13, 23].contains(index)).collect()
    );
    assert!(place.indices("each.jsonl").is_disjoint(&[13, 23].into()));
}

/// As [`SCATTER`], but for item 13, which it refuses, item 23, of which it announces none and makes one, and item 33, of which it announces
/// more than it makes.
const CARELESS: Stage = Stage {
    name: "careless",
    parts: Some(|pixels| match index_of(pixels) {
        23 => 0,
        33 => 7,
        index => n_parts(index) as usize,
    }),
    work: |pixels, emit| match index_of(pixels) {
        13 => Err(ItemError::result("item 13 is not wanted")),
        23 => emit(&[0.0, 0.0]),
        _ => (SCATTER.work)(pixels, emit),
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn a_split_that_two_stages_are_reached_through_ends_each_part_for_each_of_them() {
    const ITEMS: u64 = 100;
    let mut place = Workplace::with_pictures(ITEMS);
    let model = models::two_in_two_out(&place.models(), &[2]).unwrap();
    place
        .model("two", model, "workers = 1")
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .add("[stages.number]\nkind = \"number\"\nfrom = \"pixels\"")
        .add("[stages.parts]\nkind = \"careless\"\nfrom = \"pixels\"")
        .add("[stages.near]\nkind = \"gather\"\nfrom = \"parts\"")
        // Reached behind `number` and `parts`, while `near` is reached behind `parts` alone.
        .infer_of("mixed", "inputs = { a = \"number\", b = \"parts\" }", "two", 4)
        .add("[stages.far]\nkind = \"gather\"\nfrom = \"mixed\"")
        .sink("near", "near", "")
        .sink("far", "far", "")
        .devices(1);
    let kinds = kinds().with_stage(CARELESS).with_stage(NUMBER);
    Workplace::ended_with(place.run_plan(place.plan_with(kinds)), 65).await;
    let wrong: BTreeSet<u64> = [13, 23, 33].into();
    assert_eq!(place.indices("failures.jsonl"), wrong);
    for file in ["near.jsonl", "far.jsonl"] {
        assert_eq!(place.n_lines(file) as u64, ITEMS - 3);
        assert_eq!(place.indices(file), (0..ITEMS).filter(|index| !wrong.contains(index)).collect());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_part_are_read_beside_the_part_and_fail_with_it() {
    const ITEMS: u64 = 60;
    let mut place = scattered(ITEMS);
    let model = models::two_in_two_out(&place.models(), &[2]).unwrap();
    place
        .model("two", model, "workers = 1")
        .add("[stages.picky]\nkind = \"picky\"\nfrom = \"read\"")
        .add("[stages.halves]\nkind = \"twice\"\nfrom = \"picky\"")
        .infer_of("mixed", "inputs = { a = \"picky\", b = \"halves\" }", "two", 4)
        .add("[stages.inner]\nkind = \"gather\"\nfrom = \"mixed\"")
        .add("[stages.outer]\nkind = \"gather\"\nfrom = \"inner\"")
        .sink("gathered", "outer", "")
        .devices(1);
    Workplace::ended_with(place.run_plan(place.plan_with(kinds())), 65).await;
    assert_eq!(place.n_lines("failures.jsonl"), 2);
    assert_eq!(place.indices("failures.jsonl"), [13, 23].into());
    for record in &place.lines("gathered.jsonl") {
        let index = record["index"].as_u64().unwrap();
        let parts = record["result"].as_array().unwrap();
        assert_eq!(parts.len() as u64, n_parts(index));
        assert!(parts.iter().all(|part| part.as_array().unwrap().len() == 2));
    }
    assert_eq!(place.n_lines("gathered.jsonl") as u64, ITEMS - 2);
}
