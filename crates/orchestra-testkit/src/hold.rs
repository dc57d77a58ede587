//! Stops one thread of this process for as long as a test wants: how a disk looks that takes for ever. It touches no other process, and
//! decides nothing.
//!
//! The thread is sent a signal whose handler waits. It only waits in the middle of a system call that can be begun anew, such as a sleep:
//! anywhere else the thread might hold a lock, that of the allocator for one, and others would stop with it.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail, ensure};

/// Nothing else in these tests uses it.
const SIGNAL: libc::c_int = libc::SIGUSR2;

/// Threads that the handler has stopped so far.
static STOPPED: AtomicU64 = AtomicU64::new(0);
/// Signals that came at the wrong moment.
static MISSED: AtomicU64 = AtomicU64::new(0);

/// The handler waits for a byte on the first end; each byte lets one thread go.
static PIPE: OnceLock<(OwnedFd, OwnedFd)> = OnceLock::new();

/// A thread that stands still. Dropping it lets it go on.
#[derive(Debug)]
pub struct Held(());

impl Held {
    /// Stops the only thread of this process with this name, as soon as it waits for something. Comes back when it stands still. One at a
    /// time.
    pub fn thread(name: &str) -> anyhow::Result<Self> {
        prepare()?;
        let ids = threads(name);
        let [id] = ids[..] else { bail!("{} threads are called `{name}`", ids.len()) };
        let stopped = STOPPED.load(Ordering::Acquire);
        loop {
            let missed = MISSED.load(Ordering::Acquire);
            // SAFETY: a plain system call. A thread that ended meanwhile is an error.
            let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, SIGNAL) };
            ensure!(sent == 0, "thread `{name}` cannot be stopped: {}", io::Error::last_os_error());
            while MISSED.load(Ordering::Acquire) == missed {
                if STOPPED.load(Ordering::Acquire) > stopped {
                    return Ok(Held(()));
                }
                ensure!(threads(name).contains(&id), "thread `{name}` ended before it could be stopped");
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some((_, writer)) = PIPE.get() {
            // The pipe is never full: there is one byte for each thread that waits.
            let _ = rustix::io::write(writer, &[1]);
        }
    }
}

/// Opens, once for the process, what all holds need: two descriptors. The first hold does it, too.
pub fn prepare() -> anyhow::Result<()> {
    if PIPE.get().is_some() {
        return Ok(());
    }
    let ends = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("cannot make a pipe")?;
    // An error means that another thread was first; its pipe is as good.
    drop(PIPE.set(ends));
    // SAFETY: the handler makes only calls that are allowed in one; the set and the action are made of zeros, which is valid.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = wait_here;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
        libc::sigaction(SIGNAL, &action, std::ptr::null_mut())
    };
    ensure!(done == 0, "the signal cannot be caught: {}", io::Error::last_os_error());
    Ok(())
}

extern "C" fn wait_here(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some((reader, _)) = PIPE.get() else { return };
    // SAFETY: the kernel hands over the context of the thread that was interrupted.
    if !unsafe { interrupted_a_system_call(&*context.cast()) } {
        MISSED.fetch_add(1, Ordering::Release);
        return;
    }
    STOPPED.fetch_add(1, Ordering::Release);
    let mut byte = 0u8;
    // SAFETY: plain system calls on a descriptor that lives as long as the process; `errno` is put back as the thread had it.
    unsafe {
        let errno = *libc::__errno_location();
        while libc::read(reader.as_raw_fd(), (&raw mut byte).cast(), 1) < 0
            && *libc::__errno_location() == libc::EINTR
        {}
        *libc::__errno_location() = errno;
    }
}

/// Whether the thread waits in a system call that fails with `EINTR`, or will be begun anew by the kernel when the handler is through.
///
/// # Safety
/// `context` is that of a thread that was interrupted in its code.
#[cfg(target_arch = "x86_64")]
unsafe fn interrupted_a_system_call(context: &libc::ucontext_t) -> bool {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let registers = &context.uc_mcontext.gregs;
    let at = std::ptr::with_exposed_provenance::<[u8; 2]>(registers[libc::REG_RIP as usize] as usize);
    let failed = registers[libc::REG_RAX as usize] == -i64::from(libc::EINTR);
    // SAFETY: both are code of this process: the next instruction, and the one before, if the thread has just come back from the kernel.
    unsafe { *at == SYSCALL || (failed && *at.sub(1) == SYSCALL) }
}

/// Whether the thread waits in a system call that fails with `EINTR`, or will be begun anew by the kernel when the handler is through.
///
/// # Safety
/// `context` is that of a thread that was interrupted in its code.
#[cfg(target_arch = "aarch64")]
unsafe fn interrupted_a_system_call(context: &libc::ucontext_t) -> bool {
    const SVC: u32 = 0xd400_0001;
    let machine = &context.uc_mcontext;
    let at = std::ptr::with_exposed_provenance::<u32>(machine.pc as usize);
    let failed = machine.regs[0] as i64 == -i64::from(libc::EINTR);
    // SAFETY: both are code of this process: the next instruction, and the one before, if the thread has just come back from the kernel.
    unsafe { *at == SVC || (failed && *at.sub(1) == SVC) }
}

/// Ids of this process's threads with this name.
fn threads(name: &str) -> Vec<libc::pid_t> {
    let Ok(entries) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    entries
        .flatten()
        .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name))
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect()
}
