//! What a process may take of the machine at most, as the kernel enforces it. It says nothing of files: that is the sandbox.

use std::io;

use orchestra_machine::processes::own_memory;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// No core file, no file that grows, few descriptors, and so many bytes of memory for the process itself.
pub(crate) fn confine(memory: u64) -> io::Result<()> {
    /// Enough for libraries, items and links.
    const FILES: u64 = 64;
    no_core_file()?;
    lower(Resource::Fsize, 0)?;
    lower(Resource::Nofile, FILES)?;
    lower(Resource::Data, memory)
}

/// A process that crashes leaves no image of its memory, in which are items and what its environment holds.
pub fn no_core_file() -> io::Result<()> {
    lower(Resource::Core, 0)
}

/// So many bytes of memory for the process itself, beside what it has now. What it maps for others, too, does not count.
pub fn bound_memory(more: u64) -> io::Result<()> {
    let has = own_memory().ok_or_else(|| io::Error::other("/proc/self/status has no `VmData`"))?;
    lower(Resource::Data, has.data.saturating_add(more))
}

/// Bytes that the stack of a thread counts for which asks for no other size, touched or not.
pub fn stack_bytes() -> u64 {
    /// Of the C library, where stacks are not limited.
    const UNLIMITED: u64 = 2 << 20;
    getrlimit(Resource::Stack).current.unwrap_or(UNLIMITED)
}

/// Sets the limit for good, and never above what this process was given.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let most = getrlimit(resource).maximum.map_or(most, |given| given.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}
