//! Strikes workers of a run in this process, as its events tell of them, and its loaders, at uneven intervals. It starts and replaces none.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use orchestra_core::{WorkerId, locked};
use orchestra_machine::processes::{child_ids, process};
use orchestra_runtime::{EventHook, WorkerEvent};
pub use orchestra_worker::held_process::Fault;
use orchestra_worker::held_process::HeldProcess;
use orchestra_worker::process::is_loader_with;
use serde::{Serialize, Serializer};

use crate::tracker::Tracker;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Strikes {
    /// Mean time between two SIGKILLs; `None`: never.
    #[serde(serialize_with = "seconds")]
    pub kill_every: Option<Duration>,
    /// Mean time between two SIGSTOPs; `None`: never.
    #[serde(serialize_with = "seconds")]
    pub stop_every: Option<Duration>,
    /// The same seed chooses the same moments, and the same workers among the same ones.
    pub seed: u64,
}

fn seconds<S: Serializer>(every: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    every.map(|every| every.as_secs_f64()).serialize(serializer)
}

/// The thread that strikes. Dropping it ends it, which takes no longer than a strike.
#[derive(Debug)]
pub(crate) struct Striker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Struck>>,
}

/// What its thread did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Struck {
    /// Strikes that found no worker.
    pub missed: u64,
    pub loaders: u64,
}

/// Workers of a run as its events tell of them.
#[derive(Debug)]
pub(crate) struct Workers {
    began: Instant,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    tracker: Tracker,
    live: HashMap<WorkerId, HeldProcess>,
}

/// Does `fault` to a loader of this process that was there at the strike before, so that each has time to start; whether there was one. A run tells
/// nothing of loaders, so its children are looked at.
fn strike_loader(fault: Fault, known: &mut HashSet<u32>, random: &mut Rng) -> bool {
    let is_loader = |pid: &u32| {
        let process = process(*pid).filter(|process| process.parent == std::process::id());
        process.is_some_and(|process| is_loader_with(&process.arguments))
    };
    // Held before it is looked at: the number of one that is gone could be that of another process.
    let held =
        child_ids(std::process::id()).into_iter().filter_map(|pid| Some((pid, HeldProcess::open(pid)?)));
    let loaders: Vec<_> = held.filter(|(pid, _)| is_loader(pid)).collect();
    let before = std::mem::replace(known, loaders.iter().map(|(pid, _)| *pid).collect());
    let loaders = loaders.iter().filter(|(pid, _)| before.contains(pid));
    let loaders: Vec<&HeldProcess> = loaders.map(|(_, process)| process).collect();
    random.choice(&loaders).is_some_and(|process| process.strike(fault))
}

impl Striker {
    /// Strikes workers of a run, at uneven intervals for each kind of fault, and with each of them a loader.
    pub fn start(workers: Arc<Workers>, strikes: Strikes) -> std::io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let mut random = Rng::with_seed(strikes.seed);
        let mut clocks = Vec::new();
        for (fault, every) in [(Fault::Kill, strikes.kill_every), (Fault::Stop, strikes.stop_every)] {
            clocks.extend(every.map(|every| (Instant::now() + uneven(every, &mut random), fault, every)));
        }
        let work = move || {
            let (mut struck, mut loaders) = (Struck::default(), HashSet::new());
            while let Some((due, fault, every)) = clocks.iter_mut().min_by_key(|(due, ..)| *due) {
                let wait = due.saturating_duration_since(Instant::now());
                if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                struck.missed += u64::from(!workers.strike(*fault, &mut random));
                struck.loaders += u64::from(strike_loader(*fault, &mut loaders, &mut random));
                // What was missed is not made up for: after a pause of this machine there is one strike, not many.
                *due = (*due).max(Instant::now()) + uneven(*every, &mut random);
            }
            struck
        };
        let thread = std::thread::Builder::new().name("striker".into()).spawn(work)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    /// Ends it.
    pub fn stop(mut self) -> Struck {
        self.end()
    }

    fn end(&mut self) -> Struck {
        drop(self.stop.take());
        // The thread does not panic; if it did, there would be nothing to tell.
        self.thread.take().and_then(|t| t.join().ok()).unwrap_or_default()
    }
}

impl Drop for Striker {
    fn drop(&mut self) {
        self.end();
    }
}

impl Workers {
    /// None are there yet. Times count from now.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), seen: Mutex::default() })
    }

    /// What the run has to tell.
    pub fn hook(self: &Arc<Self>) -> EventHook {
        let workers = Arc::clone(self);
        Arc::new(move |event| workers.saw(event))
    }

    /// All that was seen. To be called when the run is over.
    pub fn end(&self) -> Tracker {
        std::mem::take(&mut *locked(&self.seen)).tracker
    }

    /// Does `fault` to one of those that may be struck; whether there was one.
    fn strike(&self, fault: Fault, random: &mut Rng) -> bool {
        let mut seen = locked(&self.seen);
        let mut targets = seen.tracker.targets();
        targets.retain(|worker| seen.live.contains_key(worker));
        let Some(&victim) = random.choice(&targets) else { return false };
        let at = self.began.elapsed();
        // Not where it has just died by itself.
        let was_hit = seen.live[&victim].strike(fault);
        if was_hit {
            seen.tracker.struck(victim, fault, at);
        }
        was_hit
    }

    fn saw(&self, event: &WorkerEvent) {
        let now = self.began.elapsed();
        let mut seen = locked(&self.seen);
        match event {
            WorkerEvent::Started { worker, pid: Some(pid), .. } => {
                // The event comes before the process can be waited for, so the id still is its own. Without a descriptor it is no target.
                seen.live.extend(HeldProcess::open(*pid).map(|process| (*worker, process)));
            }
            WorkerEvent::Ended { worker, .. } => drop(seen.live.remove(worker)),
            _ => {}
        }
        seen.tracker.saw(event, now);
    }
}

/// Half to one and a half times as long, so that strikes keep step with nothing.
fn uneven(every: Duration, random: &mut Rng) -> Duration {
    every.mul_f64(0.5 + random.f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_differ_and_keep_their_mean() {
        let mut random = Rng::with_seed(3);
        let all: Vec<Duration> = (0..4_000).map(|_| uneven(Duration::from_secs(1), &mut random)).collect();
        let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!(*least >= Duration::from_millis(500) && *most <= Duration::from_millis(1_500));
        let mean = all.iter().sum::<Duration>().as_secs_f64() / all.len() as f64;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
    }

    #[test]
    fn a_striker_without_anything_to_do_ends_by_itself() {
        let nothing = Strikes { kill_every: None, stop_every: None, seed: 0 };
        assert_eq!(Striker::start(Workers::new(), nothing).unwrap().stop().missed, 0);
    }
}
