//! When a worker has taken too long, and for what. Times come in as arguments; no process is killed here.

use std::time::Duration;

use orchestra_core::{ErrorClass, WorkerExit};

use crate::context::Timeouts;

/// How often deadlines are looked at.
pub const TICK: Duration = Duration::from_millis(250);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerPhase {
    Starting,
    Greeted,
    Serving,
    /// It was asked to end, or is being killed.
    Ending,
}

/// So many times `load_timeout` a worker may wait for others that build what it reads.
const MOST_LOADS_WAITED_FOR: u32 = 16;

#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    pub phase: Duration,
    /// When it first said that its load waits.
    waiting: Option<Duration>,
    pub sign_of_life: Duration,
    /// Since when we have looked without a gap: what was before does not count.
    awake: Duration,
    last_look: Duration,
}

/// `load_timeout`, and what it is called in the file.
#[derive(Debug, Clone, Copy)]
pub struct LoadLimit<'a> {
    pub timeout: Duration,
    pub called: &'a str,
}

#[derive(Debug, Clone, Copy)]
pub struct RunningBatch {
    pub begun: Duration,
    pub timeout: Duration,
}

impl Clocks {
    pub fn start(now: Duration) -> Self {
        Self { phase: now, waiting: None, sign_of_life: now, awake: now, last_look: now }
    }

    /// Its load waits for another process: its time begins anew. A worker that always says so is as one that hangs.
    pub fn load_waits(&mut self, load_timeout: Duration, now: Duration) {
        let since = *self.waiting.get_or_insert(now);
        if now.saturating_sub(since) <= load_timeout.saturating_mul(MOST_LOADS_WAITED_FOR) {
            self.phase = now;
        }
    }

    /// What a worker has to be ended for, if anything. `batch` is given if it runs one.
    pub fn overdue(
        &mut self,
        phase: WorkerPhase,
        timeouts: &Timeouts,
        load: LoadLimit<'_>,
        batch: Option<RunningBatch>,
        now: Duration,
    ) -> Option<WorkerExit> {
        let gap = now.saturating_sub(std::mem::replace(&mut self.last_look, now));
        if gap > TICK * 4 {
            // We slept ourselves (a stopped process, a suspended machine): the worker must not pay for that.
            *self = Self { waiting: self.waiting, ..Self::start(now) };
            return None;
        }
        let in_phase = now.saturating_sub(self.phase);
        let is_late = |r: RunningBatch| now.saturating_sub(r.begun.max(self.awake)) > r.timeout;
        let silence = now.saturating_sub(self.sign_of_life);
        // A process that was frozen runs out of time as well; that is not the fault of its batch, and shows after a while.
        let is_alive = silence <= TICK * 4;
        let is_silent = silence > timeouts.heartbeat;
        match phase {
            WorkerPhase::Starting if in_phase > timeouts.handshake => Some(WorkerExit::HandshakeTimeout),
            WorkerPhase::Greeted if in_phase > load.timeout => Some(WorkerExit::LoadFailed {
                class: ErrorClass::Transient,
                why: format!("it took longer than `{}`, {} s", load.called, load.timeout.as_secs()),
            }),
            WorkerPhase::Serving if is_alive && batch.is_some_and(is_late) => Some(WorkerExit::Hung),
            WorkerPhase::Greeted | WorkerPhase::Serving if is_silent => Some(WorkerExit::Silent),
            WorkerPhase::Ending if in_phase > timeouts.shutdown => Some(WorkerExit::Clean),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: LoadLimit<'_> =
        LoadLimit { timeout: Duration::from_secs(600), called: "limits.load_timeout" };
    const BATCH: RunningBatch = RunningBatch { begun: Duration::ZERO, timeout: Duration::from_secs(60) };

    #[test]
    fn a_load_that_waits_for_others_has_time_and_not_for_ever() {
        let mut clocks = Clocks::start(Duration::ZERO);
        let end = (1..=100_000).find_map(|n| {
            clocks.sign_of_life = TICK * n;
            clocks.load_waits(LOAD.timeout, TICK * n);
            let (phase, timeouts) = (WorkerPhase::Greeted, Timeouts::default());
            Some(TICK * n).zip(clocks.overdue(phase, &timeouts, LOAD, None, TICK * n))
        });
        let (after, exit) = end.expect("it ends");
        assert!(matches!(exit, WorkerExit::LoadFailed { class: ErrorClass::Transient, .. }), "{exit:?}");
        assert_eq!(after, LOAD.timeout * (MOST_LOADS_WAITED_FOR + 1) + TICK * 2);
    }

    #[test]
    fn a_frozen_worker_is_silent_and_not_hung_whatever_time_its_batch_has() {
        for seconds in [2, 3, 4] {
            let batch = Some(RunningBatch { timeout: Duration::from_secs(seconds), ..BATCH });
            let mut clocks = Clocks::start(Duration::ZERO);
            let frozen = (1..=40).find_map(|n| {
                let at = TICK * n;
                // Frozen a second and a half before its batch is out of time.
                if at + TICK * 6 <= Duration::from_secs(seconds) {
                    clocks.sign_of_life = at;
                }
                clocks.overdue(WorkerPhase::Serving, &Timeouts::default(), LOAD, batch, at)
            });
            assert_eq!(frozen, Some(WorkerExit::Silent), "{seconds} s");
        }
    }
}
