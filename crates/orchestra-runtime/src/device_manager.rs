//! Device manager: owns the worker places of one device, and starts, replaces and parks them. It never touches pixels, batches or
//! process I/O.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use orchestra_core::restart::{Death, Restart, RestartBudget};
use orchestra_core::{DeviceId, StageId, WorkerExit, WorkerId};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};

use crate::context::RunContext;
use crate::messages::{BatcherMsg, DeviceMsg, LinkMsg, RootMsg, ServeStage};
use crate::worker_link::{LinkArgs, WorkerLink};

/// See the module.
pub struct DeviceManager;

/// What a manager is started with.
pub struct DeviceArgs {
    /// The run.
    pub context: Arc<RunContext>,
    /// Which device.
    pub device: DeviceId,
    /// Who started it.
    pub root: ActorRef<RootMsg>,
}

/// State of a manager.
pub struct DeviceState {
    args: DeviceArgs,
    places: Vec<Place>,
    workers: HashMap<WorkerId, Worker>,
    budgets: HashMap<StageId, RestartBudget>,
    shutting_down: bool,
    random: RandomState,
}

/// Room for one worker of one stage. It holds one worker, none while a pause lasts, or two while one replaces the other.
struct Place {
    stage: StageId,
    /// What its worker needs; `None` once the stage is over or the place is given up, so that its memory can go.
    serve: Option<Arc<ServeStage>>,
    started: bool,
}

struct Worker {
    place: usize,
    link: ActorRef<LinkMsg>,
    role: Role,
    /// Somebody owns the process and will report its death.
    owned: Arc<AtomicBool>,
    /// Its link has ended, and its process with it; the batcher still has to say what that means.
    gone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The one that serves the place.
    Serving,
    /// Loading, to take the place of this worker.
    Successor(WorkerId),
    /// Its successor is there (or being loaded); its end is no loss.
    Leaving,
}

impl Actor for DeviceManager {
    type Msg = DeviceMsg;
    type State = DeviceState;
    type Arguments = DeviceArgs;

    async fn pre_start(
        &self,
        _: ActorRef<DeviceMsg>,
        args: DeviceArgs,
    ) -> Result<DeviceState, ActorProcessingErr> {
        Ok(DeviceState {
            args,
            places: Vec::new(),
            workers: HashMap::new(),
            budgets: HashMap::new(),
            shutting_down: false,
            random: RandomState::new(),
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
            DeviceMsg::StartWorker(place) => state.start_worker(&me, place, Role::Serving).await,
            DeviceMsg::WorkerReady(worker) => state.worker_ready(worker),
            DeviceMsg::WorkerProgressed(worker) => state.worker_progressed(worker),
            DeviceMsg::RecycleWorker(worker) => state.recycle(&me, worker).await,
            DeviceMsg::WorkerEnded { worker, exit, last_words, progressed, bisecting } => {
                state.worker_ended(&me, worker, &exit, &last_words, progressed, bisecting).await;
            }
            DeviceMsg::Retire(stage) => state.retire(stage),
            DeviceMsg::Shutdown { now } => state.shut_down(now),
        }
        state.end_if_empty(&me);
        Ok(())
    }

    /// A link that ends has told the batcher, which tells us; but a batcher that was stopped just then drops what it is told. A link
    /// that fails is a bug of ours. The owner of its process kills the process and tells the batcher, which tells us; where there is no
    /// process yet, there is nobody else to tell.
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
        state.end_if_empty(&me);
        Ok(())
    }
}

impl DeviceState {
    async fn serve(&mut self, me: &ActorRef<DeviceMsg>, serve: Arc<ServeStage>) {
        if self.shutting_down {
            return;
        }
        self.budgets.insert(serve.stage, RestartBudget::new(self.args.context.options.restart));
        for _ in 0..serve.workers {
            self.places.push(Place { stage: serve.stage, serve: Some(Arc::clone(&serve)), started: false });
            self.start_worker(me, self.places.len() - 1, Role::Serving).await;
        }
    }

    async fn start_worker(&mut self, me: &ActorRef<DeviceMsg>, place: usize, role: Role) {
        let p = &mut self.places[place];
        let Some(serve) = p.serve.clone().filter(|_| !self.shutting_down) else { return };
        let context = &self.args.context;
        let worker = context.new_worker_id();
        let stats = context.stats.device(self.args.device);
        stats.starts.add(1);
        if p.started && role == Role::Serving {
            stats.restarts.add(1);
        }
        p.started = true;
        let owned = Arc::new(AtomicBool::new(false));
        let args = LinkArgs {
            owned: Arc::clone(&owned),
            context: Arc::clone(context),
            worker,
            device: self.args.device,
            serve,
            manager: me.clone(),
        };
        match Actor::spawn_linked(None, WorkerLink, args, me.get_cell()).await {
            Ok((link, _)) => {
                drop(self.workers.insert(worker, Worker { place, link, role, owned, gone: false }))
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

    /// Workers that are gone, and that nobody will be told about: nothing depends any more on how they ended.
    fn forget_the_gone(&mut self) {
        let (places, shutting_down) = (&self.places, self.shutting_down);
        self.workers.retain(|_, w| !(w.gone && (shutting_down || places[w.place].serve.is_none())));
    }

    fn end_if_empty(&self, me: &ActorRef<DeviceMsg>) {
        if self.shutting_down && self.workers.is_empty() {
            drop(self.args.root.cast(RootMsg::DeviceEnded(self.args.device)));
            me.stop(None);
        }
    }

    async fn link_failed(&mut self, me: &ActorRef<DeviceMsg>, link: ractor::ActorId, error: String) {
        let orphan =
            self.workers.iter().find(|(_, w)| w.link.get_id() == link && !w.owned.load(Ordering::Acquire));
        if let Some((&worker, _)) = orphan {
            let exit = WorkerExit::SpawnFailed(error);
            self.worker_ended(me, worker, &exit, "", false, false).await;
        } else {
            self.link_ended(link);
        }
    }

    fn worker_ready(&mut self, worker: WorkerId) {
        let Some(Worker { role: Role::Successor(old), place, .. }) = self.workers.get(&worker) else {
            return;
        };
        let (old, place) = (*old, *place);
        if let Some(w) = self.workers.get_mut(&worker) {
            w.role = Role::Serving;
        }
        if let Some(serve) = &self.places[place].serve {
            drop(serve.batcher.cast(BatcherMsg::DrainWorker(old)));
        }
    }

    fn worker_progressed(&mut self, worker: WorkerId) {
        if let Some(w) = self.workers.get(&worker)
            && let Some(b) = self.budgets.get_mut(&self.places[w.place].stage)
        {
            b.progressed();
        }
    }

    /// The successor is loaded first, so that the device does not stand still.
    async fn recycle(&mut self, me: &ActorRef<DeviceMsg>, worker: WorkerId) {
        let Some(w) = self.workers.get_mut(&worker).filter(|w| w.role == Role::Serving) else { return };
        w.role = Role::Leaving;
        let place = w.place;
        tracing::info!(%worker, "worker is being recycled");
        self.start_worker(me, place, Role::Successor(worker)).await;
    }

    async fn worker_ended(
        &mut self,
        me: &ActorRef<DeviceMsg>,
        worker: WorkerId,
        exit: &WorkerExit,
        last_words: &str,
        progressed: bool,
        bisecting: bool,
    ) {
        let Some(gone) = self.workers.remove(&worker) else { return };
        let place = gone.place;
        let stage = self.places[place].stage;
        let over = self.shutting_down || self.places[place].serve.is_none();
        if over || gone.role == Role::Leaving {
            return;
        }
        if let Role::Successor(old) = gone.role
            && let Some(w) = self.workers.get_mut(&old)
        {
            // Try again at the next bound: the old one still serves.
            w.role = Role::Serving;
            return;
        }
        let jitter = self.random.hash_one(worker.0) as f64 / u64::MAX as f64;
        let death = Death { exit, progressed, bisecting, jitter };
        let now = self.args.context.clock.now();
        let Some(budget) = self.budgets.get_mut(&stage) else { return };
        match budget.died(&death, now) {
            Restart::After(Duration::ZERO) => self.start_worker(me, place, Role::Serving).await,
            Restart::After(pause) => drop(me.send_after(pause, move || DeviceMsg::StartWorker(place))),
            Restart::Park => self.park(place, exit, last_words),
        }
    }

    fn park(&mut self, place: usize, exit: &WorkerExit, last_words: &str) {
        let device = &self.args.context.plan.devices[self.args.device.index()].spec;
        let Some(serve) = self.places[place].serve.take() else { return };
        let words =
            if last_words.is_empty() { String::new() } else { format!("; its last words: {last_words}") };
        let why = format!("the worker {exit}{words}");
        let left = self.places.iter().filter(|p| p.stage == serve.stage && p.serve.is_some()).count();
        tracing::warn!(
            pipeline = %serve.pipeline, stage = %serve.name, %device, left, why = %why, "worker place parked"
        );
        if left == 0 {
            drop(serve.batcher.cast(BatcherMsg::DeviceGone { device: self.args.device, why }));
        }
    }

    fn retire(&mut self, stage: StageId) {
        for w in self.workers.values().filter(|w| self.places[w.place].stage == stage) {
            drop(w.link.cast(LinkMsg::Shutdown));
        }
        for place in self.places.iter_mut().filter(|p| p.stage == stage) {
            place.serve = None;
        }
        self.forget_the_gone();
    }

    fn shut_down(&mut self, now: bool) {
        self.shutting_down = true;
        for w in self.workers.values() {
            drop(w.link.cast(if now { LinkMsg::Kill } else { LinkMsg::Shutdown }));
        }
        self.forget_the_gone();
    }
}
