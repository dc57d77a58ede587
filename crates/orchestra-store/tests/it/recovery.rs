//! A journal that breaks off at any byte, and what is said of what was lost: the records that remain are those of the finished items. Damage of all
//! files at once is in `crashes.rs`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{audit, files, group, item, own_file, record, scratch, start};

const SOURCES: u16 = 3;
const PER_SOURCE: u64 = 40;

/// Finishes what is left, in several commits.
fn go_on(dir: &Path) {
    let mut journal = start(dir);
    audit(dir, &journal);
    let all: Vec<_> = (0..SOURCES).flat_map(|s| (0..PER_SOURCE).map(move |i| item(s, i))).collect();
    let left: Vec<_> = all.iter().copied().filter(|i| !journal.is_finished(*i)).collect();
    for part in left.chunks(7) {
        journal.commit(&group(part)).unwrap();
    }
    assert_eq!(audit(dir, &journal), all.into_iter().collect());
    journal.finish(0).unwrap();
}

fn private(dir: &Path) -> PathBuf {
    dir.join(".orchestra/journal")
}

#[test]
fn every_byte_of_the_journal_is_a_good_place_to_break() {
    let dir = scratch();
    let items: Vec<_> = (0..6).flat_map(|i| [item(0, i), item(1, 2 * i)]).collect();
    let mut journal = start(dir.path());
    for (n, pair) in items.chunks(2).enumerate() {
        journal.commit(&group(pair)).unwrap();
        if n == 2 {
            journal.sync().unwrap();
        }
    }
    drop(journal);
    let whole = fs::read(private(dir.path())).unwrap();
    let records: Vec<_> = files().iter().map(|f| fs::read(dir.path().join(f)).unwrap()).collect();
    let mut last = 0;
    for cut in 0..=whole.len() {
        fs::write(private(dir.path()), &whole[..cut]).unwrap();
        for (file, bytes) in files().iter().zip(&records) {
            fs::write(dir.path().join(file), bytes).unwrap();
        }
        for item in &items {
            if let Some(file) = own_file(*item).map(|file| dir.path().join(file)) {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, record(*item)).unwrap();
            }
        }
        let journal = start(dir.path());
        let n = audit(dir.path(), &journal).len();
        assert!(n >= last, "a longer journal keeps more");
        last = n;
    }
    assert_eq!(last, 12);
}

#[test]
fn what_was_thrown_away_is_said() {
    let dir = scratch();
    let mut journal = start(dir.path());
    for i in 0..3 {
        journal.commit(&group(&[item(0, i)])).unwrap();
    }
    drop(journal);
    let (results, failures) = (dir.path().join("results.jsonl"), dir.path().join("failures.jsonl"));
    let text = fs::read(&results).unwrap();
    fs::write(results, &text[..text.len() - 1]).unwrap();
    fs::write(failures, b"0 7 xxx").unwrap();
    let journal = start(dir.path());
    assert_eq!(journal.recovered().lost_commits, 1);
    assert!(journal.recovered().cut_bytes >= 7);
}

#[test]
fn a_first_line_that_was_removed_from_durable_records_shifts_none() {
    let dir = scratch();
    let mut journal = start(dir.path());
    for i in 0..20 {
        journal.commit(&group(&[item(0, 5 * i)])).unwrap();
        journal.sync().unwrap();
    }
    drop(journal);
    let path = dir.path().join("results.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.split_once('\n').unwrap().1).unwrap();
    go_on(dir.path());
}
