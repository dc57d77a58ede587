//! GPUs whose memory fake workers take and give back, as a driver would see them. They decide nothing.

use orchestra_machine::{FakeProbe, Gpu, GpuProbe, GpuProcess};

const GIB: u64 = 1 << 30;

/// The GPUs of a machine, all alike. Clones are the same ones.
#[derive(Debug, Clone)]
pub struct Gpus {
    /// Who is asked about them.
    pub probe: FakeProbe,
    /// Bytes of each.
    pub total: u64,
    /// The driver says what a process holds; in a container it does not, and shows no process at all.
    pub counts: bool,
}

pub fn uuid(device: usize) -> String {
    format!("GPU-{device}")
}

impl Gpus {
    /// So many with so many GiB each, all of them free.
    pub fn new(n: usize, gib: u64) -> Self {
        let total = gib * GIB;
        let gpu = |n| Gpu { uuid: uuid(n), memory_total: total, memory_free: total, ..Gpu::default() };
        Self { probe: FakeProbe::new((0..n).map(gpu).collect()), total, counts: true }
    }

    /// A process takes so many GiB, if there are as many.
    pub fn take(&self, device: usize, pid: u32, gib: u64) -> bool {
        if gib == 0 {
            return true; // Also where nobody can tell how much there is.
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
