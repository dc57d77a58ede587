//! What the death of a loader process means for the item that it was at. A loader works on one item after the other, so there is one suspect.

use std::collections::HashMap;

use super::Deaths;
use crate::FailureKind;
use crate::worker_exit::{Evidence, WorkerExit};

/// Deaths in a row, before any item was loaded, after which no further process is started.
const STARTS: u32 = 10;
/// As `STARTS`, where the process ended by itself, as a program does that is no loader.
const OWN_ENDS: u32 = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoaderDeathOutcome {
    /// A fresh process goes on with all items that were not answered for. It runs the suspect first, isolated.
    Retry,
    /// Likewise, and for the suspect it has all the memory that loaders may take.
    RetryWithAllMemory,
    /// The suspect fails, so many times it was tried.
    Confirmed(FailureKind, u32),
    /// No process can be started.
    GiveUp,
}

/// The deaths of the processes of one loader.
#[derive(Debug, Default)]
pub struct LoaderBlame {
    suspects: HashMap<u64, LoaderSuspect>,
    failed_starts: u32,
}

#[derive(Debug, Default)]
struct LoaderSuspect {
    deaths: Deaths,
    had_all_memory: bool,
}

impl LoaderBlame {
    pub fn loaded(&mut self, item: u64) {
        self.failed_starts = 0;
        self.suspects.remove(&item);
    }

    /// A process has died, at work on `suspect` if it had begun any; `no_memory`: it was refused memory.
    pub fn died(&mut self, exit: &WorkerExit, no_memory: bool, suspect: Option<u64>) -> LoaderDeathOutcome {
        let Some(item) = suspect else { return self.failed_to_start(exit) };
        if exit.evidence() != Evidence::None {
            self.failed_starts = 0;
        }
        let suspect = self.suspects.entry(item).or_default();
        let kind = match exit.evidence() {
            _ if *exit == WorkerExit::Hung => FailureKind::Timeout,
            Evidence::Weak => {
                suspect.deaths.weak += 1;
                FailureKind::Crash
            }
            // Also where there is none for the process that was to have all of it.
            _ if no_memory && suspect.had_all_memory => FailureKind::OutOfMemory,
            Evidence::None => return self.failed_to_start(exit),
            Evidence::Strong if no_memory => {
                suspect.had_all_memory = true;
                return LoaderDeathOutcome::RetryWithAllMemory;
            }
            Evidence::Strong => {
                suspect.deaths.strong += 1;
                FailureKind::Crash
            }
        };
        let is_crash = kind == FailureKind::Crash;
        if is_crash && !suspect.deaths.confirm() {
            return LoaderDeathOutcome::Retry;
        }
        let Deaths { strong, weak } = suspect.deaths;
        let tries = strong + weak + u32::from(suspect.had_all_memory) + u32::from(!is_crash);
        self.suspects.remove(&item);
        LoaderDeathOutcome::Confirmed(kind, tries)
    }

    fn failed_to_start(&mut self, exit: &WorkerExit) -> LoaderDeathOutcome {
        self.failed_starts += 1;
        let is_final = matches!(exit, WorkerExit::LoadFailed { .. } | WorkerExit::ProtocolMismatch(_));
        let most = if matches!(exit, WorkerExit::Code(_)) { OWN_ENDS } else { STARTS };
        let gives_up = is_final || self.failed_starts >= most;
        if gives_up { LoaderDeathOutcome::GiveUp } else { LoaderDeathOutcome::Retry }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use proptest::prelude::*;

    use super::LoaderDeathOutcome::{Confirmed, GiveUp, Retry, RetryWithAllMemory};
    use super::*;

    const SEGFAULT: WorkerExit = WorkerExit::Signal(11);
    const KILLED: WorkerExit = WorkerExit::Signal(9);
    const ABORT: WorkerExit = WorkerExit::Signal(6);

    #[test]
    fn an_item_that_crashes_its_loader_twice_fails_and_another_one_does_not_pay_for_it() {
        let mut blame = LoaderBlame::default();
        assert_eq!(blame.died(&SEGFAULT, false, Some(7)), Retry);
        assert_eq!(blame.died(&SEGFAULT, false, Some(8)), Retry);
        assert_eq!(blame.died(&SEGFAULT, false, Some(7)), Confirmed(FailureKind::Crash, 2));
        blame.loaded(8);
        assert_eq!(blame.died(&SEGFAULT, false, Some(8)), Retry, "it was cleared");
    }

    #[test]
    fn kills_from_outside_are_no_proof_until_there_are_many() {
        let mut blame = LoaderBlame::default();
        for _ in 1..8 {
            assert_eq!(blame.died(&KILLED, false, Some(1)), Retry);
            assert_eq!(blame.died(&WorkerExit::Silent, false, Some(2)), Retry);
        }
        assert_eq!(blame.died(&KILLED, false, Some(1)), Confirmed(FailureKind::Crash, 8));
    }

    #[test]
    fn an_item_beyond_its_time_fails_at_once() {
        let outcome = LoaderBlame::default().died(&WorkerExit::Hung, false, Some(3));
        assert_eq!(outcome, Confirmed(FailureKind::Timeout, 1));
    }

    #[test]
    fn an_item_without_memory_gets_all_of_it_once() {
        let mut blame = LoaderBlame::default();
        assert_eq!(blame.died(&ABORT, true, Some(1)), RetryWithAllMemory);
        assert_eq!(blame.died(&ABORT, true, Some(1)), Confirmed(FailureKind::OutOfMemory, 2));
    }

    #[test]
    fn an_item_fails_for_which_a_process_with_all_the_memory_cannot_even_be_started() {
        let refused = WorkerExit::SpawnFailed("Cannot allocate memory".into());
        let mut blame = LoaderBlame::default();
        assert_eq!(blame.died(&refused, true, None), Retry, "no item has any part in that");
        assert_eq!(blame.died(&ABORT, true, Some(1)), RetryWithAllMemory);
        assert_eq!(blame.died(&refused, true, Some(1)), Confirmed(FailureKind::OutOfMemory, 2));
    }

    #[test]
    fn processes_that_never_load_anything_are_not_started_for_ever() {
        for (exit, most) in [(WorkerExit::Code(3), OWN_ENDS), (KILLED, STARTS)] {
            let mut blame = LoaderBlame::default();
            for _ in 1..most {
                assert_eq!(blame.died(&exit, false, None), Retry);
            }
            assert_eq!(blame.died(&exit, false, None), GiveUp);
        }
        let mut blame = LoaderBlame::default();
        let other = WorkerExit::ProtocolMismatch(String::new());
        assert_eq!(blame.died(&other, false, None), GiveUp);
    }

    proptest! {
        /// Some items kill their process, and some break it, so that it dies at the next one. It may die with answers that it has not sent.
        #[test]
        fn only_items_that_kill_are_confirmed_and_the_others_are_loaded(
            items in proptest::collection::vec(0u8..6, 1..60), sends in proptest::collection::vec(any::<bool>(), 1..20)
        ) {
            const KILLS: u8 = 0;
            const BREAKS: u8 = 1;
            let mut blame = LoaderBlame::default();
            let mut unanswered: VecDeque<usize> = (0..items.len()).collect();
            let (mut confirmed, mut sends) = (BTreeSet::new(), sends.into_iter().cycle());
            let mut isolated = false;
            while !unanswered.is_empty() {
                let (mut at, mut is_broken) = (0, false);
                while let Some(&item) = unanswered.get(at) {
                    if is_broken || items[item] == KILLS {
                        unanswered.remove(at);
                        match blame.died(&SEGFAULT, false, Some(item as u64)) {
                            Confirmed(..) => drop(confirmed.insert(item)),
                            _ => unanswered.push_front(item),
                        }
                        isolated = true;
                        break;
                    }
                    (at, is_broken) = (at + 1, items[item] == BREAKS);
                    if std::mem::take(&mut isolated) || sends.next() == Some(true) || at == unanswered.len() {
                        unanswered.drain(..std::mem::take(&mut at)).for_each(|item| blame.loaded(item as u64));
                    }
                }
            }
            let killers = (0..items.len()).filter(|item| items[*item] == KILLS);
            prop_assert_eq!(confirmed, killers.collect());
        }
    }
}
