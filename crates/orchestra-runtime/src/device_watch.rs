//! What the devices of a run and its worker processes take, looked at once a second by a thread of its own, and whether a device is still
//! there. It steers nothing: a device that is lost is told to its manager, and figures go to whoever asks. A driver that gives no answer is
//! noted once and never fails a run.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;
use std::{fmt, io};

use orchestra_core::{DeviceId, DeviceKind};
use orchestra_machine::{Gpu, GpuProbe, ProbeError, process_cpu_time, process_memory};
use orchestra_plan::{Measurements, Plan};

use crate::device_use::{DeviceUse, Tally, WorkerUse};
use crate::live_workers::LiveWorker;
use crate::stats::Stats;

/// A driver that does not know a GPU any more has to say so this often in a row; one that calls it lost is believed at once.
const MISSING_IN_A_ROW: u32 = 3;

/// What a run needs to know about devices beyond its plan.
#[derive(Clone)]
pub struct DeviceOptions {
    /// Who is asked about GPUs; `None`: nobody, and then nothing is known of them but what workers say.
    pub probe: Option<Arc<dyn GpuProbe>>,
    /// How often.
    pub look_every: Duration,
    /// Libraries that workers on GPUs load by full path, in this order, before anything else needs them.
    pub preload: Vec<PathBuf>,
    /// Where the memory that workers took is kept for later plans.
    pub measurements: Option<Measurements>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { probe: None, look_every: Duration::from_secs(1), preload: Vec::new(), measurements: None }
    }
}

impl fmt::Debug for DeviceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceOptions")
            .field("look_every", &self.look_every)
            .field("preload", &self.preload)
            .field("measurements", &self.measurements)
            .finish_non_exhaustive()
    }
}

type WhenLost = Box<dyn Fn(String) + Send>;

/// See the module. By device of the plan.
#[derive(Default)]
pub struct DeviceWatch(Mutex<Vec<Watched>>);

#[derive(Default)]
struct Watched {
    name: String,
    /// Of a GPU.
    uuid: Option<String>,
    /// The driver has known it: when the run was planned, or at a look.
    is_known: bool,
    latest: Option<Gpu>,
    tally: Tally,
    lost: Option<String>,
    when_lost: Option<WhenLost>,
    missing: u32,
    has_complained: bool,
}

impl DeviceWatch {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let watched = plan.devices.iter().map(|device| Watched {
            name: device.spec.name.clone(),
            uuid: match &device.spec.kind {
                DeviceKind::Cuda { uuid } => Some(uuid.clone()),
                DeviceKind::Cpu => None,
            },
            // Also a GPU that falls off the bus before the first look is a GPU that was lost.
            is_known: device.memory.is_some(),
            ..Watched::default()
        });
        Self(Mutex::new(watched.collect()))
    }

    /// A GPU as it was at the last look.
    #[must_use]
    pub fn latest(&self, device: DeviceId) -> Option<Gpu> {
        self.lock().get(device.index())?.latest.clone()
    }

    /// What a device and its workers took up to now.
    #[must_use]
    pub fn usage(&self, device: DeviceId) -> DeviceUse {
        self.lock().get(device.index()).map(|w| w.tally.usage()).unwrap_or_default()
    }

    /// The worker processes as they were at the last look.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerUse> {
        self.lock().iter().flat_map(|w| w.tally.workers()).collect()
    }

    /// Why a device is lost, if it is.
    #[must_use]
    pub fn lost(&self, device: DeviceId) -> Option<String> {
        self.lock().get(device.index())?.lost.clone()
    }

    /// Calls `tell` with the reason once the device is lost; at once if it is already.
    pub fn when_lost(&self, device: DeviceId, tell: impl Fn(String) + Send + 'static) {
        let mut devices = self.lock();
        let Some(watched) = devices.get_mut(device.index()) else { return };
        match &watched.lost {
            Some(why) => tell(why.clone()),
            None => watched.when_lost = Some(Box::new(tell)),
        }
    }

    /// Looks at everything once. `is_settled`: workers of the device serve, and none is loading.
    pub fn look(
        &self,
        probe: Option<&dyn GpuProbe>,
        live: &[LiveWorker],
        is_settled: impl Fn(DeviceId) -> bool,
    ) {
        let uuids: Vec<Option<String>> = self.lock().iter().map(|w| w.uuid.clone()).collect();
        for (i, uuid) in uuids.into_iter().enumerate() {
            let answer = uuid.zip(probe).map(|(uuid, probe)| probe.gpu_by_uuid(&uuid));
            let here: Vec<&LiveWorker> = live.iter().filter(|w| w.device.index() == i).collect();
            let workers = here.iter().filter_map(|w| worker_use(w)).collect();
            let settled = is_settled(DeviceId(i as u16));
            // Neither the driver nor the kernel is asked while others wait for the lock.
            if let Some(watched) = self.lock().get_mut(i) {
                watched.take(answer, workers, settled);
            }
        }
    }

    /// Logs what each GPU took over the run.
    pub(crate) fn log(&self) {
        for watched in self.lock().iter().filter(|w| w.uuid.is_some()) {
            let usage = watched.tally.usage();
            tracing::info!(
                device = %watched.name,
                memory_used_max = usage.memory_used_max,
                utilization_mean = usage.utilization_mean,
                power_mean_watts = usage.power_mean_watts,
                temperature_max_c = usage.temperature_max_c,
                "what the device took"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watched>> {
        // A look that panicked leaves figures behind, each of which stands for itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    fn take(&mut self, answer: Option<Result<Gpu, ProbeError>>, workers: Vec<WorkerUse>, settled: bool) {
        match answer {
            _ if self.lost.is_some() => {}
            None => {}
            Some(Ok(gpu)) => {
                self.missing = 0;
                self.is_known = true;
                self.tally.gpu(&gpu, settled);
                self.latest = Some(gpu);
            }
            Some(Err(error @ ProbeError::Lost(_))) => self.lose(&error),
            Some(Err(error @ ProbeError::Unknown(_))) if self.is_known => {
                self.missing += 1;
                if self.missing >= MISSING_IN_A_ROW {
                    let uuid = self.uuid.clone().unwrap_or_default();
                    self.complain(&error);
                    self.lose(&ProbeError::Lost(uuid));
                }
            }
            Some(Err(error)) => self.complain(&error),
        }
        let of_gpu = self.latest.as_ref().map(|gpu| gpu.processes.as_slice()).unwrap_or_default();
        self.tally.processes(workers, of_gpu, settled);
    }

    fn complain(&mut self, error: &ProbeError) {
        if !std::mem::replace(&mut self.has_complained, true) {
            tracing::warn!(device = %self.name, %error, "the device cannot be looked at; the run goes on");
        }
    }

    fn lose(&mut self, error: &ProbeError) {
        let why = error.to_string();
        tracing::error!(device = %self.name, %why, "device lost");
        if let Some(tell) = self.when_lost.take() {
            tell(why.clone());
        }
        self.lost = Some(why);
        self.latest = None;
    }
}

fn worker_use(worker: &LiveWorker) -> Option<WorkerUse> {
    let LiveWorker { worker, device, pid } = *worker;
    let memory = process_memory(pid)?;
    Some(WorkerUse {
        worker,
        device,
        pid,
        resident_bytes: memory.resident,
        cpu_time: process_cpu_time(pid)?,
        gpu_memory: None,
    })
}

/// The thread that looks. Dropping it ends the thread, after the look at which it is.
pub(crate) struct Watcher {
    stop: Arc<AtomicBool>,
    thread: Thread,
}

impl Watcher {
    pub(crate) fn start(
        watch: Arc<DeviceWatch>,
        stats: Arc<Stats>,
        options: &DeviceOptions,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (probe, every, stopped) = (options.probe.clone(), options.look_every, Arc::clone(&stop));
        let thread = thread::Builder::new().name("devices".into()).spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                watch.look(probe.as_deref(), &stats.workers.all(), |device| {
                    let device = stats.device(device);
                    device.ready.get() > 0 && device.starting() == 0
                });
                thread::park_timeout(every);
            }
        })?;
        Ok(Self { stop, thread: thread.thread().clone() })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

#[cfg(test)]
#[path = "device_watch_tests.rs"]
mod tests;
