//! Shares of stages on a device, in whole numbers that are to each other as the priorities of the stages. Arithmetic only.

use orchestra_core::device_share::behind;

/// Threads for each core, at most, where `priority` cannot be had with one. The system gives each of them the same time.
const MOST_FOR_A_CORE: usize = 4;
/// How far two stages may be from the ratio of their priorities, of that ratio; a tenth of it is near, however it is rounded.
const NEAR: f64 = 0.1 + 1e-9;
/// Of more stages on a device, each has the share that the cores give.
const MOST_WEIGHED: usize = 64;

/// Whether shares by weight are asked for, and of no more stages than such shares make sense for.
pub(crate) fn are_weighed(weights: &[u32]) -> bool {
    weights.len() <= MOST_WEIGHED && weights.windows(2).any(|pair| pair[0] != pair[1])
}

/// How far from the ratio of their weights the two parts are that are furthest from it, of that ratio.
fn off(parts: &[usize], weights: &[u32]) -> f64 {
    let by_weight = || parts.iter().zip(weights).map(|(part, weight)| *part as f64 / f64::from(*weight));
    let (least, most) = by_weight().fold((f64::INFINITY, 0.0), |(a, b), q| (q.min(a), q.max(b)));
    most / least - 1.0
}

/// Of `totals`, divided by weight with no part larger than `largest`: the first that is near to the weights, or else the nearest.
pub(crate) fn shares(totals: impl Iterator<Item = usize>, largest: usize, weights: &[u32]) -> Vec<usize> {
    let mut nearest = (f64::INFINITY, vec![1; weights.len()]);
    for total in totals {
        let parts: Vec<usize> = divide(total, weights).into_iter().map(|part| part.min(largest)).collect();
        let off = off(&parts, weights);
        if off < nearest.0 {
            nearest = (off, parts);
        }
        if nearest.0 <= NEAR {
            break;
        }
    }
    nearest.1
}

/// Threads of stages that share so many cores: all of them, or more where fewer are not by weight.
pub(crate) fn threads_by_weight(cores: usize, weights: &[u32]) -> Vec<usize> {
    shares(cores..=cores.saturating_mul(MOST_FOR_A_CORE), usize::MAX, weights)
}

/// Cuts `total` into parts by weight, each at least 1: one each, then one at a time to the part furthest behind its weight.
pub(crate) fn divide(total: usize, weights: &[u32]) -> Vec<usize> {
    let mut parts = vec![1; weights.len()];
    for _ in weights.len()..total {
        if let Some(next) = (0..parts.len()).min_by_key(|i| (behind(parts[*i], weights[*i]), *i)) {
            parts[next] += 1;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cores_are_shared_by_weight_and_few_cores_have_more_threads() {
        assert_eq!(threads_by_weight(1, &[10, 20]), [1, 2]);
        assert_eq!(threads_by_weight(2, &[30, 10]), [3, 1]);
        assert_eq!(threads_by_weight(8, &[30, 10]), [6, 2]);
        assert_eq!(threads_by_weight(64, &[30, 10]), [48, 16]);
        assert_eq!(threads_by_weight(2, &[100, 1]), [7, 1], "as near as it gets");
        assert_eq!(shares((2..=8).rev(), 4, &[30, 10]), [3, 1]);
        assert_eq!(shares((2..=8).rev(), 4, &[10, 5]), [4, 2]);
        assert_eq!(shares((2..=8).rev(), 4, &[1, 100]), [1, 4]);
    }

    #[test]
    fn three_to_one_is_had_within_a_tenth_on_any_number_of_cores() {
        for cores in 1..=256 {
            let [first, second] = threads_by_weight(cores, &[30, 10])[..] else { panic!("two") };
            let share = first as f64 / second as f64;
            assert!((2.7..=3.3).contains(&share), "{cores}: {first} to {second}");
        }
    }

    #[test]
    fn cores_are_divided_by_weight() {
        assert_eq!(divide(8, &[30, 10]), [6, 2]);
        assert_eq!(divide(8, &[10, 10, 10]), [3, 3, 2]);
        assert_eq!(divide(1, &[10, 10]), [1, 1]);
        assert_eq!(divide(4, &[100, 1]), [3, 1]);
        assert_eq!(divide(4, &[]), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn every_core_is_given_once_and_no_stage_gets_none(
            total in 1usize..200,
            weights in proptest::collection::vec(1u32..=100, 1..10),
        ) {
            let parts = divide(total, &weights);
            prop_assert!(parts.iter().all(|p| *p >= 1));
            prop_assert_eq!(parts.iter().sum::<usize>(), total.max(weights.len()));
        }
    }
}
