//! The output folder is removed, changed or closed off while a run writes to it: the run stops and says so instead of writing to deleted
//! files, and the next start ends exactly.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};

use crate::common::under::runs_under;
use crate::common::{Ended, Run, Workplace};
use rustix::process::geteuid;

const ITEMS: u64 = 800;

/// A run that has written some results, and goes on once the gate is opened.
fn under_way() -> (Workplace, Run) {
    let place = Workplace::with_gate(ITEMS);
    let run = place.start_until(100);
    (place, run)
}

fn ends(place: &Workplace, run: Run) -> Ended {
    place.open_gate();
    run.wait()
}

fn completes(place: &Workplace) {
    place.run(&[]).must_exit(0);
    place.holds_exactly(ITEMS);
    place.nothing_is_left();
}

#[test]
fn a_folder_that_is_removed_in_the_middle_stops_the_run_and_the_next_start_begins_anew() {
    let (place, run) = under_way();
    // New files may appear in it until the run has noticed.
    while fs::remove_dir_all(place.out()).is_err() {}
    ends(&place, run).must_exit(75).must_say(&["results could not be written", "was deleted"]);
    place.no_process_is_left();
    drop(fs::remove_dir_all(place.out()));
    completes(&place);
}

#[test]
fn a_result_file_that_is_removed_or_changed_in_the_middle_stops_the_run_and_is_mended_by_the_next_start() {
    for says in ["was deleted", "changed by something else", "holds other bytes than the run has written"] {
        let (place, run) = under_way();
        let path = place.out().join("results.jsonl");
        let file = File::options().write(true).open(&path).unwrap();
        match says {
            "was deleted" => fs::remove_file(path).unwrap(),
            "changed by something else" => file.set_len(0).unwrap(),
            // The same size, and no line more or less.
            _ => file.write_all_at(b"X", 30).unwrap(),
        }
        ends(&place, run).must_exit(75).must_say(&["results.jsonl", says]);
        place.nothing_is_left();
        completes(&place);
    }
}

#[test]
fn a_journal_that_is_removed_in_the_middle_stops_the_run_and_nothing_of_its_results_is_lost_silently() {
    let (place, run) = under_way();
    fs::remove_file(place.out().join(".orchestra/journal")).unwrap();
    ends(&place, run).must_exit(75).must_say(&["journal", "was deleted"]);
    place.nothing_is_left();
    // Results without a journal belong to no run: they are not mixed with new ones.
    place.run(&[]).must_exit(78).must_say(&["results.jsonl", "--fresh"]);
    place.run(&["--fresh"]).must_exit(0).must_say(&["results.jsonl", "is emptied"]);
    place.holds_exactly(ITEMS);
}

#[test]
fn a_run_whose_account_cannot_be_written_says_so_and_does_not_end_as_if_all_were_well() {
    let (place, run) = under_way();
    // No name in the folder can be replaced by a file any more: here even by the owner of the machine.
    fs::create_dir(place.out().join("run.json")).unwrap();
    ends(&place, run).must_exit(75).must_say(&["run.json", "could not be written"]);
    fs::remove_dir(place.out().join("run.json")).unwrap();
    place.nothing_is_left();
    place.holds_exactly(ITEMS);
    // The next start has nothing to do but that.
    place.run(&[]).must_exit(0);
    assert!(place.out().join("run.json").is_file());
    place.holds_exactly(ITEMS);
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);
}

#[test]
fn a_folder_that_becomes_read_only_in_the_middle_costs_no_record() {
    // The owner of the machine may write all the same, unless that right is taken away.
    const HUMBLE: [&str; 5] =
        ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-all"];
    let test = "output_gone::a_folder_that_becomes_read_only_in_the_middle_costs_no_record";
    if geteuid().is_root() && !runs_under(&HUMBLE, test) {
        return;
    }
    let (place, run) = under_way();
    let set_mode = |mode| fs::set_permissions(place.out(), Permissions::from_mode(mode)).unwrap();
    set_mode(0o555);
    // The files are open already; only the account needs a new name in the folder.
    ends(&place, run).must_exit(75).must_say(&["run.json", "could not be written"]);
    set_mode(0o755);
    place.holds_exactly(ITEMS);
    place.run(&[]).must_exit(0);
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);
    place.nothing_is_left();
}

#[test]
fn a_place_where_no_folder_can_be_made_is_refused_by_name() {
    let place = Workplace::with_pictures(5);
    // No process can make a folder there, not even one of root.
    place
        .run(&["--output", "/proc/orchestra-out"])
        .must_exit(75)
        .must_say(&["/proc/orchestra-out", "--output"]);
    place.nothing_is_left();
}
