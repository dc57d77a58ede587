//! Outputs of models, wherever their items lie: each item has what the model gives for it alone, whatever the size of its batch, or the run is refused before
//! its first item and says what to do. The judge is ONNX Runtime for Python (`scripts/model_outputs.py`).
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use crate::common::{Ended, Workplace, python_env, repository};
use serde_json::Value;

const BATCHES: [usize; 4] = [1, 3, 8, 32];

/// A run of the model at these sizes of a batch, each with records of its own in `folder`.
fn run(place: &Workplace, folder: &Path, name: &str, about: &Value, batches: &[usize]) -> Ended {
    let inputs: Vec<&str> = about["inputs"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let feeds: Vec<String> = inputs.iter().map(|input| format!("{input} = \"s.{input}\"")).collect();
    let feeds = match &inputs[..] {
        [_] => "from = \"s\"".to_owned(),
        _ => format!("inputs = {{ {} }}", feeds.join(", ")),
    };
    let mut text = format!(
        "version = 1\n[sources.s]\nkind = \"tensors\"\npaths = [{:?}]\n[models.m]\npath = {:?}\nworkers = 1\n[devices]\nuse = [\"cpu\"]\n",
        folder.join(format!("{name}.npz")),
        folder.join(format!("{name}.onnx"))
    );
    for batch in batches {
        let from: Vec<String> = match &about["read"] {
            Value::Array(names) => {
                names.iter().map(|name| format!("\"run{batch}.{}\"", name.as_str().unwrap())).collect()
            }
            _ => vec![format!("\"run{batch}\"")],
        };
        write!(
            text,
            "[stages.run{batch}]\nkind = \"infer\"\n{feeds}\nmodel = \"m\"\nbatch = {{ max = {batch}, wait = \"200ms\", together = 1 }}\n\
             [sinks.of{batch}]\nkind = \"jsonl\"\nfrom = {}\npath = \"{name}-{batch}.jsonl\"\n",
            if from.len() == 1 { from[0].clone() } else { format!("[{}]", from.join(", ")) }
        )
        .unwrap();
    }
    let workflow = place.path(&format!("{name}-{}.toml", batches.len()));
    fs::write(&workflow, text).unwrap();
    let out = place.path(&format!("out-{name}-{}", batches.len()));
    let ended =
        place.start_command(&["run", workflow.to_str().unwrap(), "--output", out.to_str().unwrap()]).wait();
    for batch in batches {
        let records = format!("{name}-{batch}.jsonl");
        if out.join(&records).exists() {
            fs::copy(out.join(&records), folder.join(records)).unwrap();
        }
    }
    ended
}

/// Says what is wrong with a run that is to be refused before its first item.
fn not_refused(name: &str, ended: &Ended) -> Option<String> {
    let helps =
        ended.stderr.contains("help:") && (name != "zipmap_read" || ended.stderr.contains("zipmap = False"));
    let is_refused = ended.status.code() == Some(78) && helps && !ended.stderr.contains("items read");
    (!is_refused).then(|| format!("{name} is not refused: {ended:?}"))
}

/// Runs a model at all sizes; says what is wrong.
fn try_model(place: &Workplace, folder: &Path, name: &str, about: &Value) -> Vec<String> {
    let all = run(place, folder, name, about, &BATCHES);
    let is_right = all.status.success();
    match about["refused"].as_str() {
        Some("may") if is_right => Vec::new(),
        Some("may" | "always") => not_refused(name, &all).into_iter().collect(),
        Some("batches") => {
            let alone = run(place, folder, name, about, &[1]);
            let failed = (!alone.status.success()).then(|| format!("{name} alone: {alone:?}"));
            not_refused(name, &all).into_iter().chain(failed).collect()
        }
        _ => (!is_right).then(|| format!("{name}: {all:?}")).into_iter().collect(),
    }
}

#[test]
fn each_item_has_what_the_model_gives_for_it_alone_or_the_run_is_refused() {
    let Some(python) = python_env("reference") else { return };
    let place = Workplace::new();
    let folder = place.path("models");
    let script = |what: &str| {
        let script = repository().join("scripts/model_outputs.py");
        let ended = Command::new(&python).arg(script).arg(what).arg(&folder).output().unwrap();
        (ended.status.success(), String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned())
    };
    let (is_made, said) = script("make");
    assert!(is_made, "{said}");
    let about = fs::read(folder.join("models.json")).unwrap();
    let about: BTreeMap<String, Value> = serde_json::from_slice(&about).unwrap();
    assert!(about.len() >= 40, "{}", about.len());
    let (left, wrong) = (Mutex::new(about.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((name, about)) = left.lock().unwrap().next() else { return };
                    let found = try_model(&place, &folder, name, about);
                    wrong.lock().unwrap().extend(found);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} models: {}", wrong.len(), wrong.join("\n"));
    let (is_right, said) = script("check");
    assert!(is_right, "{said}");
}
