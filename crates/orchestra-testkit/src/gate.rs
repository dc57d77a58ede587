//! The test's side of the gate in the trap operator: a run whose model has that operator does so many rows and then stands still, alive in
//! all its processes, until the gate is opened. What a test does meanwhile happens in the middle of the run on any machine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::trap_operator::{LIMIT, ROWS, WAITING};
use anyhow::Context as _;

/// A gate in a folder of its own. Give that folder to the run in the variable [`GATE`](crate::GATE).
#[derive(Debug, Clone)]
pub struct Gate {
    folder: PathBuf,
}

impl Gate {
    /// The gate in `folder`; open, unless it was closed.
    pub fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Lets so many rows pass from now on, and the rest of the batches that they lie in, counted over all workers. Close it while nothing
    /// runs.
    pub fn close_after(&self, rows: usize) -> anyhow::Result<()> {
        self.open()?;
        fs::create_dir_all(&self.folder).with_context(|| format!("`{}`", self.folder.display()))?;
        // Neither is there unless the gate was closed before.
        drop(fs::remove_file(self.folder.join(ROWS)));
        drop(fs::remove_file(self.folder.join(WAITING)));
        fs::write(self.folder.join(LIMIT), rows.to_string())?;
        Ok(())
    }

    /// Lets so many rows pass in all, as counted since it was closed. A batch that waits already waits on.
    pub fn raise_to(&self, rows: usize) -> anyhow::Result<()> {
        let (new, limit) = (self.folder.join("new"), self.folder.join(LIMIT));
        fs::write(&new, rows.to_string())?;
        // In one step: without a limit, all that waits would go on.
        fs::rename(new, limit)?;
        Ok(())
    }

    /// The rows that have come to it since it was closed, those that wait included.
    pub fn n_rows(&self) -> u64 {
        fs::metadata(self.folder.join(ROWS)).map_or(0, |rows| rows.len())
    }

    /// The batches that wait at it, or have waited, since it was closed. Rows say less: a batch that waits may be a partial one.
    pub fn n_waiting(&self) -> u64 {
        fs::metadata(self.folder.join(WAITING)).map_or(0, |waiting| waiting.len())
    }

    /// Lets everything pass from now on, and all that wait.
    pub fn open(&self) -> anyhow::Result<()> {
        if !self.folder.join(LIMIT).exists() {
            return Ok(());
        }
        fs::remove_file(self.folder.join(LIMIT))?;
        Ok(())
    }
}
