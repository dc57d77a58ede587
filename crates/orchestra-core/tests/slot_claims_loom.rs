//! All orders of few threads that claim, publish, close and release rows, as loom finds them: what two of them do to one cell without an order
//! between them is an error, and so is a thread that waits for ever. It is built only with `--cfg loom`; `scripts/deep-check.sh loom` runs it.
//!
//! Loom takes sequentially consistent accesses for acquire and release, so what `open_rows` promises of these is not tried here.
#![cfg(loom)]

use std::ops::Range;
use std::sync::Mutex;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use orchestra_core::slot_claims::{Claim, ClaimedItems, Closed, Complete, NoneFree, SlotClaims};

/// What the owner keeps for a slot, without any lock: only the claims order those that touch it.
struct Cells {
    opened: UnsafeCell<usize>,
    closed_by: UnsafeCell<usize>,
    rows: Vec<UnsafeCell<usize>>,
}

/// Claims, and the rows of each slot that was complete, in that order. Loom does not see the lock, so it orders no thread.
struct Pool {
    claims: SlotClaims<Cells>,
    complete: Mutex<Vec<Vec<usize>>>,
}

fn pool(slot_rows: usize, held: usize, slots: usize) -> Arc<Pool> {
    let cells = |_| Cells {
        opened: UnsafeCell::new(0),
        closed_by: UnsafeCell::new(0),
        rows: (0..slot_rows).map(|_| UnsafeCell::new(0)).collect(),
    };
    let claims = SlotClaims::new(slot_rows, held, (0..slots).map(cells));
    Arc::new(Pool { claims, complete: Mutex::default() })
}

fn set(cell: &UnsafeCell<usize>, value: usize) {
    // SAFETY: loom ends the test if another thread may touch it.
    cell.with_mut(|cell| unsafe { *cell = value });
}

fn get(cell: &UnsafeCell<usize>) -> usize {
    // SAFETY: as above.
    cell.with(|cell| unsafe { *cell })
}

impl Pool {
    fn claim(&self, most: usize) -> Option<Claim> {
        let claims = &self.claims;
        claims
            .claim_now(most)
            .or_else(|| Some(claims.claim_or_open(most, NoneFree::Wait, |slot| set(&slot.opened, 7))?.0))
    }

    /// Writes these values, as many at once as there is room for.
    fn write_all(&self, mut values: Range<usize>) {
        while !values.is_empty() {
            let claim = self.claim(values.len()).expect("it is not shut");
            let (slot, rows) = (claim.slot, claim.rows.clone());
            let by_close = claim.closes.and_then(|closed| self.end(closed));
            assert!(by_close.is_none(), "rows are still to be published");
            let cells = self.claims.slot(slot);
            rows.clone().for_each(|row| set(&cells.rows[row], values.next().expect("no more than asked")));
            self.claims.publish(slot, rows.len()).into_iter().for_each(|complete| self.give_back(complete));
        }
    }

    /// Writes `value` to a row that it waits for. If that completes a slot, the slot is given back at once.
    fn write(&self, value: usize) {
        self.fill(value).into_iter().for_each(|complete| self.give_back(complete));
    }

    /// The same without giving back what it completed: by closing the slot, by its row, or none.
    fn fill(&self, value: usize) -> Option<Complete> {
        let Claim { slot, rows, closes } = self.claim(1).expect("it is not shut");
        let by_close = closes.and_then(|closed| self.end(closed));
        assert!(by_close.is_none(), "a row is still to be published");
        let cells = self.claims.slot(slot);
        assert_eq!(get(&cells.opened), 7, "what the opening thread wrote is seen");
        set(&cells.rows[rows.start], value);
        self.claims.publish(slot, rows.len())
    }

    /// Closes the slot of its row, so that it is full with that row, unless another thread has.
    fn write_last(&self, value: usize) {
        let Claim { slot, rows, closes } = self.claim(1).expect("it is not shut");
        set(&self.claims.slot(slot).rows[rows.start], value);
        let closed = closes.or_else(|| self.claims.close_slot(slot));
        let by_close = closed.and_then(|closed| self.end(closed));
        assert!(by_close.is_none(), "a row is still to be published");
        self.claims.publish(slot, 1).into_iter().for_each(|complete| self.give_back(complete));
    }

    fn end(&self, closed: Closed) -> Option<Complete> {
        let cells = self.claims.slot(closed.slot);
        set(&cells.closed_by, get(&cells.closed_by) + 1);
        self.claims.end(closed)
    }

    fn close(&self) {
        let complete = self.claims.close().and_then(|closed| self.end(closed));
        complete.into_iter().for_each(|complete| self.give_back(complete));
    }

    fn give_back(&self, Complete { slot, rows }: Complete) {
        let cells = self.claims.slot(slot);
        assert_eq!(get(&cells.closed_by), 1, "it was closed once");
        set(&cells.closed_by, 0);
        let values = cells.rows[..rows].iter().map(|row| (get(row), set(row, 0)).0).collect();
        self.complete.lock().unwrap().push(values);
        self.claims.take();
        self.claims.release(slot);
    }

    /// Closes what is open, and says how long each slot was, once all that was written has come out once.
    fn ends_with(&self, values: usize) -> Vec<usize> {
        self.close();
        assert!(self.claims.is_quiet() && self.claims.n_in_use() == 0);
        let complete = std::mem::take(&mut *self.complete.lock().unwrap());
        let mut all = complete.concat();
        all.sort_unstable();
        assert_eq!(all, (1..=values).collect::<Vec<_>>());
        complete.iter().map(Vec::len).collect()
    }
}

/// Tries all orders in which the scheduler interrupts threads up to `preemptions` times beside the places where they wait.
fn all_orders(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(test);
}

fn spawn(pool: &Arc<Pool>, run: impl FnOnce(&Pool) + 'static) -> thread::JoinHandle<()> {
    let pool = Arc::clone(pool);
    thread::spawn(move || run(&pool))
}

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn each_row_belongs_to_one_writer_and_each_slot_is_complete_for_one_thread() {
    all_orders(3, || {
        let pool = pool(2, 1, 2);
        let writers =
            [spawn(&pool, |p| [1, 2].into_iter().for_each(|v| p.write(v))), spawn(&pool, |p| p.write(3))];
        pool.write(4);
        join(writers);
        assert_eq!(pool.ends_with(4), [2, 2]);
    });
}

#[test]
fn rows_that_are_claimed_together_go_on_in_the_next_slot_and_none_is_lost() {
    all_orders(3, || {
        let pool = pool(3, 1, 2);
        let writers = [spawn(&pool, |p| p.write_all(1..3)), spawn(&pool, Pool::close)];
        pool.write_all(3..6);
        join(writers);
        assert!(pool.ends_with(5).iter().all(|rows| (1..=3).contains(rows)));
    });
}

#[test]
fn a_slot_that_is_closed_by_one_of_its_rows_is_closed_once_and_no_other_is() {
    all_orders(3, || {
        let pool = pool(2, 1, 2);
        let writers = [spawn(&pool, |p| p.write_last(1)), spawn(&pool, |p| p.write_last(2))];
        pool.write(3);
        pool.close();
        join(writers);
        assert!(pool.ends_with(3).iter().all(|rows| (1..=2).contains(rows)));
    });
}

#[test]
fn whoever_sees_that_writers_are_through_with_all_items_finds_their_rows() {
    all_orders(3, || {
        let (pool, through) = (pool(2, 1, 2), Arc::new(ClaimedItems::default()));
        let writers = [1, 2].map(|value| {
            let through = Arc::clone(&through);
            spawn(&pool, move |p| {
                drop(p.fill(value));
                through.add(1);
            })
        });
        if through.get() == 2 {
            assert!(!pool.claims.is_quiet(), "no slot was taken");
        }
        join(writers);
    });
}

#[test]
fn a_close_beside_the_last_claim_closes_once() {
    all_orders(3, || {
        let pool = pool(2, 1, 2);
        pool.write(1);
        let threads = [spawn(&pool, |p| p.write(2)), spawn(&pool, |p| p.write(3))];
        pool.close();
        join(threads);
        assert!(pool.ends_with(3).iter().all(|rows| (1..=2).contains(rows)));
    });
}

#[test]
fn two_closes_close_a_slot_once() {
    all_orders(3, || {
        let pool = pool(3, 1, 2);
        pool.write(1);
        let threads = [spawn(&pool, |p| p.write(2)), spawn(&pool, Pool::close)];
        pool.close();
        join(threads);
        assert!(pool.ends_with(2).len() <= 2);
    });
}

#[test]
fn a_slot_that_is_opened_again_goes_on_beside_a_close() {
    all_orders(3, || {
        let pool = pool(3, 1, 2);
        pool.write(1);
        let closer = spawn(&pool, Pool::close);
        if let Some(closed) = pool.claims.close() {
            pool.claims.reopen(closed);
        }
        pool.write(2);
        join([closer]);
        assert!(pool.ends_with(2).len() <= 2);
    });
}

#[test]
fn writers_of_one_slot_wait_for_each_other_and_not_for_ever() {
    all_orders(3, || {
        let pool = pool(1, 1, 1);
        let writers =
            [spawn(&pool, |p| [1, 2].into_iter().for_each(|v| p.write(v))), spawn(&pool, |p| p.write(3))];
        pool.write(4);
        join(writers);
        assert_eq!(pool.ends_with(4), [1; 4]);
    });
}

/// The wake rule with two spare slots: a release that leaves one slot free wakes no writer, and another one may take it and leave it half full.
#[test]
fn writers_that_wait_for_two_free_slots_get_one() {
    all_orders(3, || {
        let pool = pool(2, 2, 4);
        let held: Vec<_> = (1..=8).filter_map(|value| pool.fill(value)).collect();
        assert_eq!(held.len(), 4);
        let writers = [spawn(&pool, |p| p.write(9)), spawn(&pool, |p| p.write(10))];
        held.into_iter().for_each(|complete| pool.give_back(complete));
        join(writers);
        assert_eq!(pool.ends_with(10), [2; 5]);
    });
}

#[test]
fn shutting_wakes_all_writers() {
    all_orders(3, || {
        let pool = pool(1, 1, 1);
        let held = pool.fill(1);
        let writers = [(); 2].map(|()| spawn(&pool, |p| assert!(p.claim(1).is_none())));
        pool.claims.shut();
        join(writers);
        held.into_iter().for_each(|complete| pool.give_back(complete));
        assert!(pool.claim(1).is_none(), "what is shut stays shut");
    });
}
