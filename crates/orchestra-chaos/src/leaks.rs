//! What a run leaves behind: in this process, and on the disk. It looks and waits a little; it removes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use orchestra_machine::processes::{children, open_files};
use orchestra_runtime::Remains;

/// What is still there after so long is a leak: a thread that gives back what it holds may have to wait for a core first.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What this process and some folders hold at one moment.
#[derive(Debug)]
pub struct Holdings {
    children: BTreeSet<u32>,
    /// Descriptors by what they refer to.
    open: BTreeMap<String, usize>,
    /// For temporary files, and what lies in it.
    temporary: PathBuf,
    files: BTreeSet<PathBuf>,
}

impl Holdings {
    /// Now. `temporary` is the folder for temporary files of workers.
    pub fn now(temporary: &Path) -> Self {
        let me = std::process::id();
        let mut open = BTreeMap::new();
        for (_, target) in open_files(me) {
            *open.entry(kind_of(&target)).or_insert(0) += 1;
        }
        let children = children(me).iter().map(|c| c.pid).collect();
        Self { children, open, temporary: temporary.to_owned(), files: tree(temporary) }
    }

    /// One line for each thing that is held now, was not held then, and does not go away.
    pub fn leaked_since(&self, remains: &Remains) -> Vec<String> {
        let began = Instant::now();
        loop {
            let leaks = self.leaks(remains);
            if leaks.is_empty() || began.elapsed() > PATIENCE {
                return leaks;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn leaks(&self, remains: &Remains) -> Vec<String> {
        let now = Self::now(&self.temporary);
        let mut leaks: Vec<String> = children(std::process::id())
            .iter()
            .filter(|c| !self.children.contains(&c.pid))
            .map(|c| format!("process {} ({}): {}", c.pid, c.state, c.arguments.join(" ")))
            .collect();
        for (kind, n) in &now.open {
            let before = self.open.get(kind).copied().unwrap_or(0);
            if *n > before {
                leaks.push(format!("{} more open: {kind}", n - before));
            }
        }
        leaks.extend(now.files.difference(&self.files).map(|p| format!("temporary file `{}`", p.display())));
        if remains.holders() > 0 {
            leaks.push(format!("{} actors, threads or tasks of the run", remains.holders()));
        }
        if remains.slots_in_use() + remains.slots_lost() > 0 {
            let (used, lost) = (remains.slots_in_use(), remains.slots_lost());
            leaks.push(format!("{used} batch slots in use, {lost} lost"));
        }
        leaks
    }
}

/// Files that lie in the folder `now` and have no counterpart in the folder `peace`.
pub fn extra_files(peace: &Path, now: &Path) -> Vec<String> {
    let (peace, now) = (tree(peace), tree(now));
    now.difference(&peace).map(|path| format!("file `{}` in the output folder", path.display())).collect()
}

/// Everything below a folder, by its path from there. What goes away meanwhile is not there.
fn tree(folder: &Path) -> BTreeSet<PathBuf> {
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
    fn what_lies_in_one_folder_only_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (peace, now) = (dir.path().join("peace"), dir.path().join("now"));
        for folder in [&peace, &now] {
            fs::create_dir_all(folder.join(".orchestra")).unwrap();
            fs::write(folder.join(".orchestra/journal"), "").unwrap();
        }
        fs::write(peace.join("run.json"), "").unwrap();
        assert_eq!(extra_files(&peace, &now), [""; 0]);
        fs::write(now.join(".orchestra/.journal.17.tmp"), "").unwrap();
        assert_eq!(extra_files(&peace, &now), ["file `.orchestra/.journal.17.tmp` in the output folder"]);
    }

    #[test]
    fn kinds_have_no_numbers_and_names_stay() {
        assert_eq!(kind_of("socket:[4711]"), "socket");
        assert_eq!(kind_of("anon_inode:[pidfd]"), "anon_inode:[pidfd]");
        assert_eq!(kind_of("/memfd:leaky (deleted)"), "/memfd:leaky (deleted)");
    }
}
