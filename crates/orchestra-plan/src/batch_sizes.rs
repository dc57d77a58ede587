//! Batch sizes that are worth comparing. Knows nothing of a device.

/// 1, 2, 4 … below `max`, then `max` itself. Empty for 0.
#[must_use]
pub fn batch_sizes(max: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> =
        std::iter::successors(Some(1usize), |n| n.checked_mul(2)).take_while(|n| *n < max).collect();
    if max > 0 {
        sizes.push(max);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::batch_sizes;

    #[test]
    fn sizes_double_up_to_the_largest_batch() {
        assert_eq!(batch_sizes(0), Vec::<usize>::new());
        assert_eq!(batch_sizes(1), [1]);
        assert_eq!(batch_sizes(8), [1, 2, 4, 8]);
        assert_eq!(batch_sizes(24), [1, 2, 4, 8, 16, 24]);
    }
}
