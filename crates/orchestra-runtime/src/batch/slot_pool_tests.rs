//! Rows claimed, published and closed by many writers at once.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::data::OwnedValue;
use orchestra_core::lineage::Share;
use orchestra_core::{DType, Dim, ItemId, SourceId, TensorSpec};

use super::*;
use crate::flow::ticket::Ticket;
use crate::flow::token::PartPath;

/// A pool, and what it tells of itself.
fn pool(slot_rows: usize, slots: usize) -> (Arc<SlotPool>, Receiver<()>) {
    let row = |name: &str| TensorSpec {
        name: name.into(),
        dtype: DType::I64,
        row: vec![Dim::Fixed(1)],
        batch: Dim::Dynamic,
    };
    let layout = BatchLayout::new(&[row("x")], &[row("y")], slot_rows, slots).unwrap();
    let (sender, events) = channel();
    let notify = move || sender.send(()).unwrap();
    let arena = Arena::create("test", layout).unwrap();
    (SlotPool::new(arena, RunClock::start(), 2, slot_rows, Arc::default(), Box::new(notify)), events)
}

fn ticket(index: u64) -> Token {
    let id = ItemId { source: SourceId(0), index };
    Token::whole(Ticket::alone(id, index, &index.to_string(), b""))
}

/// Sleeps until the pool tells of something, as often as it takes until there is a filled slot.
fn wait_for_filled(pool: &Arc<SlotPool>, events: &Receiver<()>) -> FilledSlot {
    loop {
        match pool.next_filled() {
            Some(slot) => return slot,
            None => events.recv().unwrap(),
        }
    }
}

fn all_filled(pool: &Arc<SlotPool>) -> Vec<FilledSlot> {
    std::iter::from_fn(|| pool.next_filled()).collect()
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
            let slot = wait_for_filled(&pool, &events);
            rows += slot.tokens.len();
            for (row, item) in slot.tokens.iter().enumerate() {
                let Some(item) = item else { continue };
                // SAFETY: the slot is filled and held by `slot`.
                let bytes = unsafe { pool.arena.input_rows(slot.slot, 0, row, 1) };
                assert_eq!(bytes, item.ticket.id().index.to_ne_bytes(), "the row holds its own item");
                assert!(seen.insert(item.ticket.id().index), "no item comes twice");
            }
        }
        seen
    });
    pool.close(LeaveReason::Drain);
    let last = all_filled(&pool);
    let rest = last.iter().flat_map(|s| s.tokens.iter().flatten()).map(|t| t.ticket.id().index);
    let all: BTreeSet<u64> = seen.into_iter().chain(rest).collect();
    assert_eq!(all, (0..WRITERS * EACH).filter(|i| !i.is_multiple_of(10)).collect());
}

/// Whatever the writers do, and whenever the batcher closes the open slot.
#[test]
fn rows_that_are_trimmed_differently_never_share_a_slot() {
    const WRITERS: u64 = 4;
    const EACH: u64 = 3000;
    let size = |index: u64| [[32, 48], [64, 48], [64, 96]][(index * index % 7 % 3) as usize];
    let written: BTreeSet<u64> = (0..WRITERS * EACH).filter(|index| index % 11 != 0).collect();
    let (pool, events) = pool(5, 6);
    let over = AtomicBool::new(false);
    let slots = std::thread::scope(|scope| {
        for w in 0..WRITERS {
            let pool = Arc::clone(&pool);
            scope.spawn(move || {
                for index in w * EACH..(w + 1) * EACH {
                    let lease = pool.claim_trimmed(size(index)).unwrap();
                    // Holes are rows, too.
                    if index % 11 != 0 {
                        lease.publish(ticket(index));
                    }
                }
            });
        }
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                pool.close(LeaveReason::Timer);
                std::thread::yield_now();
            }
        });
        let (mut slots, mut n_seen) = (Vec::new(), 0);
        while n_seen < written.len() {
            let slot = wait_for_filled(&pool, &events);
            let indices: Vec<u64> = slot.tokens.iter().flatten().map(|t| t.ticket.id().index).collect();
            n_seen += indices.len();
            slots.push(indices);
        }
        over.store(true, Ordering::Relaxed);
        slots
    });
    assert_eq!(slots.iter().flatten().copied().collect::<BTreeSet<_>>(), written);
    pool.close(LeaveReason::Drain);
    drop(all_filled(&pool));
    assert!(pool.is_quiet(), "no row is held");
    for slot in &slots {
        let sizes: BTreeSet<[u32; 2]> = slot.iter().map(|index| size(*index)).collect();
        assert!(sizes.len() <= 1, "{sizes:?} share a slot");
    }
    assert!(slots.iter().any(|slot| slot.len() > 1));
}

#[test]
fn a_slot_is_full_once_its_rows_carry_enough_and_are_as_many_as_a_first_batch() {
    let layout = BatchLayout::new(&[], &[], 8, 3).unwrap();
    let arena = Arena::create("test", layout).unwrap();
    let pool = SlotPool::new(arena, RunClock::start(), 2, 2, Arc::default(), Box::new(|| {}));
    let put = |bytes: usize| {
        let content = vec![OwnedValue::Bytes(vec![0; bytes].into())];
        let id = ItemId { source: SourceId(0), index: 0 };
        let ticket = Ticket::alone(id, 0, "", b"");
        let token = Token::carrying(ticket, Share::WHOLE, PartPath::new(), content, None);
        pool.claim().unwrap().publish(token);
    };
    let mut sizes = Vec::new();
    for bytes in [[FULL_AT; 4], [1, FULL_AT, 1, FULL_AT], [1; 4], [1; 4]].concat() {
        put(bytes);
        sizes.extend(all_filled(&pool).iter().map(|slot| slot.tokens.len()));
    }
    assert_eq!(sizes, [2, 2, 2, 2, 8]);
}

#[test]
fn rows_of_each_size_fill_a_slot_of_their_own_until_none_is_free() {
    let (pool, events) = pool(4, 3);
    let write = |index, size| pool.claim_trimmed(size).unwrap().publish(ticket(index));
    let left = || {
        let left = all_filled(&pool).into_iter();
        left.map(|slot| (slot.tokens.len(), slot.reason)).collect::<Vec<_>>()
    };
    let (small, middle, large) = ([32, 48], [64, 48], [96, 96]);
    (0..).zip([small, middle, small, large, small]).for_each(|(index, size)| write(index, size));
    assert!(left().is_empty() && pool.open_batch().is_some_and(|open| open.rows == 3));
    pool.close(LeaveReason::Timer);
    let mut of_each = left();
    of_each.sort_unstable();
    assert_eq!(of_each, [(1, LeaveReason::Timer), (1, LeaveReason::Timer), (3, LeaveReason::Timer)]);
    assert!(pool.open_batch().is_none() && pool.is_quiet());
    // Four sizes and three slots: who finds none free sends the others on their way, and takes the first that comes back.
    std::thread::scope(|scope| {
        scope
            .spawn(|| (0..).zip([small, middle, large, [8, 8]]).for_each(|(index, size)| write(index, size)));
        let mut of_size = Vec::new();
        while of_size.len() < 3 {
            events.recv_timeout(Duration::from_secs(60)).expect("slots leave");
            of_size.extend(left());
        }
        assert_eq!(of_size, [(1, LeaveReason::Size); 3]);
    });
    pool.close(LeaveReason::Drain);
    assert_eq!(left(), [(1, LeaveReason::Drain)]);
    assert!(pool.is_quiet());
}

#[test]
fn a_closed_slot_is_filled_only_when_its_last_writer_is_through() {
    let (pool, events) = pool(4, 1);
    let (a, b) = (pool.claim().unwrap(), pool.claim().unwrap());
    assert_eq!(events.try_iter().count(), 1, "it was opened");
    a.publish(ticket(0));
    pool.close(LeaveReason::Timer);
    assert!(!pool.has_filled() && !pool.is_quiet());
    b.publish(ticket(1));
    assert_eq!(events.try_iter().count(), 1, "it is filled");
    assert!(!pool.is_quiet(), "the batcher has not taken it yet");
    let slot = pool.next_filled().unwrap();
    assert_eq!((slot.reason, slot.tokens.len()), (LeaveReason::Timer, 2));
    assert!(slot.opened <= slot.filled && pool.is_quiet());
}

#[test]
fn only_what_is_watched_for_is_told_and_nothing_is_lost_of_the_rest() {
    let (pool, events) = pool(1, 8);
    let told = |watch| {
        pool.watch(watch);
        let mut told = Vec::new();
        let lease = pool.claim().unwrap();
        told.push(events.try_iter().count());
        lease.publish(ticket(0));
        told.push(events.try_iter().count());
        told
    };
    assert_eq!(told(SlotEvent::Openings), [1, 1]);
    assert_eq!(told(SlotEvent::Filled), [0, 1]);
    assert_eq!(told(SlotEvent::Nothing), [0, 0]);
    assert_eq!(all_filled(&pool).len(), 3);
}

/// What the batcher does: it watches for nothing while it has no use for a slot, and sleeps only after it has said what it waits for and
/// has looked once more.
#[test]
fn who_says_what_it_waits_for_and_then_looks_misses_no_slot() {
    const ITEMS: u64 = 20_000;
    let (pool, events) = pool(1, 3);
    let mut seen = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| (0..ITEMS).for_each(|i| pool.claim().unwrap().publish(ticket(i))));
        while seen < ITEMS {
            pool.watch(SlotEvent::Nothing);
            seen += all_filled(&pool).len() as u64;
            pool.watch(SlotEvent::Filled);
            if !pool.has_filled() && seen < ITEMS {
                events.recv_timeout(Duration::from_secs(60)).expect("it is told of the next slot");
            }
        }
    });
}

#[test]
fn a_writer_without_a_free_slot_waits_until_one_is_dropped_or_the_pool_is_shut() {
    let (pool, _events) = pool(1, 1);
    pool.claim().unwrap().publish(ticket(0));
    let slot = pool.next_filled();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.claim().map(|lease| lease.publish(ticket(1))));
        drop(slot);
        assert!(waiting.join().unwrap().is_some());
        let held = pool.next_filled();
        let waiting = scope.spawn(|| pool.claim().is_none());
        pool.shut();
        assert!(waiting.join().unwrap());
        drop(held);
    });
    assert!(pool.claim().is_none(), "a pool that is shut stays shut");
}

#[tokio::test]
async fn a_task_without_a_free_slot_waits_until_one_is_dropped_or_the_pool_is_shut() {
    let (pool, _events) = pool(1, 1);
    for round in 0..3 {
        pool.claim_async(1).await.unwrap().publish(ticket(round));
        let held = pool.next_filled().unwrap();
        let mut waiting = std::pin::pin!(pool.claim_async(1));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        drop(held);
        drop(waiting.await.expect("the slot is free again"));
        assert_eq!(all_filled(&pool)[0].tokens.iter().flatten().count(), 0, "its lease left a hole");
    }
    pool.claim_async(1).await.unwrap().publish(ticket(9));
    let held = pool.next_filled();
    let mut waiting = std::pin::pin!(pool.claim_async(1));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    pool.shut();
    assert!(waiting.await.is_none() && pool.claim_async(1).await.is_none());
    drop(held);
}
