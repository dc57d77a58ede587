//! Strikes processes at uneven intervals, in a thread of its own. Which ones may be struck, its caller says.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::held_process::{Fault, HeldProcess};

/// The thread that strikes. Dropping it ends it, which takes no longer than a strike.
#[derive(Debug)]
pub struct Striker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Vec<u32>>>,
}

/// What is done, and how often.
#[derive(Debug, Clone, Copy)]
pub struct Strikes {
    pub fault: Fault,
    /// Mean time between two of them.
    pub every: Duration,
    /// After so many strikes the pauses grow, each by a fifth of `every`: so there comes one in which a survivor starts and works, however slow the
    /// machine is.
    pub steady: usize,
}

impl Striker {
    /// Strikes one of the processes that `targets` names, the first and the last in turn, each once.
    pub fn start(
        strikes: Strikes,
        mut targets: impl FnMut() -> Vec<u32> + Send + 'static,
    ) -> io::Result<Self> {
        let Strikes { fault, every, steady } = strikes;
        let (stop, stopped) = channel();
        let work = move || {
            let mut struck: Vec<u32> = Vec::new();
            for turn in 0.. {
                // Half to one and a half times as long, so that strikes keep step with nothing.
                let wait = every.mul_f64(0.5 + f64::from(turn * 7 % 11) / 10.0);
                let wait = wait.mul_f64(1.0 + struck.len().saturating_sub(steady) as f64 / 5.0);
                if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                let mut open = targets();
                // A stopped one stays, and a killed one takes a moment to die.
                open.retain(|pid| !struck.contains(pid));
                let target = if struck.len().is_multiple_of(2) { open.first() } else { open.last() };
                let Some(&pid) = target else { continue };
                // Held first: a process that is a target after that is the one that is held.
                let held = HeldProcess::open(pid).filter(|_| targets().contains(&pid));
                if held.is_some_and(|process| process.strike(fault)) {
                    struck.push(pid);
                }
            }
            struck
        };
        let thread = std::thread::Builder::new().name("striker".into()).spawn(work)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    /// Ends it, and gives the ids of those that it struck, in order.
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
