//! What a process has open and running at one moment, and what of it was not there before. It waits for nothing, and closes nothing.

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
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let mut files = BTreeMap::new();
        for (_, target) in open_files(pid) {
            *files.entry(kind_of(&target)).or_insert(0) += 1;
        }
        Self { pid, files, children: children(pid) }
    }

    #[must_use]
    pub fn now() -> Self {
        Self::of(std::process::id())
    }

    pub fn open_files(&self) -> usize {
        self.files.values().sum()
    }

    /// What the process holds now and did not hold then, one line each: children, memory files, sockets, other descriptors. Only
    /// meaningful where nothing else in the process opens and closes files: a test that runs alone in its program.
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
