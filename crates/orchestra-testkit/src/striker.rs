//! Strikes workers and loaders of another process, which are found by their arguments, once or all the time. `lab` has the striker of a run in its
//! own process.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use orchestra_machine::processes::{Process, children};
pub use orchestra_worker::held_process::Fault;
use orchestra_worker::held_process::HeldProcess;
use orchestra_worker::process::is_loader_with;

/// Live worker processes of `parent`: children one of whose arguments is, or ends with, `worker`.
#[must_use]
pub fn workers_of(parent: u32) -> Vec<Process> {
    ours(parent).into_iter().filter(|p| !is_loader(p)).collect()
}

/// Live loader processes of `parent`.
#[must_use]
pub fn loaders_of(parent: u32) -> Vec<Process> {
    ours(parent).into_iter().filter(is_loader).collect()
}

/// Whether a process of ours is a loader, and no worker.
#[must_use]
pub fn is_loader(process: &Process) -> bool {
    is_loader_with(&process.arguments)
}

fn ours(parent: u32) -> Vec<Process> {
    let is_ours = |p: &Process| p.state != 'Z' && p.arguments.iter().any(|a| a.ends_with("worker"));
    children(parent).into_iter().filter(is_ours).collect()
}

/// Does `fault` to the process `pid` if it is a child of `parent`; whether it was.
#[must_use]
pub fn strike(parent: u32, pid: u32, fault: Fault) -> bool {
    // Opened first: what is a child after that is the process of the descriptor.
    let process = HeldProcess::open(pid);
    let is_child = children(parent).iter().any(|c| c.pid == pid && c.state != 'Z');
    is_child && process.is_some_and(|process| process.strike(fault))
}

/// Strikes that keep their pace.
const STEADY: usize = 20;

/// The thread that strikes. Dropping it ends it, which takes no longer than a strike.
#[derive(Debug)]
pub struct Striker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Vec<u32>>>,
}

impl Striker {
    /// Strikes a worker of the process `parent` whenever about `every` has passed, the oldest and the youngest in turn, each once. After
    /// 20 strikes the pauses grow, each by a fifth of `every`: so there comes one in which a survivor starts and does a batch, however
    /// slow the machine is.
    #[must_use]
    pub fn of_process(parent: u32, every: Duration, fault: Fault) -> Self {
        Self::of(parent, every, fault, workers_of)
    }

    /// Likewise, its loaders.
    #[must_use]
    pub fn of_loaders(parent: u32, every: Duration, fault: Fault) -> Self {
        Self::of(parent, every, fault, loaders_of)
    }

    /// Likewise, its workers and loaders.
    #[must_use]
    pub fn of_any(parent: u32, every: Duration, fault: Fault) -> Self {
        Self::of(parent, every, fault, ours)
    }

    fn of(parent: u32, every: Duration, fault: Fault, live: fn(u32) -> Vec<Process>) -> Self {
        let (stop, stopped) = channel();
        let work = move || {
            let mut struck: Vec<u32> = Vec::new();
            for turn in 0.. {
                // Half to one and a half times as long, so that strikes keep step with nothing.
                let wait = every.mul_f64(0.5 + f64::from(turn * 7 % 11) / 10.0);
                let wait = wait.mul_f64(1.0 + struck.len().saturating_sub(STEADY) as f64 / 5.0);
                if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                let mut targets = live(parent);
                // A stopped one stays a child, and a killed one takes a moment to die.
                targets.retain(|w| !struck.contains(&w.pid));
                let target = if struck.len().is_multiple_of(2) { targets.first() } else { targets.last() };
                struck.extend(target.map(|w| w.pid).filter(|pid| strike(parent, *pid, fault)));
            }
            struck
        };
        Self { stop: Some(stop), thread: Some(std::thread::spawn(work)) }
    }

    /// Ends it, and gives the ids of those that it struck, in order.
    #[must_use]
    pub fn stop(mut self) -> Vec<u32> {
        self.end()
    }

    fn end(&mut self) -> Vec<u32> {
        drop(self.stop.take());
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Striker {
    fn drop(&mut self) {
        self.end();
    }
}
