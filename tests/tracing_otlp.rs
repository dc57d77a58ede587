//! The real command sends its traces over the network to a collector, which is a server of another make: the run's tree, the links, what
//! the worker processes did, and the attempts at tasks; and a collector that fails in one of the ways in which
//! collectors do costs a run its traces and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use crate::collectors::{Collector, Do};
use crate::common::{Ended, Workplace, python, repository};
use crate::spans::{Link, Span, Trace, check_attempts, check_items, check_run};
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue as Any, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span as WireSpan;
use orchestra_testkit::records::items;
use orchestra_testkit::workflow_file::WorkflowFile;
use rustix::process::Signal;
use serde_json::Value;

/// Images of the example.
const IMAGES: u64 = 400;

/// Starts the example with these settings and variables, to its end, which waits for all spans on the busiest machine.
fn digits(place: &Workplace, arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
    let file = repository().join("examples/digits/workflow.toml");
    let out = place.out();
    let mut all = vec!["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
    all.extend(["--set", "telemetry.flush_timeout=10m"]);
    all.extend(arguments);
    place.start_command_with(&all, variables).wait()
}

/// The run's id, as `run.json` says.
fn run_id(place: &Workplace) -> String {
    place.report()["run_id"].as_str().unwrap().to_owned()
}

/// Batches that were sent, likewise.
fn batches(place: &Workplace) -> u64 {
    let report = place.report();
    report["devices"].as_array().unwrap().iter().map(|device| device["batches"].as_u64().unwrap()).sum()
}

/// A run of two commands, one of which fails in both of its attempts.
fn attempts(place: &Workplace, otlp: &str) -> Ended {
    let tables = "version = 1\n[tasks.train]\ncommand = \"echo loss=0.{n}; test {n} = 1 || exit 3\"\nmatrix = { n = [1, 2] }\nretries = 1\n\
                  metrics = [{ name = \"loss\", regex = \"loss=([0-9.]+)\" }]\n";
    place.write(tables);
    place.run(&["--otlp", otlp, "--set", "telemetry.flush_timeout=10m"]).exited(65)
}

/// The run says nothing of lost spans.
#[track_caller]
fn complete(ended: &Ended) {
    assert!(!ended.stderr.contains("traces are incomplete"), "{}", ended.stderr);
}

/// All that a collector got, as traces: the run's own, and those of items.
struct Traces {
    run: Trace,
    items: Vec<Trace>,
}

impl Traces {
    fn of(collector: &Collector) -> Self {
        let mut by_id: BTreeMap<String, Vec<Span>> = BTreeMap::new();
        for span in collector.spans().iter().map(span) {
            by_id.entry(span.trace.clone()).or_default().push(span);
        }
        let has = |trace: &Trace, name: &str| !trace.named(name).is_empty();
        let mut traces: Vec<Trace> = by_id.into_values().map(|spans| Trace { spans }).collect();
        let run = traces.iter().position(|trace| has(trace, "workflow.run")).expect("no span of the run");
        let run = traces.swap_remove(run);
        traces.retain(|trace| has(trace, "item"));
        Self { run, items: traces }
    }
}

pub fn span(span: &WireSpan) -> Span {
    let link = |link: &opentelemetry_proto::tonic::trace::v1::span::Link| Link {
        trace: hex(&link.trace_id),
        span: hex(&link.span_id),
        attributes: attributes(&link.attributes),
    };
    Span {
        name: span.name.clone(),
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        start: span.start_time_unix_nano,
        end: span.end_time_unix_nano,
        attributes: attributes(&span.attributes),
        links: span.links.iter().map(link).collect(),
        events: span.events.iter().map(|event| (event.name.clone(), attributes(&event.attributes))).collect(),
        failed: span.status.as_ref().is_some_and(|status| status.code == 2),
    }
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(of: &[KeyValue]) -> BTreeMap<String, Value> {
    let plain = |value: &Option<Any>| match value.as_ref().and_then(|any| any.value.clone()) {
        Some(AnyValue::StringValue(text)) => Value::from(text),
        Some(AnyValue::BoolValue(flag)) => Value::from(flag),
        Some(AnyValue::IntValue(number)) => Value::from(number),
        Some(AnyValue::DoubleValue(number)) => Value::from(number),
        other => panic!("{other:?} is no attribute of ours"),
    };
    of.iter().map(|attribute| (attribute.key.clone(), plain(&attribute.value))).collect()
}

/// The spans that were lost, and why, as the run says in its last words.
#[track_caller]
fn must_be_incomplete(ended: &Ended, why: &str) {
    ended.must_exit(0).must_say(&["warning: traces are incomplete: of ", why]);
}

#[test]
fn over_each_protocol_a_run_is_one_trace_and_its_items_are_linked_with_its_batches() {
    for collector in Collector::all(&[]) {
        let place = Workplace::new();
        let protocol = format!("telemetry.protocol={}", collector.protocol);
        let arguments = ["--otlp", &collector.url(), "--set", &protocol, "--set", "telemetry.slow=0s"];
        let ended = digits(&place, &arguments, &[]).exited(0);
        complete(&ended);
        let traces = Traces::of(&collector);
        check_run(&traces.run, &run_id(&place), batches(&place), IMAGES);
        assert_eq!(traces.items.len() as u64, IMAGES);
        check_items(&traces.run, &traces.items);
        place.nothing_is_left();
    }
}

#[test]
fn batches_of_a_stage_in_python_are_spans_with_what_its_workers_did() {
    const ROWS: u64 = 40;
    let Some(python) = python() else { return };
    let collector = Collector::http(&[]);
    let place = Workplace::new();
    let keys = format!("script = 'stage.py'\npython = {python:?}\nbatch = {{ max = 4 }}");
    let flow = WorkflowFile::new()
        .source("x", "range", format_args!("stop = {ROWS}"))
        .stage("y", "python", "x", keys)
        .results("y")
        .table("telemetry", "flush_timeout = '10m'");
    place.write(flow);
    let script = r#"
import os
import numpy as np
import orchestra

@orchestra.stage(batch=4, outputs={"pid": ("int64", [])})
def y(n):
    return {"pid": np.full(len(n), os.getpid())}
"#;
    std::fs::write(place.path("stage.py"), script).unwrap();
    let ended = place.run(&["--otlp", &collector.url()]).exited(0);
    complete(&ended);
    let run = Traces::of(&collector).run;
    check_run(&run, &run_id(&place), batches(&place), ROWS);
    let mut pids = BTreeSet::new();
    for batch in run.named("batch") {
        let text = |key: &str| batch.text(&format!("orchestra.{key}"));
        assert_eq!(
            ["stage", "pipeline", "model", "device", "batch.outcome"].map(text),
            ["y", "x", "y/stage.py", "cpu", "done"]
        );
        assert!((1..=4).contains(&batch.number("orchestra.batch.size")), "{batch:#?}");
        let [worker] = run.below(batch)[..] else { panic!("{batch:#?}") };
        pids.insert(worker.number("process.pid"));
    }
    let records = place.must_hold(&items("x", 0..ROWS), &BTreeSet::new());
    let pid = |record: &BTreeMap<String, Value>| record["results.jsonl"]["result"]["pid"].as_u64().unwrap();
    assert_eq!(records.done.values().map(pid).collect::<BTreeSet<u64>>(), pids);
    place.nothing_is_left();
}

#[test]
fn each_attempt_at_a_task_is_a_span_below_the_run() {
    let collector = Collector::http(&[]);
    let place = Workplace::new();
    let ended = attempts(&place, &collector.url());
    complete(&ended);
    let run = Traces::of(&collector).run;
    check_run_is_closed(&run);
    check_attempts(&run);
}

/// Each span has ended, no earlier than it began, and its parent is there.
fn check_run_is_closed(trace: &Trace) {
    let root = trace.only("workflow.run");
    for span in &trace.spans {
        assert!(span.start <= span.end && span.end > 0, "{span:#?}");
        let known = trace.spans.iter().any(|other| other.id == span.parent);
        assert!(known || span.id == root.id, "no parent: {span:#?}");
    }
}

#[test]
fn a_collector_that_never_answers_costs_the_traces_and_the_end_is_bounded() {
    for collector in Collector::all(&[Do::Ignore]) {
        let place = Workplace::new();
        let protocol = format!("telemetry.protocol={}", collector.protocol);
        let arguments =
            ["--otlp", &collector.url(), "--set", &protocol, "--set", "telemetry.flush_timeout=3s"];
        // It is the end of the run that cuts it short.
        let ended = digits(&place, &arguments, &[("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")]);
        must_be_incomplete(&ended, "were still waiting when the time for the end of the run had passed");
        place.must_hold(&items("scans", 0..IMAGES), &Default::default());
    }
}

#[test]
fn runs_under_faults_are_traced_each_with_an_id_of_its_own() {
    let collector = Collector::http(&[]);
    let place = Workplace::with_pictures(40);
    let url = collector.url();
    let chaos = ["--otlp", &url, "--items", "40", "--runs", "2", "--set", "telemetry.slow=0s"];
    place.on_file("chaos", &chaos).must_exit(0);
    let spans: Vec<Span> = collector.spans().iter().map(span).collect();
    let ids = |name: &str| -> BTreeSet<String> {
        let named = spans.iter().filter(|span| span.name == name);
        named.map(|span| span.attributes["orchestra.run.id"].to_string()).collect()
    };
    assert_eq!(ids("workflow.run").len(), 2);
    assert_eq!(ids("item"), ids("workflow.run"));
}

#[test]
fn the_log_names_the_trace_of_each_batch() {
    let collector = Collector::http(&[]);
    let place = Workplace::with_pictures(40);
    let url = collector.url();
    let (more, debug) = (["--otlp", &url, "--log-files", "json"], [("RUST_LOG", "orchestra_runtime=debug")]);
    place.start_on_file("run", &more, &debug).wait().must_exit(0);
    let log = std::fs::read_to_string(place.out().join("logs/scans.log")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let spans = collector.spans();
    let batches: Vec<String> = spans.iter().filter(|s| s.name == "batch").map(|s| hex(&s.trace_id)).collect();
    for said in ["batch sent", "batch done"] {
        let traces = lines.iter().filter(|line| line["message"] == said).map(|line| &line["trace_id"]);
        assert_eq!(traces.clone().count(), batches.len(), "{said}");
        assert!(traces.into_iter().all(|trace| batches.iter().any(|id| trace == id)), "{said}");
    }
}

#[test]
fn signals_cut_the_last_requests_short_when_the_run_is_over() {
    let collector = Collector::http(&[Do::Ignore]);
    let place = Workplace::with_pictures(20);
    let mut run = place.start(&["--otlp", &collector.url()]);
    let stderr = run.stderr();
    let says = |what: &str| std::fs::read_to_string(&stderr).unwrap().contains(what);
    run.must_reach("the run is over", || says("20 items read"));
    run.signal(Signal::INT);
    run.must_reach("the first signal is noticed", || says("has one more second"));
    run.signal(Signal::INT);
    run.wait().must_exit(0).must_say(&["stopped before all of them were sent"]);
    place.holds_exactly(20);
    place.nothing_is_left();
}
