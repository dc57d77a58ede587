//! A run that is cut off again and again, at any byte of any file: what counts afterwards is what the first commits finished, up to some
//! commit that came no earlier than the last sync, and the records are exactly those.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{
    FAILURES, FOLDED, ROWS, audit, fails, files, fold, group, item, no_stray_parts, parts, scratch, seal,
    start,
};
use orchestra_core::ItemId;
use orchestra_store::{FolderState, Journal, OpenError, OutputFolder, altered_files};
use proptest::prelude::*;

const SOURCES: u16 = 2;
const PER_SOURCE: u64 = 60;

#[derive(Debug, Clone)]
enum Step {
    Commit(Vec<ItemId>),
    Seal,
    Fold,
    /// What has failed is to be done again.
    Retry,
    Sync,
}

/// What a power cut leaves of what had not been synced in one file.
#[derive(Debug, Clone)]
struct Cut {
    /// How much of it is there, from 0.0 to 1.0: any byte may be the last.
    kept: f64,
    /// A byte of it that is not what was written, and by which bits it differs.
    flipped: Option<(f64, u8)>,
    /// What lies behind it.
    behind: Behind,
}

#[derive(Debug, Clone)]
enum Behind {
    Nothing,
    Zeros(usize),
    Bytes(Vec<u8>),
    /// Bytes of the same file from before, as a block that was used before shows them.
    Earlier(f64),
    /// A record that looks right.
    Record(ItemId),
}

fn any_item() -> impl Strategy<Value = ItemId> {
    (0..SOURCES, 0..PER_SOURCE).prop_map(|(s, i)| item(s, i))
}

fn epoch() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => proptest::collection::vec(any_item(), 1..9).prop_map(Step::Commit),
        1 => Just(Step::Seal),
        1 => Just(Step::Fold),
        1 => Just(Step::Retry),
        1 => Just(Step::Sync),
    ];
    proptest::collection::vec(step, 0..8)
}

fn cut() -> impl Strategy<Value = Cut> {
    let kept = prop_oneof![Just(0.0), Just(1.0), 0.0..1.0f64, 0.9..1.0f64];
    let flipped = proptest::option::weighted(0.3, (0.0..1.0f64, 1u8..=255));
    let behind = prop_oneof![
        3 => Just(Behind::Nothing),
        1 => (1usize..5000).prop_map(Behind::Zeros),
        1 => proptest::collection::vec(any::<u8>(), 1..60).prop_map(Behind::Bytes),
        1 => (0.0..1.0f64).prop_map(Behind::Earlier),
        1 => any_item().prop_map(Behind::Record),
    ];
    (kept, flipped, behind).prop_map(|(kept, flipped, behind)| Cut { kept, flipped, behind })
}

fn paths(dir: &Path) -> [PathBuf; 6] {
    let [results, copies, failures, rows, folded] = files().try_into().unwrap();
    [PathBuf::from(".orchestra/journal"), results, copies, failures, rows, folded].map(|path| dir.join(path))
}

fn lengths(dir: &Path) -> [usize; 6] {
    paths(dir).map(|p| usize::try_from(fs::metadata(p).unwrap().len()).unwrap())
}

/// A byte of `len`, or the place behind the last one.
fn place(share: f64, len: usize) -> usize {
    (share * (len + 1) as f64) as usize
}

/// The files that items have placed.
fn own_files(dir: &Path) -> BTreeSet<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().map(|e| e.unwrap().path());
    entries(&dir.join("own")).flat_map(|folder| entries(&folder).collect::<Vec<_>>()).collect()
}

/// A power cut: of each file what was durable is left as it was, and of the rest what the cut leaves.
fn cut_power(dir: &Path, (durable, placed): ([usize; 6], BTreeSet<PathBuf>), cuts: &[Cut; 6]) {
    for (at, path) in own_files(dir).difference(&placed).enumerate() {
        let bytes = fs::read(path).unwrap();
        let kept = cuts[at % 6].kept;
        match place(kept, bytes.len()) {
            0 => fs::remove_file(path).unwrap(),
            n => fs::write(path, &bytes[..n.min(bytes.len())]).unwrap(),
        }
    }
    for ((path, durable), cut) in paths(dir).iter().zip(durable).zip(cuts) {
        let before = fs::read(path).unwrap();
        let mut bytes = before.clone();
        bytes.truncate(durable + place(cut.kept, before.len() - durable).min(before.len() - durable));
        if let Some((at, bits)) = cut.flipped
            && bytes.len() > durable
        {
            let tail = bytes.len() - durable;
            bytes[durable + place(at, tail - 1).min(tail - 1)] ^= bits;
        }
        match &cut.behind {
            Behind::Nothing => {}
            Behind::Zeros(n) => bytes.resize(bytes.len() + n, 0),
            Behind::Bytes(more) => bytes.extend(more),
            Behind::Earlier(from) => bytes.extend(&before[place(*from, before.len()).min(before.len())..]),
            Behind::Record(item) => bytes.extend(crate::common::record(*item)),
        }
        fs::write(path, bytes).unwrap();
    }
}

/// What the first commits have finished, after each of them.
struct History {
    sets: Vec<BTreeSet<ItemId>>,
    /// So many commits are durable.
    synced: usize,
}

impl History {
    fn now(&self) -> &BTreeSet<ItemId> {
        self.sets.last().unwrap()
    }

    /// Goes back to the commits that survived; fails where that is no beginning of the history, or one that ends before the last sync.
    fn cut_to(&mut self, found: &BTreeSet<ItemId>) {
        let at = self.sets.iter().rposition(|s| s == found);
        let at = at.unwrap_or_else(|| panic!("no beginning of the history ends like this: {found:?}"));
        assert!(at >= self.synced, "{} commits are durable, {at} are left", self.synced);
        self.sets.truncate(at + 1);
        self.synced = at; // Resuming makes durable what it finds.
    }
}

/// Plays the steps; gives the lengths and the placed files that were durable at their end.
fn play(
    journal: &mut Journal,
    dir: &Path,
    steps: &[Step],
    history: &mut History,
) -> ([usize; 6], BTreeSet<PathBuf>) {
    let mut durable = (lengths(dir), own_files(dir));
    for step in steps {
        match step {
            Step::Commit(items) => {
                let new: BTreeSet<_> = items.iter().copied().filter(|i| !journal.is_finished(*i)).collect();
                if new.is_empty() {
                    continue;
                }
                journal.commit(&group(&new.iter().copied().collect::<Vec<_>>())).unwrap();
                history.sets.push(history.now() | &new);
            }
            Step::Seal if journal.rows(ROWS).unwrap().is_empty() => {}
            Step::Seal => {
                seal(journal).unwrap();
                durable = (lengths(dir), own_files(dir));
                history.synced = history.sets.len() - 1;
            }
            Step::Fold if journal.rows(FOLDED).unwrap().is_empty() => {}
            Step::Fold => {
                fold(journal).unwrap();
                durable = (lengths(dir), own_files(dir));
                history.synced = history.sets.len() - 1;
            }
            Step::Retry => {
                let n_failed = history.now().iter().filter(|item| fails(**item)).count() as u64;
                assert_eq!(journal.retry_failed(&[FAILURES]).unwrap(), n_failed);
                if n_failed > 0 {
                    // From now on it is as if they had not been done.
                    history.sets.iter_mut().for_each(|set| set.retain(|item| !fails(*item)));
                    durable = (lengths(dir), own_files(dir));
                    history.synced = history.sets.len() - 1;
                }
            }
            Step::Sync => {
                journal.sync().unwrap();
                durable = (lengths(dir), own_files(dir));
                history.synced = history.sets.len() - 1;
            }
        }
        assert_eq!(&audit(dir, journal), history.now());
    }
    durable
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_counts_after_a_power_cut_is_what_the_first_commits_finished(
        epochs in proptest::collection::vec((epoch(), proptest::array::uniform6(cut())), 1..5),
    ) {
        let dir = scratch();
        let dir = dir.path();
        let mut history = History { sets: vec![BTreeSet::new()], synced: 0 };
        for (steps, cuts) in &epochs {
            let mut journal = start(dir);
            assert!(matches!(OutputFolder::open(dir), Err(OpenError::Busy { .. })), "one owner at a time");
            let durable = play(&mut journal, dir, steps, &mut history);
            drop(journal);
            cut_power(dir, durable, cuts);

            let journal = start(dir);
            let found = audit(dir, &journal);
            no_stray_parts(dir, &journal);
            assert!(matches!(OutputFolder::open(dir), Err(OpenError::Busy { .. })), "one owner at a time");
            history.cut_to(&found);
            drop(journal);

            // Who opens it again finds the same, and nothing more to cut.
            let before = paths(dir).map(|p| fs::read(p).unwrap());
            let again = start(dir);
            prop_assert_eq!(audit(dir, &again), found);
            prop_assert_eq!(again.recovered(), orchestra_store::Recovered::default());
            drop(again);
            let [_, records @ ..] = paths(dir).map(|p| fs::read(p).unwrap());
            prop_assert_eq!(&records, &before[1..]);
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_leaves_what_the_first_commits_finished_or_is_found_by_name(
        steps in epoch(),
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bit in 0..8u8,
    ) {
        let dir = scratch();
        let dir = dir.path();
        let mut history = History { sets: vec![BTreeSet::new()], synced: 0 };
        let mut journal = start(dir);
        play(&mut journal, dir, &steps, &mut history);
        drop(journal);
        let states = [".orchestra/state-all.0", ".orchestra/state-all.1"].map(|state| dir.join(state));
        let files = paths(dir).into_iter().chain(states).chain(parts(dir)).chain(own_files(dir));
        let files: Vec<_> = files.filter(|path| fs::metadata(path).is_ok_and(|meta| meta.len() > 0)).collect();
        let path = which.get(&files);
        let mut bytes = fs::read(path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        fs::write(path, bytes).unwrap();
        history.synced = 0; // Nothing is promised for files that were changed.
        if matches!(OutputFolder::open(dir).unwrap().state(), FolderState::Unreadable(_)) {
            return Ok(()); // The first entry of the journal.
        }
        let journal = start(dir);
        let altered = altered_files(dir).unwrap();
        match altered.is_empty() {
            true => history.cut_to(&audit(dir, &journal)),
            false => prop_assert_eq!(altered, [path.strip_prefix(dir).unwrap()]),
        }
    }

    #[test]
    fn a_file_that_was_cut_short_anywhere_leaves_what_the_first_commits_finished(
        steps in epoch(),
        kept in proptest::array::uniform8(prop_oneof![3 => Just(1.0), 2 => 0.0..1.0f64]),
    ) {
        let dir = scratch();
        let dir = dir.path();
        let mut history = History { sets: vec![BTreeSet::new()], synced: 0 };
        let mut journal = start(dir);
        play(&mut journal, dir, &steps, &mut history);
        drop(journal);
        let states = [".orchestra/state-all.0", ".orchestra/state-all.1"].map(|state| dir.join(state));
        for (path, kept) in paths(dir).iter().chain(&states).zip(kept) {
            let Ok(bytes) = fs::read(path) else { continue }; // There may have been no fold.
            fs::write(path, &bytes[..place(kept, bytes.len()).min(bytes.len())]).unwrap();
        }
        history.synced = 0; // Nothing is promised for files that were cut short.
        let journal = start(dir);
        history.cut_to(&audit(dir, &journal));
    }
}
