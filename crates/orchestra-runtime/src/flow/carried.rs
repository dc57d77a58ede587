//! Pictures that stages carry along, within a budget of bytes. A thread that finds no room waits, so the pictures in flight are bounded.
//!
//! A picture is kept once, by the chain that made it, and shared by all that carry it on. So no thread that holds a
//! picture waits for room in the same budget, and stages behind a batch or a join always go on and free room.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use orchestra_core::data::{KeptPicture, Picture, Pixels, Refusal};
use orchestra_core::{FailureKind, ImageSpec};

pub struct CarriedPictures {
    /// Bytes that all may take together.
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    free: usize,
    is_shut: bool,
}

impl CarriedPictures {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            state: Mutex::new(State { free: most, is_shut: false }),
            changed: Condvar::new(),
        })
    }

    /// Keeps pixels. Waits until there is room; `None` when it was shut. Blocks: never call it in an actor.
    ///
    /// # Errors
    /// The pixels do not fit even when nothing else is there.
    pub fn keep(self: &Arc<Self>, pixels: &Pixels<'_>) -> Result<Option<Arc<dyn KeptPicture>>, Refusal> {
        let &Pixels { width, height, channels, bytes } = pixels;
        if bytes.len() > self.most {
            let error = format!(
                "the picture takes {} MiB ({width} x {height} pixels), and pictures that stages carry along may take {} MiB together; raise `limits.memory`",
                bytes.len().div_ceil(1 << 20),
                self.most >> 20
            );
            return Err(Refusal { kind: FailureKind::TooLarge, error });
        }
        let mut state = self.lock();
        while state.free < bytes.len() && !state.is_shut {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_shut {
            return Ok(None);
        }
        state.free -= bytes.len();
        drop(state);
        let kept = Kept { room: Arc::clone(self), bytes: bytes.into(), width, height, channels };
        Ok(Some(Arc::new(CarriedPicture(Arc::new(kept)))))
    }

    /// Wakes all threads that wait in `keep`, which gives `None` from now on.
    pub fn shut(&self) {
        self.lock().is_shut = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Its room comes back when it is dropped.
struct Kept {
    room: Arc<CarriedPictures>,
    bytes: Box<[u8]>,
    width: u32,
    height: u32,
    channels: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes).len(); // They are gone before somebody else has the room.
        self.room.lock().free += bytes;
        self.room.changed.notify_all();
    }
}

#[derive(Clone)]
struct CarriedPicture(Arc<Kept>);

impl fmt::Debug for CarriedPicture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CarriedPicture")
            .field("width", &self.0.width)
            .field("height", &self.0.height)
            .finish()
    }
}

impl KeptPicture for CarriedPicture {}

impl Picture for CarriedPicture {
    fn decode(&self, _: Option<&ImageSpec>) -> Result<(), Refusal> {
        Ok(())
    }

    fn write_row(&self, _: &ImageSpec, _: &mut [u8]) -> Result<(), Refusal> {
        Err(Refusal::result("a picture that was carried along is read as pixels; this is a bug"))
    }

    fn with_pixels(&self, show: &mut dyn FnMut(Pixels<'_>) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let Kept { bytes, width, height, channels, .. } = &*self.0;
        show(Pixels { width: *width, height: *height, channels: *channels, bytes })
    }

    fn kept(&self) -> Option<Arc<dyn KeptPicture>> {
        Some(Arc::new(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(room: &Arc<CarriedPictures>, side: u32, value: u8) -> Option<Arc<dyn KeptPicture>> {
        let bytes = vec![value; (side * side) as usize];
        room.keep(&Pixels { width: side, height: side, channels: 1, bytes: &bytes }).unwrap()
    }

    #[test]
    fn each_picture_keeps_its_pixels_and_all_room_comes_back() {
        let room = CarriedPictures::new(1024);
        let kept: Vec<_> = (0..4_u8).map(|n| keep(&room, 16, n).unwrap()).collect();
        for (n, picture) in (0_u8..).zip(&kept) {
            picture
                .with_pixels(&mut |pixels| {
                    assert!(pixels.bytes.len() == 256 && pixels.bytes.iter().all(|b| *b == n));
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(room.lock().free, 0);
        let mut kept = kept;
        let again = kept[0].kept();
        kept.swap_remove(1);
        kept.swap_remove(0);
        drop(kept);
        assert_eq!(room.lock().free, 1024 - 256, "one of them is shared");
        drop(again);
        assert_eq!(room.lock().free, 1024);
        drop(keep(&room, 32, 9).unwrap());
        let bytes = vec![0; 33 * 33];
        let too_large = room.keep(&Pixels { width: 33, height: 33, channels: 1, bytes: &bytes }).unwrap_err();
        assert_eq!(too_large.kind, FailureKind::TooLarge);
    }

    #[test]
    fn a_thread_without_room_waits_until_there_is_some_or_it_is_shut() {
        let room = CarriedPictures::new(256);
        let first = keep(&room, 16, 1).unwrap();
        let theirs = Arc::clone(&room);
        let waiting = std::thread::spawn(move || keep(&theirs, 16, 2));
        drop(first);
        let second = waiting.join().unwrap().expect("it gets the room that has come back");
        let theirs = Arc::clone(&room);
        let waiting = std::thread::spawn(move || keep(&theirs, 16, 3).is_none());
        room.shut();
        assert!(waiting.join().unwrap());
        drop(second);
    }
}
