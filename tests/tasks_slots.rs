//! Commands on their slots: never two on one, each done once, whenever the run is killed; and nothing of them is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::common::Workplace;
use crate::common::random::{let_pass, random};
use orchestra_testkit::size::scaled;
use rustix::process::Signal;

const SLOTS: u64 = 4;
const KILLS: usize = 10;
/// Starts after these that are asked to end.
const STOPS: usize = 3;

/// A workplace with these tables, and the numbers `of` as rows.
fn place(tables: &str, of: std::ops::Range<u64>) -> Workplace {
    let place = Workplace::with_slots(SLOTS as usize, tables);
    fs::create_dir(place.path("slots")).unwrap();
    let rows: String = of.map(|n| format!("{n}\n")).collect();
    fs::write(place.path("rows.csv"), format!("n\n{rows}")).unwrap();
    place
}

/// That each of these commands has noted itself once, and none while another one had its slot.
#[track_caller]
fn must_be_apart(place: &Workplace, of: std::ops::Range<u64>) {
    let mut by_slot: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let mut done = BTreeSet::new();
    for line in place.text_lines("times") {
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
fn of_many_short_commands_no_two_have_one_slot_at_once() {
    let n = scaled(900, 200);
    let place = place(SHORT, 0..n);
    place.run(&[]).must_exit(0).must_say(&[&format!("{n} tasks, {n} done")]);
    must_be_apart(&place, 0..n);
    place.no_process_is_left();
}

/// The first makes its output as the last step, once: what ends it cannot come between that and its end. The second has none, and does not end
/// before there is the file `go`.
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
while ! test -e go; do sleep 0.01; done
'''
for_each = "rows.csv"
priority = 20
"#;

/// What a start says of commands that it runs again.
#[derive(Debug, Default, PartialEq)]
struct Again {
    count: usize,
    names: BTreeSet<String>,
    /// There are more than it names.
    has_more: bool,
    /// Some may so be done more than once.
    is_told: bool,
}

fn again(said: &str) -> Again {
    let words = |line: &str| {
        let (count, rest) = line.strip_prefix("going on: ")?.split_once(" command")?;
        let (_, names) = rest.split_once("will run again: ")?;
        let (names, is_told) =
            match names.strip_suffix("; what declares no `outputs` may so be done more than once") {
                Some(names) => (names, true),
                None => (names, false),
            };
        let (names, has_more) = names.strip_suffix(", ..").map_or((names, false), |names| (names, true));
        let names = names.split([',', ' ']).filter(|word| !["", "and"].contains(word));
        let names = names.map(|name| name.trim_matches('`').to_owned()).collect();
        Some(Again { count: count.parse().ok()?, names, has_more, is_told })
    };
    said.lines().find_map(words).unwrap_or_default()
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
    // How often each command was said to run again.
    let mut announced: BTreeMap<String, usize> = BTreeMap::new();
    for kill in 0..KILLS + STOPS {
        let mut run = place.start(&[]);
        if kill == 0 {
            // However slow the machine is, this one strikes commands that run.
            run.must_reach("a command runs", || !place.text_lines("plain").is_empty());
        } else {
            let_pass(random.u64(0..500));
        }
        let signal = if kill < KILLS { Signal::KILL } else { Signal::TERM };
        run.signal(signal);
        let words = run.wait().stderr;
        let count = stopped(&words);
        if count > 0 {
            let report = place.report();
            let tasks = report["tasks"].as_array().unwrap().iter().filter(|task| task["state"] == "stopped");
            let names: Vec<String> = tasks.map(|task| task["task"].as_str().unwrap().to_owned()).collect();
            assert_eq!(names.len(), count, "{words}");
            names.into_iter().for_each(|name| *announced.entry(name).or_default() += 1);
        }
        said.push(words);
        if signal == Signal::TERM || kill == 0 {
            place.no_process_is_left();
        }
        if kill == 0 {
            fs::write(place.path("go"), "").unwrap();
        }
    }
    let ended = place.run(&[]).exited(0);
    said.push(ended.stderr);
    for again in said.iter().map(|said| again(said)).filter(|again| again.is_told) {
        again.names.into_iter().for_each(|name| *announced.entry(name).or_default() += 1);
    }
    place.no_process_is_left();
    must_be_apart(&place, OF);
    let plain = place.text_lines("plain");
    let done: BTreeSet<String> = plain.iter().cloned().collect();
    assert!(done.iter().cloned().eq(OF.map(|n| n.to_string())), "{done:?}");
    assert!(said.iter().any(|said| said.contains("going on: ")), "no kill struck a command: {said:#?}");
    let times = |n: &String| plain.iter().filter(|ran| *ran == n).count();
    for n in &done {
        let told = announced.get(&format!("plain[n={n}]")).copied().unwrap_or(0);
        assert!(times(n) <= 1 + told, "{n} ran {} times, which was said {told} times: {said:#?}", times(n));
    }
    assert!(done.iter().any(|n| times(n) > 1), "the first kill struck one: {said:#?}");
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do: 140 tasks, 140 done"]);
    assert_eq!(place.text_lines("plain").len(), plain.len());
}

#[test]
fn commands_that_may_be_done_more_than_once_are_all_named_and_of_others_that_run_again_a_few() {
    let with = "[tasks.with]\ncommand = \"echo >> began; while ! test -e go; do sleep 0.05; done; touch {output}/{n}\"\n\
                outputs = \"{output}/{n}\"\nmatrix = { n = [1, 2, 3, 4, 5, 6, 7] }\n";
    let without = with.replace("tasks.with", "tasks.without").replace("\noutputs = \"{output}/{n}\"", "");
    let without = without.replace("touch {output}/{n}", ": {n}");
    let names =
        |table: &str, last: u64| (1..=last).map(|n| format!("{table}[n={n}]")).collect::<BTreeSet<_>>();
    for (tables, names, has_more) in [
        (with.replace(", 2, 3, 4, 5, 6, 7", ""), names("with", 1), false),
        (with.to_owned(), names("with", 5), true),
        (without.clone(), names("without", 7), false),
        (with.to_owned() + &without, &names("with", 5) | &names("without", 7), true),
    ] {
        let place = place(&tables, 0..0);
        place.edit("slots = 4", "slots = 14");
        let count = if tables.contains("2,") { 7 * tables.matches("[tasks.").count() } else { 1 };
        let mut run = place.start(&[]);
        run.must_reach("all run", || place.text_lines("began").len() == count);
        run.signal(Signal::KILL);
        run.wait();
        // None of them may see the file and end well.
        place.no_process_is_left();
        fs::write(place.path("go"), "").unwrap();
        let ended = place.run(&[]).exited(0);
        let is_told = tables.contains("tasks.without");
        assert_eq!(again(&ended.stderr), Again { count, names, has_more, is_told }, "{}", ended.stderr);
    }
}
