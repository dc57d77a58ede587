//! Commands that outlive their run (`on_run_death = "keep"`): killed with `kill -9`, the run leaves them, and the next start goes on with them.

use std::fs;
use std::path::Path;

use crate::common::random::{let_pass, random};
use crate::common::{Workplace, until};
use rustix::process::{Pid, Signal, kill_process};

const KILLS: usize = 10;

/// Notes its start and its end, one command at a time. None ends before there is the file `go`.
const NOTES: &str = r#"version = 1
[devices]
slots = 4

[tasks.work]
command = '''
(flock 8; echo {n} >> begun) 8>> lock
sleep 0.{n}
while ! test -e go; do sleep 0.01; done
(flock 8; echo {n} >> ended) 8>> lock
'''
for_each = "rows.csv"
on_run_death = "keep"
"#;

/// Notes its start, and ends when it may.
const WAITS: &str = r#"version = 1
[tasks.long]
command = "echo $PPID > keeper; echo began >> began; while ! test -e go; do sleep 0.05; done"
on_run_death = "keep"
"#;

fn place(text: &str) -> Workplace {
    let place = Workplace::new();
    fs::write(place.workflow(), text).unwrap();
    place
}

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// A run of `WAITS` that was killed while its command ran.
fn killed() -> Workplace {
    let place = place(WAITS);
    let mut run = place.start(&[]);
    assert!(run.until("it has begun", || place.path("began").exists()), "{}", run.said());
    run.signal(Signal::KILL);
    run.wait();
    place
}

#[test]
fn values_keep_their_names_where_the_file_names_other_metrics_meanwhile() {
    let place = place(&WAITS.replace("echo began", r#"echo '{\"loss\": 0.5, \"acc\": 0.25}'; echo began"#));
    place.edit("on_run_death", "metrics = [\"loss\", \"acc\"]\non_run_death");
    let mut run = place.start(&[]);
    assert!(run.until("it has begun", || place.path("began").exists()), "{}", run.said());
    run.signal(Signal::KILL);
    run.wait();
    place.edit("[\"loss\", \"acc\"]", "[\"acc\", \"other\", \"loss\"]");
    fs::write(place.path("go"), "").unwrap();
    place.run(&[]).must_exit(0);
    assert_eq!(lines(&place.path("began")).len(), 1, "the command went on");
    let metrics = &place.report()["tasks"][0]["metrics"];
    let last = |name: &str| metrics[name]["last"].as_f64();
    assert_eq!((last("acc"), last("loss"), last("other")), (Some(0.25), Some(0.5), None), "{metrics}");
}

#[test]
fn whenever_the_run_is_killed_each_command_runs_exactly_once() {
    let place = place(NOTES);
    let names: Vec<String> = (10..70).map(|n| n.to_string()).collect();
    fs::write(place.path("rows.csv"), format!("n\n{}\n", names.join("\n"))).unwrap();
    let mut random = random();
    for kill in 0..KILLS {
        let mut run = place.start(&[]);
        match kill {
            // However slow the machine is, this one strikes commands that run, and the next start goes on with them.
            0 => {
                let has_begun = || !lines(&place.path("begun")).is_empty();
                assert!(run.until("a command runs", has_begun), "{}", run.said());
            }
            1 => {
                assert!(run.until_it_says("has outlived its run and goes on"), "{}", run.said());
                assert_eq!(lines(&place.path("ended")), [""; 0], "none ran when its run was killed");
                fs::write(place.path("go"), "").unwrap();
                let_pass(random.u64(0..700));
            }
            _ => let_pass(random.u64(0..700)),
        }
        run.signal(Signal::KILL);
        run.wait();
    }
    place.run(&[]).must_exit(0);
    place.no_process_is_left();
    for file in ["begun", "ended"] {
        let mut found = lines(&place.path(file));
        found.sort_unstable();
        assert_eq!(found, names, "{file}");
    }
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do: 60 tasks, 60 done"]);
}

#[test]
fn a_command_that_has_outlived_its_run_goes_on_with_the_next_start() {
    let place = killed();
    let file = place.workflow();
    let table = place.start_command(&["tasks", file.to_str().unwrap()]).wait();
    assert!(table.must_exit(0).stdout.contains("running"), "{}", table.stdout);
    for _ in 0..2 {
        let mut run = place.start(&[]);
        assert!(run.until_it_says("has outlived its run and goes on"), "{}", run.said());
        run.signal(Signal::KILL);
        run.wait();
    }
    let mut run = place.start(&[]);
    assert!(run.until_it_says("has outlived its run and goes on"), "{}", run.said());
    fs::write(place.path("go"), "").unwrap();
    run.wait().must_exit(0).must_say(&["1 task, 1 done"]);
    assert_eq!(lines(&place.path("began")).len(), 1);
    place.nothing_is_left();
}

#[test]
fn a_command_that_has_ended_while_no_run_was_there_is_done() {
    let place = killed();
    fs::write(place.path("go"), "").unwrap();
    place.no_process_is_left();
    place.run(&[]).must_exit(0).must_say(&["1 task, 1 done"]);
    assert_eq!(lines(&place.path("began")).len(), 1);
    place.nothing_is_left();
}

#[test]
fn a_run_that_is_told_to_stop_leaves_nothing_of_its_commands_behind() {
    for is_adopted in [false, true] {
        let place = if is_adopted { killed() } else { place(WAITS) };
        let mut run = place.start(&[]);
        let has_begun = || place.path("began").exists();
        let is_there = run.until("it runs", || {
            has_begun() && (!is_adopted || run_says(&place, "has outlived its run and goes on"))
        });
        assert!(is_there, "{}", run.said());
        run.signal(Signal::TERM);
        run.wait().must_exit(130);
        place.no_process_is_left();
    }
}

#[test]
fn files_of_keepers_that_were_killed_are_no_commands() {
    let place = killed();
    kill_process(keeper(&place), Signal::KILL).unwrap();
    place.no_process_is_left();
    let folder = place.out().join(".orchestra/outliving");
    let n_files = || fs::read_dir(&folder).unwrap().count();
    assert_eq!(n_files(), 2, "the lock and the socket beside it");
    // A start that was killed had not written this one yet.
    fs::write(folder.join("0123"), "").unwrap();
    fs::write(place.path("go"), "").unwrap();
    place.run(&[]).must_exit(0).must_say(&["1 task, 1 done"]);
    assert_eq!((lines(&place.path("began")).len(), n_files()), (2, 0));
    place.nothing_is_left();
}

/// The number of the keeper of `WAITS`, which its command has noted.
fn keeper(place: &Workplace) -> Pid {
    let number = fs::read_to_string(place.path("keeper")).unwrap();
    Pid::from_raw(number.trim().parse().unwrap()).unwrap()
}

/// The start waits for the end of a command whose task is gone from the file, until a signal ends the start.
#[test]
fn a_command_without_a_task_holds_no_start_up_that_is_interrupted_nor_when_its_keeper_is_stopped() {
    let place = killed();
    place.edit("[tasks.long]", "[tasks.other]");
    place.edit("while ! test -e go", "while false");
    let mut waiting = place.start(&[]);
    assert!(waiting.until_it_says("waiting for the end of a command"), "{}", waiting.said());
    waiting.signal(Signal::TERM);
    assert!(!waiting.wait().status.success());
    let mut waiting = place.start(&[]);
    assert!(waiting.until_it_says("waiting for the end of a command"), "{}", waiting.said());
    kill_process(keeper(&place), Signal::STOP).unwrap();
    waiting.wait().must_exit(0).must_say(&["was stopped by a signal: it is killed with the command"]);
    assert_eq!(lines(&place.path("began")).len(), 2, "the other one ran");
    place.nothing_is_left();
}

/// Whether any start has said so.
fn run_says(place: &Workplace, words: &str) -> bool {
    let files = fs::read_dir(place.path("")).unwrap().flatten();
    let said = files.filter(|file| file.file_name().to_string_lossy().starts_with("stderr-"));
    said.map(|file| fs::read_to_string(file.path()).unwrap()).any(|text| text.contains(words))
}

#[test]
fn a_command_that_has_changed_or_is_discarded_ends_before_the_next_one_begins() {
    for arguments in [&[][..], &["--fresh"]] {
        let place = killed();
        if arguments.is_empty() {
            place.edit("echo began >> began", "echo changed >> began");
        }
        let mut run = place.start(arguments);
        assert!(run.until_it_says("is asked to end"), "{}", run.said());
        until("the next one begins", || lines(&place.path("began")).len() == 2);
        fs::write(place.path("go"), "").unwrap();
        run.wait().must_exit(0);
        place.nothing_is_left();
    }
}
