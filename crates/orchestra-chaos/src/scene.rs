//! The workers of a run as the striker sees them: what the run tells of them, and a descriptor of each process. The only place that sends
//! signals, and only to processes that it was told of.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use orchestra_core::WorkerId;
use orchestra_runtime::{EventHook, WorkerEvent};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::random::Random;
use crate::tracker::{Fault, Tracker};

/// See the module. Shared by the run, which tells, and the striker, which strikes.
#[derive(Debug)]
pub struct Scene {
    began: Instant,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    tracker: Tracker,
    /// Of live processes. A descriptor means the same process for ever; an id could by now be that of a stranger.
    processes: HashMap<WorkerId, OwnedFd>,
}

impl Scene {
    /// Nobody is there yet. Times count from now.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), seen: Mutex::default() })
    }

    /// What the run shall tell.
    pub fn hook(self: &Arc<Self>) -> EventHook {
        let scene = Arc::clone(self);
        Arc::new(move |event| scene.saw(event))
    }

    /// Does `fault` to one of those who may be struck; whether there was one.
    pub fn strike(&self, fault: Fault, spares: bool, random: &mut Random) -> bool {
        let mut seen = self.seen();
        let mut targets = seen.tracker.targets(spares);
        targets.retain(|worker| seen.processes.contains_key(worker));
        let Some(victim) = random.pick(&targets) else { return false };
        let Some(process) = seen.processes.get(&victim) else { return false };
        let signal = match fault {
            Fault::Kill => Signal::KILL,
            Fault::Stop => Signal::STOP,
        };
        let at = self.began.elapsed();
        // An error means that it has just died by itself.
        let hit = pidfd_send_signal(process, signal).is_ok();
        if hit {
            seen.tracker.struck(victim, fault, at);
        }
        hit
    }

    /// All that was seen. To be called when the run is over.
    pub fn end(&self) -> Tracker {
        let mut seen = self.seen();
        seen.processes.clear();
        std::mem::take(&mut seen.tracker)
    }

    fn saw(&self, event: &WorkerEvent) {
        let now = self.began.elapsed();
        let mut seen = self.seen();
        match event {
            WorkerEvent::Started { worker, pid: Some(pid), .. } => {
                // It is told before anybody waits for the process, so the id still is its own. Where there is no descriptor, it is no target.
                let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
                if let Some(process) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) {
                    seen.processes.insert(*worker, process);
                }
            }
            WorkerEvent::Ended { worker, .. } => drop(seen.processes.remove(worker)),
            _ => {}
        }
        seen.tracker.saw(event, now);
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
