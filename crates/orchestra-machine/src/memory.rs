//! Main memory of the machine, and the limits that a container, a scheduler or a shell puts on it. Reads only; sets no limit.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Main memory as this process may use it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The machine's memory, or the smallest limit of a control group or of this process where that is less.
    pub total: u64,
    /// What can still be taken without swapping and without meeting a limit.
    pub available: u64,
}

impl Memory {
    /// Reads `proc` and `sys` under `root`, which is `/` outside tests. Where the kernel tells nothing, sizes are 0.
    pub fn read(root: &Path) -> Self {
        let info = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let total = kib_field(&info, "MemTotal:").unwrap_or_default();
        let available =
            kib_field(&info, "MemAvailable:").or_else(|| kib_field(&info, "MemFree:")).unwrap_or_default();
        limits(root).into_iter().chain(of_process(root)).fold(
            Self { total, available },
            |memory, (limit, used)| Self {
                total: memory.total.min(limit),
                available: memory.available.min(limit.saturating_sub(used)),
            },
        )
    }
}

/// The machine at one moment, as far as this process is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineUse {
    /// Seconds that its cores were busy since it was started, summed over all of them.
    pub cpu_seconds: f64,
    /// Bytes of memory that cannot be taken any more.
    pub memory_used: u64,
    pub memory_total: u64,
}

impl MachineUse {
    /// Reads `proc` and `sys` under `root`, which is `/` outside tests. What the kernel does not tell is 0.
    pub fn read(root: &Path) -> Self {
        let Memory { total, available } = Memory::read(root);
        let stat = fs::read_to_string(root.join("proc/stat")).unwrap_or_default();
        let cpu_seconds = busy_ticks(&stat).unwrap_or_default() as f64 / 100.0;
        Self { cpu_seconds, memory_used: total.saturating_sub(available), memory_total: total }
    }
}

/// Of the line `cpu  user nice system idle iowait irq softirq steal ..` all but the time in which nothing ran: hundredths of a second.
fn busy_ticks(stat: &str) -> Option<u64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    let ticks: Vec<u64> = fields.take(8).map(|ticks| ticks.parse().ok()).collect::<Option<_>>()?;
    Some(ticks.iter().enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).map(|(_, ticks)| ticks).sum())
}

/// The bytes of a line like `MemTotal:  16384 kB`.
pub(crate) fn kib_field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The names that the two versions of control groups give to the same things.
struct CgroupFiles {
    mount: &'static str,
    limit: &'static str,
    used: &'static str,
    droppable: &'static str,
}

const VERSION_1: CgroupFiles = CgroupFiles {
    mount: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    droppable: "total_inactive_file",
};
const VERSION_2: CgroupFiles = CgroupFiles {
    mount: "sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    droppable: "inactive_file",
};

/// The limits of this process's control groups, and what each group holds of its own. A limit binds all groups below it, so every ancestor is
/// asked.
fn limits(root: &Path) -> Vec<(u64, u64)> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let of_group = |(names, group): (&'static CgroupFiles, &str)| {
        let mount = root.join(names.mount);
        ancestors(&mount, group).into_iter().filter_map(move |folder| limit_of(&folder, names))
    };
    groups.lines().filter_map(own_group).flat_map(of_group).collect()
}

/// What each process may have at most that is started here (`ulimit -v`, `ulimit -d`). Of what all have together nothing is counted against it.
fn of_process(root: &Path) -> Vec<(u64, u64)> {
    let limits = fs::read_to_string(root.join("proc/self/limits")).unwrap_or_default();
    let soft = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok() // Or `unlimited`.
    };
    ["Max address space", "Max data size"].into_iter().filter_map(soft).map(|bytes| (bytes, 0)).collect()
}

/// From a line of `/proc/self/cgroup`: `0::/path` (version 2) or `4:memory:/path` (version 1).
fn own_group(line: &str) -> Option<(&'static CgroupFiles, &str)> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
    match controllers {
        "" => Some((&VERSION_2, group)),
        list if list.split(',').any(|c| c == "memory") => Some((&VERSION_1, group)),
        _ => None,
    }
}

/// The folders of a group and of all groups above it. In a container the path may be one of the host that is not mounted
/// here; the mount itself is then the group.
fn ancestors(mount: &Path, group: &str) -> Vec<PathBuf> {
    let group = mount.join(group.trim_start_matches('/'));
    group.ancestors().take_while(|folder| folder.starts_with(mount)).map(Path::to_owned).collect()
}

/// What a group may hold and holds. File cache that the kernel can drop at once is not counted.
fn limit_of(folder: &Path, names: &CgroupFiles) -> Option<(u64, u64)> {
    let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    let bytes = number(names.limit)?; // version 2 says `max` for no limit, which is no number
    let used = number(names.used).unwrap_or_default();
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let droppable = statistics
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == names.droppable)
        .and_then(|(_, value)| value.trim().parse::<u64>().ok())
        .unwrap_or_default();
    Some((bytes, used.saturating_sub(droppable)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nothing_ran_is_no_busy_time() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 2000 8 16 32 64 128\ncpu0 9 9\n"), Some(63));
        assert_eq!((busy_ticks(""), busy_ticks("cpu  1 x")), (None, None));
    }

    const GIB: u64 = 1 << 30;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let info = "MemTotal:       16777216 kB\nMemFree:        1048576 kB\nMemAvailable:    8388608 kB\n";
        crate::topology::tests::machine(&[&[("proc/meminfo", info)], files].concat())
    }

    #[test]
    fn without_a_limit_the_machine_counts() {
        let root = machine(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")]);
        assert_eq!(Memory::read(root.path()), Memory { total: 16 * GIB, available: 8 * GIB });
    }

    #[test]
    fn a_limit_of_the_process_counts_like_one_of_a_group() {
        let limits = |data: &str, space: &str| {
            let text = format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max data size             {data:<20} unlimited            bytes     \n\
                 Max address space         {space:<20} unlimited            bytes     \n"
            );
            Memory::read(machine(&[("proc/self/limits", &text)]).path())
        };
        assert_eq!(limits("unlimited", "unlimited"), Memory { total: 16 * GIB, available: 8 * GIB });
        assert_eq!(limits("unlimited", "1073741824"), Memory { total: GIB, available: GIB });
        assert_eq!(limits("10737418240", "unlimited"), Memory { total: 10 * GIB, available: 8 * GIB });
    }

    #[test]
    fn the_tightest_group_above_counts_and_droppable_cache_does_not() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/job/step\n"),
            ("sys/fs/cgroup/job/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/job/memory.current", "3221225472\n"),
            ("sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 1073741824\n"),
            ("sys/fs/cgroup/job/step/memory.max", "max\n"),
        ]);
        let memory = Memory::read(root.path());
        assert_eq!((memory.total, memory.available), (4 * GIB, 2 * GIB));
    }

    #[test]
    fn the_smallest_limit_and_the_least_room_may_be_of_two_groups() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/job/step\n"),
            ("sys/fs/cgroup/job/memory.max", "8589934592\n"),
            ("sys/fs/cgroup/job/memory.current", "7516192768\n"),
            ("sys/fs/cgroup/job/step/memory.max", "4294967296\n"),
        ]);
        assert_eq!(Memory::read(root.path()), Memory { total: 4 * GIB, available: GIB });
    }

    #[test]
    fn the_older_groups_are_read_too_even_when_their_path_is_the_hosts() {
        let root = machine(&[
            ("proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n"),
        ]);
        let memory = Memory::read(root.path());
        assert_eq!((memory.total, memory.available), (2 * GIB, GIB));
    }

    #[test]
    fn a_limit_beyond_the_machine_is_none() {
        let root = machine(&[
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(Memory::read(root.path()), Memory { total: 16 * GIB, available: 8 * GIB });
    }

    #[test]
    fn nothing_to_read_is_no_panic() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Memory::read(root.path()), Memory { total: 0, available: 0 });
        assert_eq!(kib_field("MemTotal: lots kB", "MemTotal:"), None);
        assert_eq!(kib_field("MemTotal: 99999999999999999999 kB", "MemTotal:"), None);
    }
}
