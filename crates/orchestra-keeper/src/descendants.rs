//! What a command has started: finds and kills the children of this process, which all of that becomes in the end.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};

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

/// Kills the group, and all children of this process; how many these were. Their own children become ours, and are killed next time.
pub(crate) fn kill_all(group: Pid) -> u32 {
    let children = children();
    // An error means that the process has ended already.
    let _ = kill_process_group(group, Signal::KILL);
    for pid in &children {
        let _ = kill_process(*pid, Signal::KILL);
    }
    u32::try_from(children.len()).unwrap_or(u32::MAX)
}

/// The children of this process, by the parents that all processes name.
fn children() -> Vec<Pid> {
    let own = std::process::id().to_string();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pid = |entry: fs::DirEntry| -> Option<Pid> {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name, between parentheses, may hold anything; state and parent follow.
        let mut after = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let (state, parent) = (after.next()?, after.next()?);
        (parent == own && state != "Z").then(|| Pid::from_raw(pid)).flatten()
    };
    entries.flatten().filter_map(pid).collect()
}
