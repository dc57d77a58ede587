//! A loader process, or the script of a source or a sink, as the thread sees it that owns it: a [`Child`] that is waited for. It knows no item.

use std::ffi::OsString;
use std::future::ready;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use orchestra_core::failure::cut_words;
use orchestra_core::{ScriptProgram, WorkerExit};
use orchestra_worker::BUILD;
use orchestra_worker::codec::Frame;
use orchestra_worker::loader::LoaderRegion;
use orchestra_worker::loader::events::{FromLoader, LOADER_PROTOCOL, ToLoader};
use orchestra_worker::program::{ConfinedProgram, PROGRAM};
use orchestra_worker::script::FromScript;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{timeout, timeout_at};

use crate::child::spawn::{DropAction, Launched, ProcessLauncher, allowed};
use crate::child::words::StderrText;
use crate::child::{Child, FrameSender};

/// From SIGKILL until a process is left to itself: it hangs in the kernel, most likely in a file system.
const KILL: Duration = Duration::from_secs(5);

/// A process that sends frames `F`: those of a loader, unless said otherwise. Dropping it kills it.
pub struct LoaderChild<F = FromLoader> {
    pub pid: u32,
    /// Of the thread that waits, so that no frame wakes another one; `None` while it is dropped.
    runtime: Option<Runtime>,
    child: Child<F>,
    sender: FrameSender,
    /// How long it may take to read a frame.
    pub patience: Duration,
}

#[derive(Debug)]
pub struct LostLoader {
    pub exit: WorkerExit,
    pub last_words: String,
    /// Of the items that it had and did not answer for: how many it was through with.
    pub through: u64,
    /// There was no memory to start it.
    pub without_memory: bool,
}

impl LostLoader {
    /// Of a process that could not be started.
    pub fn not_started(error: &io::Error) -> Self {
        let without_memory = error.kind() == io::ErrorKind::OutOfMemory;
        let (exit, last_words) = (WorkerExit::SpawnFailed(error.to_string()), String::new());
        Self { exit, last_words, through: 0, without_memory }
    }
}

impl LoaderChild {
    /// Starts it, and gives another end of its socket, by which it is shut down from elsewhere. The calling thread must be in no runtime, here and whenever
    /// it waits for the process.
    pub fn launch(launcher: &ProcessLauncher, region: BorrowedFd<'_>) -> io::Result<(Self, UnixStream)> {
        Self::start("loader", || launcher.launch_loader(region))
    }

    /// Tells it what it shall be, and waits until it is ready.
    pub fn handshake(&mut self, load: &ToLoader, time: Duration) -> Result<(), LostLoader> {
        let until = Instant::now() + time;
        // A process that does not read, a stopped one, must not hold up the thread for ever.
        self.patience = time;
        self.write(load)?;
        loop {
            let Some(frame) = self.receive_within(until)? else {
                return Err(self.end(WorkerExit::HandshakeTimeout));
            };
            let exit = match frame {
                FromLoader::Hello { protocol, build }
                    if (protocol, &build[..]) == (LOADER_PROTOCOL, BUILD) =>
                {
                    continue;
                }
                FromLoader::Hello { protocol, build } => WorkerExit::ProtocolMismatch(format!(
                    "its version {build} speaks {protocol}, this is version {BUILD}, which speaks {LOADER_PROTOCOL}"
                )),
                FromLoader::Ready => return Ok(()),
                FromLoader::Refused { class, error } => WorkerExit::LoadFailed { class, why: error },
                _ => return Err(self.garbled("an answer to what it was not asked")),
            };
            return Err(self.end(exit));
        }
    }
}

impl LoaderChild<FromScript> {
    /// Starts the script of a source or a sink. The calling thread is as for [`LoaderChild::launch`].
    pub fn launch_script(launcher: &ProcessLauncher, lister: &ScriptProgram) -> io::Result<Self> {
        let ScriptProgram { program, rules, .. } = lister;
        let confined = ConfinedProgram { program: program.clone(), rules: rules.clone(), gpu: false };
        let confined = confined.encode().map_err(io::Error::other)?;
        let own = [("CUDA_VISIBLE_DEVICES".to_owned(), String::new()), (PROGRAM.to_owned(), confined)];
        let env = allowed(rules).into_iter().chain(own).map(|(name, value)| (name.into(), value.into()));
        let env: Vec<(OsString, OsString)> = env.collect();
        // It needs none, and what starts processes hands one over.
        let region = LoaderRegion::new(0)?;
        let (child, ()) = Self::start("script", || {
            let (ours, child) = launcher.spawn(env.into_iter(), [region.fd()], |_| ())?;
            Ok((Launched::of(ours, child, DropAction::Kill)?, ()))
        })?;
        Ok(child)
    }
}

impl<F: Frame> LoaderChild<F> {
    fn start<T>(
        what: &'static str,
        launch: impl FnOnce() -> io::Result<(Launched, T)>,
    ) -> io::Result<(Self, T)> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let (launched, more) = launch()?;
        let pid = launched.process.pid().unwrap_or_default();
        let (child, sender) = Child::new(launched, move |said| match said {
            StderrText::Line(text) => tracing::info!(pid, stderr = %text, "{what} says"),
            StderrText::TooMuch(lines) => tracing::info!(pid, lines, "{what} says more than is logged"),
        });
        drop(entered);
        let (runtime, patience) = (Some(runtime), Duration::ZERO);
        Ok((Self { pid, runtime, child, sender, patience }, more))
    }

    pub fn write(&mut self, frame: &impl Frame) -> Result<(), LostLoader> {
        let Self { runtime, sender, patience, .. } = self;
        match waiting(runtime).block_on(async { timeout(*patience, sender.send(frame)).await }) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.garbled(&error.to_string())),
            Err(_) => Err(self.end(WorkerExit::Silent)),
        }
    }

    /// Writes as much of a frame as the process takes now. [`Self::receive_within`] writes the rest: a process that has much to say reads only when that
    /// is heard.
    pub fn begin_write(&mut self, frame: &impl Frame) -> Result<(), LostLoader> {
        let Self { runtime, sender, .. } = self;
        if let Err(error) = sender.queue(frame) {
            return Err(self.garbled(&error.to_string()));
        }
        waiting(runtime).block_on(async {
            tokio::select! {
                biased;
                () = sender.flush() => {}
                () = ready(()) => {}
            }
        });
        Ok(())
    }

    /// The next frame; `None` when there is none by then. After an error the process is gone.
    pub fn receive_within(&mut self, until: Instant) -> Result<Option<F>, LostLoader> {
        let Self { runtime, child, sender, .. } = self;
        let frame = async {
            loop {
                tokio::select! {
                    () = sender.flush(), if sender.is_behind() => {}
                    frame = child.next() => return frame,
                }
            }
        };
        match waiting(runtime).block_on(async { timeout_at(until.into(), frame).await }) {
            Ok(Ok(Some(frame))) => Ok(Some(frame)),
            Ok(Ok(None)) => Err(self.gone(None)),
            Ok(Err(why)) => Err(self.end(why)),
            Err(_) => Ok(None),
        }
    }

    pub fn garbled(&mut self, what: &str) -> LostLoader {
        self.end(WorkerExit::Garbled(what.to_owned()))
    }

    pub fn end(&mut self, why: WorkerExit) -> LostLoader {
        self.gone(Some(why))
    }

    /// Waits for its end, and gives up on a process that not even SIGKILL ends. Its socket is closed, so it ends by itself, or nothing will come
    /// of it.
    fn gone(&mut self, why: Option<WorkerExit>) -> LostLoader {
        let Self { runtime, child, pid, .. } = self;
        child.kill();
        let (exit, mut last_words) = waiting(runtime).block_on(async {
            match child.exit(KILL).await {
                Some(exit) => (why.unwrap_or(exit), child.last_words().await),
                None => {
                    tracing::error!(
                        pid,
                        "a loader does not end although it was killed; the run goes on without it"
                    );
                    (why.unwrap_or(WorkerExit::Silent), String::new())
                }
            }
        });
        cut_words(&mut last_words);
        LostLoader { exit, last_words, through: 0, without_memory: false }
    }
}

fn waiting(runtime: &Option<Runtime>) -> &Runtime {
    runtime.as_ref().expect("it is taken when the process is dropped")
}

impl<F> Drop for LoaderChild<F> {
    fn drop(&mut self) {
        // The caller may be in a runtime, where none may be waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
