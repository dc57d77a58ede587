//! How much memory this process holds. It measures; it limits nothing.

use std::fs;

/// Resident memory in bytes without shared memory: the arena belongs to the parent, and pages of it that were touched are no
/// growth of the worker. 0 where `/proc` cannot be read.
#[must_use]
pub fn rss_bytes() -> u64 {
    let status = status();
    let bytes = |key| bytes_of(&status, key).unwrap_or(0);
    bytes("VmRSS:").saturating_sub(bytes("RssShmem:"))
}

/// Memory in bytes that `RLIMIT_DATA` counts: what is mapped for this process alone and writable, touched or not. `None` where `/proc` cannot
/// be read.
pub(crate) fn data_bytes() -> Option<u64> {
    bytes_of(&status(), "VmData:")
}

fn status() -> String {
    fs::read_to_string("/proc/self/status").unwrap_or_default()
}

fn bytes_of(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
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

    #[test]
    fn memory_of_this_process_alone_counts_before_it_is_touched() {
        let before = data_bytes().unwrap();
        let reserved: Vec<u8> = Vec::with_capacity(64 << 20);
        assert!(data_bytes().unwrap() >= before + (32 << 20), "{} bytes reserved", reserved.capacity());
    }
}
