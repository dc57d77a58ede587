//! Starts the keepers of a run, one for each command, and waits where the system has no room for another process.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use orchestra_worker::keeper::{CommandOrder, ToKeeper};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::child::spawn::ProcessLauncher;
use crate::tasks::keeper_link::Keeper;

/// Files that this process may open for its keepers: two for each.
const ENOUGH_FILES: u64 = 1 << 16;
/// How long to wait for what the system lacks, unless another command ends before.
const LACK_PAUSE: Duration = Duration::from_secs(1);

pub struct Keepers {
    launcher: ProcessLauncher,
    ended: Notify,
    /// Files that a command may have open, where this process may have more.
    pub open_files: Option<u64>,
}

impl Keepers {
    pub fn new(launcher: ProcessLauncher) -> Self {
        Self { launcher, ended: Notify::new(), open_files: raise_open_files() }
    }

    /// A keeper that has this order. Where the system has no room for another process or file, it waits until it has.
    pub async fn start(&self, order: &CommandOrder) -> io::Result<Keeper> {
        let control_group = order.group.as_ref().map(|group| PathBuf::from(&group.folder));
        let order = ToKeeper::Order(Box::new(order.clone()));
        let mut was_said = false;
        loop {
            match Keeper::start(&self.launcher, control_group.clone()) {
                Ok(mut keeper) => {
                    keeper.tell(&order).await?;
                    return Ok(keeper);
                }
                Err(error) if is_lack(&error) => {
                    if !std::mem::replace(&mut was_said, true) {
                        tracing::warn!(%error, "no process can be started for a command now: it waits");
                    }
                    drop(timeout(LACK_PAUSE, self.ended.notified()).await);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A command has ended, and its keeper.
    pub fn has_ended(&self) {
        self.ended.notify_one();
    }
}

/// What the end of another command may change.
fn is_lack(error: &io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM];
    error.raw_os_error().is_some_and(|code| lacks.iter().any(|errno| errno.raw_os_error() == code))
}

/// Raises the bound on open files of this process, as far as it may; the bound that was, which its commands get: some programs cannot use numbers
/// of files above 1024.
fn raise_open_files() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let before = current.filter(|before| *before < ENOUGH_FILES)?;
    let raised = Rlimit { current: Some(maximum.unwrap_or(ENOUGH_FILES).min(ENOUGH_FILES)), maximum };
    setrlimit(Resource::Nofile, raised).ok().map(|()| before)
}
