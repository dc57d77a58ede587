//! Which item is to blame when a child process dies: one rule for batches in workers and for items in loaders. It weighs evidence; the ledger
//! and the loader threads act on it.
//!
//! * A **suspect** is an item, or a batch, that a child ran when it died. The evidence is strong (a segfault, an abort, a passed deadline), or
//!   weak where something outside may have ended the child (a SIGKILL, a freeze).
//! * An **isolated run** of a suspect has nothing else in its child that could kill it, and a **fresh** child has run nothing before. One suspect
//!   runs isolated at a time in a child, and a success clears it.
//! * A suspect is **confirmed**, and fails by name, once it has died as often as [`Deaths::confirm`] says, the last time in an isolated run.
//!
//! What differs:
//! * A worker runs batches, so a suspect is halved first; it has a device, which may kill whatever runs there; and a model load is dear. So
//!   `batch` asks for another device and a fresh worker before it confirms, and waits for a success that clears the device.
//! * A loader runs one item after the other on no device, and a fresh one starts in milliseconds. So `loader` gives each suspect to a fresh
//!   process, alone. An item beyond `item_timeout` is confirmed at once: the parent measured its time itself.

mod batch;
mod loader;

pub(crate) use batch::{BatchDeath, DeathOutcome, IsolatedRun, Suspicion};
pub use loader::{LoaderBlame, LoaderDeathOutcome};

/// Strong deaths, those of larger batches around a suspect included: one may be chance.
const STRONG_TO_CONFIRM: u32 = 2;
/// Weak deaths in isolated runs.
const WEAK_TO_CONFIRM: u32 = 8;

/// The deaths that count against a suspect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Deaths {
    strong: u32,
    weak: u32,
}

impl Deaths {
    fn confirm(&self) -> bool {
        self.strong >= STRONG_TO_CONFIRM || self.weak >= WEAK_TO_CONFIRM
    }
}
