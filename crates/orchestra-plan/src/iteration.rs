//! The settings of a stage that runs a model on its own outputs, and whether they fit the model. It loads nothing and knows no kind.

use orchestra_core::iteration::{Feed, Iteration, ROUNDS, Until};
use orchestra_core::{PixelInput, ReadOutput, TensorSpec};

use crate::diagnostics::{Diagnostics, Span};
use crate::fields::At;
use crate::nearest::{list, suggestion};
use crate::plan::ModelPlan;

/// The settings of a loop, as written.
#[derive(Debug, Clone)]
pub struct IterationDraft {
    /// The most rounds of a row, at least 1.
    pub rounds: u32,
    /// The inputs of the next round, and the outputs that they take; `None` where the file leaves it to the model.
    pub feed: Option<Vec<(At<String>, At<String>)>>,
    /// What ends a row before that.
    pub until: Option<UntilDraft>,
    /// Rounds between two checkpoints; 0: none.
    pub checkpoint: u32,
}

/// A bound below which a row has ended, as written.
#[derive(Debug, Clone)]
pub struct UntilDraft {
    pub output: At<String>,
    pub below: f64,
    /// Whether the bound itself is low enough.
    pub or_equal: bool,
}

/// A stage that loops, and its model.
pub(crate) struct IteratedModel<'a> {
    /// Name and place of the stage.
    pub stage: &'a At<String>,
    pub model: &'a ModelPlan,
    /// The inputs of the model as they lie in slots.
    pub inputs: &'a [TensorSpec],
    /// The outputs of the model that the stage can have.
    pub outputs: &'a [TensorSpec],
    /// Those that lie there as pixels.
    pub pixels: &'a [Option<PixelInput>],
}

impl IteratedModel<'_> {
    /// The loop in terms of the model; `None` after an error.
    pub fn resolve(&self, draft: &IterationDraft, diags: &mut Diagnostics) -> Option<Iteration> {
        if !self.model_can_loop(diags) {
            return None;
        }
        let feed = self.feed(draft, diags);
        let until = match &draft.until {
            Some(until) => Some(self.until(until, diags)?),
            None => None,
        };
        let IterationDraft { rounds, checkpoint, .. } = *draft;
        Some(Iteration { rounds, feed: feed?, until, checkpoint })
    }

    fn name(&self) -> &str {
        &self.model.name
    }

    /// Whether rows can be kept one by one, and the output `rounds` has its name for itself.
    fn model_can_loop(&self, diags: &mut Diagnostics) -> bool {
        let (stage, model) = (&self.stage.value, self.name());
        let outputs = self.outputs;
        if let Some(open) = outputs.iter().find(|output| output.fixed_row().is_none()) {
            let message = format!(
                "stage `{stage}` cannot loop over model `{model}`: its output `{}` has no fixed shape",
                open.name
            );
            diags
                .error(self.stage.span, message)
                .label(format!("it is {open}"))
                .help("export the model with fixed dimensions other than the batch");
            return false;
        }
        if outputs.iter().any(|output| output.name == ROUNDS) {
            let message = format!(
                "stage `{stage}` gives an output `{ROUNDS}` of its own, and model `{model}` has one of that name"
            );
            diags.error(self.stage.span, message).help("export the model with another name for it");
            return false;
        }
        true
    }

    fn feed(&self, draft: &IterationDraft, diags: &mut Diagnostics) -> Option<Vec<Feed>> {
        let Some(pairs) = &draft.feed else {
            let ([_], [_]) = (self.inputs, self.outputs) else {
                let names = |specs: &[TensorSpec]| list(specs.iter().map(|spec| spec.name.as_str()));
                let message =
                    format!("stage `{}` must say what a round takes of the one before", self.stage.value);
                diags.error(self.stage.span, message).label("`feed` is missing").help(format!(
                    "write feed = {{ input = \"output\" }}; inputs of model `{}`: {}; outputs: {}",
                    self.name(),
                    names(&self.model.inputs),
                    names(self.outputs)
                ));
                return None;
            };
            return self.fits(Feed { output: 0, input: 0 }, self.stage.span, diags).map(|feed| vec![feed]);
        };
        let mut found: Vec<Feed> = Vec::new();
        let mut fine = true;
        for (input, output) in pairs {
            let input = (place(&self.model.inputs, input), input);
            let output = (place(self.outputs, output), output);
            for (what, specs, (place, name)) in
                [("input", &self.model.inputs[..], input), ("output", self.outputs, output)]
            {
                if place.is_none() {
                    fine = false;
                    self.no_such(what, specs, name, diags);
                }
            }
            let ((Some(input), _), (Some(output), at)) = (input, output) else { continue };
            if found.iter().any(|feed| feed.output == output) {
                let message =
                    format!("output `{}` becomes two inputs of stage `{}`", at.value, self.stage.value);
                diags.error(at.span, message).help("let the model give it twice, under two names");
                fine = false;
                continue;
            }
            match self.fits(Feed { output, input }, at.span, diags) {
                Some(feed) => found.push(feed),
                None => fine = false,
            }
        }
        fine.then_some(found)
    }

    fn fits(&self, feed: Feed, span: Span, diags: &mut Diagnostics) -> Option<Feed> {
        let (gives, takes) = (&self.outputs[feed.output], self.inputs.get(feed.input)?);
        let same = gives.dtype == takes.dtype && gives.fixed_row() == takes.fixed_row();
        if same && self.pixels.get(feed.input).is_none_or(Option::is_none) {
            return Some(feed);
        }
        let model = self.name();
        let message = format!(
            "output `{}` of model `{model}` cannot become its input `{}` in the next round",
            gives.name, takes.name
        );
        let d = diags.error(span, message);
        match self.pixels.get(feed.input) {
            Some(Some(_)) => d
                .label(format!("`{}` is {gives}, `{}` is given pixels: {takes}", gives.name, takes.name))
                .help(
                    "write `normalize = \"host\"` in the image stage: then the input is what the model takes",
                ),
            _ => d
                .label(format!("`{}` is {gives}, `{}` is {takes}", gives.name, takes.name))
                .help("type and shape must be the same"),
        };
        None
    }

    fn until(&self, draft: &UntilDraft, diags: &mut Diagnostics) -> Option<Until> {
        let name = &draft.output;
        let Some(output) = place(self.outputs, name) else {
            self.no_such("output", self.outputs, name, diags);
            return None;
        };
        let spec = &self.outputs[output];
        if let Some(n) = spec.row_len().filter(|n| *n != 1) {
            let message = format!(
                "`until` of stage `{}` compares one number per row, and output `{}` has {n}",
                self.stage.value, spec.name
            );
            diags
                .error(name.span, message)
                .label(format!("it is {spec}"))
                .help("let the model give the largest or the sum of them as an output of its own");
            return None;
        }
        Some(Until { output, below: draft.below, or_equal: draft.or_equal })
    }

    fn no_such(&self, what: &str, specs: &[TensorSpec], name: &At<String>, diags: &mut Diagnostics) {
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        diags
            .error(name.span, format!("model `{}` has no {what} `{}`", self.name(), name.value))
            .help(suggestion(&format!("{what}s"), &name.value, names));
    }
}

fn place(specs: &[TensorSpec], name: &At<String>) -> Option<usize> {
    specs.iter().position(|spec| spec.name == name.value)
}

pub(crate) fn described(iteration: &Iteration, model: &ModelPlan, outputs: &[ReadOutput]) -> String {
    let output = |at: usize| outputs.get(at).map_or("?", |output| &output.tensor.name);
    let input = |at: usize| model.inputs.get(at).map_or("?", |spec| &spec.name);
    let fed = iteration.feed.iter().map(|feed| format!("{} <- {}", input(feed.input), output(feed.output)));
    let mut text = format!("up to {} rounds, {}", iteration.rounds, fed.collect::<Vec<_>>().join(", "));
    if let Some(Until { output: at, below, or_equal }) = iteration.until {
        text += &format!(", until {} {} {below}", output(at), if or_equal { "<=" } else { "<" });
    }
    match iteration.has_checkpoints() {
        true => text + &format!("; a checkpoint after every {}", iteration.checkpoint),
        false => text + "; no checkpoint",
    }
}

/// What decides about results, for the fingerprint: names, so that a model that lists its outputs in another order is the same.
pub(crate) fn settings(
    iteration: &Iteration,
    model: &ModelPlan,
    outputs: &[ReadOutput],
) -> serde_json::Value {
    let output = |at: usize| outputs.get(at).map(|output| &output.tensor.name);
    let input = |at: usize| model.inputs.get(at).map(|spec| &spec.name);
    let feed: Vec<_> = iteration.feed.iter().map(|feed| (input(feed.input), output(feed.output))).collect();
    let until = iteration.until.map(|until| (output(until.output), until.below, until.or_equal));
    serde_json::json!({ "rounds": iteration.rounds, "feed": feed, "until": until })
}
