//! Spans as a test sees them, wherever they come from, and what must hold of those of a run. It starts nothing and connects to nothing.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The phases of a batch inside a worker.
const PHASES: [&str; 4] = ["worker.queue", "worker.copy_in", "worker.compute", "worker.copy_out"];

/// What is below an item that went through one stage.
const STEPS: [&str; 7] =
    ["item.read", "item.decode", "item.row", "item.queue", "item.infer", "item.post", "item.write"];

#[derive(Debug)]
pub struct Trace {
    /// Its spans, in no order.
    pub spans: Vec<Span>,
}

impl Trace {
    pub fn named(&self, name: &str) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.name == name).collect()
    }

    #[track_caller]
    pub fn only(&self, name: &str) -> &Span {
        match self.named(name)[..] {
            [one] => one,
            ref other => panic!("{} spans `{name}`", other.len()),
        }
    }

    /// The spans below one, in the order of their starts.
    pub fn below(&self, parent: &Span) -> Vec<&Span> {
        let mut below: Vec<&Span> = self.spans.iter().filter(|span| span.parent == parent.id).collect();
        below.sort_by_key(|span| span.start);
        below
    }
}

#[derive(Debug, Clone)]
pub struct Span {
    pub name: String,
    /// Hexadecimal, as are all ids.
    pub trace: String,
    pub id: String,
    /// Empty at a root.
    pub parent: String,
    /// Nanoseconds.
    pub start: u64,
    pub end: u64,
    pub attributes: BTreeMap<String, Value>,
    pub links: Vec<Link>,
    /// Names and attributes.
    pub events: Vec<(String, BTreeMap<String, Value>)>,
    /// Whether its status is error.
    pub failed: bool,
}

#[derive(Debug, Clone)]
pub struct Link {
    pub trace: String,
    pub span: String,
    pub attributes: BTreeMap<String, Value>,
}

impl Span {
    #[track_caller]
    pub fn text(&self, key: &str) -> &str {
        self.attributes
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_else(|| panic!("`{key}` is no text: {self:#?}"))
    }

    /// An attribute that is a whole number.
    #[track_caller]
    pub fn number(&self, key: &str) -> u64 {
        self.attributes
            .get(key)
            .and_then(Value::as_u64)
            .unwrap_or_else(|| panic!("`{key}` is no number: {self:#?}"))
    }

    /// What it is linked to as this.
    pub fn linked<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Link> {
        self.links.iter().filter(move |link| link.attributes.get("orchestra.link").is_some_and(|k| k == kind))
    }
}

/// A run that lost nothing: one root with all its batches, each run by a worker.
pub fn check_run(trace: &Trace, run: &str, batches: u64, items: u64) {
    let root = trace.only("workflow.run");
    assert!(root.parent.is_empty() && !root.failed, "{root:#?}");
    assert_eq!(root.number("orchestra.items.done"), items);
    let seen = trace.named("batch");
    assert_eq!(seen.len() as u64, batches);
    assert_eq!(seen.iter().map(|batch| batch.number("orchestra.batch.size")).sum::<u64>(), items);
    for batch in &seen {
        assert_eq!(batch.parent, root.id);
        assert_eq!(batch.text("orchestra.run.id"), run);
        check_batch(trace, batch);
    }
    assert!(!trace.named("worker.load").is_empty());
}

/// Items that went through one stage, linked with the run and with its batches.
pub fn check_items(run: &Trace, items: &[Trace]) {
    let root = run.only("workflow.run");
    for trace in items {
        let item = trace.only("item");
        for step in STEPS {
            let step = trace.only(step);
            assert_eq!(step.parent, item.id);
            assert!(item.start <= step.start && step.end <= item.end, "{step:#?} of {item:#?}");
        }
        assert!(item.linked("run").all(|link| link.trace == root.trace && link.span == root.id), "{item:#?}");
        assert_eq!(item.linked("run").count(), 1);
    }
    let batches: BTreeSet<&str> = run.named("batch").iter().map(|batch| batch.id.as_str()).collect();
    for item in items.iter().map(|trace| trace.only("item")) {
        let its: Vec<&str> = item.linked("batch").map(|link| link.span.as_str()).collect();
        assert!(its.len() == 1 && batches.contains(its[0]), "{item:#?}");
    }
}

/// The run of `attempts`: a span for each attempt at a command, below that of the run.
pub fn check_attempts(run: &Trace) {
    let attempts: BTreeMap<(&str, u64), &Span> = run
        .below(run.only("workflow.run"))
        .into_iter()
        .map(|span| ((span.text("orchestra.task"), span.number("orchestra.attempt")), span))
        .collect();
    let expected = [("train[n=1]", 1), ("train[n=2]", 1), ("train[n=2]", 2)];
    assert!(attempts.keys().copied().eq(expected), "{attempts:#?}");
    let is_whole = |span: &&Span| {
        span.name == "task" && span.text("orchestra.task.place").starts_with("slot ") && span.start < span.end
    };
    assert!(attempts.values().all(is_whole), "{attempts:#?}");
    let (good, bad) = (attempts[&expected[0]], attempts[&expected[2]]);
    assert_eq!((good.text("orchestra.task.end"), good.failed), ("done", false));
    assert_eq!(good.attributes["orchestra.task.metric.loss"], 0.1);
    assert!(good.number("orchestra.task.peak_memory") > 100_000);
    assert_eq!((bad.text("orchestra.task.end"), bad.text("error.type"), bad.failed), ("code", "code", true));
    assert!(attempts[&expected[1]].end <= bad.start, "one attempt after the other");
}

/// A batch has one run in a worker, with its phases inside it, one after the other.
fn check_batch(trace: &Trace, batch: &Span) {
    let below = trace.below(batch);
    let names: Vec<&str> = below.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["worker.run"], "{batch:#?}");
    let run = below[0];
    assert_eq!(run.number("orchestra.worker"), batch.number("orchestra.worker"));
    assert!(batch.start <= run.start && run.end <= batch.end, "{batch:#?} {run:#?}");
    let phases = trace.below(run);
    let names: BTreeSet<&str> = phases.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, BTreeSet::from(PHASES), "{run:#?}");
    for pair in phases.windows(2) {
        assert!(pair[0].end <= pair[1].start, "{phases:#?}");
    }
    assert!(phases.iter().all(|phase| run.start <= phase.start && phase.end <= run.end), "{phases:#?}");
}
