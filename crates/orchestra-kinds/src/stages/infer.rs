//! `kind = "infer"`: runs an ONNX model over batches of rows, in worker processes. What runs where follows from the model and the machine,
//! and is planned with them.

use std::time::Duration;

use orchestra_plan::tree::{Entry, Value};
use orchestra_plan::{At, BatchDraft, Draft, Fields, Key, Limits, MAX_BATCH, Reads, StageKind, key};

pub struct Infer;

/// How long the oldest item of a batch waits for company, unless the file says otherwise.
const DEFAULT_WAIT: Duration = Duration::from_millis(5);

/// What each input of a model reads.
pub(super) const INPUTS: Key = key(
    "inputs",
    "table",
    "none",
    "instead of `from`, for a model with several inputs: `{ input_name = \"stage\" }` or `\"stage.tensor\"`",
);
pub(super) const MODEL: Key = key("model", "text", "required", "one of `[models.*]`");

const KEYS: [Key; 3] = [
    INPUTS,
    MODEL,
    key(
        "batch",
        "table",
        "by device",
        "`{ max = 32, wait = \"5ms\", together = 1, sizes = [32] }`: the most rows that the model runs at once; how long the oldest item waits for \
         company; how many small and quick batches may go to a busy worker together (on the CPU); [sizes](../guide/devices.md#batch-sizes-on-a-gpu) \
         that smaller batches are padded to (on a GPU)",
    ),
];

impl StageKind for Infer {
    fn name(&self) -> &'static str {
        "infer"
    }

    fn about(&self) -> &'static str {
        "Runs a model. It gives the outputs of the model, one tensor each."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn reads(&self, f: &mut Fields<'_, '_>) -> Reads {
        reads_of_model(f)
    }

    fn read(&self, f: &mut Fields<'_, '_>, _: &Limits) -> Option<Draft> {
        Some(Draft::Batch(draft(f, &["max", "wait", "together", "sizes"])))
    }
}

/// What a stage with a model reads: `from`, or a stage for each input.
pub(super) fn reads_of_model(f: &mut Fields<'_, '_>) -> Reads {
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

/// The model of a stage and its batches, of which the table `batch` may say what `batch_keys` name.
pub(super) fn draft(f: &mut Fields<'_, '_>, batch_keys: &[&str]) -> BatchDraft {
    let model = f.required_string("model", "name one of [models.*]");
    draft_of(model, f, batch_keys)
}

/// As [`draft`], for a model that is known.
pub(super) fn draft_of(model: Option<At<String>>, f: &mut Fields<'_, '_>, batch_keys: &[&str]) -> BatchDraft {
    let mut draft = BatchDraft {
        model,
        program: None,
        max_batch: None,
        wait: DEFAULT_WAIT,
        together: None,
        sizes: None,
        iterate: None,
    };
    if let Some(mut batch) = f.table("batch", batch_keys) {
        draft.max_batch = batch.integer("max", 1..=MAX_BATCH);
        draft.together = batch.integer("together", 1..=MAX_BATCH).map(|n| n.value as usize);
        draft.sizes = batch.integers("sizes", 1..=MAX_BATCH);
        draft.wait = batch.duration("wait").unwrap_or(draft.wait);
    }
    draft
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
