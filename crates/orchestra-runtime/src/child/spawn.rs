//! Starts child processes: the one place that knows of file descriptors, environments and exec. It speaks no protocol and decides nothing.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command as StdCommand, ExitStatus, Stdio};
use std::sync::{Mutex, mpsc};
use std::thread;

use orchestra_core::shapes::Network;
use orchestra_core::{SandboxMode, SandboxRules, WorkerExit, locked};
use orchestra_worker::process::LOADER;
use orchestra_worker::{LOADER_REGION_FD, WORKER_INPUTS_FD, WORKER_OUTPUTS_FD, WORKER_SOCKET_FD};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::process::{Child as TokioChild, Command};
use tokio::runtime::Handle;

use crate::panics::caught;

/// The running executable. The kernel's link stays good when the file is replaced by an upgrade while a run goes on.
const THIS_EXECUTABLE: &str = "/proc/self/exe";

/// A process that has been started.
pub struct Launched {
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    pub writer: Box<dyn AsyncWrite + Send + Sync + Unpin>,
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    pub process: Box<dyn WorkerProcess>,
}

/// The life of a process. Dropping it kills the process, but a keeper.
pub trait WorkerProcess: Send {
    /// Its process id, for messages.
    fn pid(&self) -> Option<u32>;
    /// Kills it; `wait` then returns soon.
    fn kill(&mut self);
    /// Waits until it is gone and can touch nothing any more. May be dropped and called again.
    fn wait(&mut self) -> Pin<Box<dyn Future<Output = WorkerExit> + Send + '_>>;
}

/// Starts workers as processes of an executable.
#[derive(Debug, Clone)]
pub struct ProcessLauncher {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Variables set in addition to the usual ones, those that name the device and those of the engine.
    pub env: Vec<(OsString, OsString)>,
}

impl ProcessLauncher {
    /// Runs this very executable again, as `<program> worker`.
    pub fn this_executable() -> io::Result<Self> {
        let program = PathBuf::from(THIS_EXECUTABLE);
        program.symlink_metadata()?;
        Ok(Self { program, args: vec!["worker".into()], env: Vec::new() })
    }

    /// Starts processes that get the variables of this one that `network` takes along, too.
    pub(crate) fn with_network(mut self, network: Option<&Network>) -> Self {
        let takes = |name: &OsString| network.is_some_and(|network| network.takes(&name.to_string_lossy()));
        // What the host has set goes first.
        let env = std::env::vars_os().filter(|(name, _)| takes(name));
        self.env.splice(0..0, env.collect::<Vec<_>>());
        self
    }

    /// Starts a process that inherits `memory`, and gives our end of its socket and the process. It is killed when this program ends, however
    /// that is, and runs on the cores of the calling thread, as eagerly. Must be called within a tokio runtime.
    pub(crate) fn spawn<const N: usize>(
        &self,
        env: impl Iterator<Item = (OsString, OsString)>,
        memory: [BorrowedFd<'_>; N],
        more: impl FnOnce(&mut StdCommand),
    ) -> io::Result<(StdUnixStream, TokioChild)> {
        let (ours, theirs) = StdUnixStream::pair()?;
        let mut command = StdCommand::new(&self.program);
        command
            .args(&self.args)
            .env_clear()
            .envs(inherited())
            .envs(env)
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // The terminal's Ctrl-C is for the parent, which decides what becomes of its workers.
            .process_group(0);
        if self.program == Path::new(THIS_EXECUTABLE)
            && let Ok(path) = std::env::current_exe()
        {
            command.arg0(path); // For people who look at a list of processes.
        }
        let (socket, memory) = (theirs.as_raw_fd(), memory.map(|fd| fd.as_raw_fd()));
        let (parent, schedule) = (std::process::id(), ThreadScheduling::of_this_thread());
        // SAFETY: between fork and exec only async-signal-safe calls are made, and nothing is allocated.
        unsafe {
            command.pre_exec(move || {
                end_with(parent)?;
                schedule.apply();
                pass_descriptors(socket, memory)
            });
        }
        let named = |e: io::Error| io::Error::new(e.kind(), format!("`{}`: {e}", self.program.display()));
        more(&mut command);
        let runtime = Handle::current();
        let child = on_spawner(move || {
            let _entered = runtime.enter();
            Command::from(command).kill_on_drop(true).spawn()
        });
        let child = child.map_err(named)?;
        drop(theirs); // Or the end of file would never come.
        Ok((ours, child))
    }

    /// Starts a loader process over `region`, and gives another end of its socket, by which it is shut down from elsewhere.
    pub(crate) fn launch_loader(&self, region: BorrowedFd<'_>) -> io::Result<(Launched, StdUnixStream)> {
        let (ours, child) = self.spawn(std::iter::empty(), [region], |command| {
            // What a decoder dies of is said in a line; where in our code is for developers, who run it by hand.
            command.arg(LOADER).env_remove("RUST_BACKTRACE");
        })?;
        let other = ours.try_clone()?;
        Ok((Launched::of(ours, child, DropAction::Kill)?, other))
    }
}

impl Launched {
    /// A process that was started, with our end of its socket. Must be called within a tokio runtime.
    pub(crate) fn of(ours: StdUnixStream, mut child: TokioChild, at_drop: DropAction) -> io::Result<Self> {
        ours.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(ours)?.into_split();
        let stderr: Box<dyn AsyncRead + Send + Unpin> = match child.stderr.take() {
            Some(stderr) => Box::new(stderr),
            None => Box::new(tokio::io::empty()),
        };
        let process = Box::new(ChildProcess { child, at_drop });
        Ok(Self { reader: Box::new(reader), writer: Box::new(writer), stderr, process })
    }
}

/// Does `work` on the thread that starts all child processes. The kernel kills each when the thread ends that has started it: this one lives as
/// long as the program, and the caller may be a thread of the host.
fn on_spawner<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    type SpawnJob = Box<dyn FnOnce() + Send>;
    static JOBS: Mutex<Option<mpsc::Sender<SpawnJob>>> = Mutex::new(None);
    let (tell, done) = mpsc::sync_channel(1);
    // A panic would end the thread, and with it all processes.
    let job = Box::new(move || drop(tell.send(caught("starting a process", work))));
    let mut jobs = locked(&JOBS);
    if jobs.is_none() {
        let (sender, queue) = mpsc::channel::<SpawnJob>();
        thread::Builder::new().name("spawner".into()).spawn(move || queue.iter().for_each(|job| job()))?;
        *jobs = Some(sender);
    }
    let sent = jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
    drop(jobs);
    let done = sent.then(|| done.recv().ok()).flatten();
    done.ok_or_else(|| io::Error::other("the thread that starts processes is gone"))?
        .map_err(io::Error::other)?
}

/// How a thread is scheduled.
struct ThreadScheduling {
    cores: rustix::io::Result<CpuSet>,
    policy: i32,
}

impl ThreadScheduling {
    fn of_this_thread() -> Self {
        // SAFETY: it only asks, and 0 is the calling thread.
        Self { cores: sched_getaffinity(None), policy: unsafe { libc::sched_getscheduler(0) } }
    }

    /// Where the kernel refuses, this thread goes on as it did.
    fn apply(&self) {
        if let Ok(cores) = &self.cores {
            let _ = sched_setaffinity(None, cores);
        }
        let no_priority = libc::sched_param { sched_priority: 0 };
        // SAFETY: 0 is the calling thread, and the pointer is good for the time of the call.
        unsafe { libc::sched_setscheduler(0, self.policy, &raw const no_priority) };
    }
}

/// In a new process, before exec: it is killed when the thread ends that started it, however this program ends, and also where it is stopped.
fn end_with(parent: u32) -> io::Result<()> {
    // SAFETY: plain system calls, which take no memory.
    let (result, is_orphan) = unsafe {
        (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid().cast_unsigned() != parent)
    };
    match result {
        // The parent was gone before the call.
        0 if is_orphan => Err(Errno::SRCH.into()),
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Variables that every worker gets of this process: what finds libraries, tunes CUDA and thread pools, or says where the user is. Its engine gives
/// [`Launcher::launch`](crate::Launcher::launch) those that it needs beside. Keys of clouds, of collectors and of whatever else stay here.
pub fn inherited() -> impl Iterator<Item = (OsString, OsString)> {
    const NAMES: [&str; 12] = [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "RUST_BACKTRACE",
        "XDG_CACHE_HOME",
    ];
    const PREFIXES: [&str; 8] = ["LC_", "ORCHESTRA_", "CUDA_", "NVIDIA_", "OMP_", "KMP_", "MKL_", "MALLOC_"];
    std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        NAMES.contains(&&*name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    })
}

/// Variables that tune what workers load: ONNX Runtime, cuDNN, cuBLAS, TensorRT, CuPy.
const OF_LIBRARIES: [&str; 5] = ["ORT_", "CUDNN_", "CUBLAS_", "TRT_", "CUPY_"];

/// The variables that workers, and scripts, get beside [`inherited`]: those that tune its libraries, and those that the file allows, which are all that
/// there are without a sandbox.
pub fn allowed(rules: &SandboxRules) -> Vec<(String, String)> {
    let is_of_library = |name: &String| OF_LIBRARIES.iter().any(|prefix| name.starts_with(prefix));
    let is_allowed =
        |name: &String| rules.mode == SandboxMode::Off || rules.env.contains(name) || is_of_library(name);
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(text).filter(|(name, _)| is_allowed(name)).collect()
}

/// Puts the socket and what follows it where the process expects them. They are first moved out of the way, in case one of them lies
/// where another shall go; `dup2` clears close-on-exec, which all other descriptors of the parent have.
fn pass_descriptors<const N: usize>(socket: i32, memory: [i32; N]) -> io::Result<()> {
    const ABOVE_TARGETS: i32 = 10;
    const { assert!(N > 0 && WORKER_SOCKET_FD + (N as i32) < ABOVE_TARGETS) };
    // SAFETY: a plain system call on a descriptor that is open in this process.
    let away = |fd| unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, ABOVE_TARGETS) };
    let (socket, memory) = (away(socket), memory.map(away));
    let mut next = WORKER_SOCKET_FD;
    for from in std::iter::once(socket).chain(memory) {
        // SAFETY: as above; a number below zero is refused.
        if unsafe { libc::dup2(from, next) } < 0 {
            return Err(io::Error::last_os_error());
        }
        next += 1;
    }
    close_on_exec(next.cast_unsigned());
    Ok(())
}

/// What this process inherited without the flag, a process that it starts would inherit, too. Kernels before 5.11 do not know the call.
fn close_on_exec(from: libc::c_uint) {
    // SAFETY: a plain system call.
    unsafe { libc::syscall(libc::SYS_close_range, from, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Has a process that this command starts inherit its standard streams, and no other descriptor. The kernel kills it when the thread ends that starts it,
/// which has to wait for it.
pub fn with_standard_streams_alone(command: &mut StdCommand) {
    let parent = std::process::id();
    // SAFETY: between fork and exec system calls are made, and nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            close_on_exec(3);
            end_with(parent)
        });
    }
}
// The order in which they are passed.
const _: () = assert!(WORKER_INPUTS_FD == WORKER_SOCKET_FD + 1 && WORKER_OUTPUTS_FD == WORKER_SOCKET_FD + 2);
const _: () = assert!(LOADER_REGION_FD == WORKER_SOCKET_FD + 1);

/// What dropping a [`Launched`] does to its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropAction {
    Kill,
    /// Nothing: the process exits when its socket is closed.
    Leave,
}

struct ChildProcess {
    child: TokioChild,
    at_drop: DropAction,
}

impl WorkerProcess for ChildProcess {
    fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    fn kill(&mut self) {
        // An error means that it is gone already.
        let _ = self.child.start_kill();
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = WorkerExit> + Send + '_>> {
        Box::pin(async {
            match self.child.wait().await {
                Ok(status) => exit_of(status),
                // Our children are reaped here only, so this cannot be "no such child"; treat it as a death that proves nothing.
                Err(error) => WorkerExit::SpawnFailed(format!("its end could not be awaited: {error}")),
            }
        })
    }
}

/// A host may drop its runtime, and its own with it all that would wait for the end of a killed process.
impl Drop for ChildProcess {
    fn drop(&mut self) {
        let pid = self.child.id().filter(|_| self.at_drop == DropAction::Kill);
        let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid.cast_signed())) else { return };
        self.kill();
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        // By its descriptor, so that it cannot be another process; that tokio was first is no error.
        let wait = move || waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED);
        drop(thread::Builder::new().name("worker-end".into()).spawn(wait));
    }
}

/// The cores as the kernel takes them. Numbers beyond what it knows are left out.
pub(crate) fn cpu_set(cores: &[u32]) -> CpuSet {
    let mut set = CpuSet::new();
    cores
        .iter()
        .map(|core| *core as usize)
        .filter(|core| *core < CpuSet::MAX_CPU)
        .for_each(|core| set.set(core));
    set
}

pub(crate) fn exit_of(status: ExitStatus) -> WorkerExit {
    match (status.code(), status.signal()) {
        (Some(code), _) => WorkerExit::Code(code),
        (None, Some(signal)) => WorkerExit::Signal(signal),
        (None, None) => WorkerExit::Code(-1),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_process_ends_with_the_thread_that_has_started_it() {
        let start = || {
            let mut command = StdCommand::new("sleep");
            with_standard_streams_alone(command.arg("3600"));
            command.spawn().unwrap()
        };
        let mut child = thread::spawn(start).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn a_panic_where_processes_are_started_costs_no_later_one() {
        assert!(on_spawner(|| -> io::Result<()> { panic!("a bug, as asked") }).is_err());
        assert_eq!(on_spawner(|| Ok(7)).unwrap(), 7);
    }
}
