//! The life of a keeper: that of its command, from the order to the end.
//!
//! ```text
//! Running => Asked (signal sent, grace) => Killed      told to stop, orchestra is gone, or it has written nothing for too long
//!    |         |                             |
//!    +---------+-----------------------------+--> ended, or given up => what is left is killed => told
//! ```

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::codec::{CodecError, FrameReader, FrameWriter};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, set_child_subreaper, setsid};

use crate::keeper::claim::claim;
use crate::keeper::descendants::{kill_all, reap, reap_all_but};
use crate::keeper::group::kernel_kills;
use crate::keeper::messages::{CommandEnd, CommandOrder, KeeperReport, ToKeeper};
use crate::keeper::start::{RunningCommand, start};

/// How long what was killed may take to be gone: what hangs in the kernel longer cannot be waited for.
const KILL_PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether what a command has left is gone.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How often what a command has left behind is reaped while it runs.
const REAP_EVERY: Duration = Duration::from_secs(1);
/// Buffers of output that are read once all is over: more than a pipe holds. What writes on was not started by the command.
const MOST_READS: usize = 32;
/// How long what is beside a command that cannot be killed is killed and reaped.
const LAST_ROUNDS: Duration = Duration::from_millis(100);

/// The entry point of a keeper: its standard input is the socket to orchestra.
pub fn main() -> ExitCode {
    survive_the_limit_on_file_sizes();
    // SAFETY: nothing else in this process uses the descriptor of standard input.
    let socket = unsafe { OwnedFd::from_raw_fd(0) };
    match keep(UnixStream::from(socket)) {
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

fn keep(socket: UnixStream) -> io::Result<()> {
    // It leaves the terminal, and so does the command: Ctrl-C is for orchestra alone.
    setsid()?;
    set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut link = KeeperLink::new(socket)?;
    match link.reader.read().map_err(io::Error::other)? {
        Some(ToKeeper::Order(order)) => carry_out(link, &order),
        Some(ToKeeper::Stop | ToKeeper::Kill) => Err(io::Error::other("the first message is no order")),
        None => Ok(()), // Orchestra is gone.
    }
}

fn carry_out(mut link: KeeperLink, order: &CommandOrder) -> io::Result<()> {
    let _claim = match claim(order) {
        Ok(lock) => lock,
        Err(error) => {
            link.tell(&KeeperReport::NotStarted(format!("`{}` cannot be locked: {error}", order.lock)));
            return Ok(());
        }
    };
    link.socket.set_nonblocking(true)?;
    // Orchestra may have been gone before the lock was held: then nothing begins.
    match link.reader.read() {
        Ok(None) => return Ok(()),
        Ok(Some(_)) => {
            link.tell(&KeeperReport::NotStarted("it was stopped before".to_owned()));
            return Ok(());
        }
        Err(_) => {} // Nothing is said yet.
    }
    let command = match start(order) {
        Ok(command) => command,
        Err(why) => {
            link.tell(&KeeperReport::NotStarted(why));
            return Ok(());
        }
    };
    link.tell(&KeeperReport::Started(command.group.as_raw_nonzero().get()));
    let mut kept = KeptCommand::new(command, link, Duration::from_millis(order.grace_ms));
    kept.quiet = order.quiet_ms.map(Duration::from_millis);
    let ended = kept.run(order.stop_signal)?;
    // Before it is told: so the next start knows of an end that orchestra did not live to note. Where there is no room for it, that is told alone.
    drop(ended.write(&order.end));
    kept.link.tell(&KeeperReport::Ended(ended));
    Ok(())
}

struct KeeperLink {
    socket: UnixStream,
    reader: FrameReader<UnixStream, ToKeeper>,
    writer: FrameWriter<UnixStream, KeeperReport>,
}

impl KeeperLink {
    fn new(socket: UnixStream) -> io::Result<Self> {
        let (reader, writer) = (FrameReader::new(socket.try_clone()?), FrameWriter::new(socket.try_clone()?));
        Ok(Self { socket, reader, writer })
    }

    /// Sends a report. An error means that orchestra is gone, which `KeptCommand::listen` learns from the end of the socket.
    fn tell(&mut self, report: &KeeperReport) {
        drop(self.socket.set_nonblocking(false));
        drop(self.writer.write(report));
        drop(self.socket.set_nonblocking(true));
    }
}

struct KeptCommand {
    command: RunningCommand,
    link: KeeperLink,
    /// Orchestra may still say something; else it is gone.
    listens: bool,
    has_output: bool,
    /// How long it may write nothing.
    quiet: Option<Duration>,
    /// When it wrote last, or was started.
    wrote: Instant,
    /// It was asked to end because it wrote nothing for so many milliseconds.
    was_quiet: Option<u64>,
    grace: Duration,
    /// When it was asked to end.
    asked: Option<Instant>,
    killed: Option<Instant>,
    /// How long it may live after that.
    kill_patience: Duration,
    /// When what it has left behind is reaped next.
    next_reap: Instant,
}

impl KeptCommand {
    fn new(command: RunningCommand, link: KeeperLink, grace: Duration) -> Self {
        Self {
            command,
            link,
            listens: true,
            has_output: true,
            quiet: None,
            wrote: Instant::now(),
            was_quiet: None,
            grace,
            asked: None,
            killed: None,
            kill_patience: KILL_PATIENCE,
            next_reap: Instant::now() + REAP_EVERY,
        }
    }

    /// Until nothing of the command is left, but what cannot be killed.
    fn run(&mut self, stop_signal: i32) -> io::Result<CommandEnd> {
        let exit = loop {
            if self.wait(stop_signal, None)? {
                break Some(reap_command(self.command.group)?);
            }
            self.ask_if_quiet(stop_signal);
            if Instant::now() >= self.next_reap {
                reap_all_but(self.command.group);
                self.next_reap = Instant::now() + REAP_EVERY;
            }
            if self.killed.is_some_and(|at| at.elapsed() >= self.kill_patience) {
                break None;
            }
        };
        let (code, signal, peak_memory, patience) = match exit {
            Some((status, peak_memory)) => (
                libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
                libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
                peak_memory,
                self.grace + self.kill_patience,
            ),
            None => {
                let report = KeeperReport::CannotBeKilled(self.command.group.as_raw_nonzero().get());
                self.link.tell(&report);
                (None, Some(libc::SIGKILL), 0, LAST_ROUNDS)
            }
        };
        let elapsed = self.command.started.elapsed();
        let was_stopped = self.asked.is_some();
        // Processes that the command has left: those that were asked to end have the rest of the grace; others are killed now.
        let mut left_behind = 0;
        let until = Instant::now() + patience;
        while reap() && Instant::now() < until {
            if self.killed.is_some() || self.asked.is_none() {
                left_behind = self.kill_all().max(left_behind);
            }
            self.wait(stop_signal, Some(LOOK_EVERY))?;
        }
        for _ in 0..MOST_READS {
            if !self.read() {
                break;
            }
        }
        let usage = self.command.limited.take().map(|group| group.usage()).unwrap_or_default();
        Ok(CommandEnd {
            code,
            signal,
            was_stopped,
            quiet_ms: self.was_quiet,
            milliseconds: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            ran_out_of_memory: usage.ran_out_of_memory
                || (!was_stopped && self.was_killed_by_the_kernel(code, signal)),
            peak_memory: usage.peak_memory.unwrap_or(peak_memory),
            last_words: self.command.log.finish(),
            left_behind: if was_stopped { 0 } else { left_behind },
            log_error: self.command.log.error.take(),
            metrics: self.command.log.metrics.finish(),
        })
    }

    /// Waits for output, for orchestra, for the end of the command, of its grace, of its silence or of what a kill may take, and until something is to
    /// be reaped, at most so long. Whether the command has ended; that is not looked at with `at_most`.
    fn wait(&mut self, stop_signal: i32, at_most: Option<Duration>) -> io::Result<bool> {
        let left = |since: Instant, time: Duration| (since + time).saturating_duration_since(Instant::now());
        let ends = match (self.asked, self.killed) {
            (_, Some(killed)) => Some(left(killed, self.kill_patience)).filter(|_| at_most.is_none()),
            (Some(asked), None) => Some(left(asked, self.grace)),
            (None, None) => self.quiet.map(|quiet| left(self.wrote, quiet)).filter(|_| at_most.is_none()),
        };
        let metrics_due = self.command.log.metrics.wait().filter(|_| self.listens);
        let at_most_or_reap =
            at_most.unwrap_or_else(|| self.next_reap.saturating_duration_since(Instant::now()));
        let timeout = ends.into_iter().chain(metrics_due).fold(at_most_or_reap, Duration::min);
        let timeout = Timespec::try_from(timeout).unwrap_or_default();
        let watched = [
            (at_most.is_none(), self.command.process.as_fd()),
            (self.has_output, self.command.output.as_fd()),
            (self.listens, self.link.socket.as_fd()),
        ];
        let mut polled: Vec<PollFd<'_>> = watched
            .iter()
            .filter(|(is_watched, _)| *is_watched)
            .map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        match poll(&mut polled, Some(&timeout)) {
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
            self.listen(stop_signal);
        }
        if self.asked.is_some_and(|at| at.elapsed() >= self.grace) {
            self.kill();
        }
        Ok(has_ended)
    }

    /// Hears all that orchestra has said.
    fn listen(&mut self, stop_signal: i32) {
        while self.listens {
            match self.link.reader.read() {
                Ok(Some(ToKeeper::Kill)) => self.kill(),
                Ok(Some(ToKeeper::Stop | ToKeeper::Order(_))) => self.ask(stop_signal),
                Err(CodecError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Orchestra is gone.
                Ok(None) | Err(_) => {
                    self.listens = false;
                    self.ask(stop_signal);
                }
            }
        }
    }

    /// Reads what is there, at most a buffer of it; whether there was anything.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 64 << 10];
        match self.command.output.read(&mut buffer) {
            Ok(0) => self.has_output = false,
            Ok(n) => {
                self.wrote = Instant::now();
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
        if !self.listens {
            return;
        }
        let Some(read) = metrics.due() else { return };
        let mut polled = [PollFd::from_borrowed_fd(self.link.socket.as_fd(), PollFlags::OUT)];
        match poll(&mut polled, Some(&Timespec::default())) {
            Ok(1..) => self.link.tell(&KeeperReport::Metrics(read)),
            _ => metrics.was_not_told(),
        }
    }

    fn ask_if_quiet(&mut self, stop_signal: i32) {
        let quiet = self.quiet.filter(|quiet| self.asked.is_none() && self.wrote.elapsed() >= *quiet);
        if let Some(quiet) = quiet {
            self.was_quiet = Some(u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX));
            self.ask(stop_signal);
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
        if self.killed.is_none() {
            self.killed = Some(Instant::now());
            self.kill_all();
        }
    }

    /// Whether a SIGKILL ended the command, or by its code something that it has started, and the kernel has meanwhile killed some process for lack of memory.
    /// It does not say which one.
    fn was_killed_by_the_kernel(&self, code: Option<i32>, signal: Option<i32>) -> bool {
        let was_killed = signal == Some(libc::SIGKILL) || code == Some(128 + libc::SIGKILL);
        let before = self.command.kernel_kills;
        was_killed && kernel_kills().zip(before).is_some_and(|(now, before)| now > before)
    }

    fn kill_all(&self) -> u32 {
        if let Some(group) = &self.command.limited {
            group.kill();
        }
        kill_all(self.command.group)
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

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;
    use crate::keeper::log::CommandLog;
    use crate::keeper::metrics::MetricReader;

    /// Kills and reaps all children of this process, so no other test of this crate may have some.
    #[test]
    #[expect(clippy::zombie_processes, reason = "it is reaped as any child of a keeper")]
    fn a_command_that_cannot_be_killed_is_given_up_by_name_and_all_else_ends() {
        let child = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let group = Pid::from_child(&child);
        let file = tempfile::NamedTempFile::new().unwrap();
        let reader = MetricReader::new(&[], None).unwrap();
        let command = RunningCommand {
            group,
            limited: None,
            // What the kill does not reach, as if it hung in the kernel: this process.
            process: pidfd_open(getpid(), PidfdFlags::empty()).unwrap(),
            output: std::fs::File::open("/dev/null").unwrap(),
            log: CommandLog::create(file.path().to_str().unwrap(), reader).unwrap(),
            started: Instant::now(),
            kernel_kills: None,
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        FrameWriter::new(ours.try_clone().unwrap()).write(&ToKeeper::Kill).unwrap();
        let mut kept = KeptCommand::new(command, KeeperLink::new(theirs).unwrap(), Duration::from_secs(3600));
        kept.kill_patience = Duration::ZERO;
        let ended = kept.run(libc::SIGTERM).unwrap();
        assert_eq!((ended.code, ended.signal, ended.was_stopped), (None, Some(9), true));
        let told: Option<KeeperReport> = FrameReader::new(ours).read().unwrap();
        assert_eq!(told, Some(KeeperReport::CannotBeKilled(group.as_raw_nonzero().get())));
        // What was killed may take a moment to be gone.
        while reap() {
            std::thread::yield_now();
        }
    }
}
