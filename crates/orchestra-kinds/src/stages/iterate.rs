//! `kind = "iterate"`: runs an ONNX model on its own outputs, round after round, in worker processes. The loop runs inside of the worker; what runs where is
//! planned as for `infer`.

use orchestra_plan::{
    Draft, Drafted, Fields, IterationDraft, NamedTexts, Setting, Spanned, TypedStage, UntilDraft, Upstreams,
    settings,
};

use super::shared::batches::{BatchSettings, InputTable, constants, upstreams_of_model};

/// The most rounds of a row: as many as fit into an `i32` of a program that reads the records.
pub const MAX_ROUNDS: u64 = i32::MAX as u64;

settings! {
    pub struct Iterate {
        /// instead of `from`, for a model with several inputs: `{ input_name = "stage" }` or `"stage.tensor"`; a number, `true`, a list or `{ value = "text" }` is [the same for all items](../guide/workflow-file.md#inputs)
        inputs: InputTable,
        /// one of `[models.*]`
        #[missing("name one of [models.*]")]
        model: Spanned<String>,
        /// the most rounds of a row; required without `each`
        #[range(1, MAX_ROUNDS)]
        rounds: Option<u32> => "as many as `each` has",
        /// inputs that take the next part of what the row has in each round, along its first dimension: of `f32[?, 576]` an `f32[576]`. A row ends with its last part
        each: Vec<Spanned<String>> => "none",
        /// `{ input = "output" }`: which output of a round is which input of the next; the other inputs keep what the row brought. May be left out where the model has one input and one output
        feed: Option<FeedSetting> => "by model",
        /// outputs of which a row gets those of all rounds, as one tensor `[rounds, ..]`
        collect: Vec<Spanned<String>> => "none",
        /// `"output < number"` or `"output <= number"`, of an output with one number per row: a row that meets it gives the outputs of that round. What is no number never does
        until: Option<UntilSetting>,
        /// how rows become batches
        batch: BatchSettings,
    }
}

/// The inputs of the next round, and the outputs that they take.
#[derive(Debug)]
pub struct FeedSetting(NamedTexts);

/// What ends a row before its last round.
#[derive(Debug)]
pub struct UntilSetting(UntilDraft);

impl TypedStage for Iterate {
    const NAME: &'static str = "iterate";
    const ABOUT: &'static str = "Runs a model on its own outputs: a number of rounds, until a value is low enough, or once for each part of the row, such as the frames of a \
         sound. It gives the outputs of the last round of each row, those of all rounds where they are collected, and `rounds`, an i64: how many it took. A batch runs until its last row has ended.";
    type Work = ();

    fn upstreams(f: &mut Fields<'_, '_>) -> Upstreams {
        upstreams_of_model(f)
    }
}

impl Drafted for Iterate {
    fn draft(self, f: &mut Fields<'_, '_>) -> Option<Draft> {
        let mut draft = self.batch.of(self.model);
        draft.constants = constants(f);
        if self.rounds.is_none() && f.entry("rounds").or(f.entry("each")).is_none() {
            let help = "say how many rounds a row takes at most, rounds = 100, or which input steps through the row, each = \"input\"";
            f.missing("rounds", help);
            return None;
        }
        f.entry("rounds").is_none_or(|_| self.rounds.is_some()).then_some(())?;
        let of = iteration(f, self.rounds.unwrap_or(u32::MAX), self.feed, self.until)?;
        draft.iteration = Some(Box::new(IterationDraft { each: self.each, collect: self.collect, ..*of }));
        Some(Draft::Batch(draft))
    }
}

/// The loop of these settings of a stage; `None` where one of them was refused.
pub fn iteration(
    f: &mut Fields<'_, '_>,
    rounds: u32,
    feed: Option<FeedSetting>,
    until: Option<UntilSetting>,
) -> Option<Box<IterationDraft>> {
    for (key, is_read) in [("feed", feed.is_some()), ("until", until.is_some())] {
        f.entry(key).is_none_or(|_| is_read).then_some(())?;
    }
    Some(Box::new(IterationDraft {
        rounds,
        each: Vec::new(),
        collect: Vec::new(),
        feed: feed.map(|FeedSetting(NamedTexts(pairs))| pairs),
        until: until.map(|UntilSetting(until)| until),
    }))
}

impl Setting for FeedSetting {
    const TYPE: &'static str = "table";

    fn read(f: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        let table_of = "a table of inputs and outputs: feed = { input = \"output\" }";
        f.texts(key, [table_of, "feeds nothing", "the name of an output, in quotes"]).map(Self)
    }
}

impl Setting for UntilSetting {
    const TYPE: &'static str = "text";

    fn read(f: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        let text = f.string(key)?;
        until(f, &text).map(Self)
    }
}

/// `"output < number"`; `None` after an error.
fn until(f: &mut Fields<'_, '_>, text: &Spanned<String>) -> Option<UntilDraft> {
    let parts = text.value.split_once('<').map(|(output, bound)| match bound.strip_prefix('=') {
        Some(bound) => (output.trim(), bound.trim(), true),
        None => (output.trim(), bound.trim(), false),
    });
    let bound = |text: &str| text.parse::<f64>().ok().filter(|bound| bound.is_finite());
    match parts.and_then(|(output, text, or_equal)| Some((output, bound(text)?, or_equal))) {
        Some((output, below, or_equal)) if !output.is_empty() => {
            Some(UntilDraft { output: Spanned::new(output.to_owned(), text.span), below, or_equal })
        }
        _ => f
            .bad("until", text.span, &format!("cannot be `{}`", text.value))
            .help("compare an output with a number: until = \"residual < 0.001\", or with `<=`")
            .none(),
    }
}
