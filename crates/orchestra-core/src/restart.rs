//! When a dead worker is replaced, and when the place of a worker is given up. Starts nothing itself.
//!
//! A worker that completed a batch is replaced at once and costs nothing, so a storm of kills parks no place. The same holds for one
//! that ended because it was asked to, which is not its device's doing. Other deaths without progress back off under a budget; a death
//! that came from outside (SIGKILL, a frozen process) has a far larger one, because it says nothing about the worker. What cannot be
//! loaded at all is not tried again.

use std::collections::VecDeque;
use std::time::Duration;

use crate::failure::ErrorClass;
use crate::worker_exit::{Evidence, WorkerExit};

/// Limits of one stage's workers on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Deaths without progress within `window`, beyond which the place of the last one is parked.
    pub budget: usize,
    /// The same for deaths that came from outside.
    pub outside_budget: usize,
    /// What counts as recent.
    pub window: Duration,
    /// First pause; doubled with each further death.
    pub first_pause: Duration,
    pub longest_pause: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            budget: 5,
            outside_budget: 100,
            window: Duration::from_secs(60),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(10),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restart {
    /// Start its replacement after this pause (zero: at once).
    After(Duration),
    /// Give its place up.
    Park,
}

#[derive(Debug, Clone, Copy)]
pub struct Death<'a> {
    pub exit: &'a WorkerExit,
    /// It completed at least one batch.
    pub progressed: bool,
    /// The ledger was bisecting the batch that it ran: the death was to be expected.
    pub bisecting: bool,
    /// Uniform in 0.0..1.0, so that many workers do not come back in step.
    pub jitter: f64,
}

#[derive(Debug, Clone)]
pub struct RestartBudget {
    policy: RestartPolicy,
    deaths: VecDeque<Duration>,
    outside: VecDeque<Duration>,
}

impl RestartBudget {
    pub fn new(policy: RestartPolicy) -> Self {
        Self { policy, deaths: VecDeque::new(), outside: VecDeque::new() }
    }

    /// A worker completed a batch: the device works.
    pub fn progressed(&mut self) {
        self.deaths.clear();
        self.outside.clear();
    }

    /// Deaths without progress that count now.
    pub fn spent(&self) -> usize {
        self.deaths.len()
    }

    /// Decides about a death at `now`, on a clock that stands still while workers take their time to die.
    pub fn died(&mut self, death: &Death<'_>, now: Duration) -> Restart {
        if let WorkerExit::DeviceLost(_) = death.exit {
            return Restart::Park; // However well it went before.
        }
        if death.progressed || death.bisecting || *death.exit == WorkerExit::Clean {
            return Restart::After(Duration::ZERO);
        }
        match death.exit {
            WorkerExit::LoadFailed { class: ErrorClass::Permanent, .. } | WorkerExit::ProtocolMismatch(_) => {
                return Restart::Park;
            }
            _ => {}
        }
        let from_outside = death.exit.evidence() == Evidence::Weak;
        let (deaths, budget) = if from_outside {
            (&mut self.outside, self.policy.outside_budget)
        } else {
            (&mut self.deaths, self.policy.budget)
        };
        deaths.push_back(now);
        while deaths.front().is_some_and(|d| now.saturating_sub(*d) > self.policy.window) {
            deaths.pop_front();
        }
        let n = deaths.len();
        if n > budget {
            return Restart::Park;
        }
        let pause = if from_outside {
            self.policy.first_pause / 10
        } else {
            let doublings = u32::try_from(n - 1).unwrap_or(u32::MAX).min(16);
            (self.policy.first_pause * 2u32.pow(doublings)).min(self.policy.longest_pause)
        };
        Restart::After(pause.mul_f64(0.75 + 0.5 * death.jitter.clamp(0.0, 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All else is a property in `tests/it/restart_budget.rs`.
    #[test]
    fn a_device_that_is_lost_is_not_tried_again_however_well_it_went() {
        let mut budget = RestartBudget::new(RestartPolicy::default());
        let exit = WorkerExit::DeviceLost("it fell off the bus".into());
        for progressed in [true, false] {
            let death = Death { exit: &exit, progressed, bisecting: false, jitter: 0.5 };
            assert_eq!(budget.died(&death, Duration::ZERO), Restart::Park);
        }
    }
}
