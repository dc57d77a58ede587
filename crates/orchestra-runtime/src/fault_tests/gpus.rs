//! GPUs whose memory fake workers take and give back, as a driver would see them. They decide nothing.

use std::sync::Weak;

use orchestra_core::DeviceId;
use orchestra_machine::{FakeProbe, Gpu, GpuProbe, GpuProcess, ProbeError};

use super::script::ms;
use crate::context::RunContext;

const GIB: u64 = 1 << 30;

/// The GPUs of a machine, all alike. Clones are the same ones.
#[derive(Debug, Clone)]
pub struct Gpus {
    /// What there is of them.
    pub probe: FakeProbe,
    pub total: u64,
    /// The driver says what a process holds; in a container it does not, and shows no process at all.
    pub counts: bool,
    /// The driver calls processes by the numbers that they have here.
    pub ids_are_ours: bool,
}

impl GpuProbe for Gpus {
    fn ids_are_ours(&self) -> bool {
        self.ids_are_ours
    }

    fn gpus(&self) -> Result<Vec<Gpu>, ProbeError> {
        self.probe.gpus()
    }
}

pub fn uuid(device: usize) -> String {
    format!("GPU-{device}")
}

impl Gpus {
    /// So many with so many GiB each, all of them free.
    pub fn new(n: usize, gib: u64) -> Self {
        let total = gib * GIB;
        let gpu = |n| Gpu { uuid: uuid(n), memory_total: total, memory_free: total, ..Gpu::default() };
        Self { probe: FakeProbe::new((0..n).map(gpu).collect()), total, counts: true, ids_are_ours: true }
    }

    /// A process takes so many GiB, if there are as many.
    pub fn take(&self, device: usize, pid: u32, gib: u64) -> bool {
        if gib == 0 {
            return true; // Also where the driver does not tell how much there is.
        }
        let bytes = gib * GIB;
        let mut has_room = false;
        self.probe.change(&uuid(device), |gpu| {
            has_room = gpu.memory_free >= bytes;
            if has_room {
                gpu.memory_free -= bytes;
                gpu.processes.extend(self.counts.then_some(GpuProcess { pid, memory: Some(bytes) }));
            }
        });
        has_room
    }

    /// A process that took so many GiB is gone.
    pub fn give_back(&self, device: usize, pid: u32, gib: u64) {
        self.probe.change(&uuid(device), |gpu| {
            gpu.memory_free += gib * GIB;
            gpu.processes.retain(|p| p.pid != pid);
        });
    }

    /// GiB that are taken on a device.
    pub fn used(&self, device: usize) -> u64 {
        self.probe.gpu_by_uuid(&uuid(device)).unwrap().memory_used() / GIB
    }
}

/// The same GPUs for a caller that asks this machine about the processes on them: this one is the only one that is real, so it holds what the
/// largest of the workers holds.
struct HeldByUs<'a>(&'a Gpus);

impl GpuProbe for HeldByUs<'_> {
    fn ids_are_ours(&self) -> bool {
        self.0.ids_are_ours
    }

    fn gpus(&self) -> Result<Vec<Gpu>, ProbeError> {
        let mut gpus = self.0.gpus()?;
        for gpu in &mut gpus {
            let most = gpu.processes.iter().filter_map(|p| p.memory).max();
            gpu.processes = most
                .map(|most| GpuProcess { pid: std::process::id(), memory: Some(most) })
                .into_iter()
                .collect();
        }
        Ok(gpus)
    }
}

/// Looks at all devices again and again, as the threads of a run do.
pub async fn look(context: Weak<RunContext>, gpus: Gpus) {
    while let Some(context) = context.upgrade() {
        for device in 0..context.plan.devices.len() {
            let probe = Some(&gpus as &dyn GpuProbe);
            let id = DeviceId(device as u16);
            context.watch.look(id, probe, &[], || false, context.clock.now());
            let stats = context.stats.device(id);
            let is_settled = || stats.ready.get() > 0 && stats.starting() == 0;
            let mut live = context.stats.workers.all();
            live.iter_mut().for_each(|worker| worker.pid = std::process::id());
            context.watch.look(id, Some(&HeldByUs(&gpus)), &live, is_settled, context.clock.now());
        }
        drop(context);
        tokio::time::sleep(ms(10)).await;
    }
}
