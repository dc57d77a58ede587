//! The parent, as a loader process sees it: where items come from, and events and the values of rows go to. It makes nothing of an item.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use orchestra_core::data::Refusal;
use orchestra_core::{FailureKind, LeftOut};

use super::events::{Event, FromLoader, ToLoader};
use super::region::{Mark, Ring};
use crate::codec::{CodecError, FrameReader, FrameWriter};
use crate::serve::nanos;

/// What is done is sent at least so often, so that small items share a frame and large ones do not wait.
const SEND_EVERY: Duration = Duration::from_millis(1);
/// Or when so many events are there.
const SEND_AT: usize = 1024;

/// Why a loader ends.
pub(super) enum End {
    Gone,
    /// A frame that was sent says why.
    Refused,
    Protocol(String),
}

/// The parent is gone, or what it sent makes no sense.
pub(super) struct Gone;

impl From<CodecError> for End {
    fn from(error: CodecError) -> Self {
        match error {
            CodecError::Gone | CodecError::Truncated { .. } => End::Gone,
            other => End::Protocol(other.to_string()),
        }
    }
}

/// The parent, as this process sees it.
pub(super) struct Parent {
    reader: FrameReader<UnixStream, ToLoader>,
    writer: FrameWriter<UnixStream, FromLoader>,
    ring: Ring,
    has_all_room: bool,
    began: Instant,
    items: VecDeque<Vec<u8>>,
    /// What is not sent yet.
    events: Vec<Event>,
    /// How many of `events` are of earlier items than the one in hand.
    item_events: usize,
    /// Where the values of the earlier items end.
    item_head: Mark,
    sent_at: Instant,
    /// Why there are no more items.
    pub end: Option<End>,
}

impl Parent {
    /// `has_all_room`: the region is as large as it can be.
    pub fn new(
        reader: FrameReader<UnixStream, ToLoader>,
        writer: FrameWriter<UnixStream, FromLoader>,
        ring: Ring,
        has_all_room: bool,
    ) -> Self {
        let (began, item_head) = (Instant::now(), ring.mark());
        Self {
            reader,
            writer,
            ring,
            has_all_room,
            began,
            items: VecDeque::new(),
            events: Vec::new(),
            item_events: 0,
            item_head,
            sent_at: began,
            end: None,
        }
    }

    /// Waits for the next item.
    pub fn next_item(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Some(item);
            }
            self.begin_item();
            self.send().ok()?;
            self.receive().ok()?;
        }
    }

    fn receive(&mut self) -> Result<(), Gone> {
        let received = self.reader.read().map_err(End::from).and_then(|frame| match frame {
            Some(ToLoader::Items { frames_done, text, ends }) => {
                self.ring.frames_done(usize::try_from(frames_done).unwrap_or(usize::MAX));
                let mut begin = 0;
                for end in ends.into_iter().map(|end| end as usize) {
                    let item = text
                        .get(begin..end)
                        .ok_or_else(|| End::Protocol("locators outside of their frame".into()))?;
                    self.items.push_back(item.to_vec());
                    begin = end;
                }
                Ok(())
            }
            Some(
                ToLoader::Load(_) | ToLoader::Look(_) | ToLoader::List { .. } | ToLoader::Describe { .. },
            ) => Err(End::Protocol("a frame that is none of `Items`".into())),
            None => Err(End::Gone),
        });
        received.map_err(|end| {
            self.end = Some(end);
            Gone
        })
    }

    /// Sends what is known of earlier items than the one in hand.
    fn send(&mut self) -> Result<(), Gone> {
        self.sent_at = Instant::now();
        if self.item_events == 0 {
            return Ok(());
        }
        let events = self.events.drain(..self.item_events).collect();
        self.item_events = 0;
        let sent_ns = nanos(self.began.elapsed());
        self.ring.frame_sent(self.item_head);
        self.writer.write(&FromLoader::Events { sent_ns, events }).map_err(|error| {
            self.end = Some(error.into());
            Gone
        })
    }

    pub fn begin_item(&mut self) {
        self.item_events = self.events.len();
        self.item_head = self.ring.mark();
        self.ring.item_begins();
    }

    /// Nothing has become of the item in hand so far.
    pub fn forget_item(&mut self) {
        self.events.truncate(self.item_events);
    }

    pub fn note(&mut self, event: Event) {
        self.events.push(event);
    }

    pub fn end_item(&mut self, began: Instant, read: Instant, left_out: Vec<(LeftOut, u64)>) {
        let now = Instant::now();
        self.note(Event::Ended {
            began_ns: nanos(began - self.began),
            read_ns: nanos(read - began),
            took_ns: nanos(now - began),
            left_out,
        });
        self.ring.item_done();
        self.begin_item();
        if now - self.sent_at >= SEND_EVERY || self.events.len() >= SEND_AT {
            // Where the parent is gone, `next_item` finds that out.
            drop(self.send());
        }
    }

    /// `Gone` once nothing more can be sent or received.
    pub fn is_there(&self) -> Result<(), Gone> {
        if self.end.is_some() { Err(Gone) } else { Ok(()) }
    }

    /// Room in the region, and where it is. Waits until the parent is done with earlier items, if need be.
    pub fn room(&mut self, len: usize) -> Result<(u64, &mut [u8]), Refusal> {
        let at = loop {
            if let Some(at) = self.ring.take(len) {
                break at;
            }
            let gone = |_| Refusal::result("the run is over");
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
                return Err(Refusal { kind, error });
            }
            self.receive().map_err(gone)?;
        };
        Ok((at as u64, self.ring.value(at, len)))
    }
}
