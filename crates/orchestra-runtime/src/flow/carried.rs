//! Memory for pictures that stages carry along, handed out in blocks of an arena of fixed size. A thread that finds no room waits, so the
//! pictures in flight are bounded by bytes. Threads are served in the order in which they come, so none waits for ever beside smaller pictures.
//!
//! A picture is kept once, by the chain that made it, and shared by all that carry it on. So no thread that holds a
//! picture waits for room in the same arena, and stages behind a batch or a join always go on and free room.

use std::fmt;
use std::io;
use std::sync::Arc;

use orchestra_core::FailureKind;
use orchestra_core::data::{ItemError, KeptPicture, Picture, Pixels};
use orchestra_worker::mapping::Mapping;

use super::turns::Turns;

/// Blocks begin at multiples of this, so that no two of them share a cache line.
const ALIGN: usize = 64;

/// An arena of shared memory for pictures.
pub struct CarriedArena {
    map: Mapping,
    len: usize,
    /// Free blocks, `(start, len)`, by their place; no two of them touch.
    free: Turns<Vec<(usize, usize)>>,
}

/// A block of the arena. It comes back when it is dropped.
struct CarriedBlock {
    arena: Arc<CarriedArena>,
    start: usize,
    len: usize,
}

impl CarriedArena {
    /// An arena of `len` bytes. Memory is taken when it is first written to.
    pub fn new(len: usize) -> io::Result<Arc<Self>> {
        let len = len.max(ALIGN) / ALIGN * ALIGN;
        let map = Mapping::of_new_memory("orchestra-carried", len)?;
        Ok(Arc::new(Self { map, len, free: Turns::new(vec![(0, len)]) }))
    }

    /// Keeps a picture of this size. `copy` writes its pixels. Waits until there is room; `None` when the arena was shut. Blocks: never call it in an actor.
    ///
    /// # Errors
    /// The pixels do not fit even when nothing else is there.
    pub fn keep(
        self: &Arc<Self>,
        [width, height]: [u32; 2],
        channels: usize,
        copy: &dyn Fn(&mut [u8]),
    ) -> Result<Option<Arc<dyn KeptPicture>>, ItemError> {
        let bytes = (width as usize).saturating_mul(height as usize).saturating_mul(channels);
        let len = bytes.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX);
        if len > self.len {
            let error = format!(
                "the picture takes {} MiB ({width} x {height} pixels), and pictures that stages carry along may take {} MiB together; raise `limits.memory`",
                bytes.div_ceil(1 << 20),
                self.len >> 20
            );
            return Err(ItemError { kind: FailureKind::TooLarge, error });
        }
        let Some(block) = self.take(len) else { return Ok(None) };
        // SAFETY: the block lies within the map, and no other thread has it before it is shared below.
        copy(unsafe { std::slice::from_raw_parts_mut(self.map.at(block.start), bytes) });
        let block = Arc::new(block);
        Ok(Some(Arc::new(CarriedPicture { block, bytes, width, height, channels })))
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Wakes all threads that wait in `keep`, which gives `None` from now on.
    pub fn shut(&self) {
        self.free.shut();
    }

    /// First fit.
    fn take(self: &Arc<Self>, len: usize) -> Option<CarriedBlock> {
        let start = self.free.wait(|all| {
            let at = all.iter().position(|(_, free)| *free >= len)?;
            let (start, free) = all[at];
            if free == len {
                all.remove(at);
            } else {
                all[at] = (start + len, free - len);
            }
            Some(start)
        })?;
        Some(CarriedBlock { arena: Arc::clone(self), start, len })
    }

    fn give_back(&self, start: usize, len: usize) {
        self.free.give_back(|all| {
            let at = all.partition_point(|(other, _)| *other < start);
            all.insert(at, (start, len));
            for left in [at, at.wrapping_sub(1)] {
                if let (Some(&(a, a_len)), Some(&(b, b_len))) = (all.get(left), all.get(left.wrapping_add(1)))
                    && a + a_len == b
                {
                    all[left] = (a, a_len + b_len);
                    all.remove(left + 1);
                }
            }
        });
    }
}

impl Drop for CarriedBlock {
    fn drop(&mut self) {
        self.arena.give_back(self.start, self.len);
    }
}

#[derive(Clone)]
struct CarriedPicture {
    block: Arc<CarriedBlock>,
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
    fn with_pixels(
        &self,
        show: &mut dyn FnMut(Pixels<'_>) -> Result<(), ItemError>,
    ) -> Result<(), ItemError> {
        self.pixels().map_or(Ok(()), show)
    }

    fn pixels(&self) -> Option<Pixels<'_>> {
        // SAFETY: the block lies within the map, was written before it was shared, and is only read from then on.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.block.arena.map.at(self.block.start), self.bytes) };
        Some(Pixels { width: self.width, height: self.height, channels: self.channels, bytes })
    }

    fn size(&self) -> Result<[u32; 2], ItemError> {
        Ok([self.width, self.height])
    }

    fn kept(&self) -> Option<Arc<dyn KeptPicture>> {
        Some(Arc::new(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn keep(arena: &Arc<CarriedArena>, side: u32, value: u8) -> Option<Arc<dyn KeptPicture>> {
        arena.keep([side; 2], 1, &|pixels| pixels.fill(value)).unwrap()
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
        assert_eq!(arena.free.look(Vec::clone), [(0, 1024)], "neighbours are joined");
        drop(keep(&arena, 32, 9).unwrap());
        let too_large = arena.keep([33; 2], 1, &|_| ()).unwrap_err();
        assert_eq!(too_large.kind, FailureKind::TooLarge);
    }

    #[test]
    fn a_large_picture_gets_its_room_before_smaller_ones_that_come_later() {
        let arena = CarriedArena::new(1024).unwrap();
        let first = keep(&arena, 16, 1).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiting = [32, 16, 16].map(|side| {
            let (arena, order, before) = (Arc::clone(&arena), Arc::clone(&order), arena.free.n_came());
            let theirs = Arc::clone(&arena);
            let thread = std::thread::spawn(move || {
                let kept = keep(&theirs, side, 2).unwrap();
                order.lock().unwrap().push(side);
                drop(kept);
            });
            while arena.free.n_came() == before {
                std::thread::yield_now();
            }
            thread
        });
        drop(first);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(order.lock().unwrap()[0], 32);
    }
}
