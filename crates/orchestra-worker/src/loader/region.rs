//! The shared memory of a loader process: a ring of values on their way to the parent, behind one page with the number of items that the
//! process is through with. Only the process writes; the parent maps it read-only and believes no place before it has looked at its bounds.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mapping::{Mapping, Prefault, SharedBytes, checked, seal, shared_memory};

/// Where values begin.
const HEADER: usize = 4096;
/// Values begin at multiples of this, so that tensors of any element type are aligned.
const ALIGN: usize = 64;
/// Where an item begins, the head goes back to the beginning if there is room, once it has come so far, or so many times as far as the largest item
/// took: what is in use lies in caches, and in few pages, where items are far smaller than the region.
const NEAR: usize = 256 << 10;
const NEAR_ITEMS: usize = 16;
/// What lies free beyond this is given back to the kernel.
const KEEP: usize = 32 << 20;

/// The parent's side.
#[derive(Debug)]
pub struct LoaderRegion {
    file: File,
    map: Mapping,
    len: usize,
}

impl LoaderRegion {
    /// Memory for values of `len` bytes together. It is taken when it is first written to.
    pub fn new(len: usize) -> io::Result<Self> {
        let len = HEADER + len.next_multiple_of(HEADER);
        let file = shared_memory("orchestra-loader", len)?;
        seal(&file)?;
        let map = Mapping::read_only(&file, len, Prefault::WhenTouched)?;
        Ok(Self { file, map, len })
    }

    /// For the process to inherit.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Items that the process has been through with since it began, as it says.
    pub fn items_done(&self) -> u64 {
        // SAFETY: the first page is mapped, and aligned for it; the process writes to it atomically.
        unsafe { &*self.map.at(0).cast::<AtomicU64>() }.load(Ordering::Acquire)
    }

    /// The bytes of a value; `None` where they would lie outside of the region.
    pub fn bytes(&self, at: u64, len: usize) -> Option<SharedBytes<'_>> {
        let at = usize::try_from(at).ok().filter(|at| *at >= HEADER)?;
        at.checked_add(len).filter(|end| *end <= self.len)?;
        // SAFETY: the span lies within the map.
        Some(unsafe { SharedBytes::of(&self.map, at, len) })
    }
}

/// A moment in the life of a ring: the values that were taken before it, and where the next one lies if there is room behind them.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingMark {
    at: usize,
    taken: u64,
}

/// The process's side: a ring in which values are laid one behind the other, and which is freed frame by frame, in their order.
#[derive(Debug)]
pub(super) struct Ring {
    map: Mapping,
    len: usize,
    /// Where the next value begins.
    head: usize,
    /// Values that were taken in all.
    taken: u64,
    /// Where the values of each frame that was sent end, oldest first; `None`: it has none.
    sent: VecDeque<Option<RingMark>>,
    /// The end of the last of them, in values.
    sent_to: u64,
    /// Where what is in use begins; `None`: nothing is.
    tail: Option<usize>,
    /// How many values had been taken when the head last went back to the beginning.
    wrapped_at: Option<u64>,
    /// Bytes of the item in hand, and of the largest one before it.
    item: usize,
    largest_item: usize,
    /// The highest byte that was written since memory was last given back.
    highest: usize,
}

impl Ring {
    pub fn map(fd: OwnedFd, len: u64) -> io::Result<Self> {
        let len = HEADER + usize::try_from(len).unwrap_or(usize::MAX - HEADER).next_multiple_of(HEADER);
        let map = Mapping::writable(&checked(fd, len, "region")?, len, Prefault::WhenTouched)?;
        Ok(Self {
            map,
            len,
            head: HEADER,
            taken: 0,
            sent: VecDeque::new(),
            sent_to: 0,
            tail: None,
            wrapped_at: None,
            item: 0,
            largest_item: 0,
            highest: 0,
        })
    }

    /// The most bytes that a value can have.
    pub fn capacity(&self) -> usize {
        self.len - HEADER
    }

    /// One more item is through.
    pub fn item_done(&self) {
        // SAFETY: the first page is mapped, and aligned for it.
        unsafe { &*self.map.at(0).cast::<AtomicU64>() }.fetch_add(1, Ordering::Release);
    }

    /// Room for a value; `None` where there is none before frames are done with.
    pub fn take(&mut self, len: usize) -> Option<usize> {
        // A value without bytes takes some, so that the head moves on and a ring in use never looks empty.
        let len = len.max(1);
        let at = self.place(len)?;
        if at < self.head {
            self.wrapped_at = Some(self.taken);
        }
        self.taken += 1;
        self.item += len;
        self.tail.get_or_insert(at);
        self.head = (at + len).next_multiple_of(ALIGN).min(self.len);
        self.highest = self.highest.max(self.head);
        Some(at)
    }

    fn place(&self, len: usize) -> Option<usize> {
        let fits = |from: usize, to: usize| from.checked_add(len).is_some_and(|end| end <= to);
        // Never up to the tail: a ring that is full would look empty.
        let in_front_of = |tail: usize, from| fits(from, tail.saturating_sub(ALIGN)).then_some(from);
        match self.tail {
            None => fits(HEADER, self.len).then_some(HEADER),
            Some(tail) if self.head > tail => {
                let behind = fits(self.head, self.len).then_some(self.head);
                let near = NEAR.max(self.largest_item.saturating_mul(NEAR_ITEMS));
                // Never within an item: behind its first value it has more room.
                match self.item == 0 && self.head - HEADER >= near {
                    true => in_front_of(tail, HEADER).or(behind),
                    false => behind.or(in_front_of(tail, HEADER)),
                }
            }
            Some(tail) => in_front_of(tail, self.head),
        }
    }

    /// The value at a place that was taken.
    pub fn value(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: `take` gave the span, which lies within the map; `self` is borrowed, so there is no other slice of it.
        unsafe { std::slice::from_raw_parts_mut(self.map.at(at), len) }
    }

    /// Whether frames that were sent hold a part of the ring.
    pub fn waits_for_parent(&self) -> bool {
        !self.sent.is_empty()
    }

    /// The next value is the first of another item.
    pub fn item_begins(&mut self) {
        self.largest_item = self.largest_item.max(std::mem::take(&mut self.item));
    }

    /// Whether nothing that is in use lies before other values, so that one which finds no room finds none in an empty ring either.
    pub fn begins_with_item(&self) -> bool {
        self.tail.is_none_or(|tail| tail == HEADER)
    }

    /// The end of what was taken so far.
    pub fn mark(&self) -> RingMark {
        RingMark { at: self.head, taken: self.taken }
    }

    /// All that was taken before `end`, and is in no frame yet, goes with this one.
    pub fn frame_sent(&mut self, end: RingMark) {
        self.sent.push_back((end.taken != self.sent_to).then_some(end));
        self.sent_to = end.taken;
    }

    /// The parent is done with the oldest frames.
    pub fn frames_done(&mut self, n: usize) {
        for _ in 0..n {
            let Some(sent) = self.sent.pop_front() else { return };
            // A frame without values frees none: the head may have gone back to the beginning since it was sent.
            if let Some(end) = sent {
                // The next value lies at the beginning if the head went back for it.
                let next = if self.wrapped_at == Some(end.taken) { HEADER } else { end.at };
                self.tail = (end.taken != self.taken).then_some(next);
            }
        }
        if self.tail.is_none() {
            self.head = HEADER;
            if self.highest > KEEP {
                // SAFETY: nothing lies there any more; the pages read as zeros from now on. An error costs memory, and nothing else.
                unsafe {
                    libc::madvise(self.map.at(HEADER).cast(), self.highest - HEADER, libc::MADV_REMOVE);
                }
                self.highest = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;

    fn both(len: usize) -> (LoaderRegion, Ring) {
        let region = LoaderRegion::new(len).unwrap();
        let ring = Ring::map(region.fd().try_clone_to_owned().unwrap(), len as u64).unwrap();
        (region, ring)
    }

    #[derive(Debug, Clone)]
    enum Step {
        Take(usize),
        Begin,
        Send,
        Done,
    }

    proptest! {
        /// Values in use never overlap and always hold what was written, and once all frames are done with there is room for the largest.
        #[test]
        fn values_lie_apart_until_their_frame_is_done_with(
            steps in prop::collection::vec(
                prop_oneof![
                    4 => (0..9000_usize).prop_map(Step::Take),
                    2 => Just(Step::Begin),
                    2 => Just(Step::Send),
                    2 => Just(Step::Done),
                ],
                1..200,
            )
        ) {
            const LEN: usize = 16384;
            let (region, mut ring) = both(LEN);
            let mut unsent: Vec<(Range<usize>, u8)> = Vec::new();
            let mut frames: VecDeque<Vec<(Range<usize>, u8)>> = VecDeque::new();
            let mut mark = 0_u8;
            for step in steps {
                match step {
                    Step::Take(len) => {
                        let Some(at) = ring.take(len) else { continue };
                        let span = at..at + len;
                        prop_assert!(at >= HEADER && span.end <= HEADER + LEN && at % ALIGN == 0);
                        let in_use = unsent.iter().chain(frames.iter().flatten());
                        for (other, _) in in_use {
                            prop_assert!(span.end <= other.start || other.end <= span.start || span.is_empty() || other.is_empty());
                        }
                        mark = mark.wrapping_add(1);
                        ring.value(at, len).fill(mark);
                        unsent.push((span, mark));
                    }
                    Step::Begin => ring.item_begins(),
                    Step::Send => {
                        ring.frame_sent(ring.mark());
                        frames.push_back(std::mem::take(&mut unsent));
                    }
                    Step::Done => {
                        if frames.pop_front().is_some() {
                            ring.frames_done(1);
                        }
                    }
                }
                for (span, mark) in unsent.iter().chain(frames.iter().flatten()) {
                    let seen = region.bytes(span.start as u64, span.len()).unwrap().to_vec();
                    prop_assert!(seen.iter().all(|byte| byte == mark));
                }
            }
            ring.frame_sent(ring.mark());
            ring.frames_done(frames.len() + 1);
            prop_assert!(!ring.waits_for_parent());
            prop_assert!(ring.take(ring.capacity()).is_some(), "all of it is free");
        }
    }

    #[test]
    fn a_frame_without_values_frees_none_of_those_that_came_after_it() {
        let (_region, mut ring) = both(8192);
        assert_eq!(ring.take(640), Some(HEADER));
        ring.frame_sent(ring.mark());
        ring.frame_sent(ring.mark());
        ring.frames_done(1);
        assert_eq!(ring.take(6000), Some(HEADER), "all of it was free");
        ring.frames_done(1);
        assert_eq!(ring.take(3000), None, "the 6000 are in no frame yet");
    }

    #[derive(Debug, Clone)]
    enum OfItems {
        Begin,
        Take(usize),
        /// All items before the one in hand are sent.
        Send,
        Done,
    }

    proptest! {
        /// As a loader uses it: values in use never overlap, and whatever came before, an item in hand alone has the room behind its values.
        #[test]
        fn an_item_in_hand_has_all_the_room_behind_it_that_no_other_is_in(
            steps in prop::collection::vec(
                prop_oneof![
                    3 => Just(OfItems::Begin),
                    5 => (0..9000_usize).prop_map(OfItems::Take),
                    1 => (100_000..300_000_usize).prop_map(OfItems::Take),
                    2 => Just(OfItems::Send),
                    3 => Just(OfItems::Done),
                ],
                1..400,
            ),
            // The sizes that plans know come again and again, and with them places.
            same in any::<bool>(),
        ) {
            const LEN: usize = 600 << 10;
            let (_region, mut ring) = both(LEN);
            let mut mark = ring.mark();
            let (mut in_hand, mut unsent): (Vec<Range<usize>>, Vec<Range<usize>>) = Default::default();
            let mut frames: VecDeque<Vec<Range<usize>>> = VecDeque::new();
            for step in steps {
                match step {
                    OfItems::Begin => {
                        ring.item_begins();
                        mark = ring.mark();
                        unsent.append(&mut in_hand);
                    }
                    OfItems::Take(len) => {
                        let len = if same { 12_288 } else { len };
                        if let Some(at) = ring.take(len) {
                            let span = at..at + len.max(1);
                            for other in in_hand.iter().chain(&unsent).chain(frames.iter().flatten()) {
                                prop_assert!(span.end <= other.start || other.end <= span.start);
                            }
                            in_hand.push(span);
                        }
                    }
                    OfItems::Send => {
                        ring.frame_sent(mark);
                        frames.push_back(std::mem::take(&mut unsent));
                    }
                    OfItems::Done => {
                        if frames.pop_front().is_some() {
                            ring.frames_done(1);
                        }
                    }
                }
                if frames.iter().all(Vec::is_empty) && unsent.is_empty() {
                    let begin = in_hand.first().map_or(HEADER, |span| span.start);
                    let room = if in_hand.is_empty() { LEN } else { HEADER + LEN - ring.head };
                    let is_in_line = in_hand.iter().all(|span| span.start >= begin);
                    prop_assert!(!is_in_line || ring.place(room).is_some(), "{room} bytes behind {in_hand:?}");
                    prop_assert_eq!(ring.begins_with_item(), begin == HEADER);
                }
            }
        }
    }

    #[test]
    fn small_items_stay_at_the_beginning_of_a_large_ring() {
        let (_region, mut ring) = both(64 << 20);
        for item in 0..100_000 {
            ring.item_begins();
            assert!(ring.take(1000).unwrap() < HEADER + 2 * NEAR);
            ring.frame_sent(ring.mark());
            if item >= 10 {
                ring.frames_done(1);
            }
        }
    }

    #[test]
    fn an_item_has_the_room_behind_its_first_value_once_those_before_it_are_done() {
        let (_region, mut ring) = both(4 << 20);
        let mut frames = 0;
        // Until the head goes back, with the last two frames in use.
        while ring.wrapped_at.is_none() {
            ring.item_begins();
            ring.take(1000).unwrap();
            let first = ring.wrapped_at.is_some();
            if !first {
                ring.frame_sent(ring.mark());
                frames += 1;
                ring.frames_done(usize::from(frames > 2));
            }
        }
        assert_eq!(ring.take(3 << 20), None, "others lie behind");
        ring.frames_done(2);
        assert!(!ring.waits_for_parent() && ring.begins_with_item());
        assert_eq!(ring.take(3 << 20), Some(HEADER + 1024));
    }

    #[test]
    fn the_parent_believes_no_place_outside_of_the_region() {
        let (region, ring) = both(4096);
        assert_eq!(ring.capacity(), 4096);
        let header = HEADER as u64;
        assert!(region.bytes(header, 4096).is_some());
        for (at, len) in
            [(0, 1), (header - 1, 1), (header, 4097), (header + 4096, 1), (u64::MAX, 1), (header, usize::MAX)]
        {
            assert!(region.bytes(at, len).is_none(), "{at} + {len}");
        }
    }

    #[test]
    fn the_parent_sees_how_many_items_the_process_is_through_with() {
        let (region, ring) = both(1);
        assert_eq!(region.items_done(), 0);
        ring.item_done();
        ring.item_done();
        assert_eq!(region.items_done(), 2);
    }

    #[test]
    fn a_region_of_another_size_is_refused() {
        let region = LoaderRegion::new(4096).unwrap();
        assert!(Ring::map(region.fd().try_clone_to_owned().unwrap(), 8192).is_err());
    }
}
