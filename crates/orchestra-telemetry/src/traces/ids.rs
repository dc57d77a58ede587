//! The ids of spans, worked out from what the spans are about: so a link can name a span that is not made yet, and the frame to a worker
//! the span of its batch. Ids of different starts of one run differ.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanId, TraceId};

/// What a span is about. Each is the root of a trace of its own unless it has a parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    Run,
    /// By its number.
    Batch(u64),
    /// By source and place.
    Item(u16, u64),
    Worker(u32),
    /// An attempt at a task, by how many have ended before.
    Task(u64),
    /// A process of a source, by how many have ended, itself included.
    Loader(u64),
}

/// What all ids of one start of a run come from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seed(u64);

impl Seed {
    pub(super) fn new(run_id: &str, zero: SystemTime) -> Self {
        let since = zero.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let nanos = since.as_nanos() as u64; // The lower half is enough to tell two starts apart.
        Self(mix(run_id.bytes().fold(nanos, |hash, byte| mix(hash ^ u64::from(byte)))))
    }

    /// The trace that begins with this, and its span.
    pub(super) fn root(self, about: About) -> (TraceId, SpanId) {
        let (high, low) = (self.hash(about, 0), self.hash(about, 1));
        (TraceId::from(u128::from(high) << 64 | u128::from(low | 1)), self.part(about, 0))
    }

    /// The span of the `n`-th part of it, from 1; 0 is the whole.
    pub(super) fn part(self, about: About, n: u64) -> SpanId {
        // No id is zero: that means "none".
        SpanId::from(self.hash(about, 2 + n).max(1))
    }
    fn hash(self, about: About, salt: u64) -> u64 {
        let (kind, a, b) = match about {
            About::Run => (0, 0, 0),
            About::Batch(number) => (1, 0, number),
            About::Item(source, index) => (2, u64::from(source), index),
            About::Worker(number) => (3, 0, u64::from(number)),
            About::Task(nth) => (4, 0, nth),
            About::Loader(nth) => (5, 0, nth),
        };
        mix(mix(mix(self.0 ^ (kind << 56 | a << 32 | salt)) ^ b) ^ self.0)
    }
}

/// The last steps of SplitMix64: every bit of the result depends on every bit of `z`.
fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_spans_of_a_run_share_an_id_and_no_two_starts_do() {
        let (mut spans, mut traces) = (HashSet::new(), HashSet::new());
        let mut n = 0;
        for start in 0..2 {
            let seed = Seed::new("run-1", SystemTime::UNIX_EPOCH + Duration::from_secs(start));
            let abouts = (0..2_000).flat_map(|i| {
                [
                    About::Batch(i),
                    About::Item(0, i),
                    About::Item(1, i),
                    About::Worker(i as u32),
                    About::Task(i),
                ]
            });
            for about in abouts.chain([About::Run]) {
                n += 1;
                traces.insert(seed.root(about).0);
                spans.extend((0..8).map(|part| seed.part(about, part)));
            }
        }
        assert_eq!((traces.len(), spans.len()), (n, n * 8));
        assert!(!traces.contains(&TraceId::INVALID) && !spans.contains(&SpanId::INVALID));
    }

    #[test]
    fn the_same_start_of_a_run_has_the_same_ids() {
        let seed = || Seed::new("run-1", SystemTime::UNIX_EPOCH);
        assert_eq!(seed().root(About::Item(3, 4)), seed().root(About::Item(3, 4)));
        assert_eq!(seed().root(About::Run), seed().root(About::Run));
    }
}
