//! What a fake worker does, as plain values: how long things take, and what goes wrong at which point. It does nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use orchestra_core::{ErrorClass, WorkerExit};
use orchestra_worker::frames::RunErrorKind;

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A segfault: strong evidence against what ran.
pub const SEGFAULT: WorkerExit = WorkerExit::Signal(11);
/// A kill from outside: weak evidence.
pub const KILLED: WorkerExit = WorkerExit::Signal(9);
/// The exit of a worker whose device is broken.
pub const DEVICE_BROKEN: WorkerExit = WorkerExit::Code(71);

/// The life of one worker. The default is an honest one.
#[derive(Debug, Clone)]
pub struct Script {
    /// What it does before it can load.
    pub start: Start,
    /// What it does with the load frame.
    pub load: Load,
    pub load_takes: Duration,
    /// How long a batch takes.
    pub run_takes: Duration,
    /// What goes wrong at its runs, counted from 1.
    pub at_run: BTreeMap<u64, RunFault>,
    /// What goes wrong at every run that `at_run` does not name.
    pub at_every_run: Option<RunFault>,
    /// Items that do this to it, in whichever batch they come.
    pub poison: BTreeSet<u64>,
    pub poison_does: RunFault,
    /// Rows that fit into its memory, from these times of the run on (the last one that has come counts).
    pub memory: Vec<(Duration, usize)>,
    /// GiB of its GPU that it takes when it is loaded, and holds to its end. Where there are not as many, it cannot load.
    pub takes: u64,
    /// What happens so long after it was loaded, whatever it does then.
    pub later: Option<(Duration, TimedFault)>,
    /// How it obeys the request to end.
    pub ending: Ending,
    /// How long it lives on after SIGKILL, scribbling over what it ran: a process that hangs in its driver.
    pub kill_takes: Duration,
    /// What it says on stderr when it starts.
    pub says: String,
    /// Lines of noise on stderr for every run.
    pub noise: usize,
    /// How long another process keeps its stderr open after its end.
    pub stderr_stays_open: Duration,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            start: Start::Hello,
            load: Load::Works,
            load_takes: ms(100),
            run_takes: ms(10),
            at_run: BTreeMap::new(),
            at_every_run: None,
            poison: BTreeSet::new(),
            poison_does: RunFault::Die(Point::MidRun, SEGFAULT),
            memory: Vec::new(),
            takes: 0,
            later: None,
            ending: Ending::AtOnce,
            kill_takes: Duration::ZERO,
            says: String::new(),
            noise: 0,
            stderr_stays_open: Duration::ZERO,
        }
    }
}

impl Script {
    pub fn honest() -> Self {
        Self::default()
    }

    pub fn starting(start: Start) -> Self {
        Self { start, ..Self::default() }
    }

    /// It answers to the load frame like this.
    pub fn loading(load: Load) -> Self {
        Self { load, ..Self::default() }
    }

    /// This happens at its `nth` run, counted from 1.
    pub fn at_run(nth: u64, fault: RunFault) -> Self {
        Self { at_run: [(nth, fault)].into(), ..Self::default() }
    }

    /// This happens at each of its runs.
    pub fn at_every_run(fault: RunFault) -> Self {
        Self { at_every_run: Some(fault), ..Self::default() }
    }

    pub fn poisoned(items: impl IntoIterator<Item = u64>, poison_does: RunFault) -> Self {
        Self { poison: items.into_iter().collect(), poison_does, ..Self::default() }
    }

    /// It has memory for so many rows.
    pub fn with_memory(rows: usize) -> Self {
        Self { memory: vec![(Duration::ZERO, rows)], ..Self::default() }
    }

    /// It takes so many GiB of its GPU.
    pub fn taking(gib: u64) -> Self {
        Self { takes: gib, ..Self::default() }
    }

    /// This happens so long after it was loaded.
    pub fn later(after: Duration, later: TimedFault) -> Self {
        Self { later: Some((after, later)), ..Self::default() }
    }

    /// Rows that fit into its memory at this time of the run.
    pub fn rows_that_fit(&self, now: Duration) -> usize {
        self.memory.iter().rev().find(|(from, _)| *from <= now).map_or(usize::MAX, |(_, rows)| *rows)
    }

    /// What goes wrong at this run, if anything does.
    pub fn fault(&self, nth: u64, items: &[u64]) -> Option<RunFault> {
        let poisoned = items.iter().any(|i| self.poison.contains(i)).then(|| self.poison_does.clone());
        self.at_run.get(&nth).cloned().or(poisoned).or_else(|| self.at_every_run.clone())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    Hello,
    /// There is no such program.
    CannotBeStarted,
    /// It ends before it says anything.
    Dies(WorkerExit),
    /// It runs and says nothing.
    Silent,
    /// It says hello, and stops as by SIGSTOP before it reads anything.
    Freezes,
    /// It says hello in another version of the protocol.
    OtherProtocol,
    /// It is of another build.
    OtherBuild,
    /// It says hello without its `CUDA_VISIBLE_DEVICES`.
    SeesEveryDevice,
    /// It says something that is no frame.
    Garbage,
    /// It claims to be loaded without a hello.
    LoadedFirst,
}

/// What a worker does with the load frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Load {
    Works,
    /// Says that it cannot.
    Fails(ErrorClass),
    /// Ends in the middle of it.
    Dies(WorkerExit),
    /// Never gets through with it, with a beating heart.
    NeverEnds,
    /// Waits that long for another process, says so, and then loads.
    WaitsFor(Duration),
    /// Stops as by SIGSTOP in the middle of it.
    Freezes,
}

/// Where in a run a worker ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// The frame has arrived, and the worker has not read it.
    BeforeReading,
    /// Half of the outputs are written, and they are wrong.
    MidRun,
    /// All outputs are written, and nothing is said.
    AfterOutputs,
    /// Half of the done frame is out.
    MidAnswer,
    /// The whole done frame is out.
    AfterAnswer,
}

impl Point {
    pub const ALL: [Point; 5] =
        [Point::BeforeReading, Point::MidRun, Point::AfterOutputs, Point::MidAnswer, Point::AfterAnswer];
}

/// What goes wrong in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunFault {
    /// The process ends at this point.
    Die(Point, WorkerExit),
    /// The run never ends; the heart beats.
    Hang,
    /// The process stops as by SIGSTOP.
    Freeze,
    /// The run takes so long.
    Slow(Duration),
    /// Half of the done frame is out, and then nothing, not even a heartbeat.
    HalfAnswerThenSilence,
    /// The answer is for another batch.
    AnswersFor(Other),
    AnswersTwice,
    /// The answer is for the right batch, and its output is odd.
    AnswersOddly(OutputFault),
    /// Bytes that are no frame.
    Garbage,
    SecondHello,
    /// A second hello, and the right answer right behind it.
    SecondHelloThenRight,
    /// The run fails, and the process lives on (other than with `Device`).
    Fails(RunErrorKind),
    /// It says that its device is broken, and does not exit.
    BreaksAndStays,
}

/// Whose batch a wrong answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Other {
    /// Such a batch was not sent.
    Unknown,
    /// One that this worker answered for before.
    Earlier,
    /// The one that waits behind this one.
    Next,
}

/// What is odd about the output in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFault {
    /// It has one row more than the batch.
    MoreRows,
    FewerRows,
    /// Its elements are of another type.
    OtherType,
    /// It claims to be larger than any memory.
    HugeShape,
    Missing,
    /// It says that its first row is dropped, which this stage does not allow.
    Drops,
    /// It says that a row has failed that the batch does not have.
    FailsBeyond,
}

/// What happens to a loaded worker at some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimedFault {
    Dies(WorkerExit),
    /// It stops as by SIGSTOP.
    Freezes,
    /// It answers without a request.
    AnswersUnasked,
}

/// How a worker obeys the request to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// At once, also in the middle of a run.
    AtOnce,
    After(Duration),
    Never,
}
