//! Which writer fills which row of which slot, decided by atomic words that many threads share. It knows neither what rows hold nor what
//! becomes of a filled slot: it returns what is to be done.
//!
//! A slot goes `Free => Open (rows are claimed) => Closed (no more claims) => Complete (all claimed rows are published) => Free`. Claiming and
//! publishing rows is one atomic addition each; the lock is taken once per slot, and while a writer waits for one.
//!
//! `tests/slot_claims_loom.rs` tries all orders of few threads.

use std::ops::Range;
use std::sync::PoisonError;

use crate::SlotId;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};

/// The claims of all slots, with an `S` for each slot that its owner has a use for.
pub struct SlotClaims<S> {
    slot_rows: usize,
    /// Which slot is open, and how many rows of it were claimed: see [`OpenSlot`].
    open: AtomicU64,
    slots: Vec<Slot<S>>,
    /// Slots that are open, being filled, or complete and not taken.
    busy: AtomicUsize,
    shut: AtomicBool,
    /// `changed` is notified when at least so many slots are free.
    wake_at: usize,
    /// Slots that are not in use. The lock also orders the openings of slots; writers wait for one on `changed`.
    free: Mutex<Vec<SlotId>>,
    changed: Condvar,
}

/// Rows that belong to the one writer that gets this, until they are published: at least one.
pub struct Claim {
    pub slot: SlotId,
    pub rows: Range<usize>,
    /// The last row is among them: the slot is closed, and this claim has to end it.
    pub closes: Option<Closed>,
}

/// A slot that has no more claims. Exactly one thread gets this, and calls [`SlotClaims::end`] or [`SlotClaims::reopen`] with it.
pub struct Closed {
    pub slot: SlotId,
    rows: usize,
}

/// A slot whose claimed rows are all published. Exactly one thread gets this; what was written to the rows before happened before it.
pub struct Complete {
    pub slot: SlotId,
    pub rows: usize,
}

/// What [`SlotClaims::claim_or_open`] does where no slot is free.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NoneFree {
    /// Blocks until one is.
    Wait,
    GiveUp,
}

/// Counts the items whose rows are claimed. A reader that sees all items counted sees each of these claims.
#[derive(Debug, Default)]
pub struct ClaimedItems(AtomicU64);

impl ClaimedItems {
    /// After the rows of these items were claimed.
    pub fn add(&self, items: u64) {
        self.0.fetch_add(items, Ordering::Release);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

struct Slot<S> {
    /// Rows published in the lower half; in the upper half, once the slot is closed, rows claimed. Both change by addition, so for exactly
    /// one of these they become equal. 0 is set with each opening.
    progress: AtomicU64,
    of: S,
}

/// The word in `SlotClaims::open`: slot number plus one (0: none is open), and claims. One atomic addition claims rows and says how many of them there were. Claims beyond the last row came too late; they mean nothing.
#[derive(Clone, Copy)]
struct OpenSlot(u64);

impl OpenSlot {
    const NONE: OpenSlot = OpenSlot(0);
    /// Bits of the claims. An attempt that came too late waits for the next slot, so there are no more of these than writers, each of at most a slot's rows.
    const CLAIMS: u32 = 32;
    /// Slots that have a number here: far more than memory has room for.
    const MOST_SLOTS: usize = (1 << (u64::BITS - Self::CLAIMS)) - 1;

    fn new(slot: SlotId) -> Self {
        Self((u64::from(slot.0) + 1) << Self::CLAIMS)
    }

    fn slot(self) -> Option<SlotId> {
        u32::try_from((self.0 >> Self::CLAIMS).checked_sub(1)?).ok().map(SlotId)
    }

    fn claims(self) -> usize {
        (self.0 & ((1 << Self::CLAIMS) - 1)) as usize
    }
}

impl<S> SlotClaims<S> {
    /// All slots free, each of `slot_rows` rows.
    ///
    /// Slots beyond the `held` ones that workers may hold are spare. Wake rule: writers that wait are notified when `wake_at` slots are free,
    /// two where there are two spare ones, so a writer fills two slots per wake-up.
    ///
    /// No writer waits for ever. It waits only after it saw no slot free, and all slots come back, but for at most one that is open and waits
    /// for rows: who keeps closed slots to reopen them ends these before it waits. Two spare slots mean four slots or more, so at some release two are free. This needs that no writer holds a row
    /// while it waits for another one.
    pub fn new(slot_rows: usize, held: usize, slots: impl IntoIterator<Item = S>) -> Self {
        let slots: Vec<_> = slots.into_iter().map(|of| Slot { progress: AtomicU64::new(0), of }).collect();
        let free = (0..slots.len().min(OpenSlot::MOST_SLOTS)).rev();
        Self {
            slot_rows,
            open: AtomicU64::new(OpenSlot::NONE.0),
            busy: AtomicUsize::new(0),
            shut: AtomicBool::new(false),
            wake_at: if slots.len() < 4 { 1 } else { slots.len().saturating_sub(held).clamp(1, 2) },
            free: Mutex::new(free.filter_map(|s| u32::try_from(s).ok()).map(SlotId).collect()),
            changed: Condvar::new(),
            slots,
        }
    }

    #[inline]
    pub fn slot(&self, slot: SlotId) -> &S {
        &self.slots[slot.index()].of
    }

    /// The next rows of the open slot, `most` or as many as it has left, if it has any.
    #[inline]
    pub fn claim_now(&self, most: usize) -> Option<Claim> {
        if self.is_shut() {
            return None;
        }
        self.claim_open(most)
    }

    /// The same; opens a free slot if none is open or the open one is full. `on_open` is called with that slot before a row
    /// of it can be claimed. Says whether it opened one. `None` where it was shut, or where none is free and it does not wait.
    pub fn claim_or_open(
        &self,
        most: usize,
        none_free: NoneFree,
        on_open: impl FnOnce(&S),
    ) -> Option<(Claim, bool)> {
        let mut free = self.lock();
        loop {
            if self.is_shut() {
                return None;
            }
            if let Some(claim) = self.claim_open(most) {
                return Some((claim, false));
            }
            if let Some(slot) = free.pop() {
                self.busy.fetch_add(1, Ordering::AcqRel);
                let opened = &self.slots[slot.index()];
                opened.progress.store(0, Ordering::Relaxed);
                on_open(&opened.of);
                let open = OpenSlot::new(slot);
                // Not a store: the word changes by exchanges and additions alone, so each of these is ordered with each other one.
                self.open.swap(open.0 + self.at_most(most) as u64, Ordering::SeqCst);
                return self.claim_of(open, most).map(|claim| (claim, true));
            }
            if none_free == NoneFree::GiveUp {
                return None;
            }
            free = unpoisoned(self.changed.wait(free));
        }
    }

    /// Acquire: what the opening thread wrote to the slot is seen.
    #[inline]
    fn claim_open(&self, most: usize) -> Option<Claim> {
        let more = self.at_most(most) as u64;
        self.claim_of(OpenSlot(self.open.fetch_add(more, Ordering::Acquire)), most)
    }

    fn at_most(&self, rows: usize) -> usize {
        rows.clamp(1, self.slot_rows)
    }

    /// What a claim of `most` more gets of the slot that was open `before`.
    #[inline]
    fn claim_of(&self, before: OpenSlot, most: usize) -> Option<Claim> {
        let (slot, first, room) = (before.slot()?, before.claims(), self.slot_rows);
        let rows = first..room.min(first + self.at_most(most));
        // No claim can follow the last row, and all before were counted.
        let closes = (rows.end == room).then_some(Closed { slot, rows: room });
        (first < room).then_some(Claim { slot, rows, closes })
    }

    /// Closes the open slot, unless its last row is claimed: that claim closed it.
    pub fn close(&self) -> Option<Closed> {
        let open = OpenSlot(self.open.swap(OpenSlot::NONE.0, Ordering::Acquire));
        let slot = open.slot()?;
        (open.claims() < self.slot_rows).then_some(Closed { slot, rows: open.claims() })
    }

    /// The same for this slot alone, of which the caller holds a row that is not published: no other slot can have taken its place.
    pub fn close_slot(&self, slot: SlotId) -> Option<Closed> {
        let mut open = self.open.load(Ordering::Acquire);
        while OpenSlot(open).slot() == Some(slot) {
            let closed =
                self.open.compare_exchange_weak(open, OpenSlot::NONE.0, Ordering::AcqRel, Ordering::Acquire);
            match closed {
                Ok(_) => {
                    let rows = OpenSlot(open).claims();
                    return (rows < self.slot_rows).then_some(Closed { slot, rows });
                }
                Err(now) => open = now,
            }
        }
        None
    }

    /// Opens a slot again that was closed and is not ended. No slot with room is open, and no other thread opens one meanwhile.
    pub fn reopen(&self, closed: Closed) {
        let open = OpenSlot::new(closed.slot).0 + closed.rows as u64;
        self.open.swap(open, Ordering::SeqCst);
    }

    /// Makes it known how many rows a closed slot has. What the thread wrote before is seen where it is complete.
    #[inline]
    pub fn end(&self, closed: Closed) -> Option<Complete> {
        self.progress(closed.slot, (closed.rows as u64) << 32)
    }

    /// So many claimed rows of the slot are written, or given up.
    #[inline]
    pub fn publish(&self, slot: SlotId, rows: usize) -> Option<Complete> {
        self.progress(slot, rows as u64)
    }

    /// For exactly one addition, published and claimed become equal.
    #[inline]
    fn progress(&self, slot: SlotId, more: u64) -> Option<Complete> {
        let progress = self.slots[slot.index()].progress.fetch_add(more, Ordering::AcqRel) + more;
        let (claimed, published) = (progress >> 32, progress & u64::from(u32::MAX));
        (claimed == published).then_some(Complete { slot, rows: published as usize })
    }

    /// A complete slot is with the one that will release it.
    pub fn take(&self) {
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }

    /// A slot that was taken is free again.
    pub fn release(&self, slot: SlotId) {
        let mut free = self.lock();
        free.push(slot);
        let wake = free.len() >= self.wake_at;
        drop(free);
        if wake {
            self.changed.notify_all();
        }
    }

    /// Claimed rows of the open slot, if it has room for more.
    ///
    /// Sequentially consistent with the opening of a slot: a thread that stores a word and then calls this, and one that opens a slot and then
    /// loads that word, do not miss each other.
    pub fn open_rows(&self) -> Option<usize> {
        let open = OpenSlot(self.open.load(Ordering::SeqCst));
        open.slot().map(|_| open.claims()).filter(|claimed| *claimed < self.slot_rows)
    }

    /// No slot is open, none is being filled and none that is complete waits to be taken.
    pub fn is_quiet(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0
    }

    /// Makes every present and future claim give `None`.
    pub fn shut(&self) {
        self.shut.store(true, Ordering::Release);
        // The lock is taken so that no writer is between its look at `shut` and its wait.
        drop(self.lock());
        self.changed.notify_all();
    }

    #[inline]
    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }

    pub fn n_in_use(&self) -> usize {
        self.slots.len() - self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SlotId>> {
        unpoisoned(self.free.lock())
    }
}

/// A poisoned lock means that a thread panicked between two statements that cannot panic: what it guards is whole.
fn unpoisoned<G>(lock: Result<G, PoisonError<G>>) -> G {
    lock.unwrap_or_else(PoisonError::into_inner)
}
