//! The filling side of a stage's arena: loaders claim rows, write them and publish them. It decides nothing about when a batch
//! leaves (the batcher does) and never looks at what the rows hold.
//!
//! A slot goes `Free => Open (rows are claimed) => Closed (no more claims) => Filled (all claimed rows published) => Free`. Slots
//! are the credits of the data path: who holds no row writes nothing, and a slow device slows the readers.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use orchestra_core::SlotId;
use orchestra_core::batching::LeaveReason;
use orchestra_wire::arena::Arena;

use crate::messages::Ticket;

/// What the pool tells its batcher.
pub enum PoolEvent {
    /// The first row of a new batch was claimed.
    Opened,
    /// A closed slot has all its rows.
    Filled(FilledSlot),
}

type Notify = Box<dyn Fn(PoolEvent) + Send + Sync>;

/// See the module.
pub struct SlotPool {
    arena: Arena,
    state: Mutex<State>,
    changed: Condvar,
    notify: Notify,
}

struct State {
    free: Vec<SlotId>,
    open: Option<SlotId>,
    filling: HashMap<SlotId, Filling>,
    /// Filled slots that the batcher has not yet taken note of.
    announced: usize,
    shut: bool,
}

#[derive(Default)]
struct Filling {
    items: Vec<Option<Arc<Ticket>>>,
    published: usize,
    closed: Option<LeaveReason>,
}

/// A row that one writer holds. Dropped unpublished, it becomes a hole: it travels with its batch and nobody reads it.
pub struct RowLease {
    pool: Arc<SlotPool>,
    slot: SlotId,
    row: usize,
    published: bool,
}

/// A slot whose rows are all there. Dropping it frees the slot.
pub struct FilledSlot {
    pool: Arc<SlotPool>,
    /// Which.
    pub slot: SlotId,
    /// The items by row; `None` is a hole.
    pub items: Vec<Option<Arc<Ticket>>>,
    /// Why it was closed.
    pub reason: LeaveReason,
}

impl SlotPool {
    /// A pool over `arena`, all slots free. `notify` must not block.
    #[must_use]
    pub fn new(arena: Arena, notify: Notify) -> Arc<Self> {
        let free = (0..arena.layout().slots).rev().filter_map(|s| u32::try_from(s).ok()).map(SlotId).collect();
        let state = State { free, open: None, filling: HashMap::new(), announced: 0, shut: false };
        Arc::new(Self { arena, state: Mutex::new(state), changed: Condvar::new(), notify })
    }

    /// The memory.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Claims the next row, waiting for a free slot if need be. `None` when the pool was shut. Blocks: never call it in an actor.
    pub fn claim(self: &Arc<Self>) -> Option<RowLease> {
        let mut state = self.lock();
        let mut opened = false;
        let slot = loop {
            if state.shut {
                return None;
            }
            if let Some(slot) = state.open {
                break slot;
            }
            if let Some(slot) = state.free.pop() {
                state.filling.insert(slot, Filling::default());
                state.open = Some(slot);
                opened = true;
                break slot;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        let max_rows = self.arena.layout().max_rows;
        let State { open, filling, .. } = &mut *state;
        let filling = filling.entry(slot).or_default();
        let row = filling.items.len();
        filling.items.push(None);
        if row + 1 == max_rows {
            filling.closed = Some(LeaveReason::Full);
            *open = None;
        }
        drop(state);
        if opened {
            (self.notify)(PoolEvent::Opened);
        }
        Some(RowLease { pool: Arc::clone(self), slot, row, published: false })
    }

    /// Rows claimed in the open slot.
    #[must_use]
    pub fn open_rows(&self) -> Option<usize> {
        let state = self.lock();
        let slot = state.open?;
        state.filling.get(&slot).map(|f| f.items.len())
    }

    /// Closes the open slot: it is announced as filled when its last claimed row is published.
    pub fn close(self: &Arc<Self>, reason: LeaveReason) {
        let mut state = self.lock();
        let Some(slot) = state.open.take() else { return };
        if let Some(f) = state.filling.get_mut(&slot) {
            f.closed = Some(reason);
        }
        let filled = self.take_if_filled(&mut state, slot);
        drop(state);
        self.announce(filled);
    }

    /// The batcher has taken note of a filled slot.
    pub fn noted(&self) {
        self.lock().announced -= 1;
    }

    /// No slot is open, none is being filled and none is on its way to the batcher.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let state = self.lock();
        state.filling.is_empty() && state.announced == 0
    }

    /// Makes every present and future `claim` give `None`.
    pub fn shut(&self) {
        self.lock().shut = true;
        self.changed.notify_all();
    }

    fn publish(self: &Arc<Self>, slot: SlotId, row: usize, item: Option<Arc<Ticket>>) {
        let mut state = self.lock();
        if let Some(f) = state.filling.get_mut(&slot) {
            f.items[row] = item;
            f.published += 1;
        }
        let filled = self.take_if_filled(&mut state, slot);
        drop(state);
        self.announce(filled);
    }

    fn take_if_filled(self: &Arc<Self>, state: &mut State, slot: SlotId) -> Option<FilledSlot> {
        let f = state.filling.get(&slot)?;
        let reason = f.closed?;
        if f.published < f.items.len() {
            return None;
        }
        let f = state.filling.remove(&slot)?;
        state.announced += 1;
        Some(FilledSlot { pool: Arc::clone(self), slot, items: f.items, reason })
    }

    /// Outside the lock: the batcher's mailbox is not ours to wait for, and dropping a `FilledSlot` takes the lock again.
    fn announce(&self, filled: Option<FilledSlot>) {
        if let Some(filled) = filled {
            (self.notify)(PoolEvent::Filled(filled));
        }
    }

    fn release(&self, slot: SlotId) {
        self.lock().free.push(slot);
        self.changed.notify_all();
    }

    /// A poisoned lock means that a thread panicked between two statements that cannot panic: the state is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RowLease {
    /// The bytes of one model input in this row.
    pub fn input_mut(&mut self, input: usize) -> &mut [u8] {
        // SAFETY: this lease is the only holder of the row until it is published, and `&mut self` allows one borrow at a time.
        unsafe { self.pool.arena.input_row_mut(self.slot, input, self.row) }
    }

    /// Hands the row over as the row of `item`.
    pub fn publish(mut self, item: Arc<Ticket>) {
        self.published = true;
        self.pool.publish(self.slot, self.row, Some(item));
    }
}

impl Drop for RowLease {
    fn drop(&mut self) {
        if !self.published {
            self.pool.publish(self.slot, self.row, None);
        }
    }
}

impl FilledSlot {
    /// The pool that it belongs to.
    #[must_use]
    pub fn pool(&self) -> &Arc<SlotPool> {
        &self.pool
    }

    /// The bytes of `count` rows of a fixed-shape output, from row `first` on; `None` if its shape is dynamic. Only rows whose
    /// batch is done may be read: the worker is through with them.
    #[must_use]
    pub fn output(&self, output: usize, first: usize, count: usize) -> Option<&[u8]> {
        // SAFETY: the ledger says that no worker holds these rows any more, and slots are only reused once `self` is dropped.
        unsafe { self.pool.arena.output_rows(self.slot, output, first, count) }
    }
}

impl Drop for FilledSlot {
    fn drop(&mut self) {
        self.pool.release(self.slot);
    }
}
