//! The link to one worker process: handshake, load, deadlines, end. Batches go past it (`worker_port`); it holds none (the ledger does),
//! and starts no replacement (the device manager does).
//!
//! ```text
//! Starting => (Greeted | gone)      the process runs; it must say hello in time
//! Greeted  => (Serving | gone)      it loads the model; its heart must beat
//! Serving  => (Ending | gone)       it runs batches, one or several at once, each within its deadline
//! Ending   => gone                  it was asked to end, or is being killed
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use orchestra_core::{DeviceKind, WorkerExit};
use orchestra_worker::frames::{FromWorker, ToWorker};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

use crate::account::stats::DeviceStats;
use crate::events::WorkerEvent;
use crate::fleet::handshake;
use crate::fleet::link_start::LinkArgs;
use crate::fleet::worker_deadlines::{Clocks, LoadLimit, Phase, Running, TICK};
use crate::fleet::worker_end::report;
use crate::fleet::worker_port::WorkerPort;
use crate::fleet::worker_process::{self, ProcessEvent};
use crate::fleet::worker_stderr::Speaker;
use crate::messages::{BatcherMsg, DeviceMsg, LinkMsg};
use crate::trace::WorkerStep;

/// ONNX Runtime's provider that takes what no other one does.
const CPU_PROVIDER: &str = "CPUExecutionProvider";

pub struct WorkerLink;

pub struct LinkState {
    args: Arc<LinkArgs>,
    phase: Phase,
    port: Arc<WorkerPort>,
    kill: Option<oneshot::Sender<()>>,
    /// Why we killed it; the exit status only says "SIGKILL".
    cause: Option<WorkerExit>,
    clocks: Clocks,
    started: Duration,
    pid: Option<u32>,
}

impl Actor for WorkerLink {
    type Msg = LinkMsg;
    type State = LinkState;
    type Arguments = Arc<LinkArgs>;

    async fn pre_start(
        &self,
        me: ActorRef<LinkMsg>,
        args: Arc<LinkArgs>,
    ) -> Result<LinkState, ActorProcessingErr> {
        let now = args.context.clock.now();
        me.cast(LinkMsg::Start)?;
        Ok(LinkState {
            port: WorkerPort::new(&args, me),
            args,
            phase: Phase::Starting,
            kill: None,
            cause: None,
            clocks: Clocks::start(now),
            started: now,
            pid: None,
        })
    }

    async fn handle(
        &self,
        me: ActorRef<LinkMsg>,
        message: LinkMsg,
        state: &mut LinkState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            LinkMsg::Start => state.start(&me).await,
            LinkMsg::Process(event) => state.process(&me, event).await,
            // It exits by itself. A driver may keep it from that.
            LinkMsg::Broken => state.leave(),
            LinkMsg::BatchDone(rows) => state.batch_done(rows),
            LinkMsg::Tick => state.check_deadlines(),
            LinkMsg::Shutdown => state.ask_to_end().await,
            LinkMsg::Kill(why) => state.end_with(why),
        }
        Ok(())
    }
}

impl LinkState {
    /// ## Starting
    async fn start(&mut self, me: &ActorRef<LinkMsg>) {
        let (launched, outputs) = match self.args.launch() {
            Ok(launched) => launched,
            Err(exit) => {
                self.args.trace_start(None);
                // It is reported here only: there is no process.
                self.gone(exit, String::new());
                me.stop(None);
                return;
            }
        };
        let device = &self.args.context.plan.devices[self.args.device.index()].spec;
        let (name, pid) = (self.args.worker.to_string(), launched.process.pid());
        tracing::info!(
            pipeline = %self.args.serve.pipeline, stage = %self.args.serve.name, device = %device, worker = %name,
            pid, "worker started"
        );
        self.args.context.tell(|| WorkerEvent::Started {
            worker: self.args.worker,
            device: self.args.device,
            stage: self.args.serve.stage,
            pid,
        });
        self.args.context.stats.workers.started(
            self.args.worker,
            self.args.serve.stage,
            self.args.device,
            pid,
        );
        self.pid = pid;
        self.args.trace_start(pid);
        let speaker = Speaker {
            pipeline: self.args.serve.pipeline.clone(),
            stage: self.args.serve.name.clone(),
            device: device.name.clone(),
            worker: name,
            pid,
        };
        let (kill, killed) = oneshot::channel();
        self.kill = Some(kill);
        self.port.connect(launched.writer, outputs).await;
        let port = Arc::clone(&self.port);
        self.args.owned.store(true, Ordering::Release);
        tokio::spawn(worker_process::own(
            launched.process,
            launched.reader,
            launched.stderr,
            killed,
            self.args.context.options.timeouts.kill,
            speaker,
            move |event| report(&port, event),
        ));
        me.send_interval(TICK, || LinkMsg::Tick);
    }

    async fn process(&mut self, me: &ActorRef<LinkMsg>, event: ProcessEvent) {
        match event {
            ProcessEvent::Frame(frame) => self.frame(frame).await,
            ProcessEvent::Garbled(what) => self.end_with(WorkerExit::Garbled(what)),
            ProcessEvent::Undying { .. } => {
                // Should it ever end, the owner of the process counts that.
                self.leave();
                self.stats().ending.sub(1);
                me.stop(None);
            }
            ProcessEvent::Exited { exit, last_words } => {
                self.gone(exit, last_words);
                me.stop(None);
            }
        }
    }

    async fn frame(&mut self, frame: FromWorker) {
        match frame {
            FromWorker::Hello { protocol, build, visible_devices, .. } => {
                self.hello(protocol, &build, visible_devices.as_deref()).await;
            }
            FromWorker::Loaded { providers, runtime_version, warmed, load_ns, rss_bytes, .. } => {
                self.loaded(&providers, &runtime_version, warmed, load_ns, rss_bytes);
            }
            FromWorker::LoadFailed { class, error } => {
                self.end_with(WorkerExit::LoadFailed { class, why: error });
            }
            FromWorker::Waiting if self.phase == Phase::Greeted => {
                let load_timeout = self.args.context.plan.limits_of(self.args.serve.stage).load_timeout;
                self.clocks.load_waits(load_timeout, self.args.context.clock.now());
            }
            FromWorker::Waiting => {}
            // The port has understood these.
            FromWorker::Heartbeat
            | FromWorker::Done { .. }
            | FromWorker::Paused { .. }
            | FromWorker::Failed { .. } => {}
        }
    }

    /// ## Starting => Greeted
    async fn hello(&mut self, protocol: u32, build: &str, sees: Option<&str>) {
        if self.phase != Phase::Starting {
            return; // It is being ended.
        }
        if let Some(what) = handshake::refusal(&self.args.serve.load.device, protocol, build, sees) {
            self.end_with(WorkerExit::ProtocolMismatch(what));
            return;
        }
        self.phase = Phase::Greeted;
        self.clocks.phase = self.args.context.clock.now();
        let load = Box::new(self.args.serve.load.clone());
        // A worker that froze behind its hello reads nothing, and a large frame fills the socket: then no tick would come that ends it.
        let written = tokio::time::timeout(self.args.context.options.timeouts.handshake, async {
            self.port.write(&ToWorker::Load(load)).await
        });
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(exit)) => self.end_with(exit),
            Err(_) => self.end_with(WorkerExit::Silent),
        }
    }

    /// ## Greeted => Serving
    fn loaded(&mut self, providers: &[(String, u32)], version: &str, warmed: usize, load_ns: u64, rss: u64) {
        if self.phase != Phase::Greeted {
            return;
        }
        self.phase = Phase::Serving;
        self.clocks.phase = self.args.context.clock.now();
        let worker = self.args.worker;
        let load_ms = Duration::from_nanos(load_ns).as_millis() as u64;
        tracing::info!(
            pipeline = %self.args.serve.pipeline, stage = %self.args.serve.name, device = self.device(), worker = %worker,
            pid = self.pid, ?providers, runtime = version, load_ms, rss_mib = rss >> 20, "worker ready"
        );
        self.warn_of_cpu_nodes(providers);
        let after = self.clocks.phase.saturating_sub(self.started);
        self.args.context.tell(|| WorkerEvent::Ready { worker, after });
        self.args.trace(|| WorkerStep::Loaded);
        let is_warm = self.args.serve.load.padded_to.is_none_or(|rows| rows <= warmed);
        drop(self.args.manager.cast(DeviceMsg::WorkerReady { worker, is_warm }));
        self.stats().ready.add(1);
        let device = self.args.device;
        self.port.traffic().is_open = true;
        let port = Arc::clone(&self.port);
        drop(self.args.serve.batcher.cast(BatcherMsg::WorkerReady { worker, device, port }));
    }

    /// Some nodes are usual there: ONNX Runtime computes shapes on the cores on purpose.
    fn warn_of_cpu_nodes(&self, providers: &[(String, u32)]) {
        let serve = &self.args.serve;
        let nodes = |of: &dyn Fn(&str) -> bool| -> u32 {
            providers.iter().filter(|(name, _)| of(name)).map(|(_, n)| n).sum()
        };
        let (on_cores, all) = (nodes(&|name| name == CPU_PROVIDER), nodes(&|_| true));
        if serve.load.device != DeviceKind::Cpu && on_cores.saturating_mul(10) > all {
            serve.cpu_nodes.call_once(|| {
                tracing::warn!(
                    pipeline = %serve.pipeline, stage = %serve.name, device = self.device(), ?providers,
                    "{on_cores} of {all} nodes of the model run on the cores: rows go back and forth where these work on rows"
                );
            });
        }
    }

    fn device(&self) -> &str {
        &self.args.context.plan.devices[self.args.device.index()].spec.name
    }

    fn stats(&self) -> &DeviceStats {
        self.args.context.stats.device(self.args.device)
    }

    fn batch_done(&self, rows: usize) {
        let worker = self.args.worker;
        self.args.context.tell(|| WorkerEvent::BatchDone { worker, rows });
    }

    fn check_deadlines(&mut self) {
        let context = &self.args.context;
        let limits = context.plan.limits_of(self.args.serve.stage);
        let (timeout, called) = (limits.batch_timeout, limits.called("load_timeout"));
        let load = LoadLimit { timeout: limits.load_timeout, called: &called };
        let now = context.clock.now();
        let (last_frame, is_broken, batch) = {
            let traffic = self.port.traffic();
            // They begin in their order, so no other one has run for longer.
            let oldest = traffic.unanswered.begun().next().map(|(_, begun)| Running { begun, timeout });
            (traffic.last_frame, traffic.is_broken, oldest)
        };
        // The clocks may have been set to a later time: see there.
        self.clocks.sign_of_life = self.clocks.sign_of_life.max(last_frame);
        let is_busy = self.phase == Phase::Greeted || batch.is_some();
        if is_busy && !self.args.serve.engine.beats_while_busy() {
            self.clocks.sign_of_life = now;
        }
        let overdue = self.clocks.overdue(self.phase, &context.options.timeouts, load, batch, now);
        if let Some(cause) = overdue {
            self.end_with(if is_broken { WorkerExit::Stuck } else { cause });
        }
    }

    /// ## Serving => Ending, politely
    async fn ask_to_end(&mut self) {
        match self.phase {
            Phase::Ending => {}
            // It may not have a socket yet, or be deep in a load: nothing is lost by a kill.
            Phase::Starting | Phase::Greeted => self.end_with(WorkerExit::Clean),
            Phase::Serving => {
                self.leave();
                self.cause = Some(WorkerExit::Clean);
                self.port.hang_up().await;
            }
        }
    }

    /// ## any => Ending, by force
    fn end_with(&mut self, cause: WorkerExit) {
        self.leave();
        if matches!(cause, WorkerExit::Garbled(_)) {
            self.port.traffic().is_believed = false;
        }
        self.cause.get_or_insert(cause);
        self.kill = None; // The owner of the process sees it and kills.
    }

    fn leave(&mut self) {
        self.port.traffic().is_open = false;
        let now = self.args.context.clock.now();
        match self.phase {
            Phase::Serving => {
                self.stats().ready.sub(1);
                self.stats().ready_time.add_time(now.saturating_sub(self.clocks.phase));
            }
            Phase::Starting | Phase::Greeted | Phase::Ending => {}
        }
        if self.phase != Phase::Ending {
            self.stats().ending.add(1);
        }
        self.phase = Phase::Ending;
        self.clocks.phase = now;
    }

    /// ## gone
    fn gone(&mut self, exit: WorkerExit, last_words: String) {
        self.leave();
        let exit = self.cause.take().unwrap_or(exit);
        let worker = self.args.worker;
        let (batches, in_flight) = {
            let traffic = self.port.traffic();
            (traffic.batches, traffic.unanswered.runs.len())
        };
        self.stats().ending.sub(1);
        if exit == WorkerExit::Clean {
            tracing::info!(
                pipeline = %self.args.serve.pipeline, stage = %self.args.serve.name, device = self.device(), worker = %worker,
                pid = self.pid, batches, "worker ended"
            );
        } else {
            let last_words = Some(&last_words).filter(|words| !words.is_empty());
            tracing::warn!(
                pipeline = %self.args.serve.pipeline, stage = %self.args.serve.name, device = self.device(), worker = %worker,
                pid = self.pid, %exit, batches, in_flight, last_words, "worker lost"
            );
        }
        self.args.ended(&self.port, exit, last_words);
    }
}
