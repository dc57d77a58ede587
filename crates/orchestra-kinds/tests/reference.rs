//! The pages of docs/reference about kinds are what the declarations of the kinds say. Run with `UPDATE_REFERENCE=1` to write them anew.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fmt::Write as _;
use std::path::Path;

use orchestra_plan::{Key, key};

/// The keys that the planner reads for every source.
const SOURCE_KEYS: [Key; 3] = [
    key("paths", "text or list", "none", "files, folders (with all below them) and globs"),
    key(
        "manifest",
        "text",
        "none",
        "instead of `paths`: a list of files: `.csv`, `.tsv`, `.jsonl`, `.ndjson`, or one path per line; `\"-\"` is standard input",
    ),
    key(
        "root",
        "text",
        "the manifest's folder",
        "only with `manifest`: what relative paths in it are relative to",
    ),
];

/// Those of every stage.
const STAGE_KEYS: [Key; 1] = [key(
    "from",
    "text or list",
    "required",
    "what it reads from: the name of a source or a stage, or `name.column` for one of its columns",
)];

/// Those of every sink.
const SINK_KEYS: [Key; 3] = [
    key(
        "from",
        "text or list",
        "required",
        "the stages whose results are written, or `stage.column` for one of their columns",
    ),
    key(
        "path",
        "text",
        "the name of the table, with the ending of the kind",
        "the file, in the output folder",
    ),
    key("ordered", "true or false", "false", "records in the order of the source"),
];

/// A kind, as its page shows it: its name, what it is, its keys.
type Entry = (&'static str, &'static str, &'static [Key]);

fn page(what: &str, common: &[Key], entries: &[Entry]) -> String {
    let mut page = format!(
        "# `[{what}s.NAME]`\n\nWritten from the declarations of the kinds (`crates/orchestra-kinds`); a test fails when it is stale.\n\n\
         Every {what} has these keys:\n\n"
    );
    table(&mut page, common);
    for (name, about, keys) in entries {
        write!(page, "\n## `kind = \"{name}\"`\n\n{about}\n").unwrap();
        if !keys.is_empty() {
            page.push('\n');
            table(&mut page, keys);
        }
    }
    page
}

fn table(page: &mut String, keys: &[Key]) {
    page.push_str("| Key | Type | Default | Meaning |\n|---|---|---|---|\n");
    for Key { name, ty, default, help } in keys {
        let is_value = !default.contains(' ') && !["required", "none"].contains(default);
        let default = if is_value { format!("`{default}`") } else { (*default).to_owned() };
        writeln!(page, "| `{name}` | {ty} | {default} | {help} |").unwrap();
    }
}

fn entries() -> [Vec<Entry>; 3] {
    let kinds = orchestra_kinds::builtin();
    // The declarations are constants; the objects that show them are not.
    let sources = Box::leak(kinds.sources.into_boxed_slice());
    let stages = Box::leak(kinds.stages.into_boxed_slice());
    let sinks = Box::leak(kinds.sinks.into_boxed_slice());
    [
        sources.iter().map(|kind| (kind.name(), kind.about(), kind.keys())).collect(),
        stages.iter().map(|kind| (kind.name(), kind.about(), kind.keys())).collect(),
        sinks.iter().map(|kind| (kind.name(), kind.about(), kind.keys())).collect(),
    ]
}

#[test]
fn the_pages_of_the_kinds_are_what_the_kinds_declare() {
    let [sources, stages, sinks] = entries();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    for (what, common, entries) in
        [("source", &SOURCE_KEYS[..], sources), ("stage", &STAGE_KEYS, stages), ("sink", &SINK_KEYS, sinks)]
    {
        let (file, text) = (folder.join(format!("{what}s.md")), page(what, common, &entries));
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&file, &text).unwrap();
        }
        let kept = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(kept == text, "{} is stale: run this test with UPDATE_REFERENCE=1", file.display());
    }
}

#[test]
fn every_key_is_declared_once_and_explained() {
    for (kind, about, keys) in entries().into_iter().flatten() {
        assert!(about.ends_with('.'), "{kind}");
        for (at, key) in keys.iter().enumerate() {
            assert!(keys[..at].iter().all(|other| other.name != key.name), "{kind}: {}", key.name);
            assert!(
                !key.help.is_empty() && !key.ty.is_empty() && !key.default.is_empty(),
                "{kind}: {}",
                key.name
            );
        }
    }
}
