//! Looks at processes through `/proc`: children and command lines. Changes none of them.

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
