//! The life of one worker process, from top to bottom: start, hello, load, batches and answers, end. It decides about no batch (the ledger does), and
//! starts no replacement (the device manager does).
//!
//! ```text
//! Starting => (Greeted | gone)      the process runs; it must say hello in time
//! Greeted  => (Serving | gone)      it loads the model; its heart must beat
//! Serving  => (Ending | gone)       it runs batches, one or several at once, each within its deadline
//! Ending   => gone                  it was asked to end, or is being killed
//! ```

mod answers;
mod death;
mod start;

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use orchestra_core::{DeviceKind, ErrorClass, WorkerExit};
use orchestra_worker::frames::{BatchRun, FromWorker, ToWorker};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

pub use self::death::DeathNotice;
pub use self::start::WorkerArgs;
use crate::account::stats::DeviceStats;
use crate::batch::output_slots::OutputSlots;
use crate::batch::row_values::RowValues;
use crate::child::spawn::Launched;
use crate::child::words::StderrText;
use crate::child::{Child, FrameSender};
use crate::events::WorkerEvent;
use crate::fleet::handshake;
use crate::fleet::unanswered_runs::UnansweredRuns;
use crate::fleet::worker_deadlines::{Clocks, LoadLimit, RunningBatch, TICK, WorkerPhase};
use crate::messages::{BatcherMsg, DeviceMsg};
use crate::panics::caught;
use crate::trace::WorkerStep;

/// ONNX Runtime's provider that takes what no other one does.
const CPU_PROVIDER: &str = "CPUExecutionProvider";

/// What a worker is told by actors.
pub enum WorkerOrder {
    Run(BatchRun, Option<RowValues>),
    /// To end, which one that serves is asked for, and has a while to do.
    Retire,
    /// Kill it, for this reason.
    Kill(WorkerExit),
}

/// The way of orders to a worker: the batches that it may hold, and a few others in all its life. One that is gone needs none.
#[derive(Clone)]
pub struct WorkerOrders(UnboundedSender<WorkerOrder>);

impl WorkerOrders {
    pub fn give(&self, order: WorkerOrder) {
        drop(self.0.send(order));
    }
}

/// Starts a worker, whose end a [`DeathNotice`] tells, or a `WorkerUndying`. Must be called within a tokio runtime.
pub fn start(args: WorkerArgs) -> WorkerOrders {
    let (orders, told) = unbounded_channel();
    let orders = WorkerOrders(orders);
    tokio::spawn(live(args, orders.clone(), told));
    orders
}

async fn live(args: WorkerArgs, orders: WorkerOrders, told: UnboundedReceiver<WorkerOrder>) {
    let notice = DeathNotice::of(&args);
    // What launches it may be code of a host.
    let launched = caught("starting a worker", || args.launch());
    let (launched, outputs) = match launched.unwrap_or_else(|why| Err(WorkerExit::SpawnFailed(why))) {
        Ok(launched) => launched,
        Err(exit) => {
            args.trace(|| WorkerStep::Started { pid: None, instead_of: args.instead_of });
            return args.ended(notice, exit, String::new(), None, &UnansweredRuns::new(1));
        }
    };
    let mut life = Life::begin(args, (orders, told), launched, outputs);
    let lived = AssertUnwindSafe(life.serve_and_end()).catch_unwind().await;
    let cause = lived.unwrap_or_else(|_| {
        let worker = life.args.worker;
        tracing::error!(%worker, "a panic in the life of a worker, which is replaced; this is a bug");
        life.child.kill();
        Some(WorkerExit::Clean)
    });
    life.gone(notice, cause).await;
}

/// Why there is no next frame in this phase.
enum NoFrame {
    /// Its socket is closed: it is gone, or about to be.
    Gone,
    /// It was told to end.
    Asked,
    /// It has reported a broken device.
    Broken,
    Killed(WorkerExit),
}

struct Life {
    args: WorkerArgs,
    orders: WorkerOrders,
    told: UnboundedReceiver<WorkerOrder>,
    child: Child<FromWorker>,
    sender: FrameSender,
    outputs: Arc<OutputSlots>,
    unanswered: UnansweredRuns,
    pid: Option<u32>,
    phase: WorkerPhase,
    clocks: Clocks,
    started: Duration,
    tick: Interval,
    batches: u64,
    /// Batches and resident memory from which wear is counted.
    fresh_at: Option<(u64, u64)>,
}

impl Life {
    fn begin(
        args: WorkerArgs,
        (orders, told): (WorkerOrders, UnboundedReceiver<WorkerOrder>),
        launched: Launched,
        outputs: Arc<OutputSlots>,
    ) -> Self {
        let WorkerArgs { context, worker, device, instead_of, serve, .. } = &args;
        let (pid, worker, device, stage) = (launched.process.pid(), *worker, *device, serve.stage);
        let spec = &context.plan.devices[device.index()].spec;
        tracing::info!(
            pipeline = %serve.pipeline, stage = %serve.name, device = %spec, %worker, pid, "worker started"
        );
        context.tell(|| WorkerEvent::Started { worker, device, stage, pid });
        context.stats.workers.started(worker, stage, device, pid);
        args.trace(|| WorkerStep::Started { pid, instead_of: *instead_of });
        let (pipeline, name, on) = (serve.pipeline.clone(), serve.name.clone(), spec.name.clone());
        let (mut child, sender) = Child::new(launched, move |said| match said {
            StderrText::Line(text) => {
                tracing::info!(%pipeline, stage = %name, device = %on, %worker, pid, stderr = %text, "worker says");
            }
            StderrText::TooMuch(lines) => tracing::info!(
                %pipeline, stage = %name, device = %on, %worker, pid, lines, "worker says more than is logged"
            ),
        });
        child.limit_room(serve.load.answer_bytes);
        let unanswered = UnansweredRuns::new(serve.load.streams);
        let started = context.clock.now();
        let mut tick = interval_at(Instant::now() + TICK, TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            args,
            orders,
            told,
            child,
            sender,
            outputs,
            unanswered,
            pid,
            phase: WorkerPhase::Starting,
            clocks: Clocks::start(started),
            started,
            tick,
            batches: 0,
            fresh_at: None,
        }
    }

    /// Until its socket is closed, or it was killed. Why we ended it, if it did not end by itself: an exit status only says "SIGKILL".
    async fn serve_and_end(&mut self) -> Option<WorkerExit> {
        let Err(mut left) = self.serve().await;
        let mut cause = None;
        loop {
            self.leave();
            match left {
                NoFrame::Gone => return cause,
                // It exits by itself. A driver may keep it from that.
                NoFrame::Broken => {}
                NoFrame::Asked => {
                    cause = Some(WorkerExit::Clean);
                    self.sender.hang_up().await;
                }
                NoFrame::Killed(why) => {
                    let is_believed = !matches!(why, WorkerExit::Garbled(_));
                    cause.get_or_insert(why);
                    if !self.child.kill() || !is_believed {
                        return cause;
                    }
                }
            }
            // What it still says counts.
            Err(left) = self.answers().await;
        }
    }

    async fn serve(&mut self) -> Result<Infallible, NoFrame> {
        // ## Starting
        let (protocol, build, sees) = loop {
            if let FromWorker::Hello { protocol, build, visible_devices, .. } = self.next().await? {
                break (protocol, build, visible_devices);
            }
        };
        let load = &self.args.serve.load;
        if let Some(what) = handshake::mismatch(&load.device, protocol, &build, sees.as_deref()) {
            return Err(NoFrame::Killed(WorkerExit::ProtocolMismatch(what)));
        }
        let load = ToWorker::Load(Box::new(load.clone()));
        // ## Starting => Greeted
        self.enter(WorkerPhase::Greeted);
        self.queue(&load)?;
        let load_timeout = self.args.context.plan.limits_of(self.args.serve.stage).load_timeout;
        loop {
            match self.next().await? {
                FromWorker::Loaded { providers, runtime_version, warmed, load_ns, rss_bytes } => {
                    self.loaded(&providers, &runtime_version, load_ns, rss_bytes);
                    // ## Greeted => Serving
                    self.open(warmed);
                    return self.answers().await;
                }
                FromWorker::LoadFailed { class, error } => {
                    return Err(NoFrame::Killed(WorkerExit::LoadFailed { class, why: error }));
                }
                FromWorker::Waiting => self.clocks.load_waits(load_timeout, self.now()),
                other => self.hear(other)?,
            }
        }
    }

    async fn answers(&mut self) -> Result<Infallible, NoFrame> {
        loop {
            let frame = self.next().await?;
            self.hear(frame)?;
        }
    }

    /// The next frame, unless its life in this phase is over.
    async fn next(&mut self) -> Result<FromWorker, NoFrame> {
        loop {
            tokio::select! {
                biased;
                Some(order) = self.told.recv() => match (order, self.phase) {
                    (WorkerOrder::Run(run, values), WorkerPhase::Serving) => {
                        self.unanswered.push(run.batch, run.rows);
                        self.unanswered.begin(self.now());
                        self.queue(&match values {
                            Some(values) => ToWorker::RunWithValues(run, values.encode()),
                            None => ToWorker::Run(run),
                        })?;
                    }
                    // Its death brings the batch back.
                    (WorkerOrder::Run(..), _) => {}
                    (WorkerOrder::Kill(why), _) => return Err(NoFrame::Killed(why)),
                    // It may be deep in a load: nothing is lost by a kill.
                    (WorkerOrder::Retire, WorkerPhase::Starting | WorkerPhase::Greeted) => {
                        return Err(NoFrame::Killed(WorkerExit::Clean));
                    }
                    (WorkerOrder::Retire, WorkerPhase::Serving) => return Err(NoFrame::Asked),
                    (WorkerOrder::Retire, WorkerPhase::Ending) => {}
                },
                _ = self.tick.tick() => if let Some(why) = self.overdue() {
                    return Err(NoFrame::Killed(why));
                },
                // It may read no further before its answers are read.
                () = self.sender.flush(), if self.sender.is_behind() => {}
                frame = self.child.next() => {
                    self.clocks.sign_of_life = self.now();
                    return match frame {
                        Ok(Some(frame)) => Ok(frame),
                        Ok(None) => Err(NoFrame::Gone),
                        Err(why) => Err(NoFrame::Killed(why)),
                    };
                }
            }
        }
    }

    /// Has a frame sent while the next one is waited for.
    fn queue(&mut self, frame: &ToWorker) -> Result<(), NoFrame> {
        self.sender.queue(frame).map_err(|error| {
            let (class, why) = (ErrorClass::Permanent, error.to_string());
            NoFrame::Killed(WorkerExit::LoadFailed { class, why })
        })
    }

    /// What it has to be ended for, if anything.
    fn overdue(&mut self) -> Option<WorkerExit> {
        let (context, now) = (&self.args.context, self.args.context.clock.now());
        let limits = context.plan.limits_of(self.args.serve.stage);
        let (timeout, called) = (limits.batch_timeout, limits.called("load_timeout"));
        let load = LoadLimit { timeout: limits.load_timeout, called: &called };
        // They begin in their order, so no other one has run for longer.
        let batch = self.unanswered.begun().next().map(|(_, begun)| RunningBatch { begun, timeout });
        let is_busy = self.phase == WorkerPhase::Greeted || batch.is_some();
        if is_busy && !self.args.serve.engine.beats_while_busy() {
            self.clocks.sign_of_life = now;
        }
        let cause = self.clocks.overdue(self.phase, &context.options.timeouts, load, batch, now)?;
        Some(if self.unanswered.is_broken { WorkerExit::Stuck } else { cause })
    }

    /// Says what it runs.
    fn loaded(&self, providers: &[(String, u32)], version: &str, load_ns: u64, rss: u64) {
        let WorkerArgs { serve, worker, .. } = &self.args;
        let load_ms = Duration::from_nanos(load_ns).as_millis() as u64;
        tracing::info!(
            pipeline = %serve.pipeline, stage = %serve.name, device = self.args.device_name(), %worker,
            pid = self.pid, ?providers, runtime = version, load_ms, rss_mib = rss >> 20, "worker ready"
        );
        // Some nodes are usual there: ONNX Runtime computes shapes on the cores on purpose.
        let nodes = |of: &dyn Fn(&str) -> bool| -> u32 {
            providers.iter().filter(|(name, _)| of(name)).map(|(_, n)| n).sum()
        };
        let (on_cores, all) = (nodes(&|name| name == CPU_PROVIDER), nodes(&|_| true));
        if serve.load.device != DeviceKind::Cpu && on_cores.saturating_mul(10) > all {
            serve.cpu_nodes.call_once(|| {
                tracing::warn!(
                    pipeline = %serve.pipeline, stage = %serve.name, device = self.args.device_name(), ?providers,
                    "{on_cores} of {all} nodes of the model run on the cores: rows go back and forth where these work on rows"
                );
            });
        }
    }

    /// From now on it takes batches.
    fn open(&mut self, warmed: usize) {
        self.enter(WorkerPhase::Serving);
        // At once: its end takes this back, also after a panic in what follows.
        self.stats().ready.add(1);
        let WorkerArgs { context, serve, worker, device, .. } = &self.args;
        let (worker, device, after) = (*worker, *device, self.clocks.phase.saturating_sub(self.started));
        context.tell(|| WorkerEvent::Ready { worker, after });
        self.args.trace(|| WorkerStep::Loaded);
        let is_warm = serve.load.padded_to.is_none_or(|rows| rows <= warmed);
        drop(self.args.manager.cast(DeviceMsg::WorkerReady { worker, is_warm }));
        let (orders, outputs) = (self.orders.clone(), Arc::clone(&self.outputs));
        self.tell_batcher(BatcherMsg::WorkerReady { worker, device, orders, outputs });
    }

    /// ## any => Ending
    fn leave(&mut self) {
        if self.phase == WorkerPhase::Serving {
            self.stats().ready.sub(1);
            self.stats().ready_time.add_time(self.now().saturating_sub(self.clocks.phase));
        }
        if self.phase != WorkerPhase::Ending {
            self.stats().ending.add(1);
        }
        self.enter(WorkerPhase::Ending);
    }

    /// ## Ending => gone
    async fn gone(mut self, mut notice: DeathNotice, cause: Option<WorkerExit>) {
        self.leave();
        let exit = match self.child.exit(self.args.context.options.timeouts.kill).await {
            Some(exit) => exit,
            None => {
                self.args.undying(self.pid, self.child.state().unwrap_or('?'));
                self.child.wait().await
            }
        };
        let exit = cause.unwrap_or(exit);
        let last_words = self.child.last_words().await;
        self.stats().ending.sub(1);
        notice.batches = self.batches;
        self.args.ended(notice, exit, last_words, self.pid, &self.unanswered);
    }

    fn enter(&mut self, phase: WorkerPhase) {
        self.phase = phase;
        self.clocks.phase = self.now();
    }

    /// A batcher that is gone has no batch here.
    fn tell_batcher(&self, what: BatcherMsg) {
        drop(self.args.serve.batcher.cast(what));
    }

    fn now(&self) -> Duration {
        self.args.context.clock.now()
    }

    fn stats(&self) -> &DeviceStats {
        self.args.context.stats.device(self.args.device)
    }
}
