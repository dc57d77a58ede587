//! A disk that fills up, played by the limit on file sizes: writes stop in the middle, as on a full disk. The limit holds for
//! the whole process, so this file has one test.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use common::{audit, group, item, start};
use orchestra_journal::{Commit, CommitError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn limit_files_to(bytes: Option<u64>) {
    let old = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: old.maximum }).unwrap();
}

#[test]
fn a_commit_that_does_not_fit_leaves_nothing_and_can_be_tried_again() {
    // SAFETY: ignoring a signal installs no handler; without it the signal for a write beyond the limit ends the process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let dir = tempfile::tempdir().unwrap();
    let mut journal = start(dir.path());
    let first: Vec<_> = (0..20).map(|i| item(0, i)).collect();
    journal.commit(&group(&first)).unwrap();

    // Every length of the limit tears the write at another place: in the first file or in a later one.
    let second: Vec<_> = (20..80).map(|i| item(0, i)).collect();
    let results = std::fs::metadata(dir.path().join("results.jsonl")).unwrap().len();
    for room in (0..600).step_by(37) {
        limit_files_to(Some(results + room));
        match journal.commit(&group(&second)) {
            Err(error @ CommitError::Write { .. }) => {
                assert!(error.to_string().contains(".jsonl"), "{error}")
            }
            other => panic!("{other:?}"),
        }
        limit_files_to(None);
        assert_eq!(audit(dir.path(), &journal).len(), 20);
    }

    // Without records only the journal grows, so it is the file that does not fit. Scattered items need a large entry.
    let scattered: Vec<_> = (0..2000).map(|i| item(1, 1000 + 2 * i)).collect();
    let journal_len = std::fs::metadata(dir.path().join(".orchestra/journal")).unwrap().len();
    for room in [0, 1, 8, 100, 4000] {
        limit_files_to(Some(journal_len + room));
        match journal.commit(&Commit { done: scattered.clone(), ..Commit::default() }) {
            Err(error @ CommitError::Write { .. }) => {
                assert!(error.to_string().contains("journal"), "{error}")
            }
            other => panic!("{other:?}"),
        }
        limit_files_to(None);
        assert_eq!(audit(dir.path(), &journal).len(), 20);
    }

    journal.commit(&group(&second)).unwrap();
    assert_eq!(audit(dir.path(), &journal).len(), 80);
    drop(journal);
    let journal = start(dir.path());
    assert_eq!(audit(dir.path(), &journal).len(), 80);
    assert_eq!(journal.recovered().lost_commits, 0);
}
