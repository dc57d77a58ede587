//! Shares of stages on a device, in whole numbers, by the priorities of the stages. Arithmetic only.

use orchestra_core::device_share::behind;

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
