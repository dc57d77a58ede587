//! A process held by a descriptor, so that a signal reaches it and no other: its id could by now be that of another process. Whom to strike, and when,
//! others decide.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What happens to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSTOP: it lives, and does nothing more.
    Stop,
    /// SIGSEGV from outside.
    Segfault,
}

/// A process. It need not be a child of this one.
#[derive(Debug)]
pub struct HeldProcess(OwnedFd);

impl HeldProcess {
    /// The process that has this id now; `None`: there is none, or the kernel cannot hold it.
    pub fn open(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Self)
    }

    /// Does `fault` to it. `false`: it is gone, or belongs to another user.
    pub fn strike(&self, fault: Fault) -> bool {
        let signal = match fault {
            Fault::Kill => Signal::KILL,
            Fault::Stop => Signal::STOP,
            Fault::Segfault => Signal::SEGV,
        };
        pidfd_send_signal(&self.0, signal).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_strike_reaches_the_process_that_is_held_and_none_once_that_is_gone() {
        for (fault, signal) in [(Fault::Kill, Signal::KILL), (Fault::Segfault, Signal::SEGV)] {
            // Ends by itself no earlier than its input.
            let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
            let held = HeldProcess::open(child.id()).unwrap();
            assert!(held.strike(Fault::Stop) && held.strike(fault));
            // What is stopped ends of SIGKILL alone.
            assert!(fault == Fault::Kill || held.strike(Fault::Kill));
            let ended = child.wait().unwrap().signal();
            let possible = [signal.as_raw(), Signal::KILL.as_raw()];
            assert!(ended.is_some_and(|ended| possible.contains(&ended)), "{fault:?}: {ended:?}");
            assert!(!held.strike(Fault::Kill), "it is gone");
        }
    }

    #[test]
    fn no_process_has_an_id_that_is_none() {
        assert!(HeldProcess::open(0).is_none() && HeldProcess::open(u32::MAX).is_none());
    }
}
