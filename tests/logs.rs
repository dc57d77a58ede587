//! What a run writes into its logs: lines for programs, with the ids of what they are about; and what workers say, with their names and
//! within bounds.

use std::fs;

use crate::common::{Blocks, Ended, Workplace, write_pictures};
use orchestra_testkit::{DEADLY, FLOOD, FLOOD_IN_RUN, FLOOD_LINES, IN_RUN, LAST_WORDS};
use serde_json::Value;

/// Lines of one worker that are logged at once, and what may come on top in the seconds that a small run takes at most.
const MOST_LINES: usize = 200 + 20 * 60;

fn workplace(items: u64) -> Workplace {
    let place = Workplace::with_blocks(&Blocks { trap: true, devices: 1, ..Blocks::default() });
    place.edit("threads = 1\n", "threads = 1\nworkers = 1\n");
    write_pictures(&place.images(), items);
    place
}

/// All lines of a text, each of which must be one JSON object without a control character.
fn objects(text: &str) -> Vec<Value> {
    let objects = text.lines().map(|line| {
        assert!(!line.chars().any(char::is_control), "{line:?}");
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        for key in ["timestamp", "level", "target", "message"] {
            assert!(value[key].is_string(), "`{key}` is missing: {line}");
        }
        value
    });
    objects.collect()
}

fn log(place: &Workplace, file: &str) -> Vec<Value> {
    objects(&fs::read_to_string(place.out().join("logs").join(file)).unwrap())
}

fn of<'a>(lines: &'a [Value], message: &str) -> Vec<&'a Value> {
    lines.iter().filter(|l| l["message"] == message).collect()
}

#[track_caller]
fn names_its_worker(line: &Value) {
    let of = ["pipeline", "stage", "device"].map(|key| line[key].as_str().unwrap());
    assert_eq!(of, ["scans", "read", "cpu"]);
    assert!(line["worker"].is_string() && line["pid"].is_u64(), "{line}");
}

fn run_in_json(place: &Workplace, more: &[&str], variables: &[(&str, &str)]) -> Ended {
    let file = place.workflow();
    let run = ["run", file.to_str().unwrap(), "--log-format", "json", "--log-files", "json"];
    place.start_command_with(&[&run[..], more].concat(), variables).wait()
}

#[test]
fn json_lines_hold_the_ids_of_what_they_are_about() {
    let place = workplace(40);
    let ended = run_in_json(&place, &["-v"], &[]).exited(0);
    let run_id = place.report()["run_id"].clone();
    let said = objects(&ended.stderr);
    let last = said.last().unwrap();
    assert!(last["message"].as_str().unwrap().contains("40 done"), "the summary is a line, too: {last}");
    assert_eq!(last["run"], run_id);

    let lines = log(&place, "scans.log");
    assert!(lines.iter().chain(&log(&place, "run.log")).all(|line| line["run"] == run_id));
    for message in ["worker started", "worker ready", "worker ended"] {
        let line = of(&lines, message)[0];
        names_its_worker(line);
        assert_eq!(
            of(&said, message).len(),
            of(&lines, message).len(),
            "`-v` says on the terminal what is in the files"
        );
    }
}

#[test]
fn text_lines_are_the_default_and_the_file_may_ask_for_json() {
    let place = workplace(2);
    place.run(&[]).must_exit(0);
    let text = fs::read_to_string(place.out().join("logs/scans.log")).unwrap();
    assert!(text.lines().all(|l| serde_json::from_str::<Value>(l).is_err()), "{text}");
    place.edit("[telemetry]", "[telemetry]\nlog_format = \"json\"");
    let ended = place.run(&["--fresh"]).exited(0);
    assert!(ended.stderr.contains("2 done") && !ended.stderr.contains("{\""), "{}", ended.stderr);
    let text = fs::read_to_string(place.out().join("logs/scans.log")).unwrap();
    assert!(text.lines().any(|l| serde_json::from_str::<Value>(l).is_ok()), "{text}");
}

#[test]
fn what_a_worker_says_is_logged_with_its_name_and_a_flood_of_it_is_bounded() {
    let place = workplace(64);
    run_in_json(&place, &[], &[(DEADLY, FLOOD_IN_RUN)]).must_exit(0);
    place.holds_exactly(64);
    let lines = log(&place, "scans.log");
    let says = of(&lines, "worker says");
    let floods: Vec<_> = says.iter().filter(|l| l["stderr"] == FLOOD).collect();
    assert!((1..=MOST_LINES).contains(&floods.len()), "{} lines", floods.len());
    for line in &floods {
        names_its_worker(line);
    }
    let left_out: u64 =
        of(&lines, "worker says more than is logged").iter().map(|l| l["lines"].as_u64().unwrap()).sum();
    let batches = place.report()["devices"][0]["batches"].as_u64().unwrap();
    let said = (floods.len() as u64) + left_out;
    assert!(said >= batches * FLOOD_LINES as u64, "{said} lines are accounted for, of {batches} batches");
}

#[test]
fn a_crash_is_logged_with_the_worker_and_its_last_words() {
    let place = workplace(8);
    run_in_json(&place, &[], &[(DEADLY, IN_RUN)]).must_exit(69);
    let lines = log(&place, "scans.log");
    let lost = of(&lines, "worker lost");
    assert!(!lost.is_empty());
    for line in lost {
        names_its_worker(line);
        assert!(line["exit"].as_str().unwrap().contains("SIGABRT"), "{line}");
        assert!(line["last_words"].as_str().unwrap().contains(LAST_WORDS), "{line}");
    }
}
