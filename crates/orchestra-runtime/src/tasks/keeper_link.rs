//! A keeper as orchestra has it: starts the process, sends the order, reads the reports. It decides nothing about tasks.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command as StdCommand, Stdio};

use orchestra_core::WorkerExit;
use orchestra_worker::keeper::{KEEPER, KeeperReport, ToKeeper, kill_control_group, kill_tree};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;

use super::credentials::credentials;
use crate::actor_threads::join_blocking;
use crate::child::spawn::{DropAction, Launched, ProcessLauncher};
use crate::child::{Child, FrameSender};

/// A keeper. Dropping it makes the keeper end its command.
pub struct Keeper {
    child: Child<KeeperReport>,
    sender: FrameSender,
    pub pid: Pid,
    /// Of its command, once that runs.
    group: Option<Pid>,
    /// The folder of the control group of its command, where that has one.
    control_group: Option<PathBuf>,
}

impl Keeper {
    /// Starts a keeper, which waits for its order. Must be called within a tokio runtime.
    pub fn start(launcher: &ProcessLauncher, control_group: Option<PathBuf>) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
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
        Self::of(Launched::of(ours, process, DropAction::Leave)?, control_group)
    }

    fn of(launched: Launched, control_group: Option<PathBuf>) -> io::Result<Self> {
        let pid = launched.process.pid().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let pid = pid.ok_or_else(|| io::Error::other("a process without a number"))?;
        let (child, sender) = Child::new(launched, |_| ());
        Ok(Self { child, sender, pid, group: None, control_group })
    }

    /// The next report; `None` when the keeper is gone, or was stopped: then it is killed with all that it has. May be dropped and called again.
    pub async fn report(&mut self) -> Option<KeeperReport> {
        match self.child.next().await {
            Ok(report) => {
                if let Some(KeeperReport::Started(group)) = report {
                    self.group = Pid::from_raw(group);
                }
                report
            }
            Err(WorkerExit::Silent) => {
                let pid = self.pid;
                tracing::error!(%pid, "the keeper of a command was stopped by a signal: it is killed with the command");
                drop(join_blocking(move || kill_tree(pid)).await); // It does not panic.
                None
            }
            Err(error) => {
                tracing::error!(pid = %self.pid, %error, "what the keeper of a command says cannot be read");
                None
            }
        }
    }

    /// Tells the keeper something. That it is gone is told by `report`.
    pub async fn tell(&mut self, what: &ToKeeper) -> io::Result<()> {
        self.sender.send(what).await.map_err(io::Error::other)
    }

    /// The end of the keeper. If it was killed, what is in the groups of its command is ended here.
    pub async fn end(mut self, has_reported: bool) {
        // Or it ends its command first.
        self.sender.hang_up().await;
        self.child.wait().await;
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
            let (ours, theirs) = UnixStream::pair().unwrap();
            let process = Command::new("true").spawn().unwrap();
            let launched = Launched::of(ours, process, DropAction::Leave).unwrap();
            let mut keeper = Keeper::of(launched, Some(fake.path().to_owned())).unwrap();
            keeper.tell(&ToKeeper::Stop).await.unwrap();
            drop(theirs);
            // A process that dies with a frame unread resets its socket: that is its end, and no nonsense.
            assert!(matches!(keeper.child.next().await, Ok(None)));
            keeper.end(has_reported).await;
            assert_eq!(std::fs::read_to_string(fake.path().join("cgroup.kill")).unwrap(), killed);
        }
    }
}
