//! What fake workers did, and when: the evidence that tests look at. It judges nothing.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestra_core::{BatchId, WorkerExit};
use tokio::time::Instant;

/// Something that a fake worker did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Its process was started, on this device.
    Started(usize),
    Loaded,
    /// It began a batch.
    Began {
        batch: BatchId,
        /// How often these rows were begun, as the parent says.
        attempt: u32,
        items: Vec<u64>,
    },
    Answered(BatchId),
    ToldToEnd,
    /// Its process is gone.
    Ended(WorkerExit),
}

/// The log of one run. Its clones are the same log.
#[derive(Debug, Clone)]
pub struct Log {
    start: Instant,
    events: Arc<Mutex<Vec<(usize, Duration, Act)>>>,
}

/// A batch in the hands of a worker.
#[derive(Debug, Clone)]
pub struct Begun {
    pub batch: BatchId,
    /// When the worker began it.
    pub at: Duration,
    /// When the worker answered, if it did.
    pub answered: Option<Duration>,
    /// How often these rows were begun, as the parent says.
    pub attempt: u32,
    pub items: Vec<u64>,
}

/// What one worker did.
#[derive(Debug, Clone, Default)]
pub struct Life {
    /// Its place in the order of all starts, from 1.
    pub nth: usize,
    pub device: usize,
    pub started: Duration,
    /// When it was loaded, if it ever was.
    pub loaded: Option<Duration>,
    /// The batches that it began.
    pub runs: Vec<Begun>,
    /// When it was told to end.
    pub told: Option<Duration>,
    /// When and how it ended.
    pub ended: Option<(Duration, WorkerExit)>,
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nth, device, started, loaded, runs, told, ended } = self;
        write!(f, "worker {nth} on {device}: started {started:?}, loaded {loaded:?}, ")?;
        for Begun { at, answered, attempt, items, .. } in runs {
            let (first, n) = (items.first(), items.len());
            write!(f, "[{at:?}: {n} from {first:?}, attempt {attempt}, answered {answered:?}] ")?;
        }
        write!(f, "told {told:?}, ended {ended:?}")
    }
}

impl Life {
    /// When it ended. It has to have ended.
    pub fn end(&self) -> Duration {
        self.ended.as_ref().expect("every worker has ended when a run is over").0
    }

    /// Whether it was loaded and alive at this time.
    pub fn serves_at(&self, at: Duration) -> bool {
        self.loaded.is_some_and(|l| l <= at) && self.ended.as_ref().is_none_or(|(e, _)| *e > at)
    }
}

impl Log {
    pub fn start() -> Self {
        Self { start: Instant::now(), events: Arc::default() }
    }

    /// Another log, whose times are those of this one.
    pub fn of_the_same_time(&self) -> Self {
        Self { start: self.start, events: Arc::default() }
    }

    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Adds what the `nth` worker did just now.
    pub fn add(&self, nth: usize, what: Act) {
        self.events.lock().unwrap().push((nth, self.now(), what));
    }

    /// The lives of all workers, in the order of their starts.
    pub fn lives(&self) -> Vec<Life> {
        let mut lives: Vec<Life> = Vec::new();
        for (nth, at, what) in self.events.lock().unwrap().iter().cloned() {
            if let Act::Started(device) = what {
                lives.push(Life { nth, device, started: at, ..Life::default() });
                continue;
            }
            let life =
                lives.iter_mut().find(|l| l.nth == nth).expect("a worker that does something was started");
            match what {
                Act::Started(_) => {}
                Act::Loaded => life.loaded = Some(at),
                Act::Began { batch, attempt, items } => {
                    life.runs.push(Begun { batch, at, answered: None, attempt, items });
                }
                Act::Answered(batch) => {
                    let run = life.runs.iter_mut().find(|run| run.batch == batch);
                    run.expect("it runs that").answered = Some(at);
                }
                Act::ToldToEnd => life.told = life.told.or(Some(at)),
                Act::Ended(exit) => life.ended = Some((at, exit)),
            }
        }
        lives
    }
}
