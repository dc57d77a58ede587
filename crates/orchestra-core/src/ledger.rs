//! The truth about the batches of one infer stage: which rows wait, which worker holds which, on which attempt.
//!
//! Every row that is added ends exactly once: in `Completed` or in `Failed`. Workers, frames and memory are named by id only; the
//! batcher actor carries the returned effects out. Nothing here reads a clock.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use crate::batching::LeaveReason;
use crate::blame::{Suspicion, Verdict};
use crate::ceiling::Ceiling;
use crate::failure::FailureKind;
use crate::ids::{BatchId, DeviceId, SlotId, WorkerId};
use crate::worker_exit::{Evidence, WorkerExit};

/// Times that memory may run out for a single row before it is failed.
const OUT_OF_MEMORY_ALONE: u32 = 3;
/// Batches that a worker holds at once: one runs, one is ready, so the device never waits for a frame.
pub const IN_FLIGHT_PER_WORKER: usize = 2;

/// Consecutive rows of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Where.
    pub slot: SlotId,
    /// First row.
    pub first: usize,
    /// How many, at least 1.
    pub count: usize,
}

/// A batch on its way to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// Which worker.
    pub worker: WorkerId,
    /// On which device it is.
    pub device: DeviceId,
    /// Which batch.
    pub batch: BatchId,
    /// Its rows.
    pub rows: Rows,
    /// How often these rows have been sent, from 1.
    pub attempt: u32,
    /// Why it leaves.
    pub reason: LeaveReason,
}

/// The end of a batch that went well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completed {
    /// Its rows.
    pub rows: Rows,
    /// Where it ran.
    pub device: DeviceId,
    /// How often these rows were sent.
    pub attempts: u32,
    /// From its last dispatch to now.
    pub took: Duration,
}

/// The end of a row that has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRow {
    /// Where it lies: always one row.
    pub rows: Rows,
    /// Why.
    pub kind: FailureKind,
    /// The worker's or the runtime's words.
    pub error: String,
    /// How often it was sent.
    pub attempts: u32,
}

/// What a worker said about a batch that has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunFault {
    /// Memory ran out.
    OutOfMemory,
    /// The model refused it.
    Model,
    /// The device is broken; the worker will exit.
    Device,
}

/// What happened to a batch that gave no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aftermath {
    /// It waits again, whole, under this new id.
    Requeued(BatchId),
    /// The halves of this batch wait.
    Split(BatchId),
    /// Its one row is failed.
    Failed(FailedRow),
}

/// What followed from the death of a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lost {
    /// What it held, oldest first.
    pub held: Vec<BatchId>,
    /// What became of each batch it held.
    pub aftermath: Vec<Aftermath>,
    /// A larger batch around the one that ran had died before: the death was to be expected.
    pub bisecting: bool,
}

#[derive(Debug, Clone)]
struct Batch {
    rows: Rows,
    attempts: u32,
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
    waiting: VecDeque<BatchId>,
    batches: HashMap<BatchId, Batch>,
    workers: BTreeMap<WorkerId, Worker>,
    ceilings: BTreeMap<DeviceId, Ceiling>,
    next_batch: u64,
    weak_deaths: u64,
}

impl Ledger {
    /// An empty ledger for batches of up to `max_rows` rows.
    #[must_use]
    pub fn new(max_rows: usize) -> Self {
        Self {
            max_rows,
            waiting: VecDeque::new(),
            batches: HashMap::new(),
            workers: BTreeMap::new(),
            ceilings: BTreeMap::new(),
            next_batch: 0,
            weak_deaths: 0,
        }
    }

    /// Takes responsibility for filled rows.
    pub fn add(&mut self, rows: Rows, reason: LeaveReason) {
        let id = self.insert(Batch {
            rows,
            attempts: 0,
            reason,
            suspicion: Suspicion::default(),
            out_of_memory: 0,
            sent_at: Duration::ZERO,
        });
        self.waiting.push_back(id);
    }

    /// A worker can take batches now.
    pub fn worker_ready(&mut self, worker: WorkerId, device: DeviceId) {
        self.ceilings.entry(device).or_insert_with(|| Ceiling::new(self.max_rows));
        self.workers.insert(
            worker,
            Worker { device, holds: VecDeque::new(), draining: false, failed_last: false, broken: false },
        );
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

    /// Batches that the workers would take now, beyond those that wait already.
    #[must_use]
    pub fn free_places(&self) -> usize {
        let places: usize = self
            .workers
            .values()
            .filter(|w| w.takes_more())
            .map(|w| IN_FLIGHT_PER_WORKER.saturating_sub(w.holds.len()))
            .sum();
        places.saturating_sub(self.waiting.len())
    }

    /// Workers that hold nothing, beyond those that the waiting batches will keep busy.
    #[must_use]
    pub fn idle_workers(&self) -> usize {
        let idle = self.workers.values().filter(|w| w.takes_more() && w.holds.is_empty()).count();
        idle.saturating_sub(self.waiting.len())
    }

    /// Workers that are there.
    #[must_use]
    pub fn n_workers(&self) -> usize {
        self.workers.len()
    }

    /// Batches that wait for a worker.
    #[must_use]
    pub fn n_waiting(&self) -> usize {
        self.waiting.len()
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

    /// Sends the oldest waiting batch to the best worker, if there is both.
    ///
    /// The best is one that holds least; among equals one whose last batch went well, so a device that fails fast does not
    /// attract the work of healthy ones. What exceeds the device's ceiling is cut, and the rest goes on waiting at the front.
    pub fn dispatch(&mut self, now: Duration) -> Option<Assignment> {
        let (&worker, _) = self
            .workers
            .iter()
            .filter(|(_, w)| w.takes_more() && w.holds.len() < IN_FLIGHT_PER_WORKER)
            .min_by_key(|(id, w)| (w.holds.len() + usize::from(w.failed_last), **id))?;
        let id = self.waiting.pop_front()?;
        let device = self.workers.get(&worker)?.device;
        let ceiling = self.ceilings.get(&device).map_or(self.max_rows, Ceiling::rows);
        self.cut_to(id, ceiling);
        let batch = self.batches.get_mut(&id)?;
        batch.attempts += 1;
        batch.sent_at = now;
        let assignment = Assignment {
            worker,
            device,
            batch: id,
            rows: batch.rows,
            attempt: batch.attempts,
            reason: batch.reason,
        };
        self.workers.get_mut(&worker)?.holds.push_back(id);
        Some(assignment)
    }

    /// A worker finished a batch. `None` when it does not hold that batch: the answer of a worker that was given up.
    pub fn done(&mut self, worker: WorkerId, batch: BatchId, now: Duration) -> Option<Completed> {
        let device = self.take_from(worker, batch, false)?;
        let b = self.batches.remove(&batch)?;
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
    ) -> Option<Aftermath> {
        let device = self.take_from(worker, batch, true)?;
        let rows = self.batches.get(&batch)?.rows.count;
        match fault {
            RunFault::Model if rows == 1 => Some(self.fail(batch, FailureKind::Model, error)),
            RunFault::Model => Some(self.split(batch)),
            RunFault::Device => {
                if let Some(w) = self.workers.get_mut(&worker) {
                    w.broken = true;
                }
                Some(self.judge(batch, Evidence::Strong, FailureKind::Crash, error))
            }
            RunFault::OutOfMemory => {
                if let Some(c) = self.ceilings.get_mut(&device) {
                    c.out_of_memory(rows);
                }
                if rows > 1 {
                    return Some(self.split(batch));
                }
                let b = self.batches.get_mut(&batch)?;
                b.out_of_memory += 1;
                if b.out_of_memory >= OUT_OF_MEMORY_ALONE {
                    Some(self.fail(batch, FailureKind::OutOfMemory, error))
                } else {
                    Some(self.requeue(batch))
                }
            }
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
        let mut aftermath = Vec::new();
        // Requeued last to first, so that the oldest ends up at the very front.
        for id in holds.into_iter().rev() {
            if let Some(b) = self.batches.get_mut(&id) {
                b.attempts -= 1;
            }
            aftermath.push(self.requeue(id));
        }
        let bisecting =
            running.and_then(|id| self.batches.get(&id)).is_some_and(|b| b.suspicion.is_bisecting());
        if let Some(id) = running {
            let kind = if *exit == WorkerExit::Hung { FailureKind::Timeout } else { FailureKind::Crash };
            let words =
                if last_words.is_empty() { String::new() } else { format!("; its last words: {last_words}") };
            aftermath.push(self.judge(id, evidence, kind, format!("the worker {exit}{words}")));
        }
        Lost { held, aftermath, bisecting }
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

    fn judge(&mut self, id: BatchId, evidence: Evidence, kind: FailureKind, error: String) -> Aftermath {
        let weak_elsewhere = self.weak_deaths;
        let Some(b) = self.batches.get_mut(&id) else { return Aftermath::Requeued(id) };
        let verdict = b.suspicion.died(b.rows.count, evidence, weak_elsewhere);
        if evidence == Evidence::Weak {
            // For every other batch this death happened elsewhere; this one's own count must not see it.
            self.weak_deaths += 1;
            if let Some(b) = self.batches.get_mut(&id) {
                b.suspicion.own_weak_death();
            }
        }
        match verdict {
            Verdict::Retry => self.requeue(id),
            Verdict::Split => self.split(id),
            Verdict::Fail => self.fail(id, kind, error),
        }
    }

    fn take_from(&mut self, worker: WorkerId, batch: BatchId, failed: bool) -> Option<DeviceId> {
        let w = self.workers.get_mut(&worker)?;
        let at = w.holds.iter().position(|b| *b == batch)?;
        w.holds.remove(at);
        w.failed_last = failed;
        Some(w.device)
    }

    fn requeue(&mut self, id: BatchId) -> Aftermath {
        let Some(mut b) = self.batches.remove(&id) else { return Aftermath::Requeued(id) };
        if b.attempts > 0 {
            b.reason = LeaveReason::Retry;
        }
        // A new id, so that a late or doubled answer to the old one finds nothing.
        let id = self.insert(b);
        self.waiting.push_front(id);
        Aftermath::Requeued(id)
    }

    fn fail(&mut self, id: BatchId, kind: FailureKind, error: String) -> Aftermath {
        match self.batches.remove(&id) {
            Some(b) => Aftermath::Failed(FailedRow { rows: b.rows, kind, error, attempts: b.attempts }),
            None => Aftermath::Requeued(id),
        }
    }

    /// Replaces a batch by its halves, at the front.
    fn split(&mut self, id: BatchId) -> Aftermath {
        if let Some(b) = self.batches.remove(&id) {
            let mid = b.rows.count / 2;
            for (first, count) in [(mid, b.rows.count - mid), (0, mid)] {
                if count > 0 {
                    let half = self.insert(b.part(first, count, LeaveReason::Split));
                    self.waiting.push_front(half);
                }
            }
        }
        Aftermath::Split(id)
    }

    /// Cuts what exceeds `ceiling` rows off the batch and puts it at the front of those that wait.
    fn cut_to(&mut self, id: BatchId, ceiling: usize) {
        let Some(b) = self.batches.get_mut(&id) else { return };
        if b.rows.count <= ceiling {
            return;
        }
        let rest = b.part(ceiling, b.rows.count - ceiling, LeaveReason::Split);
        b.rows.count = ceiling;
        b.reason = LeaveReason::Split;
        let rest = self.insert(rest);
        self.waiting.push_front(rest);
    }

    fn insert(&mut self, batch: Batch) -> BatchId {
        let id = BatchId(self.next_batch);
        self.next_batch += 1;
        self.batches.insert(id, batch);
        id
    }
}

impl Batch {
    fn part(&self, first: usize, count: usize, reason: LeaveReason) -> Self {
        Self {
            rows: Rows { slot: self.rows.slot, first: self.rows.first + first, count },
            attempts: self.attempts,
            reason,
            suspicion: self.suspicion.inherited(),
            out_of_memory: 0,
            sent_at: Duration::ZERO,
        }
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
