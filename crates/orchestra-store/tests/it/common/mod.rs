//! A small run over the journal whose records name their items, so that files can be compared with the finished set.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use orchestra_core::{ItemId, SourceId};
use orchestra_store::{
    Commit, CommitError, FileIndex, FolderState, Journal, OutputFolder, PlacedFile, RunIdentity,
};
use tempfile::TempDir;

pub const RESULTS: FileIndex = FileIndex(0);
pub const COPIES: FileIndex = FileIndex(1);
pub const FAILURES: FileIndex = FileIndex(2);
/// Its rows are sealed into parts.
pub const ROWS: FileIndex = FileIndex(3);
/// Its rows are folded into states.
pub const FOLDED: FileIndex = FileIndex(4);

/// A folder in memory where there is one: what these tests ask holds there as on a disk, and syncing takes no time.
pub fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

pub fn files() -> Vec<PathBuf> {
    let private = [".orchestra/rows-parts", ".orchestra/fold-all"];
    ["results.jsonl", "more/copies.jsonl", "failures.jsonl"]
        .into_iter()
        .chain(private)
        .map(PathBuf::from)
        .collect()
}

pub fn identity() -> RunIdentity {
    RunIdentity {
        run_id: "run-1".into(),
        workflow: "test".into(),
        fingerprint: vec![("model a".into(), "1234".into())],
        started_unix_ms: 1_700_000_000_000,
    }
}

pub fn item(source: u16, index: u64) -> ItemId {
    ItemId { source: SourceId(source), index }
}

/// A record whose length depends on the item.
pub fn record(item: ItemId) -> Vec<u8> {
    let padding = "x".repeat((item.index % 23) as usize);
    format!("{} {} {padding}\n", item.source.0, item.index).into_bytes()
}

/// A commit of these items; every fifth fails, every third done one has a second record in another file, every second one a row that goes into a part
/// and every other one a row that is folded, and every seventh a file of its own.
pub fn group(items: &[ItemId]) -> Commit {
    let mut commit = Commit::default();
    for item in items {
        if fails(*item) {
            commit.appends.push((FAILURES, record(*item)));
            commit.failed.push(*item);
            continue;
        }
        commit.appends.push((RESULTS, record(*item)));
        commit.done.push(*item);
        if item.index % 3 == 0 {
            commit.appends.push((COPIES, record(*item)));
        }
        if item.index % 2 == 0 {
            commit.appends.push((ROWS, record(*item)));
        } else {
            commit.appends.push((FOLDED, record(*item)));
        }
        if let Some(path) = own_file(*item) {
            commit.files.push(PlacedFile { path, bytes: record(*item) });
        }
    }
    commit
}

/// Seals the rows that are there, if some are.
pub fn seal(journal: &mut Journal) -> Result<(), CommitError> {
    let bytes = journal.rows(ROWS)?;
    if bytes.is_empty() {
        return Ok(());
    }
    let path = format!("parts-{:05}.txt", journal.n_part_files(ROWS)).into();
    journal.seal(ROWS, &PlacedFile { path, bytes }, Vec::new())
}

/// Folds the rows that are there, if some are: the state is the text of all rows.
pub fn fold(journal: &mut Journal) -> Result<(), CommitError> {
    let rows = journal.rows(FOLDED)?;
    if rows.is_empty() {
        return Ok(());
    }
    let state = [journal.state(FOLDED)?.unwrap_or_default(), rows].concat();
    journal.keep_state(FOLDED, state)
}

/// The part files in `dir`, in their order.
pub fn parts(dir: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_part = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("parts-");
    let mut parts: Vec<_> = names.filter(is_part).collect();
    parts.sort();
    parts
}

/// The file that an item places when it is done.
pub fn own_file(item: ItemId) -> Option<PathBuf> {
    (item.index.is_multiple_of(7) && !fails(item))
        .then(|| format!("own/{}/{}.txt", item.source.0, item.index).into())
}

pub fn fails(item: ItemId) -> bool {
    item.index % 5 == 4
}

/// Resumes the run in `dir`, or begins it.
pub fn start(dir: &Path) -> Journal {
    let mut folder = OutputFolder::open(dir).unwrap();
    if matches!(folder.state(), FolderState::Unreadable(_)) {
        folder.discard().unwrap();
    }
    match folder.state() {
        FolderState::Fresh => Journal::begin(folder, &identity(), &files()).unwrap(),
        _ => Journal::resume(folder, &identity(), &files()).unwrap(),
    }
}

/// The items named by the records of a file; panics on a torn or doubled record.
pub fn items_in(dir: &Path, file: FileIndex) -> BTreeSet<ItemId> {
    items_of(&fs::read_to_string(dir.join(&files()[file.0])).unwrap())
}

/// The items named by records; panics on a torn or doubled one.
pub fn items_of(text: &str) -> BTreeSet<ItemId> {
    assert!(text.is_empty() || text.ends_with('\n'), "torn record");
    let mut items = BTreeSet::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        let (source, index) = (number(), number());
        let found = item(u16::try_from(source).unwrap(), index);
        assert_eq!(format!("{line}\n").into_bytes(), record(found), "damaged record");
        assert!(items.insert(found), "doubled record of {found}");
    }
    items
}

/// The items whose rows lie in parts, or wait for the next one; panics on a torn or doubled row.
pub fn rows_in(dir: &Path, journal: &Journal) -> BTreeSet<ItemId> {
    let parts = (0..journal.n_part_files(ROWS)).map(|n| dir.join(format!("parts-{n:05}.txt")));
    let files = parts.chain([dir.join(&files()[ROWS.0])]);
    items_of(&files.map(|file| fs::read_to_string(file).unwrap()).collect::<String>())
}

/// Every record is there exactly if its item is finished, in every file; gives the finished items.
pub fn audit(dir: &Path, journal: &Journal) -> BTreeSet<ItemId> {
    let done = items_in(dir, RESULTS);
    let failed = items_in(dir, FAILURES);
    let copies: BTreeSet<_> = done.iter().copied().filter(|i| i.index % 3 == 0).collect();
    assert_eq!(items_in(dir, COPIES), copies);
    let rows: BTreeSet<_> = done.iter().copied().filter(|i| i.index % 2 == 0).collect();
    assert_eq!(rows_in(dir, journal), rows);
    let folded: BTreeSet<_> = done.iter().copied().filter(|i| i.index % 2 == 1).collect();
    let state = [journal.state(FOLDED).unwrap().unwrap_or_default(), journal.rows(FOLDED).unwrap()].concat();
    assert_eq!(items_of(std::str::from_utf8(&state).unwrap()), folded);
    let all: BTreeSet<_> = done.union(&failed).copied().collect();
    let known: BTreeSet<_> = (0..8)
        .flat_map(|s| journal.finished(SourceId(s)).iter().map(|i| item(s, i)).collect::<Vec<_>>())
        .collect();
    assert_eq!(all, known);
    for item in &done {
        if let Some(path) = own_file(*item) {
            assert_eq!(fs::read(dir.join(&path)).unwrap(), record(*item), "{}", path.display());
        }
    }
    let counts = journal.counts();
    assert_eq!((counts.done, counts.failed), (done.len() as u64, failed.len() as u64));
    all
}

/// No part is there that does not count. A journal that was cut short may leave some.
pub fn no_stray_parts(dir: &Path, journal: &Journal) {
    assert_eq!(parts(dir).len() as u64, journal.n_part_files(ROWS), "{:?}", parts(dir));
}
