//! Commands on their slots: never two on one, each done once, whenever the run is killed; and nothing of them is left.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use common::Workplace;
use common::random::{let_pass, random};
use rustix::process::Signal;

const SLOTS: u64 = 4;
const KILLS: usize = 10;
/// Starts after these that are asked to end.
const STOPS: usize = 3;

/// A workplace with these tables, and the numbers `of` as rows.
fn place(tables: &str, of: std::ops::Range<u64>) -> Workplace {
    let place = Workplace::new();
    fs::write(place.workflow(), format!("version = 1\n[devices]\nslots = {SLOTS}\n{tables}")).unwrap();
    fs::create_dir(place.path("slots")).unwrap();
    let rows: String = of.map(|n| format!("{n}\n")).collect();
    fs::write(place.path("rows.csv"), format!("n\n{rows}")).unwrap();
    place
}

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// That each of these commands has noted itself once, and none while another one had its slot.
#[track_caller]
fn must_be_apart(place: &Workplace, of: std::ops::Range<u64>) {
    let mut by_slot: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let mut done = BTreeSet::new();
    for line in lines(&place.path("times")) {
        let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        by_slot.entry(numbers[0]).or_default().push((numbers[1], numbers[2]));
        assert!(done.insert(numbers[3]), "{} was done twice", numbers[3]);
    }
    assert_eq!(done, of.collect());
    assert!(by_slot.keys().copied().eq(0..SLOTS), "{:?}", by_slot.keys());
    for times in by_slot.values_mut() {
        times.sort_unstable();
        let is_apart = |pair: &[(u64, u64)]| pair[0].1 <= pair[1].0;
        assert!(times.windows(2).all(is_apart), "two commands had one slot at once: {times:?}");
    }
}

/// Holds the lock of its slot, and notes when.
const SHORT: &str = r#"
[tasks.work]
command = '''
exec 9> slots/$ORCHESTRA_SLOT
flock -n 9 || { echo "slot $ORCHESTRA_SLOT has two owners"; exit 9; }
began=$(date +%s%N)
echo "$ORCHESTRA_SLOT $began $(date +%s%N) {n}" >> times
'''
for_each = "rows.csv"
"#;

#[test]
fn of_a_thousand_short_commands_no_two_have_one_slot_at_once() {
    let place = place(SHORT, 0..1000);
    place.run(&[]).must_exit(0).must_say(&["1,000 tasks, 1,000 done"]);
    must_be_apart(&place, 0..1000);
    place.no_process_is_left();
}

/// The first makes its output as the last step, once: what ends it cannot come between that and its end. The second has none.
const CAREFUL: &str = r#"
[tasks.work]
command = '''
exec 9> slots/$ORCHESTRA_SLOT
flock -n 9 || { echo "slot $ORCHESTRA_SLOT has two owners"; exit 9; }
began=$(date +%s%N)
sleep 0.{n}
trap '' TERM
mkdir {output}/done || exit 8
echo "$ORCHESTRA_SLOT $began $(date +%s%N) {n}" >> times
'''
for_each = "rows.csv"
outputs = "{output}/done"

[tasks.plain]
command = '''
exec 9> slots/$ORCHESTRA_SLOT
flock -n 9 || { echo "slot $ORCHESTRA_SLOT has two owners"; exit 9; }
echo {n} >> plain
sleep 0.{n}
'''
for_each = "rows.csv"
priority = 20
"#;

/// Commands that a start says it runs again, and whether it says that some may be done more than once.
fn again(said: &str) -> (usize, bool) {
    let line = said.lines().find(|line| line.ends_with("more than once") || line.contains("will run again:"));
    let n = line.and_then(|line| line.strip_prefix("going on: ")?.split(' ').next()?.parse().ok());
    (n.unwrap_or(0), line.is_some_and(|line| line.ends_with("may so be done more than once")))
}

/// Commands that a run says it has stopped: they run again.
fn stopped(said: &str) -> usize {
    let n = said.split([',', '\n']).find_map(|part| part.trim().strip_suffix(" stopped"));
    n.and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[test]
fn whenever_the_run_is_killed_each_command_is_done_once_where_it_has_outputs_and_else_what_is_not_is_said() {
    const OF: std::ops::Range<u64> = 100..170;
    let place = place(CAREFUL, OF);
    let mut random = random();
    let mut said = Vec::new();
    for kill in 0..KILLS + STOPS {
        let mut run = place.start(&[]);
        if kill == 0 {
            // However slow the machine is, this one strikes commands that run.
            assert!(
                run.until("a command runs", || !lines(&place.path("plain")).is_empty()),
                "{}",
                run.said()
            );
        } else {
            let_pass(random.u64(0..500));
        }
        let signal = if kill < KILLS { Signal::KILL } else { Signal::TERM };
        run.signal(signal);
        said.push(run.wait().stderr);
        if signal == Signal::TERM {
            place.no_process_is_left();
        }
    }
    let ended = place.run(&[]);
    ended.must_exit(0);
    said.push(ended.stderr);
    place.no_process_is_left();
    must_be_apart(&place, OF);
    let plain = lines(&place.path("plain"));
    let done: BTreeSet<String> = plain.iter().cloned().collect();
    assert!(done.iter().cloned().eq(OF.map(|n| n.to_string())), "{done:?}");
    assert!(said.iter().any(|said| said.contains("going on: ")), "no kill struck a command: {said:#?}");
    let twice = plain.len() - done.len();
    let killed = said.iter().map(|said| again(said)).filter(|of| of.1).map(|of| of.0);
    let announced = killed.sum::<usize>() + said.iter().map(|said| stopped(said)).sum::<usize>();
    assert!(twice <= announced, "{twice} ran again, {announced} were announced: {said:#?}");
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do: 140 tasks, 140 done"]);
    assert_eq!(lines(&place.path("plain")).len(), plain.len());
}

#[test]
fn that_a_command_may_be_done_more_than_once_is_said_whichever_of_them_declares_no_outputs() {
    let with = "[tasks.with]\ncommand = \"echo >> began; while ! test -e go; do sleep 0.05; done; touch {output}/x\"\noutputs = \"{output}/x\"\n";
    let without = with.replace("tasks.with", "tasks.without").replace("\noutputs = \"{output}/x\"", "");
    for (tables, is_said) in [(with.to_owned(), false), (with.to_owned() + &without, true)] {
        let place = place(&tables, 0..0);
        let n = tables.matches("[tasks.").count();
        let mut run = place.start(&[]);
        assert!(run.until("all run", || lines(&place.path("began")).len() == n), "{}", run.said());
        run.signal(Signal::KILL);
        run.wait();
        fs::write(place.path("go"), "").unwrap();
        let ended = place.run(&[]);
        ended.must_exit(0);
        assert_eq!(again(&ended.stderr), (n, is_said), "{}", ended.stderr);
    }
}
