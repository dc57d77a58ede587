//! The filling side of a stage's arena: loaders claim rows, write them and publish them. It decides nothing about when a batch
//! leaves (the batcher does) and never looks at what the rows hold.
//!
//! A slot goes `Free => Open (rows are claimed) => Closed (no more claims) => Filled (all claimed rows published) => Free`. Slots
//! are the credits of the data path: who holds no row writes nothing, and a slow device slows the readers.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orchestra_core::SlotId;
use orchestra_core::batching::{LeaveReason, OpenBatch};
use orchestra_wire::arena::Arena;

use crate::context::RunClock;
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
    clock: RunClock,
    state: Mutex<State>,
    changed: Condvar,
    notify: Notify,
}

struct State {
    free: Vec<SlotId>,
    open: Option<SlotId>,
    /// When the first row of the open slot was claimed.
    open_since: Duration,
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
    pub fn new(arena: Arena, clock: RunClock, notify: Notify) -> Arc<Self> {
        let free =
            (0..arena.layout().slots).rev().filter_map(|s| u32::try_from(s).ok()).map(SlotId).collect();
        let state = State {
            free,
            open: None,
            open_since: Duration::ZERO,
            filling: HashMap::new(),
            announced: 0,
            shut: false,
        };
        Arc::new(Self { arena, clock, state: Mutex::new(state), changed: Condvar::new(), notify })
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
                state.open_since = self.clock.now();
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

    /// The batch that is being filled.
    #[must_use]
    pub fn open_batch(&self) -> Option<OpenBatch> {
        let state = self.lock();
        let rows = state.filling.get(&state.open?)?.items.len();
        Some(OpenBatch { rows, oldest_since: state.open_since })
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;
    use std::sync::mpsc::{Receiver, channel};

    use orchestra_core::batch_layout::BatchLayout;
    use orchestra_core::{DType, Dim, ItemId, SourceId, TensorSpec};

    use super::*;

    fn pool(max_rows: usize, slots: usize) -> (Arc<SlotPool>, Receiver<PoolEvent>) {
        let row = |name: &str| TensorSpec {
            name: name.into(),
            dtype: DType::I64,
            row: vec![Dim::Fixed(1)],
            batch: Dim::Dynamic,
        };
        let layout = BatchLayout::new(&[row("x")], &[row("y")], max_rows, slots).unwrap();
        let (sender, events) = channel();
        let notify = move |event| sender.send(event).unwrap();
        (SlotPool::new(Arena::create("test", layout).unwrap(), RunClock::start(), Box::new(notify)), events)
    }

    fn ticket(index: u64) -> Arc<Ticket> {
        let id = ItemId { source: SourceId(0), index };
        Arc::new(Ticket { id, sequence: index, name: index.to_string(), path: PathBuf::new() })
    }

    fn filled(event: PoolEvent) -> Option<FilledSlot> {
        match event {
            PoolEvent::Filled(slot) => Some(slot),
            PoolEvent::Opened => None,
        }
    }

    #[test]
    fn many_writers_fill_slots_without_losing_or_doubling_an_item() {
        const WRITERS: u64 = 4;
        const EACH: u64 = 500;
        let (pool, events) = pool(7, 3);
        let seen = std::thread::scope(|scope| {
            for w in 0..WRITERS {
                let pool = Arc::clone(&pool);
                scope.spawn(move || {
                    for i in 0..EACH {
                        let index = w * EACH + i;
                        let mut lease = pool.claim().unwrap();
                        lease.input_mut(0).copy_from_slice(&index.to_ne_bytes());
                        // Every tenth writer gives up: a hole.
                        if !index.is_multiple_of(10) {
                            lease.publish(ticket(index));
                        }
                    }
                });
            }
            let mut seen = BTreeSet::new();
            let mut rows = 0;
            while rows < (WRITERS * EACH / 7 * 7) as usize {
                let Some(slot) = events.recv().ok().and_then(filled) else { continue };
                rows += slot.items.len();
                for (row, item) in slot.items.iter().enumerate() {
                    let Some(item) = item else { continue };
                    // SAFETY: the slot is filled and held by `slot`.
                    let bytes = unsafe { slot.pool().arena().input_rows(slot.slot, 0, row, 1) };
                    assert_eq!(bytes, item.id.index.to_ne_bytes(), "the row holds its own item");
                    assert!(seen.insert(item.id.index), "no item comes twice");
                }
                slot.pool().noted();
            }
            seen
        });
        pool.close(LeaveReason::Drain);
        let last: Vec<FilledSlot> = events.try_iter().filter_map(filled).collect();
        let rest = last.iter().flat_map(|s| s.items.iter().flatten()).map(|t| t.id.index);
        let all: BTreeSet<u64> = seen.into_iter().chain(rest).collect();
        assert_eq!(all, (0..WRITERS * EACH).filter(|i| !i.is_multiple_of(10)).collect());
    }

    #[test]
    fn a_closed_slot_is_announced_only_when_its_last_writer_is_through() {
        let (pool, events) = pool(4, 1);
        let (a, b) = (pool.claim().unwrap(), pool.claim().unwrap());
        assert!(matches!(events.try_recv(), Ok(PoolEvent::Opened)));
        a.publish(ticket(0));
        pool.close(LeaveReason::Timer);
        assert!(events.try_recv().is_err() && !pool.is_quiet());
        b.publish(ticket(1));
        let slot = filled(events.try_recv().unwrap()).unwrap();
        assert_eq!((slot.reason, slot.items.len()), (LeaveReason::Timer, 2));
        assert!(!pool.is_quiet(), "the batcher has not seen it yet");
        pool.noted();
        assert!(pool.is_quiet());
    }

    #[test]
    fn a_writer_without_a_free_slot_waits_until_one_is_dropped_or_the_pool_is_shut() {
        let (pool, events) = pool(1, 1);
        pool.claim().unwrap().publish(ticket(0));
        let slot = events.iter().find_map(filled).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.claim().map(|lease| lease.publish(ticket(1))));
            drop(slot);
            assert!(waiting.join().unwrap().is_some());
            let held = events.iter().find_map(filled);
            let waiting = scope.spawn(|| pool.claim().is_none());
            pool.shut();
            assert!(waiting.join().unwrap());
            drop(held);
        });
        assert!(pool.claim().is_none(), "a pool that is shut stays shut");
    }
}
