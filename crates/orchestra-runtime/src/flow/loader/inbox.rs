//! What lies between a source and one of its loader threads: the items that wait, the item in hand, and what was done and not booked yet. It outlives a
//! thread that hangs, and opens no file.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use orchestra_core::locked;

use crate::flow::loader::ExclusiveLoad;
use crate::flow::loader::work::{LoaderTally, LoaderWork};
use crate::flow::ticket::{Ticket, Tickets};
use crate::messages::SourceMsg;

/// More items are asked for when so few are left, or half of the last ones if that is less: enough to work on until the answer comes.
const ASK_BELOW: usize = 32;

/// Items that a thread asks for at first.
const FIRST_BLOCK: u64 = 16;

/// The most items that a thread asks for.
const LARGEST_BLOCK: u64 = 256;

/// A thread asks for twice as many when it was through with the last ones sooner than this.
const QUICK: Duration = Duration::from_millis(50);

/// A thread asks for half as many when the last ones took longer than this.
const SLOW: Duration = Duration::from_millis(200);

/// Ended items are booked when there are so many.
const BOOK_AT: u64 = 32;

/// Ended items are booked at least so often, however few: the progress is drawn from it.
const BOOK_EVERY: Duration = Duration::from_millis(100);

/// The items that wait for one thread, and what it is at.
pub struct Inbox {
    state: Mutex<InboxState>,
    changed: Condvar,
}

#[derive(Default)]
struct InboxState {
    /// In front the block that the thread is at, even when nothing is left of it.
    blocks: VecDeque<Tickets>,
    /// Since when the last item taken from that block is in hand.
    at: Option<Instant>,
    asked: bool,
    appetite: PrefetchSize,
    /// More are asked for when so few are left.
    ask_below: usize,
    /// What is done and not booked: here, and not in the thread, so that it is not lost with a thread that hangs.
    tally: LoaderTally,
    booked_at: Option<Instant>,
    closed: bool,
    /// The socket of the process that the thread waits for.
    process: Option<UnixStream>,
    has_ended: bool,
    /// Of a thread with a process, while it takes a row on itself.
    in_hand: Option<Ticket>,
    /// Meanwhile, or left by a thread that was given up: the items that no process has answered for.
    unanswered: VecDeque<Ticket>,
    /// The turn of an item that was loaded alone. It is kept here, so that it ends also where the loader thread hangs.
    turn: Option<ExclusiveLoad>,
}

/// How many items a thread asks for. What it was given is what a run that is interrupted has still to do, whether it waits for the models or
/// for the disk; so that is some time's work, not some number of items.
#[derive(Debug)]
struct PrefetchSize {
    items: u64,
    since: Option<Instant>,
}

impl Default for PrefetchSize {
    fn default() -> Self {
        Self { items: FIRST_BLOCK, since: None }
    }
}

impl PrefetchSize {
    fn ask(&mut self, now: Instant) -> u64 {
        match self.since.replace(now).map(|since| now.saturating_duration_since(since)) {
            Some(took) if took < QUICK => self.items = (self.items * 2).min(LARGEST_BLOCK),
            Some(took) if took > SLOW => self.items = (self.items / 2).max(1),
            _ => {}
        }
        self.items
    }
}

/// What there is for a thread to do.
pub enum NextItem {
    /// The next item, and when it was taken.
    Item(Ticket, Instant),
    None,
    Closed,
}

/// What a thread does where no item waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenEmpty {
    Wait,
    GoOn,
}

/// What is left of a thread that was given up.
pub struct Abandoned {
    pub stuck: Ticket,
    pub since: Instant,
    pub rest: VecDeque<Tickets>,
    /// What no process has answered for. The one that had most of it is killed.
    pub unanswered: VecDeque<Ticket>,
    pub tally: LoaderTally,
}

impl InboxState {
    fn n_waiting(&self) -> usize {
        self.blocks.iter().map(Tickets::len).sum()
    }

    fn next(&mut self) -> Option<Ticket> {
        while self.blocks.len() > 1 && self.blocks[0].len() == 0 {
            self.blocks.pop_front();
        }
        self.blocks.front_mut()?.next()
    }

    /// Ends the process that the thread waits for, if there is one.
    fn hang_up(&mut self) {
        if let Some(process) = self.process.take() {
            drop(process.shutdown(Shutdown::Both)); // An error means that the process is gone already.
        }
    }

    fn book(&mut self, work: &LoaderWork) {
        std::mem::take(&mut self.tally).book(work);
    }
}

impl Inbox {
    pub fn new(first: VecDeque<Tickets>, unanswered: VecDeque<Ticket>) -> Self {
        let state = InboxState { blocks: first, unanswered, ..InboxState::default() };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The next item, and when it was taken. `done` is what the thread did since the last call. Loader `me` asks for more before the last item
    /// is taken, so that the thread does not wait for the answer. For the thread only.
    pub fn next(&self, done: LoaderTally, work: &LoaderWork, me: usize, none_there: WhenEmpty) -> NextItem {
        let mut waited = false;
        let mut state = locked(&self.state);
        state.tally.add(done);
        loop {
            if state.closed {
                state.book(work);
                return NextItem::Closed;
            }
            if state.n_waiting() <= state.ask_below && !state.asked {
                state.asked = true;
                let items = state.appetite.ask(Instant::now());
                // The source is gone only when the pipeline is: then the inbox is closed, too.
                drop(work.from.cast(SourceMsg::Demand { loader: me, items }));
            }
            if let Some(ticket) = state.next() {
                let now = Instant::now();
                let late = state.booked_at.is_none_or(|at| now - at > BOOK_EVERY);
                if late || state.tally.loaded >= BOOK_AT {
                    state.book(work);
                    state.booked_at = Some(now);
                }
                // A process has a deadline of its own; its thread is at work only between `lend` and `take_back`.
                state.at = work.setup.is_none().then_some(now);
                return NextItem::Item(ticket, now);
            }
            if none_there == WhenEmpty::GoOn {
                return NextItem::None;
            }
            if !waited {
                waited = true;
                // Everything handed to this thread is loaded: at the end of the listing the source waits for this.
                state.book(work);
                drop(work.from.cast(SourceMsg::Progressed));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn push(&self, items: Tickets) {
        let mut state = locked(&self.state);
        // What one thread hoards, others cannot have, and a run that is interrupted has still to do.
        state.ask_below = (items.len() / 2).min(ASK_BELOW);
        state.blocks.push_back(items);
        state.asked = false;
        drop(state);
        self.changed.notify_one();
    }

    /// The thread shall end after the item in hand; one that waits for a process, at once.
    pub fn close(&self) {
        let mut state = locked(&self.state);
        state.closed = true;
        state.hang_up();
        drop(state);
        self.changed.notify_all();
    }

    pub fn is_closed(&self) -> bool {
        locked(&self.state).closed
    }

    /// The thread will wait for a process at the other end of this socket. For the thread only.
    pub fn wake_with(&self, process: UnixStream) {
        let mut state = locked(&self.state);
        state.process = Some(process);
        if state.closed {
            state.hang_up();
        }
    }

    /// The thread has ended, and its process with it. For the thread only.
    pub fn thread_ended(&self) {
        locked(&self.state).has_ended = true;
        self.changed.notify_all();
    }

    /// Waits until the thread has ended, which it does at once when it is closed and has a process; or for so long. Says whether it has.
    pub fn wait_for_end(&self, time: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(locked(&self.state), time, |state| !state.has_ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_ended
    }

    /// Waits for so long, or until the thread shall end. For the thread only.
    pub fn pause(&self, time: Duration) {
        let state = locked(&self.state);
        drop(self.changed.wait_timeout_while(state, time, |state| !state.closed));
    }

    /// If the item in hand has taken longer than `limit`: gives the thread up, and returns that item, all that wait, and what the
    /// thread had not booked yet.
    pub fn abandon_if_stuck(&self, limit: Duration) -> Option<Abandoned> {
        let mut state = locked(&self.state);
        let since = state.at.filter(|since| since.elapsed() > limit)?;
        let stuck = state.in_hand.take().or_else(|| state.blocks.front()?.last_taken())?;
        state.at = None;
        state.turn = None;
        state.closed = true;
        state.hang_up();
        let unanswered = std::mem::take(&mut state.unanswered);
        let tally = std::mem::take(&mut state.tally);
        Some(Abandoned { stuck, since, rest: std::mem::take(&mut state.blocks), unanswered, tally })
    }

    /// The thread takes a row on, which its process has made of `item`; `unanswered` are those that no process has answered for, and `turn` is
    /// there if it had the item alone. All are kept here, in case the thread does not come back. For a thread with a process.
    pub fn lend(
        &self,
        item: &Ticket,
        now: Instant,
        unanswered: &mut VecDeque<Ticket>,
        turn: Option<ExclusiveLoad>,
    ) {
        let mut state = locked(&self.state);
        state.turn = turn;
        state.at = Some(now);
        state.in_hand = Some(item.clone());
        state.unanswered = std::mem::take(unanswered);
    }

    /// It is through with the row, and takes back what no process has answered for: nothing, if it was given up.
    pub fn take_back(&self) -> VecDeque<Ticket> {
        let mut state = locked(&self.state);
        state.at = None;
        state.in_hand = None;
        state.turn = None;
        std::mem::take(&mut state.unanswered)
    }

    /// The item in hand leaves the loading, or could not be loaded: from now on the thread only waits for others. `false`: the thread was given
    /// up, and its item with it.
    pub fn stop_deadline(&self) -> bool {
        locked(&self.state).at.take().is_some()
    }
}

#[cfg(test)]
mod tests {

    use orchestra_core::SourceId;

    use super::*;
    use crate::flow::loader::ExclusiveLoads;
    use crate::flow::ticket::TicketsBuilder;

    #[test]
    fn a_thread_that_is_stuck_is_given_up_with_its_item_and_the_rest_is_kept() {
        let mut items = TicketsBuilder::with_capacity(SourceId(0), 0, 3, false);
        (0..3).for_each(|index| items.add(index, "", b""));
        let inbox = Inbox::new(VecDeque::new(), VecDeque::new());
        inbox.push(items.build());
        assert!(inbox.abandon_if_stuck(Duration::ZERO).is_none(), "nothing is in hand");
        assert_eq!(locked(&inbox.state).next().unwrap().id().index, 0);
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        locked(&inbox.state).at = Some(long_ago);
        assert!(inbox.abandon_if_stuck(Duration::from_secs(90)).is_none(), "not yet");
        locked(&inbox.state).tally.loaded = 7;
        let Abandoned { stuck, rest, tally, .. } = inbox.abandon_if_stuck(Duration::from_secs(30)).unwrap();
        assert_eq!(tally.loaded, 7, "what the thread had done is not lost with it");
        assert_eq!(stuck.id().index, 0);
        assert_eq!(rest.into_iter().flatten().map(|t| t.id().index).collect::<Vec<_>>(), [1, 2]);
        assert!(!inbox.stop_deadline(), "the thread learns that it was given up");
    }

    #[test]
    fn the_turn_of_an_item_that_is_alone_ends_with_its_row_and_with_a_thread_that_hangs() {
        let turns = ExclusiveLoads::default();
        let mut items = TicketsBuilder::with_capacity(SourceId(0), 0, 1, false);
        items.add(0, "", b"");
        let item = items.build().next().unwrap();
        for hangs in [false, true] {
            let inbox = Inbox::new(VecDeque::new(), VecDeque::new());
            inbox.lend(&item, Instant::now(), &mut VecDeque::new(), turns.take());
            assert!(turns.take().is_none(), "one at a time");
            let abandoned = hangs.then(|| inbox.abandon_if_stuck(Duration::ZERO).unwrap());
            if abandoned.is_none() {
                inbox.take_back();
            }
            assert!(turns.take().is_some(), "it is over");
        }
    }

    #[test]
    fn a_thread_asks_for_as_much_as_it_is_through_with_in_a_moment() {
        let mut now = Instant::now();
        let mut appetite = PrefetchSize::default();
        assert_eq!(appetite.ask(now), FIRST_BLOCK, "nothing is known of its pace");
        let mut asks = |per_item: Duration, times: usize| {
            let mut items = appetite.items;
            for _ in 0..times {
                now += per_item * u32::try_from(items).unwrap();
                items = appetite.ask(now);
            }
            items
        };
        assert_eq!(asks(Duration::from_micros(50), 10), LARGEST_BLOCK);
        assert_eq!(asks(Duration::from_millis(10), 10), 16, "160 ms: neither quick nor slow");
        assert_eq!(asks(Duration::from_secs(1), 10), 1, "and never none");
        assert_eq!(asks(Duration::from_millis(10), 10), 8);
    }

    #[test]
    fn the_item_in_hand_is_known_at_the_ends_of_blocks() {
        let block = |first| {
            let mut items = TicketsBuilder::with_capacity(SourceId(0), first, 2, false);
            (first..first + 2).for_each(|index| items.add(index, "", b""));
            items.build()
        };
        for n_taken in 1..=4 {
            let inbox = Inbox::new([block(0), block(2)].into(), VecDeque::new());
            let taken: Vec<u64> =
                (0..n_taken).filter_map(|_| Some(locked(&inbox.state).next()?.id().index)).collect();
            assert_eq!(taken, (0..n_taken).collect::<Vec<_>>());
            locked(&inbox.state).at = Some(Instant::now());
            let Abandoned { stuck, rest, .. } = inbox.abandon_if_stuck(Duration::ZERO).unwrap();
            assert_eq!(stuck.id().index, n_taken - 1);
            let rest: Vec<u64> = rest.into_iter().flatten().map(|t| t.id().index).collect();
            assert_eq!(rest, (n_taken..4).collect::<Vec<_>>());
        }
    }
}
