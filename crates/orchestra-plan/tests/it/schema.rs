//! The JSON Schema of workflow files has every key as it is declared, takes every file that is right, and refuses what is wrong.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::FakeHost;
use crate::common::schema::{SCHEMA, refusals, refusals_of};
use orchestra_plan::{
    Host as _, Key, Kinds, PlanOptions, SourceConnected, SourceContext, SourceKind, key, keys, keys_of_sink,
    workflow_schema,
};
use orchestra_testkit::workflow_file::WorkflowFile;
use serde_json::Value as Json;

fn good() -> WorkflowFile {
    WorkflowFile::new()
        .source("scans", "images", "paths = \"images/*.png\"")
        .model("digits", "digits.onnx")
        .stage("pixels", "image", "scans", "size = [32, 32]")
        .stage("run", "infer", "pixels", "model = \"digits\"\nbatch = { max = 8, wait = \"5ms\" }")
        .stage("class", "classify", "run", "top_k = 3")
        .results("class")
        .table(
            "tasks.train",
            "command = [\"python\", \"train.py\", 3]\nretries = { timeout = 2 }\n\
             best = { metric = \"loss\", goal = \"min\" }\nmetrics = [\"loss\"]",
        )
        .table("limits", "memory = \"4GiB\"")
}

/// All of `configs/*.toml` and `examples/*/workflow.toml`.
fn handed_out() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let entries = |folder: &str| fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let configs = entries("configs").filter(|path| path.extension().is_some_and(|end| end == "toml"));
    let examples = entries("examples").map(|path| path.join("workflow.toml")).filter(|path| path.exists());
    configs.chain(examples).collect()
}

/// The tables of kinds: group, kind, all keys.
fn tables_of_kinds(kinds: &Kinds) -> Vec<(&'static str, &'static str, Vec<Key>)> {
    let all = |common: &[Key], own: &[Key]| [&[keys::KIND], common, own].concat();
    let sources = kinds.sources.iter().map(|kind| {
        let common = if kind.has_files() { keys::SOURCE } else { &[] };
        ("sources", kind.name(), all(common, kind.keys()))
    });
    let stages = kinds.stages.iter().map(|kind| ("stages", kind.name(), all(keys::STAGE, kind.keys())));
    let sinks =
        kinds.sinks.iter().map(|kind| ("sinks", kind.name(), all(keys_of_sink(&**kind), kind.keys())));
    sources.chain(stages).chain(sinks).collect()
}

#[test]
fn every_file_that_is_handed_out_is_accepted() {
    let files = handed_out();
    assert!(files.len() >= 20, "{files:?}");
    let has_parquet = orchestra_kinds::builtin().sources.iter().any(|kind| kind.name() == "parquet");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        if has_parquet || !text.contains("\"parquet\"") {
            assert_eq!(refusals(&text), [""; 0], "{}", file.display());
        }
    }
}

#[test]
fn what_is_wrong_is_refused_where_it_stands() {
    assert_eq!(refusals(&good()), [""; 0]);
    for (right, wrong, refusal) in [
        ("version = 1", "", ": \"version\" is missing"),
        ("[limits]", "[limit]", "/limit: unknown key"),
        ("memory = \"4GiB\"", "memory = 0.5", "/limits/memory: 0.5 is none of"),
        ("memory = \"4GiB\"", "memori = \"4GiB\"", "/limits/memori: unknown key"),
        ("top_k = 3", "top_k = 0", "/stages/class/top_k: 0 is below 1"),
        ("top_k = 3", "top_k = 1000001", "/stages/class/top_k: 1000001 is above 1000000"),
        ("top_k = 3", "top_k = 1.5", "/stages/class/top_k: 1.5 is none of"),
        ("top_k = 3", "top_k = \"3\"", "/stages/class/top_k: \"3\" is not like"),
        ("top_k = 3", "topk = 3", "/stages/class/topk: unknown key"),
        // A key of another kind.
        ("top_k = 3", "rounds = 3", "/stages/class/rounds: unknown key"),
        ("kind = \"classify\"", "kind = \"clasify\"", "/stages/class/kind: \"clasify\" fits none of"),
        ("kind = \"classify\"", "kind = \"jsonl\"", "/stages/class/kind: \"jsonl\" fits none of"),
        ("kind = \"classify\"\n", "", "/stages/class: \"kind\" is missing"),
        ("from = \"run\"", "", "/stages/class: \"from\" is missing"),
        ("size = [32, 32]", "", "/stages/pixels: \"size\" is missing"),
        ("size = [32, 32]", "size = [32, 0]", "/stages/pixels/size/1: 0 is below 1"),
        ("size = [32, 32]", "size = 32", "/stages/pixels/size: 32 is none of"),
        ("max = 8", "max = 0", "/stages/run/batch/max: 0 is below 1"),
        ("max = 8", "least = 8", "/stages/run/batch/least: unknown key"),
        ("path = \"digits.onnx\"", "", "/models/digits: \"path\" is missing"),
        ("goal = \"min\"", "", "/tasks/train/best: \"goal\" is missing"),
        ("goal = \"min\"", "goal = \"least\"", "/tasks/train/best/goal: \"least\" fits none of"),
        ("goal = \"min\"", "goal = true", "/tasks/train/best/goal: true is none of"),
        ("size = [32, 32]", "size = [32, 32]\nfit = \"crop\"", "/stages/pixels/fit: \"crop\" fits none of"),
        ("timeout = 2", "timeout = 2000", "/tasks/train/retries/timeout: 2000 is above 1000"),
        ("retries = { timeout = 2 }", "retries = 2000", "/tasks/train/retries: 2000 is above 1000"),
        ("[tasks.train]", "[tasks.\"a b\"]", "/tasks/a b: \"a b\" is not like"),
    ] {
        assert_eq!(good().matches(right).count(), 1, "{right}");
        // The comma of an inline table goes with its last key.
        let text = good().replace(right, wrong).replace(", }", " }");
        let refusals = refusals(&text);
        assert!(refusals.iter().any(|found| found.starts_with(refusal)), "{wrong}: {refusals:?}");
    }
}

#[test]
fn a_variable_may_stand_for_any_value() {
    for (right, variable) in [
        ("top_k = 3", "top_k = \"${TOP}\""),
        ("goal = \"min\"", "goal = \"${GOAL}\""),
        ("size = [32, 32]", "size = \"${SIZES}\""),
        ("size = [32, 32]", "size = [32, \"${THREE:-32}\"]"),
        ("kind = \"classify\"", "kind = \"${KIND}\""),
        ("max = 8, ", "max = \"${THREE}\", "),
        ("batch = { max = 8, wait = \"5ms\" }", "batch = \"${BATCH}\""),
        ("[limits]\nmemory = \"4GiB\"", "[variables]\nlimits = { memory = 1 }"),
    ] {
        assert!(good().contains(right), "{right}");
        assert_eq!(refusals(&good().replace(right, variable)), [""; 0], "{variable}");
    }
}

#[test]
fn every_key_of_every_table_is_there_as_it_is_declared() {
    let of_kinds = tables_of_kinds(&orchestra_kinds::builtin());
    let of_kinds = of_kinds.into_iter().map(|(group, kind, keys)| {
        let schema = &SCHEMA["definitions"][format!("{group}.{kind}")];
        let reached = &SCHEMA["properties"][group]["additionalProperties"]["allOf"];
        let place = format!("#/definitions/{group}.{kind}");
        assert!(reached.as_array().unwrap().iter().any(|when| when["then"]["$ref"] == *place), "{place}");
        (format!("{group}.{kind}"), schema, keys)
    });
    let at = |name: &str| &SCHEMA["properties"][name];
    let tables = [
        ("models", &at("models")["additionalProperties"], keys::MODEL.to_vec()),
        ("tasks", &at("tasks")["additionalProperties"], keys::TASK.to_vec()),
        ("best", &at("best")["additionalProperties"], keys::BEST_OF.to_vec()),
        ("pipelines", &at("pipelines")["additionalProperties"], keys::PIPELINE.to_vec()),
        ("devices", at("devices"), keys::DEVICES.to_vec()),
        ("limits", at("limits"), keys::LIMITS.to_vec()),
        ("serve", at("serve"), keys::SERVE.to_vec()),
        ("telemetry", at("telemetry"), keys::TELEMETRY.to_vec()),
    ];
    let tables = tables.map(|(name, schema, keys)| (name.to_owned(), schema, keys));
    let mut n_keys = 0;
    for (name, schema, keys) in of_kinds.chain(tables) {
        n_keys += compare(&name, schema, &keys);
    }
    for key in keys::TOP_LEVEL {
        assert!(!at(key.name).is_null(), "{}", key.name);
    }
    assert!(n_keys > 300, "{n_keys}");
}

/// Compares a table, and those within, with its declaration; gives how many keys it has.
fn compare(name: &str, schema: &Json, keys: &[Key]) -> usize {
    let properties = schema["properties"].as_object().unwrap();
    let declared: BTreeSet<&str> = keys.iter().map(|key| key.name).collect();
    let found: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
    assert_eq!((found, &schema["additionalProperties"]), (declared, &Json::Bool(false)), "{name}");
    let mut n_keys = keys.len();
    for key in keys.iter().filter(|key| key.name != "kind") {
        let (place, schema) = (format!("{name}.{}", key.name), &properties[key.name]);
        assert!(!schema["type"].is_null(), "{place}: no type is known for `{}`", key.ty);
        let about = schema["description"].as_str().unwrap();
        assert!(!about.is_empty() && !about.contains("]("), "{place}: {about}");
        let is_value = format!("x = {}", key.default).parse::<toml_edit::DocumentMut>().is_ok();
        assert_eq!(schema.get("default").is_some(), is_value, "{place}: {}", key.default);
        if let Some((least, _)) = key.range {
            let bound = schema.get("minimum").or_else(|| schema["items"].get("minimum"));
            assert_eq!(bound, Some(&Json::from(least)), "{place}");
        }
        let words: Vec<&str> = key.words.iter().map(|word| word.text).collect();
        let listed = schema.get("anyOf").map(|any| any[0]["enum"].clone());
        assert_eq!(listed, (!words.is_empty()).then(|| words.clone().into()), "{place}");
        if let (false, Some(default)) = (words.is_empty(), key.default.strip_prefix('"').filter(|_| is_value))
        {
            assert!(words.contains(&default.trim_end_matches('"')), "{place}: {}", key.default);
        }
        if !key.keys.is_empty() {
            n_keys += compare(&place, schema, key.keys);
        }
    }
    n_keys
}

#[test]
fn check_demands_every_key_that_is_required() {
    let host = FakeHost::with_cores(2);
    let words = |texts: &[String], begin: &str, end: &str| -> BTreeSet<String> {
        let word = |text: &String| Some(text.split_once(begin)?.1.split_once(end)?.0.to_owned());
        texts.iter().filter_map(word).collect()
    };
    let mut n_required = 0;
    for (group, kind, _) in tables_of_kinds(&host.kinds()) {
        let text = format!("version = 1\n[{group}.it]\nkind = \"{kind}\"\n");
        let required = words(&refusals(&text), "/it: \"", "\" is missing");
        let demanded = words(&host.errors(&text, &PlanOptions::default()), "needs the key `", "`");
        assert!(required.is_subset(&demanded), "{group} of kind {kind}: {required:?}, {demanded:?}");
        n_required += required.len();
    }
    assert!(n_required > 30, "{n_required}");
}

/// A kind of a host's own.
struct Paint;

impl SourceKind for Paint {
    fn name(&self) -> &'static str {
        "range"
    }
    fn about(&self) -> &'static str {
        "Paint."
    }
    fn keys(&self) -> &'static [Key] {
        const KEYS: [Key; 1] = [key("tone", "colour", "red", "see [colours](colours.md)")];
        &KEYS
    }
    fn connect(&self, _: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
        None
    }
}

#[test]
fn a_kind_of_a_host_replaces_one_and_its_own_phrases_say_nothing_about_values() {
    let schema = workflow_schema(&orchestra_kinds::builtin().with_source(Paint));
    let text = "version = 1\n[sources.wall]\nkind = \"range\"\npaths = []\ntone = { r = 1 }\n";
    assert_eq!(refusals_of(&schema, text), [""; 0]);
    assert!(!refusals(text).is_empty());
    let tone = &schema["definitions"]["sources.range"]["properties"]["tone"];
    assert_eq!(*tone, serde_json::json!({ "description": "see colours\n\nDefault: red" }));
}
