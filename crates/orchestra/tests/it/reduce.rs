//! Rows of a whole run in one: a result that grows with the items, and what a reduce cannot do. That deaths and restarts change no bit of it, `kills.rs`,
//! `reduce_rows_tests.rs` of the runtime and the tests of the kind show.

use crate::common::{AS_IT_IS, Workplace};
use orchestra::{PlanOptions, RenderStyle};
use orchestra_testkit::images::{Kind, write_pictures};
use serde_json::Value;

fn count(line: &Value, column: &str) -> u64 {
    line["result"][column].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_goes_on_with_new_items_writes_the_result_of_all() {
    let mut place = Workplace::with_pictures(20);
    place
        .image("pixels", "scans", AS_IT_IS)
        .add("[stages.number]\nkind = \"reduce\"\nfrom = \"pixels\"\nop = \"count\"")
        .sink("number", "number", "")
        .devices(1);
    Workplace::must_end_with(&place.run().await, 0);
    write_pictures(&place.path("images/more"), 5, Kind::Png).unwrap();
    Workplace::must_end_with(&place.run().await, 0);
    let counted: Vec<u64> = place.lines("number.jsonl").iter().map(|line| count(line, "items")).collect();
    assert_eq!(counted, [20, 25], "the last row is of all");
}

#[test]
fn what_a_reduce_cannot_do_is_said_before_the_run() {
    let said = |stages: &str, sinks: &str| {
        let mut place = Workplace::with_pictures(1);
        place.image("pixels", "scans", AS_IT_IS).add(stages).add(sinks);
        place.write_workflow();
        let options = PlanOptions::default();
        let file = place.path("workflow.toml");
        let (_, diagnostics) = orchestra::plan_file(&file, &options, &orchestra::machine()).unwrap();
        diagnostics.render(RenderStyle::Plain)
    };
    let stage = |more: &str| format!("[stages.total]\nkind = \"reduce\"\nfrom = \"pixels\"\n{more}");
    let sink = "[sinks.all]\nkind = \"jsonl\"\nfrom = \"total\"";
    for (more, expected) in [
        ("", "op = \"mean\""),
        ("op = \"median\"", "median"),
        ("op = \"count\"\nover = \"rows\"", "has no effect"),
        ("op = \"concat\"\nby_folder = true", "has no effect"),
        ("op = \"sum\"\nbins = 3", "has no effect"),
        ("op = \"histogram\"\nbins = 3", "range = [0.0, 1.0]"),
        ("op = \"histogram\"\nbins = 3\nrange = [1, 1]", "smaller one first"),
        ("op = \"histogram\"\nbins = 65536\nrange = [0, 1]", "65538 numbers for each of 1024 elements"),
        ("op = \"sum\"\nby = \"pixels\"", "one integer per row"),
        ("op = \"sum\"\nby = \"pixels\"\nby_folder = true", "a row has one key"),
    ] {
        let text = said(&stage(more), sink);
        assert!(text.contains(expected), "{more}: {text}");
    }
    let behind = "\n[stages.again]\nkind = \"reduce\"\nfrom = \"total\"\nop = \"count\"";
    let text = said(&(stage("op = \"sum\"") + behind), "[sinks.all]\nkind = \"jsonl\"\nfrom = \"again\"");
    assert!(
        text.contains("stage `again` cannot read from `total`") && text.contains("only sinks do"),
        "{text}"
    );
    let text = said(&stage("op = \"sum\""), "[sinks.all]\nkind = \"jsonl\"\nfrom = [\"total\", \"pixels\"]");
    assert!(text.contains("sink `all` cannot read from `total`"), "{text}");
    let text = said(&stage("op = \"sum\""), &format!("{sink}\nordered = true"));
    assert!(text.contains("`ordered` of sink `all` has no effect"), "{text}");
}
