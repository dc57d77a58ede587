//! What the death of a loader process means for the item that it was at. A loader works on one item after the other, so there is one suspect.

use std::collections::HashMap;

use crate::FailureKind;

use crate::worker_exit::{Evidence, WorkerExit};

/// Deaths that accuse an item after which it fails: once may be chance.
const STRONG: u32 = 2;
/// Deaths that something outside may have caused, likewise.
const WEAK: u32 = 8;
/// Deaths in a row, before any item was loaded, after which no further process is started.
const STARTS: u32 = 10;
/// As `STARTS`, where the process ended by itself, as a program does that is no loader.
const OWN_ENDS: u32 = 3;

/// What is to be done after a death.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoaderVerdict {
    /// Another process goes on, with all items that were not answered for.
    GoOn,
    /// Likewise, but it gets the suspect alone, with all the memory that loaders may take.
    Alone,
    /// The suspect fails, so many times it was tried.
    Fail(FailureKind, u32),
    /// No process can be started.
    GiveUp,
}

/// The deaths of the processes of one loader.
#[derive(Debug, Default)]
pub struct LoaderBlame {
    /// By item: deaths that accuse it, those that something outside may have caused, and whether it had all the memory.
    suspects: HashMap<u64, Suspect>,
    failed_starts: u32,
}

#[derive(Debug, Default)]
struct Suspect {
    strong: u32,
    weak: u32,
    was_alone: bool,
}

impl LoaderBlame {
    pub fn loaded(&mut self, item: u64) {
        self.failed_starts = 0;
        self.suspects.remove(&item);
    }

    /// A process has died, at work on `suspect` if it had begun any; `no_memory`: it was refused memory.
    pub fn died(&mut self, exit: &WorkerExit, no_memory: bool, suspect: Option<u64>) -> LoaderVerdict {
        let Some(item) = suspect else { return self.failed_to_start(exit) };
        self.failed_starts = 0;
        let entry = self.suspects.entry(item).or_default();
        let kind = match (exit.evidence(), exit) {
            (_, WorkerExit::Hung) => {
                entry.strong = STRONG;
                FailureKind::Timeout
            }
            (Evidence::Strong, _) if no_memory && !entry.was_alone => {
                entry.was_alone = true;
                return LoaderVerdict::Alone;
            }
            // Also where there is none for the process that was to have it alone.
            (Evidence::Strong | Evidence::None, _) if no_memory && entry.was_alone => {
                entry.strong = STRONG;
                FailureKind::OutOfMemory
            }
            (Evidence::Strong, _) => {
                entry.strong += 1;
                FailureKind::Crash
            }
            (Evidence::Weak, _) => {
                entry.weak += 1;
                FailureKind::Crash
            }
            (Evidence::None, _) => return self.failed_to_start(exit),
        };
        if entry.strong < STRONG && entry.weak < WEAK {
            return LoaderVerdict::GoOn;
        }
        let tries = match kind {
            FailureKind::Timeout => 1,
            _ => entry.strong + entry.weak + u32::from(entry.was_alone),
        };
        self.suspects.remove(&item);
        LoaderVerdict::Fail(kind, tries)
    }

    fn failed_to_start(&mut self, exit: &WorkerExit) -> LoaderVerdict {
        self.failed_starts += 1;
        let is_final = matches!(exit, WorkerExit::LoadFailed { .. } | WorkerExit::ProtocolMismatch(_));
        let most = if matches!(exit, WorkerExit::Code(_)) { OWN_ENDS } else { STARTS };
        if is_final || self.failed_starts >= most { LoaderVerdict::GiveUp } else { LoaderVerdict::GoOn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGFAULT: WorkerExit = WorkerExit::Signal(11);
    const KILLED: WorkerExit = WorkerExit::Signal(9);
    const ABORT: WorkerExit = WorkerExit::Signal(6);

    #[test]
    fn an_item_that_crashes_its_loader_twice_fails_and_another_one_does_not_pay_for_it() {
        let mut blame = LoaderBlame::default();
        assert_eq!(blame.died(&SEGFAULT, false, Some(7)), LoaderVerdict::GoOn);
        assert_eq!(blame.died(&SEGFAULT, false, Some(8)), LoaderVerdict::GoOn);
        assert_eq!(blame.died(&SEGFAULT, false, Some(7)), LoaderVerdict::Fail(FailureKind::Crash, 2));
        blame.loaded(8);
        assert_eq!(blame.died(&SEGFAULT, false, Some(8)), LoaderVerdict::GoOn, "it was cleared");
    }

    #[test]
    fn kills_from_outside_are_no_proof_until_there_are_many() {
        let mut blame = LoaderBlame::default();
        for _ in 1..8 {
            assert_eq!(blame.died(&KILLED, false, Some(1)), LoaderVerdict::GoOn);
            assert_eq!(blame.died(&WorkerExit::Silent, false, Some(2)), LoaderVerdict::GoOn);
        }
        assert_eq!(blame.died(&KILLED, false, Some(1)), LoaderVerdict::Fail(FailureKind::Crash, 8));
    }

    #[test]
    fn an_item_beyond_its_time_fails_at_once() {
        let verdict = LoaderBlame::default().died(&WorkerExit::Hung, false, Some(3));
        assert_eq!(verdict, LoaderVerdict::Fail(FailureKind::Timeout, 1));
    }

    #[test]
    fn an_item_without_memory_gets_all_of_it_once() {
        let mut blame = LoaderBlame::default();
        assert_eq!(blame.died(&ABORT, true, Some(1)), LoaderVerdict::Alone);
        assert!(matches!(
            blame.died(&ABORT, true, Some(1)),
            LoaderVerdict::Fail(FailureKind::OutOfMemory, _)
        ));
    }

    #[test]
    fn an_item_fails_for_which_a_process_with_all_the_memory_cannot_even_be_started() {
        let refused = WorkerExit::SpawnFailed("Cannot allocate memory".into());
        let mut blame = LoaderBlame::default();
        assert_eq!(blame.died(&refused, true, None), LoaderVerdict::GoOn, "no item has any part in that");
        assert_eq!(blame.died(&ABORT, true, Some(1)), LoaderVerdict::Alone);
        assert!(matches!(
            blame.died(&refused, true, Some(1)),
            LoaderVerdict::Fail(FailureKind::OutOfMemory, _)
        ));
    }

    #[test]
    fn processes_that_never_load_anything_are_not_started_for_ever() {
        for (exit, most) in [(WorkerExit::Code(3), OWN_ENDS), (KILLED, STARTS)] {
            let mut blame = LoaderBlame::default();
            for _ in 1..most {
                assert_eq!(blame.died(&exit, false, None), LoaderVerdict::GoOn);
            }
            assert_eq!(blame.died(&exit, false, None), LoaderVerdict::GiveUp);
        }
        let mut blame = LoaderBlame::default();
        let other = WorkerExit::ProtocolMismatch(String::new());
        assert_eq!(blame.died(&other, false, None), LoaderVerdict::GiveUp);
    }
}
