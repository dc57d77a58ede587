//! Rows claimed, published and closed by many writers at once.

use std::collections::BTreeSet;
use std::path::Path;
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
    let arena = Arena::create("test", layout).unwrap();
    (SlotPool::new(arena, RunClock::start(), 2, Arc::default(), Box::new(notify)), events)
}

fn ticket(index: u64) -> Ticket {
    let id = ItemId { source: SourceId(0), index };
    Ticket::alone(id, index, &index.to_string(), Path::new(""))
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
                assert_eq!(bytes, item.id().index.to_ne_bytes(), "the row holds its own item");
                assert!(seen.insert(item.id().index), "no item comes twice");
            }
            slot.pool().noted();
        }
        seen
    });
    pool.close(LeaveReason::Drain);
    let last: Vec<FilledSlot> = events.try_iter().filter_map(filled).collect();
    let rest = last.iter().flat_map(|s| s.items.iter().flatten()).map(|t| t.id().index);
    let all: BTreeSet<u64> = seen.into_iter().chain(rest).collect();
    assert_eq!(all, (0..WRITERS * EACH).filter(|i| !i.is_multiple_of(10)).collect());
}

#[test]
fn slots_that_are_closed_while_rows_are_claimed_keep_every_row() {
    const WRITERS: u64 = 3;
    const EACH: u64 = 2000;
    let (pool, events) = pool(5, 4);
    let over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|w| {
                let pool = Arc::clone(&pool);
                scope.spawn(move || {
                    for index in w * EACH..(w + 1) * EACH {
                        pool.claim().unwrap().publish(ticket(index));
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                pool.close(LeaveReason::Timer);
                std::thread::yield_now();
            }
        });
        let mut seen = Vec::new();
        while seen.len() < (WRITERS * EACH) as usize {
            let Some(slot) = events.recv().ok().and_then(filled) else { continue };
            assert!(!slot.items.is_empty() && slot.items.len() <= 5);
            seen.extend(slot.items.iter().flatten().map(|t| t.id().index));
            slot.pool().noted();
        }
        over.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|w| w.join().unwrap());
        seen
    });
    assert_eq!(seen.iter().copied().collect::<BTreeSet<_>>(), (0..WRITERS * EACH).collect());
    assert!(pool.is_quiet());
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
