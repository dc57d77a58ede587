//! The file that says which commands run now, for others that look at a run: written once a second, gone with the run. No start reads it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestra_core::locked;
use orchestra_store::OutputFolder;

use crate::tasks::board::{TaskReport, TaskStanding};

/// What is older was left by a run that was killed.
const OLDEST: Duration = Duration::from_secs(5);

/// The file of this run. The lock is held while it is written, so none is made after [`LiveFile::remove`] has returned: the output folder may
/// belong to the next run by then.
pub struct LiveFile {
    path: PathBuf,
    is_over: Mutex<bool>,
}

impl LiveFile {
    pub fn new(output: &Path) -> Self {
        let live = Self { path: file(output), is_over: Mutex::new(false) };
        live.remove_files();
        live
    }

    /// Also what a run left that was killed while it wrote.
    fn remove_files(&self) {
        drop(fs::remove_file(&self.path));
        drop(fs::remove_file(self.next()));
    }

    fn next(&self) -> PathBuf {
        self.path.with_extension("next")
    }

    /// Of all tasks those that run.
    pub fn write(&self, mut tasks: Vec<Arc<TaskReport>>) {
        tasks.retain(|task| task.state == TaskStanding::Running);
        let is_over = locked(&self.is_over);
        if *is_over {
            return;
        }
        let next = self.next();
        let written =
            serde_json::to_vec(&tasks).map_err(io::Error::other).and_then(|bytes| fs::write(&next, bytes));
        // A disk that is full is told by the journal.
        drop(written.and_then(|()| fs::rename(next, &self.path)));
    }

    pub fn remove(&self) {
        let mut is_over = locked(&self.is_over);
        if !std::mem::replace(&mut *is_over, true) {
            self.remove_files();
        }
    }
}

/// The commands that run now into this output folder; `None` where no run with tasks is going on there.
pub fn running_commands(output: &Path) -> Option<Vec<Arc<TaskReport>>> {
    let file = file(output);
    let written = fs::metadata(&file).ok()?.modified().ok()?;
    let is_old = written.elapsed().is_ok_and(|age| age > OLDEST);
    serde_json::from_slice(&fs::read(file).ok()?).ok().filter(|_| !is_old)
}

fn file(output: &Path) -> PathBuf {
    output.join(OutputFolder::private_file("commands"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_removed_is_not_written_again() {
        let output = tempfile::tempdir().unwrap();
        fs::create_dir(file(output.path()).parent().unwrap()).unwrap();
        let live = LiveFile::new(output.path());
        live.write(Vec::new());
        assert_eq!(running_commands(output.path()), Some(vec![]));
        live.remove();
        live.write(Vec::new());
        assert_eq!(running_commands(output.path()), None);
        // What the next run writes there is not its to remove.
        let next = LiveFile::new(output.path());
        next.write(Vec::new());
        live.remove();
        assert_eq!(running_commands(output.path()), Some(vec![]));
        // A run that was killed leaves both.
        fs::write(next.next(), "half").unwrap();
        LiveFile::new(output.path());
        assert_eq!(fs::read_dir(file(output.path()).parent().unwrap()).unwrap().count(), 0);
    }
}
