//! How workers end, in few kinds: what a counter and a label can bear. It judges no exit; `orchestra_core::worker_exit` does.

use orchestra_core::WorkerExit;
use orchestra_core::worker_exit::Evidence;

/// How a worker ended, as it is counted: few kinds, whatever the texts and numbers in a [`WorkerExit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "they are those of `WorkerExit`, whose signals are told apart where that helps"
)]
pub enum ExitKind {
    Clean,
    Code,
    Killed,
    Crashed,
    HandshakeTimeout,
    ProtocolMismatch,
    Garbled,
    Hung,
    Silent,
    Stuck,
    SpawnFailed,
    LoadFailed,
    DeviceLost,
}

impl ExitKind {
    /// Every kind.
    pub const ALL: [Self; 13] = [
        Self::Clean,
        Self::Code,
        Self::Killed,
        Self::Crashed,
        Self::HandshakeTimeout,
        Self::ProtocolMismatch,
        Self::Garbled,
        Self::Hung,
        Self::Silent,
        Self::Stuck,
        Self::SpawnFailed,
        Self::LoadFailed,
        Self::DeviceLost,
    ];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Code => "code",
            Self::Killed => "killed",
            Self::Crashed => "crashed",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::ProtocolMismatch => "protocol_mismatch",
            Self::Garbled => "garbled",
            Self::Hung => "hung",
            Self::Silent => "silent",
            Self::Stuck => "stuck",
            Self::SpawnFailed => "spawn_failed",
            Self::LoadFailed => "load_failed",
            Self::DeviceLost => "device_lost",
        }
    }

    /// The kind of an exit.
    #[must_use]
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
}
