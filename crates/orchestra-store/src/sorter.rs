//! External merge sort of byte strings in bounded memory. Knows nothing of what the bytes mean.
//!
//! Records are gathered up to a budget, sorted, and spilled as a run into an unnamed file; when `FAN_IN` runs of one level
//! exist they are merged into one run of the next. So memory and open files stay bounded whatever the number of records, and the
//! files vanish with the process. What fits into the budget touches no file.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Cursor, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Bytes of records held in memory before they are spilled.
const MEMORY_BUDGET: usize = 4 << 20;
/// Runs merged at once: this many read buffers of `READ_BUFFER` bytes.
const FAN_IN: usize = 64;
const READ_BUFFER: usize = 32 << 10;

/// Gathers records, then gives them back in the order of their bytes.
#[derive(Debug)]
pub struct Sorter {
    spill_folder: PathBuf,
    budget: usize,
    bytes: Vec<u8>,
    /// Start and end of each record in `bytes`.
    records: Vec<(u32, u32)>,
    /// Spilled runs by level.
    levels: Vec<Vec<File>>,
}

impl Sorter {
    pub fn new(folder: &Path) -> Self {
        Self::with_budget(folder, MEMORY_BUDGET)
    }

    fn with_budget(folder: &Path, budget: usize) -> Self {
        Self {
            spill_folder: folder.into(),
            budget,
            bytes: Vec::new(),
            records: Vec::new(),
            levels: Vec::new(),
        }
    }

    /// Adds a record. Equal records are kept, each as often as it was added.
    ///
    /// # Errors
    /// The disk is full, or failed; or the record is longer than 4 GiB.
    pub fn push(&mut self, record: &[u8]) -> io::Result<()> {
        if !self.bytes.is_empty() && self.bytes.len() + record.len() > self.budget {
            self.spill()?;
        }
        let start = offset(self.bytes.len())?;
        self.bytes.extend_from_slice(record);
        self.records.push((start, offset(self.bytes.len())?));
        Ok(())
    }

    /// All records, sorted.
    pub fn finish(mut self) -> io::Result<MergedRuns> {
        let mut last = Vec::with_capacity(self.bytes.len() + self.records.len() * 4);
        self.write_sorted(&mut last)?;
        let last: Box<dyn Read> = Box::new(Cursor::new(last));
        let spilled = self.levels.into_iter().flatten().map(read_run);
        MergedRuns::new(std::iter::once(Ok(last)).chain(spilled))
    }

    fn spill(&mut self) -> io::Result<()> {
        let mut out = BufWriter::new(tempfile::tempfile_in(&self.spill_folder)?);
        self.write_sorted(&mut out)?;
        let run = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        self.add_run(0, run)
    }

    /// Writes the records in memory, which are then gone from it.
    fn write_sorted(&mut self, out: &mut impl Write) -> io::Result<()> {
        let bytes = &self.bytes;
        let record = |&(start, end): &(u32, u32)| &bytes[start as usize..end as usize];
        self.records.sort_unstable_by(|a, b| record(a).cmp(record(b)));
        self.records.iter().try_for_each(|r| write_record(out, record(r)))?;
        self.records.clear();
        self.bytes.clear();
        Ok(())
    }

    fn add_run(&mut self, level: usize, run: File) -> io::Result<()> {
        if self.levels.len() == level {
            self.levels.push(Vec::new());
        }
        self.levels[level].push(run);
        if self.levels[level].len() < FAN_IN {
            return Ok(());
        }
        let mut out = BufWriter::new(tempfile::tempfile_in(&self.spill_folder)?);
        for record in MergedRuns::new(self.levels[level].drain(..).map(read_run))? {
            write_record(&mut out, &record?)?;
        }
        self.add_run(level + 1, out.into_inner().map_err(io::IntoInnerError::into_error)?)
    }
}

/// Records in the order of their bytes, from several sorted runs.
pub struct MergedRuns {
    runs: Vec<Box<dyn Read>>,
    heads: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
}

impl MergedRuns {
    fn new(runs: impl Iterator<Item = io::Result<Box<dyn Read>>>) -> io::Result<Self> {
        let mut merge = Self { runs: runs.collect::<io::Result<_>>()?, heads: BinaryHeap::new() };
        for run in 0..merge.runs.len() {
            merge.refill(run)?;
        }
        Ok(merge)
    }

    fn refill(&mut self, run: usize) -> io::Result<()> {
        let mut len = [0; 4];
        match self.runs[run].read_exact(&mut len) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let mut record = vec![0; u32::from_le_bytes(len) as usize];
        self.runs[run].read_exact(&mut record)?;
        self.heads.push(Reverse((record, run)));
        Ok(())
    }
}

impl Iterator for MergedRuns {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((record, run)) = self.heads.pop()?;
        Some(self.refill(run).map(|()| record))
    }
}

fn read_run(mut file: File) -> io::Result<Box<dyn Read>> {
    file.rewind()?;
    Ok(Box::new(BufReader::with_capacity(READ_BUFFER, file)))
}

fn write_record(out: &mut impl Write, record: &[u8]) -> io::Result<()> {
    out.write_all(&offset(record.len())?.to_le_bytes())?;
    out.write_all(record)
}

fn offset(n: usize) -> io::Result<u32> {
    u32::try_from(n).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a record is longer than 4 GiB"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sorted(records: &[Vec<u8>], budget: usize) -> Vec<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::with_budget(folder.path(), budget);
        for record in records {
            sorter.push(record).unwrap();
        }
        let result = sorter.finish().unwrap().map(Result::unwrap).collect();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "spill files must have no name");
        result
    }

    #[test]
    fn several_levels_of_runs_give_one_sorted_stream() {
        let records: Vec<Vec<u8>> =
            (0..10_000u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes().to_vec()).collect();
        let mut expected = records.clone();
        expected.sort();
        // One record per run: 10,000 runs make three levels.
        assert_eq!(sorted(&records, 1), expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn nothing_is_lost_and_all_is_in_order(
            records in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..6), 0..200),
            budget in 1usize..64,
        ) {
            let mut expected = records.clone();
            expected.sort();
            prop_assert_eq!(sorted(&records, budget), expected);
        }
    }
}
