//! How the memory of one GPU is divided among the workers of several models. Arithmetic only.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// Workers that it has already; what they take is no part of the room.
    pub has: usize,
    pub most: usize,
    /// Bytes of one worker; 0 where that is not known.
    pub each: u64,
    pub priority: u32,
}

/// How many workers each of them has in the end, when `room` bytes are there for more: in turns, the one furthest behind its priority
/// first, as long as there is room. What does not fit the one may still fit the other.
pub fn share_out(room: u64, wants: &[Want]) -> Vec<usize> {
    let mut counts: Vec<usize> = wants.iter().map(|w| w.has).collect();
    let mut left = room;
    loop {
        let next = (0..wants.len())
            .filter(|i| counts[*i] < wants[*i].most && wants[*i].each <= left)
            .min_by_key(|i| (behind(counts[*i], wants[*i].priority), *i));
        let Some(next) = next else { return counts };
        left -= wants[next].each;
        counts[next] += 1;
    }
}

/// Smaller for a part that has less of what its weight gives it.
pub fn behind(part: usize, weight: u32) -> u64 {
    part as u64 * 1_000_000 / u64::from(weight.max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn want(has: usize, most: usize, each: u64, priority: u32) -> Want {
        Want { has, most, each: each * GIB, priority }
    }

    #[test]
    fn room_is_filled_by_turns_need_and_priority() {
        assert_eq!(share_out(15 * GIB, &[want(1, 4, 5, 10)]), [4]);
        assert_eq!(share_out(14 * GIB, &[want(1, 4, 5, 10)]), [3]);
        assert_eq!(share_out(4 * GIB, &[want(1, 4, 5, 10)]), [1]);
        assert_eq!(share_out(16 * GIB, &[want(1, 4, 4, 10), want(1, 4, 2, 10)]), [4, 3]);
        assert_eq!(share_out(16 * GIB, &[want(1, 4, 4, 10), want(1, 4, 2, 30)]), [3, 4]);
        assert_eq!(share_out(3 * GIB, &[want(1, 4, 4, 10), want(1, 4, 2, 10)]), [1, 2]);
        assert_eq!(share_out(0, &[]), [] as [usize; 0]);
    }

    proptest! {
        #[test]
        fn never_more_than_the_room_and_none_that_fits_is_left_out(
            room in 0u64..200,
            wants in proptest::collection::vec((0usize..4, 0usize..9, 1u64..40, 1u32..=100), 0..6),
        ) {
            let wants: Vec<Want> =
                wants.into_iter().map(|(has, most, each, priority)| Want { has, most, each, priority }).collect();
            let counts = share_out(room, &wants);
            let taken: u64 = counts.iter().zip(&wants).map(|(n, w)| (n - w.has) as u64 * w.each).sum();
            prop_assert!(taken <= room);
            for (n, w) in counts.iter().zip(&wants) {
                prop_assert!(*n >= w.has && *n <= w.most.max(w.has));
                prop_assert!(*n >= w.most || w.each > room - taken, "one more fits");
            }
        }

        #[test]
        fn a_higher_priority_never_gets_fewer_of_the_same(
            room in 0u64..100, each in 1u64..20, low in 1u32..100, more in 0u32..50,
        ) {
            let want = |priority| Want { has: 1, most: 8, each, priority };
            let counts = share_out(room, &[want(low + more), want(low)]);
            prop_assert!(counts[0] >= counts[1]);
        }
    }
}
