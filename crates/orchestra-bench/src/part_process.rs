//! A process that measures a part: it is let run, stopped with all of its workers, and listened to. In which order, others decide.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use orchestra_machine::{process_state, processes};
use orchestra_trial::{Cancel, Cause, TrialError};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::cpu_time::idle;
use crate::error::BenchError;
use crate::own_time::{Account, Elsewhere};
use crate::part::{Job, Part, Said};

/// How often those who wait look whether they shall still wait.
const LOOK: Duration = Duration::from_millis(50);
/// How long the kernel may take to stop all threads of a part, which may be in a call that cannot be left.
const STOP: Duration = Duration::from_millis(200);
/// How often is looked whether it has.
const STOP_LOOK: Duration = Duration::from_micros(100);
/// How long a process that is to end may take to clean up.
const END: Duration = Duration::from_secs(10);

/// See the module. Dropping it ends it and its workers.
pub struct PartProcess {
    pub part: Part,
    child: Child,
    /// Closing it tells the process to end.
    stdin: Option<ChildStdin>,
    said: Receiver<Said>,
    stderr: PathBuf,
    cores: usize,
    account: Account,
    elsewhere: Elsewhere,
    /// Those that were stopped with it.
    workers: Vec<u32>,
    state: State,
}

enum State {
    /// It waits for the word to begin.
    Ready,
    /// It was stopped then, when the cores had been idle so long.
    Stopped(Instant, Option<Duration>),
    Over(Option<Said>),
}

/// When a turn ends, unless the part is over before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// After this time.
    Passed(Duration),
    /// When its first items are finished.
    Started,
    /// With the part.
    Over,
}

impl PartProcess {
    /// Starts it, and returns when it is ready to begin.
    pub fn start(mut command: Command, job: &Job, cores: usize, cancel: &Cancel) -> Result<Self, BenchError> {
        let io = |doing: &str| TrialError::io(format!("{doing} a process for a part"));
        let stderr = job.stderr();
        let account = Account::create(&job.account()).map_err(io("making the files of"))?;
        let words = fs::File::create(&stderr).map_err(io("making the files of"))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(words);
        // The terminal's signals are for us, who decide what becomes of it.
        command.process_group(0);
        // SAFETY: between fork and exec only an async-signal-safe call is made, and nothing is allocated.
        unsafe {
            command.pre_exec(die_with_parent);
        }
        let mut child = command.spawn().map_err(io("starting"))?;
        let stdout = child.stdout.take();
        let (send, said) = channel();
        // It ends with the process.
        std::thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).split(b'\n'));
            for line in lines.map_while(Result::ok) {
                // What is no line of ours is missed where it was expected.
                if serde_json::from_slice(&line).is_ok_and(|said| send.send(said).is_err()) {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        let state = State::Ready;
        let mut process = Self {
            part: job.part,
            child,
            stdin,
            said,
            stderr,
            cores,
            account,
            elsewhere: Elsewhere::default(),
            workers: Vec::new(),
            state,
        };
        match process.listen(None, cancel)? {
            Some(Said::Ready) => Ok(process),
            other => Err(BenchError::Bug(format!("a part began with {other:?}"))),
        }
    }

    /// Lets it run for a turn. Tells whether it is over.
    pub fn turn(&mut self, until: Until, cancel: &Cancel) -> Result<bool, BenchError> {
        if matches!(self.state, State::Over(_)) {
            return Ok(true);
        }
        let end = match until {
            Until::Passed(time) => Some(Instant::now() + time),
            Until::Started | Until::Over => None,
        };
        self.go_on()?;
        loop {
            match self.listen(end, cancel)? {
                Some(Said::Started) if until == Until::Started => break,
                Some(Said::Ready | Said::Started) => {}
                Some(said) => {
                    self.end().map_err(TrialError::io("waiting for a part"))?;
                    self.state = State::Over(Some(said));
                    return Ok(true);
                }
                None => break,
            }
        }
        self.stop();
        Ok(false)
    }

    /// What it found; nothing before it is over, or if that was asked before.
    pub fn found(&mut self) -> Option<Said> {
        match &mut self.state {
            State::Over(said) => said.take(),
            _ => None,
        }
    }

    fn go_on(&mut self) -> Result<(), BenchError> {
        match &self.state {
            State::Ready => {
                let told = self.stdin.as_mut().map_or(Ok(()), |stdin| stdin.write_all(b"go\n"));
                // One that is gone says why below.
                drop(told);
            }
            State::Stopped(at, idle_then) => {
                if let Some((then, now)) = idle_then.zip(idle(self.cores)) {
                    self.elsewhere.idle += now.saturating_sub(then);
                }
                self.elsewhere.time += at.elapsed();
                self.account
                    .write(self.elsewhere)
                    .map_err(TrialError::io("telling a part what passed elsewhere"))?;
                self.signal(Signal::CONT);
            }
            State::Over(_) => {}
        }
        Ok(())
    }

    fn stop(&mut self) {
        // All that this takes is in the turn of the part: it runs until the kernel has stopped its last thread.
        self.workers = processes::child_ids(self.child.id());
        self.signal(Signal::STOP);
        let by = Instant::now() + STOP;
        while !self.is_stopped() && Instant::now() < by {
            std::thread::sleep(STOP_LOOK);
        }
        self.state = State::Stopped(Instant::now(), idle(self.cores));
    }

    /// Those that have ended are.
    fn is_stopped(&self) -> bool {
        self.all().all(|pid| process_state(pid).is_none_or(|state| state.starts_with(['T', 'Z', 'X'])))
    }

    /// The process and its workers.
    fn all(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.child.id()).chain(self.workers.iter().copied())
    }

    fn signal(&self, signal: Signal) {
        for pid in self.all().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            // One that has ended meanwhile needs no signal.
            let _ = kill_process(pid, signal);
        }
    }

    /// The next that it says; `None` at `end`.
    fn listen(&mut self, end: Option<Instant>, cancel: &Cancel) -> Result<Option<Said>, BenchError> {
        loop {
            let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
            match self.said.recv_timeout(left.min(LOOK)) {
                Ok(said) => return Ok(Some(said)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
                Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                    return Err(BenchError::cancelled());
                }
                Err(RecvTimeoutError::Timeout) if end.is_some_and(|end| Instant::now() >= end) => {
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Why it ended without figures: it says so itself, or the system does.
    fn gone(&mut self) -> BenchError {
        let status = match self.end() {
            Ok(status) => status,
            Err(error) => return TrialError::io("waiting for a part")(error).into(),
        };
        let words = fs::read(&self.stderr).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        let said = words.lines().rev().find_map(|line| line.strip_prefix("error: "));
        match (status.code(), status.signal()) {
            (Some(code), _) => BenchError::Part {
                cause: Cause::of_exit_code(code),
                said: said.map_or_else(
                    || format!("a process that measures ended with exit code {code}: {}", words.trim()),
                    str::to_owned,
                ),
            },
            (None, signal) => BenchError::Part {
                cause: Cause::Surroundings,
                said: format!("a process that measures was killed by signal {}", signal.unwrap_or_default()),
            },
        }
    }

    /// Waits until it and its workers are gone; what does not end soon is killed.
    fn end(&mut self) -> std::io::Result<ExitStatus> {
        // That tells it.
        self.stdin = None;
        // Also where they are stopped: also workers whose parent has died.
        self.signal(Signal::CONT);
        let by = Instant::now() + END;
        loop {
            match self.said.recv_timeout(by.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                // It has closed its stdout, so it ends by itself.
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    // An error means that it is gone already.
                    let _ = self.child.kill();
                    break;
                }
            }
        }
        self.child.wait()
    }
}

impl Drop for PartProcess {
    fn drop(&mut self) {
        if !matches!(self.state, State::Over(_)) {
            // It was in the way of something that is said elsewhere.
            let _ = self.end();
        }
    }
}

/// Nobody would let it go on.
fn die_with_parent() -> std::io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}
