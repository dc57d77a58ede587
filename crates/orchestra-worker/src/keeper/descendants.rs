//! What a command has started: finds and kills the children of its keeper, which all of that becomes in the end.

use std::collections::HashMap;

use orchestra_machine::processes::{self, Process, process};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait, waitpid};

/// Rounds in which the descendants of a process are killed: each finds what the ones before have started meanwhile.
const MOST_ROUNDS: usize = 20;

/// Reaps the children that have ended; whether others are left.
pub(crate) fn reap() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Reaps the children that have ended, but `command`, whose end is waited for elsewhere: once that has ended, others may be left for [`reap`].
pub(crate) fn reap_all_but(command: Pid) {
    while let Some(child) = ended_child().filter(|child| *child != command) {
        if waitpid(Some(child), WaitOptions::NOHANG).is_err() {
            break;
        }
    }
}

/// A child that has ended and was not reaped.
fn ended_child() -> Option<Pid> {
    // SAFETY: all zeros is a value of the struct, and says that there is no such child.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is of a value that lives until the call returns.
    if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, flags) } != 0 {
        return None;
    }
    // SAFETY: `waitid` has written the fields of a child, or left the zeros.
    Pid::from_raw(unsafe { info.si_pid() })
}

/// Kills the group, and all children of this process; how many these were. Their own children become ours, and are killed next time.
pub(crate) fn kill_all(group: Pid) -> u32 {
    let children: Vec<Pid> =
        live().filter(|process| process.parent == std::process::id()).filter_map(|p| pid_of(p.pid)).collect();
    // An error means that the process has ended already.
    let _ = kill_process_group(group, Signal::KILL);
    for pid in &children {
        let _ = kill_process(*pid, Signal::KILL);
    }
    u32::try_from(children.len()).unwrap_or(u32::MAX)
}

/// Kills all that descends from `root`, then `root` itself. `root` must be stopped: what loses its parent meanwhile becomes its child.
pub fn kill_tree(root: Pid) {
    for _ in 0..MOST_ROUNDS {
        let found = trees(&[root]);
        for process in &found {
            let _ = kill_process(process.pid, Signal::KILL);
        }
        if found.is_empty() {
            break;
        }
    }
    let _ = kill_process(root, Signal::KILL);
}

/// A process that descends from one of several roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descendant {
    /// The process that descends from `root`.
    pub pid: Pid,
    /// The one of the given roots that it descends from.
    pub root: Pid,
    /// Bytes of main memory that it has now, with what it shares with others.
    pub memory: u64,
}

/// All that descends from these roots and has not ended, by one look at all processes. No root descends from another one.
pub fn trees(roots: &[Pid]) -> Vec<Descendant> {
    let processes: HashMap<Pid, Process> = live().filter_map(|p| Some((pid_of(p.pid)?, p))).collect();
    let parent = |pid: &Pid| processes.get(pid).and_then(|process| pid_of(process.parent));
    let of_tree = |(pid, process): (&Pid, &Process)| {
        // No more steps than processes: a number that was given anew could make a circle.
        let mut up = std::iter::successors(parent(pid), parent).take(processes.len());
        let root = up.find(|ancestor| roots.contains(ancestor))?;
        let memory = process.resident_pages * rustix::param::page_size() as u64;
        Some(Descendant { pid: *pid, root, memory })
    };
    processes.iter().filter_map(of_tree).collect()
}

/// Whether a process was stopped by a signal (`kill -STOP`), and does nothing until one lets it go on.
pub fn is_stopped(pid: Pid) -> bool {
    process(pid.as_raw_nonzero().get().cast_unsigned()).is_some_and(|process| process.state == 'T')
}

/// All processes that have not ended.
fn live() -> impl Iterator<Item = Process> {
    processes::all().filter(|process| process.state != 'Z')
}

fn pid_of(pid: u32) -> Option<Pid> {
    Pid::from_raw(pid.cast_signed())
}
