//! Loops in words, in fingerprints and as programs are told of them.

use orchestra_core::iteration::{Iteration, Until};

use crate::plan::BatchPlan;

pub(crate) fn described(iteration: &Iteration, batch: &BatchPlan) -> String {
    let output = |at: usize| batch.outputs.get(at).map_or("?", |output| &output.tensor.name);
    let input = |at: usize| batch.input_names().nth(at).unwrap_or("?");
    let fed = iteration.feed.iter().map(|feed| format!("{} <- {}", input(feed.input), output(feed.output)));
    let names = |of: Vec<&str>| of.join(", ");
    let mut parts = Vec::new();
    if !iteration.each.is_empty() {
        parts.push(format!(
            "a round for each part of {}",
            names(iteration.each.iter().map(|at| input(*at)).collect())
        ));
    }
    if iteration.rounds < u32::MAX {
        parts.push(format!("up to {} rounds", iteration.rounds));
    }
    parts.extend(fed);
    if !iteration.collect.is_empty() {
        parts.push(format!(
            "all rounds of {}",
            names(iteration.collect.iter().map(|at| output(*at)).collect())
        ));
    }
    let mut text = parts.join(", ");
    if let Some(Until { output: at, below, or_equal }) = iteration.until {
        text += &format!(", until {} {} {below}", output(at), if or_equal { "<=" } else { "<" });
    }
    text
}

/// What decides about results: names, so that a model that lists its outputs in another order is the same.
pub(crate) fn settings(iteration: &Iteration, batch: &BatchPlan) -> serde_json::Value {
    let output = |at: usize| batch.outputs.get(at).map(|output| &output.tensor.name);
    let input = |at: usize| batch.input_names().nth(at);
    let feed: Vec<_> = iteration.feed.iter().map(|feed| (input(feed.input), output(feed.output))).collect();
    let until = iteration.until.map(|until| (output(until.output), until.below, until.or_equal));
    let mut settings = serde_json::json!({ "rounds": iteration.rounds, "feed": feed, "until": until });
    if !iteration.each.is_empty() {
        settings["each"] = serde_json::json!(iteration.each.iter().map(|at| input(*at)).collect::<Vec<_>>());
    }
    if !iteration.collect.is_empty() {
        settings["collect"] =
            serde_json::json!(iteration.collect.iter().map(|at| output(*at)).collect::<Vec<_>>());
    }
    if !batch.loop_inputs.is_empty() {
        settings["inputs"] = serde_json::json!(batch.loop_inputs);
    }
    settings
}
