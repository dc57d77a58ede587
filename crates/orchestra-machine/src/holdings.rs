//! What a process has open, mapped and running at one moment, and what of it was not there before; and what lies in folders. It waits for nothing, and
//! closes and removes nothing: a caller asks when everything should be gone. Each answer is one line per leak.

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
    #[must_use]
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

    #[must_use]
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
            .map(|c| format!("child process {} ({}): {}", c.pid, c.state, c.arguments.join(" ")))
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
#[must_use]
pub fn processes(name: &str, value: &str) -> Vec<String> {
    let me = std::process::id();
    let left = with_variable(name, value).into_iter().filter(|p| p.pid != me);
    left.map(|p| format!("process {} ({}): {}", p.pid, p.state, p.arguments.join(" "))).collect()
}

/// What lies in a folder for temporary files.
#[must_use]
pub fn temporary_files(folder: &Path) -> Vec<String> {
    files_below(folder).iter().map(|path| format!("temporary file `{}`", path.display())).collect()
}

/// Everything below a folder, by its path from there. What goes away meanwhile is not there.
#[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_no_numbers_and_names_stay() {
        assert_eq!(kind_of("socket:[4711]"), "socket");
        assert_eq!(kind_of("anon_inode:[pidfd]"), "anon_inode:[pidfd]");
        assert_eq!(kind_of("/memfd:leaky (deleted)"), "/memfd:leaky (deleted)");
    }
}
