//! What a worker was sent and has not answered, and which of it runs. It sends nothing, and reads no clock.

use std::collections::VecDeque;
use std::time::Duration;

use orchestra_core::BatchId;

/// The batches that are with one worker, in the order in which it begins them.
#[derive(Debug)]
pub struct UnansweredRuns {
    /// Batches that run at once, at least 1.
    pub streams: usize,
    pub runs: VecDeque<UnansweredRun>,
    /// It has reported a broken device, is about to exit, and begins nothing more.
    pub is_broken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnansweredRun {
    pub batch: BatchId,
    pub rows: usize,
    /// Since when it has been one of those that the worker runs; `None`: it waits there.
    pub begun: Option<Duration>,
}

impl UnansweredRuns {
    /// Nothing yet, with a worker that runs up to `streams` batches at once.
    pub fn new(streams: usize) -> Self {
        Self { streams: streams.max(1), runs: VecDeque::new(), is_broken: false }
    }

    pub fn push(&mut self, batch: BatchId, rows: usize) {
        self.runs.push_back(UnansweredRun { batch, rows, begun: None });
    }

    /// The first of those that wait count as begun, as many as run at once.
    pub fn begin(&mut self, now: Duration) {
        let n = if self.is_broken { 0 } else { self.streams };
        for run in self.runs.iter_mut().take(n) {
            run.begun.get_or_insert(now);
        }
    }

    /// Takes out the batch that was answered, if it is one of those that run. Else it says which ones do, in words.
    pub fn answered(&mut self, batch: BatchId) -> Result<UnansweredRun, String> {
        let at = self.runs.iter().position(|run| run.batch == batch && run.begun.is_some());
        at.and_then(|at| self.runs.remove(at)).ok_or_else(|| {
            let running: Vec<String> = self.begun().map(|(batch, _)| batch.to_string()).collect();
            if running.is_empty() { "none".to_owned() } else { running.join(" or ") }
        })
    }

    /// What runs, and since when, oldest first.
    pub fn begun(&self) -> impl Iterator<Item = (BatchId, Duration)> {
        self.runs.iter().filter_map(|run| Some((run.batch, run.begun?)))
    }
}
