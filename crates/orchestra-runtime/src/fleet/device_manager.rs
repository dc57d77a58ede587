//! Device manager: owns the workers of one device, and starts, replaces and parks them as their places decide
//! (`orchestra_core::worker_places`). It never touches pixels, batches or process I/O.

mod deaths;
mod loads;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use orchestra_core::load_order::LoadOrder;
use orchestra_core::worker_places::{Handover, Order, Predecessor, Role, WorkerPlaces};
use orchestra_core::{DeviceId, StageId, WorkerExit, WorkerId};
use ractor::concurrency::JoinHandle;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};

use crate::account::stats::DeviceStats;
use crate::context::RunContext;
use crate::events::WorkerEvent;
use crate::fleet::link_start::LinkArgs;
use crate::fleet::worker_link::WorkerLink;
use crate::messages::{BatcherMsg, DeviceMsg, LinkMsg, ServeStage};
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
    posts: Vec<Post>,
    workers: HashMap<WorkerId, Worker>,
    shutting_down: bool,
    /// Stages that are to be served once it is told to begin; `None` since then.
    held: Option<Vec<Arc<ServeStage>>>,
    /// In which order its workers load, where it is not declared of all what they take.
    load_order: Option<LoadOrder>,
}

/// A stage that is served here. A stage that is built anew gets another one.
struct Post {
    stage: StageId,
    /// What its workers need; `None` once the stage is over or all of its places are given up, so that its memory can go.
    serve: Option<Arc<ServeStage>>,
    worker_places: WorkerPlaces,
}

struct Worker {
    /// By its place in the table.
    post: usize,
    link: ActorRef<LinkMsg>,
    args: Arc<LinkArgs>,
    /// Its link has ended, and its process with it; the batcher still has to say what that means.
    gone: bool,
    ready_since: Option<Duration>,
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
        args.context.watch.when_lost(args.device, move |why| drop(me.cast(DeviceMsg::Lost(why))));
        let load_order = loads::load_order(&args.context, args.device);
        let held = args.is_held.then(Vec::new);
        Ok(DeviceState {
            args,
            posts: Vec::new(),
            workers: HashMap::new(),
            shutting_down: false,
            held,
            load_order,
        })
    }

    async fn handle(
        &self,
        me: ActorRef<DeviceMsg>,
        message: DeviceMsg,
        state: &mut DeviceState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            DeviceMsg::Serve(serve) => state.serve(&me, serve).await,
            DeviceMsg::Begin => {
                for serve in state.held.take().unwrap_or_default() {
                    state.serve(&me, serve).await;
                }
            }
            DeviceMsg::StartWorker { post, place } => state.start_place(&me, post, place).await,
            DeviceMsg::GoOn => {} // What follows below.
            DeviceMsg::Looked { number, free } => state.looked(number, free),
            DeviceMsg::WorkerReady { worker, is_warm } => state.worker_ready(&me, worker, is_warm).await,
            DeviceMsg::WorkerProgressed(worker) => state.worker_progressed(worker),
            DeviceMsg::RecycleWorker(worker) => state.recycle(&me, worker).await,
            DeviceMsg::WorkerEnded(end) => state.worker_ended(&me, &end).await,
            // Nothing takes its place: its stage ends.
            DeviceMsg::WorkerUndying(worker) => drop(state.workers.remove(&worker)),
            DeviceMsg::Retire(stage) => state.retire(stage),
            DeviceMsg::Lost(why) => state.lost(&why),
            DeviceMsg::Shutdown { now } => state.shut_down(now),
        }
        state.go_on(&me).await;
        Ok(())
    }

    /// A link that ends has told the batcher, which tells us; but a batcher that was stopped just then drops what it is told. A link
    /// that fails is a bug of ours. The owner of its process kills the process and tells the batcher, which tells us; where there is no
    /// process yet, there is no other actor to tell.
    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<DeviceMsg>,
        event: SupervisionEvent,
        state: &mut DeviceState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(who, ..) => state.link_ended(who.get_id()),
            SupervisionEvent::ActorFailed(who, error) => {
                tracing::error!(%error, "the link of a worker failed; this is a bug");
                state.link_failed(&me, who.get_id(), error.to_string()).await;
            }
            _ => {}
        }
        state.go_on(&me).await;
        Ok(())
    }
}

impl DeviceState {
    fn stats(&self) -> &DeviceStats {
        self.args.context.stats.device(self.args.device)
    }

    async fn serve(&mut self, me: &ActorRef<DeviceMsg>, serve: Arc<ServeStage>) {
        if self.shutting_down {
            return;
        }
        if let Some(held) = &mut self.held {
            held.push(serve);
            return;
        }
        let worker_places = WorkerPlaces::new(serve.workers, self.args.context.options.restart);
        let stage = serve.stage;
        self.posts.push(Post { stage, serve: Some(serve), worker_places });
        match &mut self.load_order {
            // It starts them when it is their turn.
            Some(order) => order.served(stage),
            None => self.begin(me, stage).await,
        }
    }

    /// Starts the first workers of a stage, and all that were asked for where nothing is measured.
    async fn begin(&mut self, me: &ActorRef<DeviceMsg>, stage: StageId) {
        let Some(post) = self.open_post(stage) else { return };
        let orders = self.posts[post].worker_places.start();
        self.carry_out(me, post, orders).await;
        if self.load_order.is_none() {
            let more = loads::asked_for_later(&self.args.context, self.args.device, stage);
            self.grow(me, stage, more).await;
        }
    }

    /// The place of a stage in the table, as long as it is served.
    fn open_post(&self, stage: StageId) -> Option<usize> {
        self.posts.iter().rposition(|p| p.stage == stage && p.serve.is_some())
    }

    async fn start_place(&mut self, me: &ActorRef<DeviceMsg>, post: usize, place: usize) {
        let order = self.posts[post].worker_places.start_place(place);
        self.carry_out(me, post, order).await;
    }

    async fn carry_out(
        &mut self,
        me: &ActorRef<DeviceMsg>,
        post: usize,
        orders: impl IntoIterator<Item = Order>,
    ) {
        for order in orders {
            match order {
                Order::Start { role, instead_of } => self.start_worker(me, post, role, instead_of).await,
                Order::StartLater { place, pause } => {
                    drop(me.send_after(pause, move || DeviceMsg::StartWorker { post, place }));
                }
                Order::Drain(worker, handover) => {
                    if handover == Handover::OldFirst {
                        tracing::info!(
                            %worker, "there is no memory for a successor beside the worker: it ends first"
                        );
                    }
                    self.tell_batcher(post, BatcherMsg::DrainWorker(worker, handover));
                }
                // They come of a death alone, which is logged with its reason: see `worker_ended`.
                Order::Parked { .. } | Order::Withdrawn { .. } => {}
            }
        }
    }

    fn tell_batcher(&self, post: usize, what: BatcherMsg) {
        if let Some(serve) = &self.posts[post].serve {
            drop(serve.batcher.cast(what)); // A batcher that is gone needs no workers.
        }
    }

    async fn start_worker(
        &mut self,
        me: &ActorRef<DeviceMsg>,
        post: usize,
        role: Role,
        instead_of: Option<Predecessor>,
    ) {
        let Some(serve) = self.posts[post].serve.clone().filter(|_| !self.shutting_down) else { return };
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
        let args = LinkArgs {
            owned: AtomicBool::new(false),
            context: Arc::clone(context),
            worker,
            device: self.args.device,
            instead_of: instead_of.map(|old| old.worker),
            serve,
            manager: me.clone(),
        };
        let args = Arc::new(args);
        match Actor::spawn_linked(None, WorkerLink, Arc::clone(&args), me.get_cell()).await {
            Ok((link, _)) => {
                self.workers.insert(worker, Worker { post, link, args, gone: false, ready_since: None });
                self.posts[post].worker_places.joined(worker, role);
            }
            Err(error) => tracing::error!(%error, "a worker link could not be spawned; this is a bug"),
        }
    }

    fn link_ended(&mut self, link: ractor::ActorId) {
        if let Some(w) = self.workers.values_mut().find(|w| w.link.get_id() == link) {
            w.gone = true;
        }
        self.forget_the_gone();
    }

    /// Workers that are gone without a message about it: nothing depends any more on how they ended.
    fn forget_the_gone(&mut self) {
        let (posts, shutting_down) = (&self.posts, self.shutting_down);
        self.workers.retain(|_, w| !(w.gone && (shutting_down || posts[w.post].serve.is_none())));
    }

    /// Whatever has happened, something else may have become possible.
    async fn go_on(&mut self, me: &ActorRef<DeviceMsg>) {
        self.go_on_with_loads(me).await;
        if self.shutting_down && self.workers.is_empty() {
            (self.args.ended)(self.args.device);
            me.stop(None);
        }
    }

    async fn worker_ready(&mut self, me: &ActorRef<DeviceMsg>, worker: WorkerId, is_warm: bool) {
        let Some(w) = self.workers.get_mut(&worker) else { return };
        w.ready_since = Some(self.args.context.clock.now());
        let post = w.post;
        let orders = self.posts[post].worker_places.ready(worker);
        self.carry_out(me, post, orders).await;
        let Post { stage, worker_places, serve } = &self.posts[post];
        if let Some(order) = self.load_order.as_mut().filter(|_| serve.is_some() && worker_places.is_served())
        {
            order.loaded(*stage, is_warm);
        }
    }

    fn worker_progressed(&mut self, worker: WorkerId) {
        if let Some(w) = self.workers.get(&worker) {
            self.posts[w.post].worker_places.progressed();
        }
    }

    async fn recycle(&mut self, me: &ActorRef<DeviceMsg>, worker: WorkerId) {
        let Some(post) = self.workers.get(&worker).map(|w| w.post) else { return };
        let handover = self.handover(self.posts[post].stage);
        let orders = self.posts[post].worker_places.recycle(worker, handover);
        if !orders.is_empty() {
            tracing::info!(%worker, "worker is being recycled");
        }
        self.carry_out(me, post, orders).await;
    }

    /// Tells the tracer what followed from the death of `worker`.
    fn trace(&self, post: usize, worker: WorkerId, step: impl FnOnce() -> WorkerStep) {
        let (device, stage) = (self.args.device, self.posts[post].stage);
        self.args.context.trace_worker(worker, stage, device, step);
    }

    /// The device is gone. Each of its workers dies of that, which gives up its place; so does each that is started from now on.
    fn lost(&self, why: &str) {
        let device = self.args.device;
        self.args.context.tell(|| WorkerEvent::DeviceLost { device, why: why.to_owned() });
        self.trace_device(|| DeviceStep::Lost { why: why.to_owned() });
        for w in self.workers.values() {
            drop(w.link.cast(LinkMsg::Kill(WorkerExit::DeviceLost(why.to_owned()))));
        }
    }

    fn retire(&mut self, stage: StageId) {
        if let Some(held) = &mut self.held {
            held.retain(|serve| serve.stage != stage);
        }
        for w in self.workers.values().filter(|w| self.posts[w.post].stage == stage) {
            drop(w.link.cast(LinkMsg::Shutdown));
        }
        for post in self.posts.iter_mut().filter(|p| p.stage == stage) {
            post.serve = None;
        }
        self.is_complete(stage);
        self.forget_the_gone();
    }

    fn shut_down(&mut self, now: bool) {
        self.shutting_down = true;
        self.held = None;
        for w in self.workers.values() {
            drop(w.link.cast(if now { LinkMsg::Kill(WorkerExit::Clean) } else { LinkMsg::Shutdown }));
        }
        self.forget_the_gone();
    }
}
