//! Kills or freezes worker processes while a run goes on, one at a time. Touches only children of the process it was given.

use std::process;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::processes::{Process, children};

/// What is done to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP: it lives, and does nothing more.
    Freeze,
    /// SIGSEGV from outside.
    Segfault,
}

/// The thread that strikes. Dropping it ends it.
#[derive(Debug)]
pub struct Chaos {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Vec<u32>>>,
}

/// Live worker processes of `parent`: children one of whose arguments is, or ends with, `worker`.
#[must_use]
pub fn workers_of(parent: u32) -> Vec<Process> {
    let is_worker = |p: &Process| p.state != 'Z' && p.arguments.iter().any(|a| a.ends_with("worker"));
    children(parent).into_iter().filter(is_worker).collect()
}

/// Does `fault` to the process `pid` if it is a child of `parent`; whether it was.
#[must_use]
pub fn strike(parent: u32, pid: u32, fault: Fault) -> bool {
    let signal = match fault {
        Fault::Kill => Signal::KILL,
        Fault::Freeze => Signal::STOP,
        Fault::Segfault => Signal::SEGV,
    };
    let Some(target) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    // Once open, the descriptor means this process for ever; an id could by now be that of a stranger.
    let Ok(descriptor) = pidfd_open(target, PidfdFlags::empty()) else { return false };
    let is_child = children(parent).iter().any(|c| c.pid == pid && c.state != 'Z');
    is_child && pidfd_send_signal(&descriptor, signal).is_ok()
}

impl Chaos {
    /// Strikes a worker of `parent` each time that `every` has passed, the oldest and the youngest in turn, until it is stopped.
    #[must_use]
    pub fn start(parent: u32, every: Duration, fault: Fault) -> Self {
        let (stop, stopped) = channel::<()>();
        let thread = thread::spawn(move || {
            let mut struck = Vec::new();
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
                let workers = workers_of(parent);
                // A frozen one stays a child until somebody kills it, and a killed one takes a moment to die: neither counts twice.
                let mut targets: Vec<_> =
                    workers.iter().map(|w| w.pid).filter(|pid| !struck.contains(pid)).collect();
                if struck.len() % 2 == 1 {
                    targets.reverse();
                }
                if let Some(pid) = targets.first().filter(|pid| strike(parent, **pid, fault)) {
                    struck.push(*pid);
                }
            }
            struck
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }

    /// As [`Chaos::start`], for workers of this process.
    #[must_use]
    pub fn at_home(every: Duration, fault: Fault) -> Self {
        Self::start(process::id(), every, fault)
    }

    /// Ends it and gives the ids of the processes that were struck, in order.
    #[must_use]
    pub fn stop(mut self) -> Vec<u32> {
        self.end()
    }

    fn end(&mut self) -> Vec<u32> {
        drop(self.stop.take());
        // The thread does not panic; if it did, it struck nothing that could be counted.
        self.thread.take().and_then(|t| t.join().ok()).unwrap_or_default()
    }
}

impl Drop for Chaos {
    fn drop(&mut self) {
        self.end();
    }
}
