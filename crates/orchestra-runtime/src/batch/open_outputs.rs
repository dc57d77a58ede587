//! What the run holds of the outputs of open shape of a stage: they come in frames, and have no slot. While more than a batch may have of them waits to be
//! worked on, or to be written, no further batch is sent. What they wait for lies behind the stage, so it comes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The room for them.
pub struct OpenRoom(Arc<Room>);

struct Room {
    most: usize,
    taken: AtomicUsize,
    /// Called when there is room again.
    tell: Box<dyn Fn() + Send + Sync>,
}

/// What a batch holds of it, until this is dropped.
#[derive(Default)]
pub struct OpenOutputs(Option<(Arc<Room>, usize)>);

impl OpenRoom {
    pub fn new(most: usize, tell: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(Room { most, taken: AtomicUsize::new(0), tell: Box::new(tell) }))
    }

    /// Whether one more batch may be sent.
    pub fn is_there(&self) -> bool {
        self.0.taken.load(Ordering::Acquire) <= self.0.most
    }

    /// Of a batch that is done.
    pub fn take(&self, bytes: usize) -> OpenOutputs {
        if bytes == 0 {
            return OpenOutputs::default();
        }
        self.0.taken.fetch_add(bytes, Ordering::AcqRel);
        OpenOutputs(Some((Arc::clone(&self.0), bytes)))
    }
}

impl Drop for OpenOutputs {
    fn drop(&mut self) {
        let Some((room, bytes)) = self.0.take() else { return };
        let before = room.taken.fetch_sub(bytes, Ordering::AcqRel);
        if before > room.most && before - bytes <= room.most {
            (room.tell)();
        }
    }
}

impl fmt::Debug for OpenOutputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenOutputs").field(&self.0.as_ref().map(|(_, bytes)| bytes)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_until_more_is_taken_than_a_batch_may_have_and_its_return_is_told_once() {
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        let tell = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        let room = OpenRoom::new(10, tell);
        let told = || told.load(Ordering::Relaxed);
        let first = room.take(10);
        assert!(room.is_there(), "as much as one may have");
        let [second, third] = [room.take(1), room.take(7)];
        assert!(!room.is_there());
        drop(second);
        assert!(!room.is_there() && told() == 0);
        drop(first);
        assert!(room.is_there() && told() == 1);
        drop(third);
        drop(room.take(0));
        assert_eq!((room.is_there(), told()), (true, 1));
    }
}
