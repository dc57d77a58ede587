//! Whatever is cut off or zeroed in journal and files, the records that remain are those of the finished items, and going on
//! yields every record exactly once.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::common::{audit, files, group, item, own_file, record, scratch, start};
use orchestra_core::ItemId;
use orchestra_store::{OutputFolder, State};
use proptest::prelude::*;

const SOURCES: u16 = 3;
const PER_SOURCE: u64 = 40;

#[derive(Debug, Clone)]
struct Step {
    items: Vec<ItemId>,
    sync: bool,
    reopen: bool,
}

/// What a power cut or a careless hand does to one file.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Nothing,
    /// Cut to this share of the length, in thousandths.
    Cut(u64),
    /// The same part is there, but was never written.
    Zeros(u64),
    /// A record was written, its commit was not.
    Torn,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let items = proptest::collection::vec((0..SOURCES, 0..PER_SOURCE), 1..12);
    let step = (items, any::<bool>(), proptest::bool::weighted(0.1)).prop_map(|(items, sync, reopen)| Step {
        items: items.into_iter().map(|(s, i)| item(s, i)).collect(),
        sync,
        reopen,
    });
    proptest::collection::vec(step, 0..14)
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        Just(Damage::Nothing),
        (0u64..1000).prop_map(Damage::Cut),
        // Mostly near the end, where a power cut strikes.
        (900u64..1000).prop_map(Damage::Cut),
        (800u64..1000).prop_map(Damage::Zeros),
        Just(Damage::Torn),
    ]
}

fn inflict(path: &Path, damage: Damage) {
    let len = fs::metadata(path).unwrap().len();
    let mut file = OpenOptions::new().write(true).open(path).unwrap();
    match damage {
        Damage::Nothing => {}
        Damage::Cut(share) => file.set_len(len * share / 1000).unwrap(),
        Damage::Zeros(share) => {
            file.set_len(len * share / 1000).unwrap();
            file.set_len(len).unwrap();
        }
        Damage::Torn => {
            file.seek(SeekFrom::End(0)).unwrap();
            file.write_all(b"0 7 xxx").unwrap();
        }
    }
}

/// Plays the history and gives what was finished at its end.
fn play(dir: &Path, steps: &[Step]) -> BTreeSet<ItemId> {
    let mut journal = start(dir);
    for step in steps {
        let fresh: BTreeSet<_> = step.items.iter().copied().filter(|i| !journal.is_finished(*i)).collect();
        journal.commit(&group(&fresh.into_iter().collect::<Vec<_>>())).unwrap();
        if step.sync {
            journal.sync().unwrap();
        }
        if step.reopen {
            drop(journal);
            journal = start(dir);
        }
    }
    audit(dir, &journal)
}

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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_damage_leaves_records_and_finished_items_equal_and_the_run_can_go_on(
        steps in steps(),
        journal_damage in damage(),
        file_damage in proptest::array::uniform3(damage()),
    ) {
        let dir = scratch();
        play(dir.path(), &steps);
        inflict(&private(dir.path()), journal_damage);
        for (file, damage) in files().iter().zip(file_damage) {
            // Zeros under what was synced are no power cut: `crashes.rs` says what is promised there.
            if !matches!(damage, Damage::Zeros(_)) || !steps.iter().any(|s| s.sync || s.reopen) {
                inflict(&dir.path().join(file), damage);
            }
        }
        go_on(dir.path());
    }
}

#[test]
fn every_byte_of_the_journal_is_a_good_place_to_break() {
    let dir = scratch();
    let history: Vec<_> = (0..6)
        .map(|i| Step { items: vec![item(0, i), item(1, 2 * i)], sync: i == 2, reopen: false })
        .collect();
    play(dir.path(), &history);
    let whole = fs::read(private(dir.path())).unwrap();
    let records: Vec<_> = files().iter().map(|f| fs::read(dir.path().join(f)).unwrap()).collect();
    let mut last = 0;
    for cut in 0..=whole.len() {
        fs::write(private(dir.path()), &whole[..cut]).unwrap();
        for (file, bytes) in files().iter().zip(&records) {
            fs::write(dir.path().join(file), bytes).unwrap();
        }
        for item in history.iter().flat_map(|step| &step.items) {
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
    inflict(&dir.path().join("results.jsonl"), Damage::Cut(999));
    inflict(&dir.path().join("failures.jsonl"), Damage::Torn);
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

#[test]
fn a_million_finished_items_are_known_again() {
    let dir = scratch();
    let mut journal = start(dir.path());
    // Out of order, as a pool of loaders finishes them.
    let items: Vec<_> = (0..1_000_000u64).map(|i| item(0, (i * 7919) % 1_000_000)).collect();
    for part in items.chunks(64) {
        let done = part.to_vec();
        let commit = orchestra_store::Commit { done, ..Default::default() };
        journal.commit(&commit).unwrap();
    }
    drop(journal);
    let folder = OutputFolder::open(dir.path()).unwrap();
    match folder.state() {
        State::Unfinished { counts, .. } => assert_eq!(counts.done, 1_000_000),
        other => panic!("{other:?}"),
    }
}
