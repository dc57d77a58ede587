//! What a resumed run must have in common with the run it continues. Covers what decides results, and nothing else.

use std::fmt::Write;

use orchestra_core::{Provider, TensorRt};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::plan::{ColumnRef, Origin, Plan, Shape};
use crate::raw::{RawListing, RawSource};

/// One entry per source, model, stage and sink of `plan`, in the order of the plan. `sources` and `operators` are those of the plan, as
/// written and by digest: absolute paths do not count, so that a moved workflow goes on.
pub(crate) fn fingerprint(
    plan: &Plan,
    sources: &[&RawSource],
    operators: &[Vec<[u8; 32]>],
) -> Vec<(String, String)> {
    let mut entries = Vec::new();
    for (source, planned) in sources.iter().zip(&plan.sources) {
        let listing = match &source.listing {
            Some(RawListing::Paths(patterns)) => {
                serde_json::json!({ "paths": patterns.iter().map(|p| &p.value).collect::<Vec<_>>() })
            }
            Some(RawListing::Manifest { path, root }) => {
                serde_json::json!({ "manifest": path.value, "root": root.as_ref().map(|r| &r.value) })
            }
            None => serde_json::Value::Null,
        };
        let settings = &planned.settings;
        let digest = if settings.is_null() { digest(&listing) } else { digest(&(listing, settings)) };
        entries.push((format!("source `{}`", source.name.value), digest));
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
    // Joins follow from what the others read.
    for stage in plan.stages.iter().filter(|stage| !stage.is_join()) {
        let name = |read: &ColumnRef| (plan.name_of(read.from), read.column);
        let mut text = match &stage.runs {
            Shape::Batch(infer) => {
                let inputs: Vec<_> = stage.reads.iter().map(name).collect();
                serde_json::json!({ "model": plan.models[infer.model.index()].name, "inputs": inputs })
            }
            Shape::Map(_) | Shape::Fold(_) => stage.settings.clone(),
        };
        if let (serde_json::Value::Object(text), None) = (&mut text, stage.batch()) {
            let from: Vec<&str> = stage.from.iter().map(|from| plan.name_of(*from)).collect();
            match from[..] {
                [one] => text.insert("from".into(), one.into()),
                _ => text.insert("from".into(), from.into()),
            };
            // Which columns: where the names of the stages alone do not say it.
            if stage.from.iter().any(|from| plan.gives(*from).0.len() > 1) {
                let reads: Vec<_> = stage.reads.iter().map(name).collect();
                text.insert("reads".into(), serde_json::json!(reads));
            }
        }
        entries.push((format!("stage `{}`", stage.name), digest(&text)));
    }
    for sink in &plan.sinks {
        let path = sink.path.strip_prefix(&plan.output).unwrap_or(&sink.path);
        let columns = |from: &Origin| -> Vec<usize> {
            sink.reads.iter().filter(|read| read.from == *from).map(|read| read.column).collect()
        };
        let from = match &sink.from[..] {
            // All columns of one stage.
            [one] if columns(one).len() == plan.gives(*one).0.len() => plan.name_of(*one).into(),
            from => {
                let named = |from: &Origin| serde_json::json!([plan.name_of(*from), columns(from)]);
                serde_json::Value::Array(from.iter().map(named).collect())
            }
        };
        let text = serde_json::json!({ "from": from, "path": path, "ordered": sink.ordered });
        let text = if sink.kind == "jsonl" { text } else { serde_json::json!([text, sink.kind]) };
        entries.push((format!("sink `{}`", sink.name), digest(&text)));
    }
    entries
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
