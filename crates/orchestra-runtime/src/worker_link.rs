//! The link to one worker process: handshake, load, runs, deadlines, end. It holds no batch (the ledger does) and starts no
//! replacement (the device manager does).
//!
//! ```text
//! Starting => (Greeted | gone)      the process runs; it must say hello in time
//! Greeted  => (Ready | gone)        it loads the model; its heart must beat
//! Ready    => (Ending | gone)       it runs batches, each within its deadline
//! Ending   => gone                  it was asked to end, or is being killed
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use orchestra_core::{BatchId, DeviceId, ErrorClass, WorkerExit, WorkerId};
use orchestra_wire::frames::{FromWorker, PROTOCOL_VERSION, Run, RunTiming, ToWorker};
use orchestra_wire::{BUILD, codec};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;

use crate::context::RunContext;
use crate::messages::{BatcherMsg, DeviceMsg, LinkMsg, ServeStage};
use crate::worker_process::{self, ProcessEvent};

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(250);

/// See the module.
pub struct WorkerLink;

/// What a link is started with.
pub struct LinkArgs {
    /// The run.
    pub context: Arc<RunContext>,
    /// Who it is.
    pub worker: WorkerId,
    /// Where it runs.
    pub device: DeviceId,
    /// What it serves.
    pub serve: Arc<ServeStage>,
    /// Who started it.
    pub manager: ActorRef<DeviceMsg>,
    /// Set once somebody owns the process and will report its death, whatever becomes of this actor.
    pub owned: Arc<AtomicBool>,
}

/// State of a link.
pub struct LinkState {
    args: LinkArgs,
    phase: Phase,
    writer: Option<Box<dyn AsyncWrite + Send + Sync + Unpin>>,
    kill: Option<oneshot::Sender<()>>,
    /// Why we killed it; the exit status only says "SIGKILL".
    cause: Option<WorkerExit>,
    /// Batches sent and not answered, in the order in which the worker runs them.
    in_flight: VecDeque<BatchId>,
    head_since: Duration,
    last_sign_of_life: Duration,
    since: Duration,
    batches: u64,
    /// Batches and resident memory from which wear is counted.
    fresh_at: Option<(u64, u64)>,
    last_tick: Duration,
    frame: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Starting,
    Greeted,
    Ready,
    Ending,
}

impl Actor for WorkerLink {
    type Msg = LinkMsg;
    type State = LinkState;
    type Arguments = LinkArgs;

    async fn pre_start(
        &self,
        me: ActorRef<LinkMsg>,
        args: LinkArgs,
    ) -> Result<LinkState, ActorProcessingErr> {
        let now = args.context.clock.now();
        me.cast(LinkMsg::Start)?;
        Ok(LinkState {
            args,
            phase: Phase::Starting,
            writer: None,
            kill: None,
            cause: None,
            in_flight: VecDeque::new(),
            head_since: now,
            last_sign_of_life: now,
            since: now,
            batches: 0,
            fresh_at: None,
            last_tick: now,
            frame: Vec::new(),
        })
    }

    async fn handle(
        &self,
        me: ActorRef<LinkMsg>,
        message: LinkMsg,
        state: &mut LinkState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            LinkMsg::Start => state.start(&me),
            LinkMsg::Frame(frame) => state.frame(&me, frame).await,
            LinkMsg::Garbled(what) => state.end_with(WorkerExit::Garbled(what)),
            LinkMsg::Run(run) => state.run(run).await,
            LinkMsg::Tick => state.check_deadlines(),
            LinkMsg::Shutdown => state.ask_to_end(&me).await,
            LinkMsg::Kill => state.end_with(WorkerExit::Clean),
            LinkMsg::Exited { exit, last_words } => {
                state.gone(exit, last_words);
                me.stop(None);
            }
        }
        Ok(())
    }
}

impl LinkState {
    /// ## Starting
    fn start(&mut self, me: &ActorRef<LinkMsg>) {
        let context = &self.args.context;
        let device = &context.plan.devices[self.args.device.index()].spec;
        let launched = context.options.launcher.launch(&device.kind, self.args.serve.pool.arena().fd());
        let launched = match launched {
            Ok(launched) => launched,
            Err(error) => {
                let exit = WorkerExit::SpawnFailed(error.to_string());
                // Nobody else will report it: there is no process.
                self.gone(exit, String::new());
                me.stop(None);
                return;
            }
        };
        let name = self.args.worker.to_string();
        tracing::info!(
            pipeline = %self.args.serve.pipeline, stage = %self.args.serve.name, device = %device, worker = %name,
            pid = launched.process.pid(), "worker started"
        );
        let (kill, killed) = oneshot::channel();
        self.kill = Some(kill);
        self.writer = Some(launched.writer);
        let report = self.reporter(me);
        self.args.owned.store(true, Ordering::Release);
        tokio::spawn(worker_process::own(
            launched.process,
            launched.reader,
            launched.stderr,
            killed,
            name,
            report,
        ));
        me.send_interval(TICK, || LinkMsg::Tick);
    }

    /// Carries what happens to the process into our mailbox; should this actor be gone, the death still reaches the batcher.
    fn reporter(&self, me: &ActorRef<LinkMsg>) -> impl Fn(ProcessEvent) + Send + use<> {
        let me = me.clone();
        let batcher = self.args.serve.batcher.clone();
        let (worker, manager) = (self.args.worker, self.args.manager.clone());
        move |event| match event {
            // A link that is gone has killed its process: its frames interest nobody.
            ProcessEvent::Frame(frame) => drop(me.cast(LinkMsg::Frame(frame))),
            ProcessEvent::Garbled(what) => drop(me.cast(LinkMsg::Garbled(what))),
            ProcessEvent::Exited { exit, last_words } => {
                let told = me.cast(LinkMsg::Exited { exit: exit.clone(), last_words: last_words.clone() });
                if told.is_err() {
                    let lost = BatcherMsg::WorkerLost {
                        worker,
                        manager: manager.clone(),
                        exit,
                        last_words,
                        progressed: true,
                    };
                    drop(batcher.cast(lost));
                }
            }
        }
    }

    async fn frame(&mut self, me: &ActorRef<LinkMsg>, frame: FromWorker) {
        let now = self.args.context.clock.now();
        self.last_sign_of_life = now;
        if matches!(self.cause, Some(WorkerExit::Garbled(_))) {
            return; // It has lost its way: nothing that it says is believed any more.
        }
        match frame {
            FromWorker::Heartbeat { .. } => {}
            FromWorker::Hello { protocol, build, .. } => self.hello(protocol, &build, now).await,
            FromWorker::Loaded { providers, runtime_version, load_ns, rss_bytes, .. } => {
                self.loaded(me, &providers, &runtime_version, load_ns, rss_bytes);
            }
            FromWorker::LoadFailed { class, error } => {
                let permanent = class == ErrorClass::Permanent;
                self.end_with(WorkerExit::LoadFailed { permanent, why: error });
            }
            FromWorker::Done { batch, dynamic, timing, rss_bytes } => {
                if self.answered(batch, timing, now) {
                    let worker = self.args.worker;
                    drop(self.args.serve.batcher.cast(BatcherMsg::Done { worker, batch, dynamic, timing }));
                    self.done_one(rss_bytes);
                }
            }
            FromWorker::Failed { batch, kind, error, timing } => {
                if self.answered(batch, timing, now) {
                    let worker = self.args.worker;
                    drop(self.args.serve.batcher.cast(BatcherMsg::Fault { worker, batch, kind, error }));
                }
            }
        }
    }

    /// ## Starting => Greeted
    async fn hello(&mut self, protocol: u32, build: &str, now: Duration) {
        if self.phase != Phase::Starting {
            self.end_with(WorkerExit::Garbled("a second hello".to_owned()));
            return;
        }
        if protocol != PROTOCOL_VERSION || build != BUILD {
            let what = format!(
                "it is build {build} with protocol {protocol}, this is build {BUILD} with protocol {PROTOCOL_VERSION}; use the worker executable of the same build"
            );
            self.end_with(WorkerExit::ProtocolMismatch(what));
            return;
        }
        self.phase = Phase::Greeted;
        self.since = now;
        let load = ToWorker::Load(Box::new(self.args.serve.load.clone()));
        self.send(&load).await;
    }

    /// ## Greeted => Ready
    fn loaded(
        &mut self,
        me: &ActorRef<LinkMsg>,
        providers: &[(String, u32)],
        version: &str,
        load_ns: u64,
        rss: u64,
    ) {
        if self.phase != Phase::Greeted {
            return;
        }
        self.phase = Phase::Ready;
        self.since = self.args.context.clock.now();
        let (worker, device) = (self.args.worker, self.args.device);
        let load_ms = Duration::from_nanos(load_ns).as_millis() as u64;
        tracing::info!(
            pipeline = %self.args.serve.pipeline, stage = %self.args.serve.name, worker = %worker, ?providers,
            onnxruntime = version, load_ms, rss_mib = rss >> 20, "worker ready"
        );
        self.args.context.stats.device(device).ready.add(1);
        drop(self.args.manager.cast(DeviceMsg::WorkerReady(worker)));
        drop(self.args.serve.batcher.cast(BatcherMsg::WorkerReady { worker, device, link: me.clone() }));
    }

    async fn run(&mut self, run: Run) {
        if self.in_flight.is_empty() {
            self.head_since = self.args.context.clock.now();
        }
        self.in_flight.push_back(run.batch);
        if self.phase == Phase::Ready {
            self.send(&ToWorker::Run(run)).await;
        }
    }

    /// Whether the answer is to the batch that runs. Anything else is a worker that has lost its way.
    fn answered(&mut self, batch: BatchId, timing: RunTiming, now: Duration) -> bool {
        if self.in_flight.front() != Some(&batch) {
            let expected = self.in_flight.front().map_or("none".to_owned(), ToString::to_string);
            self.end_with(WorkerExit::Garbled(format!("an answer to {batch}, expected {expected}")));
            return false;
        }
        self.in_flight.pop_front();
        self.head_since = now;
        self.args.context.stats.first_batch.note_first(now);
        let nanos = timing.bind_ns.saturating_add(timing.run_ns).saturating_add(timing.copy_out_ns);
        let busy = Duration::from_nanos(nanos);
        self.args.context.stats.device(self.args.device).busy.add_time(busy);
        self.args.context.stats.stage(self.args.serve.stage).busy.add_time(busy);
        true
    }

    fn done_one(&mut self, rss: u64) {
        self.batches += 1;
        if self.batches == 1 {
            drop(self.args.manager.cast(DeviceMsg::WorkerProgressed(self.args.worker)));
        }
        let (batches_then, rss_then) = *self.fresh_at.get_or_insert((self.batches - 1, rss));
        let bounds = self.args.serve.recycle;
        let worn = bounds.batches.is_some_and(|n| self.batches - batches_then >= n)
            || bounds.growth_bytes.is_some_and(|n| rss.saturating_sub(rss_then) > n);
        if worn {
            // Counted from here again: should the successor fail, this one asks once more at its next bound.
            self.fresh_at = Some((self.batches, rss));
            drop(self.args.manager.cast(DeviceMsg::RecycleWorker(self.args.worker)));
        }
    }

    fn check_deadlines(&mut self) {
        let now = self.args.context.clock.now();
        let gap = now.saturating_sub(std::mem::replace(&mut self.last_tick, now));
        if gap > TICK * 4 {
            // We slept ourselves (a stopped process, a suspended machine): the worker must not pay for that.
            self.last_sign_of_life = now;
            self.head_since = now;
            self.since = now;
            return;
        }
        let t = self.args.context.options.timeouts;
        let batch = self.args.context.plan.limits.batch_timeout;
        let silent = now.saturating_sub(self.last_sign_of_life) > t.heartbeat;
        let cause = match self.phase {
            Phase::Starting if now.saturating_sub(self.since) > t.handshake => WorkerExit::HandshakeTimeout,
            Phase::Greeted if now.saturating_sub(self.since) > t.load => WorkerExit::LoadFailed {
                permanent: false,
                why: format!("it took longer than {} s", t.load.as_secs()),
            },
            Phase::Ready if !self.in_flight.is_empty() && now.saturating_sub(self.head_since) > batch => {
                WorkerExit::Hung
            }
            Phase::Greeted | Phase::Ready if silent => WorkerExit::Silent,
            Phase::Ending if now.saturating_sub(self.since) > t.shutdown => WorkerExit::Clean,
            _ => return,
        };
        self.end_with(cause);
    }

    /// ## Ready => Ending, politely
    async fn ask_to_end(&mut self, me: &ActorRef<LinkMsg>) {
        match self.phase {
            Phase::Ending => {}
            // It may not have a socket yet, or be deep in a load: nothing is lost by a kill.
            Phase::Starting | Phase::Greeted => drop(me.cast(LinkMsg::Kill)),
            Phase::Ready => {
                self.leave_ready();
                self.cause = Some(WorkerExit::Clean);
                // The end of our side tells it to exit. If that cannot be said, it is gone, or killed by the next deadline.
                if let Some(mut writer) = self.writer.take() {
                    drop(writer.shutdown().await);
                }
            }
        }
    }

    /// ## any => Ending, by force
    fn end_with(&mut self, cause: WorkerExit) {
        self.leave_ready();
        self.cause.get_or_insert(cause);
        self.kill = None; // The owner of the process sees it and kills.
    }

    fn leave_ready(&mut self) {
        let now = self.args.context.clock.now();
        if self.phase == Phase::Ready {
            let stats = self.args.context.stats.device(self.args.device);
            stats.ready.sub(1);
            stats.ready_time.add_time(now.saturating_sub(self.since));
        }
        self.phase = Phase::Ending;
        self.since = now;
    }

    /// ## gone
    fn gone(&mut self, exit: WorkerExit, last_words: String) {
        self.leave_ready();
        let exit = match (self.cause.take(), exit) {
            (Some(cause), _) => cause,
            (None, exit) => exit,
        };
        let worker = self.args.worker;
        if exit == WorkerExit::Clean {
            tracing::info!(pipeline = %self.args.serve.pipeline, worker = %worker, batches = self.batches, "worker ended");
        } else {
            let last_words = Some(&last_words).filter(|words| !words.is_empty());
            tracing::warn!(
                pipeline = %self.args.serve.pipeline, stage = %self.args.serve.name, worker = %worker, %exit,
                batches = self.batches, in_flight = self.in_flight.len(), last_words, "worker lost"
            );
        }
        let lost = BatcherMsg::WorkerLost {
            worker,
            manager: self.args.manager.clone(),
            exit: exit.clone(),
            last_words: last_words.clone(),
            progressed: self.batches > 0,
        };
        if self.args.serve.batcher.cast(lost).is_err() {
            // The stage is gone; the manager must still learn that the process is.
            let ended = DeviceMsg::WorkerEnded {
                worker,
                exit,
                last_words,
                progressed: self.batches > 0,
                bisecting: false,
            };
            drop(self.args.manager.cast(ended));
        }
    }

    /// Writes a frame. This cannot wait long: at most a load frame and two runs are ever unread, which is far less than
    /// the socket's buffer, even when the process is frozen.
    async fn send(&mut self, frame: &ToWorker) {
        let Some(writer) = self.writer.as_mut() else { return };
        self.frame.clear();
        if let Err(error) = codec::encode(frame, &mut self.frame) {
            self.end_with(WorkerExit::LoadFailed { permanent: true, why: error.to_string() });
            return;
        }
        if writer.write_all(&self.frame).await.is_err() {
            // It is gone: its owner is about to report that.
            self.writer = None;
        }
    }
}
