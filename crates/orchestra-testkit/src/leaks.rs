//! What a process has open and running, what is left of it later, and what a run leaves on the disk. Waits for nothing: ask when
//! everything should be gone. Each answer is one line per leak, so that an empty list is what a test wants.

use std::fs;
use std::path::Path;

use crate::processes::with_variable;

pub use orchestra_machine::holdings::Holdings;

/// Processes whose environment holds `name=value`, other than this one: whatever a marked run has started, orphans included.
#[must_use]
pub fn processes(name: &str, value: &str) -> Vec<String> {
    let me = std::process::id();
    let left = with_variable(name, value).into_iter().filter(|p| p.pid != me);
    left.map(|p| format!("process {} ({}): {}", p.pid, p.state, p.arguments.join(" "))).collect()
}

/// Threads of this process that only runs have, and memory of theirs that is still mapped.
#[must_use]
pub fn threads_and_memory_of_runs() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    // A thread that ended meanwhile has no name any more.
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    let of_runs = names.filter(|name| ["loader", "committer"].contains(&name.trim()));
    let mut found: Vec<String> = of_runs.map(|name| format!("thread `{}`", name.trim())).collect();
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    found.extend(maps.lines().filter(|l| l.contains("/memfd:")).map(|l| format!("memory: {l}")));
    found
}

/// What lies in a folder for temporary files.
#[must_use]
pub fn temporary_files(folder: &Path) -> Vec<String> {
    names_in(folder).into_iter().map(|name| format!("temporary file `{name}`")).collect()
}

/// What lies in an output folder and should not: files other than `results` (of the sinks) and those that docs/guide/running.md names, and lines of
/// the logs that speak of a bug.
#[must_use]
pub fn output_folder(out: &Path, results: &[&str]) -> Vec<String> {
    const PUBLIC: [&str; 5] = ["failures.jsonl", "run.json", "logs", "tasks", ".orchestra"];
    let unknown = names_in(out).into_iter().filter(|n| !PUBLIC.contains(&&**n) && !results.contains(&&**n));
    let mut left: Vec<String> = unknown.map(|n| format!("`{n}` in the output folder")).collect();
    let private = names_in(&out.join(".orchestra")).into_iter();
    let unknown = private.filter(|n| {
        let is_list = n.starts_with("items-") && !n.ends_with(".next") && !n.ends_with(".new");
        let is_of_rows = ["rows-", "fold-", "state-"].iter().any(|prefix| n.starts_with(prefix));
        !is_list
            && !is_of_rows
            && !["journal", "lock", "command.json", "tasks", "keepers", "outliving", "trees"].contains(&&**n)
    });
    left.extend(unknown.map(|n| format!("`.orchestra/{n}` in the output folder")));
    for log in names_in(&out.join("logs")) {
        let text = fs::read_to_string(out.join("logs").join(&log)).unwrap_or_default();
        left.extend(text.lines().filter(|l| l.contains("this is a bug")).map(|l| format!("in `{log}`: {l}")));
    }
    left
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
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
