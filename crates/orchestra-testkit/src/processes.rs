//! What `/proc` shows of processes: children, command lines, environments, open files.

use std::fs;

pub use orchestra_machine::processes::{Process, all, children, process};

/// Live processes whose environment holds `name=value`: finds orphans, too, when the test gave each process that mark.
pub fn with_variable(name: &str, value: &str) -> Vec<Process> {
    let wanted = format!("{name}={value}");
    let has_it = |p: &Process| {
        let environment = fs::read(format!("/proc/{}/environ", p.pid)).unwrap_or_default();
        environment.split(|b| *b == 0).any(|v| v == wanted.as_bytes())
    };
    all().filter(has_it).collect()
}

/// What the open descriptors of a process refer to (`/memfd:...`, `socket:[...]`, paths), by descriptor.
pub fn open_files(pid: u32) -> Vec<(u32, String)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let mut files: Vec<_> = entries
        .flatten()
        .filter_map(|e| {
            let fd = e.file_name().to_str()?.parse().ok()?;
            // The descriptor of this very listing is gone by now, and so has no target.
            let target = fs::read_link(e.path()).ok()?;
            Some((fd, target.to_string_lossy().into_owned()))
        })
        .filter(|(_, target)| *target != format!("/proc/{pid}/fd"))
        .collect();
    files.sort();
    files
}
