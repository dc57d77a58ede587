//! Device manager: owns the workers of one device, and starts, replaces and parks them as their places decide
//! (`orchestra_core::worker_places`). It never touches pixels, batches or process I/O.

mod cores;
mod deaths;
mod loads;
mod replacement;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::core_growth::BusyWindow;
use orchestra_core::load_order::LoadOrder;
use orchestra_core::worker_places::{Handover, PlaceOrder, Predecessor, WorkerPlaces, WorkerRole};
use orchestra_core::{DeviceId, StageId, WorkerExit, WorkerId};
use ractor::concurrency::JoinHandle;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};

use self::replacement::ReplacementUnderWay;
use crate::account::stats::DeviceStats;
use crate::context::RunContext;
use crate::events::WorkerEvent;
use crate::fleet::worker::{self, WorkerArgs, WorkerOrder, WorkerOrders};
use crate::messages::{BatcherMsg, DeviceMsg, ServeStage};
use crate::trace::{DeviceStep, WorkerStep};

pub struct DeviceManager;

pub struct DeviceArgs {
    pub context: Arc<RunContext>,
    pub device: DeviceId,
    /// It starts no worker before it is told to.
    pub is_held: bool,
    /// Called once, when no process is left and the manager stops.
    pub ended: Box<dyn Fn(DeviceId) + Send + Sync>,
}

impl DeviceManager {
    /// Starts a manager for each device of the plan, below `supervisor`. `held` are those that wait for [`DeviceMsg::Begin`]; `ended` is called for
    /// each that stops.
    pub async fn start_all(
        context: &Arc<RunContext>,
        supervisor: &ActorCell,
        held: &BTreeSet<DeviceId>,
        ended: impl Fn(DeviceId) + Clone + Send + Sync + 'static,
    ) -> Result<Vec<(ActorRef<DeviceMsg>, JoinHandle<()>)>, SpawnErr> {
        let mut managers = Vec::new();
        for (device, plan) in (0..).map(DeviceId).zip(&context.plan.devices) {
            let is_held = held.contains(&device);
            let ended = Box::new(ended.clone());
            let args = DeviceArgs { context: Arc::clone(context), device, is_held, ended };
            tracing::info!(device = %plan.spec, "device manager started");
            managers.push(Actor::spawn_linked(None, DeviceManager, args, supervisor.clone()).await?);
        }
        Ok(managers)
    }
}

pub struct DeviceState {
    args: DeviceArgs,
    served: Vec<ServedStage>,
    workers: HashMap<WorkerId, ManagedWorker>,
    shutting_down: bool,
    /// Stages that are to be served once it is told to begin; `None` since then.
    held: Option<Vec<Arc<ServeStage>>>,
    /// In which order its workers load, where it is not declared of all what they take.
    load_order: Option<LoadOrder>,
}

/// A stage that is served here. A stage that is built anew gets another one.
struct ServedStage {
    stage: StageId,
    /// What its workers need; `None` once the stage is over or all of its places are given up, so that its memory can go.
    serve: Option<Arc<ServeStage>>,
    worker_places: WorkerPlaces,
    /// How busy its workers are, where it may get more of them on the cores.
    busy: BusyWindow,
    /// A place was given up, so none is added.
    is_refused: bool,
    replacement: Option<ReplacementUnderWay>,
}

struct ManagedWorker {
    /// By its place in the table.
    at: usize,
    /// What it was started with.
    serve: Arc<ServeStage>,
    orders: WorkerOrders,
    ready_since: Option<Duration>,
}

/// No worker outlives its manager.
impl Drop for ManagedWorker {
    fn drop(&mut self) {
        self.orders.give(WorkerOrder::Kill(WorkerExit::Clean));
    }
}

impl Actor for DeviceManager {
    type Msg = DeviceMsg;
    type State = DeviceState;
    type Arguments = DeviceArgs;

    async fn pre_start(
        &self,
        me: ActorRef<DeviceMsg>,
        args: DeviceArgs,
    ) -> Result<DeviceState, ActorProcessingErr> {
        // A manager that is gone has no workers that could be told.
        let manager = me.clone();
        args.context.watch.when_lost(args.device, move |why| drop(manager.cast(DeviceMsg::Lost(why))));
        let load_order = loads::load_order(&args.context, args.device);
        let held = args.is_held.then(Vec::new);
        let state = DeviceState {
            args,
            served: Vec::new(),
            workers: HashMap::new(),
            shutting_down: false,
            held,
            load_order,
        };
        state.look_at_cores_later(&me);
        Ok(state)
    }

    async fn handle(
        &self,
        me: ActorRef<DeviceMsg>,
        message: DeviceMsg,
        state: &mut DeviceState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            DeviceMsg::Serve(serve) => state.serve(&me, serve),
            DeviceMsg::Replace(replacement) => state.replace(replacement),
            DeviceMsg::Begin => {
                for serve in state.held.take().unwrap_or_default() {
                    state.serve(&me, serve);
                }
            }
            DeviceMsg::StartWorker { at, place } => state.start_place(&me, at, place),
            DeviceMsg::LookAtCores => state.look_at_cores(&me),
            DeviceMsg::GoOn => {} // What follows below.
            DeviceMsg::Looked { number, free } => state.looked(number, free),
            DeviceMsg::WorkerReady { worker, is_warm } => state.worker_ready(&me, worker, is_warm),
            DeviceMsg::WorkerProgressed(worker) => state.worker_progressed(worker),
            DeviceMsg::RecycleWorker(worker) => state.recycle(&me, worker),
            DeviceMsg::WorkerEnded(end) => state.worker_ended(&me, &end),
            // Nothing takes its place: its stage ends.
            DeviceMsg::WorkerUndying(worker) => drop(state.workers.remove(&worker)),
            DeviceMsg::Retire(stage) => state.retire(stage),
            DeviceMsg::Lost(why) => state.lost(&why),
            DeviceMsg::Shutdown { now } => state.shut_down(now),
        }
        state.go_on(&me);
        Ok(())
    }
}

impl DeviceState {
    fn stats(&self) -> &DeviceStats {
        self.args.context.stats.device(self.args.device)
    }

    fn serve(&mut self, me: &ActorRef<DeviceMsg>, serve: Arc<ServeStage>) {
        if self.shutting_down {
            return;
        }
        if let Some(held) = &mut self.held {
            held.push(serve);
            return;
        }
        let worker_places = WorkerPlaces::new(serve.workers, self.args.context.options.restart);
        let stage = serve.stage;
        let busy = BusyWindow::default();
        self.served.push(ServedStage {
            stage,
            serve: Some(serve),
            worker_places,
            busy,
            is_refused: false,
            replacement: None,
        });
        match &mut self.load_order {
            // It starts them when it is their turn.
            Some(order) => order.served(stage),
            None => self.begin(me, stage),
        }
    }

    /// Starts the first workers of a stage, and all that were asked for where nothing is measured.
    fn begin(&mut self, me: &ActorRef<DeviceMsg>, stage: StageId) {
        let Some(at) = self.open_stage(stage) else { return };
        let orders = self.served[at].worker_places.start();
        self.carry_out(me, at, orders);
        if self.load_order.is_none() {
            let more = loads::asked_for_later(&self.args.context, self.args.device, stage);
            self.grow(me, stage, more);
        }
    }

    /// The place of a stage in the table, as long as it is served.
    fn open_stage(&self, stage: StageId) -> Option<usize> {
        self.served.iter().rposition(|p| p.stage == stage && p.serve.is_some())
    }

    fn start_place(&mut self, me: &ActorRef<DeviceMsg>, at: usize, place: usize) {
        let order = self.served[at].worker_places.start_place(place);
        self.carry_out(me, at, order);
    }

    fn carry_out(
        &mut self,
        me: &ActorRef<DeviceMsg>,
        at: usize,
        orders: impl IntoIterator<Item = PlaceOrder>,
    ) {
        for order in orders {
            match order {
                PlaceOrder::Start { role, instead_of } => self.start_worker(me, at, role, instead_of),
                PlaceOrder::StartLater { place, pause } => {
                    drop(me.send_after(pause, move || DeviceMsg::StartWorker { at, place }));
                }
                PlaceOrder::Drain(worker, handover) => {
                    if handover == Handover::OldFirst {
                        tracing::info!(
                            %worker, "there is no memory for a successor beside the worker: it ends first"
                        );
                    }
                    self.tell_batcher(at, BatcherMsg::DrainWorker(worker, handover));
                }
                // They come of a death alone, which is logged with its reason: see `worker_ended`.
                PlaceOrder::Parked { .. } | PlaceOrder::Withdrawn { .. } => {}
            }
        }
    }

    fn tell_batcher(&self, at: usize, what: BatcherMsg) {
        if let Some(serve) = &self.served[at].serve {
            drop(serve.batcher.cast(what)); // A batcher that is gone needs no workers.
        }
    }

    fn start_worker(
        &mut self,
        me: &ActorRef<DeviceMsg>,
        at: usize,
        role: WorkerRole,
        instead_of: Option<Predecessor>,
    ) {
        let Some(serve) = self.served[at].serve.clone().filter(|_| !self.shutting_down) else { return };
        let context = &self.args.context;
        let worker = context.new_worker_id();
        self.stats().starts.add(1);
        let stage = serve.stage;
        if let Some(order) = &mut self.load_order {
            order.moved(Some(stage));
        }
        if instead_of.is_some_and(|old| old.has_died) {
            self.stats().restarts.add(1);
        }
        let orders = worker::start(WorkerArgs {
            context: Arc::clone(context),
            worker,
            device: self.args.device,
            instead_of: instead_of.map(|old| old.worker),
            serve: Arc::clone(&serve),
            manager: me.clone(),
        });
        self.workers.insert(worker, ManagedWorker { at, serve, orders, ready_since: None });
        self.served[at].worker_places.joined(worker, role);
    }

    /// Whatever has happened, something else may have become possible.
    fn go_on(&mut self, me: &ActorRef<DeviceMsg>) {
        self.go_on_with_replacements(me);
        self.go_on_with_loads(me);
        if self.shutting_down && self.workers.is_empty() {
            (self.args.ended)(self.args.device);
            me.stop(None);
        }
    }

    fn worker_ready(&mut self, me: &ActorRef<DeviceMsg>, worker: WorkerId, is_warm: bool) {
        let Some(w) = self.workers.get_mut(&worker) else { return };
        w.ready_since = Some(self.args.context.clock.now());
        let at = w.at;
        let orders = self.served[at].worker_places.ready(worker);
        self.carry_out(me, at, orders);
        let ServedStage { stage, worker_places, serve, .. } = &self.served[at];
        if let Some(order) = self.load_order.as_mut().filter(|_| serve.is_some() && worker_places.is_served())
        {
            order.loaded(*stage, is_warm);
        }
    }

    fn worker_progressed(&mut self, worker: WorkerId) {
        if let Some(w) = self.workers.get(&worker) {
            self.served[w.at].worker_places.progressed();
        }
    }

    fn recycle(&mut self, me: &ActorRef<DeviceMsg>, worker: WorkerId) {
        let Some(at) = self.workers.get(&worker).map(|w| w.at) else { return };
        let handover = self.handover(self.served[at].stage);
        let orders = self.served[at].worker_places.recycle(worker, handover);
        if !orders.is_empty() {
            tracing::info!(%worker, "worker is being recycled");
        }
        self.carry_out(me, at, orders);
    }

    /// Tells the tracer what followed from the death of `worker`.
    fn trace(&self, at: usize, worker: WorkerId, step: impl FnOnce() -> WorkerStep) {
        let (device, stage) = (self.args.device, self.served[at].stage);
        self.args.context.trace_worker(worker, stage, device, step);
    }

    /// The device is gone. Each of its workers dies of that, which gives up its place; so does each that is started from now on.
    fn lost(&self, why: &str) {
        let device = self.args.device;
        self.args.context.tell(|| WorkerEvent::DeviceLost { device, why: why.to_owned() });
        self.trace_device(|| DeviceStep::Lost { why: why.to_owned() });
        for w in self.workers.values() {
            w.orders.give(WorkerOrder::Kill(WorkerExit::DeviceLost(why.to_owned())));
        }
    }

    fn retire(&mut self, stage: StageId) {
        if let Some(held) = &mut self.held {
            held.retain(|serve| serve.stage != stage);
        }
        for w in self.workers.values().filter(|w| self.served[w.at].stage == stage) {
            w.orders.give(WorkerOrder::Retire);
        }
        for served in self.served.iter_mut().filter(|p| p.stage == stage) {
            served.serve = None;
        }
        self.is_complete(stage);
    }

    fn shut_down(&mut self, now: bool) {
        self.shutting_down = true;
        self.held = None;
        for w in self.workers.values() {
            w.orders.give(if now { WorkerOrder::Kill(WorkerExit::Clean) } else { WorkerOrder::Retire });
        }
    }
}
