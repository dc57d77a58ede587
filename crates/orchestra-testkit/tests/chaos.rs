//! Chaos strikes workers of the given parent only. One test: it strikes every worker that this process has.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::Duration;

use orchestra_testkit::chaos::{Chaos, Fault, strike, workers_of};
use orchestra_testkit::faulty::FAULT;
use orchestra_testkit::processes::{process, with_variable};
use rustix::process::{Pid, WaitOptions, waitpid};

fn worker() -> std::process::Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchestra-faulty-worker"));
    command.env(FAULT, "never-hello").spawn().unwrap()
}

#[test]
fn workers_are_killed_or_frozen_and_nobody_else_is() {
    let home = std::process::id();
    let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut first = worker();
    assert_eq!(workers_of(home).iter().map(|w| w.pid).collect::<Vec<_>>(), [first.id()]);

    let chaos = Chaos::at_home(Duration::from_millis(1), Fault::Kill);
    assert_eq!(first.wait().unwrap().signal(), Some(9));
    let mut second = worker();
    assert_eq!(second.wait().unwrap().signal(), Some(9));
    assert_eq!(chaos.stop(), [first.id(), second.id()]);

    let mut third = worker();
    let chaos = Chaos::at_home(Duration::from_millis(1), Fault::Freeze);
    let pid = Pid::from_child(&third);
    let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped());
    assert_eq!(chaos.stop(), [third.id()]);
    assert_eq!(process(third.id()).unwrap().state, 'T');
    assert!(with_variable(FAULT, "never-hello").iter().any(|p| p.pid == third.id()));
    assert!(!strike(third.id(), bystander.id(), Fault::Kill), "not a child of that process");
    assert!(strike(home, third.id(), Fault::Kill));
    assert_eq!(third.wait().unwrap().signal(), Some(9));
    assert!(!strike(home, third.id(), Fault::Kill), "gone");

    assert_eq!(bystander.try_wait().unwrap(), None);
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}
