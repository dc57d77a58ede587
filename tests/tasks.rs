//! Commands from start to end: what is run again and what is not, what is said of each, and nothing of them is left.

use std::fs;
use std::process::Command;

use crate::common::{ORCHESTRA, Workplace, until};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

/// The row of a task in the table that `orchestra tasks` prints.
fn row(place: &Workplace, task: &str) -> String {
    let ended = place.on_file("tasks", &[]).exited(0);
    let row = ended.stdout.lines().find(|line| line.split_whitespace().next() == Some(task));
    row.unwrap_or_else(|| panic!("no `{task}` in {}", ended.stdout)).to_owned()
}

/// Commands with children in their group, in groups and sessions of their own, and some that do not want to end.
const STUBBORN: &str = r#"
[tasks.stubborn]
command = '''
sleep 1000 &
setsid sh -c 'trap "" TERM; setsid sleep 1000 & sleep 1000' &
trap '' {signal}
echo {signal} >> began
while true; do sleep 1000; done
'''
matrix = { signal = ["TERM", "USR1"] }
grace = "300ms"
"#;

#[test]
fn a_run_that_is_ended_leaves_no_process_of_its_commands_behind() {
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let place = Workplace::with_slots(4, STUBBORN);
        let mut run = place.start(&[]);
        run.must_reach("both run", || place.text_lines("began").len() == 2);
        run.signal(signal);
        let ended = run.wait();
        place.no_process_is_left();
        if signal == Signal::KILL {
            assert!(row(&place, "stubborn[signal=TERM]").contains("broken off"));
            continue;
        }
        ended.must_exit(130).must_say(&["2 tasks, 0 done, 0 failed, 2 stopped", "What is done is kept"]);
        assert_eq!(place.tasks()["stubborn[signal=USR1]"]["end"], "stopped");
    }
}

#[test]
fn a_command_that_leaves_processes_behind_ends_with_them() {
    let place =
        Workplace::with_slots(4, "[tasks.a]\ncommand = \"setsid sleep 1000 & sleep 1000 & echo gone\"\n");
    place.run(&[]).must_exit(0).must_say(&["left processes behind"]);
    place.no_process_is_left();
}

#[test]
fn what_is_done_and_unchanged_is_not_run_again() {
    let chain = "[tasks.a]\ncommand = \"echo a >> ran; cat in > {output}/x\"\ninputs = \"in\"\noutputs = \"{output}/x\"\n\
                 [tasks.b]\ncommand = \"echo b >> ran; cp {tasks.a.output}/x b.txt\"\noutputs = \"b.txt\"\n\
                 [tasks.c]\ncommand = \"echo c >> ran; test -e may\"\n";
    let place = Workplace::with_slots(4, chain);
    let ran = || place.text_lines("ran").concat();
    let dry = |arguments: &[&str]| place.run(&[&["--dry-run"], arguments].concat());
    fs::write(place.path("in"), "1").unwrap();
    let table = dry(&["--only", "b"]);
    assert!(
        table.must_exit(0).stdout.contains("2 tasks would run") && !table.stdout.contains("touch"),
        "{}",
        table.stdout
    );
    assert!(!place.out().exists(), "a dry run leaves nothing");
    dry(&["--only", "d"]).must_exit(2).must_say(&["the file has no task `d`; its tasks: `a`, `b`, `c`"]);

    place.run(&["--only", "b"]).must_exit(0).must_say(&["2 tasks, 2 done"]);
    assert_eq!(ran(), "ab");
    place
        .run(&[])
        .must_exit(65)
        .must_say(&["going on: 2 tasks are done and unchanged, 1 left", "ended with code 1"]);
    assert_eq!(ran(), "abc", "what failed is tried again, what is done is not");
    dry(&["--fresh"]).must_exit(0).must_print(&["3 tasks would run"]);
    fs::write(place.path("may"), "").unwrap();
    place.run(&[]).must_exit(0);
    assert_eq!(ran(), "abcc");
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);

    fs::write(place.path("in"), "22").unwrap();
    assert!(row(&place, "a").contains("changed"));
    place.run(&[]).must_exit(0);
    assert_eq!(ran(), "abccab", "an input has changed, and with it what comes after");
    fs::remove_file(place.path("b.txt")).unwrap();
    place.run(&[]).must_exit(0);
    assert_eq!(ran(), "abccabb", "an output is gone");
    place.write_slots(4, &chain.replace("test -e may", "test -e may && true"));
    place.run(&[]).must_exit(0);
    assert_eq!(ran(), "abccabbc", "a command has changed");
    place.run(&["--fresh"]).must_exit(0);
    assert_eq!(ran().len(), 11, "all of them, those that do not come after one another in any order");
}

#[test]
fn what_cannot_be_started_or_leaves_no_output_says_so() {
    let place = Workplace::with_slots(
        4,
        "[tasks.none]\ncommand = [\"no-such-program\"]\n\
         [tasks.nowhere]\ncommand = [\"true\"]\ncwd = \"no-such-folder\"\n\
         [tasks.idle]\ncommand = [\"true\"]\noutputs = [\"{output}/model\"]\n\
         [tasks.hungry]\ncommand = [\"true\"]\ninputs = [\"no-such-input\"]\n\
         [tasks.told]\ncommand = \"echo $A $ORCHESTRA_TASK $ORCHESTRA_ATTEMPT; kill -SEGV $$\"\nenv = { A = 1.5 }\nretries = 1\n\
         [tasks.flood]\ncommand = \"head -c 3000000 /dev/zero | tr '\\\\0' x; printf '\\\\033[31m' \"\n",
    );
    place.run(&[]).must_exit(65).must_say(&["6 tasks, 1 done, 5 failed"]);
    let tasks = place.tasks();
    for (task, end, why) in [
        ("none", "not_started", "there is no program `no-such-program`"),
        ("nowhere", "not_started", "no-such-folder` does not exist"),
        ("idle", "missing", "ended with code 0, but its output"),
        ("hungry", "missing", "its input"),
        ("told", "signal", "was killed by SIGSEGV; its last words:\n1.5 told 2"),
    ] {
        assert_eq!(tasks[task]["end"], end);
        assert!(tasks[task]["why"].as_str().unwrap().contains(why), "{}", tasks[task]);
    }
    assert_eq!((&tasks["told"]["attempts"], &tasks["none"]["attempts"]), (&2.into(), &1.into()));
    // A journal that is rubbish is one that says nothing.
    fs::write(place.out().join(".orchestra/tasks"), [7; 1000]).unwrap();
    place.run(&[]).must_exit(65).must_say(&["6 tasks, 1 done, 5 failed"]);
}

/// Each makes its output by itself in the first start, and is asked to end in the second one before it does.
#[test]
fn what_was_made_before_does_not_count_for_a_command_that_was_asked_to_end() {
    let tables = |version: &str, timeout: &str| {
        format!(
            "[tasks.slow]\ncommand = \"trap 'exit 0' TERM; test -e made && {{{{ touch waits; sleep 100 & wait; }}}}; echo {version} > made\"\n\
             outputs = \"made\"\n{timeout}"
        )
        .replace("{{", "{ ")
        .replace("}}", " }")
    };
    let place = Workplace::with_slots(4, &tables("one", ""));
    place.run(&[]).must_exit(0);
    for signal in [Signal::INT, Signal::KILL] {
        place.write_slots(4, &tables("two", ""));
        let mut run = place.start(&[]);
        run.must_reach("it waits", || place.path("waits").exists());
        run.signal(signal);
        run.wait();
        fs::remove_file(place.path("waits")).unwrap();
        assert_eq!(place.text_lines("made"), ["one"]);
        assert!(!row(&place, "slow").contains("done"), "{}", row(&place, "slow"));
    }
    place.write_slots(4, &tables("two", "timeout = \"300ms\""));
    place.run(&[]).must_exit(65);
    assert_eq!(place.tasks()["slow"]["end"], "timeout");
    fs::remove_file(place.path("made")).unwrap();
    // With time enough: how long this one takes is up to the machine.
    place.write_slots(4, &tables("two", ""));
    place.run(&[]).must_exit(0);
    assert_eq!(place.text_lines("made"), ["two"]);
}

#[test]
fn a_command_whose_folder_is_in_the_way_fails_alone() {
    let place = Workplace::with_slots(
        4,
        "[tasks.first]\ncommand = \"rm -rf $${ORCHESTRA_OUTPUT}; touch $${ORCHESTRA_OUTPUT}; exit 1\"\nretries = 1\n\
         [tasks.second]\ncommand = \"sleep 0.2; touch {output}/x\"\noutputs = \"{output}/x\"",
    );
    place.run(&[]).must_exit(65);
    let tasks = place.tasks();
    assert_eq!((&tasks["first"]["end"], &tasks["second"]["end"]), (&"not_started".into(), &"done".into()));
}

#[test]
fn a_log_that_cannot_grow_any_further_ends_no_command() {
    let place = Workplace::with_slots(
        4,
        "[tasks.loud]\ncommand = \"echo $PPID > began; while ! test -e go; do sleep 0.05; done; head -c 3000000 /dev/zero | tr '\\\\0' x\"",
    );
    let mut run = place.start(&[]);
    run.must_reach("it has begun", || place.text_lines("began").len() == 1);
    let keeper = place.text_lines("began")[0].parse().unwrap();
    let old = getrlimit(Resource::Fsize);
    let limit = Rlimit { current: Some(500_000), maximum: old.maximum };
    // Of the process that writes the log.
    prlimit(Pid::from_raw(keeper), Resource::Fsize, limit).unwrap();
    fs::write(place.path("go"), "").unwrap();
    run.wait().must_exit(0).must_say(&["the log of a command or its metrics are incomplete"]);
}

#[test]
fn a_damaged_journal_of_tasks_is_kept_and_told_of() {
    let place = Workplace::with_slots(4, "[tasks.a]\ncommand = \"true\"\n[tasks.b]\ncommand = \"true\"");
    place.run(&[]).must_exit(0);
    let journal = place.out().join(".orchestra/tasks");
    let mut bytes = fs::read(&journal).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&journal, &bytes).unwrap();
    place.run(&[]).must_exit(0).must_say(&["the journal of tasks is damaged"]);
    assert_eq!(fs::read(place.out().join(".orchestra/tasks.damaged")).unwrap(), bytes);
    assert!(place.tasks().values().all(|task| task["state"] == "done"));
}

#[test]
fn no_value_is_run_by_the_shell_and_no_row_renames_what_is_given() {
    let place =
        Workplace::with_slots(4, "[tasks.say]\ncommand = 'echo \"{text}\"'\nfor_each = \"rows.jsonl\"");
    let refused = |rows: &str, why: &str| {
        fs::write(place.path("rows.jsonl"), rows).unwrap();
        place.run(&[]).must_exit(78).must_say(&[why]);
    };
    refused("{\"text\": \"$(touch ran)\"}\n", "stands between quotes");
    place.write_slots(
        4,
        "[tasks.say]\ncommand = '''# don't run it\necho {text} > said'''\nfor_each = \"rows.jsonl\"",
    );
    fs::write(place.path("rows.jsonl"), "{\"text\": \"$(touch ran)\"}\n").unwrap();
    place.run(&[]).must_exit(0);
    assert_eq!(place.text_lines("said"), ["$(touch ran)"]);
    place.run(&[]).must_exit(0).must_say(&["nothing is left to do"]);
    assert!(row(&place, "say[text=$(touch").contains("echo '$(touch ran)' > said"));
    refused("{\"text\": \"a\"}\n{\"text\": \"b\", \"output\": \"/tmp\"}\n", "is the name of something else");
    assert!(!place.path("ran").exists());
}

#[test]
fn a_watch_without_a_terminal_prints_a_line_for_each_begin_and_end_and_says_where_no_run_is_going_on() {
    let place = Workplace::with_slots(
        4,
        r#"
[tasks.first]
command = "while ! test -e go; do sleep 0.05; done"
[tasks.second]
command = "exit 3"
after = "first"
"#,
    );
    let file = place.workflow();
    let watch = ["tasks", file.to_str().unwrap(), "--watch"];
    let ended = place.command(&watch).exited(0);
    assert!(ended.stdout.starts_with("no run with tasks is going on into `"), "{}", ended.stdout);
    ended.must_print(&["2 tasks would run"]);
    let run = place.start(&[]);
    until("the run says which commands run", || {
        let commands = fs::read(place.out().join(".orchestra/commands")).unwrap_or_default();
        String::from_utf8(commands).unwrap().contains("first")
    });
    let output = fs::File::create(place.path("watched")).unwrap();
    let mut watched = Command::new(ORCHESTRA).args(watch).stdout(output).spawn().unwrap();
    let printed = || fs::read_to_string(place.path("watched")).unwrap();
    until("the table is printed", || printed().lines().count() == 3);
    fs::write(place.path("go"), "").unwrap();
    run.wait().must_exit(65);
    assert!(watched.wait().unwrap().success());
    let states: Vec<String> =
        printed().lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(states[..3], ["task state", "first running", "second new"], "{}", printed());
    let ends: Vec<&str> =
        states[3..].iter().map(|state| &state[..]).filter(|s| !s.ends_with("running")).collect();
    assert_eq!(ends, ["first done", "second code", "the run"], "{}", printed());
    assert!(!place.out().join(".orchestra/commands").exists());
}

#[test]
fn a_shell_whose_command_was_killed_by_a_signal_is_tried_again_as_one() {
    let place = Workplace::with_slots(
        4,
        "[tasks.text]\ncommand = \"sh -c 'kill -ABRT $$'; exit $?\"\nretries = { signal = 2 }\n\
         [tasks.list]\ncommand = [\"bash\", \"-c\", \"bash -c 'kill -SEGV $$'; exit $?\"]\nretries = { signal = 1 }\n\
         [tasks.killed]\ncommand = \"sh -c 'kill -KILL $$'; exit $?\"\nretries = { signal = 1, code = 5 }\n\
         [tasks.code]\ncommand = \"exit 77\"\nretries = { signal = 3 }\n\
         [tasks.program]\ncommand = [\"python3\", \"-c\", \"raise SystemExit(134)\"]\nretries = { signal = 3 }\n",
    );
    place.run(&[]).must_exit(65).must_say(&["was killed by SIGABRT", "was killed by SIGSEGV"]);
    let tasks = place.tasks();
    let ended =
        |task: &str| (tasks[task]["end"].as_str().unwrap(), tasks[task]["attempts"].as_u64().unwrap());
    assert_eq!(ended("text"), ("signal", 3));
    assert_eq!(ended("list"), ("signal", 2));
    assert_eq!(ended("killed"), ("signal", 2));
    assert_eq!(ended("code"), ("code", 1));
    assert_eq!(ended("program"), ("code", 1));
}
