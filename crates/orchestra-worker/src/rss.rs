//! How much memory this process holds. It measures; it limits nothing.

use std::fs;

/// Resident memory in bytes without shared memory: the arena belongs to the parent, and pages of it that were touched are no
/// growth of the worker. 0 where `/proc` cannot be read.
#[must_use]
pub fn rss_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |key: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    kib("VmRSS:").saturating_sub(kib("RssShmem:")) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_fills_memory_sees_it() {
        let before = rss_bytes();
        assert!(before > 0);
        let filled = vec![1u8; 64 << 20];
        assert!(rss_bytes() >= before + (32 << 20));
        assert_eq!(filled[1 << 20], 1);
    }
}
