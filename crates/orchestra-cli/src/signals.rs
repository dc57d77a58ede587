//! Signals of the process: which of them stop a run, and which are only noticed. What stopping means is the runtime's business.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestra_core::locked;

use orchestra_launch::StopHandle;
use rustix::process::Signal;
use tokio::runtime::Runtime;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::task::JoinHandle;

use crate::exit_code::ExitCode;
use crate::stderr;

/// SIGINT and SIGTERM, caught from the moment when this is made.
pub struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Signals {
    /// To be made where a runtime is at work.
    pub fn caught() -> io::Result<Self> {
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate })
    }

    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Turns signals into the stages in which a run stops: the first lets it finish what is in flight, the second kills its workers, the third ends the
/// process at once; the journal is then resumed as after any crash. Between the parts of a run nothing is in flight, and the first one ends the
/// process.
#[derive(Default)]
pub struct Stopping {
    told: Arc<Mutex<StopState>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct StopState {
    signals: u32,
    stop: Option<StopHandle>,
    something_is_drawn: bool,
    /// One part of the run is over, and the next one has not begun.
    is_between: bool,
}

impl Stopping {
    /// A part of the run begins: signals are caught. To be called where a runtime is at work, which outlives the run.
    pub fn catch(&self) -> io::Result<()> {
        locked(&self.told).is_between = false;
        let mut task = locked(&self.task);
        if task.is_none() {
            let (mut signals, told) = (Signals::caught()?, Arc::clone(&self.told));
            *task = Some(tokio::spawn(async move {
                loop {
                    signals.next().await;
                    locked(&told).signal();
                }
            }));
        }
        Ok(())
    }

    /// From now on this is what is stopped: at once, if a signal has come already.
    pub fn stop_by(&self, stop: StopHandle, something_is_drawn: bool) {
        let mut told = locked(&self.told);
        (told.stop, told.something_is_drawn) = (Some(stop), something_is_drawn);
        told.tell();
    }

    /// A part of the run is over, and another one will follow.
    pub fn pause(&self) {
        let mut told = locked(&self.told);
        if told.signals > 0 {
            told.exit();
        }
        (told.stop, told.is_between) = (None, true);
    }

    /// There is nothing to stop any more.
    pub fn over(&self) {
        if let Some(task) = &*locked(&self.task) {
            task.abort();
        }
    }
}

impl StopState {
    fn signal(&mut self) {
        self.signals += 1;
        if self.is_between {
            self.exit();
        }
        // The run is told first: a program that reads the message may rely on the stop.
        if self.signals <= 2 {
            self.tell();
        }
        match self.signals {
            1 => tracing::warn!("stopping: finishing what is in flight (again: kill the workers)"),
            2 => tracing::warn!("stopping now: workers are killed (again: exit at once)"),
            _ => {
                if self.something_is_drawn {
                    // The shell goes on below it.
                    stderr::say_line("");
                }
                std::process::exit(i32::from(ExitCode::Interrupted.number()))
            }
        }
    }

    fn exit(&self) -> ! {
        stderr::say_line("interrupted: what is done is kept; run the same command again to go on");
        std::process::exit(i32::from(ExitCode::Interrupted.number()))
    }

    fn tell(&self) {
        match (&self.stop, self.signals) {
            (Some(stop), 1) => stop.interrupt(),
            (Some(stop), 2..) => stop.abort(),
            _ => {}
        }
    }
}

/// How long what is left of traces and metrics may take after a signal.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

/// Signals that come when the run is over, and only traces and metrics are still being sent.
pub struct AfterTheRun {
    signals: Signals,
    runtime: Runtime,
}

impl AfterTheRun {
    /// From now on they are caught.
    pub fn caught() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let signals = {
            let _inside = runtime.enter();
            Signals::caught()?
        };
        Ok(Self { signals, runtime })
    }

    /// From now on the first one leaves a second to what is being sent, and the next one ends the process at once with this code. So does
    /// the first, if it is not the first of this command.
    pub fn cut_short(self, code: ExitCode, stopped_before: bool) {
        let Self { mut signals, runtime } = self;
        let thread = std::thread::Builder::new().name("signals".into());
        let started = thread.spawn(move || {
            runtime.block_on(async {
                signals.next().await;
                if !stopped_before {
                    stderr::say_line("stopping: what is left of traces and metrics has one more second (again: stop at once)");
                    tokio::select! {
                        () = signals.next() => {}
                        () = tokio::time::sleep(LAST_REQUESTS) => {}
                    }
                }
                stderr::say_line("warning: traces and metrics are incomplete: the command was stopped before all of them were sent");
                std::process::exit(i32::from(code.number()));
            });
        });
        if let Err(error) = started {
            tracing::debug!(%error, "a signal will not cut the last requests short");
        }
    }
}

/// Tells when the process goes on after it was stopped (Ctrl-Z, `fg`).
pub struct Continued(Option<unix::Signal>);

impl Continued {
    /// To be made where a runtime is at work.
    pub fn new() -> Self {
        let kind = SignalKind::from_raw(Signal::CONT.as_raw());
        // Without it, a line or two of the shell are drawn over.
        Self(signal(kind).ok())
    }

    pub async fn next(&mut self) {
        let told = match &mut self.0 {
            Some(signals) => signals.recv().await.is_some(),
            None => false,
        };
        if !told {
            std::future::pending().await
        }
    }
}

/// Once a handler is there, a file that reaches the limit of its size (`ulimit -f`) is an error like a full disk. Without one the
/// system kills the process. To be called where a runtime is at work.
pub fn survive_the_limit_on_file_sizes() {
    if let Err(error) = signal(SignalKind::from_raw(Signal::XFSZ.as_raw())) {
        tracing::debug!(%error, "a limit on the size of files will end the process");
    }
}
