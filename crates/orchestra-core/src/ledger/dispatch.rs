//! Which waiting batch goes to which worker next, and what is done when none can go. It never learns how a batch ended.
//!
//! * A worker that holds less is preferred, and one whose device and last batch are above suspicion. As long as another device works, one
//!   on which something has died gets a single batch at a time until something succeeds there, and one that refuses everything rests
//!   between tries: so a device that fails fast does not attract the work of healthy ones.
//! * Where workers run several batches at once, a suspect gets an isolated run: a worker that holds nothing, until it has ended. One is given
//!   nothing more until it holds nothing, if a suspect waits for that.
//! * Not every worker may run a suspect (`blame`). Where only a fresh worker can, and none is about to come, another one is replaced.
//!
//! So whatever waits while a worker has nothing to do waits for a reason that ends: a suspect for a better worker (until one comes, or its
//! device is given up), a row for which memory ran out for its pause, a device that refuses everything for its rest, and everything for a batch that runs alone or on probation.

use std::time::Duration;

use super::{BatchQueue, Ledger, Worker};
use crate::batch_events::{Assignment, Rows};
use crate::batching::LeaveReason;
use crate::blame::IsolatedRun;
use crate::ceiling::Ceiling;
use crate::ids::{BatchId, DeviceId, WorkerId};

/// How long a suspect waits for the replacement of a worker that died, before another worker is replaced for its sake.
const PATIENCE: Duration = Duration::from_secs(30);
/// After so many deaths in a row, suspects are tried there row by row, to see whether anything works at all.
const DEATHS_BEFORE_SINGLE_ROWS: u32 = 3;

#[derive(Debug, Clone, Copy)]
struct WorkerCandidate {
    worker: WorkerId,
    device: DeviceId,
    /// What speaks against it: batches that it holds, a failure just before, a device on which something died.
    load: usize,
    holds_nothing: bool,
    /// It has run nothing yet, and what it takes now is its first batch.
    is_fresh: bool,
}

impl Ledger {
    /// Sends a waiting batch to the best worker, if there is both. What exceeds what the device is to be sent is cut off, and waits at the front.
    ///
    /// After `None`, ask for [`Ledger::next_confirmed`] and [`Ledger::next_to_replace`].
    pub fn dispatch(&mut self, now: Duration) -> Option<Assignment> {
        if self.alone.is_some() || self.is_stopped {
            return None;
        }
        let (c, id) = match self.pick(now) {
            Some(picked) => picked,
            None => {
                self.confirm_if_quiet();
                // Where one worker gets nothing more, others may have no worker left to wait for.
                if self.wants_fresh_worker(now) { self.pick(now)? } else { return None }
            }
        };
        self.cut_to(id, self.largest_for(id, c.device));
        let batch = self.batches.get_mut(&id)?;
        let isolated = batch.suspicion.isolated_run(&self.history) != IsolatedRun::NotNeeded
            || (self.streams > 1 && batch.suspicion.is_suspect());
        let first_time = batch.sent == 0;
        if !first_time && batch.reason != LeaveReason::Split {
            batch.reason = LeaveReason::Retry;
        }
        batch.attempts += 1;
        batch.sent += 1;
        let assignment = Assignment {
            worker: c.worker,
            device: c.device,
            batch: id,
            rows: batch.rows,
            attempt: batch.attempts,
            first_time,
            reason: batch.reason,
        };
        let w = self.workers.get_mut(&c.worker)?;
        w.holds.push_back(id);
        if isolated {
            w.isolated = Some(id);
        }
        Some(assignment)
    }

    /// When to ask for [`Ledger::dispatch`] again although nothing has happened.
    pub fn next_due(&self, now: Duration) -> Option<Duration> {
        let fresh = self.fresh_worker_wanted_since.map(|since| since + PATIENCE).filter(|due| *due > now);
        let rested = || self.history.next_rested(now).filter(|_| self.another_works());
        let rested = if self.waiting.is_empty() { None } else { rested() };
        [self.waiting.next_due(now), fresh, rested].into_iter().flatten().min()
    }

    /// Whether a worker holds less than it may. Where none does, nothing that is added can be sent before one of them has answered.
    pub fn has_room(&self) -> bool {
        self.alone.is_none() && self.workers.values().any(|w| w.takes_more() && w.has_room(self.most_held()))
    }

    fn most_held(&self) -> usize {
        self.streams + self.ready
    }

    /// Batches that workers could begin at once, beyond those that wait.
    pub fn idle_workers(&self, now: Duration) -> usize {
        if self.alone.is_some() {
            return 0;
        }
        let idle: usize = self.free(now).map(|(_, w)| self.streams.saturating_sub(w.holds.len())).sum();
        idle.saturating_sub(self.waiting.n_fresh())
    }

    fn pick(&mut self, now: Duration) -> Option<(WorkerCandidate, BatchId)> {
        if self.waiting.is_empty() {
            return None;
        }
        // Taken out for a moment, so that the choice can look at everything else.
        let mut waiting = std::mem::take(&mut self.waiting);
        let picked = self.pick_of(&mut waiting, now);
        self.waiting = waiting;
        let (c, id, runs_alone) = picked?;
        if runs_alone {
            self.alone = Some(id);
        }
        Some((c, id))
    }

    fn pick_of(&self, waiting: &mut BatchQueue, now: Duration) -> Option<(WorkerCandidate, BatchId, bool)> {
        if waiting.any_worker_will_do() {
            // The usual case, and once per batch: nothing is listed and sorted for it.
            let best = self.candidates(now).min_by_key(WorkerCandidate::rank)?;
            return waiting.pop(true, |_| true).map(|id| (best, id, false));
        }
        let kept = self.kept_for_a_suspect(waiting.suspects(), now);
        let mut candidates: Vec<WorkerCandidate> =
            self.candidates(now).filter(|c| Some(c.worker) != kept).collect();
        candidates.sort_unstable_by_key(WorkerCandidate::rank);
        for c in &candidates {
            // A fresh worker is rare: it goes to those who wait for one.
            let needs_run = |id| matches!(self.isolated_run(id), IsolatedRun::Needed { .. });
            let wanted = |id| c.is_fresh && needs_run(id) && self.may_run(id, c);
            let isolated = waiting.pop_suspect(wanted);
            let is_sound = self.history.is_sound(c.device);
            if let Some(id) = isolated.or_else(|| waiting.pop(is_sound, |id| self.may_run(id, c))) {
                return Some((*c, id, false));
            }
        }
        if !self.nothing_runs() {
            return None;
        }
        let alone = |c: &WorkerCandidate| Some((*c, waiting.pop_alone(now, |id| self.may_run(id, c))?, true));
        candidates.iter().find_map(alone)
    }

    /// The most rows of this batch that `device` is to be sent.
    fn largest_for(&self, id: BatchId, device: DeviceId) -> usize {
        let is_suspect = self.batches.get(&id).is_some_and(|b| b.suspicion.is_suspect());
        if is_suspect && self.history.deaths_in_a_row(device) >= DEATHS_BEFORE_SINGLE_ROWS {
            return 1;
        }
        self.ceilings.get(&device).map_or(self.first_batch, Ceiling::next_batch)
    }

    /// Cuts what exceeds `most` rows off the batch and puts it at the front of those that wait.
    fn cut_to(&mut self, id: BatchId, most: usize) {
        let Some(b) = self.batches.get_mut(&id) else { return };
        if b.rows.count <= most {
            return;
        }
        let Rows { slot, first, count } = b.rows;
        let mut rest = b.part(Rows { slot, first: first + most, count: count - most });
        b.rows.count = most;
        if b.sent == 0 {
            rest.reason = b.reason; // It is only larger than the device takes.
        } else {
            b.reason = LeaveReason::Split;
        }
        let is_suspect = rest.suspicion.is_suspect();
        let rest = self.insert(rest);
        if is_suspect { self.waiting.push_suspect_front(rest) } else { self.waiting.push_front(rest) }
    }

    /// When nothing runs, and nothing waits but items whose isolated runs are done, no success will come.
    fn confirm_if_quiet(&mut self) {
        let is_done = |id| self.isolated_run(id) == IsolatedRun::Done;
        if self.nothing_runs() && self.waiting.n_fresh() == 0 && self.waiting.suspects().all(is_done) {
            self.confirm(|suspicion, history| suspicion.isolated_run(history) == IsolatedRun::Done);
        }
    }

    /// Has a worker replaced if a suspect waits for a fresh one, and none is about to come. Says whether it does so now.
    fn wants_fresh_worker(&mut self, now: Duration) -> bool {
        // What must run alone only needs a fresh worker when it could run: with others at work, that one would get their batches first.
        let has_room_alone = self.waiting.n_fresh() == 0 && self.nothing_runs();
        let alone = self.waiting.alone_due(now).filter(|_| has_room_alone);
        let Some(choice) = self.replaceable(self.waiting.suspects().chain(alone)) else {
            self.fresh_worker_wanted_since = None;
            return false;
        };
        let since = *self.fresh_worker_wanted_since.get_or_insert(now);
        let is_patient = now < since + PATIENCE;
        if self.replacing.is_some() || (is_patient && self.history.expects_workers()) {
            return false;
        }
        // Replacements that have not come by now never will: their places were given up.
        self.history.expect_no_more_workers();
        if let Some(w) = self.workers.get_mut(&choice) {
            w.draining = true;
        }
        (self.replacing, self.to_replace) = (Some(choice), Some(choice));
        self.fresh_worker_wanted_since = Some(now);
        true
    }

    fn free(&self, now: Duration) -> impl Iterator<Item = (WorkerId, &Worker)> {
        let is_free =
            move |w: &Worker| w.takes_more() && w.has_room(self.most_held()) && !self.must_wait(w, now);
        self.workers.iter().filter(move |(_, w)| is_free(w)).map(|(id, w)| (*id, w))
    }

    fn candidates(&self, now: Duration) -> impl Iterator<Item = WorkerCandidate> {
        self.free(now).map(|(worker, w)| self.candidate(worker, w))
    }

    fn candidate(&self, worker: WorkerId, w: &Worker) -> WorkerCandidate {
        WorkerCandidate {
            worker,
            device: w.device,
            load: w.holds.len()
                + usize::from(w.failed_last)
                + usize::from(self.history.is_in_doubt(w.device)),
            holds_nothing: w.holds.is_empty(),
            is_fresh: w.is_fresh(),
        }
    }

    /// The worker that gets nothing more until it holds nothing, because a suspect needs one that it has for itself: of those that may
    /// run it the one that holds least. On a device where something has died, fresh batches go before suspects (`batch_queue`).
    fn kept_for_a_suspect(&self, suspects: impl Iterator<Item = BatchId>, now: Duration) -> Option<WorkerId> {
        if self.streams == 1 {
            return None;
        }
        for id in suspects {
            let may_run = |worker: WorkerId, w: &Worker| {
                let once_empty = WorkerCandidate { holds_nothing: true, ..self.candidate(worker, w) };
                w.takes_more()
                    && self.history.is_sound(w.device)
                    && !self.must_wait(w, now)
                    && self.may_run(id, &once_empty)
            };
            let allowed = self.workers.iter().filter(|(worker, w)| may_run(**worker, w));
            if let Some((worker, w)) = allowed.min_by_key(|(worker, w)| (w.holds.len(), **worker)) {
                return (!w.holds.is_empty()).then_some(*worker);
            }
        }
        None
    }

    /// Its device is in doubt, and rests or tries another batch, while other devices work.
    fn must_wait(&self, w: &Worker, now: Duration) -> bool {
        let is_tried = || self.workers.values().any(|o| o.device == w.device && !o.holds.is_empty());
        self.history.is_in_doubt(w.device)
            && (self.history.is_resting(w.device, now) || is_tried())
            && self.another_works()
    }

    /// Somewhere above doubt.
    fn another_works(&self) -> bool {
        self.workers.values().any(|o| o.takes_more() && !self.history.is_in_doubt(o.device))
    }

    fn nothing_runs(&self) -> bool {
        self.workers.values().all(|w| w.holds.is_empty())
    }

    fn isolated_run(&self, id: BatchId) -> IsolatedRun {
        self.batches.get(&id).map_or(IsolatedRun::NotNeeded, |b| b.suspicion.isolated_run(&self.history))
    }

    /// Whether this batch, of which something is known already, may be tried by this worker.
    fn may_run(&self, id: BatchId, c: &WorkerCandidate) -> bool {
        let Some(b) = self.batches.get(&id) else { return false };
        let is_in_company = self.streams > 1 && !c.holds_nothing && b.suspicion.is_suspect();
        if is_in_company || !b.suspicion.may_fit(c.device, &self.history) {
            return false;
        }
        match b.suspicion.isolated_run(&self.history) {
            IsolatedRun::NotNeeded => true,
            IsolatedRun::Needed { fresh_worker, another_device } => {
                (c.is_fresh || !fresh_worker)
                    && (!another_device || b.suspicion.is_best_for_isolated_run(c.device, &self.history))
            }
            IsolatedRun::Done => false,
        }
    }

    /// The worker to replace for the first suspect that needs a fresh one and will get none: of those that may run it the one that holds least.
    fn replaceable(&self, mut suspects: impl Iterator<Item = BatchId>) -> Option<WorkerId> {
        suspects.find_map(|id| {
            let suspicion = &self.batches.get(&id)?.suspicion;
            let run = suspicion.isolated_run(&self.history);
            let IsolatedRun::Needed { fresh_worker: true, another_device } = run else { return None };
            let may_run = |w: &Worker| {
                w.takes_more()
                    && suspicion.may_fit(w.device, &self.history)
                    && (!another_device || suspicion.is_best_for_isolated_run(w.device, &self.history))
            };
            let allowed = || self.workers.iter().filter(|(_, w)| may_run(w));
            let least = allowed().min_by_key(|(_, w)| w.holds.len());
            least.filter(|_| !allowed().any(|(_, w)| w.is_fresh())).map(|(worker, _)| *worker)
        })
    }
}

impl WorkerCandidate {
    /// The best one has the lowest.
    fn rank(&self) -> (usize, WorkerId) {
        (self.load, self.worker)
    }
}
