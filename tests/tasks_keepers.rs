//! The processes beside commands: what becomes of a command whose keeper is stopped or killed, and where the system has no room for another one.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::common::{ORCHESTRA, Workplace};
use rustix::process::{Pid, Signal, kill_process};

/// Leaves the number of its keeper, and is done where it finds one.
const TELLS: &str = r#"version = 1
[tasks.a]
command = '''
test -e keeper && exit 0
setsid sleep 1000 &
echo $PPID > keeper.next; mv keeper.next keeper
sleep 1000
'''
retries = { signal = 1 }
"#;

#[test]
fn a_command_whose_keeper_is_stopped_or_killed_is_tried_again() {
    for signal in [Signal::STOP, Signal::KILL] {
        let place = Workplace::of(TELLS);
        let mut run = place.start(&[]);
        run.must_reach("it runs", || place.path("keeper").exists());
        let keeper = fs::read_to_string(place.path("keeper")).unwrap().trim().parse().unwrap();
        kill_process(Pid::from_raw(keeper).unwrap(), signal).unwrap();
        run.wait().must_exit(0).must_say(&["the command is tried again"]);
        assert_eq!(place.report()["tasks"][0]["attempts"], 2);
        match signal {
            // What has left the group of its command goes on: it has no parent that would end it.
            Signal::KILL => place.end_strangers(),
            _ => place.no_process_is_left(),
        }
    }
}

/// The first attempt does not end when it is asked to.
const STUBBORN: &str = r#"version = 1
[tasks.a]
command = """
test ! -e keeper || exit 0
trap '' TERM
echo $PPID > next; mv next keeper
sleep 1000
"""
grace = "1h"
"#;

#[test]
fn a_stopped_keeper_of_a_run_that_was_killed_holds_the_next_start_not_up() {
    let place = Workplace::of(STUBBORN);
    let mut run = place.start(&[]);
    run.must_reach("it runs", || place.path("keeper").exists());
    run.signal(Signal::KILL);
    run.wait();
    let keeper = fs::read_to_string(place.path("keeper")).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(keeper).unwrap(), Signal::STOP).unwrap();
    place.run(&[]).must_exit(0).must_say(&["was stopped by a signal: it is killed with the command"]);
    assert_eq!(place.report()["tasks"][0]["attempts"], 2);
    place.no_process_is_left();
}

/// The parent of what it starts ends before that does, so what is left becomes a child of its keeper. The command ends when nothing is there under
/// that number.
#[test]
fn what_a_command_has_left_behind_is_reaped_while_it_runs() {
    let place = Workplace::new();
    place.write(
        r#"version = 1
[tasks.a]
command = """
sh -c 'sleep 0.1 & echo $! > orphan'
while test -e /proc/$(cat orphan); do sleep 0.05; done
"""
timeout = "5m"
"#,
    );
    place.run(&[]).must_exit(0);
    place.nothing_is_left();
}

#[test]
fn commands_for_which_there_are_no_files_wait_and_have_the_limit_of_the_run() {
    // Each of them waits for a file, so that there are as many at once as can be.
    let text = "version = 1\n[devices]\nslots = 100\n[tasks.a]\nfor_each = \"rows.csv\"\ntimeout = \"2m\"\n\
                command = \"ulimit -Sn >> limits; : {n}; until test -e go; do sleep 0.05; done\"\n";
    let place = Workplace::of(text);
    let rows: String = (10..90).map(|n| format!("{n}\n")).collect();
    fs::write(place.path("rows.csv"), format!("n\n{rows}")).unwrap();
    let waits = "no process can be started for a command now: it waits";
    let run = |limits: &str| {
        let script = format!("{limits}; exec {ORCHESTRA} run workflow.toml --fresh");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(place.path("")).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        for line in BufReader::new(child.stderr.take().unwrap()).lines() {
            said = said + &line.unwrap() + "\n";
            if said.contains(waits) {
                fs::write(place.path("go"), "").unwrap();
            }
        }
        assert!(child.wait().unwrap().success() && said.contains("80 tasks, 80 done"), "{said}");
        said
    };
    assert!(run("ulimit -n 60").contains(waits));
    assert!(!run("ulimit -Sn 50").contains("it waits"));
    let limits = fs::read_to_string(place.path("limits")).unwrap();
    assert_eq!(limits, "60\n".repeat(80) + &"50\n".repeat(80));
}
