//! What is known of a GPU, and the trait behind which GPUs are found. Knows no driver.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A GPU as its driver reports it at one moment. Memory in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// The driver's number for it, before any narrowing.
    pub index: u32,
    /// `GPU-…` or `MIG-…`: the only name that stays the same whatever a process is allowed to see.
    pub uuid: String,
    /// The product name, for example `NVIDIA L4`.
    pub name: String,
    /// Where it is plugged in, for example `00000000:3B:00.0`; empty for a MIG instance.
    pub pci_bus_id: String,
    /// All of its memory.
    pub memory_total: u64,
    /// Memory that no process holds.
    pub memory_free: u64,
    /// Percent of the last sample period in which a kernel ran, 0 to 100; `None` where the driver does not tell.
    pub utilization: Option<u8>,
    /// Degrees Celsius of the chip; `None` where the driver does not tell.
    pub temperature_c: Option<u32>,
}

/// Finds GPUs.
pub trait GpuProbe: Send + Sync {
    /// All GPUs of the machine with their present state, in PCI bus order.
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

/// Why GPUs cannot be named.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProbeError {
    /// The driver's management library is not there.
    #[error(
        "no NVIDIA driver is installed: `libnvidia-ml.so.1` cannot be loaded ({0}); install the driver, and in a \
         container start it with GPU access"
    )]
    NoLibrary(String),
    /// The library is there, but the kernel's part of the driver is not.
    #[error("the NVIDIA driver is not running ({0}); load the kernel module `nvidia` or reboot")]
    NoDriver(String),
    /// The library and the kernel module are of different versions.
    #[error("the NVIDIA driver was updated while it ran ({0}); reboot or reload its kernel modules")]
    VersionMismatch(String),
    /// This user may not talk to the driver.
    #[error(
        "no permission to use the NVIDIA driver ({0}); check the rights of `/dev/nvidia*` and the device cgroup"
    )]
    NoPermission(String),
    /// There is no GPU of this UUID.
    #[error("no GPU has the UUID `{0}`; `orchestra devices` lists those there are")]
    Unknown(String),
    /// Some GPUs answered and some did not.
    #[error("{problem}")]
    Partial {
        /// Those that answered.
        gpus: Vec<Gpu>,
        /// Which did not, and why.
        problem: String,
    },
    /// The driver failed in another way.
    #[error("the NVIDIA driver failed to {action}: {why}")]
    Driver {
        /// What was asked of it.
        action: String,
        /// What it said.
        why: String,
    },
}

/// A probe that reports what it was given: for tests, and for planning for a machine that is not this one.
#[derive(Debug, Clone)]
pub struct FakeProbe {
    answer: Result<Vec<Gpu>, ProbeError>,
}

impl FakeProbe {
    /// A machine with these GPUs.
    #[must_use]
    pub fn new(gpus: Vec<Gpu>) -> Self {
        Self { answer: Ok(gpus) }
    }

    /// A machine whose GPUs cannot be named, for this reason.
    #[must_use]
    pub fn failing(error: ProbeError) -> Self {
        Self { answer: Err(error) }
    }
}

impl GpuProbe for FakeProbe {
    fn gpus(&self) -> Result<Vec<Gpu>, ProbeError> {
        self.answer.clone()
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
            temperature_c: None,
        }
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
