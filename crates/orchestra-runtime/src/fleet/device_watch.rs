//! What the devices of a run and its worker processes take, and whether a device is still there. It steers
//! nothing: a device that is lost is told to its manager, and snapshots and metrics read the figures. A driver that gives no answer is
//! noted once and never fails a run.
//!
//! Each device has a lock of its own, which is never held while the driver or the kernel is asked, while a caller is told or while
//! anything is logged. So a device whose driver hangs holds up only callers that ask about it.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use orchestra_core::{DeviceId, DeviceKind, DeviceSpec, locked};
use orchestra_machine::processes::{process, process_memory};
use orchestra_machine::{Gpu, GpuProbe, ProbeError};
use orchestra_plan::Plan;

use crate::context::RunContext;
use crate::fleet::device_use::{DeviceUse, UseTally, WorkerUse};
use crate::fleet::live_workers::LiveWorker;

/// A driver that does not know a GPU any more has to say so this often in a row; one that calls it lost is believed at once.
const MISSING_IN_A_ROW: u32 = 3;
/// A look that takes longer is said to hang. The driver answers within milliseconds, on a busy machine within a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a run needs to know about devices beyond its plan.
#[derive(Clone)]
pub struct DeviceOptions {
    /// How GPUs are asked; `None`: nothing is known of them but what workers say.
    pub probe: Option<Arc<dyn GpuProbe>>,
    pub look_every: Duration,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { probe: None, look_every: Duration::from_secs(1) }
    }
}

impl fmt::Debug for DeviceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceOptions").field("look_every", &self.look_every).finish_non_exhaustive()
    }
}

type OnLost = Box<dyn Fn(String) + Send>;
type OnSeen = Box<dyn FnOnce(Option<Gpu>) + Send>;

pub struct DeviceWatch {
    /// In the order of the plan.
    devices: Vec<WatchedDevice>,
}

struct WatchedDevice {
    name: String,
    uuid: Option<String>,
    looker: OnceLock<Thread>,
    watched: Mutex<WatchState>,
}

#[derive(Default)]
struct WatchState {
    /// The driver has known it: when the run was planned, or at a look.
    is_known: bool,
    latest: Option<Gpu>,
    tally: UseTally,
    lost: Option<String>,
    when_lost: Option<OnLost>,
    missing: u32,
    has_complained: bool,
    /// Callers that wait for a look that begins from now on.
    asked: Vec<OnSeen>,
    /// When the look began that goes on now.
    looks_since: Option<Duration>,
    /// It has taken longer than [`PATIENCE`], and that was said.
    is_silent: bool,
}

impl DeviceWatch {
    pub fn new(plan: &Plan) -> Self {
        // Also a GPU that falls off the bus before the first look is a GPU that was lost.
        let devices =
            plan.devices.iter().map(|device| WatchedDevice::new(&device.spec, device.memory.is_some()));
        Self { devices: devices.collect() }
    }

    /// A GPU as it was at the last look; `None` also while it gives no answer.
    pub fn latest(&self, device: DeviceId) -> Option<Gpu> {
        let watched = locked(&self.get(device)?.watched);
        watched.latest.clone().filter(|_| !watched.is_silent)
    }

    /// What a device and its workers took up to now.
    pub fn usage(&self, device: DeviceId) -> DeviceUse {
        self.get(device).map(|d| locked(&d.watched).tally.usage()).unwrap_or_default()
    }

    /// The worker processes as they were at the last look.
    pub fn workers(&self) -> Vec<WorkerUse> {
        self.devices.iter().flat_map(|d| locked(&d.watched).tally.workers().to_vec()).collect()
    }

    pub fn lost(&self, device: DeviceId) -> Option<String> {
        locked(&self.get(device)?.watched).lost.clone()
    }

    /// Calls `tell` with the reason once the device is lost; at once if it is already.
    pub fn when_lost(&self, device: DeviceId, tell: impl Fn(String) + Send + 'static) {
        let Some(device) = self.get(device) else { return };
        let mut watched = locked(&device.watched);
        match watched.lost.clone() {
            Some(why) => {
                drop(watched);
                tell(why);
            }
            None => watched.when_lost = Some(Box::new(tell)),
        }
    }

    /// Has the device looked at now, and calls `tell` with what was seen: a GPU as it was after this call, or `None` if it could not be
    /// seen. Where the driver hangs, that call may come late or never.
    pub fn ask(&self, device: DeviceId, tell: impl FnOnce(Option<Gpu>) + Send + 'static) {
        let Some(device) = self.get(device) else { return tell(None) };
        locked(&device.watched).asked.push(Box::new(tell));
        if let Some(looker) = device.looker.get() {
            looker.unpark();
        }
    }

    /// Looks at a device once. `is_settled`: workers of it serve, and none is loading. `now` is on the clock of the run.
    pub fn look(
        &self,
        id: DeviceId,
        probe: Option<&dyn GpuProbe>,
        live: &[LiveWorker],
        is_settled: impl Fn() -> bool,
        now: Duration,
    ) {
        let Some(device) = self.get(id) else { return };
        let asked = {
            let mut watched = locked(&device.watched);
            watched.looks_since = Some(now);
            std::mem::take(&mut watched.asked)
        };
        let was_settled = is_settled();
        let answer = device.uuid.as_deref().zip(probe).map(|(uuid, probe)| probe.gpu_by_uuid(uuid));
        let workers = live.iter().filter(|w| w.device == id).filter_map(worker_use).collect();
        let seen = answer.as_ref().and_then(|answer| answer.as_ref().ok()).cloned();
        // What was seen belongs to workers that were loaded before, and to none that came meanwhile.
        let settled = was_settled && is_settled();

        let mut guard = locked(&device.watched);
        let watched = &mut *guard;
        watched.looks_since = None;
        let was_silent = std::mem::take(&mut watched.is_silent);
        let (complaint, lost) = watched.hear(device.uuid.as_deref().unwrap_or_default(), answer);
        let when_lost = lost.as_ref().and_then(|_| watched.when_lost.take());
        // An id may mean another process, whose memory is not that of a worker.
        let counted = watched.latest.as_ref().filter(|_| probe.is_some_and(GpuProbe::ids_are_ours));
        let of_gpu = counted.map(|gpu| gpu.processes.as_slice()).unwrap_or_default();
        watched.tally.processes(workers, of_gpu, settled);
        drop(guard);

        let name = &device.name;
        if was_silent {
            tracing::info!(device = %name, "the driver answers about the device again");
        }
        if let Some(error) = complaint {
            tracing::warn!(device = %name, %error, "the device cannot be looked at; the run goes on");
        }
        if let Some(why) = lost {
            tracing::error!(device = %name, %why, "device lost");
            if let Some(tell) = when_lost {
                tell(why);
            }
        }
        asked.into_iter().for_each(|tell| tell(seen.clone()));
    }

    /// Says of each device, once, that a look at it does not come to an end.
    pub fn note_silence(&self, now: Duration) {
        for device in &self.devices {
            let mut watched = locked(&device.watched);
            let hangs = watched.looks_since.is_some_and(|since| now.saturating_sub(since) > PATIENCE);
            let is_new = hangs && !std::mem::replace(&mut watched.is_silent, hangs);
            drop(watched);
            if is_new {
                tracing::warn!(
                    device = %device.name, seconds = PATIENCE.as_secs(),
                    "the driver does not answer about the device: nothing is known of it until it does; the run goes on"
                );
            }
        }
    }

    fn get(&self, device: DeviceId) -> Option<&WatchedDevice> {
        self.devices.get(device.index())
    }
}

impl WatchedDevice {
    /// `is_known`: the driver named it when the run was planned.
    fn new(spec: &DeviceSpec, is_known: bool) -> Self {
        let uuid = match &spec.kind {
            DeviceKind::Cuda { uuid } => Some(uuid.clone()),
            DeviceKind::Cpu => None,
        };
        let watched = Mutex::new(WatchState { is_known, ..WatchState::default() });
        Self { name: spec.name.clone(), uuid, looker: OnceLock::new(), watched }
    }
}

impl WatchState {
    /// What the driver says. Gives what is to be complained of, and why the device is lost, if it is from now on.
    fn hear(
        &mut self,
        uuid: &str,
        answer: Option<Result<Gpu, ProbeError>>,
    ) -> (Option<ProbeError>, Option<String>) {
        let (complaint, lost) = match answer.filter(|_| self.lost.is_none()) {
            None => (None, None),
            Some(Ok(gpu)) => {
                self.missing = 0;
                self.is_known = true;
                self.tally.gpu(&gpu);
                self.latest = Some(gpu);
                (None, None)
            }
            Some(Err(error @ ProbeError::Lost(_))) => (None, Some(error)),
            Some(Err(error @ ProbeError::Unknown(_))) if self.is_known => {
                self.missing += 1;
                if self.missing < MISSING_IN_A_ROW {
                    return (None, None);
                }
                (Some(error), Some(ProbeError::Lost(uuid.to_owned())))
            }
            Some(Err(error)) => (Some(error), None),
        };
        if let Some(lost) = &lost {
            self.lost = Some(lost.to_string());
            self.latest = None;
        }
        let is_news = complaint.is_some() && !std::mem::replace(&mut self.has_complained, true);
        (complaint.filter(|_| is_news), lost.map(|lost| lost.to_string()))
    }
}

/// The threads that look at the devices of a run, one for each: a driver that hangs over one device does not stop the looks at the others. Dropping it
/// ends the threads, each after the look at which it is.
pub(crate) struct DeviceWatcher {
    stop: Arc<AtomicBool>,
    threads: Vec<Thread>,
}

impl DeviceWatcher {
    pub(crate) fn start(context: &RunContext) -> io::Result<Self> {
        let mut watcher = Self { stop: Arc::default(), threads: Vec::new() };
        for (device, plan) in (0..).map(DeviceId).zip(&context.plan.devices) {
            let (watch, stats) = (Arc::clone(&context.watch), Arc::clone(&context.stats));
            let (clock, options) = (context.clock, context.options.devices.clone());
            let (stop, bug) = (Arc::clone(&watcher.stop), context.bug.clone());
            let look_on = move || {
                let on = stats.device(device);
                let is_settled = || on.ready.get() > 0 && on.starting() == 0;
                while !stop.load(Ordering::Acquire) {
                    watch.look(
                        device,
                        options.probe.as_deref(),
                        &stats.workers.all(),
                        is_settled,
                        clock.now(),
                    );
                    thread::park_timeout(options.look_every);
                }
            };
            let name = format!("look {}", plan.spec.name);
            let look_on = move || drop(bug.caught("the look at a device", look_on));
            let thread = thread::Builder::new().name(name).spawn(look_on)?.thread().clone();
            // `ask` wakes it.
            context.watch.devices[device.index()].looker.get_or_init(|| thread.clone());
            watcher.threads.push(thread);
        }
        Ok(watcher)
    }
}

impl Drop for DeviceWatcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.threads.iter().for_each(Thread::unpark);
    }
}

fn worker_use(worker: &LiveWorker) -> Option<WorkerUse> {
    let LiveWorker { worker, device, pid, .. } = *worker;
    let memory = process_memory(pid)?;
    Some(WorkerUse {
        worker,
        device,
        pid,
        resident_bytes: memory.resident,
        cpu_time: process(pid)?.cpu_time,
        gpu_memory: None,
    })
}

#[cfg(test)]
#[path = "device_watch_tests.rs"]
mod tests;
