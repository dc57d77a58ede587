//! What hostile code is after, laid out by a test: files, a process, ports and queues. It says whether they were touched, and which attempts must
//! succeed where nothing confines the process that makes them. It confines nothing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use crate::trap_operator::{
    ATTEMPTS, Bait, DATAGRAMS, GOT_THROUGH, INHERITED_FD, INTRUDE, REMOVABLE, SECRET, SECRET_VARIABLE,
    SOCKET, WRITTEN,
};
use anyhow::{Context as _, ensure};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::thread::CapabilitySet;

const PRIVATE: &str = "not to be touched";

/// Attempts that fail with any sandbox: descriptors are closed before the program starts.
pub const ALWAYS_CLOSED: &str = "an inherited descriptor";
/// As [`ALWAYS_CLOSED`], of loaders: they are given no variables of the parent but those of their store.
pub const NEVER_GIVEN: &str = "a secret variable";

/// A folder of a test with all of it. Dropping it ends the process and the queue.
#[derive(Debug)]
pub struct LaidBait {
    bait: Bait,
    victim: Child,
    _listens: (TcpListener, UnixListener, UnixDatagram),
}

impl LaidBait {
    /// In an empty folder that no process has any business in. `read` is one that the processes in question read.
    pub fn new(folder: &Path, read: &Path) -> anyhow::Result<Self> {
        for name in [SECRET, REMOVABLE] {
            fs::write(folder.join(name), PRIVATE)?;
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o600))?;
        }
        let datagrams = UnixDatagram::bind(folder.join(DATAGRAMS))?;
        let listens =
            (TcpListener::bind("127.0.0.1:0")?, UnixListener::bind(folder.join(SOCKET))?, datagrams);
        let victim = victim()?;
        let bait = Bait {
            folder: folder.to_owned(),
            read: read.to_owned(),
            port: listens.0.local_addr()?.port(),
            victim: victim.id().cast_signed(),
            address: 0,
            queue: queue()?,
        };
        // From here on what was made ends with the value.
        let mut laid = Self { bait, victim, _listens: listens };
        laid.bait.address = end_of_stack(laid.victim.id()).context("the stack of the victim")?;
        Ok(laid)
    }

    /// For processes that make the attempts.
    pub fn variable(&self) -> (&'static str, String) {
        (INTRUDE, self.bait.to_text())
    }

    /// Whether all files are as they were laid out.
    pub fn is_untouched(&self) -> bool {
        let is_whole = |name: &str| {
            let file = self.bait.folder.join(name);
            let is_closed = fs::metadata(&file).is_ok_and(|file| file.permissions().mode() & 0o077 == 0);
            is_closed && fs::read_to_string(file).is_ok_and(|text| text == PRIVATE)
        };
        is_whole(SECRET) && is_whole(REMOVABLE) && !self.bait.folder.join(WRITTEN).exists()
    }
}

impl Drop for LaidBait {
    fn drop(&mut self) {
        // Errors mean that it is gone already.
        let _ = self.victim.kill();
        let _ = self.victim.wait();
        // SAFETY: the call takes no memory.
        unsafe { libc::msgctl(self.bait.queue, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// The names of the attempts that got through, out of the error that a hostile item failed with.
#[track_caller]
pub fn got_through(error: &str) -> BTreeSet<&str> {
    let (_, names) = error.split_once(GOT_THROUGH).unwrap_or_else(|| panic!("no report: {error}"));
    let (names, _) = names.split_once('.').unwrap_or_else(|| panic!("half a report: {error}"));
    names.split(", ").map(str::trim).filter(|name| !name.is_empty()).collect()
}

/// What must get through where nothing confines the process: all attempts but `others`, and but those that the kernel refuses this user for
/// reasons of its own, which it names.
pub fn unconfined(others: &[&str]) -> BTreeSet<&'static str> {
    let refused = refused_by_kernel();
    println!("not a matter of the sandbox on this machine: {refused:?}");
    let all = ATTEMPTS.iter().map(|(name, _)| *name);
    all.filter(|name| !others.contains(name) && !refused.contains(name)).collect()
}

/// Yama keeps processes from others that are not their children, engines of containers from descriptors of others, and a user may have no home.
fn refused_by_kernel() -> Vec<&'static str> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let may_trace = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
    let of_victim = [
        "a descriptor of another process",
        "memory of another process",
        "writing to another process",
        "tracing another process",
    ];
    let mut refused = match (scope.trim(), may_trace) {
        ("" | "0", _) | ("1" | "2", true) => Vec::new(),
        // The victim lets itself be traced, the parent does not.
        ("1", false) => vec!["the parent's memory"],
        _ => [&of_victim[..], &["the parent's memory"]].concat(),
    };
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_filtered = status.lines().any(|line| line.starts_with("Seccomp:") && line.ends_with('2'));
    if is_filtered && !may_trace && !refused.contains(&of_victim[0]) {
        refused.push(of_victim[0]);
    }
    if std::env::var_os("HOME").is_none_or(|home| fs::read_dir(home).is_err()) {
        refused.push("listing the home folder");
    }
    refused
}

/// Whether a plain child of this process has the descriptor and the variable, which those of a run must not have.
pub fn a_plain_child_has_them() -> anyhow::Result<()> {
    let script = format!("test -e /proc/self/fd/{INHERITED_FD} && test -n \"${SECRET_VARIABLE}\"");
    ensure!(Command::new("sh").args(["-c", &script]).status()?.success(), "it does not inherit them");
    Ok(())
}

/// A process that waits until it is killed, or until this one ends.
fn victim() -> io::Result<Child> {
    let mut cat = Command::new("cat");
    cat.stdin(Stdio::piped()).stdout(Stdio::null());
    // SAFETY: the call takes no memory. It fails where there is no Yama, which then refuses nothing.
    unsafe {
        cat.pre_exec(|| {
            libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0);
            Ok(())
        });
    }
    cat.spawn()
}

/// The end that a stack grows to: mapped for what may come, and not in use.
fn end_of_stack(pid: u32) -> anyhow::Result<usize> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let stack = maps.lines().find(|line| line.ends_with("[stack]")).context("it has none")?;
    let (start, _) = stack.split_once('-').context("it has no bounds")?;
    Ok(usize::from_str_radix(start, 16)?)
}

/// A new queue with one message.
fn queue() -> io::Result<i32> {
    let message = [1_u64, 7];
    // SAFETY: the message lives until the call returns.
    let (queue, sent) = unsafe {
        let queue = libc::msgget(libc::IPC_PRIVATE, 0o600);
        (queue, libc::msgsnd(queue, message.as_ptr().cast(), 8, libc::IPC_NOWAIT))
    };
    if queue < 0 || sent < 0 { Err(io::Error::last_os_error()) } else { Ok(queue) }
}

/// Leaves a descriptor open that every program inherits which this process starts.
pub fn leave_open() {
    static OPEN: LazyLock<OwnedFd> = LazyLock::new(|| {
        let file = File::open("/etc/passwd").expect("every machine has users");
        let open = fcntl_dupfd_cloexec(file, INHERITED_FD).expect("a process may have another descriptor");
        assert_eq!(open.as_raw_fd(), INHERITED_FD, "the number is taken");
        fcntl_setfd(&open, FdFlags::empty()).expect("it is open");
        open
    });
    LazyLock::force(&OPEN);
}

/// Whether this process has a credential in its environment, as a run has that its processes must not see. If not, it starts one that has, which is
/// this test alone, and does the rest there.
pub fn has_secret(test: &str) -> bool {
    if std::env::var_os(SECRET_VARIABLE).is_some() {
        return true;
    }
    let mut again = Command::new(std::env::current_exe().expect("a test is a program"));
    again.args(["--exact", test]).env(SECRET_VARIABLE, "a key to everything");
    let ended = again.output().expect("a test can be started again");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_laid_out_is_untouched_until_it_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let laid = LaidBait::new(folder.path(), Path::new("/")).unwrap();
        assert!(laid.is_untouched());
        fs::set_permissions(folder.path().join(SECRET), fs::Permissions::from_mode(0o666)).unwrap();
        assert!(!laid.is_untouched());
    }
}
