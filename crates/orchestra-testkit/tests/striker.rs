//! A striker strikes workers of the given parent only. One test: it strikes every worker that this process has. Alone in its program, whose children it strikes.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use orchestra_testkit::faulty::{FAULT, SILENT};
use orchestra_testkit::processes::{process, with_variable};
use orchestra_testkit::striker::{Fault, strike, strike_workers, workers_of};
use rustix::process::{Pid, WaitOptions, waitpid};

/// Killed when the test ends, however it ends.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        // Most are dead by then.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A worker whose command line can be seen: right after `spawn` the kernel may still show an empty one.
fn worker() -> Guarded {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchestra-faulty-worker"));
    let mut child = command.env(FAULT, "never-hello").stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    // It may be struck before it says so; then its lines end.
    lines.any(|l| l == SILENT);
    Guarded(child)
}

#[test]
fn workers_are_killed_or_frozen_and_no_other_process_is() {
    let home = std::process::id();
    let mut bystander = Guarded(Command::new("sleep").arg("1000").spawn().unwrap());
    let mut first = worker();
    assert_eq!(workers_of(home).iter().map(|w| w.pid).collect::<Vec<_>>(), [first.0.id()]);

    let striker = strike_workers(home, Duration::from_millis(1), Fault::Kill);
    assert_eq!(first.0.wait().unwrap().signal(), Some(9));
    let mut second = worker();
    assert_eq!(second.0.wait().unwrap().signal(), Some(9));
    assert_eq!(striker.stop(), [first.0.id(), second.0.id()]);

    let mut third = worker();
    let striker = strike_workers(home, Duration::from_millis(1), Fault::Stop);
    let pid = Pid::from_child(&third.0);
    let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped());
    assert_eq!(striker.stop(), [third.0.id()]);
    assert_eq!(process(third.0.id()).unwrap().state, 'T');
    assert!(with_variable(FAULT, "never-hello").iter().any(|p| p.pid == third.0.id()));
    assert!(!strike(third.0.id(), bystander.0.id(), Fault::Kill), "not a child of that process");
    assert!(strike(home, third.0.id(), Fault::Kill));
    assert_eq!(third.0.wait().unwrap().signal(), Some(9));
    assert!(!strike(home, third.0.id(), Fault::Kill), "gone");

    assert_eq!(bystander.0.try_wait().unwrap(), None);
}
