//! `[stages.*]`: reading the tables. Resolves no name.

use std::time::Duration;

use crate::diagnostics::Diagnostics;
use crate::fields::{At, Fields};
use crate::models::MAX_BATCH;
use crate::plan::Scores;
use crate::raw::{RawKind, RawStage, kind};
use crate::tree::{Entry, Table, Value};

mod image;

type Reads = Vec<(Option<At<String>>, At<String>)>;

/// How long the oldest item of a batch waits for company, unless the file says otherwise.
const DEFAULT_WAIT: Duration = Duration::from_millis(5);

pub(crate) fn read(
    name: At<String>,
    _: &Entry,
    table: &Table,
    max_pixels: u64,
    diags: &mut Diagnostics,
) -> RawStage {
    let what = format!("stage `{}`", name.value);
    let span = name.span;
    let (reads, kind) = match kind(&what, table, span, &["image", "infer", "classify"], diags) {
        Some("image") => {
            let mut f = Fields::new(what, span, table, &image::KEYS, diags);
            let from = f.required_string("from", "name the source whose items are decoded");
            (one(from), Some(RawKind::Image(image::read(&mut f, max_pixels))))
        }
        Some("infer") => infer(Fields::new(what, span, table, &INFER_KEYS, diags)),
        Some(_) => classify(Fields::new(what, span, table, &CLASSIFY_KEYS, diags)),
        None => (Vec::new(), None),
    };
    RawStage { name, reads, kind }
}

const INFER_KEYS: [&str; 5] = ["kind", "from", "inputs", "model", "batch"];
const CLASSIFY_KEYS: [&str; 5] = ["kind", "from", "top_k", "labels", "scores"];

fn one(from: Option<At<String>>) -> Reads {
    from.map(|f| (None, f)).into_iter().collect()
}

fn infer(mut f: Fields<'_, '_>) -> (Reads, Option<RawKind>) {
    let reads = match (f.entry("from"), f.entry("inputs")) {
        (Some(_), Some(second)) => {
            f.bad("inputs", second.key_span, "stands beside `from`")
                .help("`from` feeds a model with one input, `inputs` names what feeds each of several");
            Vec::new()
        }
        (None, None) => {
            f.missing("from", "name the image stage that feeds the model: from = \"pixels\"");
            Vec::new()
        }
        (Some(_), None) => one(f.string("from")),
        (None, Some(entry)) => inputs(&mut f, entry),
    };
    let model = f.required_string("model", "name one of [models.*]");
    let mut max_batch = None;
    let mut wait = DEFAULT_WAIT;
    let mut together = None;
    if let Some(mut batch) = f.table("batch", &["max", "wait", "together"]) {
        max_batch = batch.integer("max", 1..=MAX_BATCH);
        together = batch.integer("together", 1..=MAX_BATCH).map(|n| n.value as usize);
        wait = batch.duration("wait").unwrap_or(wait);
    }
    (reads, Some(RawKind::Infer { model, max_batch, wait, together }))
}

fn inputs(f: &mut Fields<'_, '_>, entry: &Entry) -> Reads {
    let Value::Table(table) = &entry.node.value else {
        f.wrong("inputs", &entry.node, "a table: inputs = { input_name = \"stage\" }");
        return Vec::new();
    };
    if table.entries.is_empty() {
        f.bad("inputs", entry.node.span, "is empty").help("name every input of the model");
    }
    let mut reads = Vec::new();
    for input in &table.entries {
        match &input.node.value {
            Value::String(from) => reads.push((
                Some(At::new(input.key.clone(), input.key_span)),
                At::new(from.clone(), input.node.span),
            )),
            _ => f.wrong(
                &format!("inputs.{}", input.key),
                &input.node,
                "a string: \"stage\" or \"stage.tensor\"",
            ),
        }
    }
    reads
}

fn classify(mut f: Fields<'_, '_>) -> (Reads, Option<RawKind>) {
    let from = f.required_string("from", "name the infer stage whose output is classified");
    let top_k = f.integer("top_k", 1..=1_000_000).unwrap_or(At::new(1, f.span));
    let labels = f.string("labels");
    let choices = [("softmax", Scores::Softmax), ("sigmoid", Scores::Sigmoid), ("none", Scores::None)];
    let scores = f.choice("scores", &choices).map_or(Scores::Softmax, |s| s.value);
    (one(from), Some(RawKind::Classify { top_k, labels, scores }))
}
