//! Room for what rows carry past a batch stage, but for pictures: a thread that finds none waits, before it claims a row. The stages behind always go on and
//! free it, as each stage has room of its own.

use std::sync::Arc;

use orchestra_core::FailureKind;
use orchestra_core::data::{ItemError, OwnedValue};

use super::turns::Turns;

/// Rows that carry less are not counted: as many as there are in slots take little.
const COUNTED: usize = 256;

#[derive(Debug)]
pub struct ValueRoom {
    most: usize,
    free: Turns<usize>,
}

/// What a row holds of it, until this is dropped.
#[derive(Debug)]
pub struct HeldValues {
    room: Arc<ValueRoom>,
    bytes: usize,
}

impl ValueRoom {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, free: Turns::new(most) })
    }

    /// Room for these values, where they are counted. Waits until there is some; `None` when it was shut. Blocks: never call it in an actor.
    ///
    /// # Errors
    /// They do not fit even when nothing else is there.
    pub fn take(self: &Arc<Self>, values: &[OwnedValue]) -> Result<Option<Option<HeldValues>>, ItemError> {
        let bytes: usize = values.iter().map(OwnedValue::bytes).sum();
        if bytes < COUNTED {
            return Ok(Some(None));
        }
        if bytes > self.most {
            let mib = |bytes: usize| bytes.div_ceil(1 << 20);
            let error = format!(
                "the columns that it carries take {} MiB, and all rows of the stage together may take {} MiB: a part of `limits.memory`, and 256 MiB at most where a program or a model takes them",
                mib(bytes),
                mib(self.most)
            );
            return Err(ItemError { kind: FailureKind::TooLarge, error });
        }
        let taken = self.free.wait(|free| {
            *free = free.checked_sub(bytes)?;
            Some(())
        });
        Ok(taken.map(|()| Some(HeldValues { room: Arc::clone(self), bytes })))
    }

    /// Wakes all threads that wait in `take`, which gives `None` from now on.
    pub fn shut(&self) {
        self.free.shut();
    }
}

impl Drop for HeldValues {
    fn drop(&mut self) {
        self.room.free.give_back(|free| *free += self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bytes: usize) -> [OwnedValue; 1] {
        [OwnedValue::Bytes(vec![0; bytes].into())]
    }

    #[test]
    fn rows_wait_for_the_room_that_others_hold_and_one_that_never_fits_is_refused() {
        let room = ValueRoom::new(1 << 20);
        let first = room.take(&row(1 << 20)).unwrap().expect("it is not shut");
        assert!(first.is_some() && room.take(&row(COUNTED - 1)).unwrap().unwrap().is_none());
        let refused = room.take(&row((1 << 20) + 1)).unwrap_err();
        assert_eq!(refused.kind, FailureKind::TooLarge);
        let theirs = Arc::clone(&room);
        let waits = std::thread::spawn(move || theirs.take(&row(1000)).unwrap().is_some());
        while room.free.n_came() < 2 {
            std::thread::yield_now();
        }
        assert!(!waits.is_finished());
        drop(first);
        assert!(waits.join().unwrap());
        assert_eq!(room.free.look(|free| *free), 1 << 20, "all of it is back");
        room.shut();
        assert!(room.take(&row(1000)).unwrap().is_none());
    }
}
