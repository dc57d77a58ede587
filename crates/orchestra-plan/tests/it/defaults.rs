//! A default that is declared for a key is the one that is used: with it written out, the plan is the same.

use std::collections::BTreeSet;

use crate::common::FakeHost;
use orchestra_plan::{Host, Key, Plan, PlanOptions, RenderStyle, keys};
use serde_json::Value;

/// Tables of kinds that have defaults.
const WORKFLOW: &str = include_str!("../defaults.toml");

/// The tables of the text: the line of each, and its keys.
fn tables(host: &FakeHost) -> Vec<(usize, String, Vec<Key>)> {
    let kinds = host.kinds();
    let lines: Vec<&str> = WORKFLOW.lines().collect();
    let of_kind = |at: usize| lines[at + 1].strip_prefix("kind = \"").and_then(|rest| rest.strip_suffix('"'));
    let headings = lines.iter().enumerate().filter_map(|(at, line)| {
        let name = line.strip_prefix('[')?.strip_suffix(']')?;
        let nested =
            |keys: &[Key], name: &str| keys.iter().find(|key| key.name == name).unwrap().keys.to_vec();
        let (what, keys) = match (&name.split('.').collect::<Vec<_>>()[..], of_kind(at)) {
            (["devices"], _) => (name.to_owned(), keys::DEVICES.to_vec()),
            (["limits"], _) => (name.to_owned(), keys::LIMITS.to_vec()),
            (["models", _], _) => ("model".to_owned(), keys::MODEL.to_vec()),
            (["tasks", _], _) => ("task".to_owned(), keys::TASK.to_vec()),
            (["tasks", _, table], _) => (format!("task.{table}"), nested(keys::TASK, table)),
            (["stages", _, table], _) => {
                let infer = kinds.stage("infer").unwrap();
                (format!("infer.{table}"), nested(infer.keys(), table))
            }
            (["sources", _], Some(kind)) => {
                let kind = kinds.source(kind).unwrap();
                let of_all = if kind.has_files() { keys::SOURCE } else { &[] };
                (format!("source {}", kind.name()), [of_all, kind.keys()].concat())
            }
            (["stages", _], Some(kind)) => {
                let keys = kinds.stage(kind).unwrap().keys();
                (format!("stage {kind}"), keys.to_vec())
            }
            (["sinks", _], Some(kind)) => {
                let keys = kinds.sink(kind).unwrap().keys();
                (format!("sink {kind}"), [keys::SINK, keys].concat())
            }
            _ => panic!("{name}"),
        };
        Some((at, what, keys))
    });
    headings.collect()
}

/// A default that can be written as it is declared.
fn is_value(default: &str) -> bool {
    format!("x = {default}").parse::<toml_edit::DocumentMut>().is_ok()
}

fn plan(host: &FakeHost, text: &str) -> Result<Value, String> {
    let (plan, diags) = host.plan(text, &PlanOptions::default());
    match plan {
        // Reasons may say that something is as asked.
        Some(plan) => Ok(serde_json::to_value(Plan { reasons: Vec::new(), ..plan }).unwrap()),
        None => Err(diags.render(RenderStyle::Plain)),
    }
}

/// The head of an array of NumPy with five rows of three numbers.
fn npy() -> Vec<u8> {
    let head = format!("{:117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 3), }");
    [b"\x93NUMPY\x01\x00", &118_u16.to_le_bytes()[..], head.as_bytes(), &[0; 60]].concat()
}

/// The kinds of which no default has been tried, although one can be written as it is declared.
fn kinds_without(host: &FakeHost, tried: &BTreeSet<(String, &'static str)>) -> Vec<String> {
    let kinds = host.kinds();
    let sources = kinds.sources.iter().map(|kind| (format!("source {}", kind.name()), kind.keys()));
    let stages = kinds.stages.iter().map(|kind| (format!("stage {}", kind.name()), kind.keys()));
    let sinks = kinds.sinks.iter().map(|kind| (format!("sink {}", kind.name()), kind.keys()));
    let is_missing = |(what, keys): &(String, &[Key])| {
        let keys = keys.iter().filter(|key| is_value(key.default));
        keys.clone().count() > 0 && !keys.into_iter().any(|key| tried.contains(&(what.clone(), key.name)))
    };
    sources.chain(stages).chain(sinks).filter(is_missing).map(|(what, _)| what).collect()
}

#[test]
fn a_default_that_is_written_out_changes_no_plan() {
    let host = FakeHost::with_gpus(1)
        .file("/flows/k.cu", "extern \"C\" __global__ void k() {}")
        .file("/flows/table.csv", "n,caption\n1,a\n")
        .bytes("/flows/arrays.npy", npy());
    let without = plan(&host, WORKFLOW).unwrap();
    let (mut tried, mut refused, mut wrong) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for (at, table, keys) in tables(&host) {
        let lines: Vec<&str> = WORKFLOW.lines().collect();
        let end =
            lines[at + 1..].iter().position(|line| line.starts_with('[')).map_or(lines.len(), |n| at + 1 + n);
        let is_there = |name: &str| lines[at..end].iter().any(|line| line.starts_with(&format!("{name} = ")));
        let is_table = |name: &str| lines.contains(&&*format!("{}.{name}]", lines[at].trim_end_matches(']')));
        for key in
            keys.iter().filter(|key| is_value(key.default) && !is_there(key.name) && !is_table(key.name))
        {
            // What all sources have need be tried of one alone.
            let table = if keys::SOURCE.contains(key) { "source".to_owned() } else { table.clone() };
            let line = format!("{} = {}", key.name, key.default);
            let mut with = lines.clone();
            with.insert(end, &line);
            match plan(&host, &with.join("\n")) {
                Ok(with) if with == without => {}
                Ok(_) => wrong.push(format!("{table}: {line} gives another plan")),
                // It belongs to other settings of the same kind, and says so.
                Err(error) if error.contains("no effect") || error.contains("belongs to") => {
                    refused.insert((table, key.name));
                    continue;
                }
                Err(error) => wrong.push(format!("{table}: {line}\n{error}")),
            }
            tried.insert((table, key.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let refused: Vec<_> = refused.difference(&tried).map(|(table, key)| format!("{table}.{key}")).collect();
    assert_eq!(refused, [""; 0], "defaults that were never compared");
    assert_eq!(kinds_without(&host, &tried), [""; 0], "defaults of kinds that no table of the workflow has");
}
