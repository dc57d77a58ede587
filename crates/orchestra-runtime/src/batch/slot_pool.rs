//! The filling side of a stage's arena: writers (loaders, chains behind batches and folds, requests) claim rows, write them and
//! publish them. It decides nothing about when a batch leaves (the batcher does) and never looks at what the rows hold.
//!
//! Slots are the credits of the data path: without a row a loader writes nothing, so a slow device slows the readers. Which row of which
//! slot a writer gets, and when a slot is filled, `SlotClaims` says.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestra_core::batching::{LeaveReason, OpenBatch};
use orchestra_core::data::OwnedValue;
use orchestra_core::ledger::Rows;
use orchestra_core::slot_claims::{Claim, Closed, Complete, NoneFree, SlotClaims};
use orchestra_core::{DType, SlotId, locked};
use orchestra_worker::arena::Arena;
use tokio::sync::Notify;

use crate::account::counter::Counter;
use crate::context::RunClock;
use crate::flow::token::Token;
use crate::trace::SlotTokens;

/// What the batcher has a use for, and is told of when it happens. Telling wakes a thread, which costs more than filling a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SlotEvent {
    /// Nothing: every worker has all that it may hold.
    Nothing,
    /// Filled slots: there is a worker to send one to.
    Filled,
    /// And the opening of a slot, and that it has enough rows: a worker would take one that is not full.
    Openings,
}

/// Once the rows of a slot carry so many bytes it is full, if it has [`SlotPool::least_rows`]: a worker gets no batch sooner for more of them, and they
/// take memory.
const FULL_AT: usize = 1 << 20;

/// Width and height that a row is trimmed to.
pub type TrimmedSize = [u32; 2];

type Notifier = Box<dyn Fn() + Send + Sync>;

pub struct SlotPool {
    pub arena: Arena,
    clock: RunClock,
    claims: SlotClaims<Filling>,
    /// A slot has room for more rows than these where they carry little.
    least_rows: usize,
    /// When the first row of the open slot was claimed, in nanoseconds of the run's clock.
    open_since: AtomicU64,
    /// What the rows of the open slot are trimmed to, in a pool of such rows. Locked while one is claimed: no slot is opened with another size meanwhile.
    open_size: Mutex<TrimmedSize>,
    /// In such a pool, slots of other sizes that have room: they are opened again for the next row of their size. Locked while one is taken aside or back, so
    /// that a look for the oldest slot misses none.
    aside: Mutex<Vec<(TrimmedSize, Closed)>>,
    /// Filled slots that the batcher has not taken, in the order in which they were filled.
    filled: Mutex<VecDeque<Filled>>,
    watch: AtomicU8,
    /// Notified whenever a slot is free, for the one task that waits in `claim_async`.
    freed: Notify,
    /// Slots of all pools of the run that are not free.
    in_use: Arc<Counter>,
    notify: Notifier,
}

struct Filling {
    /// When its first row was claimed, in nanoseconds of the run's clock. Set with that claim, before any other.
    opened: AtomicU64,
    /// What its rows carry, where that may fill it.
    carried: AtomicUsize,
    /// Set when the slot is closed, before its claims end.
    reason: Mutex<LeaveReason>,
    /// What was published, by row; `None` is a hole. Each cell is written by the one writer that holds its row.
    tokens: Vec<Mutex<Option<Token>>>,
}

/// A slot whose rows are all there. It has no reference to its pool, which holds it until the batcher takes it.
pub struct Filled {
    pub slot: SlotId,
    /// The token of each row; `None` is a hole.
    pub tokens: SlotTokens,
    n_tokens: usize,
    pub reason: LeaveReason,
    /// When its first row was claimed, since the start of the run.
    pub opened: Duration,
    /// When its last row was published.
    pub filled: Duration,
}

/// Rows of one slot that one writer holds. Dropped unpublished, each becomes a hole: a row of its batch that is not read.
pub struct RowLease<'a> {
    /// Borrowed: a reference count would go from core to core with each row.
    pool: &'a SlotPool,
    slot: SlotId,
    rows: Range<usize>,
    published: bool,
}

/// A filled slot that the batcher has taken. Dropping it frees the slot.
pub struct FilledSlot {
    pool: Arc<SlotPool>,
    of: Filled,
}

impl std::ops::Deref for FilledSlot {
    type Target = Filled;

    fn deref(&self) -> &Filled {
        &self.of
    }
}

impl SlotPool {
    /// A pool over `arena`, all slots free. `notify` is called when something has happened that is watched for: at first, everything. It must
    /// not block.
    ///
    /// Workers may hold `held` slots at once: see [`SlotClaims::new`].
    ///
    /// A slot is full with `least_rows` rows, of those that it has room for, if they carry much.
    ///
    /// `in_use` is raised by one for each slot that is taken, and lowered when it comes back.
    pub fn new(
        arena: Arena,
        clock: RunClock,
        held: usize,
        least_rows: usize,
        in_use: Arc<Counter>,
        notify: Notifier,
    ) -> Arc<Self> {
        let layout = arena.layout().clone();
        let filling = |_| Filling {
            opened: AtomicU64::new(0),
            carried: AtomicUsize::new(0),
            reason: Mutex::new(LeaveReason::Full),
            tokens: (0..layout.slot_rows).map(|_| Mutex::new(None)).collect(),
        };
        Arc::new(Self {
            claims: SlotClaims::new(layout.slot_rows, held, (0..layout.slots).map(filling)),
            least_rows: least_rows.max(1),
            arena,
            clock,
            open_since: AtomicU64::new(0),
            open_size: Mutex::default(),
            aside: Mutex::default(),
            filled: Mutex::default(),
            watch: AtomicU8::new(SlotEvent::Openings as u8),
            freed: Notify::new(),
            in_use,
            notify,
        })
    }

    /// Claims the next row of the open slot, if there is one.
    pub fn claim_now(&self) -> Option<RowLease<'_>> {
        self.claims.claim_now(1).map(|claim| self.lease(claim))
    }

    /// Claims the next row, waiting for a free slot if need be. `None` when the pool was shut. Blocks: never call it in an actor.
    pub fn claim(&self) -> Option<RowLease<'_>> {
        self.claim_or(1, NoneFree::Wait)
    }

    /// As [`SlotPool::claim`], for a row that is trimmed to `size`. All rows of a slot are trimmed alike, so there is one with room for each size; where
    /// no slot is free, all of these leave.
    ///
    /// All rows of a pool are claimed so, or none.
    pub fn claim_trimmed(&self, size: TrimmedSize) -> Option<RowLease<'_>> {
        let mut open_size = locked(&self.open_size);
        if *open_size != size {
            let mut aside = locked(&self.aside);
            aside.extend(self.claims.close().map(|closed| (*open_size, closed)));
            if let Some(at) = aside.iter().position(|(of, _)| *of == size) {
                let (_, closed) = aside.swap_remove(at);
                let opened = self.claims.slot(closed.slot).opened.load(Ordering::Relaxed);
                self.open_since.store(opened, Ordering::Relaxed);
                self.claims.reopen(closed);
            }
            *open_size = size;
        }
        let lease = self.claim_or(1, NoneFree::GiveUp);
        lease.or_else(|| {
            self.close_aside(LeaveReason::Size);
            self.claim()
        })
    }

    /// As [`SlotPool::claim`], of up to `most` rows of one slot, without blocking the thread. Only one task at a time may wait here.
    pub async fn claim_async(&self, most: usize) -> Option<RowLease<'_>> {
        loop {
            let lease = self.claim_or(most, NoneFree::GiveUp);
            if lease.is_some() || self.claims.is_shut() {
                return lease;
            }
            // A slot that was freed after `claim_or` has stored a permit: `notify_one` is never lost.
            self.freed.notified().await;
        }
    }

    fn claim_or(&self, most: usize, none_free: NoneFree) -> Option<RowLease<'_>> {
        if let Some(claim) = self.claims.claim_now(most) {
            return Some(self.lease(claim));
        }
        let (claim, opened) = self.claims.claim_or_open(most, none_free, |slot| {
            self.in_use.add(1);
            let now = u64::try_from(self.clock.now().as_nanos()).unwrap_or(u64::MAX);
            self.open_since.store(now, Ordering::Relaxed);
            slot.opened.store(now, Ordering::Relaxed);
            slot.carried.store(0, Ordering::Relaxed);
        })?;
        let lease = self.lease(claim);
        // Lost wake-ups: this thread opens the slot in `claims`, then loads `self.watch` in `tell`; the batcher stores `self.watch`, then loads
        // the open slot in `open_batch`. All four are `SeqCst`, so `tell` notifies the batcher, or `open_batch` gives it the slot.
        if opened {
            self.tell(SlotEvent::Openings);
        }
        Some(lease)
    }

    #[inline]
    fn lease(&self, claim: Claim) -> RowLease<'_> {
        if let Some(closed) = claim.closes {
            self.end(closed, LeaveReason::Full);
        }
        RowLease { pool: self, slot: claim.slot, rows: claim.rows, published: false }
    }

    /// What the batcher is told of from now on. What has happened by now it has to look for itself, after this.
    pub fn watch(&self, watch: SlotEvent) {
        self.watch.store(watch as u8, Ordering::SeqCst);
    }

    fn tell(&self, event: SlotEvent) {
        if self.watch.load(Ordering::SeqCst) >= event as u8 {
            (self.notify)();
        }
    }

    pub fn next_filled(self: &Arc<Self>) -> Option<FilledSlot> {
        let of = locked(&self.filled).pop_front()?;
        self.claims.take();
        Some(FilledSlot { pool: Arc::clone(self), of })
    }

    pub fn has_filled(&self) -> bool {
        !locked(&self.filled).is_empty()
    }

    /// The batch that is being filled; of several, with the time of the oldest row of all.
    pub fn open_batch(&self) -> Option<OpenBatch> {
        let aside = locked(&self.aside);
        let since = |(_, closed): &(TrimmedSize, Closed)| {
            self.claims.slot(closed.slot).opened.load(Ordering::Relaxed)
        };
        let aside = aside.iter().map(since).min();
        let rows = self.claims.open_rows();
        let open = rows.map(|_| self.open_since.load(Ordering::Relaxed));
        let oldest_since = Duration::from_nanos(open.into_iter().chain(aside).min()?);
        Some(OpenBatch { rows: rows.unwrap_or(1), oldest_since })
    }

    /// Closes the open slot, and those that were set aside: each is filled when its last claimed row is published.
    pub fn close(&self, reason: LeaveReason) {
        if let Some(closed) = self.claims.close() {
            self.end(closed, reason);
        }
        self.close_aside(reason);
    }

    fn close_aside(&self, reason: LeaveReason) {
        let aside = std::mem::take(&mut *locked(&self.aside));
        aside.into_iter().for_each(|(_, closed)| self.end(closed, reason));
    }

    /// No slot is open, none is being filled and none waits for the batcher.
    pub fn is_quiet(&self) -> bool {
        self.claims.is_quiet()
    }

    /// Makes every present and future `claim` give `None`.
    pub fn shut(&self) {
        self.claims.shut();
        self.freed.notify_one();
    }

    fn end(&self, closed: Closed, reason: LeaveReason) {
        *locked(&self.claims.slot(closed.slot).reason) = reason;
        if let Some(complete) = self.claims.end(closed) {
            self.queue(complete);
        }
    }

    /// Counts what a row of a slot carries that is about to be published.
    fn count(&self, slot: SlotId, rows: &Range<usize>, token: &Token) {
        if self.least_rows >= self.arena.layout().slot_rows {
            return;
        }
        let bytes: usize = token.carried().iter().map(value_bytes).sum();
        let all = self.claims.slot(slot).carried.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if all >= FULL_AT
            && rows.end >= self.least_rows
            && let Some(closed) = self.claims.close_slot(slot)
        {
            self.end(closed, LeaveReason::Full);
        }
    }

    fn publish(&self, slot: SlotId, rows: Range<usize>, mut token: impl FnMut(usize) -> Option<Token>) {
        let n = rows.len();
        // Not of the last row: that fills the slot.
        let are_enough = rows.contains(&(self.least_rows - 1)) && rows.end < self.arena.layout().slot_rows;
        for (at, cell) in self.claims.slot(slot).tokens[rows].iter().enumerate() {
            *locked(cell) = token(at);
        }
        if let Some(complete) = self.claims.publish(slot, n) {
            self.queue(complete);
        } else if are_enough {
            // A batcher that begins to watch just now may miss this row. It looks again when the oldest has waited for `batch.wait`.
            self.tell(SlotEvent::Openings);
        }
    }

    fn queue(&self, Complete { slot, rows }: Complete) {
        let filling = self.claims.slot(slot);
        let rows = filling.tokens.iter().take(rows);
        let tokens: SlotTokens = rows.map(|token| locked(token).take()).collect();
        let n_tokens = tokens.iter().flatten().count();
        let reason = *locked(&filling.reason);
        let opened = Duration::from_nanos(filling.opened.load(Ordering::Relaxed));
        let filled = self.clock.now();
        locked(&self.filled).push_back(Filled { slot, tokens, n_tokens, reason, opened, filled });
        // A `watch` after this is followed by a look for filled slots, which finds this one.
        self.tell(SlotEvent::Filled);
    }

    fn release(&self, slot: SlotId) {
        self.in_use.sub(1);
        self.claims.release(slot);
        self.freed.notify_one();
    }
}

/// A run that is aborted leaves slots open that are never filled: they go with the memory itself.
impl Drop for SlotPool {
    fn drop(&mut self) {
        self.in_use.sub(self.claims.n_in_use() as u64);
    }
}

impl RowLease<'_> {
    /// How many rows, at least one.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// Its rows of an input, one behind the other.
    pub fn input_mut(&mut self, input: usize) -> &mut [u8] {
        let (first, n) = (self.rows.start, self.rows.len());
        // SAFETY: this lease is the only holder of the rows until it is published, and `&mut self` allows one borrow at a time.
        unsafe { self.pool.arena.input_rows_mut(self.slot, input, first, n) }
    }

    pub fn dtype(&self, input: usize) -> DType {
        self.pool.arena.layout().inputs[input].tensor.dtype
    }

    /// Of one row.
    pub fn publish(mut self, token: Token) {
        self.published = true;
        self.pool.count(self.slot, &self.rows, &token);
        let mut token = Some(token);
        self.pool.publish(self.slot, self.rows.clone(), |_| token.take());
    }

    /// With the token of each row.
    pub fn publish_all(mut self, token: impl Fn(usize) -> Token) {
        self.published = true;
        self.pool.publish(self.slot, self.rows.clone(), |at| Some(token(at)));
    }
}

impl Drop for RowLease<'_> {
    fn drop(&mut self) {
        if !self.published {
            self.pool.publish(self.slot, self.rows.clone(), |_| None);
        }
    }
}

impl FilledSlot {
    /// How many of these rows are no holes. For all of them, the usual case, they were counted when the slot was filled: the tokens lie in the
    /// caches of that core.
    pub fn n_tokens(&self, rows: Rows) -> usize {
        if rows.count == self.tokens.len() {
            return self.n_tokens;
        }
        self.tokens[rows.first..rows.first + rows.count].iter().flatten().count()
    }
}

impl Drop for FilledSlot {
    fn drop(&mut self) {
        self.pool.release(self.slot);
    }
}

/// Bytes of a value, with those of the pixels of a picture.
fn value_bytes(value: &OwnedValue) -> usize {
    match value {
        OwnedValue::Picture(picture) => picture.pixels().map_or(0, |pixels| pixels.bytes.len()),
        value => value.bytes(),
    }
}

#[cfg(test)]
#[path = "slot_pool_tests.rs"]
mod tests;
