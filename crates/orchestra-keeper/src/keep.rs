//! The life of one command, from the order to its end.
//!
//! ```text
//! Running => Asked (signal sent, grace) => Killed      told to stop, or orchestra is gone
//!    |         |                             |
//!    +---------+-----------------------------+--> ended => what is left is killed => told
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, OFlags, fcntl_setfl, flock};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, kill_process_group, pidfd_open, set_child_subreaper,
    setrlimit, setsid,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::descendants::{kill_all, reap};
use crate::log::Log;
use crate::messages::{Ended, MAX_MESSAGE, Order, Report, STOP_KILL, decode, encode};
use crate::metrics::Reader;

/// How long what was killed may take to be gone: what hangs in the kernel longer cannot be waited for.
const KILL_PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether what a command has left is gone.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Buffers of output that are read once all is over: more than a pipe holds. What writes on was not started by the command.
const MOST_READS: usize = 32;

/// The entry point of a keeper: its standard input is the socket to orchestra.
pub fn main() -> ExitCode {
    survive_the_limit_on_file_sizes();
    // SAFETY: nothing else in this process uses the descriptor of standard input.
    let socket = unsafe { OwnedFd::from_raw_fd(0) };
    match keep(&mut UnixStream::from(socket)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("this command is started by orchestra itself, not by hand: {error}");
            ExitCode::from(2)
        }
    }
}

/// With a handler, a log that reaches the limit of its size (`ulimit -f`) is an error like a full disk; without one the system kills the process.
/// The command does not inherit it.
fn survive_the_limit_on_file_sizes() {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: the handler does nothing, so it may run at any moment.
    unsafe { libc::signal(libc::SIGXFSZ, handler as usize) };
}

fn keep(socket: &mut UnixStream) -> io::Result<()> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_MESSAGE {
        return Err(io::Error::other("the order is too long"));
    }
    let mut body = vec![0; length as usize];
    socket.read_exact(&mut body)?;
    let order: Order = decode(&body)?;
    // The next start waits for this lock, so no command runs twice at once. Orchestra may be gone before it is held: then nothing begins.
    let lock = OpenOptions::new().create(true).append(true).open(&order.lock);
    let locked = lock.and_then(|lock| Ok((flock(&lock, FlockOperation::LockShared)?, lock)));
    let _lock = match locked {
        Ok(lock) => lock,
        Err(error) => {
            tell(socket, &Report::NotStarted(format!("`{}` cannot be locked: {error}", order.lock)));
            return Ok(());
        }
    };
    socket.set_nonblocking(true)?;
    match socket.read(&mut [0]) {
        Ok(0) => return Ok(()),
        Ok(_) => {
            tell(socket, &Report::NotStarted("it was stopped before".to_owned()));
            return Ok(());
        }
        Err(_) => {} // Nothing is said yet.
    }
    let report = match start(&order) {
        Ok(command) => {
            tell(socket, &Report::Started(command.group.as_raw_nonzero().get()));
            let socket = socket.try_clone()?;
            let grace = Duration::from_millis(order.grace_ms);
            let kept = Kept {
                command,
                socket,
                listens: true,
                has_output: true,
                grace,
                asked: None,
                is_killed: false,
            };
            Report::Ended(kept.run(order.stop_signal)?)
        }
        Err(why) => Report::NotStarted(why),
    };
    if let Report::Ended(ended) = &report {
        // Before it is told: so the next start knows of an end that orchestra did not live to note. Where there is no room for it, that is told alone.
        drop(write_end(&order.end, ended));
    }
    tell(socket, &report);
    Ok(())
}

/// Sends a report. An error means that orchestra is gone, which `Kept::wait` learns from the end of the socket.
fn tell(socket: &mut UnixStream, report: &Report) {
    let told = encode(report).and_then(|bytes| {
        socket.set_nonblocking(false)?;
        socket.write_all(&bytes)?;
        socket.set_nonblocking(true)
    });
    drop(told);
}

fn write_end(path: &str, ended: &Ended) -> io::Result<()> {
    let next = format!("{path}.next");
    fs::write(&next, &encode(ended)?[4..])?;
    fs::rename(next, path)
}

/// A command that runs.
struct Running {
    group: Pid,
    /// Readable when it has ended.
    process: OwnedFd,
    output: File,
    log: Log,
    started: Instant,
}

/// Starts the command; why it cannot be started is a fragment for people.
fn start(order: &Order) -> Result<Running, String> {
    let text = |error: rustix::io::Errno| error.to_string();
    let metrics = Reader::new(&order.metrics)?;
    let log = Log::create(&order.log, metrics)
        .map_err(|e| format!("its log `{}` cannot be written: {e}", order.log))?;
    // It leaves the terminal, and so does the command: Ctrl-C is for orchestra alone.
    setsid().map_err(text)?;
    set_child_subreaper(Some(rustix::process::getpid())).map_err(text)?;
    keep_on(&order.cores).map_err(|e| format!("it cannot be kept on its cores: {e}"))?;
    if let Some(bytes) = order.memory {
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        setrlimit(Resource::Data, limit).map_err(|e| format!("its memory cannot be limited: {e}"))?;
    }
    let Some((program, arguments)) = order.command.split_first() else {
        return Err("it is empty".to_owned());
    };
    if !fs::metadata(&order.cwd).is_ok_and(|folder| folder.is_dir()) {
        return Err(format!("its folder `{}` does not exist", order.cwd));
    }
    let (output, written) = pipe_with(PipeFlags::CLOEXEC).map_err(text)?;
    let other = written.try_clone().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(&order.cwd)
        .envs(order.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::from(written))
        .stderr(Stdio::from(other))
        .process_group(0);
    // SAFETY: one system call, which takes no memory.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let child = command.spawn().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => format!("there is no program `{program}`"),
        _ => format!("`{program}`: {e}"),
    })?;
    let group = Pid::from_child(&child);
    let process = pidfd_open(group, PidfdFlags::empty()).map_err(text)?;
    fcntl_setfl(&output, OFlags::NONBLOCK).map_err(text)?;
    // With `command` our ends of the pipe for writing are closed.
    Ok(Running { group, process, output: File::from(output), log, started: Instant::now() })
}

struct Kept {
    command: Running,
    socket: UnixStream,
    /// Orchestra may still say something.
    listens: bool,
    has_output: bool,
    grace: Duration,
    /// When it was asked to end.
    asked: Option<Instant>,
    is_killed: bool,
}

impl Kept {
    /// Until nothing of the command is left.
    fn run(mut self, stop_signal: i32) -> io::Result<Ended> {
        while !self.wait(stop_signal, None)? {}
        let (status, peak_memory) = reap_command(self.command.group)?;
        let elapsed = self.command.started.elapsed();
        let was_stopped = self.asked.is_some();
        // Processes that the command has left: those that were asked to end have the rest of the grace; others are killed now.
        let mut left_behind = 0;
        let until = Instant::now() + self.grace + KILL_PATIENCE;
        while reap() && Instant::now() < until {
            if self.is_killed || self.asked.is_none() {
                left_behind = kill_all(self.command.group).max(left_behind);
            }
            self.wait(stop_signal, Some(LOOK_EVERY))?;
        }
        for _ in 0..MOST_READS {
            if !self.read() {
                break;
            }
        }
        Ok(Ended {
            code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
            signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
            was_stopped,
            milliseconds: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            peak_memory,
            last_words: self.command.log.finish(),
            left_behind: if was_stopped { 0 } else { left_behind },
            log_error: self.command.log.error.take(),
            metrics: self.command.log.metrics.finish(),
        })
    }

    /// Waits for output, for orchestra, for the end of the command or of its grace, at most so long. Whether the command has ended; that is not
    /// looked at with `at_most`.
    fn wait(&mut self, stop_signal: i32, at_most: Option<Duration>) -> io::Result<bool> {
        let left = |at: Instant| (at + self.grace).saturating_duration_since(Instant::now());
        let grace_left = self.asked.filter(|_| !self.is_killed).map(left);
        let metrics_due = self.command.log.metrics.wait().filter(|_| self.listens);
        let timeout = grace_left.into_iter().chain(at_most).chain(metrics_due).min();
        let timeout = timeout.map(|time| Timespec::try_from(time).unwrap_or_default());
        let watched = [
            (at_most.is_none(), self.command.process.as_fd()),
            (self.has_output, self.command.output.as_fd()),
            (self.listens, self.socket.as_fd()),
        ];
        let watches = watched.iter().filter(|(is_watched, _)| *is_watched);
        let mut polled: Vec<PollFd<'_>> =
            watches.map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut answers = polled.iter().map(|fd| !fd.revents().is_empty());
        let [has_ended, has_output, was_told] =
            watched.map(|(is_watched, _)| is_watched && answers.next().unwrap_or(false));
        if has_output {
            self.read();
        }
        self.tell_metrics();
        if was_told {
            let mut byte = [0];
            match self.socket.read(&mut byte) {
                Ok(1..) if byte == [STOP_KILL] => self.kill(),
                Ok(1..) => self.ask(stop_signal),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Orchestra is gone.
                Ok(0) | Err(_) => {
                    self.listens = false;
                    self.ask(stop_signal);
                }
            }
        }
        if self.asked.is_some_and(|at| at.elapsed() >= self.grace) {
            self.kill();
        }
        Ok(has_ended)
    }

    /// Reads what is there, at most a buffer of it; whether there was anything.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 64 << 10];
        match self.command.output.read(&mut buffer) {
            Ok(0) => self.has_output = false,
            Ok(n) => {
                self.command.log.push(&buffer[..n]);
                return true;
            }
            Err(_) => {}
        }
        false
    }

    /// Tells what is new, unless it would have to wait for orchestra: a socket that may be written to has room for more than all of this.
    fn tell_metrics(&mut self) {
        let metrics = &mut self.command.log.metrics;
        let Some(read) = metrics.due().filter(|_| self.listens) else { return };
        let mut polled = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::OUT)];
        match poll(&mut polled, Some(&Timespec::default())) {
            Ok(1..) => tell(&mut self.socket, &Report::Metrics(read)),
            _ => metrics.was_not_told(),
        }
    }

    fn ask(&mut self, stop_signal: i32) {
        if self.asked.is_none() {
            self.asked = Some(Instant::now());
            let signal = Signal::from_named_raw(stop_signal).unwrap_or(Signal::TERM);
            // Errors mean that it has ended. What is stopped has to go on to hear of it.
            let _ = kill_process_group(self.command.group, signal);
            let _ = kill_process_group(self.command.group, Signal::CONT);
        }
    }

    fn kill(&mut self) {
        self.asked.get_or_insert_with(Instant::now);
        if !std::mem::replace(&mut self.is_killed, true) {
            kill_all(self.command.group);
        }
    }
}

/// The status of the command that has ended, and its peak memory in bytes.
fn reap_command(pid: Pid) -> io::Result<(i32, u64)> {
    let mut status = 0;
    // SAFETY: all zeros is a value of the struct, which the kernel overwrites.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are of values that live until the call returns.
    let reaped = unsafe { libc::wait4(pid.as_raw_nonzero().get(), &raw mut status, 0, &raw mut usage) };
    if reaped < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((status, u64::try_from(usage.ru_maxrss).unwrap_or_default() << 10))
}

/// Keeps this process, and all that it starts, on some of its cores.
fn keep_on(places: &[u32]) -> io::Result<()> {
    if places.is_empty() {
        return Ok(());
    }
    let may_use = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| may_use.is_set(*core)).collect();
    let mut set = CpuSet::new();
    places.iter().filter_map(|place| cores.get(*place as usize)).for_each(|core| set.set(*core));
    Ok(sched_setaffinity(None, &set)?)
}
