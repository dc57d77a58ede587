//! The first records of sinks whose files are text, and the pictures that sinks have written.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use orchestra_launch::OutputReport;
use serde_json::Value;

use super::pictures::{PictureFinder, Thumbnail};

/// Records of a sink.
const MOST_RECORDS: usize = 8;
/// Bytes of a record that are read, characters that are shown, and boxes that are drawn.
const MOST_BYTES: u64 = 256 << 10;
const MOST_CHARS: usize = 600;
const MOST_BOXES: usize = 60;

#[derive(Debug, Clone, Default)]
pub struct SinkSamples {
    pub sink: String,
    pub kind: String,
    /// Where its records are, relative to the output folder.
    pub path: PathBuf,
    pub samples: Vec<Sample>,
}

#[derive(Debug, Clone, Default)]
pub struct Sample {
    pub item: String,
    /// Its labels or texts in a few words; empty where it has none.
    pub words: String,
    /// The record, cut.
    pub record: String,
    pub picture: Option<Thumbnail>,
    pub boxes: Vec<LabelledBox>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct LabelledBox {
    /// Left, top, right, bottom in pixels of the picture.
    pub corners: [f64; 4],
    pub label: String,
}

pub fn read(folder: &Path, outputs: &[OutputReport], pictures: &mut PictureFinder) -> Vec<SinkSamples> {
    let of_sink = |output: &OutputReport| {
        let path = folder.join(&output.path);
        let lines = if output.url.is_some() { Vec::new() } else { first_lines(&path) };
        let samples = match output.kind.as_str() {
            "csv" => {
                lines.into_iter().map(|record| Sample { record: cut(&record), ..Sample::default() }).collect()
            }
            _ => lines.iter().filter_map(|line| sample(&path, line, pictures)).collect(),
        };
        SinkSamples {
            sink: output.sink.clone(),
            kind: output.kind.clone(),
            path: output.path.clone(),
            samples,
        }
    };
    outputs.iter().map(of_sink).collect()
}

/// Of a file of text; none of any other.
fn first_lines(path: &Path) -> Vec<String> {
    let is_text = path.extension().is_some_and(|end| end == "jsonl" || end == "csv");
    let is_file = path.symlink_metadata().is_ok_and(|meta| meta.is_file());
    let Some(file) = (is_text && is_file).then(|| File::open(path).ok()).flatten() else { return Vec::new() };
    let mut lines = BufReader::new(file.take(MOST_RECORDS as u64 * MOST_BYTES)).split(b'\n');
    let mut first = Vec::new();
    while first.len() < MOST_RECORDS
        && let Some(Ok(line)) = lines.next()
    {
        first.push(String::from_utf8_lossy(&line).into_owned());
    }
    first
}

/// A record of lines of JSON, or of the index of files.
fn sample(path: &Path, line: &str, pictures: &mut PictureFinder) -> Option<Sample> {
    let record: Value = serde_json::from_str(line).ok()?;
    let item = record.get("item")?.as_str()?.to_owned();
    let result = record.get("result");
    let written = record.get("file").and_then(Value::as_str).and_then(|file| {
        let file = path.parent()?.join(file);
        pictures.of_file(&file.canonicalize().ok()?, &item)
    });
    let mut boxes = Vec::new();
    let mut words = Vec::new();
    if let Some(result) = result {
        collect(result, &mut boxes, &mut words);
    }
    let source = record.get("source").and_then(Value::as_str).unwrap_or_default();
    let index = record.get("index").and_then(Value::as_u64).unwrap_or_default();
    let picture = written.or_else(|| pictures.of_item(source, index, &item));
    let record = cut(&result.unwrap_or(&record).to_string());
    Some(Sample { item, words: cut(&words.join(" · ")), record, picture, boxes })
}

/// Boxes with what is said of each, and labels and texts, at any depth.
fn collect(value: &Value, boxes: &mut Vec<LabelledBox>, words: &mut Vec<String>) {
    match value {
        Value::Array(values) => {
            // Classes come best first.
            let classes =
                values.iter().filter(|value| value.get("score").is_some() && value.get("box").is_none());
            let best_only = classes.count() == values.len() && values.len() > 1;
            for value in values.iter().take(if best_only { 1 } else { MOST_BOXES }) {
                collect(value, boxes, words);
            }
        }
        Value::Object(fields) => {
            let label = said_of(value);
            let corners = fields.get("box").and_then(Value::as_array).filter(|corners| corners.len() == 4);
            if let Some(corners) = corners.filter(|_| boxes.len() < MOST_BOXES) {
                let corner = |at: usize| corners[at].as_f64().unwrap_or_default();
                let corners = [corner(0), corner(1), corner(2), corner(3)];
                boxes.push(LabelledBox { corners, label: label.clone() });
            }
            if !label.is_empty() && words.len() < MOST_BOXES {
                words.push(label);
            }
            fields
                .values()
                .filter(|value| value.is_object() || value.is_array())
                .for_each(|value| collect(value, boxes, words));
        }
        _ => {}
    }
}

/// `cat 97 %`, or a text.
fn said_of(value: &Value) -> String {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let Some(name) = text("label").or_else(|| text("text")) else { return String::new() };
    match value.get("score").and_then(Value::as_f64) {
        Some(score) if text("label").is_some() => format!("{name} {:.0} %", score * 100.0),
        _ => name.to_owned(),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
