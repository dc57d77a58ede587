//! The thread of a loader: reads items and takes them through the chain behind their source, up to the first batch. It talks to actors only by
//! sending, and waits only for work and for a free row.

use std::collections::VecDeque;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestra_core::data::Refusal;
use orchestra_core::shapes::{Fetch, FetchRun};
use orchestra_core::{FailureKind, SourceId};
use orchestra_plan::Origin;
use ractor::ActorRef;
use rustix::thread::sched_setaffinity;

use crate::account::stats::Counter;
use crate::context::RunContext;
use crate::fleet::launcher::cpu_set;
use crate::flow::chain::{Chain, ChainRun, Env, Hooks, Outcome};
use crate::flow::loader_inbox::{Abandoned, Inbox, Tally};
use crate::flow::ticket::{Ticket, Tickets};
use crate::flow::token::Token;
use crate::messages::SourceMsg;
use crate::trace::timeline::Loading;

/// What the loaders of a source do with each item.
pub struct LoaderWork {
    pub context: Arc<RunContext>,
    pub source: SourceId,
    pub from: ActorRef<SourceMsg>,
    pub fetch: Arc<dyn Fetch>,
    pub chain: Arc<Chain>,
    /// Items that loaders are through with.
    pub loaded: Counter,
}

/// Starts thread `me`, which works off `first`, and then asks for more.
pub fn start(work: &Arc<LoaderWork>, me: usize, first: VecDeque<Tickets>) -> io::Result<Arc<Inbox>> {
    let inbox = Arc::new(Inbox::new(first));
    let (work, theirs) = (Arc::clone(work), Arc::clone(&inbox));
    let near = work.context.plan.loaders_near.as_ref().map(|near| cpu_set(&near.cores));
    std::thread::Builder::new().name("loader".into()).spawn(move || {
        // Where the kernel refuses, it runs anywhere, which costs a little speed.
        if let Some(Err(error)) = near.map(|cores| sched_setaffinity(None, &cores)) {
            tracing::warn!(%error, "a loader cannot be kept near the devices");
        }
        let mut thread = LoaderThread {
            inbox: theirs,
            fetch: work.fetch.start(),
            run: work.chain.start(),
            out: Outcome::default(),
            tally: Tally::default(),
        };
        while let Some((ticket, started)) = thread.inbox.next(std::mem::take(&mut thread.tally), &work, me) {
            thread.item(&work, ticket, started);
        }
    })?;
    Ok(inbox)
}

/// Gives thread `me` up if a file or a picture has kept it for too long: that item is failed by name, and another thread goes on.
pub fn replace_if_stuck(work: &Arc<LoaderWork>, me: usize, inbox: &mut Arc<Inbox>) -> io::Result<()> {
    let limit = work.context.plan.limits.item_timeout;
    let Some(Abandoned { stuck, since, rest, tally }) = inbox.abandon_if_stuck(limit) else { return Ok(()) };
    tally.book(work);
    *inbox = start(work, me, rest)?;
    if let Some(timeline) = stuck.timeline() {
        let (began, decoded) = (work.context.clock.at(since), work.context.clock.now());
        timeline.loaded(Loading { began, read: None, decoded });
    }
    let error =
        format!("reading and decoding took longer than limits.item_timeout ({} s)", limit.as_secs_f64());
    tracing::warn!(item = %stuck.name(), %error, "item given up, its thread is replaced");
    let mut out = Outcome::default();
    work.fail(&Token::whole(stuck), Refusal { kind: FailureKind::Timeout, error }, &mut out);
    work.chain.send(&mut out);
    work.loaded.add(1);
    Ok(())
}

impl LoaderWork {
    /// Fails an item that has come to no stage yet.
    fn fail(&self, token: &Token, refusal: Refusal, out: &mut Outcome) {
        let stage = self.chain.first_stage();
        self.context.stats.stage(stage).entered.add(1);
        self.chain.fail(token, stage, refusal, out);
    }
}

struct LoaderThread {
    inbox: Arc<Inbox>,
    fetch: Box<dyn FetchRun>,
    run: ChainRun,
    out: Outcome,
    /// Of the item in hand.
    tally: Tally,
}

impl LoaderThread {
    fn item(&mut self, work: &LoaderWork, ticket: Ticket, started: Instant) {
        let token = Token::whole(ticket);
        let is_traced = token.ticket.timeline().is_some();
        let locator = token.ticket.path().as_os_str().as_bytes();
        // A panic in here is a bug of ours; it fails the item by name instead of losing it with its thread.
        let fetched = catch_unwind(AssertUnwindSafe(|| self.fetch.fetch(locator)));
        let fetched = fetched.unwrap_or_else(|_| {
            self.fetch = work.fetch.start();
            let error = "internal error while the item was read; this is a bug".to_owned();
            Err(Refusal { kind: FailureKind::Read, error })
        });
        let read = fetched.is_ok().then(|| is_traced.then(Instant::now)).flatten();
        let mut watch = Watch { inbox: &self.inbox, decoded: None, given_up: false, waited: Duration::ZERO };
        match fetched {
            Ok(bytes) => {
                self.tally.bytes = bytes;
                let from = Origin::Source(work.source);
                let (run, out) = (&mut self.run, &mut self.out);
                self.fetch.with_row(&mut |row| {
                    let env = Env { from, row, carried: &[], up: None };
                    work.chain.row(run, &token, &env, out, &mut watch);
                });
            }
            Err(refusal) => {
                if watch.arrived() {
                    work.fail(&token, refusal, &mut self.out);
                }
            }
        }
        // What failed before it was handed on has not arrived.
        if watch.decoded.is_none() {
            watch.arrived();
        }
        let Watch { decoded, given_up, waited, .. } = watch;
        if given_up {
            // The item was given up meanwhile, and reported.
            self.out = Outcome::default();
            return;
        }
        let decoded = decoded.unwrap_or(started);
        if let Some(item) = token.ticket.timeline() {
            let began = work.context.clock.at(started);
            let read = read.map(|read| began + (read - started));
            item.loaded(Loading { began, read, decoded: began + (decoded - started) });
        }
        self.tally.decoding = decoded - started;
        self.tally.waiting_for_row = waited;
        self.tally.loading = started.elapsed().saturating_sub(waited);
        self.tally.counts = std::mem::take(&mut self.out.counts);
        self.tally.loaded = 1;
        work.chain.send(&mut self.out);
        self.out.text.clear();
    }
}

/// Follows the item in hand: until its first row is handed on, it may be given up.
struct Watch<'a> {
    inbox: &'a Inbox,
    decoded: Option<Instant>,
    given_up: bool,
    waited: Duration,
}

impl Hooks for Watch<'_> {
    fn arrived(&mut self) -> bool {
        self.decoded = Some(Instant::now());
        self.given_up = !self.inbox.decoded();
        !self.given_up
    }

    fn waited(&mut self, time: Duration) {
        self.waited += time;
    }
}
