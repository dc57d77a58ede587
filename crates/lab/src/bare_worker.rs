//! A worker process without batcher, ledger or restarts: it is loaded, and runs the batches that it is told to. The first fault ends it.

use std::time::Duration;

use orchestra_core::{BatchId, OutputSlotId, SlotId};
use orchestra_machine::process_cpu_time;
use orchestra_worker::codec::CodecError;
use orchestra_worker::frames::{FromWorker, Load, Run, RunTiming, ToWorker};

use crate::run::Cancel;
use crate::stats::median;
use crate::worker_client::WorkerClient;

/// The fault of a worker whose socket is closed, found by a send or by a receive.
const ENDED: &str = "ended unasked";

/// Times that a worker goes from another batch size to the one that is measured.
const SWITCHES: usize = 9;

/// Why a worker is measured no longer.
pub enum Trouble {
    Cancelled,
    /// Another worker has failed.
    Stopped,
    /// The rest of the sentence "a worker ...".
    Fault(String),
}

/// A worker, and what it is sent.
pub struct BareWorker<'a> {
    client: &'a mut WorkerClient,
    cancel: &'a Cancel,
    /// Slots that it goes over.
    slots: Vec<SlotId>,
    n_sent: usize,
    /// How long it may take to answer.
    pub within: Duration,
}

impl<'a> BareWorker<'a> {
    /// A worker that was started. `slots` are those that it goes over; `within` is how long it may take to answer.
    pub fn new(
        client: &'a mut WorkerClient,
        cancel: &'a Cancel,
        slots: Vec<SlotId>,
        within: Duration,
    ) -> Self {
        Self { client, cancel, slots, n_sent: 0, within }
    }

    pub fn load(&mut self, load: Load) -> Result<(), Trouble> {
        // What this build starts is this build, or a worker that refuses the load frame.
        match self.answer()? {
            FromWorker::Hello { .. } => {}
            other => return Err(unexpected("began with", &other)),
        }
        self.send(&ToWorker::Load(Box::new(load)))?;
        loop {
            return match self.answer()? {
                // Its time to load begins when the other one has built what both need.
                FromWorker::Waiting => continue,
                FromWorker::Loaded { .. } => Ok(()),
                FromWorker::LoadFailed { error, .. } => {
                    Err(Trouble::Fault(format!("could not load: {error}")))
                }
                other => Err(unexpected("answered a load with", &other)),
            };
        }
    }

    /// Sends a batch: the first rows of the next slot.
    pub fn run(&mut self, rows: usize) -> Result<(), Trouble> {
        let slot = self.slots[self.n_sent % self.slots.len()];
        let batch = BatchId(self.n_sent as u64);
        self.n_sent += 1;
        let output_slot = OutputSlotId(slot.0);
        self.send(&ToWorker::Run(Run {
            batch,
            attempt: 1,
            slot,
            output_slot,
            first_row: 0,
            rows,
            trace: None,
        }))
    }

    /// Waits for the end of a batch, and tells what it took in the worker.
    pub fn done(&mut self) -> Result<RunTiming, Trouble> {
        match self.answer()? {
            // A loop is measured up to its first checkpoint.
            FromWorker::Done { timing, .. } | FromWorker::Paused { timing, .. } => Ok(timing),
            FromWorker::Failed { error, .. } => {
                Err(Trouble::Fault(format!("could not run a batch: {error}")))
            }
            other => Err(unexpected("answered a batch with", &other)),
        }
    }

    /// Median time of a batch of `to` rows right after one of `from`: a library that keeps the plan of one shape only makes it anew.
    pub fn switch(&mut self, from: usize, to: usize) -> Result<Duration, Trouble> {
        let mut times = Vec::with_capacity(SWITCHES);
        for _ in 0..SWITCHES {
            self.run(from)?;
            self.done()?;
            self.run(to)?;
            times.push(self.done()?.total());
        }
        Ok(median(times))
    }

    pub fn cpu(&self) -> Duration {
        self.client.pid().and_then(process_cpu_time).unwrap_or_default()
    }

    fn send(&mut self, frame: &ToWorker) -> Result<(), Trouble> {
        self.client.send(frame).map_err(|error| {
            Trouble::Fault(match error {
                CodecError::Gone => ENDED.to_owned(),
                other => format!("could not be told what to do: {other}"),
            })
        })
    }

    fn answer(&mut self) -> Result<FromWorker, Trouble> {
        let (within, cancel) = (self.within, self.cancel);
        let give_up = async {
            tokio::select! {
                () = cancel.cancelled() => Trouble::Cancelled,
                () = tokio::time::sleep(within) => {
                    Trouble::Fault(format!("gave no answer within {within:?}"))
                }
            }
        };
        match self.client.answer_or(give_up)? {
            Ok(Some(frame)) => Ok(frame),
            Ok(None) => Err(Trouble::Fault(ENDED.to_owned())),
            Err(error) => Err(Trouble::Fault(format!("sent something unreadable: {error}"))),
        }
    }
}

fn unexpected(what: &str, frame: &FromWorker) -> Trouble {
    let name = match frame {
        FromWorker::Hello { .. } => "a handshake",
        FromWorker::Loaded { .. } => "the end of a load",
        FromWorker::LoadFailed { .. } => "a failed load",
        FromWorker::Done { .. } => "the end of a batch",
        FromWorker::Paused { .. } => "a checkpoint",
        FromWorker::Failed { .. } => "a failed batch",
        FromWorker::Heartbeat { .. } => "a heartbeat",
        FromWorker::Waiting => "a wait for another worker",
    };
    Trouble::Fault(format!("{what} {name}"))
}
