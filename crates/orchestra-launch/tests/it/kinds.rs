//! A kind of stage that orchestra does not have, as docs/guide/kinds.md shows it: one object, registered by the program that embeds the
//! library. What it does to a row reaches the records, and its keys are checked as those of any other kind.

#[path = "common/invert.rs"]
mod invert;
#[path = "common/listed.rs"]
mod listed;
#[path = "common/replaced.rs"]
mod replaced;

use crate::common::{ONE_PIXEL_PER_BLOCK, Workplace, numbers, pixels};
use orchestra_launch::kind::{KindSettings, StageKind as _, Typed};
use orchestra_testkit::records::items;

use invert::Invert;
use listed::Listed;
use replaced::Replaced;

#[test]
fn the_guide_shows_this_code() {
    let without_blanks = |text: &str| text.split_whitespace().collect::<String>();
    // A program uses the library, which hands the same on.
    let here = without_blanks(&include_str!("common/invert.rs").replace("orchestra_launch::", "orchestra::"));
    let guide = include_str!("../../../../docs/guide/kinds.md");
    let blocks = guide.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    // How a program registers the kind, the last block, is in the other tests.
    let of_kind: Vec<&str> = blocks.filter(|block| !block.starts_with("let ")).collect();
    assert!(of_kind.len() >= 3, "{of_kind:?}");
    for block in of_kind {
        for part in block.split("\n\n") {
            assert!(here.contains(&without_blanks(part)), "not in this file:\n{part}");
        }
    }
}

#[test]
fn settings_of_another_version_make_no_map() {
    let other = KindSettings { kind: "invert".into(), settings: vec![] };
    assert!(Typed::<Invert>::kind().map_from_wire(&other).is_none());
}

fn workflow(place: &mut Workplace, more: &str) {
    place
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .add(&format!("[stages.inverted]\nkind = \"invert\"\nfrom = \"pixels\"\n{more}"))
        .sink("results", "inverted", "")
        .devices(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_of_the_host_program_works_on_rows_without_a_model() {
    let mut place = Workplace::with_pictures(40);
    workflow(&mut place, "below = 255");
    let plan = place.plan_with(orchestra_launch::kinds().with_typed_stage::<Invert>());
    Workplace::ended_with(place.run_plan(plan), 0).await;
    let records = place.records(&["results.jsonl"]);
    records.must_be(1, &items("scans", 0..40), &std::collections::BTreeSet::new()).unwrap();
    for (key, of_item) in &records.done {
        let expected: Vec<f32> = pixels(key.index).iter().map(|pixel| 255.0 - pixel).collect();
        assert_eq!(numbers(&of_item["results.jsonl"], "pixels"), expected, "{key}");
    }
}

/// The same kinds as the worker program has, in which `Replaced` makes no map again.
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_replaces_another_does_so_in_the_plan_and_in_loader_processes() {
    let mut place = Workplace::with_pictures(5);
    workflow(&mut place, "below = 255");
    let kinds = orchestra_launch::kinds().with_stage(Replaced).with_typed_stage::<Invert>();
    assert!(kinds.stage("invert").unwrap().keys().iter().any(|key| key.name == "below"));
    let outcome = Workplace::ended_with(place.run_plan(place.plan_with(kinds)), 0).await;
    assert_eq!(outcome.report.items.done, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_that_gives_a_list_runs_behind_the_loader_although_it_could_be_made_again_there() {
    let mut place = Workplace::with_pictures(5);
    place
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .add("[stages.rows]\nkind = \"listed\"\nfrom = \"pixels\"")
        .sink("results", "rows", "")
        .devices(1);
    Workplace::ended_with(
        place.run_plan(place.plan_with(orchestra_launch::kinds().with_typed_stage::<Listed>())),
        0,
    )
    .await;
    let lines = place.lines("results.jsonl");
    assert_eq!(lines.len(), 5);
    for line in lines {
        let row = serde_json::json!({ "result": line["result"][0] });
        let index = line["index"].as_u64().unwrap();
        assert_eq!(numbers(&row, "numbers"), pixels(index), "{line}");
    }
}

#[test]
fn a_replaced_kind_is_named_once_to_the_user() {
    let mut place = Workplace::with_pictures(1);
    workflow(&mut place, "");
    place.set("\"invert\"", "\"zebra\"");
    let text = place.refused(orchestra_launch::kinds().with_stage(Replaced).with_typed_stage::<Invert>());
    assert_eq!(text.matches("`invert`").count(), 1, "{text}");
}

#[test]
fn keys_of_a_kind_of_the_host_program_are_checked_like_any_others() {
    let mut place = Workplace::with_pictures(1);
    workflow(&mut place, "belw = 3");
    let text = place.refused(orchestra_launch::kinds().with_typed_stage::<Invert>());
    assert!(text.contains("stage `inverted` has no key `belw`") && text.contains("`below`"), "{text}");
    let text = place.refused(orchestra_launch::kinds());
    assert!(text.contains("unknown kind `invert`") && text.contains("`classify`"), "{text}");
}

/// `below` stands in `settings!` of `invert` and nowhere else.
#[test]
fn a_key_that_is_declared_once_is_in_schema_and_reference_and_part_of_what_a_run_is() {
    let kinds = orchestra_launch::kinds().with_typed_stage::<Invert>();
    let schema = orchestra_launch::workflow_schema(&kinds);
    let below = &schema["definitions"]["stages.invert"]["properties"]["below"];
    assert_eq!(below["description"], "what the numbers are taken from\n\nDefault: 1");
    let key = kinds.stage("invert").unwrap().keys()[0];
    assert_eq!((key.name, key.default, key.help), ("below", "1", "what the numbers are taken from"));

    let run = |keys: &str| {
        let mut place = Workplace::with_pictures(1);
        workflow(&mut place, keys);
        let fingerprint = place.plan_with(kinds.clone()).fingerprint;
        fingerprint.into_iter().filter(|(name, _)| name.contains("inverted")).collect::<Vec<_>>()
    };
    assert_eq!(run("").len(), 1);
    assert_eq!(run(""), run("below = 1.0"));
    assert_ne!(run(""), run("below = 2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_without_a_model_needs_no_onnx_runtime() {
    let mut place = Workplace::with_pictures(5);
    workflow(&mut place, "");
    let plan = place.plan_with(orchestra_launch::kinds().with_typed_stage::<Invert>());
    let library = orchestra_launch::runtime_library(
        &plan,
        Some("/no/such/library.so".into()),
        true,
        &mut orchestra_launch::Silent,
    );
    assert!(library.unwrap().is_none(), "nothing is looked for");
}
