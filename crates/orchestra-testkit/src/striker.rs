//! Strikes workers and loaders of a process, which are found by their arguments, once or all the time.

use std::time::Duration;

use orchestra_machine::processes::{Process, children};
pub use orchestra_worker::held_process::Fault;
use orchestra_worker::held_process::HeldProcess;
use orchestra_worker::process::is_loader_with;
pub use orchestra_worker::striker::Striker;
use orchestra_worker::striker::Strikes;

/// Live worker processes of `parent`: children one of whose arguments is, or ends with, `worker`.
pub fn workers_of(parent: u32) -> Vec<Process> {
    ours(parent).into_iter().filter(|p| !is_loader(p)).collect()
}

/// Live loader processes of `parent`.
pub fn loaders_of(parent: u32) -> Vec<Process> {
    ours(parent).into_iter().filter(is_loader).collect()
}

/// Whether a process of ours is a loader, and no worker.
pub fn is_loader(process: &Process) -> bool {
    is_loader_with(&process.arguments())
}

fn ours(parent: u32) -> Vec<Process> {
    let is_ours = |p: &Process| p.state != 'Z' && p.arguments().iter().any(|a| a.ends_with("worker"));
    children(parent).into_iter().filter(is_ours).collect()
}

/// Does `fault` to the process `pid` if it is a child of `parent`; whether it was.
pub fn strike(parent: u32, pid: u32, fault: Fault) -> bool {
    // Opened first: what is a child after that is the process of the descriptor.
    let process = HeldProcess::open(pid);
    let is_child = children(parent).iter().any(|c| c.pid == pid && c.state != 'Z');
    is_child && process.is_some_and(|process| process.strike(fault))
}

/// Strikes that keep their pace.
const STEADY: usize = 20;

/// Strikes a worker of the process `parent` whenever about `every` has passed, the oldest and the youngest in turn, each once. After 20 strikes the
/// pauses grow.
pub fn strike_workers(parent: u32, every: Duration, fault: Fault) -> Striker {
    start(parent, every, fault, workers_of)
}

/// As [`strike_workers`], its loaders.
pub fn strike_loaders(parent: u32, every: Duration, fault: Fault) -> Striker {
    start(parent, every, fault, loaders_of)
}

/// As [`strike_workers`], its workers and loaders.
pub fn strike_any(parent: u32, every: Duration, fault: Fault) -> Striker {
    start(parent, every, fault, ours)
}

fn start(parent: u32, every: Duration, fault: Fault, live: fn(u32) -> Vec<Process>) -> Striker {
    let strikes = Strikes { fault, every, steady: STEADY };
    let targets = move || live(parent).into_iter().map(|process| process.pid).collect();
    Striker::start(strikes, targets).expect("a thread that strikes")
}
