//! The pages of docs/reference are what the declarations of tables and kinds say. Run with `UPDATE_REFERENCE=1` to write them anew.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod feeds;

use std::fmt::Write as _;
use std::path::Path;

use orchestra_plan::{Key, keys};

/// A kind, as its page shows it: its name, what it is, its keys.
type Entry = (&'static str, &'static str, &'static [Key]);

fn page(what: &str, common: &[Key], entries: &[Entry]) -> String {
    let which = if what == "source" { " of files" } else { "" };
    let mut page = format!(
        "# `[{what}s.NAME]`\n\nWritten from the declarations of the kinds (`crates/orchestra-kinds`); a test fails when it is stale.\n\n\
         Every {what}{which} has these keys:\n\n"
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
    rows(page, "", keys);
}

fn rows(page: &mut String, of: &str, keys: &[Key]) {
    for key in keys {
        let Key { name, ty, range, keys, default, .. } = key;
        let is_value = !default.contains(' ') && !["required", "none"].contains(default);
        let default = if is_value { format!("`{default}`") } else { (*default).to_owned() };
        let each = if ["list", "two"].iter().any(|many| ty.contains(many)) { "each " } else { "" };
        let range = match range {
            None => String::new(),
            Some((least, most)) if *most >= u64::MAX >> 1 => format!(", {each}at least {least}"),
            Some((least, most)) => format!(", {each}{least} to {most}"),
        };
        writeln!(page, "| `{of}{name}` | {ty}{range} | {default} | {} |", key.meaning()).unwrap();
        rows(page, &format!("{of}{name}."), keys);
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
        [("source", keys::SOURCE, sources), ("stage", keys::STAGE, stages), ("sink", keys::SINK, sinks)]
    {
        must_be(&folder.join(format!("{what}s.md")), &page(what, common, &entries));
    }
    must_be(&folder.join("workflow.md"), &workflow_page());
}

#[test]
fn the_page_of_columns_is_what_the_planner_accepts() {
    // Without it the sink has no types.
    if cfg!(feature = "parquet") {
        must_be(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/columns.md"),
            &feeds::page(),
        );
    }
}

/// The page of the tables that are no kinds. What stands between them is in the template.
fn workflow_page() -> String {
    let mut page = include_str!("workflow.md.in").to_owned();
    for (name, keys) in [
        ("TOP_LEVEL", keys::TOP_LEVEL),
        ("MODEL", keys::MODEL),
        ("DEVICES", keys::DEVICES),
        ("TASK", keys::TASK),
        ("BEST_OF", keys::BEST_OF),
        ("LIMITS", keys::LIMITS),
        ("PIPELINE", keys::PIPELINE),
        ("SERVE", keys::SERVE),
        ("TELEMETRY", keys::TELEMETRY),
    ] {
        let mut rows = String::new();
        table(&mut rows, keys);
        let place = format!("{{{name}}}\n");
        assert!(page.contains(&place), "{name}");
        page = page.replace(&place, &rows);
    }
    page
}

/// Writes the page if asked, else compares it.
fn must_be(file: &Path, text: &str) {
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    let kept = std::fs::read_to_string(file).unwrap_or_default();
    assert!(kept == text, "{} is stale: run this test with UPDATE_REFERENCE=1", file.display());
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
            for (at, word) in key.words.iter().enumerate() {
                assert!(key.words[..at].iter().all(|other| other.text != word.text), "{kind}.{}", key.name);
            }
        }
    }
}
