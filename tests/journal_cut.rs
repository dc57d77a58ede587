//! A journal that lost its end, at whatever byte, or in which a byte is wrong: the next start keeps what agrees with the results, does the
//! rest again, and ends exactly; where nothing of the journal is left it refuses, and touches nothing.

use std::fs;
use std::path::Path;

use crate::common::{Workplace, copy_folder};
use rustix::process::Signal;

const ITEMS: u64 = 1_200;
/// Starts that write the journal and are killed, each after it has committed at least once.
const STARTS: usize = 14;
/// Items that each start may do, but for the rest of the batches that they lie in.
const ITEMS_PER_START: usize = 50;
/// More bytes than a start adds to the journal before it has committed anything.
const BEGINNING: u64 = 16;
/// Places in the journal that are tried, beside its first and last bytes.
const SAMPLES: u64 = 15;

/// A run that was killed in the middle, and so was its continuation, its output kept aside; gives the length of its journal.
fn interrupted() -> (Workplace, u64) {
    let place = Workplace::with_gate(ITEMS);
    let journal_length =
        || fs::metadata(place.out().join(".orchestra/journal")).map_or(0, |journal| journal.len());
    for _ in 0..STARTS {
        let before = journal_length();
        place.close_gate_after(ITEMS_PER_START);
        let mut run = place.start(&[]);
        assert!(
            run.until("some more is committed", || journal_length() > before + BEGINNING),
            "{}",
            run.said()
        );
        run.signal(Signal::KILL);
        run.wait();
        place.no_process_is_left();
    }
    place.open_gate();
    copy_folder(&place.out(), &place.path("kept"));
    let length = journal_length();
    (place, length)
}

/// The first and last bytes, and samples between them.
fn places(length: u64) -> Vec<u64> {
    let between = (1..=SAMPLES).map(|i| length * i / (SAMPLES + 1));
    let mut places: Vec<u64> = [0, 1, 2].into_iter().chain(between).chain([length - 2, length - 1]).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// Starts from what was kept, with a journal that `damage` has been at; whether the run accepted it.
fn goes_on(place: &Workplace, damage: impl FnOnce(&Path)) -> bool {
    fs::remove_dir_all(place.out()).unwrap();
    copy_folder(&place.path("kept"), &place.out());
    damage(&place.out().join(".orchestra/journal"));
    let results = || fs::read(place.out().join("results.jsonl")).unwrap();
    let before = results();
    let ended = place.run(&[]);
    if ended.status.code() == Some(0) {
        place.holds_exactly(ITEMS);
        place.nothing_is_left();
        return true;
    }
    ended.must_exit(78).must_say(&["--fresh"]);
    assert!(results() == before, "a run that was refused has changed the results");
    false
}

/// A journal without its first entry is none; from there on every place must be accepted.
fn must_be_accepted_from_some_place_on(accepted: &[(u64, bool)]) {
    let first = accepted.iter().position(|(_, yes)| *yes).expect("some place is accepted");
    assert!(accepted[first..].iter().all(|(_, yes)| *yes), "{accepted:?}");
    assert!(accepted.len() - first >= 6, "too few places lie behind the first entry: {accepted:?}");
}

#[test]
fn a_journal_that_is_cut_at_any_byte_is_completed_exactly_or_refused_untouched() {
    let (place, length) = interrupted();
    let cut = |to: u64| {
        let yes = goes_on(&place, |journal| {
            fs::OpenOptions::new().write(true).open(journal).unwrap().set_len(to).unwrap();
        });
        (to, yes)
    };
    let accepted: Vec<_> = places(length).into_iter().map(cut).collect();
    println!("a journal of {length} bytes, cut: {accepted:?}");
    must_be_accepted_from_some_place_on(&accepted);
    assert!(!accepted[0].1, "an empty journal beside results is no journal");
}

#[test]
fn a_journal_with_a_wrong_byte_anywhere_is_completed_exactly_or_refused_untouched() {
    let (place, length) = interrupted();
    let flip = |at: u64| {
        let yes = goes_on(&place, |journal| {
            let mut bytes = fs::read(journal).unwrap();
            bytes[usize::try_from(at).unwrap()] ^= 0x10;
            fs::write(journal, bytes).unwrap();
        });
        (at, yes)
    };
    let accepted: Vec<_> = places(length).into_iter().map(flip).collect();
    println!("a journal of {length} bytes, with a wrong byte: {accepted:?}");
    must_be_accepted_from_some_place_on(&accepted);
}
