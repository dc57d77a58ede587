//! What a run leaves behind: in this process, and on the disk. It looks and waits a little; it removes nothing.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use orchestra_machine::holdings::{Holdings, files_below, temporary_files};
use orchestra_runtime::Remains;

/// What is still there after so long is a leak: a thread that gives back what it holds may have to wait for a core first.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What this process and a folder hold at one moment.
#[derive(Debug)]
pub struct Before {
    process: Holdings,
    /// For temporary files, and what lies in it.
    temporary: PathBuf,
    files: Vec<String>,
    counts_sockets: bool,
}

impl Before {
    /// Now. `temporary` is the folder for temporary files of workers.
    pub fn now(temporary: &Path, counts_sockets: bool) -> Self {
        let (process, files) = (Holdings::now(), temporary_files(temporary));
        Self { process, temporary: temporary.to_owned(), files, counts_sockets }
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
        let mut leaks = self.process.leaked_since();
        leaks.retain(|leak| self.counts_sockets || !leak.ends_with("open: socket"));
        leaks.extend(temporary_files(&self.temporary).into_iter().filter(|file| !self.files.contains(file)));
        leaks.extend(remains.left());
        leaks
    }
}

/// Files that lie in the folder `now` and have no counterpart in the folder `peace`.
pub fn extra_files(peace: &Path, now: &Path) -> Vec<String> {
    let (peace, now) = (files_below(peace), files_below(now));
    now.difference(&peace).map(|path| format!("file `{}` in the output folder", path.display())).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

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
}
