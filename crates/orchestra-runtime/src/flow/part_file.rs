//! Rows that wait for a part file, and when they become one. It formats no part file: the encoder of the sink does.
//!
//! Rows are committed to a private file of the run, with their items, so no item waits for a part file to fill up and none is done again
//! because a run was killed: the window of items in flight is as free as with a file that grows. What is in memory is one part file while it
//! is made: [`PartFiles::bytes_per_file`] of rows, or those of one commit where they are more, and the file that they become.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use orchestra_core::shapes::{Encoder, PartFiles};
use orchestra_plan::{PartFilesPlan, Plan};
use orchestra_store::{CommitError, FileIndex, Journal, PlacedFile};
use thiserror::Error;

use super::row_lengths::rows_in;
use super::uploads::{TORN, Upload};
use crate::child::spawn::ProcessLauncher;

/// Why rows did not become a part file. They wait in their file, and the next start goes on with them.
#[derive(Debug, Error)]
pub enum SealError {
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The encoder makes no file of these rows.
    #[error("rows of sink `{sink}` cannot become a part file: {why}")]
    Refused { sink: String, why: String },
    /// The store takes none of them now.
    #[error("part files of sink `{sink}` wait in the output folder: {why}")]
    Upload { sink: String, why: String },
}

/// The files in the output folder that are called as part files of a sink: the sink, the number and the path of each.
pub fn part_files(plan: &Plan) -> Vec<(usize, u64, PathBuf)> {
    let mut found = Vec::new();
    for (at, part_files) in
        plan.sinks.iter().enumerate().filter_map(|(at, sink)| Some((at, sink.part_files.as_ref()?)))
    {
        let stem = plan.output.join(&part_files.stem);
        let entries = stem.parent().and_then(|folder| fs::read_dir(folder).ok());
        for entry in entries.into_iter().flatten().flatten() {
            let number = part_files.number_of(&entry.file_name());
            found.extend(number.map(|number| (at, number, entry.path())));
        }
    }
    found.sort();
    found
}

/// The rows of one sink that wait.
#[derive(Debug)]
pub struct OpenPartFile {
    sink: String,
    file: FileIndex,
    plan: PartFilesPlan,
    encoder: Arc<dyn Encoder>,
    rows: u64,
    bytes: u64,
    upload: Option<Upload>,
}

impl OpenPartFile {
    /// Of all sinks whose records go into part files, with the rows that an earlier run has left.
    pub fn all(
        plan: &Plan,
        journal: &Journal,
        (run_id, launcher): (&str, Option<&ProcessLauncher>),
        file_of: impl Fn(usize) -> FileIndex,
    ) -> Result<Vec<Self>, SealError> {
        let sinks = plan.sinks.iter().enumerate();
        let place = (&*plan.output, &plan.limits);
        let with_part_files =
            sinks.filter_map(|(at, sink)| Some((file_of(at), sink, sink.part_files.clone()?)));
        let open = with_part_files.map(|(file, sink, plan)| {
            let left = journal.rows(file)?;
            let upload = Upload::open(sink, place, run_id, journal.notes(file), launcher)
                .map_err(|why| SealError::Upload { sink: sink.name.clone(), why })?;
            let (sink, encoder) = (sink.name.clone(), Arc::clone(&sink.encoder));
            let mut open = Self { sink, file, plan, encoder, rows: 0, bytes: 0, upload };
            open.add(&left);
            Ok(open)
        });
        open.collect()
    }

    /// The file that its rows are committed to.
    pub fn file(&self) -> FileIndex {
        self.file
    }

    pub fn add(&mut self, rows: &[u8]) {
        self.bytes += rows.len() as u64;
        self.rows += rows_in(rows).map_or(0, |rows| rows.len() as u64);
    }

    /// Whether there is enough for a part file.
    pub fn is_full(&self) -> bool {
        let is_full = |parts: &dyn PartFiles| {
            self.rows >= parts.rows_per_file().max(1) || self.bytes >= parts.bytes_per_file().max(1)
        };
        self.encoder.part_files().is_some_and(is_full)
    }

    /// Makes a part file of all rows that wait, if some do.
    pub fn seal(&mut self, journal: &mut Journal) -> Result<(), SealError> {
        if self.bytes == 0 {
            return Ok(());
        }
        let refused = |why: &str| SealError::Refused { sink: self.sink.clone(), why: why.to_owned() };
        let bytes = journal.rows(self.file)?;
        let rows = rows_in(&bytes).ok_or_else(|| refused("they are damaged"))?;
        let parts = self.encoder.part_files().ok_or_else(|| refused("its kind makes none; this is a bug"))?;
        let bytes = parts.file(&rows).map_err(|item_error| refused(&item_error.error))?;
        let number = journal.n_part_files(self.file);
        let note = match &self.upload {
            Some(upload) => upload.note(rows.len() as u64, &bytes).ok_or_else(|| refused(TORN))?,
            None => Vec::new(),
        };
        journal.seal(self.file, &PlacedFile { path: self.plan.file(number), bytes }, note.clone())?;
        (self.rows, self.bytes) = (0, 0);
        match &mut self.upload {
            Some(upload) => {
                upload.send(&note).map_err(|why| SealError::Upload { sink: self.sink.clone(), why })
            }
            None => Ok(()),
        }
    }

    /// No more part files come. Where the rows of the sink are complete, they are where they shall be then, with their manifest.
    pub fn finish(&mut self, is_complete: bool) -> Result<(), SealError> {
        let Some(upload) = &mut self.upload else { return Ok(()) };
        upload.finish(is_complete).map_err(|why| SealError::Upload { sink: self.sink.clone(), why })
    }
}
