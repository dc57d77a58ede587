//! What a process may take of the machine at most, as the kernel enforces it. It says nothing of files: that is the sandbox.

use std::io;

/// No core file, no file that grows, few descriptors, and so many bytes of memory for the process itself. It dies with its parent.
pub fn confine(memory: u64) -> io::Result<()> {
    /// Enough for libraries, items and links.
    const FILES: u64 = 64;
    let limits = [
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_FSIZE, 0),
        (libc::RLIMIT_NOFILE, FILES),
        (libc::RLIMIT_DATA, memory),
    ];
    for (resource, most) in limits {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the calls write and read the structure.
        let is_set = unsafe {
            libc::getrlimit(resource, &raw mut limit) == 0 && {
                // Never above what this process was given.
                limit.rlim_max = limit.rlim_max.min(most);
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(resource, &raw const limit) == 0
            }
        };
        if !is_set {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
