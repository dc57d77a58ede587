//! Every way in which a worker process can end, and what each proves. Decides nothing about restarts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::failure::ErrorClass;
use crate::tasks::signal_name;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerExit {
    /// Exit code 0 after it was asked to end.
    Clean,
    /// A non-zero exit code (or 0 without being asked).
    Code(i32),
    /// Killed by this signal, not by us.
    Signal(i32),
    /// It never completed the handshake in time; we killed it.
    HandshakeTimeout,
    /// It is of another build or protocol version.
    ProtocolMismatch(String),
    /// It sent something that is no frame of ours; we killed it.
    Garbled(String),
    /// A batch ran beyond its deadline while the process was alive; we killed it.
    Hung,
    /// Its heartbeat stopped (stopped or frozen process); we killed it.
    Silent,
    /// It reported a broken device and did not exit; we killed it.
    Stuck,
    /// It ran so many threads; we killed it.
    TooManyThreads(u64),
    /// It could not be started at all.
    SpawnFailed(String),
    /// It reported that it cannot load the model or use the device.
    LoadFailed {
        /// `Permanent`: no later try on this device can succeed. `Overload`: there was not enough memory.
        class: ErrorClass,
        why: String,
    },
    /// Its device is not there any more; we killed it, or did not even start it.
    DeviceLost(String),
}

/// What a death says about the batch that was running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// The batch is suspect: segfault, abort, own exit code, deadline passed.
    Strong,
    /// Something outside may have done it: SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGQUIT, or it fell silent, as after SIGSTOP.
    Weak,
    /// It says nothing about a batch.
    None,
}

impl WorkerExit {
    /// It could not load for lack of memory.
    pub fn found_no_memory(&self) -> bool {
        matches!(self, WorkerExit::LoadFailed { class: ErrorClass::Overload, .. })
    }

    /// It ended because of what it was to load, or of how it was started.
    pub fn is_of_load(&self) -> bool {
        let is_told = matches!(
            self,
            WorkerExit::LoadFailed { .. }
                | WorkerExit::HandshakeTimeout
                | WorkerExit::ProtocolMismatch(_)
                | WorkerExit::SpawnFailed(_)
        );
        is_told || self.evidence() == Evidence::Strong
    }

    /// It was refused memory, by its last words: those of an allocation that fails in Rust, and of one in C++ that no one expected to.
    pub fn was_refused_memory(&self, last_words: &str) -> bool {
        const SIGABRT: i32 = 6;
        *self == WorkerExit::Signal(SIGABRT)
            && ["memory allocation of", "std::bad_alloc"].iter().any(|words| last_words.contains(words))
    }

    /// What this death says about the batch that the worker was running.
    pub fn evidence(&self) -> Evidence {
        const OUTSIDE: [i32; 5] = [1, 2, 3, 9, 15]; // SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM
        match self {
            WorkerExit::Clean
            | WorkerExit::HandshakeTimeout
            | WorkerExit::ProtocolMismatch(_)
            | WorkerExit::SpawnFailed(_)
            | WorkerExit::LoadFailed { .. }
            | WorkerExit::DeviceLost(_) => Evidence::None,
            WorkerExit::Signal(s) if OUTSIDE.contains(s) => Evidence::Weak,
            WorkerExit::Silent => Evidence::Weak,
            WorkerExit::Code(_)
            | WorkerExit::Signal(_)
            | WorkerExit::Garbled(_)
            | WorkerExit::Hung
            | WorkerExit::Stuck
            | WorkerExit::TooManyThreads(_) => Evidence::Strong,
        }
    }
}

impl fmt::Display for WorkerExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerExit::Clean => f.write_str("ended as asked"),
            WorkerExit::Code(c) => write!(f, "exited with code {c}"),
            WorkerExit::Signal(s) => write!(f, "killed by {}", signal_name(*s)),
            WorkerExit::HandshakeTimeout => f.write_str("did not say hello in time"),
            WorkerExit::ProtocolMismatch(what) => write!(f, "speaks another protocol: {what}"),
            WorkerExit::Garbled(what) => write!(f, "sent something unreadable: {what}"),
            WorkerExit::Hung => f.write_str("ran a batch beyond its deadline and was killed"),
            WorkerExit::Silent => f.write_str("stopped answering and was killed"),
            WorkerExit::Stuck => f.write_str("reported a broken device, did not exit and was killed"),
            WorkerExit::TooManyThreads(n) => write!(f, "ran {n} threads and was killed"),
            WorkerExit::SpawnFailed(why) => write!(f, "could not be started: {why}"),
            WorkerExit::LoadFailed { why, .. } => write!(f, "could not load: {why}"),
            WorkerExit::DeviceLost(why) => write!(f, "has no device any more: {why}"),
        }
    }
}

crate::named_enum! {
    /// How a worker ended, as it is counted: few kinds, whatever the texts and numbers in a [`WorkerExit`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ExitKind {
        Clean = "clean",
        Code = "code",
        Killed = "killed",
        Crashed = "crashed",
        HandshakeTimeout = "handshake_timeout",
        ProtocolMismatch = "protocol_mismatch",
        Garbled = "garbled",
        Hung = "hung",
        Silent = "silent",
        Stuck = "stuck",
        TooManyThreads = "too_many_threads",
        SpawnFailed = "spawn_failed",
        LoadFailed = "load_failed",
        DeviceLost = "device_lost",
    }
}

impl ExitKind {
    pub fn of(exit: &WorkerExit) -> Self {
        match exit {
            WorkerExit::Clean => Self::Clean,
            WorkerExit::Code(_) => Self::Code,
            WorkerExit::Signal(_) if exit.evidence() == Evidence::Weak => Self::Killed,
            WorkerExit::Signal(_) => Self::Crashed,
            WorkerExit::HandshakeTimeout => Self::HandshakeTimeout,
            WorkerExit::ProtocolMismatch(_) => Self::ProtocolMismatch,
            WorkerExit::Garbled(_) => Self::Garbled,
            WorkerExit::Hung => Self::Hung,
            WorkerExit::Silent => Self::Silent,
            WorkerExit::Stuck => Self::Stuck,
            WorkerExit::TooManyThreads(_) => Self::TooManyThreads,
            WorkerExit::SpawnFailed(_) => Self::SpawnFailed,
            WorkerExit::LoadFailed { .. } => Self::LoadFailed,
            WorkerExit::DeviceLost(_) => Self::DeviceLost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_killed_from_outside_is_told_apart_from_one_that_crashed() {
        assert_eq!(ExitKind::of(&WorkerExit::Signal(9)), ExitKind::Killed);
        assert_eq!(ExitKind::of(&WorkerExit::Signal(11)), ExitKind::Crashed);
        assert_eq!(ExitKind::of(&WorkerExit::Code(3)), ExitKind::Code);
    }

    #[test]
    fn an_abort_over_memory_is_told_by_its_words_from_one_over_anything_else() {
        let rust = "memory allocation of 16777216 bytes failed";
        let cpp = "terminate called after throwing an instance of 'std::bad_alloc'";
        for words in [rust, cpp] {
            assert!(WorkerExit::Signal(6).was_refused_memory(words), "{words}");
            assert!(!WorkerExit::Signal(11).was_refused_memory(words), "a wild pointer has another reason");
        }
        assert!(!WorkerExit::Signal(6).was_refused_memory("assertion failed"));
    }
}
