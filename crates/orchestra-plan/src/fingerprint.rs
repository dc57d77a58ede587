//! What a resumed run must have in common with the run it continues. Covers what decides results, and nothing else.

use std::path::PathBuf;

use orchestra_core::{Provider, TensorRt};
use serde_json::{Value as Json, json};

use crate::digest::{digest, hex};
use crate::plan::{ColumnRef, ModelPlan, Origin, Plan, SinkPlan, SourcePlan, StagePlan};
use crate::sinks::FAILURES;
use crate::workflow::{RawListing, SourceNode};

/// What it is of, and its digest.
type Digested = (String, String);

/// One entry per source, model, stage and sink of `plan`, in the order of the plan. `sources` are those of the plan, as
/// written: absolute paths do not count, so that a moved workflow goes on.
pub(crate) fn fingerprint(plan: &Plan, sources: &[SourceNode]) -> Vec<Digested> {
    let sources = sources.iter().zip(&plan.sources).flat_map(|(source, planned)| of_source(source, planned));
    let models = plan.models.iter().flat_map(of_model);
    // Joins follow from what the others read.
    let stages = plan.stages.iter().filter(|stage| !stage.is_join()).flat_map(|stage| of_stage(plan, stage));
    let sinks = plan.sinks.iter().map(|sink| of_sink(plan, sink));
    sources.chain(models).chain(stages).chain(sinks).collect()
}

fn of_source(source: &SourceNode, planned: &SourcePlan) -> Vec<Digested> {
    let listing = match &source.listing {
        Some(RawListing::Paths(patterns)) => {
            json!({ "paths": patterns.iter().map(|p| &p.value).collect::<Vec<_>>() })
        }
        Some(RawListing::Manifest { path, root }) => {
            json!({ "manifest": path.value, "root": root.as_ref().map(|r| &r.value) })
        }
        Some(RawListing::Generated) | None => Json::Null,
    };
    let (name, settings) = (&source.name.value, &planned.settings);
    let digest = if settings.is_null() { digest(&listing) } else { digest(&(listing, settings)) };
    let decoders =
        planned.decoders.map(|decoders| (format!("what decodes source `{name}`"), decoders.to_owned()));
    [(format!("source `{name}`"), digest)].into_iter().chain(decoders).collect()
}

fn of_model(model: &ModelPlan) -> Vec<Digested> {
    let name = &model.name;
    let digests = |files: &[(PathBuf, [u8; 32])]| -> Vec<String> {
        files.iter().map(|(_, digest)| hex(digest)).collect()
    };
    let text = (hex(&model.digest), digests(&model.custom_ops));
    let all = match &model.tuning.provider {
        // Other numbers, by more than the last bits.
        Provider::TensorRt(TensorRt { fp16: true, .. }) => digest(&(text, "f16")),
        Provider::Cuda | Provider::TensorRt(_) => digest(&text),
    };
    let mut entries = vec![(format!("model `{name}`"), all)];
    // Named beside the model, whose digest they are part of: who changed one of these files has not touched that of the model.
    for (what, files) in [("`custom_ops`", &model.custom_ops), ("external weights", &model.weights)] {
        if !files.is_empty() {
            entries.push((format!("{what} of model `{name}`"), digest(&digests(files))));
        }
    }
    entries.push((format!("`tf32` of model `{name}`"), model.tf32.to_string()));
    entries
}

fn of_stage(plan: &Plan, stage: &StagePlan) -> Vec<Digested> {
    let reads = || -> Vec<_> { stage.reads.iter().map(|read| name_of(plan, read)).collect() };
    let Some(batch) = stage.batch() else {
        let mut text = stage.settings.clone();
        if let Json::Object(text) = &mut text {
            let from: Vec<&str> = stage.from.iter().map(|from| plan.name_of(*from)).collect();
            match from[..] {
                [one] => text.insert("from".into(), one.into()),
                _ => text.insert("from".into(), from.into()),
            };
            // Which columns, and what they are called: where the name of a stage alone does not say it.
            if stage.from.len() > 1 || stage.from.iter().any(|from| plan.gives(*from).whole().count() > 1) {
                text.insert("reads".into(), json!(reads()));
                text.insert("gives".into(), json!(stage.gives.to_string()));
            }
        }
        return vec![(format!("stage `{}`", stage.name), digest(&text))];
    };
    let model = &plan.models[batch.model.index()];
    let mut text = json!({ "model": model.name, "inputs": reads() });
    if let Some(of_loop) = batch.told_loop() {
        text["loop"] = of_loop;
    }
    if !batch.constants.is_empty() {
        text["constants"] = json!(batch.constants);
    }
    // What an item has alone may be more than its row of a batch, or another one where the model lets items change each other.
    let is_one = (batch.max_batch == 1).to_string();
    vec![
        (format!("stage `{}`", stage.name), digest(&text)),
        (format!("`batch.max = 1` of stage `{}`", stage.name), is_one),
    ]
}

fn of_sink(plan: &Plan, sink: &SinkPlan) -> Digested {
    let place = sink.place();
    let path = place.strip_prefix(&plan.output).unwrap_or(&place);
    let from = match &sink.from[..] {
        [] => FAILURES.into(),
        [one] if is_all_of(plan, sink, *one) => plan.name_of(*one).into(),
        _ => {
            let columns = sink.columns.iter().zip(&sink.reads);
            json!(columns.map(|(column, read)| (column, name_of(plan, read))).collect::<Vec<_>>())
        }
    };
    let text = json!({ "from": from, "path": path, "ordered": sink.ordered });
    let text = if sink.encoder.is_json_lines() { text } else { json!([text, sink.kind]) };
    (format!("sink `{}`", sink.name), digest(&text))
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
