//! Whose fault a dead worker is: the batch that it ran, its device, or somebody outside. It weighs evidence; the ledger acts on it.
//!
//! * A segfault, an abort or a passed deadline is strong evidence: against the batch as long as other batches succeed on that device,
//!   against the device once different batches die on it with no success in between.
//! * A SIGKILL or a frozen process may be anybody's doing. It only counts against an item that keeps dying of it while nothing else
//!   runs and nothing else dies, so no storm of kills ever gets an innocent item failed.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{BatchId, DeviceId};
use crate::worker_exit::Evidence;

/// Weak deaths after which a batch is halved (harmless for innocents) or, if it is a single item, runs alone.
const WEAK_BEFORE_CAUTION: u32 = 6;
/// Weak deaths of an item that ran alone, with none elsewhere meanwhile, after which it is failed.
const WEAK_ALONE_BEFORE_FAIL: u32 = 8;

/// What is known against a batch. Halves inherit it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suspicion {
    /// Strong deaths of the batch or of those that it was cut from.
    strong: u32,
    /// Strong deaths as a single item.
    strong_single: u32,
    /// Weak deaths since it has its present size.
    weak: u32,
    /// Weak deaths while it ran alone, since the last one elsewhere.
    weak_alone: u32,
    /// The run's count of weak deaths elsewhere when `weak_alone` was last counted.
    elsewhere: u64,
    /// Where it died of strong evidence.
    devices: BTreeSet<DeviceId>,
}

/// A worker died under a batch.
#[derive(Debug, Clone, Copy)]
pub struct DeathOf {
    /// Rows of the batch.
    pub rows: usize,
    /// What the death proves.
    pub evidence: Evidence,
    /// Where it happened.
    pub device: DeviceId,
    /// Nothing else ran at the time.
    pub alone: bool,
    /// It was the first batch of its worker: what ran before cannot be to blame.
    pub first_of_worker: bool,
    /// Weak deaths of the run so far that hit something else.
    pub weak_elsewhere: u64,
    /// The device is above suspicion, or this batch (with those that it was cut from) is all that died on it since its last success.
    pub device_trusted: bool,
}

/// What to do with a batch whose worker died under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Send it again as it is.
    Retry,
    /// Send its halves.
    Split,
    /// Send it again when nothing else runs.
    RunAlone,
    /// It is a single item: fail it.
    Fail,
}

impl Suspicion {
    /// The batch, or a larger one around it, has died of strong evidence.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.strong > 0
    }

    /// It died there of strong evidence: another device is the better judge.
    #[must_use]
    pub fn died_on(&self, device: DeviceId) -> bool {
        self.devices.contains(&device)
    }

    /// It is a single item that killed a worker which had run others before: only a worker that has run nothing yet can judge it.
    #[must_use]
    pub fn needs_fresh_worker(&self) -> bool {
        self.strong_single > 0
    }

    /// Weighs one more death.
    pub fn died(&mut self, death: DeathOf) -> Verdict {
        match death.evidence {
            Evidence::None => Verdict::Retry,
            Evidence::Strong => self.died_of_strong(death),
            Evidence::Weak => self.died_of_weak(death),
        }
    }

    /// What the halves start with.
    #[must_use]
    pub fn inherited(&self) -> Self {
        Self { strong: self.strong, devices: self.devices.clone(), ..Self::default() }
    }

    fn died_of_strong(&mut self, death: DeathOf) -> Verdict {
        self.strong += 1;
        self.strong_single += u32::from(death.rows == 1);
        self.devices.insert(death.device);
        let witnessed = death.first_of_worker && (death.device_trusted || self.devices.len() > 1);
        match (self.strong, death.rows) {
            (1, _) => Verdict::Retry,
            (_, 2..) => Verdict::Split,
            _ if witnessed => Verdict::Fail,
            // The worker may have been broken by what it ran before, or the device may be to blame: it is parked before long, or
            // others succeed there and the next death counts.
            _ => Verdict::Retry,
        }
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
                self.weak_alone = 0; // Somebody kills at random.
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

/// What has died on each device of strong evidence since something last succeeded there.
#[derive(Debug, Default)]
pub struct DeviceRecord {
    dead_since_success: BTreeMap<DeviceId, BTreeSet<BatchId>>,
}

impl DeviceRecord {
    /// A batch went well there.
    pub fn succeeded(&mut self, device: DeviceId) {
        self.dead_since_success.remove(&device);
    }

    /// A batch cut from `origin` died there.
    pub fn died(&mut self, device: DeviceId, origin: BatchId) {
        self.dead_since_success.entry(device).or_default().insert(origin);
    }

    /// Nothing has died there since the last success.
    #[must_use]
    pub fn is_sound(&self, device: DeviceId) -> bool {
        !self.dead_since_success.contains_key(&device)
    }

    /// Nothing but batches cut from `origin` has died there since the last success.
    #[must_use]
    pub fn trusts(&self, device: DeviceId, origin: BatchId) -> bool {
        self.dead_since_success.get(&device).is_none_or(|dead| dead.iter().all(|o| *o == origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: DeviceId = DeviceId(0);

    fn strong(rows: usize) -> DeathOf {
        DeathOf {
            rows,
            evidence: Evidence::Strong,
            device: HERE,
            alone: false,
            first_of_worker: true,
            weak_elsewhere: 0,
            device_trusted: true,
        }
    }

    fn weak(rows: usize, alone: bool, weak_elsewhere: u64) -> DeathOf {
        DeathOf { evidence: Evidence::Weak, alone, weak_elsewhere, ..strong(rows) }
    }

    /// Runs a batch of `rows` with one poison row until every row has an end; counts crashes and lists who was failed.
    fn bisect(rows: std::ops::Range<usize>, mut s: Suspicion, poison: usize, log: &mut (u32, Vec<usize>)) {
        while rows.contains(&poison) {
            log.0 += 1;
            match s.died(strong(rows.len())) {
                Verdict::Retry | Verdict::RunAlone => {}
                Verdict::Split => {
                    let mid = rows.start + rows.len() / 2;
                    bisect(rows.start..mid, s.inherited(), poison, log);
                    bisect(mid..rows.end, s.inherited(), poison, log);
                    return;
                }
                Verdict::Fail => {
                    log.1.extend(rows);
                    return;
                }
            }
        }
    }

    #[test]
    fn bisection_finds_exactly_the_poison_item_within_log2_plus_two_crashes() {
        for size in [1usize, 2, 8, 64, 256] {
            for poison in [0, size / 2, size - 1] {
                let mut log = (0, Vec::new());
                bisect(0..size, Suspicion::default(), poison, &mut log);
                assert_eq!(log.1, [poison]);
                assert!(log.0 <= size.ilog2() + 2, "{} crashes for {size}", log.0);
            }
        }
    }

    #[test]
    fn a_single_item_is_never_failed_by_its_first_death() {
        assert_eq!(Suspicion::default().died(strong(1)), Verdict::Retry);
    }

    #[test]
    fn an_item_is_not_failed_by_a_worker_that_may_have_been_broken_before() {
        let mut s = Suspicion::default();
        let later = DeathOf { first_of_worker: false, ..strong(1) };
        for _ in 0..10 {
            assert_eq!(s.died(later), Verdict::Retry);
            assert!(s.needs_fresh_worker());
        }
        assert_eq!(s.died(strong(1)), Verdict::Fail);
    }

    #[test]
    fn an_item_is_not_failed_on_the_word_of_a_device_on_which_everything_dies() {
        let mut s = Suspicion::default();
        let distrusted = DeathOf { device_trusted: false, ..strong(1) };
        for _ in 0..100 {
            assert_eq!(s.died(distrusted), Verdict::Retry);
        }
        assert_eq!(
            s.died(DeathOf { device: DeviceId(1), ..distrusted }),
            Verdict::Fail,
            "a second device says so too"
        );
    }

    #[test]
    fn a_storm_of_kills_never_fails_an_item() {
        let mut s = Suspicion::default();
        for other_deaths in 1..10_000 {
            assert_ne!(s.died(weak(1, true, other_deaths)), Verdict::Fail);
        }
    }

    #[test]
    fn items_that_are_killed_in_turn_are_told_apart_by_running_alone() {
        let mut s = Suspicion::default();
        for other in 0..u64::from(WEAK_BEFORE_CAUTION) - 1 {
            assert_eq!(s.died(weak(1, false, other)), Verdict::Retry);
        }
        assert_eq!(s.died(weak(1, false, 9)), Verdict::RunAlone);
        for _ in 1..WEAK_ALONE_BEFORE_FAIL {
            assert_eq!(s.died(weak(1, true, 9)), Verdict::RunAlone);
        }
        assert_eq!(s.died(weak(1, true, 9)), Verdict::Fail);
    }

    #[test]
    fn a_batch_that_keeps_being_killed_is_halved_whatever_dies_elsewhere() {
        let mut s = Suspicion::default();
        let verdicts: Vec<_> =
            (0..WEAK_BEFORE_CAUTION).map(|i| s.died(weak(64, false, u64::from(i)))).collect();
        assert_eq!(verdicts.last(), Some(&Verdict::Split));
        assert!(!s.inherited().is_suspect(), "halves of a batch that was only killed are no suspects");
    }

    #[test]
    fn a_death_that_proves_nothing_changes_nothing() {
        let mut s = Suspicion::default();
        assert_eq!(s.died(DeathOf { evidence: Evidence::None, ..strong(4) }), Verdict::Retry);
        assert_eq!(s, Suspicion::default());
    }

    #[test]
    fn different_batches_that_die_in_a_row_speak_against_the_device_and_a_success_clears_it() {
        let mut record = DeviceRecord::default();
        record.died(HERE, BatchId(1));
        assert!(!record.is_sound(HERE) && record.trusts(HERE, BatchId(1)));
        record.died(HERE, BatchId(2));
        assert!(!record.trusts(HERE, BatchId(1)) && record.trusts(DeviceId(1), BatchId(1)));
        record.succeeded(HERE);
        assert!(record.is_sound(HERE) && record.trusts(HERE, BatchId(1)));
    }
}
