//! `[sinks.*]`: reading the tables, and checking where their files would lie. Creates no file.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use orchestra_core::DType;
use orchestra_core::data::{Column, ColumnType, Schema, fixed_tensor};
use orchestra_core::shapes::Encoder;
use orchestra_store::is_url;

use crate::diagnostics::Diagnostics;
use crate::fields::{At, Fields};
use crate::keys;
use crate::kind::{Input, Kinds, Writes};
use crate::part_names::PartFilesPlan;
use crate::plan::BucketPlan;
use crate::raw::{RawSink, declared, kind};
use crate::store_parts::RecordParts;
use crate::tasks::TASKS_FOLDER;
use crate::tree::Table;

/// Names in the output folder that the run itself uses; no sink may lie at or below them.
pub const RESERVED: [&str; 5] =
    [orchestra_store::FAILURE_RECORDS, orchestra_store::RUN_SUMMARY, "logs", "journal", TASKS_FOLDER];

pub(crate) fn read(name: At<String>, table: &Table, kinds: &Kinds, diags: &mut Diagnostics) -> RawSink {
    let what = format!("sink `{}`", name.value);
    let names = kinds.sinks.iter().map(|kind| kind.name());
    let Some(kind) = kind(&what, table, name.span, names, |name| kinds.sink(name), diags) else {
        return RawSink {
            name,
            kind: None,
            table: table.clone(),
            from: Vec::new(),
            is_of_failures: false,
            path: None,
            rows_per_file: None,
            ordered: false,
        };
    };
    let keys = declared(&keys::SINK, kind.keys());
    let mut f = Fields::new(what, name.span, table, &keys, diags);
    let from = f.names("from", "name the stage whose results are written");
    let path = match (f.entry("path"), kind.writes()) {
        (Some(_), _) => f.string("path"),
        (None, Writes::Append | Writes::PartFiles) => {
            Some(At::new(format!("{}.{}", name.value, kind.extension()), name.span))
        }
        (None, Writes::FileEach) => Some(At::new(name.value.clone(), name.span)),
    };
    let ordered = f.value("ordered");
    // A kind that makes parts of its own reads it itself.
    let makes_parts = kind.writes() == Writes::PartFiles;
    let rows_per_file = if makes_parts { None } else { f.integer("rows_per_file") };
    let sink = RawSink {
        name,
        kind: Some(kind),
        table: table.clone(),
        from,
        is_of_failures: false,
        path,
        rows_per_file,
        ordered,
    };
    if let Some(rows) = sink.rows_per_file.as_ref().filter(|_| parts_end_with(&sink).is_none()) {
        let message = format!("sink `{}` makes no part files, so this has no effect", sink.name.value);
        diags.warning(rows.span, message).label("has no effect").help("leave it out");
    }
    sink
}

/// What a sink reads from that writes the failures of all pipelines of the run, unless a source or a stage is called so.
pub const FAILURES: &str = "failures";

#[must_use]
pub fn failure_schema() -> Schema {
    let column = |name: &str, ty| Column { name: name.to_owned(), ty };
    let attempts = ColumnType::Tensor(fixed_tensor("attempts", DType::I64, &[]));
    let texts = ["stage", "kind", "error"].map(|name| column(name, ColumnType::Text));
    Schema(texts.into_iter().chain([column("attempts", attempts)]).collect())
}

/// What lists the files of a sink whose records are files, in their folder.
pub(crate) const INDEX: &str = "index.jsonl";

/// The file of each sink relative to the output folder; `None` after an error.
pub(crate) fn check_paths(sinks: &[RawSink], diags: &mut Diagnostics) -> Vec<Option<PathBuf>> {
    check_prefixes(sinks, diags);
    let paths: Vec<_> = sinks.iter().map(|s| check_path(s, diags)).collect();
    for (later, path) in paths.iter().enumerate() {
        let (Some(path), Some(written)) = (path, &sinks[later].path) else { continue };
        for (earlier, other) in paths[..later].iter().enumerate() {
            let Some(other) = other else { continue };
            let (name, first) = (&sinks[later].name.value, &sinks[earlier].name.value);
            // A sink whose records are files has the whole folder.
            let (path, other) = (owned(&sinks[later], path), owned(&sinks[earlier], other));
            if path == other {
                diags
                    .error(
                        written.span,
                        format!("sinks `{first}` and `{name}` write to one place, `{}`", path.display()),
                    )
                    .help("give each sink a `path` of its own");
            } else if is_part(&sinks[later], path, other) || is_part(&sinks[earlier], other, path) {
                diags
                    .error(
                        written.span,
                        format!(
                            "sinks `{first}` and `{name}`: a part file of one would be the file of the other"
                        ),
                    )
                    .help("give each sink a `path` of its own");
            } else if path.starts_with(other) || other.starts_with(path) {
                diags
                    .error(
                        written.span,
                        format!("sinks `{first}` and `{name}`: one would lie inside of the other"),
                    )
                    .help("give each sink a `path` of its own");
            }
        }
    }
    paths
}

/// Each sink with what it writes, for a command: its file, its folder of files, the glob of its part files, or where these are in a store.
pub(crate) fn places(sinks: &[RawSink], paths: &[Option<PathBuf>], output: &Path) -> Vec<(String, String)> {
    let place = |(sink, path): (&RawSink, &Option<PathBuf>)| {
        let local = |path: &PathBuf| output.join(owned(sink, path)).display().to_string();
        let place = bucket_of(sink).map(|bucket| bucket.url).or(path.as_ref().map(local));
        // A path that is wrong was reported.
        (sink.name.value.clone(), place.unwrap_or_default())
    };
    sinks.iter().zip(paths).map(place).collect()
}

/// What no other sink may write to: the file of this one, or its folder of files.
fn owned<'a>(sink: &RawSink, path: &'a Path) -> &'a Path {
    if is_folder(sink) { path.parent().unwrap_or(path) } else { path }
}

/// Whether each record is a file of its own in the output folder.
fn is_folder(sink: &RawSink) -> bool {
    !writes_to_store(sink) && sink.kind.as_ref().is_some_and(|kind| kind.writes() == Writes::FileEach)
}

fn writes_to_store(sink: &RawSink) -> bool {
    sink.path.as_ref().is_some_and(|path| is_url(&path.value))
}

/// Of parts that hold files: they have this ending until the store has those files.
const BUNDLE: &str = "records";

/// What part files of the sink end with, if it writes such. In a store no object grows, so all kinds write parts there.
fn parts_end_with(sink: &RawSink) -> Option<&'static str> {
    let kind = sink.kind.as_ref()?;
    match (kind.writes(), writes_to_store(sink)) {
        (Writes::PartFiles, _) | (Writes::Append, true) => Some(kind.extension()),
        (Writes::FileEach, true) => Some(BUNDLE),
        (Writes::Append | Writes::FileEach, false) => None,
    }
}

/// The part files of a sink that writes such; `path` is that of [`check_paths`].
pub(crate) fn parts_of(sink: &RawSink, path: &Path) -> Option<PartFilesPlan> {
    crate::part_names::parts_of(parts_end_with(sink)?, path)
}

/// The encoder of a sink; one of parts where it writes to a store and its kind makes none.
pub(crate) fn connect(sink: &RawSink, input: &Input, diags: &mut Diagnostics) -> Option<Arc<dyn Encoder>> {
    let kind = sink.kind.as_ref()?;
    let (what, keys) = (format!("sink `{}`", sink.name.value), declared(&keys::SINK, kind.keys()));
    let mut fields = Fields::again(what, sink.name.span, &sink.table, &keys, diags);
    let encoder = kind.connect(input, &mut fields)?;
    let rows = sink.rows_per_file.as_ref().map(|rows| rows.value);
    Some(match writes_to_store(sink) && kind.writes() != Writes::PartFiles {
        true => Arc::new(RecordParts::new(encoder, rows)),
        false => encoder,
    })
}

/// Whether a part file of the sink, whose glob is `path`, could be called as `other`.
fn is_part(sink: &RawSink, path: &Path, other: &Path) -> bool {
    let number = parts_of(sink, path).and_then(|parts| parts.number_of(other.file_name()?));
    number.is_some() && path.parent() == other.parent()
}

/// What a prefix cannot have: it would be a pattern where it is read.
const GLOB_CHARACTERS: [char; 4] = ['*', '?', '[', '{'];

/// Where a sink that writes to a store has its part files until they are there; in the output folder.
const UPLOADING: &str = "uploading";

/// The prefix of a sink that writes to a store; [`check_paths`] has looked at it.
pub(crate) fn bucket_of(sink: &RawSink) -> Option<BucketPlan> {
    let url = prefix(&sink.path.as_ref().filter(|path| is_url(&path.value))?.value);
    Some(BucketPlan { url, store: sink.kind.as_ref()?.objects().ok()? })
}

fn prefix(url: &str) -> String {
    format!("{}/", url.trim_end_matches('/'))
}

/// Checks a URL; gives the glob of the part files that lie in the output folder until they are there.
fn check_url(sink: &RawSink, written: &At<String>, diags: &mut Diagnostics) -> Option<PathBuf> {
    let kind = sink.kind.as_ref()?;
    let message = format!("sink `{}` cannot write to `{}`", sink.name.value, written.value.escape_default());
    let store = match kind.objects() {
        Ok(store) => store,
        Err(help) => {
            diags.error(written.span, message).label(format!("its kind is `{}`", kind.name())).help(help);
            return None;
        }
    };
    let (_, rest) = written.value.split_once("://")?;
    let mut parts = rest.trim_end_matches('/').split('/');
    let is_plain =
        |part: &str| !["", ".", ".."].contains(&part) && !part.contains(|c: char| c.is_ascii_control());
    if !store.can_list(&written.value) || !parts.all(is_plain) || rest.contains(GLOB_CHARACTERS) {
        let help = "a bucket and a prefix of S3, Google or Azure, for example \"s3://bucket/results/\"";
        diags.error(written.span, message).help(help);
        return None;
    }
    let stem = Path::new(UPLOADING).join(&sink.name.value);
    Some(PartFilesPlan { stem, extension: parts_end_with(sink)? }.glob())
}

/// Two sinks that write to stores must not share a prefix: each has a manifest of all that lies there.
fn check_prefixes(sinks: &[RawSink], diags: &mut Diagnostics) {
    let urls: Vec<(&RawSink, &At<String>)> = sinks
        .iter()
        .filter_map(|sink| Some((sink, sink.path.as_ref().filter(|path| is_url(&path.value))?)))
        .filter(|(_, url)| !url.value.ends_with("://"))
        .collect();
    for (later, (sink, url)) in urls.iter().enumerate() {
        let is_shared = |(_, other): &&(&RawSink, &At<String>)| {
            let (url, other) = (prefix(&url.value), prefix(&other.value));
            url.starts_with(&other) || other.starts_with(&url)
        };
        if let Some((other, _)) = urls[..later].iter().find(is_shared) {
            let message = format!(
                "sinks `{}` and `{}`: one would write into the prefix of the other",
                other.name.value, sink.name.value
            );
            diags.error(url.span, message).help("give each sink a prefix of its own");
        }
    }
}

fn check_path(sink: &RawSink, diags: &mut Diagnostics) -> Option<PathBuf> {
    let written = sink.path.as_ref()?;
    if is_url(&written.value) {
        return check_url(sink, written, diags);
    }
    let mut path = PathBuf::new();
    let mut inside = !written.value.contains('\0') && (is_folder(sink) || !written.value.ends_with('/'));
    for part in Path::new(&written.value).components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            _ => inside = false,
        }
    }
    if !inside || path.as_os_str().is_empty() {
        diags
            .error(
                written.span,
                format!("sink `{}` cannot write to `{}`", sink.name.value, written.value.escape_default()),
            )
            .help("sink paths are files inside the output folder; --output chooses that folder");
        return None;
    }
    let first = path.components().next().map(|c| c.as_os_str().to_string_lossy().into_owned());
    let first = first.unwrap_or_default();
    if RESERVED.contains(&first.as_str()) || first.starts_with('.') {
        diags
            .error(written.span, format!("sink `{}` cannot write to `{}`", sink.name.value, written.value))
            .label("the run itself uses this name")
            .help(format!(
                "reserved: {} and names that start with a dot",
                crate::nearest::list(RESERVED.iter().copied())
            ));
        return None;
    }
    match sink.kind.as_ref().map(|kind| (kind.writes(), kind.extension())) {
        Some((Writes::FileEach, _)) => path.push(INDEX),
        Some((Writes::PartFiles, extension)) => {
            let stem =
                if path.extension().is_some_and(|e| e == extension) { path.with_extension("") } else { path };
            path = PartFilesPlan { stem, extension }.glob();
        }
        Some((Writes::Append, _)) | None => {}
    }
    Some(path)
}
