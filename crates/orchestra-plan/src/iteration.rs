//! Loops of models in words and in fingerprints.

use orchestra_core::ReadOutput;
use orchestra_core::iteration::{Iteration, Until};

use crate::plan::ModelPlan;

pub(crate) fn described(iteration: &Iteration, model: &ModelPlan, outputs: &[ReadOutput]) -> String {
    let output = |at: usize| outputs.get(at).map_or("?", |output| &output.tensor.name);
    let input = |at: usize| model.inputs.get(at).map_or("?", |spec| &spec.name);
    let fed = iteration.feed.iter().map(|feed| format!("{} <- {}", input(feed.input), output(feed.output)));
    let mut text = format!("up to {} rounds, {}", iteration.rounds, fed.collect::<Vec<_>>().join(", "));
    if let Some(Until { output: at, below, or_equal }) = iteration.until {
        text += &format!(", until {} {} {below}", output(at), if or_equal { "<=" } else { "<" });
    }
    text
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
