//! The JSON Schema of a workflow file, for editors: made of the declarations of keys, as parsing and the reference pages are.
//! It refuses no file that `check` accepts, so a phrase that it does not know as a type says nothing about the value.

use orchestra_core::Word;
use serde_json::{Map, Value as Json, json};

use crate::key::Key;
use crate::keys;
use crate::kind::Kinds;
use crate::workflow::{declared, keys_of_sink};

/// A text with a variable in it, a value of a matrix or of a task, may stand for a value of any type.
const VARIABLE: &str = r"\{";
/// What tables may be called.
const NAMES: &str = "^[A-Za-z0-9_-]+$";

/// A kind, and all keys of its tables.
struct KindTable {
    name: &'static str,
    about: &'static str,
    keys: Vec<Key>,
}

/// The schema (draft-07) of workflow files that may name these kinds.
pub fn workflow_schema(kinds: &Kinds) -> Json {
    let sources = kinds.sources.iter().map(|kind| KindTable {
        name: kind.name(),
        about: kind.about(),
        keys: declared(if kind.has_files() { keys::SOURCE } else { &[] }, kind.keys()),
    });
    let stages = kinds.stages.iter().map(|kind| KindTable {
        name: kind.name(),
        about: kind.about(),
        keys: declared(keys::STAGE, kind.keys()),
    });
    let sinks = kinds.sinks.iter().map(|kind| KindTable {
        name: kind.name(),
        about: kind.about(),
        keys: declared(keys_of_sink(&**kind), kind.keys()),
    });
    let mut definitions = Map::new();
    let mut properties = properties_of(keys::TOP_LEVEL);
    let mut required = Map::new();
    for (group, about, tables) in [
        ("sources", "What names and reads items, by names.", distinct(sources)),
        ("stages", "What works on rows, by names.", distinct(stages)),
        ("sinks", "What writes records, by names.", distinct(sinks)),
    ] {
        let needs = tables.iter().map(|table| when(table.name, required_of(&table.keys)));
        let needs = open(json!({ "required": ["kind"], "allOf": needs.collect::<Vec<_>>() }));
        required.insert(group.into(), json!({ "additionalProperties": needs }));
        properties.insert(group.into(), named(about, table_of_a_kind(group, &tables, &mut definitions)));
    }
    for (group, about, keys) in [
        ("models", "ONNX files and how they are run, by names.", keys::MODEL),
        ("tasks", "Commands, by names.", keys::TASK),
        ("best", "The best of several tables of tasks, by names.", keys::BEST_OF),
        ("pipelines", "Limits of one of several graphs, by the names of their sources.", keys::PIPELINE),
    ] {
        required.insert(group.into(), json!({ "additionalProperties": required_of(keys) }));
        properties.insert(group.into(), named(about, table(keys)));
    }
    for (name, about, keys) in [
        ("devices", "What the run may use.", keys::DEVICES),
        ("limits", "When the run gives up waiting, items, or all.", keys::LIMITS),
        ("serve", "Where `orchestra serve` listens, and the bounds of requests.", keys::SERVE),
        ("telemetry", "Traces, metrics and log files.", keys::TELEMETRY),
    ] {
        properties.insert(name.into(), described(table(keys), about));
    }
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A workflow of orchestra",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
        "required": names_of_required(keys::TOP_LEVEL),
        "allOf": [open(json!({ "properties": required }))],
        "definitions": definitions,
    })
}

/// Of kinds with one name the last is meant, as in parsing.
fn distinct(tables: impl Iterator<Item = KindTable>) -> Vec<KindTable> {
    let mut distinct: Vec<KindTable> = Vec::new();
    for table in tables {
        distinct.retain(|other| other.name != table.name);
        distinct.push(table);
    }
    distinct
}

fn named(about: &str, each: Json) -> Json {
    let mut schema = typed(&["object"], None);
    schema.insert("propertyNames".into(), json!({ "pattern": NAMES }));
    schema.insert("additionalProperties".into(), each);
    described(Json::Object(schema), about)
}

/// A table whose kind decides about its keys; each kind becomes a definition.
fn table_of_a_kind(group: &str, tables: &[KindTable], definitions: &mut Map<String, Json>) -> Json {
    let place = |name: &str| json!({ "$ref": format!("#/definitions/{group}.{name}") });
    let names: Vec<&str> = tables.iter().map(|table| table.name).collect();
    let list: String = tables.iter().map(|t| format!("\n- `{}`: {}", t.name, plain(t.about))).collect();
    let kind = json!({
        "type": "string",
        "anyOf": [{ "enum": names }, { "pattern": VARIABLE }],
        "description": format!("{}:\n{list}", keys::KIND.help),
    });
    for KindTable { name, about, keys } in tables {
        let mut schema = table(keys);
        schema["properties"]["kind"] = json!({ "const": name, "description": plain(about) });
        definitions.insert(format!("{group}.{name}"), described(schema, about));
    }
    let mut schema = typed(&["object"], None);
    schema.insert("properties".into(), json!({ "kind": kind }));
    schema.insert("allOf".into(), names.iter().map(|name| when(name, place(name))).collect());
    // Editors that do not follow `then` offer the keys that they find here; with `true` it refuses nothing.
    schema.insert("anyOf".into(), [json!(true)].into_iter().chain(names.iter().map(|n| place(n))).collect());
    open(Json::Object(schema))
}

/// Says that other keys may be there: some editors warn of them elsewhere.
fn open(mut schema: Json) -> Json {
    schema["additionalProperties"] = json!(true);
    schema
}

/// `then`, for tables of this kind.
fn when(kind: &str, then: Json) -> Json {
    let is_it = json!({ "properties": { "kind": { "const": kind } }, "required": ["kind"] });
    json!({ "if": open(is_it), "then": then })
}

/// A table with these keys and no others.
fn table(keys: &[Key]) -> Json {
    let mut schema = typed(&["object"], None);
    add_keys(&mut schema, keys);
    Json::Object(schema)
}

fn add_keys(schema: &mut Map<String, Json>, keys: &[Key]) {
    schema.insert("properties".into(), Json::Object(properties_of(keys)));
    schema.insert("additionalProperties".into(), json!(false));
}

fn properties_of(keys: &[Key]) -> Map<String, Json> {
    keys.iter().map(|key| (key.name.to_owned(), property(key))).collect()
}

fn property(key: &Key) -> Json {
    let (types, items) = types(key.ty);
    let mut schema = typed(types, key.range);
    if !items.is_empty() {
        schema.insert("items".into(), Json::Object(typed(items, key.range)));
    }
    if !key.words.is_empty() {
        schema.insert("anyOf".into(), one_of(key.words, types));
    }
    if !key.keys.is_empty() {
        add_keys(&mut schema, key.keys);
    }
    let mut about = key.meaning();
    if !["required", "none"].contains(&key.default) {
        about += &format!("\n\nDefault: {}", key.default);
    }
    // What JSON and TOML write in the same way; other defaults are phrases.
    if let Ok(default) = serde_json::from_str::<Json>(key.default) {
        schema.insert("default".into(), default);
    }
    described(Json::Object(schema), &about)
}

/// One of these words, a text with a variable, or a value of another type than text.
fn one_of(words: &[Word], types: &[&str]) -> Json {
    let words: Vec<&str> = words.iter().map(|word| word.text).collect();
    let others: Vec<&str> = types.iter().copied().filter(|ty| *ty != "string").collect();
    let mut all = vec![json!({ "enum": words }), json!({ "type": "string", "pattern": VARIABLE })];
    if !others.is_empty() {
        all.push(json!({ "type": others }));
    }
    Json::Array(all)
}

/// The keys that must be there, also those of the tables within.
fn required_of(keys: &[Key]) -> Json {
    let within = keys.iter().filter(|key| !key.keys.is_empty());
    let within: Map<_, _> = within.map(|key| (key.name.to_owned(), required_of(key.keys))).collect();
    open(json!({ "required": names_of_required(keys), "properties": within }))
}

fn names_of_required(keys: &[Key]) -> Vec<&'static str> {
    // A kind with `inputs` reads from these instead.
    let has_inputs = keys.iter().any(|key| key.name == "inputs");
    let required = keys.iter().filter(|key| key.default == "required");
    required.map(|key| key.name).filter(|name| *name != "from" || !has_inputs).collect()
}

/// JSON's types of a value, by the phrase in its declaration; then those of the entries where it is a list. None: any type.
fn types(phrase: &str) -> (&'static [&'static str], &'static [&'static str]) {
    match phrase {
        "text" | "duration" => (&["string"], &[]),
        "text or list" => (&["string", "array"], &["string"]),
        "list or text" => (&["array", "string"], &[]),
        "text, list or table" => (&["string", "array", "object"], &["string"]),
        // What is one value is read as a list of it.
        "list" => (&["array", "string", "object"], &[]),
        "list of integers" | "two integers" => (&["array"], &["integer"]),
        "two numbers" => (&["array"], &["number"]),
        "integer" | "integer, not 0" => (&["integer"], &[]),
        // A list of one is read as a number.
        "number" | "number, 0 to 1" | "number or list" => (&["number", "array"], &["number"]),
        "text or number" => (&["string", "number"], &[]),
        "memory" | "size, up to 1 GiB" | "integer or percent" => (&["integer", "string"], &[]),
        "true or false" | "boolean" => (&["boolean"], &[]),
        "boolean or `\"auto\"`" => (&["boolean", "string"], &[]),
        "integer or table" => (&["integer", "object"], &[]),
        "table" | "table of lists" => (&["object"], &[]),
        _ => (&[], &[]),
    }
}

/// A value of one of these types, or a text with a variable; the bounds are those of a number.
fn typed(types: &[&str], range: Option<(u64, u64)>) -> Map<String, Json> {
    let mut schema = Map::new();
    let is_number = types.iter().any(|ty| ["integer", "number"].contains(ty));
    if let (true, Some((least, most))) = (is_number, range) {
        schema.insert("minimum".into(), json!(least));
        // Beyond that it is no bound: TOML has no larger integers.
        if most < u64::MAX >> 1 {
            schema.insert("maximum".into(), json!(most));
        }
    }
    match types {
        [] => {}
        ["string"] => drop(schema.insert("type".into(), json!("string"))),
        _ if types.contains(&"string") => drop(schema.insert("type".into(), json!(types))),
        _ => {
            schema.insert("type".into(), json!([types, &["string"]].concat()));
            schema.insert("pattern".into(), json!(VARIABLE));
        }
    }
    schema
}

fn described(mut schema: Json, about: &str) -> Json {
    schema["description"] = json!(plain(about));
    schema
}

/// The text without its links, which lead from the pages of the reference.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut left = text;
    while let Some((before, (_, after))) =
        left.split_once("](").and_then(|(before, rest)| Some((before, rest.split_once(')')?)))
    {
        let (outside, label) = before.rsplit_once('[').unwrap_or((before, ""));
        plain += outside;
        plain += label;
        left = after;
    }
    plain + left
}
