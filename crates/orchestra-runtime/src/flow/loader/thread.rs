//! The thread of a loader: takes items through the chain behind their source, up to the first batch. It has a process that reads and decodes
//! them, or does that itself where nothing starts such processes. It talks to actors only by sending, and waits only for work, for its process
//! and for a free row.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestra_core::FailureKind;
use orchestra_core::data::{ItemError, Value, with_values};
use orchestra_core::shapes::{FetchRun, MapRuns, RowScope};
use orchestra_plan::Origin;
use rustix::thread::sched_setaffinity;

use crate::child::spawn::cpu_set;
use crate::flow::chain::Outcome;
use crate::flow::loader::inbox::{Abandoned, Inbox, NextItem, WhenEmpty};
use crate::flow::loader::items::{ItemOutcome, LoaderItems};
use crate::flow::loader::setup::LoaderSetup;
use crate::flow::loader::work::{LoaderTally, LoaderWork, took_too_long};
use crate::flow::loader::{ExclusiveLoad, LoadedItem};
use crate::flow::ticket::Ticket;
use crate::flow::token::Token;
use crate::messages::{PipelineMsg, SourceMsg};
use crate::trace::timeline::Loading;

/// Loaders whose processes are started before there is an item; those of the others with their first one, which a short list never gives them.
const STARTED_EARLY: usize = 4;

pub fn start(work: &Arc<LoaderWork>, me: usize) -> io::Result<Arc<Inbox>> {
    start_with(work, me, Inbox::new(VecDeque::new(), VecDeque::new()))
}

/// Starts thread `me`, which works off what is in the inbox, and then asks for more.
fn start_with(work: &Arc<LoaderWork>, me: usize, inbox: Inbox) -> io::Result<Arc<Inbox>> {
    let inbox = Arc::new(inbox);
    let (work, theirs) = (Arc::clone(work), Arc::clone(&inbox));
    let affinity = work.context.plan.loader_affinity.as_ref().map(|near| cpu_set(&near.cores));
    std::thread::Builder::new().name("loader".into()).spawn(move || {
        // Where the kernel refuses, it runs anywhere, which costs a little speed. Its processes are kept there, too.
        if let Some(Err(error)) = affinity.map(|cores| sched_setaffinity(None, &cores)) {
            tracing::warn!(%error, "a loader cannot be kept near the devices");
        }
        let ran = catch_unwind(AssertUnwindSafe(|| match &work.setup {
            Some(setup) => ProcessThread::new(&work, &theirs, setup).run(me),
            None => LocalThread::new(&work, &theirs).run(me),
        }));
        if ran.is_err() {
            // A bug of ours. The source fails with it, so that the pipeline is built anew and nothing waits for this thread.
            drop(work.from.cast(SourceMsg::LoaderPanicked));
        }
        // What is shared with the pipeline goes first, so that nothing of it is left when the end is known.
        drop(work);
        theirs.thread_ended();
    })?;
    Ok(inbox)
}

/// Gives thread `me` up if a file or a picture has kept it for too long: that item is failed by name, and another thread goes on.
/// What a process does has a deadline of its own.
pub fn replace_if_stuck(work: &Arc<LoaderWork>, me: usize, inbox: &mut Arc<Inbox>) -> io::Result<()> {
    let limits = work.context.plan.limits_of_source(work.source);
    let limit = limits.item_timeout;
    let Some(abandoned) = inbox.abandon_if_stuck(limit) else { return Ok(()) };
    let Abandoned { stuck, since, rest, unanswered, tally } = abandoned;
    tally.book(work);
    *inbox = start_with(work, me, Inbox::new(rest, unanswered))?;
    if let Some(timeline) = stuck.timeline() {
        let (began, left) = (work.context.clock.at(since), work.context.clock.now());
        timeline.loaded(Loading { began, read: None, left });
    }
    let error = took_too_long(limits);
    tracing::warn!(item = %stuck.name(), %error, "item given up, its thread is replaced");
    let mut out = Outcome::default();
    work.fail(&Token::whole(stuck), ItemError { kind: FailureKind::Timeout, error }, 1, &mut out);
    work.chain.send(&mut out);
    work.loaded.add(1);
    Ok(())
}

impl LoaderWork {
    /// Fails an item that has come to no stage yet. Where its source is away, that is no fault of the item, which has no end then: the run has.
    fn fail(&self, token: &Token, item_error: ItemError, attempts: u32, out: &mut Outcome) {
        if item_error.kind == FailureKind::Unreachable {
            let source = &self.context.plan.sources[self.source.index()].name;
            let why = format!("the items of source `{source}` cannot be read now: {}", item_error.error);
            drop(self.pipeline.cast(PipelineMsg::SourceFailed(why)));
            return;
        }
        self.context.stats.stage(self.chain.first_stage()).entered.add(1);
        self.chain.fail_in_front(token, item_error, attempts, out);
    }

    /// Notes and sends what became of an item.
    fn finish(&self, token: &Token, runs: &mut MapRuns, out: &mut Outcome, times: &Times) -> LoaderTally {
        let Times { began, read_after, left_after, waited, .. } = *times;
        if let Some(item) = token.ticket.timeline() {
            let start = self.context.clock.at(began);
            item.loaded(Loading {
                began: start,
                read: read_after.map(|after| start + after),
                left: start + left_after,
            });
        }
        let tally = LoaderTally {
            loaded: 1,
            bytes: times.bytes,
            decoding: left_after,
            waiting_for_row: waited,
            loading: times.busy.saturating_sub(waited),
            counts: std::mem::take(&mut runs.counts),
        };
        self.chain.send(out);
        out.text.clear();
        tally
    }
}

/// How an item was loaded. Durations from `began`; `read_after` is `None` in an untraced run or where reading failed.
struct Times {
    began: Instant,
    read_after: Option<Duration>,
    left_after: Duration,
    /// All that was done, with waiting for a row.
    busy: Duration,
    waited: Duration,
    bytes: u64,
}

/// Reads and decodes in this thread.
struct LocalThread<'a> {
    work: &'a LoaderWork,
    inbox: &'a Inbox,
    fetch: Box<dyn FetchRun>,
    runs: MapRuns,
    out: Outcome,
}

impl<'a> LocalThread<'a> {
    fn new(work: &'a LoaderWork, inbox: &'a Inbox) -> Self {
        Self { work, inbox, fetch: work.fetch.start(), runs: MapRuns::default(), out: Outcome::default() }
    }

    fn run(mut self, me: usize) {
        let mut tally = LoaderTally::default();
        while let NextItem::Item(ticket, started) =
            self.inbox.next(std::mem::take(&mut tally), self.work, me, WhenEmpty::Wait)
        {
            tally = self.item(ticket, started);
        }
    }

    fn item(&mut self, ticket: Ticket, started: Instant) -> LoaderTally {
        let work = self.work;
        let token = Token::whole(ticket);
        let is_traced = token.ticket.timeline().is_some();
        let brought = token.ticket.row();
        // A panic in here is a bug of ours; it fails the item by name instead of losing it with its thread.
        let fetched = catch_unwind(AssertUnwindSafe(|| match brought {
            Some(_) => Ok(0),
            None => self.fetch.fetch(token.ticket.locator()),
        }));
        let fetched = fetched.unwrap_or_else(|_| {
            self.fetch = work.fetch.start();
            let error = "internal error while the item was read; this is a bug".to_owned();
            Err(ItemError { kind: FailureKind::Read, error })
        });
        let read_after = (fetched.is_ok() && is_traced).then(|| started.elapsed());
        let mut in_hand = ItemInHand::new(self.inbox);
        let (mut bytes, from) = (0, Origin::Source(work.source));
        match fetched {
            Ok(read) => {
                bytes = read;
                // Before its row is handed on: what follows may end the item.
                for (what, n) in self.fetch.left_out() {
                    work.context.stats.left_out.add(token.ticket.id(), from, what, n);
                }
                let (runs, out) = (&mut self.runs, &mut self.out);
                let mut take = |row: &[Value<'_>]| {
                    let scope = RowScope { from, row, carried: &[], up: None };
                    work.chain.row(runs, &token, &scope, out, Some(&mut in_hand));
                };
                match brought {
                    Some(row) => with_values(row, &mut take),
                    None => self.fetch.with_row(&mut take),
                }
            }
            Err(item_error) => {
                if in_hand.leaves_loading() {
                    work.fail(&token, item_error, 1, &mut self.out);
                }
            }
        }
        // What failed before it was handed on has not said so yet.
        in_hand.leaves_loading();
        let ItemInHand { left_at, given_up, waited, .. } = in_hand;
        if given_up {
            // The item was given up meanwhile, and reported.
            self.out = Outcome::default();
            return LoaderTally::default();
        }
        let left_after = left_at.map_or(Duration::ZERO, |left_at| left_at - started);
        let busy = started.elapsed();
        let times = Times { began: started, read_after, left_after, busy, waited, bytes };
        work.finish(&token, &mut self.runs, &mut self.out, &times)
    }
}

/// Has items read and decoded by a process.
struct ProcessThread<'a> {
    work: &'a LoaderWork,
    inbox: &'a Inbox,
    setup: &'a LoaderSetup,
    items: LoaderItems<'a>,
    runs: MapRuns,
    out: Outcome,
}

impl<'a> ProcessThread<'a> {
    fn new(work: &'a LoaderWork, inbox: &'a Inbox, setup: &'a LoaderSetup) -> Self {
        let items = LoaderItems::new(setup, inbox);
        Self { work, inbox, setup, items, runs: MapRuns::default(), out: Outcome::default() }
    }

    fn run(mut self, me: usize) {
        if me < STARTED_EARLY {
            // While the list of items begins. Should it fail, the first item finds that out again.
            drop(self.items.start());
        }
        let mut tally = LoaderTally::default();
        loop {
            for _ in 0..self.items.wanted() {
                let none_there = if self.items.is_empty() { WhenEmpty::Wait } else { WhenEmpty::GoOn };
                match self.inbox.next(std::mem::take(&mut tally), self.work, me, none_there) {
                    NextItem::Item(item, _) if item.is_withdrawn() => tally.add(self.dropped(item)),
                    NextItem::Item(item, _) => self.items.push(item),
                    NextItem::None => break,
                    NextItem::Closed => return,
                }
            }
            tally.add(match self.items.next() {
                ItemOutcome::Loaded(item, loaded, turn) => self.loaded(item, loaded, turn),
                ItemOutcome::Failed(item, item_error, tries) => self.failed(item, item_error, tries),
                ItemOutcome::GivenUp(why) => {
                    let source = &self.work.context.plan.sources[self.work.source.index()].name;
                    let why = format!("source `{source}`: {why}");
                    drop(self.work.pipeline.cast(PipelineMsg::NoDevice(why)));
                    return;
                }
                ItemOutcome::Closed => return,
            });
        }
    }

    fn loaded(&mut self, item: Ticket, loaded: LoadedItem, turn: Option<ExclusiveLoad>) -> LoaderTally {
        let (work, since) = (self.work, Instant::now());
        let token = Token::whole(item);
        let LoadedItem { answer, region, began, read, took, .. } = loaded;
        // What stands here in front of the first batch may be code of a host that never comes back.
        self.inbox.lend(&token.ticket, since, &mut self.items.unanswered, turn);
        let mut in_hand = ItemInHand::new(self.inbox);
        let (runs, out, bytes) = (&mut self.runs, &mut self.out, answer.read_bytes);
        let sent = (&self.setup.rows, answer, &*region);
        let loaded = work.chain.loaded(runs, &token, sent, out, &mut in_hand);
        let read_after = loaded.is_ok().then_some(read);
        if let Err(item_error) = loaded
            && in_hand.leaves_loading()
        {
            work.fail(&token, item_error, 1, out);
        }
        in_hand.leaves_loading();
        drop(region);
        self.items.unanswered = self.inbox.take_back();
        if in_hand.given_up {
            self.out = Outcome::default();
            return LoaderTally::default();
        }
        let waited = in_hand.waited;
        let busy = took + since.elapsed();
        let times = Times { began, read_after, left_after: took, busy, waited, bytes };
        work.finish(&token, &mut self.runs, &mut self.out, &times)
    }

    fn failed(&mut self, item: Ticket, item_error: ItemError, tries: u32) -> LoaderTally {
        tracing::warn!(item = %item.name(), error = %item_error.error, "item given up");
        let token = Token::whole(item);
        self.work.fail(&token, item_error, tries, &mut self.out);
        self.not_loaded(&token)
    }

    /// Ends an item whose request was withdrawn.
    fn dropped(&mut self, item: Ticket) -> LoaderTally {
        let token = Token::whole(item);
        self.work.chain.end_dropped(&token, &mut self.out);
        self.not_loaded(&token)
    }

    fn not_loaded(&mut self, token: &Token) -> LoaderTally {
        let began = Instant::now();
        let (left_after, busy, waited) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let times = Times { began, read_after: None, left_after, busy, waited, bytes: 0 };
        self.work.finish(token, &mut self.runs, &mut self.out, &times)
    }
}

/// Follows the item in hand.
pub struct ItemInHand<'a> {
    /// Until its first row is handed on, an item may be given up with the thread that has it.
    inbox: &'a Inbox,
    left_at: Option<Instant>,
    given_up: bool,
    /// How long was waited for a free row, or for room.
    pub waited: Duration,
}

impl<'a> ItemInHand<'a> {
    fn new(inbox: &'a Inbox) -> Self {
        Self { inbox, left_at: None, given_up: false, waited: Duration::ZERO }
    }

    /// Its first row is about to be handed on, and what it took to load it ends. `false`: it was given up meanwhile, and nothing is to be done with it.
    pub fn leaves_loading(&mut self) -> bool {
        if self.left_at.is_none() {
            self.left_at = Some(Instant::now());
            self.given_up = !self.inbox.stop_deadline();
        }
        !self.given_up
    }
}
