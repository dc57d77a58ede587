//! What a run keeps on disk: the list of its items ([`Catalog`]), and the output folder with its lock, its journal and the exact commit of
//! records.
//!
//! Knows nothing of stages, actors or devices and never uses an async runtime: every call may block on the disk, so the caller
//! gives the [`Journal`] a thread of its own. Items are only numbers here, records only bytes.
//!
//! # What holds, whatever happens
//! The files of a run only grow. A commit appends the records of a group of items to the files, and then one entry to the
//! journal: how far each file has grown, the checksum of what was added, and which items are finished by it. Only that entry
//! makes the group count. After `kill -9` or a power cut at any moment, [`Journal::resume`] takes the longest part of the
//! journal that is whole and that agrees with the files, cuts everything after it off, and goes on. So a record is there exactly
//! if its item is finished: none is lost, none is doubled.
//!
//! A commit may also place whole files ([`PlacedFile`]). The journal says so before the first of them is there, and a start removes those
//! whose group never counted: such a file is there exactly if its item is done.
//!
//! A file of the private folder may be sealed ([`Journal::seal`]): all that it holds becomes a numbered part file, written, synced and renamed, and the file of
//! rows begins anew. Its items counted when their rows were in that file, so they wait for no part; a start finds each row in the one or the other.
//! Or it is folded ([`Journal::keep_state`]): all that it holds becomes, with the state before it, the next state.
//!
//! ```text
//! out/                 results.jsonl, failures.jsonl, run.json, logs/     what the user reads
//! out/.orchestra/      lock, journal, items-<source>                      what the next run needs
//! ```
//!
//! # Example
//! ```
//! use orchestra_core::{ItemId, SourceId};
//! use orchestra_store::{Commit, FileIndex, Journal, OutputFolder, RunIdentity, State};
//!
//! # let dir = tempfile::tempdir()?;
//! # let out = dir.path().join("out");
//! let identity = RunIdentity {
//!     run_id: "r1".into(),
//!     workflow: "digits".into(),
//!     fingerprint: vec![("model digits".into(), "9f86d0".into())],
//!     started_unix_ms: 0,
//! };
//! let files = ["results.jsonl".into(), "failures.jsonl".into()];
//! let folder = OutputFolder::open(&out)?;
//! let mut journal = match folder.state() {
//!     State::Fresh => Journal::begin(folder, &identity, &files)?,
//!     State::Unfinished { identity: old, .. } if old.changes(&identity).is_empty() => {
//!         Journal::resume(folder, &old, &files)?
//!     }
//!     other => panic!("{other:?}"),
//! };
//! let item = ItemId { source: SourceId(0), index: 17 };
//! if !journal.is_finished(item) {
//!     let record = b"{\"item\": \"17.png\", \"index\": 17}\n".to_vec();
//!     journal.commit(&Commit { appends: vec![(FileIndex(0), record)], done: vec![item], ..Commit::default() })?;
//! }
//! journal.finish(0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod atomic;
mod catalog;
mod folder;
mod identity;
mod journal;
mod layout;
mod lock;
mod number_set;
mod object_output;
mod record_lines;
mod sorter;
mod task_journal;

pub use atomic::write_atomic;
pub use catalog::{
    Catalog, Expand, Extension, Extent, FileKinds, Found, Growth, INDEX, ItemEntry, ListError, ListingReader,
    ListingSpec, ListingSummary, MANIFEST, MadeRows, Object, ObjectPage, ObjectStore, Objects, PassedOver,
    PassedOverCounts, PushFound, SourceStore, StoreTrouble, append_row, escape, extend_listing, first_item,
    is_hidden, is_hidden_part, is_url, one_by_one, relist, write_items, write_listing,
};
pub use folder::{
    COMPARED_PAGE, DiscardError, Discarded, FAILURE_RECORDS, FolderState, OutputFolder, REPORT_PAGE,
    RUN_SUMMARY, only_files,
};
pub use identity::{Change, RunIdentity};
pub use journal::{
    BeginError, Commit, CommitError, Counts, FileIndex, Journal, PlacedFile, Recovered, altered_files,
};
pub use layout::is_foreign;
pub use lock::OpenError;
pub use number_set::NumberSet;
pub use object_output::{ObjectOutput, StoredObject};
pub use record_lines::{RecordHead, each_record};
pub use sorter::{MergedRuns, Sorter};
pub use task_journal::{TaskEnded, TaskJournal, TaskRecord, TaskStarted};
