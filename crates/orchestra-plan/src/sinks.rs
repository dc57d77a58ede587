//! Where the files of sinks would lie, and what writes them. Creates no file.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema, fixed_tensor};
use orchestra_core::shapes::Encoder;
use orchestra_core::{DType, ScriptProgram};
use orchestra_store::is_url;

use crate::cx::Cx;
use crate::diagnostics::{Diagnostics, Reported};
use crate::fields::{Fields, Spanned};
use crate::kind::{Input, SinkContext, SinkKind, Writes};
use crate::nearest::list;
use crate::part_names::PartFilesPlan;
use crate::plan::{BucketPlan, Limits, TASKS_FOLDER};
use crate::store_parts::RecordParts;
use crate::workflow::{SinkNode, declared, keys_of_sink};

/// Names in the output folder that the run itself uses; no sink may lie at or below them.
pub const RESERVED: [&str; 7] = [
    orchestra_store::FAILURE_RECORDS,
    orchestra_store::RUN_SUMMARY,
    orchestra_store::REPORT_PAGE,
    orchestra_store::COMPARED_PAGE,
    "logs",
    "journal",
    TASKS_FOLDER,
];

/// What a sink reads from that writes the failures of all pipelines of the run, unless a source or a stage is called so.
pub const FAILURES: &str = "failures";

pub fn failure_schema() -> Schema {
    let column = |name: &str, ty| Column { name: name.to_owned(), ty };
    let attempts = ColumnType::Tensor(fixed_tensor("attempts", DType::I64, &[]));
    let texts = ["stage", "kind", "error"].map(|name| column(name, ColumnType::Text));
    Schema(texts.into_iter().chain([column("attempts", attempts)]).collect())
}

/// What lists the files of a sink whose records are files, in their folder.
pub(crate) const INDEX: &str = "index.jsonl";

/// Finds the file of each sink, and reports those that would be in each other's way.
pub(crate) fn find_files(sinks: &mut [SinkNode], cx: &mut Cx<'_>) {
    check_prefixes(sinks, cx);
    for sink in &mut *sinks {
        if let (Some(rows), None) = (&sink.rows_per_file, parts_end_with(sink)) {
            let message = format!("sink `{}` makes no part files, so this has no effect", sink.name.value);
            cx.warning(rows.span, message).label("has no effect").help("leave it out");
        }
        sink.file = find_file(sink, cx).ok();
    }
    let in_files: Vec<&SinkNode> = sinks.iter().filter(|sink| !sink.replies()).collect();
    for (later, sink) in in_files.iter().enumerate() {
        let (Some(path), Some(written)) = (&sink.file, &sink.path) else { continue };
        for before in &in_files[..later] {
            let Some(other) = &before.file else { continue };
            let both = format!("sinks `{}` and `{}`", before.name.value, sink.name.value);
            // A sink whose records are files has the whole folder.
            let (path, other) = (owned(sink, path), owned(before, other));
            let message = if path == other {
                format!("{both} write to one place, `{}`", path.display())
            } else if is_part(sink, path, other) || is_part(before, other, path) {
                format!("{both}: a part file of one would be the file of the other")
            } else if path.starts_with(other) || other.starts_with(path) {
                format!("{both}: one would lie inside of the other")
            } else {
                continue;
            };
            cx.error(written.span, message).help("give each sink a `path` of its own");
        }
    }
}

/// Each sink with what it writes, for a command: its file, its folder of files, the glob of its part files, or where these are in a store.
pub(crate) fn places(sinks: &[SinkNode], output: &Path) -> Vec<(String, String)> {
    let place = |sink: &SinkNode| {
        let local = |path: &PathBuf| output.join(owned(sink, path)).display().to_string();
        let place = bucket_of(sink).map(|bucket| bucket.url).or(sink.file.as_ref().map(local));
        // A path that is wrong was reported.
        (sink.name.value.clone(), place.unwrap_or_default())
    };
    sinks.iter().map(place).collect()
}

/// What no other sink may write to: the file of this one, or its folder of files.
fn owned<'a>(sink: &SinkNode, path: &'a Path) -> &'a Path {
    if is_folder(sink) { path.parent().unwrap_or(path) } else { path }
}

/// Whether each record is a file of its own in the output folder.
fn is_folder(sink: &SinkNode) -> bool {
    !writes_to_store(sink) && sink.kind.as_ref().is_some_and(|kind| kind.writes() == Writes::FileEach)
}

fn writes_to_store(sink: &SinkNode) -> bool {
    sink.path.as_ref().is_some_and(|path| is_url(&path.value))
}

/// Of parts that hold files: they have this ending until the store has those files.
const BUNDLE: &str = "records";

/// What part files of the sink end with, if it writes such. In a store no object grows, so all kinds write parts there.
fn parts_end_with(sink: &SinkNode) -> Option<&'static str> {
    let kind = sink.kind.as_ref()?;
    match (kind.writes(), writes_to_store(sink)) {
        (Writes::PartFiles, _) | (Writes::Append, true) => Some(kind.extension()),
        (Writes::FileEach, true) => Some(BUNDLE),
        (Writes::Append | Writes::FileEach, false) | (Writes::Reply, _) => None,
    }
}

/// The part files of a sink that writes such; `path` is that of [`find_files`].
pub(crate) fn parts_of(sink: &SinkNode, path: &Path) -> Option<PartFilesPlan> {
    crate::part_names::parts_of(parts_end_with(sink)?, path)
}

/// The encoder of a sink; one of parts where it writes to a store and its kind makes none.
pub(crate) fn encoder(sink: &SinkNode, input: &Input, cx: &mut Cx<'_>) -> Result<Arc<dyn Encoder>, Reported> {
    let kind = sink.kind.as_ref().ok_or(Reported)?;
    let mut fields = fields(sink, &**kind, &mut cx.diags);
    let encoder = kind.connect(input, &mut fields).ok_or(Reported)?;
    let rows = sink.rows_per_file.as_ref().map(|rows| rows.value);
    Ok(match writes_to_store(sink) && kind.writes() != Writes::PartFiles {
        true => Arc::new(RecordParts::new(encoder, rows)),
        false => encoder,
    })
}

/// Reports what is wrong with the keys of its kind.
pub(crate) fn check_keys(sink: &SinkNode, cx: &mut Cx<'_>) {
    if let Some(kind) = &sink.kind {
        kind.read(&mut fields(sink, &**kind, &mut cx.diags));
    }
}

fn fields<'a, 'd>(sink: &'a SinkNode, kind: &dyn SinkKind, diags: &'d mut Diagnostics) -> Fields<'a, 'd> {
    let (what, keys) = (format!("sink `{}`", sink.name.value), declared(keys_of_sink(kind), kind.keys()));
    Fields::again(what, sink.name.span, &sink.table, &keys, diags)
}

/// The program that takes the parts of a sink, where one does.
pub(crate) fn script(
    sink: &SinkNode,
    input: &Input,
    limits: &Limits,
    cx: &mut Cx<'_>,
) -> Result<Option<ScriptProgram>, Reported> {
    let kind = sink.kind.as_ref().ok_or(Reported)?;
    let fields = fields(sink, &**kind, &mut cx.diags);
    kind.script(&mut SinkContext { fields, input, limits, host: cx.host, folder: &cx.folder })
}

/// Whether a part file of the sink, whose glob is `path`, could be called as `other`.
fn is_part(sink: &SinkNode, path: &Path, other: &Path) -> bool {
    let number = parts_of(sink, path).and_then(|parts| parts.number_of(other.file_name()?));
    number.is_some() && path.parent() == other.parent()
}

/// What a prefix cannot have: it would be a pattern where it is read.
const GLOB_CHARACTERS: [char; 4] = ['*', '?', '[', '{'];

/// Where a sink that writes to a store has its part files until they are there; in the output folder.
const UPLOADING: &str = "uploading";

/// The prefix of a sink that writes to a store; [`find_files`] has looked at it.
pub(crate) fn bucket_of(sink: &SinkNode) -> Option<BucketPlan> {
    let url = prefix(&sink.path.as_ref().filter(|path| is_url(&path.value))?.value);
    Some(BucketPlan { url, store: sink.kind.as_ref()?.objects().ok()? })
}

fn prefix(url: &str) -> String {
    format!("{}/", url.trim_end_matches('/'))
}

/// Checks a URL; gives the glob of the part files that lie in the output folder until they are there.
fn check_url(sink: &SinkNode, written: &Spanned<String>, cx: &mut Cx<'_>) -> Result<PathBuf, Reported> {
    let kind = sink.kind.as_ref().ok_or(Reported)?;
    let message = format!("sink `{}` cannot write to `{}`", sink.name.value, written.value.escape_default());
    let store = match kind.objects() {
        Ok(store) => store,
        Err(help) => {
            let label = format!("its kind is `{}`", kind.name());
            return cx.error(written.span, message).label(label).help(help).fail();
        }
    };
    let (_, rest) = written.value.split_once("://").unwrap_or_default();
    let mut parts = rest.trim_end_matches('/').split('/');
    let is_plain =
        |part: &str| !["", ".", ".."].contains(&part) && !part.contains(|c: char| c.is_ascii_control());
    if !store.can_list(&written.value) || !parts.all(is_plain) || rest.contains(GLOB_CHARACTERS) {
        let help = "a bucket and a prefix of S3, Google or Azure, for example \"s3://bucket/results/\"";
        return cx.error(written.span, message).help(help).fail();
    }
    let stem = Path::new(UPLOADING).join(&sink.name.value);
    Ok(PartFilesPlan { stem, extension: parts_end_with(sink).ok_or(Reported)? }.glob())
}

/// Two sinks that write to stores must not share a prefix: each has a manifest of all that lies there.
fn check_prefixes(sinks: &[SinkNode], cx: &mut Cx<'_>) {
    let urls: Vec<(&SinkNode, &Spanned<String>)> = sinks
        .iter()
        .filter_map(|sink| Some((sink, sink.path.as_ref().filter(|path| is_url(&path.value))?)))
        .filter(|(_, url)| !url.value.ends_with("://"))
        .collect();
    for (later, (sink, url)) in urls.iter().enumerate() {
        let is_shared = |(_, other): &&(&SinkNode, &Spanned<String>)| {
            let (url, other) = (prefix(&url.value), prefix(&other.value));
            url.starts_with(&other) || other.starts_with(&url)
        };
        if let Some((other, _)) = urls[..later].iter().find(is_shared) {
            let (other, sink) = (&other.name.value, &sink.name.value);
            let message =
                format!("sinks `{other}` and `{sink}`: one would write into the prefix of the other");
            cx.error(url.span, message).help("give each sink a prefix of its own");
        }
    }
}

fn find_file(sink: &SinkNode, cx: &mut Cx<'_>) -> Result<PathBuf, Reported> {
    if sink.replies() {
        return Ok(PathBuf::new());
    }
    let written = sink.path.as_ref().ok_or(Reported)?;
    if is_url(&written.value) {
        return check_url(sink, written, cx);
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
    let message = format!("sink `{}` cannot write to `{}`", sink.name.value, written.value.escape_default());
    if !inside || path.as_os_str().is_empty() {
        let help = format!(
            "sink paths are files inside the output folder; {} chooses that folder",
            cx.diags.option("output")
        );
        return cx.error(written.span, message).help(help).fail();
    }
    let first = path.components().next().map(|c| c.as_os_str().to_string_lossy().into_owned());
    let first = first.unwrap_or_default();
    if RESERVED.contains(&first.as_str()) || first.starts_with('.') {
        let help = format!("reserved: {} and names that start with a dot", list(RESERVED));
        return cx.error(written.span, message).label("the run itself uses this name").help(help).fail();
    }
    match sink.kind.as_ref().map(|kind| (kind.writes(), kind.extension())) {
        Some((Writes::FileEach, _)) => path.push(INDEX),
        Some((Writes::PartFiles, extension)) => {
            let stem =
                if path.extension().is_some_and(|e| e == extension) { path.with_extension("") } else { path };
            path = PartFilesPlan { stem, extension }.glob();
        }
        Some((Writes::Append | Writes::Reply, _)) | None => {}
    }
    Ok(path)
}
