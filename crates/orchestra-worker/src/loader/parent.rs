//! The parent, as a loader process sees it: where items come from, and answers and the values of rows go to. It makes nothing of an item.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use orchestra_core::FailureKind;
use orchestra_core::data::ItemError;

use super::events::{FromLoader, ItemAnswer, ToLoader};
use super::region::{Ring, RingMark};
use crate::codec::{FrameReader, FrameWriter};
use crate::engine::nanos;
use crate::link::ServingEnd;

/// What is done is sent at least so often, so that small items share a frame and large ones do not wait.
const SEND_EVERY: Duration = Duration::from_millis(1);
/// Or when there are so many rows.
const SEND_AT: usize = 1024;

/// The parent is gone, or what it sent makes no sense.
struct ParentGone;

/// The parent, as this process sees it.
pub(super) struct Parent {
    reader: FrameReader<UnixStream, ToLoader>,
    writer: FrameWriter<UnixStream, FromLoader>,
    ring: Ring,
    has_all_room: bool,
    began: Instant,
    items: VecDeque<Vec<u8>>,
    /// What is not sent yet: earlier items than the one in hand.
    answers: Vec<ItemAnswer>,
    /// Rows in them, and such as there are none of.
    n_rows: usize,
    /// Where their values end.
    answers_end: RingMark,
    sent_at: Instant,
    /// Why there are no more items.
    pub end: Option<ServingEnd>,
}

impl Parent {
    /// `has_all_room`: the region is as large as it can be.
    pub fn new(
        reader: FrameReader<UnixStream, ToLoader>,
        writer: FrameWriter<UnixStream, FromLoader>,
        ring: Ring,
        has_all_room: bool,
    ) -> Self {
        let (began, answers_end) = (Instant::now(), ring.mark());
        Self {
            reader,
            writer,
            ring,
            has_all_room,
            began,
            items: VecDeque::new(),
            answers: Vec::new(),
            n_rows: 0,
            answers_end,
            sent_at: began,
            end: None,
        }
    }

    /// Waits for the next item; `None`: there are no more.
    pub fn next_item(&mut self) -> Option<Vec<u8>> {
        while self.end.is_none() {
            if let Some(item) = self.items.pop_front() {
                if self.items.is_empty() {
                    // What is done does not wait for the last item, however long that takes.
                    self.send().ok()?;
                }
                return Some(item);
            }
            self.send().ok()?;
            self.receive().ok()?;
        }
        None
    }

    fn receive(&mut self) -> Result<(), ParentGone> {
        let received = self.reader.read().map_err(ServingEnd::from).and_then(|frame| match frame {
            Some(ToLoader::Items { frames_done, text, ends }) => {
                self.ring.frames_done(usize::try_from(frames_done).unwrap_or(usize::MAX));
                let mut begin = 0;
                for end in ends.into_iter().map(|end| end as usize) {
                    let item = text
                        .get(begin..end)
                        .ok_or_else(|| ServingEnd::protocol("locators outside of their frame"))?;
                    self.items.push_back(item.to_vec());
                    begin = end;
                }
                Ok(())
            }
            Some(
                ToLoader::Load(_) | ToLoader::Look(_) | ToLoader::List { .. } | ToLoader::Describe { .. },
            ) => Err(ServingEnd::protocol("a frame that is none of `Items`")),
            None => Err(ServingEnd::Gone),
        });
        received.map_err(|end| {
            self.end = Some(end);
            ParentGone
        })
    }

    /// Sends what is known of earlier items than the one in hand.
    fn send(&mut self) -> Result<(), ParentGone> {
        self.sent_at = Instant::now();
        if self.answers.is_empty() {
            return Ok(());
        }
        let answers = std::mem::take(&mut self.answers);
        self.n_rows = 0;
        let sent_ns = nanos(self.began.elapsed());
        self.ring.frame_sent(self.answers_end);
        self.writer.write(&FromLoader::Answers { sent_ns, answers }).map_err(|error| {
            self.end = Some(error.into());
            ParentGone
        })
    }

    /// The item in hand is through. Its times are filled in.
    pub fn end_item(&mut self, began: Instant, read: Instant, mut answer: ItemAnswer) {
        let now = Instant::now();
        answer.began_ns = nanos(began - self.began);
        answer.read_ns = nanos(read - began);
        answer.took_ns = nanos(now - began);
        self.n_rows += answer.rows.as_ref().map_or(1, Vec::len);
        self.answers.push(answer);
        self.ring.item_done();
        self.answers_end = self.ring.mark();
        self.ring.item_begins();
        if now - self.sent_at >= SEND_EVERY || self.n_rows >= SEND_AT {
            // Where the parent is gone, `next_item` finds that out.
            drop(self.send());
        }
    }

    /// Room in the region, and where it is. Waits until the parent is done with earlier items, if need be.
    pub fn room(&mut self, len: usize) -> Result<(u64, &mut [u8]), ItemError> {
        let at = loop {
            if let Some(at) = self.ring.take(len) {
                break at;
            }
            let gone = |_| ItemError::result("the run is over");
            self.send().map_err(gone)?;
            if !self.ring.waits_for_parent() {
                let error = format!(
                    "what is made of the item takes more than the {} MiB that a loader may hold; raise `limits.memory`",
                    self.ring.capacity().div_ceil(1 << 20)
                );
                // Values of this item that do not begin at the ring's beginning leave less room than the whole of it: alone, they begin there.
                let kind = match self.has_all_room && self.ring.begins_with_item() {
                    true => FailureKind::TooLarge,
                    false => FailureKind::OutOfMemory,
                };
                return Err(ItemError { kind, error });
            }
            self.receive().map_err(gone)?;
        };
        Ok((at as u64, self.ring.value(at, len)))
    }
}
