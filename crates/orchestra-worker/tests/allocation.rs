//! What hostile bytes can make the codec allocate. Alone in its file, because it counts every allocation of its process.

#[path = "it/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use orchestra_worker::codec::{Frame, FrameDecoder, SLACK, encode};
use orchestra_worker::frames::{FromWorker, ToWorker};
use proptest::collection::vec;
use proptest::prelude::*;

/// The largest single allocation since it was last set to 0.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: everything is passed on to the system's allocator; only a number is noted besides.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A frame that tells the truth up to some byte, and then claims to hold more than any frame has.
fn liars() -> impl Strategy<Value = Vec<u8>> {
    let frames = prop_oneof![
        common::to_worker().prop_map(|frame| body(&frame)),
        common::from_worker().prop_map(|frame| body(&frame)),
    ];
    (frames, any::<proptest::sample::Index>(), 0u32..40, any::<u64>()).prop_map(
        |(mut bytes, cut, bits, claim)| {
            bytes.truncate(cut.index(bytes.len() + 1));
            bytes.push(253); // bincode's mark of a 64-bit number
            bytes.extend_from_slice(&(1u64 << bits | claim & ((1 << bits) - 1)).to_le_bytes());
            bytes
        },
    )
}

fn body<T: Frame>(frame: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes).expect("the frames of these tests are small");
    bytes.split_off(4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn what_a_frame_claims_costs_no_more_than_its_own_size_allows(
        body in prop_oneof![4 => liars(), 1 => vec(any::<u8>(), 0..400)],
        claimed in any::<u32>(),
    ) {
        LARGEST.store(0, Ordering::Relaxed);
        for length in [body.len() as u32, claimed] {
            let mut to = FrameDecoder::<ToWorker>::new();
            to.push(&length.to_le_bytes());
            to.push(&body);
            while let Ok(Some(_)) = to.next() {}
            let mut from = FrameDecoder::<FromWorker>::new();
            from.push(&length.to_le_bytes());
            from.push(&body);
            while let Ok(Some(_)) = from.next() {}
        }
        let largest = LARGEST.load(Ordering::Relaxed);
        prop_assert!(largest <= 4 * body.len() + SLACK, "{largest} bytes for a frame of {}", body.len());
    }
}
