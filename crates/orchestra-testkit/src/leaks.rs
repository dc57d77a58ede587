//! What a process has open and running, and what is left of it later. Waits for nothing: ask when everything should be gone.

use std::collections::BTreeMap;

use crate::processes::{Process, children, open_files};

/// What a process holds at one moment.
#[derive(Debug, Clone)]
pub struct Holdings {
    pid: u32,
    files: BTreeMap<String, usize>,
    children: Vec<Process>,
}

impl Holdings {
    /// Of the process with this id.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let mut files = BTreeMap::new();
        for (_, target) in open_files(pid) {
            *files.entry(kind_of(&target)).or_insert(0) += 1;
        }
        Self { pid, files, children: children(pid) }
    }

    /// Of this process.
    #[must_use]
    pub fn now() -> Self {
        Self::of(std::process::id())
    }

    /// How many descriptors are open.
    #[must_use]
    pub fn open_files(&self) -> usize {
        self.files.values().sum()
    }

    /// How many of them are memory files.
    #[must_use]
    pub fn memory_files(&self) -> usize {
        self.files.iter().filter(|(k, _)| k.starts_with("/memfd:")).map(|(_, n)| n).sum()
    }

    /// What the process holds now and did not hold then, one line each: children, memory files, sockets, other descriptors. Only
    /// meaningful where nothing else in the process opens and closes files: a test that runs alone in its program.
    #[must_use]
    pub fn leaked_since(&self) -> Vec<String> {
        let now = Self::of(self.pid);
        let mut leaks: Vec<String> = now
            .children
            .iter()
            .filter(|c| !self.children.iter().any(|old| old.pid == c.pid))
            .map(|c| format!("child process {} ({}): {}", c.pid, c.state, c.arguments.join(" ")))
            .collect();
        for (kind, n) in &now.files {
            let before = self.files.get(kind).copied().unwrap_or(0);
            if *n > before {
                leaks.push(format!("{} more open: {kind}", n - before));
            }
        }
        leaks
    }
}

/// Sockets, pipes and the like count by kind, since their numbers are new each time; files by name.
fn kind_of(target: &str) -> String {
    match target.split_once(":[") {
        Some((kind, _)) => kind.to_owned(),
        None => target.to_owned(),
    }
}
