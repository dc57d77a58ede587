//! The items of a loader thread on their way through its process, and through the next one when it dies. No item is lost with a process: what
//! it has not answered for goes to its successor, but for an item that is proven to kill.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use orchestra_core::data::Refusal;
use orchestra_core::loader_blame::{LoaderBlame, LoaderVerdict};
use orchestra_core::{FailureKind, SourceId, WorkerExit};
use orchestra_plan::Limits;
use orchestra_worker::loader::events::{Event, LoadChain};
use orchestra_worker::process::EXIT_NO_MEMORY;

use super::process::{LoadedItem, LoaderProcess, Lost};
use super::reads::Reads;
use crate::account::stats::Stats;
use crate::context::RunClock;
use crate::fleet::launcher::ProcessLauncher;
use crate::flow::loader::inbox::Inbox;
use crate::flow::loader::thread::took_too_long;
use crate::flow::ticket::Ticket;
use crate::trace::MaybeTracer;

/// A process is given so much work ahead, as far as it is known how long an item takes.
const AHEAD: Duration = Duration::from_millis(8);
/// The fewest items ahead, so that a process never waits for the next.
const FEWEST_AHEAD: usize = 4;
/// The most items ahead.
const MOST_AHEAD: usize = 128;
/// After a process that could not be started, and twice as long after each further one.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How the loader processes of a source are started.
pub struct LoaderSetup {
    pub launcher: ProcessLauncher,
    pub load: LoadChain,
    pub reads: Reads,
    /// Bytes of memory that a process gets for an item that does not fit into its part, one such item at a time.
    pub all_memory: u64,
    pub alone: Mutex<()>,
    /// Of its pipeline.
    pub limits: Limits,
    pub stats: Arc<Stats>,
    pub source: SourceId,
    pub tracer: MaybeTracer,
    pub clock: RunClock,
}

/// Items between the inbox of a thread and its chain.
pub struct LoaderItems<'a> {
    setup: &'a LoaderSetup,
    inbox: &'a Inbox,
    process: Option<LoaderProcess<'a>>,
    /// Those that no process has answered for, in their order.
    pub waiting: VecDeque<Ticket>,
    /// How many of them the process in hand was given.
    n_given: usize,
    /// How many places it may read.
    n_places: usize,
    /// What an item takes, as a moving mean.
    took: Duration,
    blame: LoaderBlame,
    n_started: u64,
    pause: Duration,
}

pub enum ItemOutcome {
    Loaded(Ticket, LoadedItem),
    /// It fails, after so many tries.
    Failed(Ticket, Refusal, u32),
    /// No process can be started, for this reason.
    GivenUp(String),
    /// The run is over.
    Closed,
}

impl<'a> LoaderItems<'a> {
    pub fn new(setup: &'a LoaderSetup, inbox: &'a Inbox) -> Self {
        Self {
            setup,
            inbox,
            process: None,
            waiting: inbox.end(),
            n_given: 0,
            n_places: 0,
            took: AHEAD,
            blame: LoaderBlame::default(),
            n_started: 0,
            pause: PAUSE,
        }
    }

    pub fn push(&mut self, item: Ticket) {
        self.waiting.push_back(item);
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many more items it should have; none as long as it has enough, so that they come several at a time.
    pub fn wanted(&self) -> usize {
        let ahead = AHEAD.as_nanos() / self.took.as_nanos().max(1);
        let ahead = usize::try_from(ahead).unwrap_or(MOST_AHEAD).clamp(FEWEST_AHEAD, MOST_AHEAD);
        if self.waiting.len() > ahead / 2 { 0 } else { ahead - self.waiting.len() }
    }

    /// Starts a process, if there is none, before there is any item.
    pub fn start(&mut self) -> Result<(), Lost> {
        if self.process.is_none() {
            let load = self.setup.load();
            self.n_places = load.reads.len();
            let process = LoaderProcess::start(self.setup, &load, self.inbox)?;
            self.n_started += 1;
            if self.n_started > 1 {
                self.setup.stats.loader_restarts.add(1);
            }
            self.process = Some(process);
        }
        Ok(())
    }

    /// Waits until something has become of an item. There is one.
    pub fn next(&mut self) -> ItemOutcome {
        loop {
            if let Some(loaded) = self.process.as_mut().and_then(LoaderProcess::take_ready)
                && let Some(item) = self.waiting.pop_front()
            {
                if loaded.was_not_read() && self.setup.reads.lead_to(locator(&item), self.n_places) {
                    // Its file lies elsewhere: a process that may read there goes on. None was lost.
                    self.waiting.push_front(item);
                    (self.process, self.n_given, self.n_started) = (None, 0, 0);
                    continue;
                }
                self.n_given = self.n_given.saturating_sub(1);
                self.blame.loaded(item.id().index);
                self.took = (self.took * 7 + loaded.took) / 8;
                self.pause = PAUSE;
                return ItemOutcome::Loaded(item, loaded);
            }
            if self.inbox.is_closed() {
                return ItemOutcome::Closed;
            }
            if let Err(lost) = self.go_on()
                && let Some(next) = self.lost(lost)
            {
                return next;
            }
        }
    }

    fn go_on(&mut self) -> Result<(), Lost> {
        self.start()?;
        let Some(process) = &mut self.process else { return Ok(()) };
        let new = self.waiting.range(self.n_given..).map(locator);
        self.n_given += process.send(new)?;
        process.wait(Instant::now() + self.setup.limits.item_timeout)
    }

    /// A process is gone, and with it what it had begun. `None`: another one goes on.
    fn lost(&mut self, lost: Lost) -> Option<ItemOutcome> {
        self.process = None;
        let had = std::mem::take(&mut self.n_given);
        if self.inbox.is_closed() {
            return Some(ItemOutcome::Closed);
        }
        // What a process says of itself may be wrong, when it ran wild. One of its own items it was.
        let at = usize::try_from(lost.through).unwrap_or(usize::MAX).min(had.saturating_sub(1));
        let suspect = self.waiting.get(at).filter(|_| had > 0).cloned();
        let verdict =
            self.blame.died(&lost.exit, lost.no_memory(), suspect.as_ref().map(|item| item.id().index));
        let name = suspect.as_ref().map(|item| item.name().to_owned());
        tracing::warn!(item = name, exit = %lost.exit, last_words = %lost.last_words, "a loader is gone, another one goes on");
        match (verdict, suspect) {
            (LoaderVerdict::Fail(kind, tries), Some(item)) => {
                self.waiting.remove(at);
                Some(ItemOutcome::Failed(item, self.refusal(kind, &lost, tries), tries))
            }
            (LoaderVerdict::Alone, Some(item)) => {
                self.waiting.remove(at);
                Some(self.alone(item))
            }
            (LoaderVerdict::GiveUp, _) => Some(self.given_up(&lost)),
            _ => {
                if had == 0 {
                    self.pause();
                }
                None
            }
        }
    }

    /// Loads an item in a process of its own, with all the memory that loaders may take; one item at a time in all the source.
    fn alone(&mut self, item: Ticket) -> ItemOutcome {
        let _one_at_a_time = loop {
            match self.setup.alone.try_lock() {
                Ok(lock) => break lock,
                Err(TryLockError::Poisoned(lock)) => break lock.into_inner(),
                Err(TryLockError::WouldBlock) if self.inbox.is_closed() => return ItemOutcome::Closed,
                Err(TryLockError::WouldBlock) => self.inbox.pause(PAUSE),
            }
        };
        let load = self.setup.load();
        let load = LoadChain { memory: self.setup.all_memory, region_bytes: load.most_region_bytes, ..load };
        loop {
            let loaded = LoaderProcess::start(self.setup, &load, self.inbox).and_then(|mut process| {
                process.send(std::iter::once(locator(&item)))?;
                while process.is_ready_empty() {
                    process.wait(Instant::now() + self.setup.limits.item_timeout)?;
                }
                Ok(process.take_ready())
            });
            let lost = match loaded {
                Ok(Some(loaded)) => {
                    self.blame.loaded(item.id().index);
                    return ItemOutcome::Loaded(item, loaded);
                }
                Ok(None) => continue,
                Err(lost) => lost,
            };
            if self.inbox.is_closed() {
                return ItemOutcome::Closed;
            }
            match self.blame.died(&lost.exit, lost.no_memory(), Some(item.id().index)) {
                LoaderVerdict::Fail(kind, tries) => {
                    let refusal = self.refusal(kind, &lost, tries);
                    return ItemOutcome::Failed(item, refusal, tries);
                }
                LoaderVerdict::GiveUp => return self.given_up(&lost),
                LoaderVerdict::GoOn | LoaderVerdict::Alone => self.pause(),
            }
        }
    }

    fn pause(&mut self) {
        self.inbox.pause(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    fn given_up(&self, lost: &Lost) -> ItemOutcome {
        let hint = match lost.exit {
            WorkerExit::Code(_) => format!(
                "; `{} worker loader` must be a loader: a program that embeds orchestra calls `orchestra::worker_main()` for that",
                self.setup.launcher.program.display()
            ),
            _ => String::new(),
        };
        ItemOutcome::GivenUp(format!(
            "its loaders cannot be started: the last one {}{}{hint}",
            lost.exit,
            lost.words()
        ))
    }

    fn refusal(&self, kind: FailureKind, lost: &Lost, tries: u32) -> Refusal {
        let error = match kind {
            FailureKind::Timeout => took_too_long(&self.setup.limits),
            FailureKind::OutOfMemory => format!(
                "reading and decoding takes more than the {} MiB that loaders may take{}; raise `limits.memory`",
                self.setup.all_memory >> 20,
                lost.words()
            ),
            _ => format!("it ended {tries} loaders, the last one {}{}", lost.exit, lost.words()),
        };
        Refusal { kind, error }
    }
}

impl LoaderSetup {
    /// What a process is told that starts now.
    fn load(&self) -> LoadChain {
        LoadChain { reads: self.reads.now(), ..self.load.clone() }
    }
}

fn locator(item: &Ticket) -> &[u8] {
    item.path().as_os_str().as_bytes()
}

impl LoadedItem {
    /// Its file could not be opened or read.
    fn was_not_read(&self) -> bool {
        matches!(self.events.first(), Some(Event::Read(Err(refused))) if refused.kind == FailureKind::Read)
    }
}

impl Lost {
    /// It ended because it was refused memory: what an allocation says that fails.
    fn no_memory(&self) -> bool {
        let aborted = self.exit == WorkerExit::Signal(libc::SIGABRT);
        self.exit == WorkerExit::Code(EXIT_NO_MEMORY)
            || (aborted && self.last_words.contains("memory allocation of"))
    }

    fn words(&self) -> String {
        match &self.last_words[..] {
            "" => String::new(),
            words => format!(" ({words})"),
        }
    }
}
