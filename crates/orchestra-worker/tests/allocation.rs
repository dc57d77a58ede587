//! What hostile bytes can make the codec allocate. Alone in its file, because it counts what is allocated.

#[path = "it/common/mod.rs"]
mod common;

#[path = "../../orchestra-fuzz-checks/src/memory.rs"]
#[allow(dead_code, reason = "each test asks for one number")]
mod memory;

use orchestra_worker::codec::{Frame, FrameDecoder, SLACK, encode};
use orchestra_worker::frames::{FromWorker, ToWorker};
use proptest::collection::vec;
use proptest::prelude::*;

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
        let ((), taken) = memory::measured(|| for length in [body.len() as u32, claimed] {
            let mut to = FrameDecoder::<ToWorker>::new();
            to.push(&length.to_le_bytes());
            to.push(&body);
            while let Ok(Some(_)) = to.next() {}
            let mut from = FrameDecoder::<FromWorker>::new();
            from.push(&length.to_le_bytes());
            from.push(&body);
            while let Ok(Some(_)) = from.next() {}
        });
        let largest = taken.largest;
        prop_assert!(largest <= 4 * body.len() + SLACK, "{largest} bytes for a frame of {}", body.len());
    }
}
