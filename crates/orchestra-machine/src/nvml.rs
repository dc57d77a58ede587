//! GPUs as NVIDIA's management library reports them. The library is loaded at run time; without it there is an error, not
//! a crash. It never creates a CUDA context, so looking at a GPU takes none of its memory; that of driver 580 opens `libcuda.so.1` when it is
//! opened, and starts nothing in it.

use std::path::Path;
use std::sync::{Arc, Mutex};

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use orchestra_core::locked;

use crate::driver::DriverProbe;
use crate::gpu::{Gpu, GpuProbe, GpuProcess, ProbeError};

/// `NVML_DEVICE_MIG_ENABLE`
const MIG_ENABLED: u32 = 1;

/// Reads GPUs through NVML. The library is opened on first use, and a failure to open it is tried again on the next.
#[derive(Debug, Default)]
pub struct NvmlProbe {
    nvml: Mutex<Option<Arc<Nvml>>>,
}

impl NvmlProbe {
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(&self, ask: impl FnOnce(&Nvml) -> Result<T, ProbeError>) -> Result<T, ProbeError> {
        ask(&*self.library()?)
    }

    /// The open library. Nothing is locked while it is used: a call that hangs over one GPU must not keep others from theirs.
    fn library(&self) -> Result<Arc<Nvml>, ProbeError> {
        // A panic of another thread leaves an open or a closed library behind, both of which are usable.
        let mut nvml = locked(&self.nvml);
        match &*nvml {
            Some(open) => Ok(Arc::clone(open)),
            None => {
                let open = Arc::new(Nvml::init().map_err(|e| refused("start", e))?);
                Ok(Arc::clone(nvml.insert(open)))
            }
        }
    }
}

impl DriverProbe for NvmlProbe {
    fn version(&self) -> Result<String, ProbeError> {
        self.with(|nvml| nvml.sys_driver_version().map_err(|e| refused("tell its version", e)))
    }

    fn cuda(&self) -> Result<(i32, i32), ProbeError> {
        self.with(|nvml| {
            let cuda = nvml.sys_cuda_driver_version().map_err(|error| match error {
                NvmlError::LibraryNotFound => ProbeError::NoDriverLibrary,
                other => refused("tell its CUDA version", other),
            })?;
            let (major, minor) = (
                nvml_wrapper::cuda_driver_version_major(cuda),
                nvml_wrapper::cuda_driver_version_minor(cuda),
            );
            Ok((major, minor))
        })
    }
}

/// Whether `/proc/self/ns/pid` names the namespace that the machine begins with, by whose numbers the driver calls processes: Linux has given it
/// this inode since 3.8 (`PROC_PID_INIT_INO`). What cannot be read is taken for another one.
fn is_first_namespace(link: Option<&Path>) -> bool {
    link == Some(Path::new("pid:[4026531836]"))
}

impl GpuProbe for NvmlProbe {
    fn ids_are_ours(&self) -> bool {
        is_first_namespace(std::fs::read_link("/proc/self/ns/pid").ok().as_deref())
    }

    fn gpus(&self) -> Result<Vec<Gpu>, ProbeError> {
        self.with(all_gpus)
    }

    fn gpu_by_uuid(&self, uuid: &str) -> Result<Gpu, ProbeError> {
        self.with(|nvml| {
            let device = match nvml.device_by_uuid(uuid) {
                Ok(device) => device,
                Err(NvmlError::NotFound | NvmlError::InvalidArg) => {
                    return Err(ProbeError::Unknown(uuid.to_owned()));
                }
                // The search says so when any GPU is lost, not only this one.
                Err(NvmlError::GpuLost | NvmlError::ResetRequired) => {
                    return find_beside_the_lost(nvml, uuid);
                }
                Err(other) => return Err(refused(&format!("find `{uuid}`"), other)),
            };
            match device.mig_parent_device() {
                Ok(parent) => instance_of(&parent, &device, parent.index().unwrap_or_default()),
                Err(_) => describe(&device, device.index().unwrap_or_default()),
            }
            .map_err(|e| of_device(uuid, e))
        })
    }
}

/// Where some GPU is lost: the one with this UUID, if it answers. If it does not, it is a lost one itself.
fn find_beside_the_lost(nvml: &Nvml, uuid: &str) -> Result<Gpu, ProbeError> {
    let count = nvml.device_count().map_err(|e| refused("count GPUs", e))?;
    let mut other_error = None;
    for index in 0..count {
        match nvml.device_by_index(index).and_then(|device| whole_or_instances(&device, index)) {
            Ok(gpus) => {
                if let Some(found) = gpus.into_iter().find(|gpu| gpu.uuid == uuid) {
                    return Ok(found);
                }
            }
            Err(NvmlError::GpuLost | NvmlError::ResetRequired) => {}
            Err(error) => other_error = Some(error),
        }
    }
    // A GPU that cannot be read for another reason may be this one.
    Err(match other_error {
        Some(error) => refused(&format!("find `{uuid}`"), error),
        None => ProbeError::Lost(uuid.to_owned()),
    })
}

fn all_gpus(nvml: &Nvml) -> Result<Vec<Gpu>, ProbeError> {
    let count = nvml.device_count().map_err(|e| refused("count GPUs", e))?;
    let mut gpus = Vec::new();
    let mut problems = Vec::new();
    for index in 0..count {
        match nvml.device_by_index(index).and_then(|device| whole_or_instances(&device, index)) {
            Ok(found) if found.is_empty() => {
                problems.push(format!(
                    "GPU {index} is switched to MIG and has no instances; make some with `nvidia-smi mig -cgi ... -C`"
                ));
            }
            Ok(found) => gpus.extend(found),
            Err(error) => problems.push(format!("GPU {index} cannot be read: {error}")),
        }
    }
    // CUDA_DEVICE_ORDER=PCI_BUS_ID, which every worker gets, numbers by this; the text has a fixed width. Instances keep their order.
    gpus.sort_by(|a, b| a.pci_bus_id.cmp(&b.pci_bus_id));
    match problems.is_empty() {
        true => Ok(gpus),
        false => Err(ProbeError::Partial { gpus, problem: problems.join("; ") }),
    }
}

fn whole_or_instances(device: &Device<'_>, index: u32) -> Result<Vec<Gpu>, NvmlError> {
    // GPUs that cannot be cut, and older drivers, answer with an error.
    if !device.mig_mode().is_ok_and(|mode| mode.current == MIG_ENABLED) {
        return Ok(vec![describe(device, index)?]);
    }
    let most = device.mig_device_count().unwrap_or_default();
    // Instances may be numbered with gaps.
    let instances = (0..most).filter_map(|i| device.mig_device_by_index(i).ok());
    Ok(instances.filter_map(|instance| instance_of(device, &instance, index).ok()).collect())
}

fn instance_of(parent: &Device<'_>, instance: &Device<'_>, index: u32) -> Result<Gpu, NvmlError> {
    let mut gpu = describe(instance, index)?;
    gpu.pci_bus_id = parent.pci_info().map(|pci| pci.bus_id).unwrap_or_default();
    gpu.part_of = Some(parent.uuid()?);
    gpu.temperature_c = parent.temperature(TemperatureSensor::Gpu).ok();
    Ok(gpu)
}

fn describe(device: &Device<'_>, index: u32) -> Result<Gpu, NvmlError> {
    let memory = device.memory_info()?;
    let utilization = device.utilization_rates().ok();
    let percent = |n: u32| u8::try_from(n).ok().filter(|n| *n <= 100);
    let processes = device.running_compute_processes().unwrap_or_default();
    Ok(Gpu {
        index,
        uuid: device.uuid()?,
        name: device.name()?,
        pci_bus_id: device.pci_info().map(|pci| pci.bus_id).unwrap_or_default(),
        part_of: None,
        // What NVML calls the node of a GPU is that of its own memory; `topology` fills this in.
        numa_node: None,
        memory_total: memory.total,
        memory_free: memory.free,
        utilization: utilization.as_ref().and_then(|u| percent(u.gpu)),
        memory_utilization: utilization.as_ref().and_then(|u| percent(u.memory)),
        temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
        power_mw: device.power_usage().ok(),
        power_limit_mw: device.enforced_power_limit().ok(),
        clock_sm_mhz: device.clock_info(Clock::SM).ok(),
        clock_memory_mhz: device.clock_info(Clock::Memory).ok(),
        processes: processes.into_iter().map(process).collect(),
    })
}

fn process(info: ProcessInfo) -> GpuProcess {
    let memory = match info.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    GpuProcess { pid: info.pid, memory }
}

fn of_device(uuid: &str, error: NvmlError) -> ProbeError {
    match error {
        // Nothing runs there any more either until it is reset.
        NvmlError::GpuLost | NvmlError::ResetRequired => ProbeError::Lost(uuid.to_owned()),
        other => refused(&format!("describe `{uuid}`"), other),
    }
}

fn refused(action: &str, error: NvmlError) -> ProbeError {
    let why = error.to_string();
    match error {
        NvmlError::LibloadingError(load) => ProbeError::NoLibrary(load.to_string()),
        NvmlError::LibraryNotFound => ProbeError::NoLibrary(why),
        NvmlError::DriverNotLoaded => ProbeError::NoDriver(why),
        NvmlError::LibRmVersionMismatch => ProbeError::VersionMismatch(why),
        NvmlError::NoPermission | NvmlError::OperatingSystem => ProbeError::NoPermission(why),
        _ => ProbeError::Driver { action: action.to_owned(), why },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_or_without_a_driver_gives_an_answer_and_never_a_panic() {
        let probe = NvmlProbe::new();
        for _ in 0..2 {
            match probe.gpus() {
                Ok(gpus) => {
                    for gpu in gpus {
                        assert_eq!(probe.gpu_by_uuid(&gpu.uuid).unwrap().uuid, gpu.uuid);
                    }
                    assert!(!probe.version().unwrap().is_empty());
                    assert!(probe.cuda().unwrap().0 > 0);
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        assert!(probe.gpu_by_uuid("GPU-00000000-0000-0000-0000-000000000000").is_err());
    }

    #[test]
    fn ids_are_the_drivers_in_the_first_namespace_alone() {
        assert!(is_first_namespace(Some(Path::new("pid:[4026531836]"))));
        assert!(!is_first_namespace(Some(Path::new("pid:[4026532561]"))), "a container");
        assert!(!is_first_namespace(None));
    }

    /// A library of a driver for two GPUs, the second of which has fallen off the bus: then the search for any UUID fails.
    const ONE_LOST: &str = r#"
        #include <string.h>
        typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory;
        int nvmlInit_v2(void) { return 0; }
        int nvmlShutdown(void) { return 0; }
        int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
        int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { return 15; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)1; return index == 0 ? 0 : SECOND; }
        int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { strncpy(text, "GPU-there", size); return 0; }
        int nvmlDeviceGetName(void *device, char *text, unsigned size) { strncpy(text, "Test GPU", size); return 0; }
        int nvmlDeviceGetMemoryInfo_v2(void *device, memory *info) { info->total = info->free = 8ull << 30; return 0; }
    "#;

    /// A library of a driver for two GPUs, the second of which is cut into the first and the third of seven possible instances.
    const ONE_CUT: &str = r#"
        #include <string.h>
        typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory;
        enum { WHOLE = 1, CUT, FIRST, THIRD };
        static const char *const uuids[] = {"", "GPU-whole", "GPU-cut", "MIG-first", "MIG-third"};
        static long id(void *device) { return (long)device; }
        int nvmlInit_v2(void) { return 0; }
        int nvmlShutdown(void) { return 0; }
        int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
        int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
            for (long i = WHOLE; i <= THIRD; i++) if (!strcmp(uuid, uuids[i])) { *device = (void *)i; return 0; }
            return 6;
        }
        int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(long)(WHOLE + index); return 0; }
        int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = id(device) == CUT; return 0; }
        int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *next) { *now = *next = 1; return id(device) == CUT ? 0 : 3; }
        int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) { *count = 7; return 0; }
        int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **instance) {
            *instance = (void *)(long)(index ? THIRD : FIRST);
            return index == 0 || index == 2 ? 0 : 6;
        }
        int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **parent) { *parent = (void *)CUT; return id(device) > CUT ? 0 : 2; }
        int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { strncpy(text, uuids[id(device)], size); return 0; }
        int nvmlDeviceGetName(void *device, char *text, unsigned size) { strncpy(text, "Test GPU", size); return 0; }
        int nvmlDeviceGetMemoryInfo_v2(void *device, memory *info) {
            info->total = info->free = (id(device) > CUT ? 10ull : 80ull) << 30;
            return 0;
        }
    "#;

    fn probe_of(folder: &std::path::Path, source: &str, define: &str) -> NvmlProbe {
        let (file, library) = (folder.join("nvml.c"), folder.join(format!("libnvml-{define}.so")));
        std::fs::write(&file, source).unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(format!("-D{define}")).arg(&file);
        assert!(compiler.status().unwrap().success());
        let open = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
        NvmlProbe { nvml: Mutex::new(Some(Arc::new(open))) }
    }

    /// `second` is what the library answers to the number of the second GPU.
    fn with_one_lost(folder: &std::path::Path, second: i32) -> NvmlProbe {
        probe_of(folder, ONE_LOST, &format!("SECOND={second}"))
    }

    #[test]
    fn the_instances_of_a_gpu_that_is_cut_are_devices_of_their_own_and_it_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let probe = probe_of(folder.path(), ONE_CUT, "CUT_GPU");
        let gpus = probe.gpus().unwrap();
        let seen: Vec<_> =
            gpus.iter().map(|g| (g.uuid.as_str(), g.part_of.as_deref(), g.memory_total >> 30)).collect();
        let cut = Some("GPU-cut");
        assert_eq!(seen, [("GPU-whole", None, 80), ("MIG-first", cut, 10), ("MIG-third", cut, 10)]);
        let found = probe.gpu_by_uuid("MIG-third").unwrap();
        assert_eq!((found.part_of.as_deref(), found.memory_total >> 30, found.index), (cut, 10, 1));
        assert_eq!(probe.gpu_by_uuid("MIG-gone"), Err(ProbeError::Unknown("MIG-gone".into())));
    }

    #[test]
    fn beside_a_lost_gpu_the_others_are_seen_and_it_is_told_which_one_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let probe = with_one_lost(folder.path(), 15);
        assert_eq!(probe.gpu_by_uuid("GPU-there").unwrap().name, "Test GPU");
        assert_eq!(probe.gpu_by_uuid("GPU-gone"), Err(ProbeError::Lost("GPU-gone".into())));
        // One that waits for a reset is of no more use.
        let stuck = with_one_lost(folder.path(), 16);
        assert_eq!(stuck.gpu_by_uuid("GPU-gone"), Err(ProbeError::Lost("GPU-gone".into())));
        // One that cannot be read for another reason may be the one that is asked for.
        let unclear = with_one_lost(folder.path(), 999);
        assert_eq!(unclear.gpu_by_uuid("GPU-there").unwrap().uuid, "GPU-there");
        assert!(matches!(unclear.gpu_by_uuid("GPU-gone"), Err(ProbeError::Driver { .. })));
    }

    #[test]
    fn each_cause_says_what_to_do() {
        let text = |e| refused("start", e).to_string();
        assert!(text(NvmlError::DriverNotLoaded).contains("kernel module"));
        assert!(text(NvmlError::NoPermission).contains("/dev/nvidia"));
        assert!(text(NvmlError::LibRmVersionMismatch).contains("reboot"));
        assert!(text(NvmlError::LibraryNotFound).contains("install the driver"));
        // What has no advice of ours comes in the library's own words.
        let unknown = NvmlError::Unknown.to_string();
        assert_eq!(text(NvmlError::Unknown), format!("the NVIDIA driver failed to start: {unknown}"));
    }
}
