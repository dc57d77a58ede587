//! Counts what a thread allocates, so that a check can bound it; tests of other crates include this file. It refuses no allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// What some work took on its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Most bytes that were allocated at a time, beyond those at its start.
    pub peak: usize,
    /// The largest single allocation, in bytes.
    pub largest: usize,
    /// How often memory was allocated, or moved to grow.
    pub calls: usize,
}

/// Runs `work` and says what memory it took.
pub fn measured<T>(work: impl FnOnce() -> T) -> (T, Taken) {
    let before = LIVE.get();
    PEAK.set(before);
    LARGEST.set(0);
    let n_before = CALLS.get();
    let result = work();
    let peak = usize::try_from(PEAK.get() - before).unwrap_or(0);
    (result, Taken { peak, largest: LARGEST.get(), calls: CALLS.get() - n_before })
}

thread_local! {
    // Below zero on a thread that frees what another one allocated.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is passed on to the system's allocator. The counters are plain numbers without a destructor, so to use them
// allocates nothing, also while a thread ends.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(0, layout.size());
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(0, layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        took(layout.size(), new_size);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get().wrapping_sub_unsigned(layout.size()));
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

fn took(instead_of: usize, bytes: usize) {
    let live = LIVE.get().wrapping_sub_unsigned(instead_of).wrapping_add_unsigned(bytes);
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
    LARGEST.set(LARGEST.get().max(bytes));
    CALLS.set(CALLS.get() + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_counts_what_is_there_at_a_time_and_not_what_was_freed_before() {
        let (kept, taken) = measured(|| {
            drop(vec![1_u8; 5000]);
            let mut kept = vec![1_u8; 3000];
            kept.reserve_exact(4000);
            kept
        });
        assert_eq!(kept.len(), 3000);
        assert_eq!(taken, Taken { peak: 7000, largest: 7000, calls: 3 });
        let (_, taken) = measured(|| drop(kept));
        assert_eq!(taken, Taken { peak: 0, largest: 0, calls: 0 });
    }
}
