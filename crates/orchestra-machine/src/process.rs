//! Memory of a running process, by its id. Reads only.

use std::fs;

use crate::memory::kib_field;

/// Main memory of a process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessMemory {
    /// All pages in memory, those shared with other processes included.
    pub resident: u64,
    /// The part that is its own: heap and stacks. A leak grows here, while the batch slots that a worker maps do not count.
    pub private: u64,
}

/// The memory of process `pid`; `None` when it has ended or belongs to another user who hides it.
#[must_use]
pub fn process_memory(pid: u32) -> Option<ProcessMemory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    // A process that has ended and was not yet waited for has a status file without these lines.
    Some(ProcessMemory { resident: kib_field(&status, "VmRSS:")?, private: kib_field(&status, "RssAnon:")? })
}

/// The resident bytes of process `pid`; `None` when it has ended.
#[must_use]
pub fn process_rss(pid: u32) -> Option<u64> {
    process_memory(pid).map(|memory| memory.resident)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_process_has_memory_and_an_ended_one_has_none() {
        let own = process_memory(std::process::id()).unwrap();
        assert!(own.private > 0 && own.private <= own.resident);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(process_rss(child.id()), None);
    }
}
