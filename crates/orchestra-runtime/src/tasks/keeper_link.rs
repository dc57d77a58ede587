//! The other end of a keeper's socket: starts the process, sends the order, reads the reports. It decides nothing.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::{Command as StdCommand, Stdio};

use orchestra_keeper::{KEEPER, MAX_MESSAGE, Order, Report, decode, encode};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use crate::fleet::launcher::ProcessLauncher;

/// A keeper that has its order. Dropping it makes the keeper end its command, as it would if this process died.
pub struct Keeper {
    socket: UnixStream,
    process: Child,
    /// Of the command, once it runs.
    group: Option<Pid>,
    unread: Vec<u8>,
}

impl Keeper {
    /// Starts a keeper. Must be called within a tokio runtime.
    pub async fn start(launcher: &ProcessLauncher, order: &Order) -> io::Result<Self> {
        let order = encode(order)?;
        let (ours, theirs) = StdUnixStream::pair()?;
        let mut command = StdCommand::new(&launcher.program);
        command
            .args(&launcher.args)
            .arg(KEEPER)
            .envs(launcher.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = Command::from(command).spawn()?;
        ours.set_nonblocking(true)?;
        let mut socket = UnixStream::from_std(ours)?;
        drop(socket.write_all(&order).await); // That it is gone is told by `report`.
        Ok(Self { socket, process, group: None, unread: Vec::new() })
    }

    /// The next report; `None` when the keeper is gone. May be dropped and called again.
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
                    if let Report::Started(pid) = report {
                        self.group = Pid::from_raw(pid);
                    }
                    return Ok(Some(report));
                }
            }
            if self.socket.read_buf(&mut self.unread).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Tells the keeper to end its command.
    pub async fn tell(&mut self, byte: u8) {
        drop(self.socket.write_all(&[byte]).await); // That it is gone is told by `report`.
    }

    /// The end of the keeper. If it was killed, the group of its command is ended here.
    pub async fn end(mut self, has_reported: bool) {
        drop(self.process.wait().await); // An error means that it is gone.
        if !has_reported && let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL); // As above.
        }
    }
}
