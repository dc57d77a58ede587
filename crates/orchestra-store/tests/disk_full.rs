//! A disk that fills up, played by the limit on file sizes: writes stop in the middle, as on a full disk. The limit holds for
//! the whole process, so this file has one test.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "it/common/mod.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{
    COPIES, FAILURES, FOLDED, RESULTS, ROWS, audit, files, fold, group, identity, item, items_in,
    no_stray_parts, parts, rows_in, scratch, seal, start,
};
use orchestra_core::ItemId;
use orchestra_store::{
    BeginError, Commit, CommitError, FileIndex, FolderState, Journal, OutputFolder, PlacedFile,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn limit_files_to(bytes: Option<u64>) {
    let old = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: old.maximum }).unwrap();
}

/// Runs `f` on a disk on which files cannot grow beyond `bytes`.
fn on_a_disk_of<T>(bytes: u64, f: impl FnOnce() -> T) -> T {
    limit_files_to(Some(bytes));
    let result = f();
    limit_files_to(None);
    result
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn journal_of(dir: &Path) -> PathBuf {
    dir.join(".orchestra/journal")
}

/// A group with records in all files, by how much each file grows with it, and its journal entry.
fn next_group() -> Commit {
    group(&(100..112).map(|i| item(0, i)).collect::<Vec<_>>())
}

/// How many bytes the group adds to the file.
fn growth(group: &Commit, file: FileIndex) -> u64 {
    group.appends.iter().filter(|(f, _)| *f == file).map(|(_, b)| b.len() as u64).sum()
}

fn must_not_fit(result: Result<(), CommitError>, file: &str) {
    match result {
        Err(error @ CommitError::Write { .. }) => assert!(error.to_string().contains(file), "{error}"),
        other => panic!("{other:?}"),
    }
}

/// The whole content of every file of the run.
fn content(dir: &Path) -> Vec<Vec<u8>> {
    let paths = files().into_iter().map(|f| dir.join(f)).chain([journal_of(dir)]);
    paths.map(|p| fs::read(p).unwrap()).collect()
}

/// One file is by far the largest, so that it alone does not fit, and it is torn at every byte.
fn every_byte_of_a_record_file(file: FileIndex) {
    let dir = scratch();
    let mut journal = start(dir.path());
    let ballast = Commit { appends: vec![(file, vec![b'\n'; 10_000])], ..Commit::default() };
    journal.commit(&ballast).unwrap();
    let before = content(dir.path());
    let name = files()[file.0].clone();
    let full = len(&dir.path().join(&name));
    let group = next_group();
    assert!(growth(&group, file) > 10);
    for room in 0..growth(&group, file) {
        let result = on_a_disk_of(full + room, || journal.commit(&group));
        must_not_fit(result, name.to_str().unwrap());
        assert_eq!(content(dir.path()), before, "with room for {room} bytes");
        assert_eq!(journal.counts().total(), 0);
    }
    // With room for exactly this much, the same group is kept.
    on_a_disk_of(full + growth(&group, file), || journal.commit(&group)).unwrap();
    drop(journal);
    let journal = start(dir.path());
    assert_eq!(journal.counts().total(), 12);
    assert_eq!(journal.recovered().lost_commits, 0);
}

/// The journal is the largest file, because many scattered items were finished without records.
fn scattered() -> Vec<ItemId> {
    (0..2000).map(|i| item(1, 1000 + 2 * i)).collect()
}

fn every_byte_of_the_journal() {
    let dir = scratch();
    let mut journal = start(dir.path());
    journal.commit(&Commit { done: scattered(), ..Commit::default() }).unwrap();
    let before = content(dir.path());
    let full = len(&journal_of(dir.path()));
    let group = next_group();
    let mut room = 0;
    while let Err(error) = on_a_disk_of(full + room, || journal.commit(&group)) {
        must_not_fit(Err(error), "journal");
        assert_eq!(content(dir.path()), before, "with room for {room} bytes");
        room += 1;
    }
    assert!(room > 20, "an entry is longer than {room} bytes");
    assert_eq!(len(&journal_of(dir.path())), full + room);
    drop(journal);
    let journal = start(dir.path());
    assert_eq!(journal.counts().total(), 2012);
    assert_eq!(journal.recovered().lost_commits, 0);
}

/// A part with a long header, so that it is by far the largest file.
fn long_part(journal: &Journal) -> PlacedFile {
    let bytes = [vec![b'#'; 5000], journal.rows(ROWS).unwrap()].concat();
    PlacedFile { path: "parts-00000.txt".into(), bytes }
}

fn every_byte_of_a_part() {
    let dir = scratch();
    let mut journal = start(dir.path());
    journal.commit(&next_group()).unwrap();
    let before = content(dir.path());
    let part = long_part(&journal);
    for room in (1000..4900).step_by(100).chain(4900..part.bytes.len() as u64) {
        must_not_fit(on_a_disk_of(room, || journal.seal(ROWS, &part, Vec::new())), "parts-00000.txt");
        assert_eq!(content(dir.path()), before, "with room for {room} bytes");
        no_stray_parts(dir.path(), &journal);
    }
    journal.seal(ROWS, &part, Vec::new()).unwrap();
    drop(journal);
    let journal = start(dir.path());
    assert_eq!((journal.counts().total(), journal.n_part_files(ROWS)), (12, 1));
    assert_eq!(fs::read(&parts(dir.path())[0]).unwrap(), part.bytes);
    assert!(journal.rows(ROWS).unwrap().is_empty());
    assert_eq!(journal.recovered(), orchestra_store::Recovered::default());
}

/// The first entry does not fit: nothing has happened. The second does not: the next start has the rows and no part.
fn every_byte_of_the_entries_of_a_seal() {
    let mut closed = 0;
    for room in 0.. {
        let dir = scratch();
        let mut journal = start(dir.path());
        journal.commit(&next_group()).unwrap();
        journal.commit(&Commit { done: scattered(), ..Commit::default() }).unwrap();
        let full = len(&journal_of(dir.path()));
        let sealed = on_a_disk_of(full + room, || seal(&mut journal));
        let fits = sealed.is_ok();
        if !fits {
            must_not_fit(sealed, "journal");
            match journal.commit(&group(&[item(0, 113)])) {
                Err(CommitError::Closed(_)) => closed += 1,
                committed => {
                    committed.unwrap();
                    no_stray_parts(dir.path(), &journal);
                }
            }
        }
        drop(journal);
        let mut journal = start(dir.path());
        no_stray_parts(dir.path(), &journal);
        let rows = rows_in(dir.path(), &journal);
        assert_eq!(rows.len(), 5, "{rows:?}");
        assert_eq!(journal.n_part_files(ROWS), u64::from(fits));
        assert_eq!(journal.recovered(), orchestra_store::Recovered::default());
        seal(&mut journal).unwrap();
        assert_eq!(rows_in(dir.path(), &journal), rows);
        if fits {
            assert!(closed > 8 && room > closed, "{closed} of {room}");
            return;
        }
    }
}

/// Where a state does not fit, the rows and the state before it are as they were.
fn every_byte_of_a_state() {
    let dir = scratch();
    let mut journal = start(dir.path());
    journal.commit(&group(&[item(0, 1)])).unwrap();
    fold(&mut journal).unwrap();
    journal.commit(&next_group()).unwrap();
    let before = (content(dir.path()), journal.state(FOLDED).unwrap());
    let state = [before.1.clone().unwrap(), journal.rows(FOLDED).unwrap(), vec![b'\n'; 5000]].concat();
    for room in (1000..state.len() as u64).step_by(37) {
        must_not_fit(on_a_disk_of(room, || journal.keep_state(FOLDED, state.clone())), "state-all.1");
        assert_eq!(
            (content(dir.path()), journal.state(FOLDED).unwrap()),
            before,
            "with room for {room} bytes"
        );
    }
    journal.keep_state(FOLDED, state.clone()).unwrap();
    drop(journal);
    let journal = start(dir.path());
    assert_eq!((journal.counts().total(), journal.state(FOLDED).unwrap()), (13, Some(state)));
    assert!(journal.rows(FOLDED).unwrap().is_empty());
}

/// `sync` and `finish` write an entry, too. One that does not fit closes the journal; what was committed is there at the next start.
fn every_byte_of_the_last_entries(end: fn(&mut Journal) -> Result<(), CommitError>) {
    for room in 0.. {
        let dir = scratch();
        let mut journal = start(dir.path());
        journal.commit(&group(&(0..20).map(|i| item(0, i)).collect::<Vec<_>>())).unwrap();
        journal.commit(&Commit { done: scattered(), ..Commit::default() }).unwrap();
        let full = len(&journal_of(dir.path()));
        let result = on_a_disk_of(full + room, || end(&mut journal));
        let fits = result.is_ok();
        if !fits {
            must_not_fit(result, "journal");
            assert_eq!(len(&journal_of(dir.path())), full, "nothing of it is left");
            assert!(matches!(journal.commit(&next_group()), Err(CommitError::Closed(_))));
        }
        drop(journal);
        let mut journal = start(dir.path());
        assert_eq!(journal.counts().total(), 2020);
        assert_eq!(journal.recovered(), orchestra_store::Recovered::default());
        journal.commit(&next_group()).unwrap();
        assert_eq!(items_in(dir.path(), RESULTS).len() + items_in(dir.path(), FAILURES).len(), 32);
        if fits {
            assert!(room > 8);
            return;
        }
    }
}

/// Where the journal without failures does not fit, what had failed has failed, also for the next start.
fn every_byte_of_a_retry() {
    for room in 0.. {
        let dir = scratch();
        let mut journal = start(dir.path());
        journal.commit(&group(&(0..20).map(|i| item(0, i)).collect::<Vec<_>>())).unwrap();
        let result = on_a_disk_of(room, || journal.retry_failed(&[FAILURES]));
        let fits = result.is_ok();
        if !fits {
            must_not_fit(result.map(drop), "journal");
        }
        drop(journal);
        let journal = start(dir.path());
        assert_eq!(journal.counts().failed, if fits { 0 } else { 4 });
        assert_eq!(items_in(dir.path(), FAILURES).len(), if fits { 0 } else { 4 });
        if fits {
            assert!(room > 8);
            return;
        }
    }
}

/// A run that cannot even begin leaves nothing that would hinder the next one.
fn every_byte_of_the_first_entry() {
    for room in 0.. {
        let dir = scratch();
        let folder = OutputFolder::open(dir.path()).unwrap();
        let begun = on_a_disk_of(room, || Journal::begin(folder, &identity(), &files()).map(drop));
        if begun.is_ok() {
            assert!(room > 20);
            return;
        }
        assert!(matches!(begun, Err(BeginError::Io { .. })), "{begun:?}");
        let left = fs::read_dir(dir.path().join(".orchestra")).unwrap().map(|entry| entry.unwrap());
        let left: Vec<_> = left.filter(|entry| entry.metadata().unwrap().len() > 0).collect();
        assert_eq!(left.len(), 1, "the lock is left, and nothing with text in it: {left:?}");
        assert_eq!(OutputFolder::open(dir.path()).unwrap().state(), FolderState::Fresh);
        let mut journal = start(dir.path());
        journal.commit(&next_group()).unwrap();
        assert_eq!(audit(dir.path(), &journal).len(), 12);
    }
}

/// Going on writes an entry as well, and may be tried again.
fn every_byte_of_going_on() {
    let dir = scratch();
    let mut journal = start(dir.path());
    journal.commit(&Commit { done: scattered(), ..Commit::default() }).unwrap();
    journal.commit(&next_group()).unwrap();
    drop(journal);
    let full = len(&journal_of(dir.path()));
    for room in 0.. {
        let folder = OutputFolder::open(dir.path()).unwrap();
        match on_a_disk_of(full + room, || Journal::resume(folder, &identity(), &files())) {
            Ok(journal) => {
                assert_eq!(journal.counts().total(), 2012);
                assert!(room > 8);
                return;
            }
            Err(error) => assert!(matches!(error, BeginError::Io { .. }), "{error:?}"),
        }
        assert_eq!(len(&journal_of(dir.path())), full, "with room for {room} bytes");
    }
}

#[test]
fn a_disk_that_is_full_at_any_byte_leaves_nothing_of_the_group_and_the_next_try_works() {
    // SAFETY: ignoring a signal installs no handler; without it the signal for a write beyond the limit ends the process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    for file in [RESULTS, COPIES, FAILURES] {
        every_byte_of_a_record_file(file);
    }
    every_byte_of_the_journal();
    every_byte_of_a_part();
    every_byte_of_the_entries_of_a_seal();
    every_byte_of_a_state();
    every_byte_of_the_last_entries(Journal::sync);
    every_byte_of_the_last_entries(|journal| journal.finish(0));
    every_byte_of_a_retry();
    every_byte_of_the_first_entry();
    every_byte_of_going_on();
}
