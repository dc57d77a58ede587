//! Whose fault a dead worker is: the batch that it ran, its device, or something outside. It weighs evidence; the ledger acts on it.
//!
//! * A segfault, an abort or a passed deadline is strong evidence against the batch: it is halved at once, until a single item is left
//!   that kills its worker.
//! * Against a single item there may still be another explanation: its worker may have been broken by what it ran before, or its device
//!   may kill whatever runs there. So it is on trial until it has died twice (with the batches around it), once as the first batch of its
//!   worker, and on two devices that have got something right, if there are so many that could judge it. Then it is accused, and runs no
//!   more.
//! * Where a worker runs several batches at once, its death speaks against each of them, as it would against one batch of all their rows:
//!   they are halved, and a single item among them is suspected, but not on trial. A suspect never runs beside another batch in its
//!   worker, so whatever is suspected is cleared or found guilty by what it does itself.
//! * An accused item is failed as soon as something succeeds on a device where it died as a single item, or when nothing else is left
//!   that could. Where everything dies, the device is given up before it comes to that.
//! * One success can end the trial before that: while an item waits that has died twice (with the batches around it), and died as the
//!   first batch of a worker of some device, whatever succeeds on that device proves that neither the device nor what the worker had run
//!   before killed it. So it is failed at once, although no other device was asked.
//! * An item that the model refuses is failed at once if its device has got something right before. Else it is accused: a device that
//!   refuses whatever it is given is no judge as long as there is another one.
//! * A SIGKILL or a freeze may come from outside. It only counts against an item that keeps dying of it while nothing else
//!   runs and nothing else dies, so no storm of kills ever gets an innocent item failed.
//!
//! A poison item in a batch of n rows therefore costs at most log2(n) + 2 workers: log2(n) until it is alone, and two more. (One more for
//! a batch of a single row that did not run alone in its worker.)

use std::collections::{BTreeMap, BTreeSet};

use crate::device_history::DeviceHistory;
use crate::ids::DeviceId;
use crate::worker_exit::Evidence;

/// Weak deaths after which a batch is halved (harmless for innocents) or, if it is a single item, runs alone.
const WEAK_BEFORE_CAUTION: u32 = 6;
/// Weak deaths of an item that ran alone, with none elsewhere meanwhile, after which it is failed.
const WEAK_ALONE_BEFORE_FAIL: u32 = 8;
/// Strong deaths, those of the batches around it included, without which no item is failed.
const STRONG_BEFORE_FAIL: u32 = 2;
/// So many devices that are known to work must speak against an item, if there are so many.
const DEVICES_BEFORE_FAIL: usize = 2;

/// What is known against a batch. Halves inherit it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suspicion {
    /// Strong deaths of the batch or of those that it was cut from.
    strong: u32,
    /// Where it died of strong evidence, alone or with the batches around it.
    devices: BTreeSet<DeviceId>,
    /// Where it did so as a single item, and whether it was the first batch of a worker there.
    accusers: BTreeMap<DeviceId, bool>,
    /// Where memory ran out for it while nothing else ran: those devices cannot judge it.
    no_room: BTreeSet<DeviceId>,
    /// Weak deaths since it has its present size.
    weak: u32,
    /// Weak deaths while it ran alone, since the last one elsewhere.
    weak_alone: u32,
    /// The run's count of weak deaths elsewhere when `weak_alone` was last counted.
    elsewhere: u64,
}

#[derive(Debug, Clone, Copy)]
pub struct DeathOf {
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
pub enum Verdict {
    /// Send it again as it is, to whom its [`Trial`] allows.
    Retry,
    Split,
    /// Send it again when nothing else runs.
    RunAlone,
    Fail,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// Any worker, best on a device where it has not died.
    None,
    /// A single item that killed a worker: not every further death would prove anything.
    Before {
        /// Only a worker that has run nothing yet.
        fresh_worker: bool,
        /// Only a worker of a device that does not speak against it yet.
        another_device: bool,
    },
    /// No worker: a further death would prove nothing more.
    Over,
}

impl Suspicion {
    pub fn is_suspect(&self) -> bool {
        self.strong > 0
    }

    /// Nothing is known against `device` as a judge: neither it nor a larger batch around it died there, and there was room for it.
    pub fn speaks_for(&self, device: DeviceId) -> bool {
        !self.devices.contains(&device) && !self.no_room.contains(&device)
    }

    pub fn trial(&self, history: &DeviceHistory) -> Trial {
        if self.accusers.is_empty() {
            return Trial::None;
        }
        let n_trusted = self.accusers.keys().filter(|d| history.is_proven(**d)).count();
        let another_device = n_trusted < DEVICES_BEFORE_FAIL && self.judges(history).next().is_some();
        let fresh_worker = !self.accusers.values().any(|fresh| *fresh);
        if self.strong >= STRONG_BEFORE_FAIL && !fresh_worker && !another_device {
            return Trial::Over;
        }
        Trial::Before { fresh_worker, another_device }
    }

    /// Whether `device` is one of the best that are left to try a single item that killed a worker elsewhere: one that has got something
    /// right, if there is one.
    pub fn is_best_judge(&self, device: DeviceId, history: &DeviceHistory) -> bool {
        let is_judge = !self.accusers.contains_key(&device) && !self.no_room.contains(&device);
        is_judge && (history.is_proven(device) || !self.judges(history).any(|d| history.is_proven(d)))
    }

    /// Whether it is to blame for certain, now that something has succeeded on `device`: so the device did not kill it, and neither did
    /// anything that its worker had run before. Where it died as the first batch of a worker there, no other device has to be asked;
    /// elsewhere the trial has to be over.
    pub fn is_proven_by_success_on(&self, device: DeviceId, history: &DeviceHistory) -> bool {
        match self.accusers.get(&device) {
            Some(true) => self.strong >= STRONG_BEFORE_FAIL,
            Some(false) => self.trial(history) == Trial::Over,
            None => false,
        }
    }

    /// A single item was refused there by a worker that lives: as good as if it had died there as often as it takes.
    pub fn refused_on(&mut self, device: DeviceId) {
        self.strong = self.strong.max(STRONG_BEFORE_FAIL);
        self.devices.insert(device);
        self.accusers.insert(device, true);
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

    pub fn died(&mut self, death: DeathOf) -> Verdict {
        match death.evidence {
            Evidence::None => Verdict::Retry,
            Evidence::Strong => self.died_of_strong(death),
            Evidence::Weak => self.died_of_weak(death),
        }
    }

    pub fn inherited(&self) -> Self {
        Self { strong: self.strong, devices: self.devices.clone(), ..Self::default() }
    }

    fn judges(&self, history: &DeviceHistory) -> impl Iterator<Item = DeviceId> {
        history.left().filter(|d| !self.accusers.contains_key(d) && !self.no_room.contains(d))
    }

    fn died_of_strong(&mut self, death: DeathOf) -> Verdict {
        self.strong += 1;
        self.devices.insert(death.device);
        if death.rows > 1 {
            return Verdict::Split;
        }
        if !death.shared {
            *self.accusers.entry(death.device).or_default() |= death.first_of_worker;
        }
        Verdict::Retry
    }

    fn died_of_weak(&mut self, death: DeathOf) -> Verdict {
        self.weak += 1;
        if self.weak < WEAK_BEFORE_CAUTION {
            return Verdict::Retry;
        }
        if death.rows > 1 {
            return Verdict::Split;
        }
        if death.alone {
            if death.weak_elsewhere != self.elsewhere {
                self.weak_alone = 0; // Something kills at random.
            }
            self.weak_alone += 1;
            if self.weak_alone >= WEAK_ALONE_BEFORE_FAIL {
                return Verdict::Fail;
            }
        }
        self.elsewhere = death.weak_elsewhere;
        Verdict::RunAlone
    }
}

#[cfg(test)]
#[path = "blame_tests.rs"]
mod tests;
