//! What a run leaves behind: what its process has open, mapped and running, and what lies in folders. It waits for nothing, and closes and removes
//! nothing: a test asks when everything should be gone. Each answer is one line per leak.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::processes::{Process, children, open_files, with_variable};

/// What a process holds at one moment.
#[derive(Debug, Clone)]
pub struct Holdings {
    pid: u32,
    /// Open descriptors, threads of runs, and memory files that are mapped: how many of each.
    held: BTreeMap<String, usize>,
    children: Vec<Process>,
}

impl Holdings {
    pub fn of(pid: u32) -> Self {
        let files = open_files(pid).into_iter().map(|(_, target)| format!("open: {}", kind_of(&target)));
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        // A thread that ended meanwhile has no name any more. Only runs have these; the threads of pools end when they like.
        let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        let threads = names.filter(|name| ["loader", "committer"].contains(&name.trim()));
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let memory =
            maps.lines().filter_map(|line| Some(format!("mapped: {}", &line[line.find("/memfd:")?..])));
        let mut held = BTreeMap::new();
        for what in files.chain(threads.map(|name| format!("threads: {}", name.trim()))).chain(memory) {
            *held.entry(what).or_insert(0) += 1;
        }
        Self { pid, held, children: children(pid) }
    }

    pub fn now() -> Self {
        Self::of(std::process::id())
    }

    pub fn open_files(&self) -> usize {
        self.held.iter().filter(|(what, _)| what.starts_with("open: ")).map(|(_, n)| n).sum()
    }

    /// What the process holds now and did not hold then, one line each: children, descriptors, threads of runs, mapped memory files. Only
    /// meaningful where nothing else in the process opens and closes files: a test that runs alone in its program.
    pub fn leaked_since(&self) -> Vec<String> {
        let now = Self::of(self.pid);
        let mut leaks: Vec<String> = now
            .children
            .iter()
            .filter(|c| !self.children.iter().any(|old| old.pid == c.pid))
            .map(|c| format!("child process {} ({}): {}", c.pid, c.state, c.arguments().join(" ")))
            .collect();
        for (what, n) in &now.held {
            let before = self.held.get(what).copied().unwrap_or(0);
            if *n > before {
                leaks.push(format!("{} more {what}", n - before));
            }
        }
        leaks
    }
}

/// Processes whose environment holds `name=value`, other than this one: whatever a marked run has started, orphans included.
pub fn processes(name: &str, value: &str) -> Vec<String> {
    let me = std::process::id();
    let left = with_variable(name, value).into_iter().filter(|p| p.pid != me);
    left.map(|p| format!("process {} ({}): {}", p.pid, p.state, p.arguments().join(" "))).collect()
}

/// What lies in a folder for temporary files.
pub fn temporary_files(folder: &Path) -> Vec<String> {
    files_below(folder).iter().map(|path| format!("temporary file `{}`", path.display())).collect()
}

/// Everything below a folder, by its path from there. What goes away meanwhile is not there.
pub fn files_below(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![PathBuf::new()];
    while let Some(inside) = open.pop() {
        for entry in fs::read_dir(folder.join(&inside)).into_iter().flatten().flatten() {
            let path = inside.join(entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(path.clone());
            }
            found.insert(path);
        }
    }
    found
}

/// Sockets and pipes count by kind, since their numbers are new each time; files by name, and what has no file (`anon_inode:[pidfd]`) by
/// what it is.
fn kind_of(target: &str) -> String {
    match target.split_once(":[") {
        Some((kind, number)) if number.starts_with(|c: char| c.is_ascii_digit()) => kind.to_owned(),
        _ => target.to_owned(),
    }
}

/// What lies in an output folder and should not: files other than `results` (of the sinks) and those that docs/guide/running.md names, and lines of
/// the logs that speak of a bug.
pub fn output_folder(out: &Path, results: &[&str]) -> Vec<String> {
    const PUBLIC: [&str; 5] = ["failures.jsonl", "run.json", "logs", "tasks", ".orchestra"];
    const PRIVATE: [&str; 7] =
        ["history.jsonl", "journal", "lock", "command.json", "tasks", "keepers", "best"];
    let is_private = |name: &str| {
        let is_list = name.starts_with("items-") && !name.ends_with(".next") && !name.ends_with(".new");
        let is_of_rows = ["rows-", "fold-", "state-", "made-"].iter().any(|prefix| name.starts_with(prefix));
        is_list || is_of_rows || PRIVATE.contains(&name)
    };
    let mut left = Vec::new();
    for path in files_below(out) {
        let names: Vec<_> = path.iter().map(|name| name.to_string_lossy()).collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let is_known = match names[..] {
            [".orchestra", "best", link] => !link.ends_with(".next"),
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
    fn kinds_have_no_numbers_and_names_stay() {
        assert_eq!(kind_of("socket:[4711]"), "socket");
        assert_eq!(kind_of("anon_inode:[pidfd]"), "anon_inode:[pidfd]");
        assert_eq!(kind_of("/memfd:leaky (deleted)"), "/memfd:leaky (deleted)");
    }

    #[test]
    fn what_does_not_belong_into_an_output_folder_is_named_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path();
        assert_eq!(output_folder(&out.join("missing"), &[]), [""; 0]);
        for folder in [".orchestra", "logs"] {
            fs::create_dir(out.join(folder)).unwrap();
        }
        let known = ["results.jsonl", "failures.jsonl", "run.json", "logs/run.log"];
        let private = ["journal", "lock", "items-scans", "rows-all", "fold-total", "made-total"];
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
