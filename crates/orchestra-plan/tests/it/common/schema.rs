//! Checks a workflow file against the JSON Schema that editors get: the keywords that this schema has, and no others.

use std::sync::LazyLock;

use orchestra_plan::workflow_schema;
use regex_lite::Regex;
use serde_json::{Value as Json, json};
use toml_edit::Value as Toml;

/// The schema of files that may name the kinds that orchestra brings along.
pub static SCHEMA: LazyLock<Json> = LazyLock::new(|| workflow_schema(&orchestra_kinds::builtin()));

/// What the schema refuses in a file, each with its place; empty where nothing is wrong.
pub fn refusals(text: &str) -> Vec<String> {
    refusals_of(&SCHEMA, text)
}

pub fn refusals_of(schema: &Json, text: &str) -> Vec<String> {
    let document = text.parse::<toml_edit::DocumentMut>().unwrap();
    let file = json_of(&Toml::InlineTable(document.as_table().clone().into_inline_table()));
    let mut refusals = Vec::new();
    check(schema, schema, &file, "", &mut refusals);
    refusals
}

fn json_of(value: &Toml) -> Json {
    match value {
        Toml::String(text) => json!(text.value()),
        Toml::Integer(n) => json!(n.value()),
        Toml::Float(n) => json!(n.value()),
        Toml::Boolean(is) => json!(is.value()),
        Toml::Datetime(time) => json!(time.to_string()),
        Toml::Array(values) => values.iter().map(json_of).collect(),
        Toml::InlineTable(table) => {
            table.iter().map(|(key, value)| (key.to_owned(), json_of(value))).collect()
        }
    }
}

fn check(root: &Json, schema: &Json, value: &Json, at: &str, refusals: &mut Vec<String>) {
    let keywords = match schema {
        Json::Bool(true) => return,
        Json::Bool(false) => return refusals.push(format!("{at}: unknown key")),
        schema => schema.as_object().unwrap(),
    };
    let fits = |schema: &Json| {
        let mut refusals = Vec::new();
        check(root, schema, value, at, &mut refusals);
        refusals.is_empty()
    };
    for (keyword, says) in keywords {
        let all = || says.as_array().unwrap();
        match &keyword[..] {
            "$schema" | "title" | "description" | "default" | "definitions" => {}
            // Looked at with `if`.
            "then" | "else" => assert!(keywords.contains_key("if"), "{schema}"),
            "$ref" => {
                assert_eq!(keywords.len(), 1, "what stands beside `$ref` is ignored: {schema}");
                let place = root.pointer(says.as_str().unwrap().strip_prefix('#').unwrap()).unwrap();
                check(root, place, value, at, refusals);
            }
            "type" => {
                let types = says.as_array().cloned().unwrap_or_else(|| vec![says.clone()]);
                if !types.iter().any(|ty| is_a(value, ty.as_str().unwrap())) {
                    refusals.push(format!("{at}: {value} is none of {types:?}"));
                }
            }
            "enum" if !all().contains(value) => refusals.push(format!("{at}: {value} is none of {says}")),
            "const" if says != value => refusals.push(format!("{at}: {value} is not {says}")),
            "enum" | "const" => {}
            "minimum" if value.as_f64() < says.as_f64() && value.is_number() => {
                refusals.push(format!("{at}: {value} is below {says}"));
            }
            "maximum" if value.as_f64() > says.as_f64() && value.is_number() => {
                refusals.push(format!("{at}: {value} is above {says}"));
            }
            "minimum" | "maximum" => assert!(says.is_u64(), "{schema}"),
            "pattern" => {
                let pattern = Regex::new(says.as_str().unwrap()).unwrap();
                if value.as_str().is_some_and(|text| !pattern.is_match(text)) {
                    refusals.push(format!("{at}: {value} is not like {says}"));
                }
            }
            "required" => {
                let missing = all()
                    .iter()
                    .filter(|key| value.is_object() && value.get(key.as_str().unwrap()).is_none());
                refusals.extend(missing.map(|key| format!("{at}: {key} is missing")));
            }
            "properties" => {
                for (key, schema) in says.as_object().unwrap() {
                    if let Some(value) = value.get(key) {
                        check(root, schema, value, &format!("{at}/{key}"), refusals);
                    }
                }
            }
            "additionalProperties" => {
                let is_other =
                    |key: &str| keywords.get("properties").is_none_or(|known| known.get(key).is_none());
                for (key, value) in value.as_object().into_iter().flatten().filter(|(key, _)| is_other(key)) {
                    check(root, says, value, &format!("{at}/{key}"), refusals);
                }
            }
            "propertyNames" => {
                for (key, _) in value.as_object().into_iter().flatten() {
                    check(root, says, &json!(key), &format!("{at}/{key}"), refusals);
                }
            }
            "items" => {
                for (n, value) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, says, value, &format!("{at}/{n}"), refusals);
                }
            }
            "allOf" => all().iter().for_each(|schema| check(root, schema, value, at, refusals)),
            "anyOf" if !all().iter().any(fits) => refusals.push(format!("{at}: {value} fits none of {says}")),
            "anyOf" => {}
            "if" => {
                let then = keywords.get(if fits(says) { "then" } else { "else" });
                check(root, then.unwrap_or(&json!(true)), value, at, refusals);
            }
            other => panic!("the schema has a keyword that is not checked: {other}"),
        }
    }
}

fn is_a(value: &Json, ty: &str) -> bool {
    match ty {
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => panic!("{ty}"),
    }
}
