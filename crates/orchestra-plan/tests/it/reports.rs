//! What people read about a workflow file: all errors and warnings, each at its place, and the plan in words.
//!
//! Every file in `tests/cases` is planned. If a `.txt` lies beside it, the whole text has to be that one; `UPDATE_REPORTS=1` writes these anew.
//! In all other files a comment stands behind each mistake and says what has to be reported on that line, here in columns 9 to 14, with all of these
//! words in the message, the label or the help:
//!
//! ```toml
//! color = "grey" # error 9..15: `color` of stage `pixels` | did you mean `gray`?
//! ```
//!
//! `error 3:9..15` names the line, too, and `error` alone has no place. A report without such a comment is a failure.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{FakeHost, digits};
use orchestra_plan::{Diagnostics, PlanOptions, RenderStyle, describe};

/// The files in `tests/cases` for which a whole text is kept, or those for which none is.
fn cases(has_text: impl Fn(bool) -> bool) -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "toml"));
    let files = files.filter(|path| has_text(path.with_extension("txt").exists()));
    files.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The reports that comments in `text` ask for: severity and place, and words.
fn expected(text: &str) -> Vec<(String, Vec<&str>)> {
    let mut expected = Vec::new();
    for (n, line) in text.lines().enumerate() {
        for comment in line.split("# ").skip(1) {
            let Some((head, words)) = comment.split_once(": ") else { continue };
            let (severity, columns) = head.split_once(' ').unwrap_or((head, ""));
            let head = match columns {
                _ if !["error", "warning"].contains(&severity) => continue,
                columns if columns.is_empty() || columns.contains(':') => head.to_owned(),
                columns => format!("{severity} {}:{columns}", n + 1),
            };
            expected.push((head, words.split(" | ").map(str::trim).collect()));
        }
    }
    expected
}

/// The reports that there are: severity and place, and the whole text.
fn found(diags: &Diagnostics) -> Vec<(String, String)> {
    let json = diags.to_json();
    let of = |severity: &str| {
        let entries = json[format!("{severity}s")].as_array().unwrap();
        let entry = |entry: &serde_json::Value| {
            let place = |key: &str| entry[key].as_u64().unwrap_or_default();
            let head = match place("line") {
                0 => severity.to_owned(),
                line => format!("{severity} {line}:{}..{}", place("column"), place("end_column")),
            };
            let help = entry["help"].as_array().unwrap().iter();
            let texts = [&entry["message"], &entry["label"]].into_iter().chain(help);
            (head, texts.map(|text| text.as_str().unwrap()).collect::<Vec<_>>().join(" | "))
        };
        entries.iter().map(entry).collect::<Vec<_>>()
    };
    [of("error"), of("warning")].concat()
}

/// Plans `text`, and gives what is missing and what is too much of what is said of it.
fn differences(name: &str, host: &FakeHost, text: &str, comments: &str) -> Vec<String> {
    let (plan, diags) = host.plan(text, &PlanOptions::default());
    assert_eq!(plan.is_none(), diags.has_errors(), "{name}");
    let mut found = found(&diags);
    let mut differences = Vec::new();
    for (head, words) in expected(comments) {
        let is_it =
            |(at, text): &(String, String)| *at == head && words.iter().all(|word| text.contains(word));
        match found.iter().position(is_it) {
            Some(place) => _ = found.remove(place),
            None => differences.push(format!("{name}: missing: # {head}: {}", words.join(" | "))),
        }
    }
    differences.extend(found.iter().map(|(head, text)| format!("{name}: too much: # {head}: {text}")));
    differences
}

#[test]
fn every_mistake_is_reported_at_its_place_and_nothing_else_is() {
    let host = FakeHost::with_cores(4);
    let cases = cases(|has_text| !has_text);
    assert!(cases.len() >= 10, "only {} cases were found", cases.len());
    let of = |(path, text): &(PathBuf, String)| {
        assert!(
            text.matches("# error").count() + text.matches("# warning").count() > 0,
            "{}",
            path.display()
        );
        differences(path.file_name().unwrap().to_str().unwrap(), &host, text, text)
    };
    let differences: Vec<_> = cases.iter().flat_map(of).collect();
    assert!(differences.is_empty(), "reports differ:\n{}", differences.join("\n"));
}

/// What a help tells to write in the place of what is there now, with the quotation marks that stand there.
fn told(help: &str, now: &str) -> Option<String> {
    let quote = if now.starts_with('"') { "\"" } else { "" };
    match (help.split_once("did you mean `"), help.strip_prefix("write \"")) {
        (Some((_, name)), _) => Some(format!("{quote}{}{quote}", name.split('`').next()?)),
        (_, Some(text)) => Some(format!("\"{}\"", text.split('"').next()?)),
        _ => None,
    }
}

#[test]
fn a_help_that_was_followed_removes_its_error() {
    let host = FakeHost::with_cores(4);
    let mut followed = 0;
    for (path, text) in cases(|_| true) {
        let (_, before) = host.plan(&text, &PlanOptions::default());
        for error in before.errors() {
            let Some(place) = error.span.filter(|place| place.end <= text.len()) else { continue };
            let now = &text[place.start..place.end];
            let Some(fix) = error.help.iter().find_map(|help| told(help, now)) else { continue };
            let mended = format!("{}{fix}{}", &text[..place.start], &text[place.end..]);
            let (_, after) = host.plan(&mended, &PlanOptions::default());
            let stays = after.errors().find(|later| later.message == error.message);
            assert!(stays.is_none(), "{}: {error:?}: `{fix}` in the place of `{now}`", path.display());
            followed += 1;
        }
    }
    assert!(followed > 20, "{followed} helps were followed");
}

#[test]
fn a_person_reads_the_whole_report_and_then_the_plan() {
    let mut wrong = Vec::new();
    let cases = cases(|has_text| has_text);
    assert_eq!(cases.len(), 10);
    for (path, text) in cases {
        let host = match path.file_stem().unwrap().to_str().unwrap() {
            "gpus" | "everything" => FakeHost::with_gpus(2),
            _ => FakeHost::with_cores(4),
        };
        let (plan, diags) = host.plan(&text, &PlanOptions::default());
        let report = diags.render(RenderStyle::Plain) + &plan.as_ref().map(describe).unwrap_or_default();
        let expected = path.with_extension("txt");
        if std::env::var_os("UPDATE_REPORTS").is_some() {
            fs::write(&expected, &report).unwrap();
        } else if fs::read_to_string(&expected).unwrap() != report {
            wrong.push(format!("{}:\n{report}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "reports differ:\n{}", wrong.join("\n"));
}

#[test]
fn one_mistake_in_a_right_file_is_the_only_one_reported() {
    let host = FakeHost::with_cores(4);
    let (path, infer, sink) = ("\"digits.onnx\"", "model = \"digits\"", "from = \"answer\"");
    let changed: [&[(&str, &str)]; 6] = [
        &[("version = 1", "version = 2 # error 11..12: must be 1 | found the integer 2 | reads version 1")],
        &[
            (
                path,
                "\"digits.onnx\"\ndevices = [\"cpu:1\"] # error 12..19: `cpu:1` is not among the devices in use | in use: `cpu`",
            ),
            (sink, "from = \"answer\"\n[devices]\nuse = [\"cpu\"]"),
        ],
        &[
            (path, "\"digits.onnx\"\nmax_batch = 16"),
            (
                infer,
                "model = \"digits\"\nbatch = { max = 64 } # error 17..19: stage `classify` asks for batches of 64 | `max_batch` of model `digits` is 16",
            ),
        ],
        &[
            (path, "\"four.onnx\""),
            (
                infer,
                "model = \"digits\"\nbatch = { max = 64 } # warning 17..19: model `digits` takes batches of 4 only | has no effect | an open batch dimension",
            ),
        ],
        &[(
            "[sinks.results]\nkind = \"jsonl\"\nfrom = \"answer\"",
            "# error: the workflow has no sink | add [sinks.results]",
        )],
        &[(
            sink,
            "from = \"answer\"\n[stages.scans] # error 9..14: `scans` is the name of a source and of a stage | rename one # warning 9..14: nothing uses stage `scans`\nkind = \"classify\"\nfrom = \"classify\"",
        )],
    ];
    for changes in changed {
        let text = digits(changes);
        assert_eq!(differences(changes[0].1, &host, &text, &text), [""; 0]);
    }
}

#[test]
fn a_text_that_is_no_toml_is_told_what_is_missing() {
    for (text, comment) in [
        (
            "version = 1\n[sources.scans]\nkind = images",
            "# error 3:8..14: no valid TOML | text needs quotes: \"images\"",
        ),
        (
            "version = 1\n[models.a]\npath = ./a.onnx",
            "# error 3:8..8: no valid TOML | text needs quotes: \"./a.onnx\"",
        ),
        (
            "version = 1\n[sources.scans\nkind = \"images\"",
            "# error 2:15..15: no valid TOML | unclosed table, expected `]`",
        ),
        (
            "",
            "# error 1:1..1: needs the key `version` | `version = 1` as the first line\n# error: no sink | [sinks.results]",
        ),
    ] {
        assert_eq!(differences(text, &FakeHost::with_cores(4), text, comment), [""; 0]);
    }
}
