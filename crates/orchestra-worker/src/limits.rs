//! What a process may take of the machine at most, as the kernel enforces it. It says nothing of files: that is the sandbox.

use std::io;

/// No core file, no file that grows, few descriptors, and so many bytes of memory for the process itself. It dies with its parent.
///
/// # Errors
/// The kernel refuses.
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
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the call reads the structure.
        if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
