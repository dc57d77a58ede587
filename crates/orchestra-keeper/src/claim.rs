//! What holds others off a command for as long as anything of it lives: a lock, and of one that outlives orchestra a socket for the next one.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, open};
use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;

use crate::messages::{KEEPER, Order};

/// How long a keeper that ends may take from the end of its socket to the end of its lock.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(5);

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
        lock.lock_shared()?;
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
    lock.lock()?;
    Ok(Claim { _lock: lock, listener: Some(listener) })
}

/// Asks the keeper of a command that has outlived its orchestra for it: the socket, on which the keeper tells and is told the same as before,
/// and the process. `None`: nothing of the command lives.
///
/// # Errors
/// Something holds the lock, and does not answer.
pub fn adopt(lock: &Path) -> io::Result<Option<(UnixStream, Pid)>> {
    adopt_within(lock, END_PATIENCE)
}

fn adopt_within(lock: &Path, patience: Duration) -> io::Result<Option<(UnixStream, Pid)>> {
    let deadline = Instant::now() + patience;
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
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < deadline => {
                sleep(LOOK_EVERY);
            }
            Err(error) => {
                let why = format!("what holds `{}` does not answer: {error}", lock.display());
                return Err(io::Error::new(error.kind(), why));
            }
        }
    }
}

/// Whether nothing holds such a lock.
pub fn is_free(lock: &Path) -> io::Result<bool> {
    match File::open(lock)?.try_lock_shared() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricsOrder;

    fn order(lock: &Path) -> Order {
        Order {
            command: Vec::new(),
            cwd: String::new(),
            env: Vec::new(),
            log: String::new(),
            end: String::new(),
            lock: lock.to_str().unwrap().to_owned(),
            outlives: true,
            stop_signal: 15,
            grace_ms: 0,
            memory: None,
            cores: Vec::new(),
            metrics: MetricsOrder::default(),
            open_files: None,
            group: None,
        }
    }

    #[test]
    fn files_that_were_left_over_are_free_to_be_claimed_and_then_the_one_who_has_answers() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("command");
        std::fs::write(&lock, "what it is").unwrap();
        drop(UnixListener::bind(lock.with_extension("socket")).unwrap());
        assert!(is_free(&lock).unwrap() && adopt(&lock).unwrap().is_none());
        let claim = claim(&order(&lock)).unwrap();
        let (_socket, keeper) = adopt(&lock).unwrap().unwrap();
        assert_eq!(keeper, rustix::process::getpid());
        assert!(claim.listener.as_ref().unwrap().accept().is_ok());
        assert_eq!(std::fs::read_to_string(&lock).unwrap(), "what it is", "for the next start");
        // This process has the lock and is no keeper, so it is none of those to be ended.
        assert!(holders(&File::open(&lock).unwrap()).is_empty());
        drop(claim);
        // A process that another test starts has the files of this one until it runs its program.
        while adopt(&lock).unwrap().is_some() {}
    }

    #[test]
    fn a_lock_that_something_else_holds_is_not_waited_for_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("command");
        let held = File::create(&lock).unwrap();
        held.lock().unwrap();
        let why = |patience| adopt_within(&lock, patience).unwrap_err();
        // There is no socket, then one without a listener.
        assert_eq!(why(END_PATIENCE).kind(), io::ErrorKind::NotFound);
        drop(UnixListener::bind(lock.with_extension("socket")).unwrap());
        let refused = why(Duration::ZERO);
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(refused.to_string().contains("does not answer"), "{refused}");
        drop(held);
        assert!(adopt(&lock).unwrap().is_none());
    }
}
