//! What holds others off a command for as long as anything of it lives: a lock, and of one that outlives orchestra a socket for the next one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock, open};
use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;

use crate::messages::{KEEPER, Order};

/// A lock that is held until this is dropped.
pub(crate) struct Claim {
    _lock: File,
    /// Where the next orchestra asks for the command; there once no other process listens to it.
    pub listener: Option<UnixListener>,
}

/// Takes the lock of an order. The next start waits for it, or asks at the socket for the command, so no command runs twice at once.
pub(crate) fn claim(order: &Order) -> io::Result<Claim> {
    let lock = OpenOptions::new().create(true).append(true).open(&order.lock)?;
    if !order.outlives {
        flock(&lock, FlockOperation::LockShared)?;
        return Ok(Claim { _lock: lock, listener: None });
    }
    // The socket is there before the lock is: while the lock is held, the socket answers.
    let (_folder, socket) = socket_of(Path::new(&order.lock))?;
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&socket)?;
    listener.set_nonblocking(true)?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok(Claim { _lock: lock, listener: Some(listener) })
}

/// Asks the keeper of a command that has outlived its orchestra for it: the socket, on which the keeper tells and is told the same as before,
/// and the process. `None`: nothing of the command lives.
///
/// # Errors
/// Something lives, and does not answer.
pub fn adopt(lock: &Path) -> io::Result<Option<(UnixStream, Pid)>> {
    loop {
        if is_free(lock)? {
            return Ok(None);
        }
        let (_folder, socket) = socket_of(lock)?;
        match UnixStream::connect(socket) {
            Ok(stream) => {
                let keeper = socket_peercred(stream.as_fd())?.pid;
                return Ok(Some((stream, keeper)));
            }
            // It has just closed its socket, and gives up the lock next.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => wait_until_free(lock)?,
            Err(error) => return Err(error),
        }
    }
}

/// Waits until nothing of a command that has outlived its orchestra lives.
pub fn wait_until_free(lock: &Path) -> io::Result<()> {
    // Given back at once, with the file.
    Ok(flock(File::open(lock)?, FlockOperation::LockShared)?)
}

/// Whether nothing holds such a lock.
pub fn is_free(lock: &Path) -> io::Result<bool> {
    match flock(File::open(lock)?, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The keepers that hold a lock, as far as they can be seen.
#[must_use]
pub fn holders(lock: &File) -> Vec<Pid> {
    let Ok(inode) = lock.metadata().map(|meta| meta.ino()) else { return Vec::new() };
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    // `1: FLOCK  ADVISORY  READ 4711 08:01:1234567 0 EOF`; devices may be called otherwise than by `stat`.
    let holder = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1).filter(|field| *field != "->");
        let (kind, pid) = (fields.next()?, fields.nth(2)?.parse().ok()?);
        let of_file = fields.next()?.rsplit(':').next()?.parse() == Ok(inode);
        Pid::from_raw(pid).filter(|_| kind == "FLOCK" && of_file)
    };
    let is_keeper = |pid: &Pid| {
        let arguments = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        arguments.strip_suffix(b"\0").is_some_and(|all| all.ends_with(format!("\0{KEEPER}").as_bytes()))
    };
    locks.lines().filter_map(holder).filter(is_keeper).collect()
}

/// The socket beside a lock, by its folder, which must stay open as long as the path is used: the path of a socket is shorter than many others.
fn socket_of(lock: &Path) -> io::Result<(std::os::fd::OwnedFd, PathBuf)> {
    let (Some(folder), Some(name)) = (lock.parent(), lock.file_name()) else {
        return Err(io::Error::other("a lock needs a folder"));
    };
    let folder = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
    let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    Ok((folder, path.with_extension("socket")))
}
