//! What documents say that a program can check: they name files that exist and keep to their length, and the crates that know no kind name none.
//! Says nothing about what they say of these files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::repository;
use orchestra_launch::kind::Kinds;

/// What ends the name of a file of this repository.
const EXTENSIONS: [&str; 4] = [".rs", ".sh", ".py", ".toml"];

/// Names of files that are not of this repository: the document, and the name as it stands there.
const EXAMPLES: [(&str, &str); 2] = [
    ("docs/guide/kinds.md", "crates/orchestra-kinds/src/stages/invert.rs"), // that a reader adds
    ("docs/guide/python.md", "stage.py"),                                   // that a reader writes
];

/// Documents that are read from the first line to the last one, and their largest number of lines.
const LENGTHS: [(&str, usize); 2] = [("README.md", 150), ("ARCHITECTURE.md", 150)];

const A_SCREEN: usize = 45;

/// Sources of crates that know no kind.
const WITHOUT_KINDS: [&str; 4] = [
    "crates/orchestra-plan/src/",
    "crates/orchestra-runtime/src/",
    "crates/orchestra-telemetry/src/",
    "crates/orchestra-cli/src/",
];

/// Where these have the name of a kind between quotes: the file, the name, and what it is there.
const NO_KINDS: [(&str, &str, &str); 20] = [
    ("crates/orchestra-cli/src/doctor/cuda.rs", "cuda", "a finding of `doctor`"),
    ("crates/orchestra-plan/src/devices.rs", "cuda", "a device"),
    ("crates/orchestra-plan/src/connect/remedy.rs", "select", "help"),
    ("crates/orchestra-plan/src/graph.rs", "csv", "help"),
    ("crates/orchestra-plan/src/graph.rs", "jsonl", "help"),
    ("crates/orchestra-plan/src/graph.rs", "select", "help"),
    ("crates/orchestra-plan/src/requests.rs", "request", "help"),
    ("crates/orchestra-plan/src/requests.rs", "reply", "help"),
    ("crates/orchestra-plan/src/requests.rs", "jsonl", "help"),
    ("crates/orchestra-runtime/src/requests/flow.rs", "request", "help"),
    ("crates/orchestra-runtime/src/start/error.rs", "images", "help"),
    ("crates/orchestra-runtime/src/start/error.rs", "jsonl", "help"),
    ("crates/orchestra-plan/src/keys/workers.rs", "cuda", "a word of `provider`"),
    ("crates/orchestra-plan/src/workflow/tasks.rs", "python", "a program, in help"),
    ("crates/orchestra-plan/src/tasks/rows.rs", "csv", "the end of the name of a table"),
    ("crates/orchestra-plan/src/tasks/rows.rs", "jsonl", "the end of the name of a table"),
    ("crates/orchestra-plan/src/connect/remedy.rs", "image", "help"),
    ("crates/orchestra-runtime/src/flow/uploads.rs", "files", "a field"),
    ("crates/orchestra-cli/src/init.rs", "files", "a key of JSON"),
    ("crates/orchestra-runtime/src/flow/file_name.rs", "jsonl", "the end of the name of an index"),
];

/// Builds and their data, which documents may name, and folders that Git or an environment keeps.
fn is_skipped(name: &str) -> bool {
    (name.starts_with('.') && name != ".ci") || ["target", "out", "__pycache__"].contains(&name)
}

/// The paths of all files below `folder`, relative to `root`.
fn files_of(root: &Path, folder: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && !is_skipped(&entry.file_name().to_string_lossy()) {
            files_of(root, &entry.path(), files);
        } else if kind.is_file() {
            files.push(entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned());
        }
    }
}

/// The names of files in the code spans of a text, with the number of their line. Blocks of code are left out.
fn named(text: &str) -> Vec<(usize, &str)> {
    let mut is_block = false;
    let mut names = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        } else if !is_block {
            let words = line.split('`').skip(1).step_by(2).flat_map(str::split_whitespace);
            let is_file = |word: &&str| EXTENSIONS.iter().any(|extension| word.ends_with(extension));
            names.extend(words.filter(is_file).map(|word| (number, word)));
        }
    }
    names
}

/// `name` is a path of `files`, or the end of one.
fn exists(name: &str, files: &[String]) -> bool {
    files
        .iter()
        .any(|path| path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('/')))
}

/// Whether a file of a crate's sources is compiled for tests alone, as `tests.rs`, `ceiling_tests.rs` and what lies in `fault_tests/` are.
fn is_of_tests(path: &str) -> bool {
    path.split('/').any(|part| {
        part.trim_end_matches(".rs") == "tests" || part.trim_end_matches(".rs").ends_with("_tests")
    })
}

#[test]
fn documents_that_are_read_as_a_whole_keep_to_their_length() {
    for (document, most) in LENGTHS {
        let n = fs::read_to_string(repository().join(document)).unwrap().lines().count();
        assert!(n <= most, "{document} has {n} lines, and may have {most}");
    }
    for example in fs::read_dir(repository().join("examples")).unwrap() {
        let document = example.unwrap().path().join("README.md");
        let Ok(text) = fs::read_to_string(&document) else { continue };
        let n = text.lines().count();
        assert!(n <= A_SCREEN, "{} has {n} lines: an example is explained on a screen", document.display());
    }
}

#[test]
fn crates_that_know_no_kind_name_none() {
    let root = repository();
    let Kinds { sources, stages, sinks } = orchestra_launch::kinds();
    let kinds: BTreeSet<&str> = sources
        .iter()
        .map(|kind| kind.name())
        .chain(stages.iter().map(|kind| kind.name()))
        .chain(sinks.iter().map(|kind| kind.name()))
        .collect();
    assert!(kinds.len() > 20, "{kinds:?}");
    let mut files = Vec::new();
    WITHOUT_KINDS.iter().for_each(|folder| files_of(&root, &root.join(folder), &mut files));
    files.retain(|path| path.ends_with(".rs") && !is_of_tests(path));
    assert!(files.len() > 100, "only {} files were found", files.len());
    let (mut wrong, mut exceptions) = (Vec::new(), NO_KINDS.to_vec());
    for path in &files {
        let text = fs::read_to_string(root.join(path)).unwrap();
        // Tests stand at the end of a file.
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap().replace('\\', "");
        for (line, number) in text.lines().zip(1..) {
            for kind in kinds.iter().filter(|kind| line.contains(&format!("\"{kind}\""))) {
                let is_it = |(file, word, _): &(&str, &str, &str)| (file, word) == (&path.as_str(), kind);
                exceptions.retain(|exception| !is_it(exception));
                if !NO_KINDS.iter().any(is_it) {
                    wrong.push(format!("{path}:{number}: {}", line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "these name a kind, which only `orchestra-kinds` may:\n{}", wrong.join("\n"));
    assert!(exceptions.is_empty(), "these are no exceptions any more: {exceptions:?}");
}

#[test]
fn files_that_documents_name_exist() {
    let root = repository();
    let mut files = Vec::new();
    files_of(&root, &root, &mut files);
    let is_document = |path: &&String| {
        matches!(path.as_str(), "README.md" | "ARCHITECTURE.md")
            || (path.starts_with("docs/") && path.ends_with(".md"))
    };
    let (mut missing, mut examples, mut n) = (Vec::new(), EXAMPLES.to_vec(), 0);
    for document in files.iter().filter(is_document) {
        let text = fs::read_to_string(root.join(document)).unwrap();
        for (line, name) in named(&text) {
            n += 1;
            examples.retain(|example| *example != (document.as_str(), name));
            let is_example = EXAMPLES.contains(&(document.as_str(), name)) || name.starts_with("target/");
            if !is_example && !exists(name, &files) {
                missing.push(format!("{document}:{line}: `{name}`"));
            }
        }
    }
    assert!(missing.is_empty(), "no such file:\n{}", missing.join("\n"));
    assert!(examples.is_empty(), "no document names these any more: {examples:?}");
    assert!(n > 100, "only {n} names were found");
}

#[test]
fn names_are_found_in_code_spans_alone_and_compared_by_whole_components() {
    let text = "`a/b.rs` and c.rs, `python d.py --check`\n```\n`e.rs`\n```\n`f.toml`";
    assert_eq!(named(text), [(1, "a/b.rs"), (1, "d.py"), (5, "f.toml")]);
    let files = ["src/lease_tests.rs".to_owned()];
    assert!(exists("lease_tests.rs", &files) && exists("src/lease_tests.rs", &files));
    assert!(!exists("tests.rs", &files) && !exists("lib/lease_tests.rs", &files));
}
