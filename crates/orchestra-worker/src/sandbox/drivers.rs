//! What the driver of a GPU reads and writes, as NVIDIA documents it: nodes, memory that processes share, pipes of MPS, its cache of kernels. It
//! opens nothing.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// What it reads: its settings in `/etc`, its topology in `/proc` and `/sys`, its libraries and their data.
pub(super) const READ: [&str; 7] = ["/usr", "/opt", "/etc", "/proc", "/sys", "/run", "/var/run"];
/// It lists this folder to find its nodes.
pub(super) const DEVICES: &str = "/dev";

/// It gives names to its threads, and does not start where it may not: it writes to `comm` of each, below this folder of the process itself. Rules are
/// for folders, and threads come later, so all that lies there is open: what the process can do to itself by other means, too.
pub(super) const THREADS: &str = "/proc/self/task";

/// Keeps the folder of its threads open, for good: a rule holds for as long as the kernel keeps what it was made for, and without this it forgets the
/// folder when memory is short.
pub(super) fn keep_threads() {
    // Also across exec; where it cannot be opened, there is nothing to keep.
    if let Ok(folder) = rustix::fs::open(THREADS, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
        std::mem::forget(folder);
    }
}

/// How the names of nodes begin, and of folders of them: of GPUs, of boards that have one built in, of Linux in Windows.
const NODES: [&str; 7] = ["nvidia", "nvhost", "nvmap", "nvgpu", "nvsciipc", "host1x", "dxg"];
/// In [`DEVICES`]. Arrays that processes share lie there under names of the libraries' choice.
const SHARED_MEMORY: &str = "shm";
/// Where the pipes of MPS are. A client writes to them.
const MPS_PIPES: (&str, &str) = ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps");
/// Where kernels are kept that the driver has compiled, if not in `~/.nv`.
const CACHE: &str = "CUDA_CACHE_PATH";

/// What the environment says of places.
#[derive(Debug, Clone, Default)]
pub(super) struct DriverPlaces {
    mps_pipes: Option<PathBuf>,
    cache: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl DriverPlaces {
    pub(super) fn of_environment() -> Self {
        Self::new(|name| std::env::var_os(name), std::env::home_dir())
    }

    fn new(variable: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Self {
        let named = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self { mps_pipes: named(MPS_PIPES.0), cache: named(CACHE), home }
    }

    /// What it writes, where it is there. A node that appears later stays closed to processes that were confined before.
    pub(super) fn written(&self, devices: &Path) -> Vec<PathBuf> {
        let names = fs::read_dir(devices).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let is_node = |name: &OsString| {
            let name = name.to_string_lossy();
            NODES.iter().any(|begin| name.starts_with(begin))
        };
        let nodes = names.filter(is_node).map(|name| devices.join(name));
        let pipes = self.mps_pipes.clone().unwrap_or_else(|| MPS_PIPES.1.into());
        nodes
            .chain([devices.join(SHARED_MEMORY), pipes])
            .chain(self.own())
            .chain(self.cache.clone())
            .collect()
    }

    fn own(&self) -> Option<PathBuf> {
        self.home.as_ref().map(|home| home.join(".nv"))
    }

    /// Makes a folder for temporary files in one that it writes anyway, and gives it: `/tmp` is closed. Where a home is not there or cannot be
    /// written to, shared memory has to do.
    pub(super) fn temporary_folder(&self) -> PathBuf {
        let folder = self.own().map(|own| own.join("orchestra-tmp"));
        let made =
            folder.filter(|folder| DirBuilder::new().recursive(true).mode(0o700).create(folder).is_ok());
        made.unwrap_or_else(|| Path::new(DEVICES).join(SHARED_MEMORY))
    }

    /// Makes the folder of kernels that the environment names: what is not there when a process is confined stays closed to it.
    pub(super) fn make_cache(&self) {
        if let Some(cache) = &self.cache {
            // Where it cannot be made, kernels are compiled again by each worker.
            drop(fs::create_dir_all(cache));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn places(variables: &[(&str, &str)], home: &Path) -> DriverPlaces {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        DriverPlaces::new(find, Some(home.into()))
    }

    #[test]
    fn a_worker_of_a_gpu_writes_its_nodes_and_none_of_other_devices() {
        let folder = tempfile::tempdir().unwrap();
        let devices = folder.path();
        let nodes =
            ["nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "dxg", "nvmap"];
        for name in nodes.iter().chain(&["null", "sda", "nvme0n1", "nvram", "mem", "kvm", "tty"]) {
            fs::write(devices.join(name), "").unwrap();
        }
        for name in ["nvidia-caps", "shm", "dri", "mapper"] {
            fs::create_dir(devices.join(name)).unwrap();
        }
        let written = places(&[], Path::new("/home/me")).written(devices);
        let in_devices: BTreeSet<_> =
            written.iter().filter_map(|path| path.strip_prefix(devices).ok()?.to_str()).collect();
        assert_eq!(in_devices, nodes.into_iter().chain(["nvidia-caps", "shm"]).collect());
        let others: Vec<_> = written.iter().filter(|path| !path.starts_with(devices)).collect();
        assert_eq!(others, [Path::new("/tmp/nvidia-mps"), Path::new("/home/me/.nv")]);
    }

    #[test]
    fn pipes_of_mps_and_the_cache_of_kernels_are_written_wherever_they_are() {
        let written = |variables: &[(&str, &str)]| {
            places(variables, Path::new("/home/me")).written(Path::new("/nowhere"))
        };
        let usual: [PathBuf; 3] = ["/nowhere/shm".into(), "/tmp/nvidia-mps".into(), "/home/me/.nv".into()];
        assert_eq!(written(&[]), usual);
        assert_eq!(written(&[(MPS_PIPES.0, ""), (CACHE, "")]), usual);
        let named = written(&[(MPS_PIPES.0, "/run/mps"), (CACHE, "/scratch/kernels")]);
        assert!(
            named.contains(&"/run/mps".into()) && named.contains(&"/scratch/kernels".into()),
            "{named:?}"
        );
        assert!(!named.contains(&"/tmp/nvidia-mps".into()), "{named:?}");
    }

    #[test]
    fn temporary_files_lie_in_a_folder_of_the_user_alone_or_there_are_none() {
        let home = tempfile::tempdir().unwrap();
        let folder = places(&[], home.path()).temporary_folder();
        assert!(folder.starts_with(home.path().join(".nv")));
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(places(&[], home.path()).temporary_folder(), folder, "it is there already");
        fs::write(home.path().join("file"), "").unwrap();
        let memory = Path::new("/dev/shm");
        assert_eq!(places(&[], &home.path().join("file")).temporary_folder(), memory);
        assert_eq!(DriverPlaces::default().temporary_folder(), memory);
        let cache = home.path().join("of/kernels");
        places(&[(CACHE, cache.to_str().unwrap())], home.path()).make_cache();
        assert!(cache.is_dir());
    }
}
