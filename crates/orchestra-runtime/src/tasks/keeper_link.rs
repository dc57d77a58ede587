//! The other end of a keeper's socket: starts the process, sends the order, reads the reports. It decides nothing about tasks.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::process::{Command as StdCommand, Stdio};
use std::time::Duration;

use orchestra_keeper::{KEEPER, MAX_MESSAGE, Report, decode, is_stopped, kill_control_group, kill_tree};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout_at};

use super::credentials::credentials;
use crate::child::spawn::ProcessLauncher;

/// How often it is looked whether a keeper was stopped (`kill -STOP`), and the looks in a row after which it counts as lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const MOST_LOOKS: u32 = 3;

/// A keeper. Dropping it makes the keeper end its command.
pub struct Keeper {
    socket: UnixStream,
    pid: Pid,
    process: Child,
    /// Of its command, once that runs.
    group: Option<Pid>,
    /// The folder of the control group of its command, where that has one.
    control_group: Option<PathBuf>,
    unread: Vec<u8>,
    next_look: Instant,
    looks_stopped: u32,
}

impl Keeper {
    /// Starts a keeper, which waits for its order. Must be called within a tokio runtime.
    pub fn start(launcher: &ProcessLauncher, control_group: Option<PathBuf>) -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        let mut command = StdCommand::new(&launcher.program);
        command
            .args(&launcher.args)
            .arg(KEEPER)
            .envs(launcher.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // Those that its command may have come with the order.
        for name in credentials() {
            command.env_remove(name);
        }
        let process = Command::from(command).spawn()?;
        Self::of(process, ours, control_group)
    }

    fn of(process: Child, socket: StdUnixStream, control_group: Option<PathBuf>) -> io::Result<Self> {
        let pid = process.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let pid = pid.ok_or_else(|| io::Error::other("a process without a number"))?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: UnixStream::from_std(socket)?,
            pid,
            process,
            group: None,
            control_group,
            unread: Vec::new(),
            next_look: Instant::now() + LOOK_EVERY,
            looks_stopped: 0,
        })
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Gives it its order. That it is gone is told by `report`.
    pub async fn order(&mut self, order: &[u8]) {
        drop(self.socket.write_all(order).await);
    }

    /// The next report; `None` when the keeper is gone, or was stopped: then it is killed with all that it has. May be dropped and called again.
    pub async fn report(&mut self) -> io::Result<Option<Report>> {
        loop {
            if let Some(length) = self.unread.first_chunk::<4>().map(|length| u32::from_le_bytes(*length)) {
                if length > MAX_MESSAGE {
                    return Err(io::Error::other("a keeper has sent what is no report"));
                }
                let end = 4 + length as usize;
                if self.unread.len() >= end {
                    let report = decode(&self.unread[4..end])?;
                    self.unread.drain(..end);
                    if let Report::Started(group) = report {
                        self.group = Pid::from_raw(group);
                    }
                    return Ok(Some(report));
                }
            }
            match timeout_at(self.next_look, self.socket.read_buf(&mut self.unread)).await {
                Ok(read) => {
                    if read? == 0 {
                        return Ok(None);
                    }
                }
                Err(_) if self.was_stopped() => {
                    tracing::error!(pid = %self.pid, "the keeper of a command was stopped by a signal: it is killed with the command");
                    let pid = self.pid;
                    tokio::task::spawn_blocking(move || kill_tree(pid)).await.map_err(io::Error::other)?;
                    return Ok(None);
                }
                Err(_) => {}
            }
        }
    }

    /// Whether it has been stopped for some time: what goes on again at once is none.
    fn was_stopped(&mut self) -> bool {
        self.next_look = Instant::now() + LOOK_EVERY;
        self.looks_stopped = if is_stopped(self.pid) { self.looks_stopped + 1 } else { 0 };
        self.looks_stopped >= MOST_LOOKS
    }

    /// Tells the keeper to end its command.
    pub async fn tell(&mut self, byte: u8) {
        drop(self.socket.write_all(&[byte]).await); // That it is gone is told by `report`.
    }

    /// The end of the keeper. If it was killed, what is in the groups of its command is ended here.
    pub async fn end(mut self, has_reported: bool) {
        if !has_reported {
            self.tell(orchestra_keeper::STOP_SIGNAL).await;
        }
        drop(self.socket.shutdown().await); // Errors mean that it is gone.
        drop(self.process.wait().await);
        if has_reported {
            return;
        }
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if let Some(folder) = &self.control_group {
            kill_control_group(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_in_the_control_group_of_a_command_ends_with_a_keeper_that_is_gone() {
        for (has_reported, killed) in [(true, ""), (false, "1")] {
            let fake = tempfile::tempdir().unwrap();
            std::fs::write(fake.path().join("cgroup.kill"), "").unwrap();
            let (ours, theirs) = StdUnixStream::pair().unwrap();
            let process = Command::new("true").spawn().unwrap();
            let keeper = Keeper::of(process, ours, Some(fake.path().to_owned())).unwrap();
            drop(theirs);
            keeper.end(has_reported).await;
            assert_eq!(std::fs::read_to_string(fake.path().join("cgroup.kill")).unwrap(), killed);
        }
    }
}
