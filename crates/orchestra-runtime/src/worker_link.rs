//! The link to one worker process: handshake, load, runs, deadlines, end. It holds no batch (the ledger does) and starts no
//! replacement (the device manager does).
//!
//! ```text
//! Starting => (Greeted | gone)      the process runs; it must say hello in time
//! Greeted  => (Ready | gone)        it loads the model; its heart must beat
//! Ready    => (Serving | gone)      a spare stands by; any other worker passes through at once
//! Serving  => (Ending | gone)       it runs batches, one or several at once, each within its deadline
//! Ending   => gone                  it was asked to end, or is being killed
//! ```

use std::sync::atomic::Ordering;
use std::time::Duration;

use orchestra_core::{BatchId, ErrorClass, WorkerExit, WorkerId};
use orchestra_wire::codec;
use orchestra_wire::frames::{FromWorker, Run, RunErrorKind, RunTiming, ToWorker};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;

use crate::events::WorkerEvent;
use crate::exit_kind::ExitKind;
use crate::greeting;
use crate::in_flight::{InFlight, Sent};
use crate::link_start::{Duty, LinkArgs};
use crate::messages::{BatcherMsg, DeviceMsg, LinkMsg};
use crate::stats::DeviceStats;
use crate::trace::{Ran, WorkerStep};
use crate::worker_deadlines::{Clocks, Phase, Running, TICK};
use crate::worker_process::{self, Killing};
use crate::worker_stderr::Speaker;

/// See the module.
pub struct WorkerLink;

/// State of a link.
pub struct LinkState {
    args: LinkArgs,
    phase: Phase,
    duty: Duty,
    writer: Option<Box<dyn AsyncWrite + Send + Sync + Unpin>>,
    kill: Option<oneshot::Sender<()>>,
    /// Why we killed it; the exit status only says "SIGKILL".
    cause: Option<WorkerExit>,
    in_flight: InFlight,
    clocks: Clocks,
    started: Duration,
    /// Its process, if it has one.
    pid: Option<u32>,
    /// It has reported a broken device, and is about to exit.
    is_broken: bool,
    batches: u64,
    /// Batches and resident memory from which wear is counted.
    fresh_at: Option<(u64, u64)>,
    frame: Vec<u8>,
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
            duty: args.duty,
            in_flight: InFlight::new(args.serve.load.streams),
            args,
            phase: Phase::Starting,
            writer: None,
            kill: None,
            cause: None,
            clocks: Clocks::start(now),
            started: now,
            pid: None,
            is_broken: false,
            batches: 0,
            fresh_at: None,
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
            LinkMsg::Serve { instead_of } => state.called(&me, instead_of),
            LinkMsg::Run(run) => state.run(run).await,
            LinkMsg::Tick => state.check_deadlines(),
            LinkMsg::DeviceLost(why) => state.end_with(WorkerExit::DeviceLost(why)),
            LinkMsg::Shutdown => state.ask_to_end(&me).await,
            LinkMsg::Kill => state.end_with(WorkerExit::Clean),
            LinkMsg::Undying => {
                // Should it ever end, the owner of the process counts that.
                state.leave();
                state.stats().ending.sub(1);
                me.stop(None);
            }
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
        let launched = match self.args.launch() {
            Ok(launched) => launched,
            Err(exit) => {
                self.args.trace_start(None);
                // Nobody else will report it: there is no process.
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
        self.writer = Some(launched.writer);
        let report = self.args.reporter(me);
        self.args.owned.store(true, Ordering::Release);
        tokio::spawn(worker_process::own(
            launched.process,
            launched.reader,
            launched.stderr,
            Killing { order: killed, patience: self.args.context.options.timeouts.kill },
            speaker,
            report,
        ));
        me.send_interval(TICK, || LinkMsg::Tick);
    }

    async fn frame(&mut self, me: &ActorRef<LinkMsg>, frame: FromWorker) {
        let now = self.args.context.clock.now();
        self.clocks.sign_of_life = now;
        if matches!(self.cause, Some(WorkerExit::Garbled(_))) {
            return; // It has lost its way: nothing that it says is believed any more.
        }
        match frame {
            FromWorker::Heartbeat { .. } => {}
            FromWorker::Hello { protocol, build, visible_devices, .. } => {
                self.hello(protocol, &build, visible_devices.as_deref(), now).await;
            }
            FromWorker::Loaded { providers, runtime_version, warmed, load_ns, rss_bytes, .. } => {
                self.loaded(me, &providers, &runtime_version, warmed, load_ns, rss_bytes);
            }
            FromWorker::LoadFailed { class, error } => {
                self.end_with(WorkerExit::LoadFailed { class, why: error });
            }
            FromWorker::Done { batch, dynamic, timing, rss_bytes } => {
                if let Some(Sent { rows, begun, .. }) = self.answered(batch, timing, now) {
                    self.begins(now);
                    let ran = Ran { begun, answered: Some(now), timing };
                    let worker = self.args.worker;
                    drop(self.args.serve.batcher.cast(BatcherMsg::Done { worker, batch, dynamic, ran }));
                    self.done_one(rss_bytes);
                    self.args.context.tell(|| WorkerEvent::BatchDone { worker, rows });
                }
            }
            FromWorker::Failed { batch, kind, error, timing } => {
                if let Some(Sent { begun, .. }) = self.answered(batch, timing, now) {
                    if kind == RunErrorKind::Device {
                        self.expect_exit();
                    }
                    self.begins(now);
                    let worker = self.args.worker;
                    let ran = Ran { begun, answered: Some(now), timing };
                    drop(self.args.serve.batcher.cast(BatcherMsg::Fault { worker, batch, kind, error, ran }));
                }
            }
        }
    }

    /// ## Starting => Greeted
    async fn hello(&mut self, protocol: u32, build: &str, sees: Option<&str>, now: Duration) {
        if self.phase != Phase::Starting {
            self.end_with(WorkerExit::Garbled("a second hello".to_owned()));
            return;
        }
        if let Some(what) = greeting::refusal(&self.args.serve.load.device, protocol, build, sees) {
            self.end_with(WorkerExit::ProtocolMismatch(what));
            return;
        }
        self.phase = Phase::Greeted;
        self.clocks.phase = now;
        let mut load = self.args.serve.load.clone();
        if self.duty == Duty::StandBy && load.warm_up.is_empty() {
            // A session's first run is several times slower than its second. A spare has time for it, and whoever waits for one has none.
            load.warm_up = vec![1, load.layout.max_rows];
            load.warm_up.dedup();
        }
        let load = ToWorker::Load(Box::new(load));
        self.send(&load).await;
    }

    /// ## Greeted => Ready
    fn loaded(
        &mut self,
        me: &ActorRef<LinkMsg>,
        providers: &[(String, u32)],
        version: &str,
        warmed: usize,
        load_ns: u64,
        rss: u64,
    ) {
        if self.phase != Phase::Greeted {
            return;
        }
        self.phase = Phase::Ready;
        self.clocks.phase = self.args.context.clock.now();
        let worker = self.args.worker;
        let load_ms = Duration::from_nanos(load_ns).as_millis() as u64;
        tracing::info!(
            pipeline = %self.args.serve.pipeline, stage = %self.args.serve.name, device = self.device(), worker = %worker,
            pid = self.pid, ?providers, onnxruntime = version, load_ms, rss_mib = rss >> 20, spare = self.duty == Duty::StandBy, "worker ready"
        );
        let after = self.clocks.phase.saturating_sub(self.started);
        self.args.context.tell(|| WorkerEvent::Ready { worker, after });
        self.args.trace(|| WorkerStep::Loaded);
        let is_warm = self.args.serve.load.warm_up.iter().all(|rows| *rows <= warmed);
        self.args.context.note_runtime(version);
        let on = self.args.context.stats.stage(self.args.serve.stage).on(self.args.device);
        if let Some(on) = on.filter(|_| is_warm) {
            on.warm.add(1);
        }
        drop(self.args.manager.cast(DeviceMsg::WorkerReady { worker, pid: self.pid, is_warm }));
        match self.duty {
            Duty::StandBy => self.stats().standing_by.add(1),
            Duty::Serve { instead_of } => self.serve(me, instead_of),
        }
    }

    /// A spare is called to serve. If it is dying, its death is on its way to the manager.
    fn called(&mut self, me: &ActorRef<LinkMsg>, instead_of: WorkerId) {
        self.duty = Duty::Serve { instead_of: Some(instead_of) };
        if self.phase == Phase::Ready {
            self.stats().standing_by.sub(1);
            self.serve(me, Some(instead_of));
        }
    }

    /// ## Ready => Serving
    fn serve(&mut self, me: &ActorRef<LinkMsg>, instead_of: Option<WorkerId>) {
        self.phase = Phase::Serving;
        self.clocks.phase = self.args.context.clock.now();
        let (worker, device) = (self.args.worker, self.args.device);
        let was_spare = self.args.duty == Duty::StandBy;
        if was_spare {
            let name = &self.args.serve.name;
            tracing::info!(
                pipeline = %self.args.serve.pipeline, stage = %name, device = self.device(), %worker, pid = self.pid,
                ?instead_of, "a spare worker serves"
            );
        }
        self.stats().ready.add(1);
        self.args.context.tell(|| WorkerEvent::Serving { worker, replaces: instead_of, was_spare });
        self.args.trace(|| WorkerStep::Serving { instead_of, was_spare });
        drop(self.args.serve.batcher.cast(BatcherMsg::WorkerReady { worker, device, link: me.clone() }));
    }

    fn device(&self) -> &str {
        &self.args.context.plan.devices[self.args.device.index()].spec.name
    }

    fn stats(&self) -> &DeviceStats {
        self.args.context.stats.device(self.args.device)
    }

    async fn run(&mut self, run: Run) {
        self.in_flight.push(run.batch, run.rows);
        self.begins(self.args.context.clock.now());
        if self.phase == Phase::Serving {
            self.send(&ToWorker::Run(run)).await;
        }
    }

    /// A worker whose device is broken begins nothing more.
    fn begins(&mut self, now: Duration) {
        if !self.is_broken {
            self.in_flight.begin(now);
        }
    }

    /// The batch that was answered, if it is one of those that run. Anything else is a worker that has lost its way.
    fn answered(&mut self, batch: BatchId, timing: RunTiming, now: Duration) -> Option<Sent> {
        let answered = match self.in_flight.answered(batch) {
            Ok(answered) => answered,
            // Another stream may have begun and done it before the process had ended of its device.
            Err(_) if self.is_broken => return None,
            Err(expected) => {
                self.end_with(WorkerExit::Garbled(format!("an answer to {batch}, expected {expected}")));
                return None;
            }
        };
        self.args.context.stats.first_batch.note_first(now);
        let nanos = timing.bind_ns.saturating_add(timing.run_ns).saturating_add(timing.copy_out_ns);
        let took = Duration::from_nanos(nanos);
        // A worker is busy as far as what it can run at once is.
        let busy = took / u32::try_from(self.in_flight.streams()).unwrap_or(1);
        self.args.context.stats.device(self.args.device).busy.add_time(busy);
        let stage = self.args.context.stats.stage(self.args.serve.stage);
        stage.busy.add_time(busy);
        if let Some(on) = stage.on(self.args.device) {
            on.run_time.add_time(took);
        }
        Some(answered)
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
        let context = &self.args.context;
        // They begin in their order, so no other one has run for longer.
        let timeout = context.plan.limits.batch_timeout;
        let batch = self.in_flight.begun().next().map(|(_, begun)| Running { begun, timeout });
        let now = context.clock.now();
        let overdue = self.clocks.overdue(self.phase, &context.options.timeouts, batch, now);
        if let Some(cause) = overdue {
            self.end_with(if self.is_broken { WorkerExit::Stuck } else { cause });
        }
    }

    /// ## (Ready | Serving) => Ending, politely
    async fn ask_to_end(&mut self, me: &ActorRef<LinkMsg>) {
        match self.phase {
            Phase::Ending => {}
            // It may not have a socket yet, or be deep in a load: nothing is lost by a kill.
            Phase::Starting | Phase::Greeted => drop(me.cast(LinkMsg::Kill)),
            Phase::Ready | Phase::Serving => {
                self.leave();
                self.cause = Some(WorkerExit::Clean);
                // The end of our side tells it to exit. If that cannot be said, it is gone, or killed by the next deadline.
                if let Some(mut writer) = self.writer.take() {
                    drop(writer.shutdown().await);
                }
            }
        }
    }

    /// ## Serving => Ending, by itself
    /// It exits right after it has said that its device is broken. A driver may keep it from that.
    fn expect_exit(&mut self) {
        self.leave();
        self.is_broken = true;
    }

    /// ## any => Ending, by force
    fn end_with(&mut self, cause: WorkerExit) {
        self.leave();
        self.cause.get_or_insert(cause);
        self.kill = None; // The owner of the process sees it and kills.
    }

    fn leave(&mut self) {
        let now = self.args.context.clock.now();
        match self.phase {
            Phase::Ready => self.stats().standing_by.sub(1),
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
        let exit = match (self.cause.take(), exit) {
            (Some(cause), _) => cause,
            (None, exit) => exit,
        };
        let worker = self.args.worker;
        self.stats().ending.sub(1);
        self.stats().exits(ExitKind::of(&exit)).add(1);
        self.args.context.stats.workers.gone(worker);
        self.args.context.tell(|| WorkerEvent::Ended { worker, exit: exit.clone() });
        self.args.trace(|| WorkerStep::Ended { exit: exit.clone(), last_words: last_words.clone() });
        if exit == WorkerExit::Clean {
            tracing::info!(
                pipeline = %self.args.serve.pipeline, stage = %self.args.serve.name, device = self.device(), worker = %worker,
                pid = self.pid, batches = self.batches, "worker ended"
            );
        } else {
            let last_words = Some(&last_words).filter(|words| !words.is_empty());
            tracing::warn!(
                pipeline = %self.args.serve.pipeline, stage = %self.args.serve.name, device = self.device(), worker = %worker,
                pid = self.pid, %exit, batches = self.batches, in_flight = self.in_flight.len(), last_words, "worker lost"
            );
        }
        let lost = BatcherMsg::WorkerLost {
            worker,
            manager: self.args.manager.clone(),
            exit: exit.clone(),
            last_words: last_words.clone(),
            progressed: self.batches > 0,
            begun: self.in_flight.begun().collect(),
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

    /// Writes a frame. This cannot wait long: at most a load frame and the few runs that it holds are ever unread, which is far less than
    /// the socket's buffer, even when the process is frozen.
    async fn send(&mut self, frame: &ToWorker) {
        let Some(writer) = self.writer.as_mut() else { return };
        self.frame.clear();
        if let Err(error) = codec::encode(frame, &mut self.frame) {
            self.end_with(WorkerExit::LoadFailed { class: ErrorClass::Permanent, why: error.to_string() });
            return;
        }
        if writer.write_all(&self.frame).await.is_err() {
            // It is gone: its owner is about to report that.
            self.writer = None;
        }
    }
}
