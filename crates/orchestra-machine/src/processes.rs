//! Looks at processes through `/proc`: children, command lines, environments, open files. Changes none of them.

use std::fs;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub arguments: Vec<String>,
    /// `R`, `S`, `T` (stopped), `Z` (dead, not yet waited for) and so on.
    pub state: char,
}

#[must_use]
pub fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).filter_map(process).collect()
}

/// One process; `None` if there is none with this id.
#[must_use]
pub fn process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may itself hold any character.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let arguments =
        cmdline.split(|b| *b == 0).filter(|a| !a.is_empty()).map(|a| String::from_utf8_lossy(a).into_owned());
    Some(Process { pid, parent, arguments: arguments.collect(), state })
}

/// Children of `parent`, smallest id first, including dead ones that were not waited for.
#[must_use]
pub fn children(parent: u32) -> Vec<Process> {
    let mut children: Vec<_> = all().into_iter().filter(|p| p.parent == parent).collect();
    children.sort_by_key(|p| p.pid);
    children
}

/// Ids of the children of `parent`, in no order. Quicker than [`children`] where the kernel keeps lists of them.
#[must_use]
pub fn child_ids(parent: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{parent}/task"));
    let lists = threads.into_iter().flatten().flatten().map(|thread| {
        let list = std::fs::read_to_string(thread.path().join("children")).ok()?;
        list.split_ascii_whitespace().map(|id| id.parse().ok()).collect::<Option<Vec<u32>>>()
    });
    match lists.collect::<Option<Vec<_>>>() {
        Some(lists) => lists.concat(),
        // The kernel keeps no lists, or a thread has just ended.
        None => children(parent).iter().map(|child| child.pid).collect(),
    }
}

/// Live processes whose environment holds `name=value`: finds orphans, too, when the test gave each process that mark.
#[must_use]
pub fn with_variable(name: &str, value: &str) -> Vec<Process> {
    let wanted = format!("{name}={value}");
    let has_it = |p: &Process| {
        let environment = fs::read(format!("/proc/{}/environ", p.pid)).unwrap_or_default();
        environment.split(|b| *b == 0).any(|v| v == wanted.as_bytes())
    };
    // Looked at again: in the middle of its `exec`, a process has no arguments yet, and gets them before its environment.
    all().into_iter().filter(has_it).filter_map(|p| process(p.pid)).collect()
}

/// What the open descriptors of a process refer to (`/memfd:...`, `socket:[...]`, paths), by descriptor.
#[must_use]
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
