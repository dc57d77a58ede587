//! `for_each`: the rows of a small table, each a list of names and values.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value as Json;

type Row = Vec<(String, String)>;

/// The rows of a csv, tsv, jsonl or ndjson file, which its name tells apart; else why it cannot be read, as a fragment.
pub(super) fn rows(path: &Path, bytes: &[u8], most: usize) -> Result<Vec<Row>, String> {
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

fn of_csv(bytes: &[u8], delimiter: u8, most: usize) -> Result<Vec<Row>, String> {
    let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).from_reader(bytes);
    let names = reader.headers().map_err(|e| e.to_string())?.clone();
    let mut seen = BTreeSet::new();
    if let Some(name) = names.iter().find(|name| !seen.insert(*name)) {
        return Err(format!("it has two columns `{name}`"));
    }
    let row = |record: csv::Result<csv::StringRecord>| {
        let record = record.map_err(|e| e.to_string())?;
        Ok(names.iter().map(str::to_owned).zip(record.iter().map(str::to_owned)).collect())
    };
    reader.records().take(most + 1).map(row).collect()
}

fn of_jsonl(bytes: &[u8], most: usize) -> Result<Vec<Row>, String> {
    let text = str::from_utf8(bytes).map_err(|_| "it is no UTF-8".to_owned())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let row = |(at, line): (usize, &str)| match serde_json::from_str(line) {
        Ok(Json::Object(fields)) => {
            Ok(fields.into_iter().map(|(name, value)| (name, in_text(&value))).collect())
        }
        Ok(_) => Err(format!("line {} is no object", at + 1)),
        Err(error) => Err(format!("line {}: {error}", at + 1)),
    };
    lines.take(most + 1).map(row).collect()
}

fn in_text(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Null => String::new(),
        other => other.to_string(),
    }
}
