//! The truth about the batches of one batch stage: which rows wait, which worker holds which, on which attempt.
//!
//! Every row that is added ends exactly once: in `Completed` or in `FailedRow`. Workers, frames and memory are named by id only; the
//! batcher actor carries the returned effects out. Nothing here reads a clock.

mod dispatch;
mod no_result;
mod worker;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

pub use crate::batch_events::{
    Assignment, Completed, FailedBatchOutcome, FailedRow, LostBatches, Rows, RunErrorKind,
};
use crate::batch_queue::BatchQueue;
use crate::batching::LeaveReason;
use crate::blame::{BatchDeath, Suspicion};
use crate::ceiling::Ceiling;
use crate::device_history::DeviceHistory;
use crate::failure::FailureKind;
use crate::ids::{BatchId, DeviceId, WorkerId};
use crate::worker_exit::{Evidence, WorkerExit};
use crate::worker_places::Handover;

use worker::Worker;

#[derive(Debug, Clone)]
struct Batch {
    rows: Rows,
    /// How often a worker has begun it.
    attempts: u32,
    /// How often it was sent, begun or not.
    sent: u32,
    reason: LeaveReason,
    suspicion: Suspicion,
    /// Its failure, should it be confirmed.
    if_confirmed: Option<(FailureKind, String)>,
    out_of_memory: u32,
}

#[derive(Debug, Default)]
pub struct Ledger {
    max_batch: usize,
    /// Rows of a batch until larger ones are known to be quick.
    first_batch: usize,
    streams: usize,
    /// Batches that wait at a worker beyond those.
    ready: usize,
    waiting: BatchQueue,
    /// The batch that runs while nothing else may.
    alone: Option<BatchId>,
    batches: HashMap<BatchId, Batch>,
    workers: BTreeMap<WorkerId, Worker>,
    ceilings: BTreeMap<DeviceId, Ceiling>,
    history: DeviceHistory,
    next_batch: u64,
    weak_deaths: u64,
    /// Rows that are confirmed and that `Ledger::next_confirmed` has not given yet.
    confirmed: VecDeque<FailedRow>,
    /// A worker that is to be replaced by a fresh one for an isolated run.
    to_replace: Option<WorkerId>,
    /// The last such worker, until it ends.
    replacing: Option<WorkerId>,
    /// Since when a suspect waits for a fresh worker.
    fresh_worker_wanted_since: Option<Duration>,
    /// See [`FailedBatchOutcome::Stop`].
    is_stopped: bool,
}

impl Ledger {
    /// An empty ledger for batches of up to `max_batch` rows, and workers that run one at a time while one more waits there.
    pub fn new(max_batch: usize) -> Self {
        Self { max_batch, first_batch: max_batch, streams: 1, ready: 1, ..Self::default() }
    }

    /// The same for batches of `first` rows, which grow up to `max_batch` while they are quick. [`Ledger::took`] says that.
    pub fn with_first_batch(self, first: usize) -> Self {
        Self { first_batch: first, ..self }
    }

    /// The same for workers that run up to `streams` batches at once, at least 1: they begin them in the order in which they were sent, and
    /// answer in any order.
    pub fn with_streams(self, streams: usize) -> Self {
        Self { streams: streams.max(1), ..self }
    }

    /// The same for workers at which `ready` batches wait beyond those that they run, at least 1, so that no device waits for a frame.
    pub fn with_ready(self, ready: usize) -> Self {
        Self { ready: ready.max(1), ..self }
    }

    /// The stage has workers on `device`, or will have. As long as it is not given up, it may be asked about an item that died elsewhere.
    pub fn expect_device(&mut self, device: DeviceId) {
        self.history.expect(device);
    }

    /// `device` was given up: no worker comes from there any more.
    pub fn device_gone(&mut self, device: DeviceId) {
        self.history.gone(device);
    }

    /// Some device is not given up.
    pub fn has_devices(&self) -> bool {
        self.history.left().next().is_some()
    }

    /// Takes responsibility for filled rows.
    pub fn add(&mut self, rows: Rows, reason: LeaveReason) {
        let id = self.insert(Batch {
            rows,
            attempts: 0,
            sent: 0,
            reason,
            suspicion: Suspicion::default(),
            if_confirmed: None,
            out_of_memory: 0,
        });
        self.waiting.push_fresh(id);
    }

    pub fn worker_ready(&mut self, worker: WorkerId, device: DeviceId) {
        self.ceilings.entry(device).or_insert_with(|| Ceiling::growing(self.first_batch, self.max_batch));
        self.history.worker_came(device);
        self.workers.insert(worker, Worker::on(device));
    }

    /// A worker gets nothing new, because its successor is there or comes when it is gone. What it holds it may finish. Returns whether it
    /// holds nothing already.
    pub fn drain_worker(&mut self, worker: WorkerId, handover: Handover) -> bool {
        if let Some(w) = self.workers.get_mut(&worker) {
            w.draining = true;
            w.has_successor |= handover == Handover::SuccessorFirst;
        }
        self.holds_nothing(worker)
    }

    pub fn is_draining(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|w| w.draining)
    }

    pub fn n_batches(&self) -> usize {
        self.batches.len()
    }

    /// Whether `worker` holds nothing (or is not known).
    pub fn holds_nothing(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_none_or(|w| w.holds.is_empty())
    }

    /// A worker finished a batch. `None` when it does not hold that batch: the answer of a worker that was given up.
    pub fn done(&mut self, worker: WorkerId, batch: BatchId) -> Option<Completed> {
        let device = self.take_from(worker, batch, false)?;
        let b = self.batches.remove(&batch)?;
        self.succeeded(device, b.rows.count);
        Some(Completed { rows: b.rows, device })
    }

    /// How long a device took for a batch that is done, whose answer had so many bytes in frames.
    pub fn took(&mut self, device: DeviceId, rows: usize, time: Duration, bytes: usize) {
        if let Some(c) = self.ceilings.get_mut(&device) {
            c.took(rows, time, bytes);
        }
    }

    /// A batch that was just dispatched is not sent, because nobody waits for its rows any more. It says nothing about its worker.
    pub fn withdraw(&mut self, worker: WorkerId, batch: BatchId) {
        if let Some(w) = self.workers.get_mut(&worker) {
            w.holds.retain(|held| *held != batch);
            w.isolated.take_if(|isolated| *isolated == batch);
        }
        self.alone.take_if(|alone| *alone == batch);
        self.batches.remove(&batch);
    }

    fn succeeded(&mut self, device: DeviceId, rows: usize) {
        self.history.succeeded(device);
        // So it was not the device that killed what died there.
        self.confirm(|suspicion, history| suspicion.is_confirmed_by_success_on(device, history));
        if let Some(c) = self.ceilings.get_mut(&device) {
            c.succeeded(rows);
        }
    }

    /// A worker has no result for a batch but lives. `None` when it does not hold that batch.
    pub fn fault(
        &mut self,
        worker: WorkerId,
        batch: BatchId,
        fault: RunErrorKind,
        error: String,
        now: Duration,
    ) -> Option<FailedBatchOutcome> {
        let alone = self.alone == Some(batch);
        let first_of_worker = self.workers.get(&worker).is_some_and(|w| !w.has_run);
        let is_of_the_model = matches!(fault, RunErrorKind::Shape | RunErrorKind::Mixed);
        let device = self.take_from(worker, batch, !is_of_the_model)?;
        let b = self.batches.remove(&batch)?;
        self.ceilings.get_mut(&device).into_iter().for_each(Ceiling::failed);
        let rows = b.rows.count;
        // Memory for fewer rows than these is nothing unusual; the device's ceiling learns of it.
        if fault == RunErrorKind::Model || (fault == RunErrorKind::OutOfMemory && rows == 1) {
            self.history.refused(device, now);
        }
        Some(match fault {
            RunErrorKind::Model if rows == 1 => self.refused(b, device, error),
            RunErrorKind::Model => self.split(batch, b),
            RunErrorKind::Device => {
                let bisecting = self.is_bisecting(&b, device);
                let beside = self.streams - 1;
                let w = self.workers.get_mut(&worker)?;
                if !w.broken {
                    self.history.died(device);
                }
                let shared = w.breaks(bisecting, beside);
                let (evidence, weak_elsewhere) = (Evidence::Strong, self.weak_deaths);
                let died =
                    BatchDeath { rows, evidence, device, alone, first_of_worker, shared, weak_elsewhere };
                self.after_death(batch, b, died, FailureKind::Crash, error)
            }
            RunErrorKind::TooLarge if rows == 1 => {
                FailedBatchOutcome::Failed(b.failed(FailureKind::TooLarge, error))
            }
            RunErrorKind::OutOfMemory | RunErrorKind::TooLarge => {
                self.out_of_memory(batch, b, device, alone, error, now)
            }
            RunErrorKind::Row(row) => self.rejected(batch, b, row, error),
            RunErrorKind::Mixed => self.stop(b, fault, error),
            RunErrorKind::Shape if rows == 1 => self.stop(b, fault, error),
            RunErrorKind::Shape => self.split_into_rows(batch, &b),
        })
    }

    /// A worker is dead, so its slots have no writer any more. What it was running is suspect, or too large where the worker died of a
    /// lack of memory; what it had not begun waits again, at the front and no suspect.
    pub fn worker_lost(
        &mut self,
        worker: WorkerId,
        exit: &WorkerExit,
        last_words: &str,
        now: Duration,
    ) -> LostBatches {
        let Some(gone) = self.workers.remove(&worker) else {
            // One that never became ready: something kills at random.
            self.weak_deaths += u64::from(exit.evidence() == Evidence::Weak);
            return LostBatches::default();
        };
        self.replacing.take_if(|w| *w == worker);
        if !gone.has_successor {
            self.history.worker_went(gone.device);
        }
        let begun: Vec<BatchId> = gone.begun(self.streams).collect();
        if !begun.is_empty() {
            self.ceilings.get_mut(&gone.device).into_iter().for_each(Ceiling::failed);
        }
        let alone = self.alone.take_if(|a| begun.contains(a)).is_some();
        let bisecting = gone.bisecting || {
            let mut ran = begun.iter().filter_map(|id| self.batches.get(id));
            ran.any(|b| self.is_bisecting(b, gone.device))
        };
        let died = BatchDeath {
            rows: 0, // `after_death` knows it of each batch.
            device: gone.device,
            alone,
            first_of_worker: !gone.has_run,
            shared: gone.broken || begun.len() > 1,
            // A worker that has reported a broken device died of that, whatever ended its process.
            evidence: if gone.broken { Evidence::Strong } else { exit.evidence() },
            weak_elsewhere: self.weak_deaths,
        };
        let no_memory = !gone.broken && exit.was_refused_memory(last_words);
        // A broken device was counted when it was reported.
        if died.evidence == Evidence::Strong && !gone.broken && !no_memory && !begun.is_empty() {
            self.history.died(gone.device);
        }
        let error = death_in_words(exit, last_words);
        let kind = if *exit == WorkerExit::Hung { FailureKind::Timeout } else { FailureKind::Crash };
        let mut outcomes = Vec::with_capacity(gone.holds.len());
        // Requeued last to first, so that the oldest ends up at the very front.
        for id in gone.holds.iter().rev() {
            let Some(mut b) = self.batches.remove(id) else { continue };
            outcomes.push(if no_memory && begun.contains(id) {
                if b.rows.count == 1 {
                    self.history.refused(gone.device, now);
                }
                self.out_of_memory(*id, b, gone.device, alone, error.clone(), now)
            } else if begun.contains(id) {
                self.after_death(*id, b, died, kind, error.clone())
            } else {
                b.attempts = b.attempts.saturating_sub(1); // It was sent, but not begun.
                self.requeue(b)
            });
        }
        if exit.evidence() == Evidence::Weak && !alone {
            self.weak_deaths += 1; // For every other batch this death happened elsewhere.
        }
        // Smaller batches follow, or a pause: no worker is to blame.
        LostBatches {
            held: gone.holds.into(),
            outcomes,
            bisecting: bisecting || (no_memory && !begun.is_empty()),
        }
    }

    pub fn ceiling(&self, device: DeviceId) -> usize {
        self.ceilings.get(&device).map_or(self.max_batch, Ceiling::rows)
    }

    /// The next row that is to blame: a confirmed suspect, or named by the code. Ask after [`Ledger::dispatch`] has given `None`.
    pub fn next_confirmed(&mut self) -> Option<FailedRow> {
        self.confirmed.pop_front()
    }

    /// The next worker that is to be replaced although nothing is wrong with it: it gets nothing new, and is to be ended once it holds
    /// nothing. A suspect needs a fresh one. Ask after [`Ledger::dispatch`] has given `None`.
    pub fn next_to_replace(&mut self) -> Option<WorkerId> {
        self.to_replace.take()
    }

    fn is_bisecting(&self, b: &Batch, device: DeviceId) -> bool {
        self.history.is_proven(device) && self.history.is_sound(device) && b.suspicion.is_suspect()
    }

    /// Fails the suspects for which this holds.
    fn confirm(&mut self, is_confirmed: impl Fn(&Suspicion, &DeviceHistory) -> bool) {
        let is_to_blame = |id: &BatchId| {
            let b = self.batches.get(id);
            b.is_some_and(|b| is_confirmed(&b.suspicion, &self.history))
        };
        let to_blame: Vec<BatchId> = self.waiting.doubtful().filter(is_to_blame).collect();
        for id in to_blame {
            self.waiting.remove(id);
            let Some(mut b) = self.batches.remove(&id) else { continue };
            let failure = b.if_confirmed.take();
            let (kind, error) = failure.unwrap_or_else(|| (FailureKind::Crash, "its worker died".to_owned()));
            self.confirmed.push_back(b.failed(kind, error));
        }
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

    fn requeue(&mut self, batch: Batch) -> FailedBatchOutcome {
        FailedBatchOutcome::Requeued(self.wait_again(batch))
    }

    fn requeue_alone(&mut self, batch: Batch, due: Duration) -> FailedBatchOutcome {
        let id = self.insert(batch);
        self.waiting.push_alone(id, due);
        FailedBatchOutcome::Requeued(id)
    }

    /// Under a new id, so that a late or doubled answer to the old one finds nothing.
    fn wait_again(&mut self, batch: Batch) -> BatchId {
        let is_suspect = batch.suspicion.is_suspect();
        let id = self.insert(batch);
        if is_suspect {
            self.waiting.push_suspect(id)
        } else {
            self.waiting.push_front(id)
        }
        id
    }

    fn insert(&mut self, batch: Batch) -> BatchId {
        let id = BatchId(self.next_batch);
        self.next_batch += 1;
        self.batches.insert(id, batch);
        id
    }
}

impl Batch {
    fn part(&self, rows: Rows) -> Self {
        Self {
            rows,
            reason: LeaveReason::Split,
            suspicion: self.suspicion.inherited(),
            if_confirmed: None,
            out_of_memory: 0,
            ..self.clone()
        }
    }

    fn failed(self, kind: FailureKind, error: String) -> FailedRow {
        FailedRow { rows: self.rows, kind, error, attempts: self.attempts }
    }
}

fn death_in_words(exit: &WorkerExit, last_words: &str) -> String {
    let words = if last_words.is_empty() { String::new() } else { format!("; its last words: {last_words}") };
    format!("the worker {exit}{words}")
}

#[cfg(test)]
mod suspect_tests;
#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
