//! The test's side of the gate in the trap operator: a run whose model has that operator does so many rows and then stands still, alive in
//! all its processes, until the gate is opened. What a test does meanwhile happens in the middle of the run on any machine.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use orchestra_testkit_ops::{BARRIER, LIMIT, ROWS};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// A gate in a folder of its own. Give that folder to the run in the variable [`GATE`](crate::GATE).
#[derive(Debug, Clone)]
pub struct Gate {
    folder: PathBuf,
}

impl Gate {
    /// The gate in `folder`; open, if nobody has closed it.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Lets so many rows pass from now on, and the rest of the batches that they lie in, counted over all workers. Close it while nothing
    /// runs.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn close_after(&self, rows: usize) -> anyhow::Result<()> {
        self.open()?;
        fs::create_dir_all(&self.folder).with_context(|| format!("`{}`", self.folder.display()))?;
        mknodat(CWD, self.folder.join(BARRIER), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        fs::write(self.folder.join(LIMIT), rows.to_string())?;
        Ok(())
    }

    /// The rows that have come to it since it was closed; more than it lets pass, once a batch waits.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        fs::metadata(self.folder.join(ROWS)).map_or(0, |rows| rows.len())
    }

    /// Lets everything pass from now on, and all that wait.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn open(&self) -> anyhow::Result<()> {
        if !self.folder.join(LIMIT).exists() {
            return Ok(());
        }
        fs::remove_file(self.folder.join(LIMIT))?;
        let barrier = self.folder.join(BARRIER);
        // For both, so that opening it does not wait; whoever waits for a writer goes on, and whoever comes later finds no barrier.
        let both = File::options().read(true).write(true).open(&barrier)?;
        fs::remove_file(&barrier)?;
        drop(both);
        // Nobody has come yet, perhaps.
        drop(fs::remove_file(self.folder.join(ROWS)));
        Ok(())
    }
}
