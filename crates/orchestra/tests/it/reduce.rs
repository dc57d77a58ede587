//! Rows of a whole run in one: whatever dies, fails or is stopped, the result is bit for bit that of a run that nothing happened to, and what
//! the records of the items say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::common::number_stages::{SCATTER, Stage, n_parts};
use crate::common::{AS_IT_IS, Workplace, numbers, until};
use orchestra::kind::Kinds;
use orchestra::{Earlier, Plan, PlanOptions, RenderStyle, StartOptions};
use orchestra_testkit::images::{Kind, write_bad_pictures, write_pictures};
use orchestra_testkit::models;
use serde_json::Value;

/// Of a row `2 index + 1, 2 part + 1`, of which the first is the larger, that of every other part turned round.
const TURNED: Stage = Stage {
    name: "turned",
    parts: None,
    work: |row, emit| emit(&if is_even(row[1]) { [row[0], row[1]] } else { [row[1], row[0]] }),
};

/// Whether `2 part + 1` is of an even part.
fn is_even(number: f32) -> bool {
    (number as u32 / 2).is_multiple_of(2)
}

fn kinds() -> Kinds {
    orchestra::kinds().with_stage(SCATTER).with_stage(TURNED)
}

fn plan(place: &Workplace) -> Plan {
    place.plan_with(kinds())
}

/// The files of results, whole.
fn results(place: &Workplace, sinks: &[&str]) -> BTreeMap<String, String> {
    let text = |sink: &&str| fs::read_to_string(place.out().join(format!("{sink}.jsonl"))).unwrap();
    sinks.iter().map(|sink| ((*sink).to_owned(), text(sink))).collect()
}

fn count(line: &Value, column: &str) -> u64 {
    line["result"][column].as_u64().unwrap()
}

/// Pictures that pass the gate and become rows `2 index + 1, 2 part + 1`, some that are none, and all forms of a reduce of those rows.
fn all_forms(items: u64) -> Workplace {
    let mut place = Workplace::with_pictures(items);
    write_bad_pictures(&place.path("images/bad")).unwrap();
    let model = models::affine(&place.models(), &[2]).unwrap();
    place
        .model("affine", model, "workers = 2")
        .gated("slow", 2)
        .image("pixels", "scans", AS_IT_IS)
        .infer("seen", "pixels", "slow", 4)
        .add("[stages.parts]\nkind = \"scatter\"\nfrom = \"seen\"")
        .infer("read", "parts", "affine", 4)
        .add("[stages.turned]\nkind = \"turned\"\nfrom = \"read\"")
        .add("[stages.class]\nkind = \"classify\"\nfrom = \"turned\"\nlabels = \"labels.txt\"")
        .sink("rows", "read", "")
        // What is killed with a worker has passed the gate, and would pass it again: with many batches at once there, too few others could.
        .devices(1);
    fs::write(place.path("labels.txt"), "even\nodd\n").unwrap();
    for (name, more) in [
        ("total", "op = \"sum\""),
        ("mean", "op = \"mean\"\nover = \"elements\"\nby = \"class\""),
        ("least", "op = \"min\"\nby_folder = true"),
        ("bins", "op = \"histogram\"\nrange = [1, 11]\nbins = 5"),
        ("number", "op = \"count\""),
        ("every", "op = \"concat\""),
        ("most", "op = \"max\"\nby = \"class\""),
        ("spread", "op = \"histogram\"\nrange = [1, 11]\nbins = 5\nby = \"class\""),
        ("joined", "op = \"concat\"\njoin = true\nby = \"class\""),
        ("of_folder", "op = \"concat\"\njoin = true\nby_folder = true"),
    ] {
        place
            .add(&format!("[stages.{name}]\nkind = \"reduce\"\nfrom = \"read\"\n{more}"))
            .sink(name, name, "");
    }
    place
}

const FORMS: [&str; 10] =
    ["total", "mean", "least", "bins", "number", "every", "most", "spread", "joined", "of_folder"];

/// How many of these rows have this number of theirs in each of five bins from 1 to 11, of which the last holds its end.
fn in_bins<'a>(rows: impl Iterator<Item = &'a [f32; 2]> + Clone, at: usize) -> [f32; 5] {
    let bin = |row: &[f32; 2]| (row[at] as u32).checked_sub(1).map(|v| (v / 2).min(4));
    let inside = rows.filter(|row| row[at] <= 11.0);
    [0, 1, 2, 3, 4].map(|n| inside.clone().filter(|row| bin(row) == Some(n)).count() as f32)
}

/// Compares all results with what is computed of the records of the rows.
fn must_be_of_the_rows(place: &Workplace, items: u64) {
    let rows: Vec<(u64, [f32; 2])> = place
        .lines("rows.jsonl")
        .iter()
        .map(|line| (line["index"].as_u64().unwrap(), numbers(line, "y").try_into().unwrap()))
        .collect();
    let n_rows: u64 = (0..items).map(n_parts).sum();
    assert_eq!(rows.len() as u64, n_rows);
    let n_items = rows.iter().map(|(index, _)| index).collect::<BTreeSet<_>>().len() as u64;
    let sum = |at: usize| rows.iter().map(|(_, row)| f64::from(row[at])).sum::<f64>() as f32;
    let [total] = place.lines("total.jsonl").try_into().unwrap();
    assert_eq!(
        (&total["item"], &total["index"], &total["source"]),
        (&"total".into(), &0.into(), &"total".into())
    );
    assert_eq!(numbers(&total, "sum"), [sum(0), sum(1)]);
    for line in [&total, &place.lines("number.jsonl")[0], &place.lines("bins.jsonl")[0]] {
        assert_eq!((count(line, "rows"), count(line, "items")), (n_rows, n_items));
    }
    let of_class = |line: &Value| {
        let are_even = line["item"] == "even";
        let of_class = rows.iter().map(|(_, row)| row).filter(|row| is_even(row[1]) == are_even);
        of_class.copied().collect::<Vec<[f32; 2]>>()
    };
    for name in ["mean", "most", "spread", "joined"] {
        assert_eq!(place.n_lines(&format!("{name}.jsonl")), 2, "one for each class");
    }
    for line in place.lines("mean.jsonl") {
        let rows = of_class(&line);
        let sum: f64 = rows.iter().map(|row| f64::from(row[0]) + f64::from(row[1])).sum();
        assert_eq!(numbers(&line, "mean"), [(sum / (2.0 * rows.len() as f64)) as f32], "{line}");
        assert_eq!(count(&line, "rows"), rows.len() as u64);
    }
    for line in place.lines("most.jsonl") {
        let most = of_class(&line).into_iter().reduce(|a, b| [a[0].max(b[0]), a[1].max(b[1])]);
        assert_eq!(numbers(&line, "max"), most.unwrap(), "{line}");
    }
    for line in place.lines("spread.jsonl") {
        let rows = of_class(&line);
        assert_eq!(numbers(&line, "histogram"), [in_bins(rows.iter(), 0), in_bins(rows.iter(), 1)].concat());
    }
    assert_eq!(place.lines("least.jsonl").len(), 1, "what is no picture is in no folder of the result");
    let bins = numbers(&place.lines("bins.jsonl")[0], "histogram");
    assert_eq!(bins, [0, 1].map(|at| in_bins(rows.iter().map(|(_, row)| row), at)).concat());
    let every: Vec<(u64, [f32; 2])> = place
        .lines("every.jsonl")
        .iter()
        .map(|line| (line["index"].as_u64().unwrap(), numbers(line, "y").try_into().unwrap()))
        .collect();
    let mut sorted = rows;
    sorted.sort_by(|(a, x), (b, y)| a.cmp(b).then(x[1].partial_cmp(&y[1]).unwrap()));
    assert_eq!(every, sorted, "in the order of the items and of their parts");
    let flat = |rows: &mut dyn Iterator<Item = [f32; 2]>| rows.flatten().collect::<Vec<f32>>();
    for line in place.lines("joined.jsonl") {
        let are_even = line["item"] == "even";
        let mut of_class = sorted.iter().map(|(_, row)| *row).filter(|row| is_even(row[1]) == are_even);
        assert_eq!(numbers(&line, "y"), flat(&mut of_class), "in that order, too");
    }
    let [of_folder] = place.lines("of_folder.jsonl").try_into().unwrap();
    assert_eq!(numbers(&of_folder, "y"), flat(&mut sorted.iter().map(|(_, row)| *row)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_that_of_its_rows_also_where_workers_die_items_fail_and_the_run_is_cut_off() {
    const ITEMS: u64 = 900;
    let place = all_forms(ITEMS);
    let outcome = place.run_plan(plan(&place)).await;
    Workplace::must_end_with(&outcome, 65);
    must_be_of_the_rows(&place, ITEMS);
    let expected = results(&place, &FORMS);

    let mut options = StartOptions { earlier: Earlier::Discard, ..place.options() };
    for round in 1..=3 {
        // No round can come to the end: all three together let less than all items pass.
        place.gate().close_after(250).unwrap();
        let run =
            crate::common::bounded("the run starts", orchestra::start(plan(&place), options)).await.unwrap();
        place.watch(&run);
        let meter = run.meter();
        assert!(place.kill_while_it_runs(&run, 2, 20).await > 0 || round > 1, "no worker was killed");
        until("some items are done", || meter.stats().done.get() > round * 150).await;
        run.stop_handle().abort();
        let outcome = run.wait().await;
        assert_eq!(outcome.exit_code, 130, "{:?}", outcome.problems);
        assert_eq!(place.n_lines("total.jsonl"), 0, "there is no result before the end");
        options = place.options();
    }
    place.gate().open().unwrap();
    Workplace::must_end_with(&place.run_plan(plan(&place)).await, 65);
    must_be_of_the_rows(&place, ITEMS);
    assert_eq!(results(&place, &FORMS), expected);

    // Nothing is left to do, and nothing is done.
    Workplace::must_end_with(&place.run_plan(plan(&place)).await, 65);
    assert_eq!(results(&place, &FORMS), expected);
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
