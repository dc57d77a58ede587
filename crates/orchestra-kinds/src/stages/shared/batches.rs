//! What stages have in common that run batches in worker processes: what feeds them, and how rows become batches.

use orchestra_plan::tree::{Entry, Value};
use orchestra_plan::{At, BatchDraft, Fields, Key, MAX_BATCH, Upstreams, key};

/// What each input of a model reads.
pub const INPUTS: Key = key(
    "inputs",
    "table",
    "none",
    "instead of `from`, for a model with several inputs: `{ input_name = \"stage\" }` or `\"stage.tensor\"`",
);
pub const MODEL: Key = key("model", "text", "required", "one of `[models.*]`");

pub const MAX: Key =
    key("max", "integer", "by device", "the most rows that the model runs at once").from_to(1, MAX_BATCH);
pub const WAIT: Key = key("wait", "duration", "\"5ms\"", "how long the oldest item waits for company");

/// What a stage with a model reads: `from`, or a stage for each input.
pub fn upstreams_of_model(f: &mut Fields<'_, '_>) -> Upstreams {
    match (f.entry("from"), f.entry("inputs")) {
        (Some(_), Some(second)) => {
            f.bad("inputs", second.key_span, "stands beside `from`")
                .help("`from` feeds a model with one input, `inputs` names what feeds each of several");
            Vec::new()
        }
        (None, None) => {
            f.missing("from", "name the image stage that feeds the model: from = \"pixels\"");
            Vec::new()
        }
        (Some(_), None) => f.string("from").map(|from| (None, from)).into_iter().collect(),
        (None, Some(entry)) => inputs(f, entry),
    }
}

/// The model of a stage and its batches.
pub fn draft(f: &mut Fields<'_, '_>) -> BatchDraft {
    let model = f.required_string("model", "name one of [models.*]");
    draft_of(model, f)
}

/// As [`draft`], for a model that is known.
pub fn draft_of(model: Option<At<String>>, f: &mut Fields<'_, '_>) -> BatchDraft {
    let mut batch = f.table_or_empty("batch");
    BatchDraft {
        model,
        program: None,
        max_batch: batch.integer("max"),
        wait: batch.value("wait"),
        iteration: None,
    }
}

fn inputs(f: &mut Fields<'_, '_>, entry: &Entry) -> Upstreams {
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
            _ => {
                let expected = "a string: \"stage\" or \"stage.tensor\"";
                f.wrong(&format!("inputs.{}", input.key), &input.node, expected);
            }
        }
    }
    reads
}
