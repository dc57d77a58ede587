//! Rows of a whole run in one: a result that grows with the items, stages that read it, and what a reduce cannot do. That deaths and restarts change no bit
//! of it, `kills.rs`, `reduce_rows_tests.rs` of the runtime and the tests of the kind show.

use crate::common::{AS_IT_IS, Workplace};
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

#[tokio::test(flavor = "multi_thread")]
async fn stages_behind_a_reduce_work_on_each_of_its_rows_once_all_items_have_ended() {
    let mut place = Workplace::with_pictures(20);
    place
        .image("pixels", "scans", AS_IT_IS)
        .add(
            "[stages.number]\nkind = \"reduce\"\nfrom = \"pixels\"\nop = \"count\"\n\
             [stages.twice]\nkind = \"select\"\nfrom = \"number\"\ncolumns = { n = \"items * 2\" }\n\
             [stages.sum]\nkind = \"reduce\"\nfrom = \"twice\"\nop = \"sum\"\n\
             [stages.less]\nkind = \"select\"\nfrom = \"sum\"\ncolumns = { n = \"sum - 1\" }\n\
             [sinks.both]\nkind = \"jsonl\"\nfrom = [\"number\", \"twice\"]",
        )
        .sink("twice", "twice", "")
        .sink("number", "number", "")
        .sink("less", "less", "")
        .devices(1);
    let values = |place: &Workplace, file: &str, column: &str| {
        let lines = place.lines(file);
        let value = |line: &Value| (line["index"].as_u64().unwrap(), line["result"][column].clone());
        lines.iter().map(value).collect::<Vec<_>>()
    };
    for (more, twice, sums) in [(0, &[40][..], &[39][..]), (0, &[40], &[39]), (5, &[40, 50], &[39, 89])] {
        if more > 0 {
            write_pictures(&place.path("images/more"), more, Kind::Png).unwrap();
        }
        let outcome = place.run().await;
        Workplace::must_end_with(&outcome, 0);
        let numbered = |all: &[u64]| (0..).zip(all.iter().map(|n| Value::from(*n))).collect::<Vec<_>>();
        assert_eq!(values(&place, "twice.jsonl", "n"), numbered(twice));
        assert_eq!(values(&place, "less.jsonl", "n"), numbered(sums), "each row was reduced once");
        let halves: Vec<u64> = twice.iter().map(|n| n / 2).collect();
        assert_eq!(values(&place, "number.jsonl", "items").len(), halves.len());
        let read: Vec<u64> =
            place.lines("both.jsonl").iter().map(|line| count(line, "number.items")).collect();
        assert_eq!(read, halves, "what passes the stage is that of its row");
        let (line, named) = (&place.lines("twice.jsonl")[0], Value::from("number"));
        assert_eq!((&line["item"], &line["source"]), (&named, &named));
    }
}

#[test]
fn what_a_reduce_cannot_do_is_said_before_the_run() {
    let said = |stages: &str, sinks: &str| {
        let mut place = Workplace::with_pictures(1);
        place.image("pixels", "scans", AS_IT_IS).add(stages).add(sinks);
        place.try_plan(orchestra_launch::kinds()).1
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
    let behind =
        "\n[stages.other]\nkind = \"filter\"\nfrom = [\"pixels\", \"total\"]\nkeep = \"total.rows > 1\"";
    let text = said(&(stage("op = \"count\"") + behind), "[sinks.all]\nkind = \"jsonl\"\nfrom = \"other\"");
    assert!(
        text.contains("the inputs of stage `other` do not belong together")
            && text.contains("rows of `total` are made when all items of `scans` have ended")
            && text.contains("a second pass"),
        "{text}"
    );
    let text = said(&stage("op = \"sum\""), "[sinks.all]\nkind = \"jsonl\"\nfrom = [\"total\", \"pixels\"]");
    assert!(text.contains("sink `all` cannot read from `total`"), "{text}");
    let text = said(&stage("op = \"sum\""), &format!("{sink}\nordered = true"));
    assert!(text.contains("`ordered` of sink `all` has no effect"), "{text}");
}
