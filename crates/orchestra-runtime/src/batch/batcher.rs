//! Batcher of a batch stage: gives batches to workers and owns every one of them until it is done or failed. When the open batch
//! leaves is decided in `orchestra_core::batching`; what follows from faults and deaths, in `orchestra_core::ledger`. This actor
//! carries the decisions out; it never touches pixels, and waits for nothing.

mod answers;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::batching::{BatchPolicy, Decision};
use orchestra_core::ledger::{Assignment, FailedRow, Ledger, Rows};
use orchestra_core::{DeviceId, Failure, SlotId, StageId, WorkerId};
use orchestra_worker::frames::{BatchRun, RowsWithoutOutputs};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::batch::batches_in_flight::BatchesInFlight;
use crate::batch::completion::Completion;
use crate::batch::open_outputs::OpenRoom;
use crate::batch::output_slots::OutputSlots;
use crate::batch::row_values::RowValues;
use crate::batch::slot_pool::{FilledSlot, SlotEvent, SlotPool};
use crate::context::RunContext;
use crate::fleet::worker::{WorkerOrder, WorkerOrders};
use crate::messages::{BatcherMsg, CompletedBatch};

pub struct Batcher;

pub struct BatcherArgs {
    pub context: Arc<RunContext>,
    pub stage: StageId,
    pub completion: Arc<dyn Completion>,
}

pub struct BatcherState {
    args: BatcherArgs,
    name: String,
    pipeline_name: String,
    policy: BatchPolicy,
    /// How many values of each row go with its batch.
    values: usize,
    ledger: Ledger,
    pool: Option<Arc<SlotPool>>,
    slots: HashMap<SlotId, SlotInUse>,
    workers: HashMap<WorkerId, (WorkerOrders, Arc<OutputSlots>)>,
    in_flight: BatchesInFlight,
    look_at: Option<Duration>,
    drained: bool,
    told_end: bool,
    open_room: OpenRoom,
    /// To be processed once its worker has been given something else to do.
    completed: Option<CompletedBatch>,
}

/// A filled slot, and how many of its rows have no end yet.
struct SlotInUse {
    slot: Arc<FilledSlot>,
    rows_left: usize,
}

impl Actor for Batcher {
    type Msg = BatcherMsg;
    type State = BatcherState;
    type Arguments = BatcherArgs;

    async fn pre_start(
        &self,
        me: ActorRef<BatcherMsg>,
        args: BatcherArgs,
    ) -> Result<BatcherState, ActorProcessingErr> {
        BatcherState::new(args, me)
    }

    async fn handle(
        &self,
        me: ActorRef<BatcherMsg>,
        message: BatcherMsg,
        state: &mut BatcherState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            BatcherMsg::Attach(pool) => state.pool = Some(pool),
            BatcherMsg::PoolChanged => {}
            // Another look may have been asked for since, sooner or later than this one.
            BatcherMsg::Look => state.look_at = state.look_at.filter(|at| *at > state.now()),
            BatcherMsg::Drained => state.drained = true,
            BatcherMsg::WorkerReady { worker, device, orders, outputs } => {
                state.workers.insert(worker, (orders, outputs));
                state.ledger.worker_ready(worker, device);
                state.args.completion.serving();
            }
            BatcherMsg::Done { worker, batch, dynamic, without, ran } => {
                state.done(worker, batch, (dynamic, without), ran);
            }
            BatcherMsg::Fault { worker, batch, kind, error, ran } => {
                state.fault(worker, batch, kind, error, ran);
            }
            BatcherMsg::DrainWorker(worker, handover) => {
                state.ledger.drain_worker(worker, handover);
                state.end_if_drained(worker);
            }
            BatcherMsg::WorkerLost(mut notice) => {
                notice.end.bisecting = state.worker_lost(&notice.end, &notice.begun);
            }
            BatcherMsg::WorkerUndying(why) => state.args.completion.no_device(why),
            BatcherMsg::DeviceGone { device, why } => state.device_gone(device, &why),
        }
        state.pump(&me);
        if let Some(batch) = state.completed.take() {
            state.args.completion.completed(batch);
        }
        state.look_for_the_end();
        Ok(())
    }
}

impl BatcherState {
    fn new(args: BatcherArgs, me: ActorRef<BatcherMsg>) -> Result<Self, ActorProcessingErr> {
        let plan = &args.context.plan;
        let stage = &plan.stages[args.stage.index()];
        let batch = stage.batch().ok_or("a batcher was started for a stage that does not run in workers")?;
        let policy =
            BatchPolicy { max_batch: batch.max_batch, enough: batch.first_batch(), wait: batch.wait };
        let ledger = Ledger::new(batch.max_batch).with_first_batch(batch.first_batch());
        let mut ledger = ledger.with_streams(batch.streams).with_ready(batch.ready);
        batch.workers.iter().filter(|w| w.count > 0).for_each(|w| ledger.expect_device(w.device));
        Ok(Self {
            name: stage.name.clone(),
            pipeline_name: plan.pipelines[stage.pipeline.index()].name.clone(),
            policy,
            values: batch.values.len(),
            ledger,
            pool: None,
            slots: HashMap::new(),
            workers: HashMap::new(),
            in_flight: BatchesInFlight::new(&args.context, args.stage),
            look_at: None,
            drained: false,
            told_end: false,
            // A batcher that is gone sends nothing.
            open_room: OpenRoom::new(batch.answer_bytes, move || drop(me.cast(BatcherMsg::PoolChanged))),
            completed: None,
            args,
        })
    }

    fn now(&self) -> Duration {
        self.args.context.clock.now()
    }

    fn filled(&mut self, slot: FilledSlot) {
        let rows = Rows { slot: slot.slot, first: 0, count: slot.tokens.len() };
        if slot.n_tokens(rows) == 0 {
            return; // Only holes: nothing to run, and dropping it frees the slot.
        }
        self.ledger.add(rows, slot.reason);
        self.slots.insert(slot.slot, SlotInUse { slot: Arc::new(slot), rows_left: rows.count });
    }

    /// Sends what can be sent, and closes the open batch if it is time.
    fn pump(&mut self, me: &ActorRef<BatcherMsg>) {
        let now = self.now();
        self.take_and_send(now);
        while self.watch_and_look(now) {
            self.take_and_send(now);
        }
        while let Some(row) = self.ledger.next_confirmed() {
            self.fail_row(row);
        }
        while let Some(worker) = self.ledger.next_to_replace() {
            let (pipeline, stage) = (&self.pipeline_name, &self.name);
            tracing::info!(%pipeline, %stage, %worker, "a suspect needs a worker that has run nothing: one is replaced");
            self.end_if_drained(worker);
        }
        let open_due = self.look_at_open_batch(now);
        // Only the first of the two is asked for: it leads back here.
        if let Some(due) = [self.ledger.next_due(now), open_due].into_iter().flatten().min() {
            self.look_again(me, due, now);
        }
    }

    /// Says when nothing more will come: after the last batch was handed on, because whatever follows hears of it.
    fn look_for_the_end(&mut self) {
        let quiet = self.pool.as_ref().is_none_or(|p| p.is_quiet());
        if self.drained && !self.told_end && quiet && self.ledger.n_batches() == 0 {
            self.told_end = true;
            self.must_hold_nothing();
            self.args.completion.drained();
        }
    }

    fn take_and_send(&mut self, now: Duration) {
        while let Some(slot) = self.pool.as_ref().and_then(SlotPool::next_filled) {
            self.filled(slot);
        }
        while self.open_room.is_there()
            && let Some(assignment) = self.ledger.dispatch(now)
        {
            match self.is_withdrawn(assignment.rows) {
                true => self.withdraw(&assignment),
                false => self.send(assignment),
            }
        }
    }

    /// Nobody waits for any of these rows: their requests were withdrawn.
    fn is_withdrawn(&self, rows: Rows) -> bool {
        let Some(in_use) = self.slots.get(&rows.slot) else { return false };
        let tokens = in_use.slot.tokens.get(rows.first..rows.first + rows.count).unwrap_or_default();
        tokens.iter().flatten().all(|token| token.ticket.is_withdrawn())
    }

    fn withdraw(&mut self, a: &Assignment) {
        self.ledger.withdraw(a.worker, a.batch);
        let (rows, without) = (a.rows, RowsWithoutOutputs::default());
        if let Some(slot) = self.rows_ended(rows) {
            let (dynamic, open) = (Vec::new(), self.open_room.take(0));
            let batch = CompletedBatch { outputs: None, slot, rows, dynamic, open, without, trace: None };
            self.args.completion.completed(batch);
        }
    }

    /// Says to the pool what there is a use for, and whether that is a filled slot and one was filled just before.
    fn watch_and_look(&self, now: Duration) -> bool {
        let Some(pool) = &self.pool else { return false };
        let watch = if self.drained || self.ledger.idle_workers(now) > 0 {
            SlotEvent::Openings
        } else if self.ledger.has_room() {
            SlotEvent::Filled
        } else {
            SlotEvent::Nothing
        };
        pool.watch(watch);
        watch != SlotEvent::Nothing && pool.has_filled()
    }

    /// Every batch has its end. A slot that is still held here would never come back.
    fn must_hold_nothing(&self) {
        let (slots, sent) = (self.slots.len(), self.in_flight.by_batch.len());
        if slots > 0 || sent > 0 {
            self.args.context.stats.slots_lost.add(slots.max(sent) as u64);
            tracing::error!(
                pipeline = %self.pipeline_name, stage = %self.name, slots, sent,
                "every batch has its end, but slots are held; this is a bug"
            );
        }
    }

    /// Closes the open batch if it is time, or says when to look again.
    fn look_at_open_batch(&mut self, now: Duration) -> Option<Duration> {
        let pool = self.pool.as_ref()?;
        let idle = self.ledger.idle_workers(now);
        match self.policy.decide(pool.open_batch(), idle, self.drained, now) {
            Decision::Leave(reason) => pool.close(reason),
            Decision::Keep => {}
            Decision::LookAgainAt(at) => return Some(at),
        }
        None
    }

    fn look_again(&mut self, me: &ActorRef<BatcherMsg>, at: Duration, now: Duration) {
        if self.look_at.is_none_or(|l| at < l) {
            self.look_at = Some(at);
            me.send_after(at.saturating_sub(now), || BatcherMsg::Look);
        }
    }

    /// Rows that hold an item: all but the holes.
    fn n_tokens(&self, rows: Rows) -> u64 {
        self.slots.get(&rows.slot).map_or(0, |in_use| in_use.slot.n_tokens(rows) as u64)
    }

    fn count_sent(&self, a: &Assignment) {
        let (stats, items) = (&self.args.context.stats, self.n_tokens(a.rows));
        let stage = stats.stage(self.args.stage);
        stage.reason(a.reason).add(1);
        if let Some(sizes) = &stage.batch_size {
            sizes.add(items);
        }
        if !a.first_time {
            stats.retries.add(1);
            return;
        }
        stage.entered.add(items);
        if let (Some(times), Some(in_use)) = (&stage.queue_time, self.slots.get(&a.rows.slot)) {
            let waited = self.now().saturating_sub(in_use.slot.opened);
            times.add_time(waited);
        }
    }

    /// Publishes how large a batch of this stage a device takes now.
    fn note_ceiling(&self, device: DeviceId) {
        if let Some(on) = self.args.context.stats.stage(self.args.stage).on(device) {
            on.ceiling.set(self.ledger.ceiling(device) as u64);
        }
    }

    fn send(&mut self, a: Assignment) {
        self.count_sent(&a);
        let from = self.slots.get(&a.rows.slot).map(|s| &*s.slot);
        let worker = self.workers.get(&a.worker).cloned();
        let outputs = worker.as_ref().map(|(_, outputs)| outputs.take(a.rows));
        let output_slot = outputs.as_ref().map(|outputs| outputs.slot);
        let trace_id = self.in_flight.begin(a, from, outputs);
        tracing::debug!(
            pipeline = %self.pipeline_name, stage = %self.name, batch = %a.batch, rows = a.rows.count,
            reason = %a.reason, attempt = a.attempt, device = %self.device_name(a.device), worker = %a.worker,
            trace_id, "batch sent"
        );
        if let (Some((orders, _)), Some(output_slot)) = (worker, output_slot) {
            let run = BatchRun {
                batch: a.batch,
                attempt: a.attempt,
                slot: a.rows.slot,
                output_slot,
                first_row: a.rows.first,
                rows: a.rows.count,
            };
            let from = self.slots.get(&a.rows.slot).filter(|_| self.values > 0);
            let values =
                from.map(|of| RowValues { slot: Arc::clone(&of.slot), rows: a.rows, count: self.values });
            orders.give(WorkerOrder::Run(run, values));
        }
    }

    fn device_name(&self, device: DeviceId) -> &orchestra_core::DeviceSpec {
        &self.args.context.plan.devices[device.index()].spec
    }

    /// The most rows that a device takes, as long as the run is traced.
    fn traced_ceiling(&self, device: Option<DeviceId>) -> Option<usize> {
        device.filter(|_| self.in_flight.tracer.is_on()).map(|device| self.ledger.ceiling(device))
    }

    fn fail_row(&mut self, row: FailedRow) {
        let Some(slot) = self.rows_ended(row.rows) else { return };
        let Some(token) = slot.tokens.get(row.rows.first).and_then(Option::as_ref) else { return };
        let stats = self.args.context.stats.stage(self.args.stage);
        stats.failed.add(1);
        stats.first_items.fail(token.ticket.id());
        let failure =
            Failure { stage: self.name.clone(), kind: row.kind, error: row.error, attempts: row.attempts };
        self.args.completion.failed(token, failure);
    }

    /// These rows have an end. The slot is freed when the last reference to it is dropped.
    fn rows_ended(&mut self, rows: Rows) -> Option<Arc<FilledSlot>> {
        let in_use = self.slots.get_mut(&rows.slot)?;
        in_use.rows_left = in_use.rows_left.saturating_sub(rows.count);
        let slot = Arc::clone(&in_use.slot);
        if in_use.rows_left == 0 {
            self.slots.remove(&rows.slot);
        }
        Some(slot)
    }

    fn end_if_drained(&mut self, worker: WorkerId) {
        if self.ledger.is_draining(worker)
            && self.ledger.holds_nothing(worker)
            && let Some((orders, _)) = self.workers.get(&worker)
        {
            orders.give(WorkerOrder::Retire);
        }
    }

    fn device_gone(&mut self, device: DeviceId, why: &str) {
        self.ledger.device_gone(device);
        // A stage that has done everything needs no device.
        if !self.ledger.has_devices() && !self.told_end {
            let why = format!("no device is left for stage `{}`: {why}", self.name);
            self.args.completion.no_device(why);
        }
    }
}
