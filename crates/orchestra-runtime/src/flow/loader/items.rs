//! The items of a loader thread on their way through its process, and through the next one when it dies. No item is lost with a process: what
//! it has not answered for goes to its successor, but for an item that is confirmed to kill.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use orchestra_core::blame::{LoaderBlame, LoaderDeathOutcome};
use orchestra_core::data::ItemError;
use orchestra_core::{FailureKind, WorkerExit};
use orchestra_worker::exit_codes::EXIT_NO_MEMORY;

use super::child::LostLoader;
use super::exclusive::ExclusiveLoad;
use super::process::{LoadedItem, LoaderProcess};
use super::setup::LoaderSetup;
use super::work::took_too_long;
use crate::child::spawn::ProcessLauncher;
use crate::flow::chain::own_bytes;
use crate::flow::loader::inbox::Inbox;
use crate::flow::ticket::Ticket;

/// A process is given so much work ahead, as far as it is known how long an item takes.
const AHEAD: Duration = Duration::from_millis(8);
/// The fewest items ahead, so that a process never waits for the next.
const FEWEST_AHEAD: usize = 4;
const MOST_AHEAD: usize = 256;
/// Between two looks whether no other loader has an item alone.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two starts of processes of which none has loaded anything.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Items between the inbox of a thread and its chain.
pub struct LoaderItems<'a> {
    setup: &'a LoaderSetup,
    inbox: &'a Inbox,
    process: Option<LoaderProcess<'a>>,
    /// Those that no process has answered for, in their order.
    pub unanswered: VecDeque<Ticket>,
    /// How many of them the process in hand was given.
    n_given: usize,
    /// So many of them, from the front, are given one at a time: a suspect, or those that a process had when it ran wild.
    one_by_one: usize,
    /// There while the suspect in front is to have what the shares of all other loaders leave of the memory.
    turn: Option<ExclusiveLoad>,
    /// How many places it may read.
    n_places: usize,
    /// What an item takes, as a moving mean.
    took: Duration,
    blame: LoaderBlame,
    n_started: u64,
    pause: Duration,
}

pub enum ItemOutcome {
    /// Where it was alone, with that turn: to be held until the row is taken on.
    Loaded(Ticket, LoadedItem, Option<ExclusiveLoad>),
    /// It fails, after so many tries.
    Failed(Ticket, ItemError, u32),
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
            unanswered: inbox.take_back(),
            n_given: 0,
            one_by_one: 0,
            turn: None,
            n_places: 0,
            took: AHEAD,
            blame: LoaderBlame::default(),
            n_started: 0,
            pause: setup.first_pause,
        }
    }

    pub fn push(&mut self, item: Ticket) {
        self.unanswered.push_back(item);
    }

    pub fn is_empty(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// How many more items it should have; none as long as it has enough, so that they come several at a time.
    pub fn wanted(&self) -> usize {
        let ahead = AHEAD.as_nanos() / self.took.as_nanos().max(1);
        let ahead = usize::try_from(ahead).unwrap_or(MOST_AHEAD).clamp(FEWEST_AHEAD, MOST_AHEAD);
        if self.unanswered.len() > ahead / 2 { 0 } else { ahead - self.unanswered.len() }
    }

    /// Starts a process, if there is none, before there is any item.
    pub fn start(&mut self) -> Result<(), LostLoader> {
        if self.process.is_none() {
            let mut load = self.setup.load();
            if self.turn.is_some() {
                load.region_bytes = load.most_region_bytes;
                load.memory = own_bytes(self.setup.alone_bytes, load.region_bytes);
            }
            self.n_places = load.readable.len();
            // One that dies before it is ready is replaced like any other.
            self.n_started += 1;
            if self.n_started > 1 {
                self.setup.stats.loader_restarts.add(1);
            }
            self.process = Some(LoaderProcess::start(self.setup, &load, self.inbox)?);
        }
        Ok(())
    }

    /// Waits until something has become of an item. There is one.
    pub fn next(&mut self) -> ItemOutcome {
        loop {
            if let Some(loaded) = self.process.as_mut().and_then(LoaderProcess::take_ready)
                && let Some(item) = self.unanswered.pop_front()
            {
                if loaded.was_not_read() && self.setup.readable.add_for(item.locator(), self.n_places) {
                    // Its file lies elsewhere: a process that may read there goes on. None was lost.
                    self.unanswered.push_front(item);
                    (self.process, self.n_given, self.n_started) = (None, 0, 0);
                    continue;
                }
                self.n_given = self.n_given.saturating_sub(1);
                self.one_by_one = self.one_by_one.saturating_sub(1);
                self.blame.loaded(item.id().index);
                self.took = (self.took * 7 + loaded.took) / 8;
                self.pause = self.setup.first_pause;
                let turn = self.turn.take();
                if turn.is_some() {
                    // The next process has its share of the memory again.
                    (self.process, self.n_given, self.n_started) = (None, 0, 0);
                }
                return ItemOutcome::Loaded(item, loaded, turn);
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

    fn go_on(&mut self) -> Result<(), LostLoader> {
        self.start()?;
        let Some(process) = &mut self.process else { return Ok(()) };
        let most = if self.one_by_one > 0 { 1 - self.n_given.min(1) } else { usize::MAX };
        let new = self.unanswered.range(self.n_given..).take(most).map(Ticket::locator);
        self.n_given += process.send(new)?;
        process.wait(Instant::now() + self.setup.limits.item_timeout)
    }

    /// A process is gone, and with it what it had begun. `None`: another one goes on.
    fn lost(&mut self, lost: LostLoader) -> Option<ItemOutcome> {
        self.process = None;
        let had = std::mem::take(&mut self.n_given);
        if self.inbox.is_closed() {
            return Some(ItemOutcome::Closed);
        }
        let through = usize::try_from(lost.through).unwrap_or(usize::MAX);
        if had > 1 && through > had {
            // It wrote over the memory in which it says how far it is, so any of its items may have been the one, and none is blamed for others. A
            // process with one item leaves no doubt.
            tracing::warn!(exit = %lost.exit, last_words = %lost.last_words, "a loader ran wild, the items that it had are loaded one by one");
            self.one_by_one = had;
            return None;
        }
        let at = through.min(had.saturating_sub(1));
        // Likewise where no process could be started that was to have all the memory for it.
        let had_begun = had > 0 || self.turn.is_some();
        let suspect = if had_begun { self.unanswered.remove(at) } else { None };
        let (name, index) = suspect.as_ref().map(|item| (item.name().to_owned(), item.id().index)).unzip();
        self.one_by_one = self.one_by_one.saturating_sub(usize::from(had_begun));
        tracing::warn!(item = name, exit = %lost.exit, last_words = %lost.last_words, "a loader is gone, another one goes on");
        match (self.blame.died(&lost.exit, lost.no_memory(), index), suspect) {
            (LoaderDeathOutcome::Confirmed(kind, tries), Some(item)) => {
                self.turn = None;
                return Some(ItemOutcome::Failed(item, self.item_error(kind, &lost, tries), tries));
            }
            (LoaderDeathOutcome::GiveUp, _) => return Some(self.given_up(&lost)),
            (outcome, Some(item)) => {
                self.unanswered.push_front(item);
                self.one_by_one += 1;
                if outcome == LoaderDeathOutcome::RetryWithAllMemory {
                    self.turn = self.wait_for_turn();
                }
            }
            (_, None) => {}
        }
        if had == 0 {
            self.pause();
        }
        None
    }

    /// `None`: the run is over. Meanwhile the share of this loader is free: it has no process.
    fn wait_for_turn(&self) -> Option<ExclusiveLoad> {
        loop {
            let turn = self.setup.alone.take();
            if turn.is_some() || self.inbox.is_closed() {
                return turn;
            }
            self.inbox.pause(PAUSE);
        }
    }

    fn pause(&mut self) {
        self.inbox.pause(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    fn given_up(&self, lost: &LostLoader) -> ItemOutcome {
        ItemOutcome::GivenUp(format!(
            "its loaders cannot be started: {}",
            lost.why_none(&self.setup.launcher)
        ))
    }

    fn item_error(&self, kind: FailureKind, lost: &LostLoader, tries: u32) -> ItemError {
        let error = match kind {
            FailureKind::Timeout => took_too_long(&self.setup.limits),
            FailureKind::OutOfMemory => format!(
                "reading and decoding takes more than the {} MiB that a loader may take{}; raise `limits.memory`",
                self.setup.alone_bytes >> 20,
                lost.words()
            ),
            _ => format!("it ended {tries} loaders, the last one {}{}", lost.exit, lost.words()),
        };
        ItemError { kind, error }
    }
}

impl LoadedItem {
    /// Its file could not be opened or read.
    fn was_not_read(&self) -> bool {
        matches!(&self.answer.rows, Err((None, refused)) if refused.kind == FailureKind::Read)
    }
}

impl LostLoader {
    /// Why no process can be started, of the last one that was tried, and what to do.
    pub fn why_none(&self, launcher: &ProcessLauncher) -> String {
        let program = launcher.program.display();
        let is_no_loader = format!(
            "; `{program} worker loader` must be a loader: a program that embeds orchestra calls `orchestra::run_if_worker()` for that"
        );
        let hint = match self.exit {
            WorkerExit::Code(_) => is_no_loader,
            WorkerExit::HandshakeTimeout => {
                format!("{is_no_loader}; where it is one, this machine is too busy: lower `limits.loaders`")
            }
            WorkerExit::ProtocolMismatch(_) => {
                format!("; `{program} worker loader` must be of the version of this program: build or install both anew")
            }
            WorkerExit::Signal(_) | WorkerExit::Silent => {
                "; each of them is ended before it has read an item: a bound of memory (`ulimit`, a control group) may be too low, or other \
                 software ends them"
                    .to_owned()
            }
            _ => String::new(),
        };
        format!("the last one {}{}{hint}", self.exit, self.words())
    }

    /// It ended because it was refused memory, by what an allocation says that fails, or was refused it before it began.
    pub fn no_memory(&self) -> bool {
        self.without_memory
            || self.exit == WorkerExit::Code(EXIT_NO_MEMORY)
            || self.exit.was_refused_memory(&self.last_words)
    }

    pub fn words(&self) -> String {
        match &self.last_words[..] {
            "" if self.without_memory => format!(" ({})", self.exit),
            "" => String::new(),
            words => format!(" ({words})"),
        }
    }
}
