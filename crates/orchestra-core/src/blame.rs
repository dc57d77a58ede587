//! Whose fault a dead worker is: retry the batch, halve it, or fail its only item. It weighs evidence; the ledger acts on it.
//!
//! A segfault, an abort or a passed deadline is strong evidence against the batch that ran. A SIGKILL or a frozen process may be
//! anybody's doing: it only counts when it keeps happening to this batch and to nothing else, so no storm of kills ever gets an
//! innocent item failed.

use crate::worker_exit::Evidence;

/// Weak deaths after which a batch is halved: harmless for innocents, and it narrows the search.
const WEAK_BEFORE_SPLIT: u32 = 6;
/// Weak deaths of an item that ran alone, with none elsewhere meanwhile, after which it is failed.
const WEAK_BEFORE_FAIL: u32 = 24;

/// What is known against a batch. Halves inherit it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Suspicion {
    /// Strong deaths of the batch or of those that it was cut from.
    strong: u32,
    /// Weak deaths since it has its present size.
    weak: u32,
    /// Weak deaths of other batches and of idle workers when the first weak death of this batch happened.
    elsewhere_at_first: u64,
}

/// What to do with a batch whose worker died under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Send it again as it is.
    Retry,
    /// Send its halves.
    Split,
    /// It is a single item: fail it.
    Fail,
}

impl Suspicion {
    /// Whether a death of this batch is to be expected, because a larger batch around it died already.
    #[must_use]
    pub fn is_bisecting(&self) -> bool {
        self.strong > 0
    }

    /// Weighs one more death of a batch of `rows` rows. `weak_elsewhere` counts the weak deaths of the run so far that hit
    /// something else.
    pub fn died(&mut self, rows: usize, evidence: Evidence, weak_elsewhere: u64) -> Verdict {
        match evidence {
            Evidence::None => Verdict::Retry,
            Evidence::Strong => {
                self.strong += 1;
                match (self.strong, rows) {
                    (1, _) => Verdict::Retry,
                    (_, 1) => Verdict::Fail,
                    (_, _) => Verdict::Split,
                }
            }
            Evidence::Weak => {
                if self.weak == 0 {
                    self.elsewhere_at_first = weak_elsewhere;
                }
                self.weak += 1;
                let only_here = weak_elsewhere == self.elsewhere_at_first;
                if rows > 1 && self.weak >= WEAK_BEFORE_SPLIT {
                    Verdict::Split
                } else if rows == 1 && self.weak >= WEAK_BEFORE_FAIL && only_here {
                    Verdict::Fail
                } else {
                    if !only_here {
                        // Somebody kills at random: start counting again.
                        self.weak = 1;
                        self.elsewhere_at_first = weak_elsewhere;
                    }
                    Verdict::Retry
                }
            }
        }
    }

    /// The run's count of weak deaths was just raised by this batch's own: do not take it for one elsewhere.
    pub fn own_weak_death(&mut self) {
        self.elsewhere_at_first += 1;
    }

    /// What the halves start with.
    #[must_use]
    pub fn inherited(&self) -> Self {
        Self { strong: self.strong, weak: 0, elsewhere_at_first: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a batch of `rows` with one poison row at `poison` until every row has an end; returns crashes and who was failed.
    fn bisect(rows: std::ops::Range<usize>, s: Suspicion, poison: usize, log: &mut (u32, Vec<usize>)) {
        let mut s = s;
        while rows.contains(&poison) {
            log.0 += 1;
            match s.died(rows.len(), Evidence::Strong, 0) {
                Verdict::Retry => {}
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
        assert_eq!(Suspicion::default().died(1, Evidence::Strong, 0), Verdict::Retry);
    }

    #[test]
    fn a_storm_of_kills_never_fails_an_item() {
        let mut s = Suspicion::default();
        for other_deaths in 1..10_000 {
            assert_ne!(s.died(1, Evidence::Weak, other_deaths), Verdict::Fail);
        }
    }

    #[test]
    fn an_item_that_alone_is_always_killed_is_failed_in_the_end() {
        let mut s = Suspicion::default();
        let verdicts: Vec<_> = (0..WEAK_BEFORE_FAIL).map(|_| s.died(1, Evidence::Weak, 7)).collect();
        assert_eq!(verdicts.last(), Some(&Verdict::Fail));
        assert!(verdicts[..verdicts.len() - 1].iter().all(|v| *v == Verdict::Retry));
    }

    #[test]
    fn a_death_that_proves_nothing_changes_nothing() {
        let mut s = Suspicion::default();
        assert_eq!(s.died(4, Evidence::None, 0), Verdict::Retry);
        assert_eq!(s, Suspicion::default());
    }
}
