//! Looks at processes through `/proc`: parents, states, command lines, memory and time. Changes none of them.

use std::fs;
use std::time::Duration;

use crate::memory::kib_field;

/// What `/proc/<pid>/stat` says of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    /// `R`, `S`, `T` (stopped), `Z` (dead, not yet waited for) and so on.
    pub state: char,
    /// Time that all of its threads have spent on cores, in user mode and in the kernel together, to a hundredth of a second.
    pub cpu_time: Duration,
    pub threads: u64,
    /// Pages in memory, those shared with other processes included.
    pub resident_pages: u64,
}

/// Memory of a process by its kind, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessMemory {
    /// All pages in memory, those shared with other processes included.
    pub resident: u64,
    /// The part that is its own: heap and stacks. A leak grows here, while the batch slots that a worker maps do not count.
    pub private: u64,
    /// The part that is memory shared with other processes.
    pub shared: u64,
    /// What `RLIMIT_DATA` counts: what is mapped for this process alone and writable, touched or not.
    pub data: u64,
}

pub fn all() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(process)
}

/// One process; `None` if there is none with this id.
pub fn process(pid: u32) -> Option<Process> {
    parsed(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn parsed(pid: u32, stat: &[u8]) -> Option<Process> {
    /// `USER_HZ`, which Linux promises to programs on x86-64 and 64-bit ARM whatever the kernel counts in.
    const TICK: Duration = Duration::from_millis(10);
    let stat = String::from_utf8_lossy(stat);
    // The name is in parentheses and may itself hold any character. Field 3 of `man 5 proc_pid_stat` follows. Priorities may be negative.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let mut number_behind = |n| fields.nth(n)?.parse::<u64>().ok();
    let ticks = number_behind(9)?.saturating_add(number_behind(0)?);
    let cpu_time = TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX));
    let (threads, resident_pages) = (number_behind(4)?, number_behind(3)?);
    Some(Process { pid, parent, state, cpu_time, threads, resident_pages })
}

impl Process {
    /// Empty once it has ended.
    pub fn arguments(&self) -> Vec<String> {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let arguments = line.split(|b| *b == 0).filter(|argument| !argument.is_empty());
        arguments.map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
    }
}

/// Children of `parent`, smallest id first, including dead ones that were not waited for.
pub fn children(parent: u32) -> Vec<Process> {
    let mut children: Vec<_> = all().filter(|p| p.parent == parent).collect();
    children.sort_by_key(|p| p.pid);
    children
}

/// The memory of process `pid`; `None` when it has ended or belongs to another user who hides it.
pub fn process_memory(pid: u32) -> Option<ProcessMemory> {
    memory_of(&pid.to_string())
}

/// The memory of this process; `None` where `/proc` cannot be read.
pub fn own_memory() -> Option<ProcessMemory> {
    memory_of("self")
}

fn memory_of(process: &str) -> Option<ProcessMemory> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let bytes = |name| kib_field(&status, name);
    // A process that has ended and was not yet waited for has a status file without these lines.
    let (resident, data) = (bytes("VmRSS:")?, bytes("VmData:")?);
    // Systems that only look like Linux tell no kinds.
    let private = bytes("RssAnon:").unwrap_or(resident);
    Some(ProcessMemory { resident, private, shared: bytes("RssShmem:").unwrap_or_default(), data })
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
        assert_eq!((process_memory(child.id()), process(child.id())), (None, None));
    }

    #[test]
    fn a_process_of_any_name_and_priority_is_seen() {
        let stat = |name: &str, priority: &str| {
            format!(
                "7 ({name}) S 3 7 7 0 -1 4194560 11 0 12 0 150 50 1 2 {priority} 4 0 900 8192 77 18446744073709551615 1 1\n"
            )
        };
        for (name, priority) in [("a", "20 0"), ("b", "15 -5"), ("c) R 1 (d", "-2 0"), ("e f", "-100 19")] {
            let found = parsed(7, stat(name, priority).as_bytes());
            let found = found.map(|p| (p.parent, p.state, p.cpu_time, p.threads, p.resident_pages));
            assert_eq!(found, Some((3, 'S', Duration::from_secs(2), 4, 77)), "{name}, {priority}");
        }
    }

    #[test]
    fn a_process_that_fills_memory_sees_it() {
        let before = own_memory().unwrap();
        let filled = vec![1u8; 64 << 20];
        let after = own_memory().unwrap();
        assert!(after.resident >= before.resident + (32 << 20) && after.data >= before.data + (32 << 20));
        let pages = process(std::process::id()).unwrap().resident_pages;
        assert!(pages * 4096 >= 32 << 20, "{pages} pages, {}", filled[1 << 20]);
        drop(filled);
        let before = own_memory().unwrap();
        let reserved: Vec<u8> = Vec::with_capacity(64 << 20);
        let data = own_memory().unwrap().data;
        assert!(data >= before.data + (32 << 20), "{} bytes are reserved, not touched", reserved.capacity());
    }

    #[test]
    fn the_time_of_a_process_grows_with_what_it_does() {
        let cpu_time = || process(std::process::id()).unwrap().cpu_time;
        let before = cpu_time();
        let mut sum = 0u64;
        while cpu_time() < before + Duration::from_millis(30) {
            sum = (0..100_000u64).fold(sum, |sum, n| sum.wrapping_mul(31).wrapping_add(n));
        }
        assert!(cpu_time() > before, "{sum}");
    }

    #[test]
    fn a_child_has_its_parent_its_arguments_and_its_state() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        while process(child.id()).unwrap().arguments() != ["sleep", "1000"] {
            std::thread::yield_now();
        }
        assert!(children(std::process::id()).iter().any(|found| found.pid == child.id()));
        child.kill().unwrap();
        while process(child.id()).unwrap().state != 'Z' {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }
}
