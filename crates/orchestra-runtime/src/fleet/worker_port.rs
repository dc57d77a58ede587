//! The way of batches to one worker process and of its answers back: straight from the batcher to the socket, and from the task that reads the
//! socket to the batcher. The link, an actor, looks after the life of the process beside that way; it opens the way and closes it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use orchestra_core::ledger::Rows;
use orchestra_core::{BatchId, ErrorClass, WorkerExit};
use orchestra_worker::codec;
use orchestra_worker::frames::{FromWorker, Run, RunErrorKind, RunTiming, ToWorker};
use ractor::ActorRef;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::batch::output_slots::{OutputSlots, PendingOutputs};
use crate::fleet::link_start::LinkArgs;
use crate::fleet::unanswered_runs::{UnansweredRun, UnansweredRuns};
use crate::messages::{BatcherMsg, DeviceMsg, LinkMsg};
use crate::trace::Ran;

pub struct WorkerPort {
    pub args: Arc<LinkArgs>,
    /// Looks after the life of the process.
    pub link: ActorRef<LinkMsg>,
    traffic: Mutex<Traffic>,
    /// Of the process, once it is started.
    outputs: OnceLock<Arc<OutputSlots>>,
    /// Held for one frame.
    socket: tokio::sync::Mutex<Socket>,
}

pub(super) struct Traffic {
    pub unanswered: UnansweredRuns,
    has_greeted: bool,
    /// It takes batches. What it holds may still be answered when it takes none any more.
    pub is_open: bool,
    /// `false`: it has lost its way, and nothing that it says counts any more.
    pub is_believed: bool,
    /// It has reported a broken device, and is about to exit.
    pub is_broken: bool,
    /// Answered with results.
    pub batches: u64,
    /// Batches and resident memory from which wear is counted.
    fresh_at: Option<(u64, u64)>,
    pub last_frame: Duration,
}

struct Socket {
    /// `None`: not there yet, or our side is closed.
    writer: Option<Box<dyn AsyncWrite + Send + Sync + Unpin>>,
    frame: Vec<u8>,
}

impl WorkerPort {
    /// The way to a worker that has no process yet.
    pub fn new(args: &Arc<LinkArgs>, link: ActorRef<LinkMsg>) -> Arc<Self> {
        let traffic = Traffic {
            unanswered: UnansweredRuns::new(args.serve.load.streams),
            has_greeted: false,
            is_open: false,
            is_believed: true,
            is_broken: false,
            batches: 0,
            fresh_at: None,
            last_frame: args.context.clock.now(),
        };
        Arc::new(Self {
            args: Arc::clone(args),
            link,
            traffic: Mutex::new(traffic),
            outputs: OnceLock::new(),
            socket: tokio::sync::Mutex::new(Socket { writer: None, frame: Vec::new() }),
        })
    }

    /// The process is started, with this memory for its outputs. Called once.
    pub async fn connect(
        &self,
        writer: Box<dyn AsyncWrite + Send + Sync + Unpin>,
        outputs: Arc<OutputSlots>,
    ) {
        self.outputs.get_or_init(|| outputs);
        self.socket.lock().await.writer = Some(writer);
    }

    /// Room for the outputs of a batch that is about to be sent; `None`: there is no process yet.
    pub fn room_for(&self, rows: Rows) -> Option<PendingOutputs> {
        self.outputs.get().map(|outputs| outputs.take(rows))
    }

    /// Sends a batch. Where the way is closed it counts as sent all the same: the death of its worker is on its way to the batcher, and
    /// brings it back.
    pub async fn send(&self, run: Run) {
        if self.note_sent(&run)
            && let Err(exit) = self.write(&ToWorker::Run(run)).await
        {
            drop(self.link.cast(LinkMsg::Kill(exit)));
        }
    }

    /// Says whether the way is open.
    fn note_sent(&self, run: &Run) -> bool {
        let mut traffic = self.traffic();
        traffic.unanswered.push(run.batch, run.rows);
        traffic.begin(self.args.context.clock.now());
        traffic.is_open
    }

    /// Writes a frame. This cannot wait long: at most a load frame and the few runs that it holds are ever unread, which is far less than
    /// the socket's buffer, even when the process is frozen.
    ///
    /// # Errors
    /// It cannot be made into bytes. That the process is gone is no error: its owner is about to report that.
    pub async fn write(&self, frame: &ToWorker) -> Result<(), WorkerExit> {
        let mut socket = self.socket.lock().await;
        let Socket { writer, frame: bytes } = &mut *socket;
        let Some(open) = writer.as_mut() else { return Ok(()) };
        bytes.clear();
        codec::encode(frame, bytes).map_err(|error| {
            let (class, why) = (ErrorClass::Permanent, error.to_string());
            WorkerExit::LoadFailed { class, why }
        })?;
        if open.write_all(bytes).await.is_err() {
            *writer = None;
        }
        Ok(())
    }

    /// Closes our side, which tells the worker to exit. If that cannot be said, it is gone, or killed by the next deadline.
    pub async fn hang_up(&self) {
        if let Some(mut writer) = self.socket.lock().await.writer.take() {
            drop(writer.shutdown().await);
        }
    }

    /// A frame came. What is no sign of life and no answer to a batch is given back: the link understands it.
    pub fn hear(&self, frame: FromWorker) -> Option<FromWorker> {
        let now = self.args.context.clock.now();
        let (worker, batcher) = (self.args.worker, &self.args.serve.batcher);
        match frame {
            FromWorker::Heartbeat => drop(self.believed(now)),
            FromWorker::Done { batch, dynamic, timing, rss_bytes } => {
                if let Some((UnansweredRun { rows, .. }, ran)) = self.answered(batch, timing, false, now) {
                    drop(batcher.cast(BatcherMsg::Done { worker, batch, dynamic, ran }));
                    self.done(rss_bytes);
                    // Not told from here: a hook that takes long would keep us from hearing the worker's heart.
                    if self.args.context.options.events.is_some() {
                        drop(self.link.cast(LinkMsg::BatchDone(rows)));
                    }
                }
            }
            FromWorker::Paused { batch, timing, rss_bytes } => {
                if let Some((_, ran)) = self.answered(batch, timing, false, now) {
                    drop(batcher.cast(BatcherMsg::Paused { worker, batch, ran }));
                    self.done(rss_bytes);
                }
            }
            FromWorker::Failed { batch, kind, error, timing } => {
                let breaks = kind == RunErrorKind::Device;
                if let Some((_, ran)) = self.answered(batch, timing, breaks, now) {
                    drop(batcher.cast(BatcherMsg::Fault { worker, batch, kind, error, ran }));
                }
            }
            FromWorker::Hello { .. } => {
                let mut traffic = self.believed(now)?;
                if !std::mem::replace(&mut traffic.has_greeted, true) {
                    return Some(frame);
                }
                self.garbled(&mut traffic, "a second hello".to_owned());
            }
            FromWorker::Loaded { .. } | FromWorker::LoadFailed { .. } | FromWorker::Waiting => {
                return self.believed(now).map(|_| frame);
            }
        }
        None
    }

    /// The traffic, if what the worker says is believed.
    fn believed(&self, now: Duration) -> Option<MutexGuard<'_, Traffic>> {
        let mut traffic = self.traffic();
        traffic.last_frame = now;
        Some(traffic).filter(|traffic| traffic.is_believed)
    }

    /// The batch that was answered, if it is one of those that run. Anything else is a worker that has lost its way.
    fn answered(
        &self,
        batch: BatchId,
        timing: RunTiming,
        breaks: bool,
        now: Duration,
    ) -> Option<(UnansweredRun, Ran)> {
        let mut traffic = self.believed(now)?;
        let sent = match traffic.unanswered.answered(batch) {
            Ok(sent) => sent,
            // Another stream may have begun and done it before the process had ended of its device.
            Err(_) if traffic.is_broken => return None,
            Err(expected) => {
                self.garbled(&mut traffic, format!("an answer to {batch}, expected {expected}"));
                return None;
            }
        };
        if breaks {
            traffic.is_open = false;
            traffic.is_broken = true;
            drop(self.link.cast(LinkMsg::Broken));
        }
        traffic.begin(now);
        let streams = traffic.unanswered.streams;
        drop(traffic);
        self.count(timing, streams, now);
        Some((sent, Ran { begun: sent.begun, answered: Some(now), timing }))
    }

    /// What it says makes no sense, and nothing that follows is believed, also before the link has heard of this.
    fn garbled(&self, traffic: &mut Traffic, what: String) {
        traffic.is_believed = false;
        drop(self.link.cast(LinkMsg::Kill(WorkerExit::Garbled(what))));
    }

    fn count(&self, timing: RunTiming, streams: usize, now: Duration) {
        let stats = &self.args.context.stats;
        stats.first_batch.note_first(now);
        let took = timing.total();
        // A worker is busy as far as what it can run at once is.
        let busy = took / u32::try_from(streams).unwrap_or(1);
        stats.device(self.args.device).busy.add_time(busy);
        let stage = stats.stage(self.args.serve.stage);
        stage.busy.add_time(busy);
        if let Some(on) = stage.on(self.args.device) {
            on.run_time.add_time(took);
        }
    }

    /// A batch was answered with results.
    fn done(&self, rss: u64) {
        let mut traffic = self.traffic();
        if traffic.batches == 0 {
            drop(self.args.manager.cast(DeviceMsg::WorkerProgressed(self.args.worker)));
        }
        let before = traffic.batches;
        let (batches_then, rss_then) = *traffic.fresh_at.get_or_insert((before, rss));
        let batches = before + 1;
        traffic.batches = batches;
        let bounds = self.args.serve.recycle;
        let worn = bounds.batches.is_some_and(|n| batches - batches_then >= n)
            || bounds.growth_bytes.is_some_and(|n| rss.saturating_sub(rss_then) > n);
        if worn {
            // Counted from here again: should the successor fail, this one asks once more at its next bound.
            traffic.fresh_at = Some((batches, rss));
            drop(self.args.manager.cast(DeviceMsg::RecycleWorker(self.args.worker)));
        }
    }

    /// A poisoned lock means that a thread panicked between two statements that cannot panic: what it guards is whole.
    pub(super) fn traffic(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Traffic {
    /// A worker whose device is broken begins nothing more.
    fn begin(&mut self, now: Duration) {
        if !self.is_broken {
            self.unanswered.begin(now);
        }
    }
}
