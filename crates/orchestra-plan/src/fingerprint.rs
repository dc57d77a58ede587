//! What a resumed run must have in common with the run it continues. Covers what decides results, and nothing else.

use crate::digest::{digest, hex};
use crate::iteration;
use crate::plan::{ColumnRef, Origin, Plan, Shape, SinkPlan};
use crate::sinks::FAILURES;
use crate::workflow::{RawListing, SourceNode};
use orchestra_core::{Provider, TensorRt};

/// One entry per source, model, stage and sink of `plan`, in the order of the plan. `sources` are those of the plan, as
/// written: absolute paths do not count, so that a moved workflow goes on.
pub(crate) fn fingerprint(plan: &Plan, sources: &[SourceNode]) -> Vec<(String, String)> {
    let mut entries = Vec::new();
    for (source, planned) in sources.iter().zip(&plan.sources) {
        let listing = match &source.listing {
            Some(RawListing::Paths(patterns)) => {
                serde_json::json!({ "paths": patterns.iter().map(|p| &p.value).collect::<Vec<_>>() })
            }
            Some(RawListing::Manifest { path, root }) => {
                serde_json::json!({ "manifest": path.value, "root": root.as_ref().map(|r| &r.value) })
            }
            Some(RawListing::Generated) | None => serde_json::Value::Null,
        };
        let settings = &planned.settings;
        let digest = if settings.is_null() { digest(&listing) } else { digest(&(listing, settings)) };
        entries.push((format!("source `{}`", source.name.value), digest));
        if let Some(decoders) = planned.decoders {
            entries.push((format!("what decodes source `{}`", source.name.value), decoders.to_owned()));
        }
    }
    for model in &plan.models {
        let operators: Vec<String> = model.custom_ops.iter().map(|(_, digest)| hex(digest)).collect();
        let text = (hex(&model.digest), operators);
        let digest = match &model.tuning.provider {
            // Other numbers, by more than the last bits.
            Provider::TensorRt(TensorRt { fp16: true, .. }) => digest(&(text, "f16")),
            Provider::Cuda | Provider::TensorRt(_) => digest(&text),
        };
        entries.push((format!("model `{}`", model.name), digest));
        // Named beside the model, whose digest they are part of: who changed one of these files has not touched that of the model.
        if !model.custom_ops.is_empty() {
            let operators: Vec<String> = model.custom_ops.iter().map(|(_, digest)| hex(digest)).collect();
            entries
                .push((format!("`custom_ops` of model `{}`", model.name), crate::digest::digest(&operators)));
        }
        if !model.weights.is_empty() {
            let weights: Vec<String> = model.weights.iter().map(|(_, digest)| hex(digest)).collect();
            entries.push((
                format!("external weights of model `{}`", model.name),
                crate::digest::digest(&weights),
            ));
        }
        entries.push((format!("`tf32` of model `{}`", model.name), model.tf32.to_string()));
    }
    // Joins follow from what the others read.
    for stage in plan.stages.iter().filter(|stage| !stage.is_join()) {
        let name = |read| name_of(plan, read);
        let mut text = match &stage.runs {
            Shape::Batch(batch) => {
                let inputs: Vec<_> = stage.reads.iter().map(name).collect();
                let model = &plan.models[batch.model.index()];
                let mut text = serde_json::json!({ "model": model.name, "inputs": inputs });
                if let Some(iteration) = &batch.iteration {
                    text["loop"] = iteration::settings(iteration, model, &batch.outputs);
                }
                text
            }
            Shape::Map(_) | Shape::Fold(_) => stage.settings.clone(),
        };
        if let (serde_json::Value::Object(text), None) = (&mut text, stage.batch()) {
            let from: Vec<&str> = stage.from.iter().map(|from| plan.name_of(*from)).collect();
            match from[..] {
                [one] => text.insert("from".into(), one.into()),
                _ => text.insert("from".into(), from.into()),
            };
            // Which columns, and what they are called: where the name of a stage alone does not say it.
            if stage.from.len() > 1 || stage.from.iter().any(|from| plan.gives(*from).whole().count() > 1) {
                let reads: Vec<_> = stage.reads.iter().map(name).collect();
                text.insert("reads".into(), serde_json::json!(reads));
                text.insert("gives".into(), serde_json::json!(stage.gives.to_string()));
            }
        }
        entries.push((format!("stage `{}`", stage.name), digest(&text)));
        // What an item has alone may be more than its row of a batch, or another one where the model lets items change each other.
        if let Some(batch) = stage.batch() {
            let is_one = (batch.max_batch == 1).to_string();
            entries.push((format!("`batch.max = 1` of stage `{}`", stage.name), is_one));
        }
    }
    for sink in &plan.sinks {
        let place = sink.place();
        let path = place.strip_prefix(&plan.output).unwrap_or(&place);
        let from = match &sink.from[..] {
            [] => FAILURES.into(),
            [one] if is_all_of(plan, sink, *one) => plan.name_of(*one).into(),
            _ => {
                let columns = sink.columns.iter().zip(&sink.reads);
                serde_json::json!(
                    columns.map(|(column, read)| (column, name_of(plan, read))).collect::<Vec<_>>()
                )
            }
        };
        let text = serde_json::json!({ "from": from, "path": path, "ordered": sink.ordered });
        let text = if sink.encoder.is_json_lines() { text } else { serde_json::json!([text, sink.kind]) };
        entries.push((format!("sink `{}`", sink.name), digest(&text)));
    }
    entries
}

/// Whether the records of a sink are the rows of one stage, as they are.
fn is_all_of(plan: &Plan, sink: &SinkPlan, from: Origin) -> bool {
    let all = plan.gives(from);
    let in_order = sink.reads.iter().enumerate().all(|(at, read)| read.column == at);
    in_order && sink.columns.iter().map(String::as_str).eq(all.names())
}

fn name_of<'a>(plan: &'a Plan, read: &ColumnRef) -> (&'a str, usize) {
    (plan.name_of(read.from), read.column)
}
