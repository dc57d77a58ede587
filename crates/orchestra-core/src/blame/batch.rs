//! What the death of a worker means for a batch that it ran. It dispatches nothing.
//!
//! * Strong evidence halves a batch at once, until a single item is left that kills its worker. Where a worker runs several batches at once, its
//!   death speaks against each of them, as it would against one batch of all their rows; none of these was an isolated run.
//! * A single item may be innocent still: its worker may have been broken by what it ran before, or its device may kill whatever runs there. So its
//!   isolated runs are done once it has died twice (with the batches around it), once as the first batch of a fresh worker, and on two devices that
//!   have got something right, if there are so many that could try it. Then it runs no more.
//! * It is confirmed as soon as something succeeds on a device where an isolated run died, or when nothing else is left that could succeed. Where
//!   everything dies, the device is given up before it comes to that.
//! * One success can confirm it earlier: if a fresh worker of the device died of it, a success there proves that neither the device nor what the
//!   worker had run before killed it. Two deaths are enough then.
//! * An item that the model refuses is failed at once if its device has got something right before. Else its isolated runs there are done: a device
//!   that refuses whatever it is given proves nothing as long as there is another one.
//! * Weak evidence only counts against an item that keeps dying of it while nothing else runs and nothing else dies, so no storm of kills ever gets
//!   an innocent item failed.
//!
//! A poison item in a batch of n rows therefore costs at most log2(n) + 2 workers: log2(n) until it is alone, and two more. (One more for
//! a batch of a single row that did not run alone in its worker.)

use std::collections::{BTreeMap, BTreeSet};

use super::{Deaths, STRONG_TO_CONFIRM, WEAK_TO_CONFIRM};
use crate::device_history::DeviceHistory;
use crate::ids::DeviceId;
use crate::worker_exit::Evidence;

/// Weak deaths after which a batch is halved (harmless for innocents) or, if it is a single item, runs alone.
const WEAK_BEFORE_CAUTION: u32 = 6;
/// So many devices that are known to work must have seen an isolated run die, if there are so many.
const DEVICES_TO_CONFIRM: usize = 2;

/// What is known against a batch. Its parts inherit it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suspicion {
    /// The strong ones of the batch and of those that it was cut from; the weak ones while it ran alone, since the last one elsewhere.
    deaths: Deaths,
    /// Where an isolated run of it died of strong evidence, and whether in a fresh worker.
    died_isolated: BTreeMap<DeviceId, bool>,
    /// Where memory ran out for it while nothing else ran: those devices cannot try it.
    no_room: BTreeSet<DeviceId>,
    /// Weak deaths since it has its present size.
    weak: u32,
    /// The run's count of weak deaths elsewhere when those alone were last counted.
    elsewhere: u64,
}

#[derive(Debug, Clone, Copy)]
pub struct BatchDeath {
    pub rows: usize,
    pub evidence: Evidence,
    pub device: DeviceId,
    /// Nothing else ran at the time.
    pub alone: bool,
    /// It was the first batch of its worker: what ran before cannot be to blame.
    pub first_of_worker: bool,
    /// Its worker ran other batches at the same time: one of those may be to blame.
    pub shared: bool,
    /// Weak deaths of the run so far that hit something else.
    pub weak_elsewhere: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeathOutcome {
    /// Send it again as it is, to a worker that its [`IsolatedRun`] allows.
    Retry,
    Split,
    /// Send it again when nothing else runs.
    RunAlone,
    Confirmed,
}

/// Which further run can tell whether a batch is to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsolatedRun {
    /// Any worker will do.
    NotNeeded,
    /// A single item that killed a worker: not every further death would prove anything.
    Needed {
        /// Only a worker that has run nothing yet.
        fresh_worker: bool,
        /// Only a worker of a device where none has died yet.
        another_device: bool,
    },
    /// None: a further death would prove nothing more.
    Done,
}

impl Suspicion {
    pub fn is_suspect(&self) -> bool {
        self.deaths.strong > 0
    }

    pub fn isolated_run(&self, history: &DeviceHistory) -> IsolatedRun {
        if self.died_isolated.is_empty() {
            return IsolatedRun::NotNeeded;
        }
        let n_trusted = self.died_isolated.keys().filter(|d| history.is_proven(**d)).count();
        let another_device = n_trusted < DEVICES_TO_CONFIRM && self.untried(history).next().is_some();
        let fresh_worker = !self.died_isolated.values().any(|in_fresh| *in_fresh);
        if self.deaths.confirm() && !fresh_worker && !another_device {
            return IsolatedRun::Done;
        }
        IsolatedRun::Needed { fresh_worker, another_device }
    }

    /// Whether `device` is one of the best that are left for an isolated run: one that has got something right, if there is one.
    pub fn is_best_for_isolated_run(&self, device: DeviceId, history: &DeviceHistory) -> bool {
        self.is_untried(device)
            && (history.is_proven(device) || !self.untried(history).any(|d| history.is_proven(d)))
    }

    /// Whether it is to blame for certain, now that something has succeeded on `device`: so the device did not kill it, and neither did
    /// anything that its worker had run before. Where it died as the first batch of a worker there, no other device has to be asked;
    /// elsewhere its isolated runs have to be done.
    pub fn is_confirmed_by_success_on(&self, device: DeviceId, history: &DeviceHistory) -> bool {
        match self.died_isolated.get(&device) {
            Some(true) => self.deaths.confirm(),
            Some(false) => self.isolated_run(history) == IsolatedRun::Done,
            None => false,
        }
    }

    /// A single item was refused there by a worker that lives: as good as if it had died there as often as it takes.
    pub fn refused_on(&mut self, device: DeviceId) {
        self.deaths.strong = self.deaths.strong.max(STRONG_TO_CONFIRM);
        self.died_isolated.insert(device, true);
    }

    /// Memory ran out for it there although nothing else ran.
    pub fn found_no_room(&mut self, device: DeviceId) {
        self.no_room.insert(device);
    }

    /// Whether a device may have room for it. When none has, each may be tried again.
    pub fn may_fit(&self, device: DeviceId, history: &DeviceHistory) -> bool {
        !self.no_room.contains(&device) || self.fits_nowhere(history)
    }

    /// Memory ran out for it on every device that is left.
    pub fn fits_nowhere(&self, history: &DeviceHistory) -> bool {
        history.left().all(|d| self.no_room.contains(&d))
    }

    pub fn died(&mut self, death: BatchDeath) -> DeathOutcome {
        match death.evidence {
            Evidence::None => DeathOutcome::Retry,
            Evidence::Strong => self.died_of_strong(death),
            Evidence::Weak => self.died_of_weak(death),
        }
    }

    pub fn inherited(&self) -> Self {
        Self { deaths: Deaths { weak: 0, ..self.deaths }, ..Self::default() }
    }

    fn is_untried(&self, device: DeviceId) -> bool {
        !self.died_isolated.contains_key(&device) && !self.no_room.contains(&device)
    }

    fn untried(&self, history: &DeviceHistory) -> impl Iterator<Item = DeviceId> {
        history.left().filter(|d| self.is_untried(*d))
    }

    fn died_of_strong(&mut self, death: BatchDeath) -> DeathOutcome {
        self.deaths.strong += 1;
        if death.rows > 1 {
            return DeathOutcome::Split;
        }
        if !death.shared {
            *self.died_isolated.entry(death.device).or_default() |= death.first_of_worker;
        }
        DeathOutcome::Retry
    }

    fn died_of_weak(&mut self, death: BatchDeath) -> DeathOutcome {
        self.weak += 1;
        if self.weak < WEAK_BEFORE_CAUTION {
            return DeathOutcome::Retry;
        }
        if death.rows > 1 {
            return DeathOutcome::Split;
        }
        if death.alone {
            if death.weak_elsewhere != self.elsewhere {
                self.deaths.weak = 0; // Something kills at random.
            }
            self.deaths.weak += 1;
            if self.deaths.weak >= WEAK_TO_CONFIRM {
                return DeathOutcome::Confirmed;
            }
        }
        self.elsewhere = death.weak_elsewhere;
        DeathOutcome::RunAlone
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
