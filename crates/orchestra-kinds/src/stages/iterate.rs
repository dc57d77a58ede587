//! `kind = "iterate"`: runs an ONNX model on its own outputs, round after round, in worker processes. The loop runs inside of the worker, and
//! its state leaves it at checkpoints only; what runs where is planned as for `infer`.

use orchestra_plan::tree::Value;
use orchestra_plan::{At, Draft, Fields, IterationDraft, Key, StageKind, UntilDraft, Upstreams, key};

use super::shared::batches;

pub struct Iterate;

/// The most rounds of a row: as many as fit into an `i32` of a program that reads the records.
const MAX_ROUNDS: u64 = i32::MAX as u64;
/// Rounds between two checkpoints, unless the file says otherwise. A checkpoint costs a copy of the state, one frame each way, and that the
/// rows wait for their turn again: little beside a hundred runs of any model. What a lost worker costs is at most so many rounds.
const DEFAULT_CHECKPOINT: u32 = 100;

const KEYS: [Key; 7] = [
    batches::INPUTS,
    batches::MODEL,
    key("rounds", "integer", "required", "the most rounds of a row").from_to(1, MAX_ROUNDS),
    key(
        "feed",
        "table",
        "by model",
        "`{ input = \"output\" }`: which output of a round is which input of the next; the other inputs keep what the row brought. May be left \
         out where the model has one input and one output",
    ),
    key(
        "until",
        "text",
        "none",
        "`\"output < number\"` or `\"output <= number\"`, of an output with one number per row: a row that meets it gives the outputs of that \
         round. What is no number never does",
    ),
    key(
        "checkpoint",
        "integer",
        "100",
        "rounds after which a batch leaves its state with the run, so that a lost worker costs no more than those; `limits.batch_timeout` \
         holds from one to the next. 0: never",
    )
    .from_to(0, MAX_ROUNDS),
    key("batch", "table", "by device", "how rows become batches").of(&[batches::MAX, batches::WAIT]),
];

impl StageKind for Iterate {
    fn name(&self) -> &'static str {
        "iterate"
    }

    fn about(&self) -> &'static str {
        "Runs a model on its own outputs, a number of rounds or until a value is low enough. It gives the outputs of the last round of each \
         row, and `rounds`, an i64: how many it took. A batch runs until its last row has ended."
    }

    fn keys(&self) -> &'static [Key] {
        &KEYS
    }

    fn upstreams(&self, f: &mut Fields<'_, '_>) -> Upstreams {
        batches::upstreams_of_model(f)
    }

    fn read(&self, f: &mut Fields<'_, '_>) -> Option<Draft> {
        let mut draft = batches::draft(f);
        if f.entry("rounds").is_none() {
            f.missing("rounds", "say how many rounds a row takes at most: rounds = 100");
        }
        let rounds = f.integer("rounds").map(|n| n.value as u32);
        let feed = feed(f);
        let until = match f.string("until") {
            Some(text) => Some(until(f, &text)),
            None => f.entry("until").map(|_| None),
        };
        let checkpoint = f.integer("checkpoint");
        let (rounds, feed) = (rounds?, feed?);
        if let Some(asked) = checkpoint.as_ref().filter(|n| n.value >= u64::from(rounds)) {
            f.diags
                .warning(
                    asked.span,
                    format!(
                        "`checkpoint` of {} has no effect: there are no more than {rounds} rounds",
                        f.what
                    ),
                )
                .help("write less than `rounds`, or leave it out");
        }
        draft.iteration = Some(Box::new(IterationDraft {
            rounds,
            feed,
            until: match until {
                Some(until) => Some(until?),
                None => None,
            },
            checkpoint: checkpoint.map_or(DEFAULT_CHECKPOINT, |n| n.value as u32),
        }));
        Some(Draft::Batch(draft))
    }
}

/// Inputs and the outputs that they take.
type Pairs = Vec<(At<String>, At<String>)>;

/// `feed`, if it is there; `None` after an error.
fn feed(f: &mut Fields<'_, '_>) -> Option<Option<Pairs>> {
    let Some(entry) = f.entry("feed") else { return Some(None) };
    let expected = "a table of inputs and outputs: feed = { input = \"output\" }";
    let Value::Table(table) = &entry.node.value else {
        f.wrong("feed", &entry.node, expected);
        return None;
    };
    if table.entries.is_empty() {
        f.bad("feed", entry.node.span, "feeds nothing")
            .help("name what a round takes of the one before: feed = { input = \"output\" }");
        return None;
    }
    let mut pairs = Some(Vec::new());
    for input in &table.entries {
        match &input.node.value {
            Value::String(output) => {
                let pair =
                    (At::new(input.key.clone(), input.key_span), At::new(output.clone(), input.node.span));
                pairs.iter_mut().for_each(|pairs| pairs.push(pair.clone()));
            }
            _ => {
                f.wrong(&format!("feed.{}", input.key), &input.node, "the name of an output, in quotes");
                pairs = None;
            }
        }
    }
    pairs.map(Some)
}

/// `"output < number"`; `None` after an error.
fn until(f: &mut Fields<'_, '_>, text: &At<String>) -> Option<UntilDraft> {
    let parts = text.value.split_once('<').map(|(output, bound)| match bound.strip_prefix('=') {
        Some(bound) => (output.trim(), bound.trim(), true),
        None => (output.trim(), bound.trim(), false),
    });
    let bound = |text: &str| text.parse::<f64>().ok().filter(|bound| bound.is_finite());
    match parts.and_then(|(output, text, or_equal)| Some((output, bound(text)?, or_equal))) {
        Some((output, below, or_equal)) if !output.is_empty() => {
            Some(UntilDraft { output: At::new(output.to_owned(), text.span), below, or_equal })
        }
        _ => {
            f.bad("until", text.span, &format!("cannot be `{}`", text.value))
                .help("compare an output with a number: until = \"residual < 0.001\", or with `<=`");
            None
        }
    }
}
