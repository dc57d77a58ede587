//! What a reduce has of the rows of a run: how contributions lie one behind the other in their file, when they are folded into a state, and the
//! records of the result. It computes nothing: the kind does.
//!
//! Contributions are committed to a private file of the run with their items, so each counts exactly if its item is done. From time to time
//! [`OpenReduce::fold`] makes a state of them, and the file begins anew. When all items have ended, [`OpenReduce::result`] gives the records in
//! commits that each say in the same file how many rows are written: a run that is killed in between goes on behind them.

use std::io::{self, Read};
use std::iter::Peekable;
use std::sync::Arc;

use orchestra_core::collect::Part;
use orchestra_core::data::{ItemError, Label, OwnedValue, Value};
use orchestra_core::lineage::Share;
use orchestra_core::shapes::{ItemInfo, Join, Merge, MergeState, Reduce, ReducedRow, Reduction};
use orchestra_core::{ItemId, SourceId, StageId};
use orchestra_plan::{FilesPlan, Origin, Plan, SinkPlan};
use orchestra_store::{Commit, CommitError, FileIndex, Journal, PlacedFile, Sorter, append_row};
use thiserror::Error;

use super::file_name::{file_name, index_line};
use super::file_rows::end_file_row;
use super::result_files::{made_file, reduce_file, sink_file};
use super::row_lengths::{begin_row, end_row};
use super::ticket::Ticket;
use super::token::{PartPath, Token};

/// Contributions are folded once so many bytes of them wait, or [`STATES`] times as many as the state has: a fold is forced to the disk.
const FOLD_AT: u64 = 4 << 20;
const STATES: u64 = 4;

/// Records of the result are committed once they have so many bytes.
const RESULT_COMMIT_BYTES: usize = 4 << 20;

/// First byte of what lies in the file.
const CONTRIBUTION: u8 = 0;
const WRITTEN: u8 = 1;

/// Why contributions did not become a state, or a state no result. They stay as they are, and the next start goes on with them.
#[derive(Debug, Error)]
pub enum ReduceError {
    /// The disk, while the journal was written.
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error("the rows of stage `{stage}` cannot be read or sorted: {error}")]
    Disk { stage: String, error: io::Error },
    /// The kind, or the encoder of a sink, makes nothing of them.
    #[error("stage `{stage}` has no result: {why}")]
    Refused {
        stage: String,
        /// As a lowercase fragment.
        why: String,
    },
}

/// Puts in front of a contribution whose it is. Bytes compare as items and parts do.
pub fn write_head(token: &Token, out: &mut Vec<u8>) {
    let ItemId { source, index } = token.ticket.id();
    out.push(CONTRIBUTION);
    out.extend(source.0.to_be_bytes());
    out.extend(index.to_be_bytes());
    out.extend(u32::try_from(token.path().len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend(token.path().iter().flat_map(|part| part.index.to_be_bytes()));
}

struct Contribution<'a> {
    item: ItemId,
    path: PartPath,
    bytes: &'a [u8],
}

impl<'a> Contribution<'a> {
    fn read(record: &'a [u8]) -> Option<Self> {
        let (source, rest) = record.strip_prefix(&[CONTRIBUTION])?.split_first_chunk()?;
        let (index, rest) = rest.split_first_chunk()?;
        let (n, mut bytes) = rest.split_first_chunk()?;
        let mut path = PartPath::new();
        for _ in 0..u32::from_be_bytes(*n) {
            let (index, rest) = bytes.split_first_chunk()?;
            path.push(Part { index: u32::from_be_bytes(*index), of: 0 });
            bytes = rest;
        }
        let item =
            ItemId { source: SourceId(u16::from_be_bytes(*source)), index: u64::from_be_bytes(*index) };
        Some(Self { item, path, bytes })
    }
}

/// How much of the result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Written {
    rows: u64,
    is_all: bool,
}

impl Written {
    fn record(self) -> Vec<u8> {
        let mut out = Vec::new();
        let begin = begin_row(&mut out);
        out.push(WRITTEN);
        out.extend(self.rows.to_be_bytes());
        out.push(u8::from(self.is_all));
        end_row(&mut out, begin).expect("ten bytes are no 4 GiB");
        out
    }

    fn read(record: &[u8]) -> Option<Self> {
        let (rows, rest) = record.strip_prefix(&[WRITTEN])?.split_first_chunk()?;
        Some(Self { rows: u64::from_be_bytes(*rows), is_all: rest == [1] })
    }
}

/// The contributions of one stage that wait.
#[derive(Debug)]
pub struct OpenReduce {
    stage: StageId,
    name: String,
    file: FileIndex,
    reduce: Arc<dyn Reduce>,
    waiting: u64,
    fold_at: u64,
    /// What of the result is written; `None` where contributions came since.
    written: Option<Written>,
}

impl OpenReduce {
    /// Of all stages that reduce, with what an earlier run has left.
    pub fn all(plan: &Plan, journal: &Journal) -> Result<Vec<Self>, ReduceError> {
        let open = plan.reduces().map(|(stage, reduce)| {
            let (name, reduce) = (plan.stages[stage.index()].name.clone(), Arc::clone(reduce));
            let file = reduce_file(plan, stage);
            let mut open = Self { stage, name, file, reduce, waiting: 0, fold_at: FOLD_AT, written: None };
            let mut records = open.records(journal)?;
            while let Some(record) = records.next()? {
                open.note(record);
            }
            Ok(open)
        });
        open.collect()
    }

    pub fn stage(&self) -> StageId {
        self.stage
    }

    /// The file that its contributions are committed to.
    pub fn file(&self) -> FileIndex {
        self.file
    }

    /// Records of its file were committed.
    pub fn add(&mut self, records: &[u8]) {
        let mut records = StoredRecords { input: records, record: Vec::new(), stage: String::new() };
        while let Ok(Some(record)) = records.next() {
            self.note(record);
        }
    }

    fn note(&mut self, record: &[u8]) {
        self.written = Written::read(record);
        if self.written.is_none() {
            self.waiting += record.len() as u64;
        }
    }

    /// Whether there is enough for a fold.
    pub fn is_full(&self) -> bool {
        self.waiting >= self.fold_at && matches!(self.reduce.reduction(), Reduction::Merged(_))
    }

    /// Whether all of the result is written, of rows that are all there.
    pub fn is_written(&self, journal: &Journal) -> Result<bool, ReduceError> {
        let has_rows = self.waiting > 0 || journal.state(self.file)?.is_some();
        Ok(self.written.map_or(!has_rows, |written| written.is_all))
    }

    /// Whether a killed run has written a part of the result.
    pub fn is_half_written(&self) -> bool {
        self.written.is_some_and(|written| !written.is_all)
    }

    /// Makes a state of all contributions that wait, with the state that there is.
    pub fn fold(&mut self, journal: &mut Journal) -> Result<(), ReduceError> {
        let Reduction::Merged(merge) = self.reduce.reduction() else { return Ok(()) };
        let state = self.state(merge, journal)?.save().map_err(|item_error| self.refused(item_error))?;
        self.fold_at = (state.len() as u64).saturating_mul(STATES).max(FOLD_AT);
        journal.keep_state(self.file, state)?;
        self.waiting = 0;
        Ok(())
    }

    /// What is left to be committed of the result, in its order.
    pub fn result(&self, plan: &Plan, journal: &Journal) -> Result<ResultCommits, ReduceError> {
        let rows: ResultRows = match self.reduce.reduction() {
            _ if self.written.is_some_and(|written| written.is_all) => Box::new(std::iter::empty()),
            Reduction::Merged(merge) => self.merged(merge, journal)?,
            Reduction::InOrder(in_order) => match in_order.join() {
                Some(join) => self.joined(join, journal)?,
                None => self.in_order(journal)?,
            },
        };
        let sinks =
            plan.sinks.iter().enumerate().filter(|(_, sink)| sink.home == Some(Origin::Stage(self.stage)));
        let done = self.written.map_or(0, |written| written.rows);
        let skipped: ResultRows = Box::new(rows.skip(usize::try_from(done).unwrap_or(usize::MAX)));
        Ok(ResultCommits {
            stage: self.name.clone(),
            file: self.file,
            sinks: sinks.map(|(at, sink)| (sink_file(at), sink.clone())).collect(),
            made: made_file(plan, self.stage),
            sources: plan.sources.iter().map(|source| source.name.clone()).collect(),
            rows: skipped.peekable(),
            written: done,
        })
    }

    fn state<'a>(
        &self,
        merge: &'a dyn Merge,
        journal: &Journal,
    ) -> Result<Box<dyn MergeState + 'a>, ReduceError> {
        let refused = |item_error| self.refused(item_error);
        let mut state = merge.state(journal.state(self.file)?.as_deref()).map_err(refused)?;
        let mut records = self.records(journal)?;
        while let Some(record) = records.next()? {
            if let Some(one) = Contribution::read(record) {
                state.add(one.item, one.bytes).map_err(refused)?;
            }
        }
        Ok(state)
    }

    fn merged(&self, merge: &dyn Merge, journal: &Journal) -> Result<ResultRows, ReduceError> {
        let rows = self.state(merge, journal)?.rows().map_err(|item_error| self.refused(item_error))?;
        Ok(Box::new((0..).zip(rows).map(|(index, row)| Ok(ResultRow::of_stage(index, row)))))
    }

    fn joined(&self, mut join: Box<dyn Join>, journal: &Journal) -> Result<ResultRows, ReduceError> {
        for record in self.sorted(journal)? {
            let record = record?;
            let one = Contribution::read(&record).ok_or_else(damaged);
            one.and_then(|one| join.add(one.bytes)).map_err(|item_error| self.refused(item_error))?;
        }
        let rows = join.rows().map_err(|item_error| self.refused(item_error))?;
        Ok(Box::new((0..).zip(rows).map(|(index, row)| Ok(ResultRow::of_stage(index, row)))))
    }

    /// All contributions in the order of their items. Sorts on the disk: they need not fit into memory.
    fn sorted(
        &self,
        journal: &Journal,
    ) -> Result<impl Iterator<Item = Result<Vec<u8>, ReduceError>> + use<>, ReduceError> {
        let stage = self.name.clone();
        let disk = move |error| ReduceError::Disk { stage: stage.clone(), error };
        let mut sorter = Sorter::new(journal.folder().private_dir());
        let mut records = self.records(journal)?;
        while let Some(record) = records.next()? {
            if record.first() == Some(&CONTRIBUTION) {
                sorter.push(record).map_err(&disk)?;
            }
        }
        Ok(sorter.finish().map_err(&disk)?.map(move |record| record.map_err(&disk)))
    }

    fn in_order(&self, journal: &Journal) -> Result<ResultRows, ReduceError> {
        let (name, reduce) = (self.name.clone(), Arc::clone(&self.reduce));
        let rows = self.sorted(journal)?.map(move |record| {
            let record = record?;
            let one = Contribution::read(&record).ok_or_else(damaged);
            let row = one.and_then(|one| match reduce.reduction() {
                Reduction::InOrder(in_order) => Ok((one.item, one.path, in_order.row(one.bytes)?)),
                Reduction::Merged(_) => Err(damaged()),
            });
            let (id, path, row) = row.map_err(|item_error| refused(&name, &item_error))?;
            Ok(ResultRow { id, source: Some(id.source), path, row })
        });
        Ok(Box::new(rows))
    }

    fn records(&self, journal: &Journal) -> Result<StoredRecords<impl Read + use<>>, ReduceError> {
        let input = journal.rows_reader(self.file)?;
        Ok(StoredRecords { input, record: Vec::new(), stage: self.name.clone() })
    }

    #[expect(clippy::needless_pass_by_value, reason = "`map_err` gives it away")]
    fn refused(&self, item_error: ItemError) -> ReduceError {
        refused(&self.name, &item_error)
    }
}

fn damaged() -> ItemError {
    ItemError::result("its rows are damaged")
}

fn refused(stage: &str, item_error: &ItemError) -> ReduceError {
    ReduceError::Refused { stage: stage.to_owned(), why: item_error.error.clone() }
}

/// Reads records one by one; each has its length in front.
struct StoredRecords<R> {
    input: R,
    record: Vec<u8>,
    stage: String,
}

impl<R: Read> StoredRecords<R> {
    fn next(&mut self) -> Result<Option<&[u8]>, ReduceError> {
        let disk = |error| ReduceError::Disk { stage: self.stage.clone(), error };
        let mut length = [0; 4];
        match self.input.read_exact(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read.map_err(disk)?,
        }
        self.record.resize(u32::from_le_bytes(length) as usize, 0);
        self.input.read_exact(&mut self.record).map_err(disk)?;
        Ok(Some(&self.record))
    }
}

type ResultRows = Box<dyn Iterator<Item = Result<ResultRow, ReduceError>>>;

/// A row of the result, and what records say of it.
struct ResultRow {
    id: ItemId,
    /// Whose item it is; `None`: it is the stage's.
    source: Option<SourceId>,
    path: PartPath,
    row: ReducedRow,
}

impl ResultRow {
    /// Row `index` of a result that is the stage's own.
    fn of_stage(index: u64, row: ReducedRow) -> Self {
        Self { id: ItemId { source: SourceId(0), index }, source: None, path: PartPath::new(), row }
    }
}

/// What is left to be committed of a result.
pub struct ResultCommits {
    stage: String,
    file: FileIndex,
    sinks: Vec<(FileIndex, SinkPlan)>,
    /// Where stages read its rows.
    made: Option<FileIndex>,
    sources: Vec<String>,
    rows: Peekable<ResultRows>,
    /// Rows in commits that were given.
    written: u64,
}

impl ResultCommits {
    /// The next commit, and how many rows of the result are in it.
    pub fn next_commit(&mut self) -> Result<Option<(Commit, u64)>, ReduceError> {
        let (mut commit, before) = (Commit::default(), self.written);
        while commit.bytes() < RESULT_COMMIT_BYTES
            && let Some(row) = self.rows.next()
        {
            let row = row?;
            let added =
                self.sinks.iter().try_for_each(|(file, sink)| self.add(*file, sink, &row, &mut commit));
            added
                .and_then(|()| match self.made {
                    Some(file) => append_row(&row.row.item, &row.row.values, commit.append_to(file)),
                    None => Ok(()),
                })
                .map_err(|item_error| refused(&self.stage, &item_error))?;
            self.written += 1;
        }
        if self.written == before {
            return Ok(None);
        }
        let written = Written { rows: self.written, is_all: self.rows.peek().is_none() };
        commit.appends.push((self.file, written.record()));
        Ok(Some((commit, self.written - before)))
    }

    fn add(
        &self,
        file: FileIndex,
        sink: &SinkPlan,
        row: &ResultRow,
        commit: &mut Commit,
    ) -> Result<(), ItemError> {
        let ResultRow { id, source, path, row: ReducedRow { item, values } } = row;
        let source = source.and_then(|source| self.sources.get(source.index())).unwrap_or(&self.stage);
        let labels: Vec<Vec<Label<'_>>> = values.iter().map(OwnedValue::labels).collect();
        let missing =
            || ItemError::result("internal error: a column of its result is missing; this is a bug");
        let value = |column: usize| Some(values.get(column)?.borrowed(&labels[column]));
        let read = sink.reads.iter().map(|read| value(read.column).ok_or_else(missing));
        let read: Vec<Value<'_>> = read.collect::<Result<_, _>>()?;
        let mut bytes = Vec::new();
        let begin = sink.part_files.is_some().then(|| begin_row(&mut bytes));
        sink.encoder.encode(&ItemInfo { name: item, id: *id, source, parts: path }, &read, &mut bytes)?;
        let named = |files: &FilesPlan| {
            let ticket = Ticket::alone(*id, 0, item, b"");
            let name = file_name(files, &Token::new(ticket, Share::WHOLE, path.clone()))?;
            let begin = begin.unwrap_or_default();
            let line = index_line(item, id.index, source, &name, bytes.len() - begin);
            Ok::<_, ItemError>((files.folder.join(&*name), line))
        };
        match (begin, sink.files.as_ref().map(named).transpose()?) {
            (Some(begin), Some((_, line))) => end_file_row(&mut bytes, begin, &line)?,
            (Some(begin), None) => end_row(&mut bytes, begin)?,
            (None, Some((path, line))) => {
                commit.appends.push((file, line));
                commit.files.push(PlacedFile { path, bytes });
                return Ok(());
            }
            (None, None) => {}
        }
        commit.append_to(file).extend_from_slice(&bytes);
        Ok(())
    }
}

#[cfg(test)]
#[path = "reduce_rows_tests.rs"]
mod tests;
