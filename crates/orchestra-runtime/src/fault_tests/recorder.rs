//! Records what a run tells its tracer, and checks that it is the whole truth, told once. It knows no scenario.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use orchestra_core::BatchId;

use super::account::Outcome;
use crate::trace::{
    BatchEnd, BatchNumber, BatchTrace, DeviceStep, DeviceTrace, DoneRows, EndedItems, FollowUp, ItemTrace,
    RunBegan, RunTracer, Tracer, WorkerStep, WorkerTrace,
};

/// What one run told. Its clones are the same.
#[derive(Debug, Clone, Default)]
pub struct TelemetryRecorder(Arc<Notes>);

#[derive(Debug, Default)]
struct Notes {
    numbers: AtomicU64,
    batches: Mutex<Vec<Arc<BatchTrace>>>,
    items: Mutex<Vec<ItemTrace>>,
    workers: Mutex<Vec<WorkerTrace>>,
    devices: Mutex<Vec<DeviceTrace>>,
}

impl Tracer for TelemetryRecorder {
    fn begin(&self, _: RunBegan) -> Arc<dyn RunTracer> {
        Arc::clone(&self.0) as Arc<dyn RunTracer>
    }
}

impl RunTracer for Notes {
    fn number_batch(&self) -> BatchNumber {
        BatchNumber { number: self.numbers.fetch_add(1, Ordering::Relaxed), context: None }
    }

    fn batch_ended(&self, batch: Arc<BatchTrace>) {
        self.batches.lock().unwrap().push(batch);
    }

    fn items_ended(&self, ended: &[EndedItems]) {
        let items = ended.iter().flat_map(EndedItems::items).map(|item| item.trace());
        self.items.lock().unwrap().extend(items);
    }

    fn worker(&self, step: WorkerTrace) {
        self.workers.lock().unwrap().push(step);
    }

    fn device(&self, step: DeviceTrace) {
        self.devices.lock().unwrap().push(step);
    }
}

impl TelemetryRecorder {
    /// The batches, in the order in which they ended.
    pub fn batches(&self) -> Vec<Arc<BatchTrace>> {
        self.0.batches.lock().unwrap().clone()
    }

    /// Items that have ended, in that order.
    pub fn items(&self) -> Vec<ItemTrace> {
        self.0.items.lock().unwrap().clone()
    }

    /// What was told of devices, in order.
    pub fn devices(&self) -> Vec<DeviceStep> {
        self.0.devices.lock().unwrap().iter().map(|told| told.step.clone()).collect()
    }

    /// The batch that the log calls so.
    pub fn batch(&self, id: BatchId) -> Option<Arc<BatchTrace>> {
        self.batches().into_iter().find(|b| b.batch == id)
    }
}

/// Everything that was sent and started is told of once, in order, and agrees with what became of the items.
pub fn is_exact(outcome: &Outcome) {
    let Some(told) = &outcome.told else { return };
    let batches = told.batches();
    let mut numbers: Vec<u64> = batches.iter().map(|b| b.number.number).collect();
    numbers.sort_unstable();
    let sent = told.0.numbers.load(Ordering::Relaxed);
    outcome.check(numbers.into_iter().eq(0..sent), "every batch that was sent is told of once");
    for batch in &batches {
        let BatchTrace { opened, filled, sent, ended, ran, .. } = **batch;
        let mut times = vec![opened, filled, sent];
        times.extend(ran.begun.into_iter().chain(ran.answered));
        times.push(ended);
        outcome.check(times.is_sorted(), &format!("times go forward in {batch:?}"));
        let is_answered = matches!(batch.end, BatchEnd::Done | BatchEnd::Fault { .. });
        outcome.check(is_answered == ran.answered.is_some(), "what has an answer is told when it came");
        if let BatchEnd::Fault { then: FollowUp::Failed(_), .. }
        | BatchEnd::WorkerLost { then: FollowUp::Failed(_), .. } = &batch.end
        {
            outcome.check(batch.items == 1, "only one item at a time is failed");
        }
    }
    items_agree(outcome, &batches);
    workers_agree(outcome, &told.0.workers.lock().unwrap());
}

fn items_agree(outcome: &Outcome, batches: &[Arc<BatchTrace>]) {
    let mut in_batch: BTreeMap<u64, usize> = BTreeMap::new();
    for (ticket, steps) in &outcome.account.tickets {
        let ends: Vec<_> = steps.batches.iter().map(|b| &b.end).collect();
        let is_done = outcome.account.done.contains(&ticket.id().index);
        let n_done = ends.iter().filter(|e| ***e == BatchEnd::Done).count();
        let last_is_done = ends.last() == Some(&&BatchEnd::Done);
        outcome.check(!is_done || (n_done == 1 && last_is_done), &format!("{ends:?} of a done item"));
        // A batch is only sent again when the one before has ended.
        let apart = steps.batches.windows(2).all(|pair| pair[0].ended <= pair[1].sent);
        outcome.check(apart, "attempts come one after the other");
        let queued = steps.queued.first().map(|(_, at)| *at);
        let first = steps.batches.first().map(|b| b.sent);
        outcome.check(first.is_none() || queued <= first, "a row is there before its batch is sent");
        for batch in &steps.batches {
            *in_batch.entry(batch.number.number).or_default() += 1;
        }
    }
    let all_ended = outcome.account.tickets.len() as u64 == outcome.stage.items;
    for batch in batches.iter().filter(|_| all_ended) {
        let items = in_batch.get(&batch.number.number).copied().unwrap_or(0);
        outcome.check(items == batch.items, &format!("{items} items know of {batch:?}"));
    }
}

fn workers_agree(outcome: &Outcome, steps: &[WorkerTrace]) {
    let count = |is: fn(&WorkerStep) -> bool| steps.iter().filter(|s| is(&s.step)).count() as u64;
    outcome.check(count(|s| matches!(s, WorkerStep::Started { .. })) == outcome.starts, "starts are told");
    outcome.check(count(|s| matches!(s, WorkerStep::Ended { .. })) == outcome.starts, "ends are told");
    let lasting = outcome.lives.iter().filter(|l| l.loaded.is_some()).count() as u64;
    outcome
        .check(count(|s| matches!(s, WorkerStep::Loaded)) <= lasting, "only loaded workers are told to be");
}

/// Whether these items are told of with a ticket each.
pub fn are_ids_of(rows: &DoneRows, ids: &[orchestra_core::ItemId]) -> bool {
    rows.tickets().map(|t| t.id()).eq(ids.iter().copied())
}
