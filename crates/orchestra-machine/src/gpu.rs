//! What is known of a GPU, and the trait behind which GPUs are found. Knows no driver.

use std::sync::{Arc, Mutex};

use orchestra_core::locked;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A GPU as its driver reports it at one moment. Memory in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// The driver's number for it, before any narrowing.
    pub index: u32,
    /// `GPU-…` or `MIG-…`: the only name that stays the same whatever a process is allowed to see.
    pub uuid: String,
    /// The product name, for example `NVIDIA L4`.
    pub name: String,
    /// Where it is plugged in, for example `00000000:3B:00.0`; of a MIG instance: where the GPU is that it is a part of.
    pub pci_bus_id: String,
    /// Of a MIG instance: the UUID of the GPU that it is a part of.
    #[serde(default)]
    pub part_of: Option<String>,
    /// The NUMA node that it is plugged into; `None` where the kernel does not tell, or there is only one.
    #[serde(default)]
    pub numa_node: Option<u32>,
    pub memory_total: u64,
    pub memory_free: u64,
    /// Percent of the last sample period in which a kernel ran, 0 to 100; `None` where the driver does not tell.
    pub utilization: Option<u8>,
    /// Percent of the last sample period in which memory was read or written, 0 to 100.
    #[serde(default)]
    pub memory_utilization: Option<u8>,
    /// Degrees Celsius of the chip; `None` where the driver does not tell.
    pub temperature_c: Option<u32>,
    /// What it draws now, in milliwatts. A MIG instance has no figure of its own.
    #[serde(default)]
    pub power_mw: Option<u32>,
    #[serde(default)]
    pub power_limit_mw: Option<u32>,
    #[serde(default)]
    pub clock_sm_mhz: Option<u32>,
    #[serde(default)]
    pub clock_memory_mhz: Option<u32>,
    /// Processes that compute on it, those of others included.
    #[serde(default)]
    pub processes: Vec<GpuProcess>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Its id as the driver sees it. In a container that need not be the id that the process has there.
    pub pid: u32,
    /// Bytes of the GPU's memory that it holds; `None` where the driver does not tell.
    pub memory: Option<u64>,
}

impl Gpu {
    pub fn memory_used(&self) -> u64 {
        self.memory_total.saturating_sub(self.memory_free)
    }
}

pub trait GpuProbe: Send + Sync {
    /// Whether a process has the same id here and in [`Gpu::processes`]. Elsewhere an id of another process may equal one of ours.
    fn ids_are_ours(&self) -> bool {
        true
    }

    /// All GPUs of the machine with their present state, in PCI bus order. A GPU that is cut into MIG instances is represented by these,
    /// since nothing can run on it as a whole.
    ///
    /// # Errors
    /// Why none can be named, or `ProbeError::Partial` with those that can.
    fn gpus(&self) -> Result<Vec<Gpu>, ProbeError>;

    /// The one GPU, or MIG instance, of this UUID.
    ///
    /// # Errors
    /// `ProbeError::Unknown` if there is none; else as for `gpus`.
    fn gpu_by_uuid(&self, uuid: &str) -> Result<Gpu, ProbeError> {
        let gpus = match self.gpus() {
            Ok(gpus) | Err(ProbeError::Partial { gpus, .. }) => gpus,
            Err(error) => return Err(error),
        };
        gpus.into_iter().find(|gpu| gpu.uuid == uuid).ok_or_else(|| ProbeError::Unknown(uuid.to_owned()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProbeError {
    #[error(
        "no NVIDIA driver is installed: `libnvidia-ml.so.1` cannot be loaded ({0}); install the driver, and in a \
         container start it with GPU access"
    )]
    NoLibrary(String),
    #[error(
        "the NVIDIA driver's library `libcuda.so.1` is not there, and nothing runs on a GPU without it; install it with the driver (Debian: \
         `apt install libcuda1`), and start a container with `NVIDIA_DRIVER_CAPABILITIES=compute,utility`"
    )]
    NoDriverLibrary,
    #[error("the NVIDIA driver is not running ({0}); load the kernel module `nvidia` or reboot")]
    NoDriver(String),
    #[error("the NVIDIA driver was updated while it ran ({0}); reboot or reload its kernel modules")]
    VersionMismatch(String),
    #[error(
        "no permission to use the NVIDIA driver ({0}); check the rights of `/dev/nvidia*` and the device cgroup"
    )]
    NoPermission(String),
    #[error(
        "the GPU `{0}` is lost: it has fallen off the bus or met an error that it cannot recover from; reset it or reboot"
    )]
    Lost(String),
    #[error("no GPU has the UUID `{0}`; `orchestra devices` lists those there are")]
    Unknown(String),
    #[error("{problem}")]
    Partial { gpus: Vec<Gpu>, problem: String },
    #[error("the NVIDIA driver failed to {action}: {why}")]
    Driver { action: String, why: String },
}

/// A probe that reports what it was given, and later what it is given then: for tests, and for planning for a machine that is not this
/// one. Its clones are one probe.
#[derive(Debug, Clone)]
pub struct FakeProbe {
    answer: Arc<Mutex<Result<Vec<Gpu>, ProbeError>>>,
}

impl FakeProbe {
    pub fn new(gpus: Vec<Gpu>) -> Self {
        Self { answer: Arc::new(Mutex::new(Ok(gpus))) }
    }

    /// A machine whose GPUs cannot be named, for this reason.
    pub fn failing(error: ProbeError) -> Self {
        Self { answer: Arc::new(Mutex::new(Err(error))) }
    }

    /// From now on, this is the answer.
    pub fn set(&self, answer: Result<Vec<Gpu>, ProbeError>) {
        *locked(&self.answer) = answer;
    }

    pub fn change(&self, uuid: &str, change: impl FnOnce(&mut Gpu)) {
        let mut answer = locked(&self.answer);
        if let Ok(gpus) | Err(ProbeError::Partial { gpus, .. }) = &mut *answer
            && let Some(gpu) = gpus.iter_mut().find(|gpu| gpu.uuid == uuid)
        {
            change(gpu);
        }
    }

    /// The GPU of this UUID falls off the bus.
    pub fn lose(&self, uuid: &str) {
        let mut answer = locked(&self.answer);
        if let Ok(gpus) | Err(ProbeError::Partial { gpus, .. }) = &*answer {
            let gpus = gpus.iter().filter(|gpu| gpu.uuid != uuid).cloned().collect();
            *answer =
                Err(ProbeError::Partial { gpus, problem: ProbeError::Lost(uuid.to_owned()).to_string() });
        }
    }
}

impl GpuProbe for FakeProbe {
    fn gpus(&self) -> Result<Vec<Gpu>, ProbeError> {
        locked(&self.answer).clone()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn gpu(index: u32) -> Gpu {
        Gpu {
            index,
            uuid: format!("GPU-{index}a5f-0000"),
            name: "Test GPU".into(),
            pci_bus_id: format!("00000000:0{index}:00.0"),
            memory_total: 16 << 30,
            memory_free: 15 << 30,
            utilization: Some(0),
            ..Gpu::default()
        }
    }

    pub(crate) fn slice(index: u32, n: u32) -> Gpu {
        Gpu {
            uuid: format!("MIG-{index}{n}a5f-0000"),
            name: "Test GPU MIG 1g.2gb".into(),
            part_of: Some(gpu(index).uuid),
            memory_total: 2 << 30,
            memory_free: 2 << 30,
            utilization: None,
            ..gpu(index)
        }
    }

    #[test]
    fn a_fake_gpu_that_is_lost_is_gone_for_all_who_hold_the_probe() {
        let probe = FakeProbe::new((0..8).map(gpu).collect());
        let other = probe.clone();
        probe.change(&gpu(3).uuid, |gpu| gpu.memory_free = 1 << 30);
        assert_eq!(other.gpu_by_uuid(&gpu(3).uuid).unwrap().memory_used(), 15 << 30);
        probe.lose(&gpu(3).uuid);
        assert_eq!(other.gpu_by_uuid(&gpu(3).uuid), Err(ProbeError::Unknown(gpu(3).uuid)));
        assert!(
            matches!(other.gpus(), Err(ProbeError::Partial { gpus, problem }) if gpus.len() == 7 && problem.contains("lost"))
        );
    }

    #[test]
    fn a_gpu_is_found_by_uuid_among_those_that_answer() {
        let probe = FakeProbe::failing(ProbeError::Partial { gpus: vec![gpu(1)], problem: "x".into() });
        assert_eq!(probe.gpu_by_uuid(&gpu(1).uuid), Ok(gpu(1)));
        assert_eq!(probe.gpu_by_uuid("GPU-none"), Err(ProbeError::Unknown("GPU-none".into())));
        let none = FakeProbe::failing(ProbeError::NoDriver("off".into()));
        assert_eq!(none.gpu_by_uuid("GPU-none"), Err(ProbeError::NoDriver("off".into())));
    }
}
