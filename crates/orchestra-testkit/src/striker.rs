//! Sends signals to workers of a process, once or all the time. A process is held by a descriptor: an id could by now be that of another one.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use orchestra_machine::processes::{Process, children};
use orchestra_worker::process::LOADER;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What happens to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP: it lives, and does nothing more.
    Stop,
    /// SIGSEGV from outside.
    Segfault,
}

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
    process.arguments.last().is_some_and(|last| last == LOADER)
}

fn ours(parent: u32) -> Vec<Process> {
    let is_ours = |p: &Process| p.state != 'Z' && p.arguments.iter().any(|a| a.ends_with("worker"));
    children(parent).into_iter().filter(is_ours).collect()
}

/// Does `fault` to the process `pid` if it is a child of `parent`; whether it was.
#[must_use]
pub fn strike(parent: u32, pid: u32, fault: Fault) -> bool {
    // Opened first: what is a child after that is the process of the descriptor.
    let process = descriptor(pid);
    let is_child = children(parent).iter().any(|c| c.pid == pid && c.state != 'Z');
    let signal = match fault {
        Fault::Kill => Signal::KILL,
        Fault::Stop => Signal::STOP,
        Fault::Segfault => Signal::SEGV,
    };
    is_child && process.is_some_and(|process| pidfd_send_signal(process, signal).is_ok())
}

fn descriptor(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()
}

/// The thread that strikes. Dropping it ends it, which takes no longer than a strike.
#[derive(Debug)]
pub struct Striker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Vec<u32>>>,
}

impl Striker {
    /// Strikes a worker of the process `parent` whenever about `every` has passed, the oldest and the youngest in turn, each once.
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
