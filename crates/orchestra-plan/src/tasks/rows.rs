//! `for_each`: the rows of a small table, each a list of names and values.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value as Json;

/// Most columns of a table: each name is compared with the others of its task.
const MAX_COLUMNS: usize = 1000;
/// Memory for the values of all rows, with their names, in MiB.
const MAX_MIB: usize = 128;
/// Longest line of JSON: what it holds takes many times as much while it is read.
const MAX_LINE: usize = 1 << 20;

pub(super) type TaskValues = Vec<(String, String)>;

/// The rows of a csv, tsv, jsonl or ndjson file, which its name tells apart; else why it cannot be read, as a fragment.
pub(super) fn rows(path: &Path, bytes: &[u8], most: usize) -> Result<Vec<TaskValues>, String> {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    let rows = match &ending[..] {
        "csv" => of_csv(bytes, b',', most),
        "tsv" => of_csv(bytes, b'\t', most),
        "jsonl" | "ndjson" => of_jsonl(bytes, most),
        _ => Err("its name ends in none of `.csv`, `.tsv`, `.jsonl` and `.ndjson`".to_owned()),
    }?;
    match rows.len() {
        0 => Err("it has no rows".to_owned()),
        n if n > most => Err(format!("it has more than {most} rows")),
        _ => Ok(rows),
    }
}

fn of_csv(bytes: &[u8], delimiter: u8, most: usize) -> Result<Vec<TaskValues>, String> {
    let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).from_reader(bytes);
    let names = reader.headers().map_err(|e| e.to_string())?.clone();
    check_columns(names.len())?;
    let mut seen = BTreeSet::new();
    if let Some(name) = names.iter().find(|name| !seen.insert(*name)) {
        return Err(format!("it has two columns `{name}`"));
    }
    let row = |record: csv::Result<csv::StringRecord>| {
        let record = record.map_err(|e| e.to_string())?;
        Ok(names.iter().map(str::to_owned).zip(record.iter().map(str::to_owned)).collect())
    };
    bounded(reader.records().take(most + 1).map(row))
}

fn of_jsonl(bytes: &[u8], most: usize) -> Result<Vec<TaskValues>, String> {
    let text = str::from_utf8(bytes).map_err(|_| "it is no UTF-8".to_owned())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |line: &str| (line.len() <= MAX_LINE).then(|| serde_json::from_str(line));
    let row = |(at, line): (usize, &str)| match parse(line) {
        None => Err(format!("line {} is longer than 1 MiB", at + 1)),
        Some(Ok(Json::Object(fields))) => {
            check_columns(fields.len())?;
            Ok(fields.into_iter().map(|(name, value)| (name, in_text(&value))).collect())
        }
        Some(Ok(_)) => Err(format!("line {} is no object", at + 1)),
        Some(Err(error)) => Err(format!("line {}: {error}", at + 1)),
    };
    bounded(lines.take(most + 1).map(row))
}

fn check_columns(n: usize) -> Result<(), String> {
    if n > MAX_COLUMNS { Err(format!("it has {n} columns; {MAX_COLUMNS} is the most")) } else { Ok(()) }
}

fn bounded(rows: impl Iterator<Item = Result<TaskValues, String>>) -> Result<Vec<TaskValues>, String> {
    let mut taken = 0;
    let counted = rows.map(|row| {
        let row = row?;
        taken += memory(&row);
        if taken > MAX_MIB << 20 { Err(format!("its values take more than {MAX_MIB} MiB")) } else { Ok(row) }
    });
    counted.collect()
}

/// What a row takes, at most.
pub(super) fn memory(row: &TaskValues) -> usize {
    row.iter().map(|(name, value)| 80 + name.len() + value.len()).sum()
}

fn in_text(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Null => String::new(),
        other => other.to_string(),
    }
}
