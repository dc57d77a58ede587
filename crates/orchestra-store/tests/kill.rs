//! A process that writes a run is killed again and again: its lock is free at once, and at the end every record is there once. Alone in its program: a
//! child that another thread is about to start would hold a lock of this one for a moment.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "it/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::{audit, fold, group, item, no_stray_parts, no_strays, seal, start};
use orchestra_store::{OpenError, OutputFolder};

const FOLDER: &str = "ORCHESTRA_JOURNAL_TEST_FOLDER";
/// So many that their lines do not fit into a pipe: a writer that is not read from cannot come to its end unseen.
const ITEMS: u64 = 6000;

/// The process that is killed: this test binary with only this test, which does nothing in an ordinary run.
#[test]
fn writer_process() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let mut journal = start(folder.as_ref());
    for first in (0..ITEMS).step_by(3) {
        let left: Vec<_> =
            (first..first + 3).map(|i| item(0, i)).filter(|i| !journal.is_finished(*i)).collect();
        if left.is_empty() {
            continue;
        }
        journal.commit(&group(&left)).unwrap();
        if first % 10 == 0 {
            seal(&mut journal).unwrap();
        }
        if first % 8 == 0 {
            fold(&mut journal).unwrap();
        }
        println!("committed {first:>200}");
    }
    seal(&mut journal).unwrap();
    journal.finish(0).unwrap();
}

#[test]
fn a_writer_that_is_killed_at_any_moment_loses_and_doubles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let me = std::env::current_exe().unwrap();
    let mut kills = 0;
    loop {
        let mut child = Command::new(&me)
            .args(["writer_process", "--exact", "--nocapture"])
            .env(FOLDER, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Killed while it writes on: how far it comes beyond these commits is up to the scheduler.
        let reached = lines
            .by_ref()
            .map_while(Result::ok)
            .filter(|l| l.contains("committed"))
            .take(20 + kills * 7)
            .count();
        if reached > 0 && kills == 0 {
            match OutputFolder::open(dir.path()) {
                Err(OpenError::Busy { pid, .. }) => assert_eq!(pid, Some(child.id())),
                other => panic!("{other:?}"),
            }
        }
        child.kill().unwrap();
        let status = child.wait().unwrap();
        let journal = start(dir.path());
        let finished = audit(dir.path(), &journal);
        no_strays(dir.path(), &finished);
        no_stray_parts(dir.path(), &journal);
        let finished = finished.len() as u64;
        if status.success() || finished == ITEMS {
            assert_eq!(finished, ITEMS);
            break;
        }
        kills += 1;
    }
    assert!(kills > 3);
}
