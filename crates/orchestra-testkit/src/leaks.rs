//! What a run leaves behind: of processes and temporary files as `chaos` looks for it, too, and in its output folder.

use std::fs;
use std::path::Path;

use orchestra_machine::holdings::files_below;

pub use orchestra_machine::holdings::{Holdings, processes, temporary_files};

/// What lies in an output folder and should not: files other than `results` (of the sinks) and those that docs/guide/running.md names, and lines of
/// the logs that speak of a bug.
#[must_use]
pub fn output_folder(out: &Path, results: &[&str]) -> Vec<String> {
    const PUBLIC: [&str; 5] = ["failures.jsonl", "run.json", "logs", "tasks", ".orchestra"];
    const PRIVATE: [&str; 7] = ["journal", "lock", "command.json", "tasks", "keepers", "outliving", "trees"];
    let is_private = |name: &str| {
        let is_list = name.starts_with("items-") && !name.ends_with(".next") && !name.ends_with(".new");
        let is_of_rows = ["rows-", "fold-", "state-"].iter().any(|prefix| name.starts_with(prefix));
        is_list || is_of_rows || PRIVATE.contains(&name)
    };
    let mut left = Vec::new();
    for path in files_below(out) {
        let names: Vec<_> = path.iter().map(|name| name.to_string_lossy()).collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let is_known = match names[..] {
            [".orchestra", name, ..] => is_private(name),
            [name, ..] => PUBLIC.contains(&name) || results.contains(&name),
            [] => true,
        };
        if !is_known {
            left.push(format!("`{}` in the output folder", path.display()));
        }
        if let ["logs", log] = names[..] {
            let text = fs::read_to_string(out.join(&path)).unwrap_or_default();
            left.extend(
                text.lines().filter(|l| l.contains("this is a bug")).map(|l| format!("in `{log}`: {l}")),
            );
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_belong_into_an_output_folder_is_named_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path();
        assert_eq!(output_folder(&out.join("missing"), &[]), [""; 0]);
        for folder in [".orchestra", "logs"] {
            fs::create_dir(out.join(folder)).unwrap();
        }
        let known = ["results.jsonl", "failures.jsonl", "run.json", "logs/run.log"];
        let private = ["journal", "lock", "items-scans", "rows-all", "fold-total", "state-total.0"];
        let private = private.map(|name| format!(".orchestra/{name}"));
        for name in known.into_iter().chain(private.iter().map(String::as_str)) {
            fs::write(out.join(name), "all is well\n").unwrap();
        }
        assert_eq!(output_folder(out, &["results.jsonl"]), [""; 0]);
        let unknown = [".run.json.17.tmp", ".orchestra/.journal.17.tmp", ".orchestra/items-scans.next"];
        for name in unknown {
            fs::write(out.join(name), "").unwrap();
        }
        fs::write(out.join("logs/run.log"), "one\nERROR an actor failed; this is a bug\n").unwrap();
        let left = output_folder(out, &[]);
        assert_eq!(left.len(), 5, "{left:?}");
        for name in unknown.iter().chain(&["results.jsonl", "an actor failed"]) {
            assert!(left.iter().any(|l| l.contains(name)), "{name}: {left:?}");
        }
    }
}
