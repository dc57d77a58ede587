//! Starts worker processes: the one place that knows of file descriptors, environments and exec. Of the engine of a batch stage the runtime
//! knows no more than that. It neither speaks the protocol nor decides when a worker is needed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command as StdCommand, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;

use orchestra_core::shapes::Network;
use orchestra_core::{DeviceKind, StageId, WorkerExit};
use orchestra_plan::BatchPlan;
use orchestra_worker::arena::SharedMemory;
use orchestra_worker::frames::Load;
use orchestra_worker::process::LOADER;
use orchestra_worker::{LOADER_REGION_FD, WORKER_INPUTS_FD, WORKER_OUTPUTS_FD, WORKER_SOCKET_FD};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use rustix::thread::{CpuSet, Pid, sched_setaffinity};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::process::{Child as TokioChild, Command};
use tokio::runtime::Handle;

/// The running executable. The kernel's link stays good when the file is replaced by an upgrade while a run goes on.
const THIS_EXECUTABLE: &str = "/proc/self/exe";

/// Starts workers. Real ones are processes; tests have others.
pub trait Launcher: Send + Sync {
    /// Starts one worker for a device over `memory`, with the variables `env` that its engine needs. Must be called within a tokio runtime.
    fn launch(
        &self,
        device: &DeviceKind,
        env: &[(&str, &str)],
        memory: WorkerMemory<'_>,
    ) -> io::Result<Launched>;

    /// What starts loader processes; `None`: items are loaded in this process.
    fn loaders(&self) -> Option<ProcessLauncher> {
        None
    }
}

/// What a worker inherits: the inputs of its stage, which it can only read, and the outputs that are its own.
pub type WorkerMemory<'a> = SharedMemory<BorrowedFd<'a>>;

/// A worker that has been started.
pub struct Launched {
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    pub writer: Box<dyn AsyncWrite + Send + Sync + Unpin>,
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    pub process: Box<dyn WorkerProcess>,
}

/// The life of a worker. Dropping it kills the worker.
pub trait WorkerProcess: Send {
    /// Its process id, for messages.
    fn pid(&self) -> Option<u32>;
    /// Keeps it, and what it starts from now on, on these cores. What is no process of its own ignores that.
    ///
    /// # Errors
    /// The kernel refuses: none of the cores may be used.
    fn keep_on(&mut self, cores: &[u32]) -> io::Result<()> {
        let _ = cores;
        Ok(())
    }
    /// Kills it; `wait` then returns soon.
    fn kill(&mut self);
    /// Waits until it is gone and can touch nothing any more. May be dropped and called again.
    fn wait(&mut self) -> Pin<Box<dyn Future<Output = WorkerExit> + Send + '_>>;
}

/// Runs the batches of one stage in worker processes.
pub trait EngineSpec: Send + Sync {
    /// Starts one worker for a device over `memory`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// There is no process. The device manager tries again, as its restart policy says.
    fn launch(&self, device: &DeviceKind, memory: WorkerMemory<'_>) -> io::Result<Launched>;

    /// What a worker on `device` has to load: [`Load::spec`], which its engine alone reads.
    ///
    /// # Errors
    /// It cannot be encoded; the text is for the user. The stage counts as one without a device.
    fn spec(&self, device: &DeviceKind) -> Result<Vec<u8>, String>;

    /// Whether its workers send heartbeats whatever they do. Where loading or running may keep a lock that the heartbeat needs, silence
    /// proves nothing meanwhile, and the deadline of the load or of the batch alone ends it.
    fn beats_while_busy(&self) -> bool {
        true
    }
}

/// The engines of a plan: one for each of its batch stages.
pub type Engines = BTreeMap<StageId, Arc<dyn EngineSpec>>;

/// What a worker of a batch stage on `device` is told.
pub fn load_frame(
    engine: &dyn EngineSpec,
    batch: &BatchPlan,
    device: &DeviceKind,
    threads: usize,
) -> Result<Load, String> {
    Ok(Load {
        spec: engine.spec(device)?,
        device: device.clone(),
        threads,
        streams: batch.streams,
        padded_to: batch.padded_to.filter(|_| *device != DeviceKind::Cpu),
        layout: batch.layout.clone(),
    })
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

    /// Starts a process that inherits `memory`, and gives our end of its socket and the process. The process is killed when the thread ends on
    /// which `spawn` has started it.
    fn spawn<C, const N: usize>(
        &self,
        env: impl Iterator<Item = (OsString, OsString)>,
        memory: [BorrowedFd<'_>; N],
        spawn: impl FnOnce(StdCommand) -> io::Result<C>,
    ) -> io::Result<(StdUnixStream, C)> {
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
        let parent = std::process::id();
        // SAFETY: between fork and exec only async-signal-safe calls are made, and nothing is allocated.
        unsafe {
            command.pre_exec(move || {
                end_with(parent)?;
                pass_descriptors(socket, memory)
            });
        }
        let named = |e: io::Error| io::Error::new(e.kind(), format!("`{}`: {e}", self.program.display()));
        let child = spawn(command).map_err(named)?;
        drop(theirs); // Or the end of file would never come.
        Ok((ours, child))
    }

    /// Starts a loader process over `region`, for a thread that waits for it.
    pub(crate) fn launch_loader(&self, region: BorrowedFd<'_>) -> io::Result<(StdUnixStream, Child)> {
        self.spawn(std::iter::empty(), [region], |mut command| {
            // What a decoder dies of is said in a line; where in our code is for developers, who run it by hand.
            command.arg(LOADER).env_remove("RUST_BACKTRACE");
            // This thread waits for it, so it ends with its work, also from the middle of a picture.
            command.spawn()
        })
    }
}

impl Launcher for ProcessLauncher {
    fn launch(
        &self,
        device: &DeviceKind,
        env: &[(&str, &str)],
        memory: WorkerMemory<'_>,
    ) -> io::Result<Launched> {
        let asked = env.iter().map(|(name, value)| (name.into(), value.into()));
        // Whatever else is asked for, a worker sees its own device.
        let device = orchestra_machine::worker_environment(device);
        let env = asked.chain(device.into_iter().map(|(name, value)| (name.into(), value.into())));
        let (ours, mut child) = self.spawn(env, [memory.inputs, memory.outputs], spawn_worker)?;
        ours.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(ours)?.into_split();
        let stderr = child.stderr.take().ok_or_else(|| io::Error::other("no stderr pipe"))?;
        Ok(Launched {
            reader: Box::new(reader),
            writer: Box::new(writer),
            stderr: Box::new(stderr),
            process: Box::new(ChildProcess(child)),
        })
    }

    fn loaders(&self) -> Option<ProcessLauncher> {
        Some(self.clone())
    }
}

/// Starts a worker on a thread that ends when the worker has ended. The caller may be a thread of the host, which can end sooner, and the worker
/// with it.
fn spawn_worker(command: StdCommand) -> io::Result<TokioChild> {
    let (runtime, (sender, started)) = (Handle::current(), mpsc::sync_channel(1));
    let life = move || {
        let child = {
            let _entered = runtime.enter();
            Command::from(command).kill_on_drop(true).spawn()
        };
        // Nothing of the host is kept for as long as a worker lives.
        drop(runtime);
        let pid = child.as_ref().ok().and_then(TokioChild::id);
        if sender.send(child).is_err() {
            return;
        }
        // `NOWAIT`: the end is left for the runtime, which reaps it. An error says that it did.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        if let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            while waitid(WaitId::Pid(pid), options).err() == Some(Errno::INTR) {}
        }
    };
    thread::Builder::new().name("worker-life".into()).spawn(life)?;
    started.recv().map_err(|_| io::Error::other("the thread that starts it panicked"))?
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
/// [`Launcher::launch`] those that it needs beside. Keys of clouds, of collectors and of whatever else stay here.
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

/// Has a process that this command starts inherit its standard streams, and no other descriptor.
pub fn with_standard_streams_alone(command: &mut StdCommand) {
    // SAFETY: between fork and exec one system call is made, and nothing is allocated.
    unsafe {
        command.pre_exec(|| {
            close_on_exec(3);
            Ok(())
        });
    }
}
// The order in which they are passed.
const _: () = assert!(WORKER_INPUTS_FD == WORKER_SOCKET_FD + 1 && WORKER_OUTPUTS_FD == WORKER_SOCKET_FD + 2);
const _: () = assert!(LOADER_REGION_FD == WORKER_SOCKET_FD + 1);

struct ChildProcess(TokioChild);

impl WorkerProcess for ChildProcess {
    fn pid(&self) -> Option<u32> {
        self.0.id()
    }

    fn keep_on(&mut self, cores: &[u32]) -> io::Result<()> {
        // A process that is gone already needs no cores.
        let Some(pid) = self.0.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) else { return Ok(()) };
        Ok(sched_setaffinity(Some(pid), &cpu_set(cores))?)
    }

    fn kill(&mut self) {
        // An error means that it is gone already.
        let _ = self.0.start_kill();
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = WorkerExit> + Send + '_>> {
        Box::pin(async {
            match self.0.wait().await {
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
        let Some(pid) = self.0.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) else { return };
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
