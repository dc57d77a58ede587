//! The truth about the batches of one infer stage: which rows wait, which worker holds which, on which attempt.
//!
//! Every row that is added ends exactly once: in `Completed` or in `Failed`. Workers, frames and memory are named by id only; the
//! batcher actor carries the returned effects out. Nothing here reads a clock.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

pub use crate::batch_events::{Aftermath, Assignment, Completed, FailedRow, Lost, Rows, RunFault};
use crate::batch_queue::BatchQueue;
use crate::batching::LeaveReason;
use crate::blame::{DeathOf, DeviceRecord, Suspicion, Verdict};
use crate::ceiling::Ceiling;
use crate::failure::FailureKind;
use crate::ids::{BatchId, DeviceId, WorkerId};
use crate::worker_exit::{Evidence, WorkerExit};

/// Times that memory may run out for a single row that runs alone before it is failed.
const OUT_OF_MEMORY_ALONE: u32 = 6;
/// First pause before such a row is tried again, doubled each time: whoever holds the memory may give it back.
const OUT_OF_MEMORY_PAUSE: Duration = Duration::from_millis(250);
/// Batches that a worker holds at once: one runs, one is ready, so the device never waits for a frame.
pub const IN_FLIGHT_PER_WORKER: usize = 2;

#[derive(Debug, Clone)]
struct Batch {
    rows: Rows,
    /// The batch that it was cut from in the beginning, or itself.
    origin: BatchId,
    /// How often a worker has begun it.
    attempts: u32,
    /// How often it was sent, begun or not.
    sent: u32,
    reason: LeaveReason,
    suspicion: Suspicion,
    out_of_memory: u32,
    sent_at: Duration,
}

#[derive(Debug)]
struct Worker {
    device: DeviceId,
    /// In the order in which they were sent, which is the order in which it runs them.
    holds: VecDeque<BatchId>,
    draining: bool,
    failed_last: bool,
    /// It reported a broken device and runs nothing more.
    broken: bool,
    /// Its death is to be expected: see `Lost::bisecting`.
    bisecting: bool,
    /// It has answered for a batch.
    has_run: bool,
}

impl Worker {
    fn takes_more(&self) -> bool {
        !self.draining && !self.broken
    }
}

/// The ledger of one infer stage.
#[derive(Debug)]
pub struct Ledger {
    max_rows: usize,
    waiting: BatchQueue,
    /// The batch that runs while nothing else may.
    alone: Option<BatchId>,
    batches: HashMap<BatchId, Batch>,
    workers: BTreeMap<WorkerId, Worker>,
    ceilings: BTreeMap<DeviceId, Ceiling>,
    record: DeviceRecord,
    next_batch: u64,
    weak_deaths: u64,
}

impl Ledger {
    /// An empty ledger for batches of up to `max_rows` rows.
    #[must_use]
    pub fn new(max_rows: usize) -> Self {
        Self {
            max_rows,
            waiting: BatchQueue::default(),
            alone: None,
            batches: HashMap::new(),
            workers: BTreeMap::new(),
            ceilings: BTreeMap::new(),
            record: DeviceRecord::default(),
            next_batch: 0,
            weak_deaths: 0,
        }
    }

    /// Takes responsibility for filled rows.
    pub fn add(&mut self, rows: Rows, reason: LeaveReason) {
        let id = self.next_id();
        let batch = Batch {
            rows,
            origin: id,
            attempts: 0,
            sent: 0,
            reason,
            suspicion: Suspicion::default(),
            out_of_memory: 0,
            sent_at: Duration::ZERO,
        };
        self.batches.insert(id, batch);
        self.waiting.push_fresh(id);
    }

    /// A worker can take batches now.
    pub fn worker_ready(&mut self, worker: WorkerId, device: DeviceId) {
        self.ceilings.entry(device).or_insert_with(|| Ceiling::new(self.max_rows));
        let state = Worker {
            device,
            holds: VecDeque::new(),
            draining: false,
            failed_last: false,
            broken: false,
            bisecting: false,
            has_run: false,
        };
        self.workers.insert(worker, state);
    }

    /// A worker gets nothing new; what it holds it may finish. Returns whether it holds nothing already.
    pub fn drain_worker(&mut self, worker: WorkerId) -> bool {
        match self.workers.get_mut(&worker) {
            Some(w) => {
                w.draining = true;
                w.holds.is_empty()
            }
            None => true,
        }
    }

    /// Whether `worker` gets nothing new.
    #[must_use]
    pub fn is_draining(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|w| w.draining)
    }

    /// Workers that hold nothing, beyond those that the waiting batches will keep busy.
    #[must_use]
    pub fn idle_workers(&self) -> usize {
        let idle = self.workers.values().filter(|w| w.takes_more() && w.holds.is_empty()).count();
        idle.saturating_sub(self.waiting.len())
    }

    /// Batches that wait or run.
    #[must_use]
    pub fn n_batches(&self) -> usize {
        self.batches.len()
    }

    /// Whether `worker` holds nothing (or is not known).
    #[must_use]
    pub fn holds_nothing(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_none_or(|w| w.holds.is_empty())
    }

    /// Sends a waiting batch to the best worker, if there is both.
    ///
    /// The best is one that holds least; among equals one whose last batch went well, so a device that fails fast does not
    /// attract the work of healthy ones. What exceeds the device's ceiling is cut, and the rest goes on waiting at the front.
    pub fn dispatch(&mut self, now: Duration) -> Option<Assignment> {
        if self.alone.is_some() {
            return None;
        }
        let (worker, device, id) = self.pick(now)?;
        let ceiling = self.ceilings.get(&device).map_or(self.max_rows, Ceiling::rows);
        self.cut_to(id, ceiling);
        let batch = self.batches.get_mut(&id)?;
        let first_time = batch.sent == 0;
        if !first_time && batch.reason != LeaveReason::Split {
            batch.reason = LeaveReason::Retry;
        }
        batch.attempts += 1;
        batch.sent += 1;
        batch.sent_at = now;
        let assignment = Assignment {
            worker,
            device,
            batch: id,
            rows: batch.rows,
            attempt: batch.attempts,
            first_time,
            reason: batch.reason,
        };
        self.workers.get_mut(&worker)?.holds.push_back(id);
        Some(assignment)
    }

    /// When a batch that waits for its time is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.waiting.next_due()
    }

    fn pick(&mut self, now: Duration) -> Option<(WorkerId, DeviceId, BatchId)> {
        let mut candidates: Vec<(usize, WorkerId, DeviceId)> = self
            .workers
            .iter()
            .filter(|(_, w)| w.takes_more() && w.holds.len() < IN_FLIGHT_PER_WORKER)
            .map(|(id, w)| (w.holds.len() + usize::from(w.failed_last), *id, w.device))
            .collect();
        candidates.sort_unstable();
        let (batches, workers) = (&self.batches, &self.workers);
        let suspicion = |id: BatchId| batches.get(&id).map(|b| &b.suspicion);
        let needs_fresh = |id: BatchId| suspicion(id).is_some_and(Suspicion::needs_fresh_worker);
        // A device on which a batch has not died is the better judge, as long as there is one.
        let may_judge = |id: BatchId, device: DeviceId| {
            let Some(s) = suspicion(id).filter(|s| s.died_on(device)) else { return true };
            !workers.values().any(|w| w.takes_more() && !s.died_on(w.device))
        };
        for &(_, worker, device) in &candidates {
            let is_fresh = workers.get(&worker).is_some_and(|w| !w.has_run && w.holds.is_empty());
            let judged = if is_fresh {
                self.waiting.pop_suspect(|id| needs_fresh(id) && may_judge(id, device))
            } else {
                None
            };
            let may_take = |id: BatchId| !needs_fresh(id) && may_judge(id, device);
            let next = judged.or_else(|| self.waiting.pop(self.record.is_sound(device), may_take));
            if let Some(id) = next {
                return Some((worker, device, id));
            }
        }
        // With nothing else to do, a worker that is not fresh tries it: it succeeds, or its successor is fresh.
        for &(_, worker, device) in &candidates {
            if let Some(id) = self.waiting.pop_suspect(|id| may_judge(id, device)) {
                return Some((worker, device, id));
            }
        }
        let &(_, worker, device) = candidates.first()?;
        if self.workers.values().any(|w| !w.holds.is_empty()) {
            return None;
        }
        let id = self.waiting.pop_alone(now)?;
        self.alone = Some(id);
        Some((worker, device, id))
    }

    /// A worker finished a batch. `None` when it does not hold that batch: the answer of a worker that was given up.
    pub fn done(&mut self, worker: WorkerId, batch: BatchId, now: Duration) -> Option<Completed> {
        let device = self.take_from(worker, batch, false)?;
        let b = self.batches.remove(&batch)?;
        self.record.succeeded(device);
        if let Some(c) = self.ceilings.get_mut(&device) {
            c.succeeded(b.rows.count);
        }
        let took = now.saturating_sub(b.sent_at);
        Some(Completed { rows: b.rows, device, attempts: b.attempts, took })
    }

    /// A worker has no result for a batch but lives. `None` when it does not hold that batch.
    pub fn fault(
        &mut self,
        worker: WorkerId,
        batch: BatchId,
        fault: RunFault,
        error: String,
        now: Duration,
    ) -> Option<Aftermath> {
        let alone = self.alone == Some(batch);
        let first_of_worker = self.workers.get(&worker).is_some_and(|w| !w.has_run);
        let device = self.take_from(worker, batch, true)?;
        let rows = self.batches.get(&batch)?.rows.count;
        match fault {
            RunFault::Model if rows == 1 => Some(self.fail(batch, FailureKind::Model, error)),
            RunFault::Model => Some(self.split(batch)),
            RunFault::Device => {
                let bisecting = self.is_bisecting(batch, device);
                if let Some(w) = self.workers.get_mut(&worker) {
                    w.broken = true;
                    w.bisecting = bisecting;
                }
                let died = Died { device, alone, first_of_worker, evidence: Evidence::Strong };
                Some(self.judge(batch, died, FailureKind::Crash, error))
            }
            RunFault::OutOfMemory => Some(self.out_of_memory(batch, device, alone, error, now)),
        }
    }

    /// A worker is dead, and nobody writes to its slots any more. What it was running is judged; what it had not begun waits
    /// again, at the front and without a stain.
    pub fn worker_lost(&mut self, worker: WorkerId, exit: &WorkerExit, last_words: &str) -> Lost {
        let Some(gone) = self.workers.remove(&worker) else { return Lost::default() };
        let evidence = exit.evidence();
        let held = gone.holds.iter().copied().collect();
        let mut holds = gone.holds;
        let running = if gone.broken { None } else { holds.pop_front() };
        if evidence == Evidence::Weak && running.is_none() {
            self.weak_deaths += 1;
        }
        let mut lost = Lost { held, aftermath: Vec::new(), bisecting: gone.bisecting };
        // Requeued last to first, so that the oldest ends up at the very front.
        for id in holds.into_iter().rev() {
            if let Some(b) = self.batches.get_mut(&id) {
                b.attempts = b.attempts.saturating_sub(1); // It was sent, but not begun.
            }
            lost.aftermath.push(self.requeue(id));
        }
        if let Some(id) = running {
            lost.bisecting = self.is_bisecting(id, gone.device);
            let alone = self.alone.take_if(|a| *a == id).is_some();
            let kind = if *exit == WorkerExit::Hung { FailureKind::Timeout } else { FailureKind::Crash };
            let words =
                if last_words.is_empty() { String::new() } else { format!("; its last words: {last_words}") };
            let died = Died { device: gone.device, alone, first_of_worker: !gone.has_run, evidence };
            lost.aftermath.push(self.judge(id, died, kind, format!("the worker {exit}{words}")));
        }
        lost
    }

    /// A worker that never became ready died from outside: evidence that somebody kills at random.
    pub fn weak_death_elsewhere(&mut self) {
        self.weak_deaths += 1;
    }

    /// The largest batch that `device` takes now, in rows.
    #[must_use]
    pub fn ceiling(&self, device: DeviceId) -> usize {
        self.ceilings.get(&device).map_or(self.max_rows, Ceiling::rows)
    }

    fn is_bisecting(&self, id: BatchId, device: DeviceId) -> bool {
        self.record.is_sound(device) && self.batches.get(&id).is_some_and(|b| b.suspicion.is_suspect())
    }

    fn judge(&mut self, id: BatchId, died: Died, kind: FailureKind, error: String) -> Aftermath {
        let Some(b) = self.batches.get_mut(&id) else { return Aftermath::Requeued(id) };
        if died.evidence == Evidence::Strong {
            self.record.died(died.device, b.origin);
        }
        let verdict = b.suspicion.died(DeathOf {
            rows: b.rows.count,
            evidence: died.evidence,
            device: died.device,
            alone: died.alone,
            first_of_worker: died.first_of_worker,
            weak_elsewhere: self.weak_deaths,
            device_trusted: self.record.trusts(died.device, b.origin),
        });
        if died.evidence == Evidence::Weak && !died.alone {
            self.weak_deaths += 1; // For every other batch this death happened elsewhere.
        }
        match verdict {
            Verdict::Retry => self.requeue(id),
            Verdict::Split => self.split(id),
            Verdict::RunAlone => self.requeue_alone(id, Duration::ZERO),
            Verdict::Fail => self.fail(id, kind, error),
        }
    }

    fn out_of_memory(
        &mut self,
        id: BatchId,
        device: DeviceId,
        alone: bool,
        error: String,
        now: Duration,
    ) -> Aftermath {
        let Some(b) = self.batches.get_mut(&id) else { return Aftermath::Requeued(id) };
        if let Some(c) = self.ceilings.get_mut(&device) {
            c.out_of_memory(b.rows.count);
        }
        if b.rows.count > 1 {
            return self.split(id);
        }
        // Only tries with the stage's workers to itself speak against the row.
        b.out_of_memory += u32::from(alone);
        if b.out_of_memory >= OUT_OF_MEMORY_ALONE {
            return self.fail(id, FailureKind::OutOfMemory, error);
        }
        let due = now + OUT_OF_MEMORY_PAUSE * 2u32.pow(b.out_of_memory);
        self.requeue_alone(id, due)
    }

    fn take_from(&mut self, worker: WorkerId, batch: BatchId, failed: bool) -> Option<DeviceId> {
        let w = self.workers.get_mut(&worker)?;
        let at = w.holds.iter().position(|b| *b == batch)?;
        w.holds.remove(at);
        w.failed_last = failed;
        w.has_run = true;
        self.alone.take_if(|a| *a == batch);
        Some(w.device)
    }

    fn requeue(&mut self, id: BatchId) -> Aftermath {
        let Some((id, is_suspect)) = self.renumber(id) else { return Aftermath::Requeued(id) };
        self.wait_again(id, is_suspect);
        Aftermath::Requeued(id)
    }

    fn requeue_alone(&mut self, id: BatchId, due: Duration) -> Aftermath {
        let Some((id, _)) = self.renumber(id) else { return Aftermath::Requeued(id) };
        self.waiting.push_alone(id, due);
        Aftermath::Requeued(id)
    }

    fn wait_again(&mut self, id: BatchId, is_suspect: bool) {
        if is_suspect { self.waiting.push_suspect(id) } else { self.waiting.push_front(id) }
    }

    /// Gives a batch a new id, so that a late or doubled answer to the old one finds nothing.
    fn renumber(&mut self, id: BatchId) -> Option<(BatchId, bool)> {
        let batch = self.batches.remove(&id)?;
        let is_suspect = batch.suspicion.is_suspect();
        Some((self.insert(batch), is_suspect))
    }

    fn fail(&mut self, id: BatchId, kind: FailureKind, error: String) -> Aftermath {
        match self.batches.remove(&id) {
            Some(b) => Aftermath::Failed(FailedRow { rows: b.rows, kind, error, attempts: b.attempts }),
            None => Aftermath::Requeued(id),
        }
    }

    /// Replaces a batch by its halves.
    fn split(&mut self, id: BatchId) -> Aftermath {
        let Some(b) = self.batches.remove(&id) else { return Aftermath::Split(id) };
        let is_suspect = b.suspicion.is_suspect();
        let mid = b.rows.count / 2;
        let mut halves = [b.part(0, mid), b.part(mid, b.rows.count - mid)];
        if !is_suspect {
            halves.reverse(); // The first one is put in front last.
        }
        for half in halves {
            let id = self.insert(half);
            self.wait_again(id, is_suspect);
        }
        Aftermath::Split(id)
    }

    /// Cuts what exceeds `ceiling` rows off the batch and puts it at the front of those that wait.
    fn cut_to(&mut self, id: BatchId, ceiling: usize) {
        let Some(b) = self.batches.get_mut(&id) else { return };
        if b.rows.count <= ceiling {
            return;
        }
        let rest = b.part(ceiling, b.rows.count - ceiling);
        b.rows.count = ceiling;
        b.reason = LeaveReason::Split;
        let is_suspect = rest.suspicion.is_suspect();
        let rest = self.insert(rest);
        self.wait_again(rest, is_suspect);
    }

    fn insert(&mut self, batch: Batch) -> BatchId {
        let id = self.next_id();
        self.batches.insert(id, batch);
        id
    }

    fn next_id(&mut self) -> BatchId {
        let id = BatchId(self.next_batch);
        self.next_batch += 1;
        id
    }
}

/// How the worker of a batch died.
#[derive(Debug, Clone, Copy)]
struct Died {
    device: DeviceId,
    alone: bool,
    first_of_worker: bool,
    evidence: Evidence,
}

impl Batch {
    fn part(&self, first: usize, count: usize) -> Self {
        Self {
            rows: Rows { slot: self.rows.slot, first: self.rows.first + first, count },
            reason: LeaveReason::Split,
            suspicion: self.suspicion.inherited(),
            out_of_memory: 0,
            ..self.clone()
        }
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
