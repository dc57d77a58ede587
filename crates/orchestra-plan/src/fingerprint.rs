//! What a resumed run must have in common with the run it continues. Covers what decides results, and nothing else.

use std::fmt::Write;

use orchestra_core::{Provider, TensorRt};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::plan::{Plan, Scores, StageKind};
use crate::raw::{RawListing, RawSource};

/// One entry per source, model, stage and sink of `plan`, in the order of the plan. `sources` and `operators` are those of the plan, as
/// written and by digest: absolute paths do not count, so that a moved workflow goes on.
pub(crate) fn fingerprint(
    plan: &Plan,
    sources: &[&RawSource],
    operators: &[Vec<[u8; 32]>],
) -> Vec<(String, String)> {
    let mut entries = Vec::new();
    for source in sources {
        let listing = match &source.listing {
            Some(RawListing::Paths(patterns)) => {
                serde_json::json!({ "paths": patterns.iter().map(|p| &p.value).collect::<Vec<_>>() })
            }
            Some(RawListing::Manifest { path, root }) => {
                serde_json::json!({ "manifest": path.value, "root": root.as_ref().map(|r| &r.value) })
            }
            None => serde_json::Value::Null,
        };
        entries.push((format!("source `{}`", source.name.value), digest(&listing)));
    }
    for (model, operators) in plan.models.iter().zip(operators) {
        let operators: Vec<String> = operators.iter().map(|d| hex(d)).collect();
        let text = (hex(&model.digest), operators);
        let digest = match &model.tuning.provider {
            // Other numbers, by more than the last bits.
            Provider::TensorRt(TensorRt { fp16: true, .. }) => digest(&(text, "f16")),
            Provider::Cuda | Provider::TensorRt(_) => digest(&text),
        };
        entries.push((format!("model `{}`", model.name), digest));
    }
    for stage in &plan.stages {
        let name = |id: orchestra_core::StageId| &plan.stages[id.index()].name;
        let text = match &stage.kind {
            StageKind::Image { source, spec } => {
                serde_json::json!({ "from": plan.sources[source.index()].name, "spec": spec })
            }
            StageKind::Infer(infer) => {
                let inputs: Vec<_> = infer.inputs.iter().map(|i| (name(i.stage), i.output)).collect();
                serde_json::json!({ "model": plan.models[infer.model.index()].name, "inputs": inputs })
            }
            StageKind::Classify { from, output, top_k, labels, scores } => serde_json::json!({
                "from": name(*from), "output": output, "top_k": top_k, "labels": labels,
                "scores": scores_name(*scores),
            }),
        };
        entries.push((format!("stage `{}`", stage.name), digest(&text)));
    }
    for sink in &plan.sinks {
        let path = sink.path.strip_prefix(&plan.output).unwrap_or(&sink.path);
        let text = serde_json::json!({
            "from": plan.stages[sink.from.index()].name, "path": path, "ordered": sink.ordered,
        });
        entries.push((format!("sink `{}`", sink.name), digest(&text)));
    }
    entries
}

fn scores_name(scores: Scores) -> &'static str {
    match scores {
        Scores::Softmax => "softmax",
        Scores::Sigmoid => "sigmoid",
        Scores::None => "none",
    }
}

fn digest(value: &impl Serialize) -> String {
    let text = serde_json::to_vec(value).expect("maps with text keys, and numbers that are finite");
    hex(&Sha256::digest(text))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes any text");
        text
    })
}
