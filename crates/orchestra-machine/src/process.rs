//! Memory and time of a running process, by its id. Reads only.

use std::fs;
use std::time::Duration;

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

/// Time that all threads of process `pid` have spent on cores, in user mode and in the kernel together, to a hundredth of a second;
/// `None` when it has ended.
#[must_use]
pub fn process_cpu_time(pid: u32) -> Option<Duration> {
    /// `USER_HZ`, which Linux promises to programs on x86-64 and 64-bit ARM whatever the kernel counts in.
    const TICK: Duration = Duration::from_millis(10);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may itself hold any character. Then come the state and, as fields 14 and 15 of all, the times.
    let mut times = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().skip(11);
    let user: u64 = times.next()?.parse().ok()?;
    let kernel: u64 = times.next()?.parse().ok()?;
    Some(TICK.saturating_mul(u32::try_from(user.saturating_add(kernel)).unwrap_or(u32::MAX)))
}

/// What process `pid` does, in the kernel's words, for example `D (disk sleep)`; `None` when it has ended.
#[must_use]
pub fn process_state(pid: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("State:")).map(|state| state.trim().to_owned())
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
        assert_eq!(process_memory(child.id()), None);
    }

    #[test]
    fn the_state_of_a_process_is_in_the_kernels_words() {
        let state = process_state(std::process::id()).unwrap();
        // Of the first thread, which may also wait for a disk.
        assert!(["R (", "S (", "D ("].iter().any(|words| state.starts_with(words)), "{state}");
        assert_eq!(process_state(u32::MAX), None);
    }

    #[test]
    fn the_time_of_a_process_grows_with_what_it_does() {
        let own = std::process::id();
        let before = process_cpu_time(own).unwrap();
        let mut sum = 0u64;
        while process_cpu_time(own).unwrap() < before + Duration::from_millis(30) {
            sum = (0..100_000u64).fold(sum, |sum, n| sum.wrapping_mul(31).wrapping_add(n));
        }
        assert!(process_cpu_time(own).unwrap() > before, "{sum}");
        assert_eq!(process_cpu_time(u32::MAX), None);
    }
}
