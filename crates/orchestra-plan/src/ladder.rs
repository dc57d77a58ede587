//! Batch sizes that are warmed up on a CUDA device. Knows nothing of the device itself.

/// 1, 2, 4 … below `max`, then `max` itself. Empty for 0.
#[must_use]
pub fn ladder(max: usize) -> Vec<usize> {
    let mut rungs: Vec<usize> =
        std::iter::successors(Some(1usize), |n| n.checked_mul(2)).take_while(|n| *n < max).collect();
    if max > 0 {
        rungs.push(max);
    }
    rungs
}

#[cfg(test)]
mod tests {
    use super::ladder;

    #[test]
    fn a_ladder_climbs_to_its_top() {
        assert_eq!(ladder(0), Vec::<usize>::new());
        assert_eq!(ladder(1), [1]);
        assert_eq!(ladder(8), [1, 2, 4, 8]);
        assert_eq!(ladder(24), [1, 2, 4, 8, 16, 24]);
    }
}
