//! The filling side of a stage's arena: loaders claim rows, write them and publish them. It decides nothing about when a batch
//! leaves (the batcher does) and never looks at what the rows hold.
//!
//! A slot goes `Free => Open (rows are claimed) => Closed (no more claims) => Filled (all claimed rows published) => Free`. Slots
//! are the credits of the data path: without a row a loader writes nothing, so a slow device slows the readers.
//!
//! Claiming and publishing a row is one atomic addition each; locks are taken once per slot, and while a writer waits for one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orchestra_core::SlotId;
use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::batching::{LeaveReason, OpenBatch};
use orchestra_core::ledger::Rows;
use orchestra_worker::arena::Arena;
use tokio::sync::Notify;

use crate::account::stats::Counter;
use crate::context::RunClock;
use crate::flow::token::Token;
use crate::trace::SlotTokens;

/// What the batcher has a use for, and is told of when it happens. Telling wakes a thread, which costs more than filling a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Watch {
    /// Nothing: every worker has all that it may hold.
    Nothing,
    /// Filled slots: there is a worker to send one to.
    Filled,
    /// And the opening of a slot: a worker would take one that is not full.
    Openings,
}

type Tell = Box<dyn Fn() + Send + Sync>;

pub struct SlotPool {
    pub arena: Arena,
    clock: RunClock,
    max_batch: usize,
    /// For how many batches a slot that is opened has room.
    together: AtomicUsize,
    /// Which slot is open, for how many batches, and how many rows of it were claimed: see [`Open`].
    open: AtomicU64,
    /// When the first row of the open slot was claimed, in nanoseconds of the run's clock.
    open_since: AtomicU64,
    slots: Vec<Filling>,
    /// Filled slots that the batcher has not taken, in the order in which they were filled.
    filled: Mutex<VecDeque<Filled>>,
    /// Slots that are open, being filled, or filled and not taken by the batcher.
    busy: AtomicUsize,
    shut: AtomicBool,
    /// A [`Watch`].
    watch: AtomicU8,
    /// `changed` is notified when at least so many slots are free.
    wake_at: usize,
    /// Slots that are not in use. The lock also orders the openings of slots; writers wait for one on `changed`.
    free: Mutex<Vec<SlotId>>,
    changed: Condvar,
    /// Notified whenever a slot is free, for the one task that waits in `claim_async`.
    freed: Notify,
    /// Slots of all pools of the run that are not free.
    in_use: Arc<Counter>,
    notify: Tell,
}

/// The word in `SlotPool::open`: slot number plus one (0: none is open), for how many batches there is room, and claims. One atomic
/// addition claims a row and says whether there was one. Claims beyond the last row are attempts that came too late; they mean nothing.
#[derive(Clone, Copy)]
struct Open(u64);

impl Open {
    const NONE: Open = Open(0);
    const ONE_CLAIM: u64 = 1;
    /// Bits of the claims. An attempt that came too late waits for the next slot, so there are no more of these than writers.
    const CLAIMS: u32 = 28;
    /// Bits of the room, above them.
    const BATCHES: u32 = 12;
    /// Slots that have a number here: far more than memory has room for.
    const MOST_SLOTS: usize = (1 << (u64::BITS - Self::BATCHES - Self::CLAIMS)) - 1;
    const MOST_BATCHES: usize = (1 << Self::BATCHES) - 1;

    fn new(slot: SlotId, batches: usize, claims: usize) -> Self {
        let slot = (u64::from(slot.0) + 1) << (Self::BATCHES + Self::CLAIMS);
        Self(slot | (batches as u64) << Self::CLAIMS | claims as u64)
    }

    fn slot(self) -> Option<SlotId> {
        u32::try_from((self.0 >> (Self::BATCHES + Self::CLAIMS)).checked_sub(1)?).ok().map(SlotId)
    }

    fn batches(self) -> usize {
        (self.0 >> Self::CLAIMS) as usize & Self::MOST_BATCHES
    }

    fn claims(self) -> usize {
        (self.0 & ((1 << Self::CLAIMS) - 1)) as usize
    }
}

struct Filling {
    /// When its first row was claimed, in nanoseconds of the run's clock. Set with that claim, before any other.
    opened: AtomicU64,
    /// Rows published in the lower half; in the upper half, once the slot is closed, rows claimed. Both change by addition, so exactly
    /// one thread sees them become equal, and that one queues the slot for the batcher.
    progress: AtomicU64,
    /// Set when the slot is closed, before the upper half of `progress` is.
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

/// A row that one writer holds. Dropped unpublished, it becomes a hole: a row of its batch that is not read.
pub struct RowLease<'a> {
    /// Borrowed: a reference count would go from core to core with each row.
    pool: &'a SlotPool,
    slot: SlotId,
    row: usize,
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
    /// A pool over `arena`, all slots free, with batches of up to `max_batch` rows. `notify` is called when something has happened that is watched for: at first, everything. It must
    /// not block.
    ///
    /// Slots beyond the `held` ones that workers may hold are spare. Wake rule: writers that wait are notified when `wake_at` slots are free,
    /// two where there are two spare ones, so a writer fills two slots per wake-up.
    ///
    /// No writer waits for ever. It waits only after it saw no slot free, and all slots come back, but for at most one that is open and waits
    /// for rows. Two spare slots mean four slots or more, so at some release two are free. This needs that no writer holds a row of this
    /// pool while it waits for another one.
    ///
    /// `in_use` is raised by one for each slot that is taken, and lowered when it comes back.
    pub fn new(
        arena: Arena,
        clock: RunClock,
        max_batch: usize,
        held: usize,
        in_use: Arc<Counter>,
        notify: Tell,
    ) -> Arc<Self> {
        let layout = arena.layout().clone();
        let filling = |_| Filling {
            opened: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            reason: Mutex::new(LeaveReason::Full),
            tokens: (0..layout.max_rows).map(|_| Mutex::new(None)).collect(),
        };
        let slots: Vec<Filling> = (0..layout.slots).map(filling).collect();
        let free = (0..layout.slots.min(Open::MOST_SLOTS))
            .rev()
            .filter_map(|s| u32::try_from(s).ok())
            .map(SlotId)
            .collect();
        Arc::new(Self {
            arena,
            clock,
            max_batch: max_batch.max(1),
            together: AtomicUsize::new(1),
            open: AtomicU64::new(Open::NONE.0),
            open_since: AtomicU64::new(0),
            slots,
            filled: Mutex::default(),
            busy: AtomicUsize::new(0),
            shut: AtomicBool::new(false),
            watch: AtomicU8::new(Watch::Openings as u8),
            wake_at: if layout.slots < 4 { 1 } else { layout.slots.saturating_sub(held).clamp(1, 2) },
            free: Mutex::new(free),
            changed: Condvar::new(),
            freed: Notify::new(),
            in_use,
            notify,
        })
    }

    /// Claims the next row of the open slot, if there is one.
    pub fn claim_now(&self) -> Option<RowLease<'_>> {
        if self.shut.load(Ordering::Acquire) {
            return None;
        }
        self.claim_open()
    }

    /// Claims the next row, waiting for a free slot if need be. `None` when the pool was shut. Blocks: never call it in an actor.
    pub fn claim(&self) -> Option<RowLease<'_>> {
        self.claim_or(true)
    }

    /// The same without blocking the thread. Only one task at a time may wait here.
    pub async fn claim_async(&self) -> Option<RowLease<'_>> {
        loop {
            let lease = self.claim_or(false);
            if lease.is_some() || self.shut.load(Ordering::Acquire) {
                return lease;
            }
            // A slot that was freed after `claim_or` has stored a permit: `notify_one` is never lost.
            self.freed.notified().await;
        }
    }

    /// The next row. Without `wait`, `None` also means that no slot is free.
    fn claim_or(&self, wait: bool) -> Option<RowLease<'_>> {
        if let Some(lease) = self.claim_now() {
            return Some(lease);
        }
        let (lease, opened) = self.claim_or_open(wait)?;
        // Both are in one total order with `watch` and the look at the open batch after it: one of the two sides sees the other.
        if opened {
            self.tell(Watch::Openings);
        }
        Some(lease)
    }

    /// The next row of the open slot, if one is open and has room.
    fn claim_open(&self) -> Option<RowLease<'_>> {
        self.lease(Open(self.open.fetch_add(Open::ONE_CLAIM, Ordering::AcqRel)))
    }

    /// What one more claim gets of the slot that was open `before`.
    fn lease(&self, before: Open) -> Option<RowLease<'_>> {
        let (slot, row, room) = (before.slot()?, before.claims(), self.room(before));
        if row + 1 == room {
            // No claim can follow, and all before were counted: the slot is closed by this one.
            self.close_slot(slot, room, LeaveReason::Full);
        }
        (row < room).then(|| RowLease { pool: self, slot, row, published: false })
    }

    /// The same; opens a free slot if none is open or the open one is full, and waits for one if `wait`. Says whether it opened one.
    fn claim_or_open(&self, wait: bool) -> Option<(RowLease<'_>, bool)> {
        let mut free = self.lock();
        loop {
            if self.shut.load(Ordering::Acquire) {
                return None;
            }
            if let Some(lease) = self.claim_open() {
                return Some((lease, false));
            }
            if let Some(slot) = free.pop() {
                self.busy.fetch_add(1, Ordering::AcqRel);
                self.in_use.add(1);
                let now = u64::try_from(self.clock.now().as_nanos()).unwrap_or(u64::MAX);
                self.open_since.store(now, Ordering::Relaxed);
                self.slots[slot.index()].opened.store(now, Ordering::Relaxed);
                let together = self.together.load(Ordering::Relaxed);
                let open = Open::new(slot, together, 0);
                self.open.store(open.0 + Open::ONE_CLAIM, Ordering::SeqCst);
                return self.lease(open).map(|lease| (lease, true));
            }
            if !wait {
                return None;
            }
            free = self.changed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What the batcher is told of from now on. What has happened by now it has to look for itself, after this.
    ///
    /// Slots that are opened from now on have room for `together` batches, as far as the arena has. If the open one has room for more, and
    /// is no further than that, it gets less.
    pub fn watch(&self, watch: Watch, together: usize) {
        let together = together.clamp(1, self.most_together());
        self.together.store(together, Ordering::Relaxed);
        self.watch.store(watch as u8, Ordering::SeqCst);
        let mut open = Open(self.open.load(Ordering::SeqCst));
        while let Some(slot) = open.slot()
            && open.batches() > together
            && open.claims() < together * self.max_batch
        {
            let less = Open::new(slot, together, open.claims());
            match self.open.compare_exchange(open.0, less.0, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(now) => open = Open(now),
            }
        }
    }

    /// Rows for which there is room in the open slot.
    fn room(&self, open: Open) -> usize {
        (open.batches() * self.max_batch).min(self.arena.layout().max_rows)
    }

    fn most_together(&self) -> usize {
        self.arena.layout().max_rows.div_ceil(self.max_batch).clamp(1, Open::MOST_BATCHES)
    }

    fn tell(&self, event: Watch) {
        if self.watch.load(Ordering::SeqCst) >= event as u8 {
            (self.notify)();
        }
    }

    pub fn next_filled(self: &Arc<Self>) -> Option<FilledSlot> {
        let of = unpoisoned(self.filled.lock()).pop_front()?;
        self.busy.fetch_sub(1, Ordering::AcqRel);
        Some(FilledSlot { pool: Arc::clone(self), of })
    }

    pub fn has_filled(&self) -> bool {
        !unpoisoned(self.filled.lock()).is_empty()
    }

    pub fn open_batch(&self) -> Option<OpenBatch> {
        let open = Open(self.open.load(Ordering::SeqCst));
        let room = self.room(open);
        open.slot().filter(|_| open.claims() < room)?;
        let oldest_since = Duration::from_nanos(self.open_since.load(Ordering::Relaxed));
        Some(OpenBatch { rows: open.claims(), room, oldest_since })
    }

    /// Closes the open slot: it is filled when its last claimed row is published.
    pub fn close(&self, reason: LeaveReason) {
        let open = Open(self.open.swap(Open::NONE.0, Ordering::AcqRel));
        // A slot whose last row is claimed was closed by that claim.
        if let Some(slot) = open.slot()
            && open.claims() < self.room(open)
        {
            self.close_slot(slot, open.claims(), reason);
        }
    }

    /// No slot is open, none is being filled and none waits for the batcher.
    pub fn is_quiet(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0
    }

    /// Makes every present and future `claim` give `None`.
    pub fn shut(&self) {
        self.shut.store(true, Ordering::Release);
        // The lock is taken so that no writer is between its look at `shut` and its wait.
        drop(self.lock());
        self.changed.notify_all();
        self.freed.notify_one();
    }

    fn close_slot(&self, slot: SlotId, claimed: usize, reason: LeaveReason) {
        let filling = &self.slots[slot.index()];
        *unpoisoned(filling.reason.lock()) = reason;
        let closed = (claimed as u64) << 32;
        let before = filling.progress.fetch_add(closed, Ordering::AcqRel);
        self.queue_if_filled(slot, before + closed);
    }

    fn publish(&self, slot: SlotId, row: usize, token: Option<Token>) {
        let filling = &self.slots[slot.index()];
        *unpoisoned(filling.tokens[row].lock()) = token;
        let before = filling.progress.fetch_add(1, Ordering::AcqRel);
        self.queue_if_filled(slot, before + 1);
    }

    /// Called with what one addition made of the slot's progress: for exactly one addition, published and claimed become equal.
    fn queue_if_filled(&self, slot: SlotId, progress: u64) {
        let (claimed, published) = (progress >> 32, progress & u64::from(u32::MAX));
        if claimed != published {
            return;
        }
        let filling = &self.slots[slot.index()];
        let rows = filling.tokens.iter().take(published as usize);
        let tokens: SlotTokens = rows.map(|token| unpoisoned(token.lock()).take()).collect();
        let n_tokens = tokens.iter().flatten().count();
        let reason = *unpoisoned(filling.reason.lock());
        let opened = Duration::from_nanos(filling.opened.load(Ordering::Relaxed));
        filling.progress.store(0, Ordering::Release);
        let filled = self.clock.now();
        unpoisoned(self.filled.lock()).push_back(Filled { slot, tokens, n_tokens, reason, opened, filled });
        // A `watch` after this is followed by a look for filled slots, which finds this one.
        self.tell(Watch::Filled);
    }

    fn release(&self, slot: SlotId) {
        let mut free = self.lock();
        free.push(slot);
        let wake = free.len() >= self.wake_at;
        drop(free);
        self.in_use.sub(1);
        if wake {
            self.changed.notify_all();
        }
        self.freed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SlotId>> {
        unpoisoned(self.free.lock())
    }
}

/// A run that is aborted leaves slots open that are never filled: they go with the memory itself.
impl Drop for SlotPool {
    fn drop(&mut self) {
        self.in_use.sub((self.slots.len() - unpoisoned(self.free.get_mut()).len()) as u64);
    }
}

/// A poisoned lock means that a thread panicked between two statements that cannot panic: what it guards is whole.
fn unpoisoned<G>(lock: Result<G, PoisonError<G>>) -> G {
    lock.unwrap_or_else(PoisonError::into_inner)
}

impl RowLease<'_> {
    pub fn input_mut(&mut self, input: usize) -> &mut [u8] {
        // SAFETY: this lease is the only holder of the row until it is published, and `&mut self` allows one borrow at a time.
        unsafe { self.pool.arena.input_row_mut(self.slot, input, self.row) }
    }

    pub fn publish(mut self, token: Token) {
        self.published = true;
        self.pool.publish(self.slot, self.row, Some(token));
    }
}

impl Drop for RowLease<'_> {
    fn drop(&mut self) {
        if !self.published {
            self.pool.publish(self.slot, self.row, None);
        }
    }
}

impl FilledSlot {
    /// Where its rows lie.
    pub fn layout(&self) -> &BatchLayout {
        self.pool.arena.layout()
    }

    /// A row of an input.
    ///
    /// # Safety
    /// The row is with no worker, and there is no other reference to it for as long as the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "the batcher knows which rows of its slot are away, which the type system cannot see"
    )]
    pub unsafe fn input_row_mut(&self, input: usize, row: usize) -> &mut [u8] {
        // SAFETY: the caller promises it; no row of a filled slot has a lease.
        unsafe { self.pool.arena.input_row_mut(self.of.slot, input, row) }
    }

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

#[cfg(test)]
#[path = "slot_pool_tests.rs"]
mod tests;
