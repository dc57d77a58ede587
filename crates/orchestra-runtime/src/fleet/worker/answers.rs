//! What becomes of the answers of a worker: they go to the batcher, and count for the device, the stage and the wear of the process.

use orchestra_core::{BatchId, WorkerExit};
use orchestra_worker::frames::{FromWorker, RunErrorKind, RunTiming};

use super::{Life, NoFrame, WorkerArgs};
use crate::events::WorkerEvent;
use crate::fleet::unanswered_runs::UnansweredRun;
use crate::messages::{BatcherMsg, DeviceMsg};
use crate::trace::WorkerTimes;

impl Life {
    /// Hands an answer on. What makes no sense ends the worker.
    pub(super) fn hear(&mut self, frame: FromWorker) -> Result<(), NoFrame> {
        let worker = self.args.worker;
        match frame {
            FromWorker::Heartbeat | FromWorker::Waiting => {}
            FromWorker::Done { batch, dynamic, without, timing, rss_bytes } => {
                if let Some((UnansweredRun { rows, .. }, ran)) = self.answered(batch, timing, false)? {
                    self.tell_batcher(BatcherMsg::Done { worker, batch, dynamic, without, ran });
                    self.done(rss_bytes);
                    self.args.context.tell(|| WorkerEvent::BatchDone { worker, rows });
                }
            }
            FromWorker::Failed { batch, kind, error, timing } => {
                let breaks = kind == RunErrorKind::Device;
                if let Some((_, ran)) = self.answered(batch, timing, breaks)? {
                    self.tell_batcher(BatcherMsg::Fault { worker, batch, kind, error, ran });
                    return if breaks { Err(NoFrame::Broken) } else { Ok(()) };
                }
            }
            FromWorker::Hello { .. } | FromWorker::Loaded { .. } | FromWorker::LoadFailed { .. } => {
                return Err(NoFrame::Killed(WorkerExit::Garbled("a frame out of order".to_owned())));
            }
        }
        Ok(())
    }

    /// The batch that was answered, if it is one of those that run. Anything else is a worker that has lost its way.
    fn answered(
        &mut self,
        batch: BatchId,
        timing: RunTiming,
        breaks: bool,
    ) -> Result<Option<(UnansweredRun, WorkerTimes)>, NoFrame> {
        let now = self.now();
        let sent = match self.unanswered.answered(batch) {
            Ok(sent) => sent,
            // Another stream may have begun and done it before the process had ended of its device.
            Err(_) if self.unanswered.is_broken => return Ok(None),
            Err(expected) => {
                let what = format!("an answer to {batch}, expected {expected}");
                return Err(NoFrame::Killed(WorkerExit::Garbled(what)));
            }
        };
        self.unanswered.is_broken |= breaks;
        self.unanswered.begin(now);
        let WorkerArgs { context, device, serve, .. } = &self.args;
        context.stats.first_batch.note_first(now);
        let took = timing.total();
        // A worker is busy as far as what it can run at once is.
        let busy = took / u32::try_from(self.unanswered.streams).unwrap_or(1);
        context.stats.device(*device).busy.add_time(busy);
        let stage = context.stats.stage(serve.stage);
        stage.busy.add_time(busy);
        if let Some(on) = stage.on(*device) {
            on.run_time.add_time(took);
        }
        Ok(Some((sent, WorkerTimes { begun: sent.begun, answered: Some(now), timing })))
    }

    /// A batch was answered with results.
    fn done(&mut self, rss: u64) {
        let WorkerArgs { manager, worker, serve, .. } = &self.args;
        if self.batches == 0 {
            drop(manager.cast(DeviceMsg::WorkerProgressed(*worker)));
        }
        let (batches_then, rss_then) = *self.fresh_at.get_or_insert((self.batches, rss));
        self.batches += 1;
        let bounds = serve.recycle;
        let worn = bounds.batches.is_some_and(|n| self.batches - batches_then >= n)
            || bounds.growth.is_some_and(|n| rss.saturating_sub(rss_then) > n.get());
        if worn {
            // Counted from here again: should the successor fail, this one asks once more at its next bound.
            self.fresh_at = Some((self.batches, rss));
            drop(manager.cast(DeviceMsg::RecycleWorker(*worker)));
        }
    }
}
