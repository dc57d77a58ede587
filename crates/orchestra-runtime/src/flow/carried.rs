//! Memory for pictures that stages carry along, handed out in blocks of an arena of fixed size. A thread that finds no room waits, so the
//! pictures in flight are bounded by bytes. Threads are served in the order in which they come, so none waits for ever beside smaller pictures.
//!
//! A picture is kept once, by the chain that made it, and shared by all that carry it on. So no thread that holds a
//! picture waits for room in the same arena, and stages behind a batch or a join always go on and free room.

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use orchestra_core::FailureKind;
use orchestra_core::data::{KeptPicture, Picture, Pixels, Refusal};
use orchestra_worker::mapping::Mapping;

/// Blocks begin at multiples of this, so that no two of them share a cache line.
const ALIGN: usize = 64;

/// An arena of shared memory for pictures.
pub struct CarriedArena {
    map: Mapping,
    len: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Free blocks, `(start, len)`, by their place; no two of them touch.
    free: Vec<(usize, usize)>,
    /// The number of the thread that comes next, and of the one that is served now.
    next: u64,
    served: u64,
    is_shut: bool,
}

/// A block of the arena. It comes back when it is dropped.
struct Block {
    arena: Arc<CarriedArena>,
    start: usize,
    len: usize,
}

impl CarriedArena {
    /// An arena of `len` bytes. Memory is taken when it is first written to.
    pub fn new(len: usize) -> io::Result<Arc<Self>> {
        let len = len.max(ALIGN) / ALIGN * ALIGN;
        let map = Mapping::of_new_memory("orchestra-carried", len)?;
        let state = State { free: vec![(0, len)], next: 0, served: 0, is_shut: false };
        Ok(Arc::new(Self { map, len, state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// Keeps pixels. Waits until there is room; `None` when the arena was shut. Blocks: never call it in an actor.
    ///
    /// # Errors
    /// The pixels do not fit even when nothing else is there.
    pub fn keep(self: &Arc<Self>, pixels: &Pixels<'_>) -> Result<Option<Arc<dyn KeptPicture>>, Refusal> {
        let len = pixels.bytes.len().next_multiple_of(ALIGN);
        if len > self.len {
            let error = format!(
                "the picture takes {} MiB ({} x {} pixels), and pictures that stages carry along may take {} MiB together; raise `limits.memory`",
                pixels.bytes.len().div_ceil(1 << 20),
                pixels.width,
                pixels.height,
                self.len >> 20
            );
            return Err(Refusal { kind: FailureKind::TooLarge, error });
        }
        let Some(block) = self.take(len) else { return Ok(None) };
        // SAFETY: the block lies within the map, and no other thread has it before it is shared below.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.map.at(block.start), pixels.bytes.len()) };
        bytes.copy_from_slice(pixels.bytes);
        let (width, height, channels) = (pixels.width, pixels.height, pixels.channels);
        let (block, bytes) = (Arc::new(block), pixels.bytes.len());
        Ok(Some(Arc::new(CarriedPicture { block, bytes, width, height, channels })))
    }

    /// Bytes of all of it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Wakes all threads that wait in `keep`, which gives `None` from now on.
    pub fn shut(&self) {
        self.lock().is_shut = true;
        self.changed.notify_all();
    }

    /// First fit, once those that came before have theirs.
    fn take(self: &Arc<Self>, len: usize) -> Option<Block> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        loop {
            if state.is_shut {
                return None;
            }
            if state.served == number
                && let Some(at) = state.free.iter().position(|(_, free)| *free >= len)
            {
                state.served += 1;
                let (start, free) = state.free[at];
                if free == len {
                    state.free.remove(at);
                } else {
                    state.free[at] = (start + len, free - len);
                }
                drop(state);
                self.changed.notify_all();
                return Some(Block { arena: Arc::clone(self), start, len });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give_back(&self, start: usize, len: usize) {
        let mut state = self.lock();
        let at = state.free.partition_point(|(other, _)| *other < start);
        state.free.insert(at, (start, len));
        for left in [at, at.wrapping_sub(1)] {
            if let (Some(&(a, a_len)), Some(&(b, b_len))) =
                (state.free.get(left), state.free.get(left.wrapping_add(1)))
                && a + a_len == b
            {
                state.free[left] = (a, a_len + b_len);
                state.free.remove(left + 1);
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.give_back(self.start, self.len);
    }
}

#[derive(Clone)]
struct CarriedPicture {
    block: Arc<Block>,
    bytes: usize,
    width: u32,
    height: u32,
    channels: usize,
}

impl fmt::Debug for CarriedPicture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CarriedPicture").field("width", &self.width).field("height", &self.height).finish()
    }
}

impl KeptPicture for CarriedPicture {}

impl Picture for CarriedPicture {
    fn with_pixels(&self, show: &mut dyn FnMut(Pixels<'_>) -> Result<(), Refusal>) -> Result<(), Refusal> {
        // SAFETY: the block lies within the map, was written before it was shared, and is only read from then on.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.block.arena.map.at(self.block.start), self.bytes) };
        show(Pixels { width: self.width, height: self.height, channels: self.channels, bytes })
    }

    fn size(&self) -> Result<[u32; 2], Refusal> {
        Ok([self.width, self.height])
    }

    fn kept(&self) -> Option<Arc<dyn KeptPicture>> {
        Some(Arc::new(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(arena: &Arc<CarriedArena>, side: u32, value: u8) -> Option<Arc<dyn KeptPicture>> {
        let bytes = vec![value; (side * side) as usize];
        arena.keep(&Pixels { width: side, height: side, channels: 1, bytes: &bytes }).unwrap()
    }

    #[test]
    fn blocks_do_not_overlap_and_room_comes_back_in_one_piece() {
        let arena = CarriedArena::new(1024).unwrap();
        let kept: Vec<_> = (0..4_u8).map(|n| keep(&arena, 16, n).unwrap()).collect();
        for (n, picture) in (0_u8..).zip(&kept) {
            picture
                .with_pixels(&mut |pixels| {
                    assert!(pixels.bytes.len() == 256 && pixels.bytes.iter().all(|b| *b == n));
                    Ok(())
                })
                .unwrap();
        }
        let mut kept = kept;
        kept.swap_remove(1);
        kept.swap_remove(0);
        drop(kept);
        assert_eq!(arena.lock().free, [(0, 1024)], "neighbours are joined");
        drop(keep(&arena, 32, 9).unwrap());
        let bytes = vec![0; 33 * 33];
        let too_large =
            arena.keep(&Pixels { width: 33, height: 33, channels: 1, bytes: &bytes }).unwrap_err();
        assert_eq!(too_large.kind, FailureKind::TooLarge);
    }

    #[test]
    fn a_large_picture_gets_its_room_before_smaller_ones_that_come_later() {
        let arena = CarriedArena::new(1024).unwrap();
        let first = keep(&arena, 16, 1).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiting = [32, 16, 16].map(|side| {
            let (arena, order, before) = (Arc::clone(&arena), Arc::clone(&order), arena.lock().next);
            let theirs = Arc::clone(&arena);
            let thread = std::thread::spawn(move || {
                let kept = keep(&theirs, side, 2).unwrap();
                order.lock().unwrap().push(side);
                drop(kept);
            });
            while arena.lock().next == before {
                std::thread::yield_now();
            }
            thread
        });
        drop(first);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(order.lock().unwrap()[0], 32);
    }

    #[test]
    fn a_thread_without_room_waits_until_there_is_some_or_the_arena_is_shut() {
        let arena = CarriedArena::new(256).unwrap();
        let first = keep(&arena, 16, 1).unwrap();
        let theirs = Arc::clone(&arena);
        let waiting = std::thread::spawn(move || keep(&theirs, 16, 2));
        drop(first);
        let second = waiting.join().unwrap().expect("it gets the room that has come back");
        let theirs = Arc::clone(&arena);
        let waiting = std::thread::spawn(move || keep(&theirs, 16, 3).is_none());
        arena.shut();
        assert!(waiting.join().unwrap());
        drop(second);
    }
}
