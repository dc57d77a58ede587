//! How much memory this process can ever have. It reads what the system says; it limits nothing.

use std::fs;
use std::path::Path;

/// The smallest of the machine's memory and the limits of the control groups that this process is in, in bytes; `None` where the system
/// does not say.
#[must_use]
pub fn memory_limit_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_groups = smallest_group_limit(&groups, Path::new("/sys/fs/cgroup"));
    of_groups
        .into_iter()
        .chain(machine_memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default()))
        .min()
}

fn machine_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Each line of `groups` is `number:controllers:path`. A limit of any group above counts, too.
fn smallest_group_limit(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let (folder, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            c if c.split(',').any(|c| c == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return Vec::new(),
        };
        // In a container the path may be one of the host's that is not there: its ancestors are.
        let group = folder.join(path.trim_start_matches('/'));
        let above = group.ancestors().take_while(|g| g.starts_with(&folder));
        above.filter_map(|g| fs::read_to_string(g.join(file)).ok()?.trim().parse().ok()).collect()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_memory() {
        assert!(memory_limit_bytes().unwrap() > 1 << 20);
        assert_eq!(machine_memory("MemTotal:       24617388 kB\nMemFree: 1 kB\n"), Some(24_617_388 * 1024));
        assert_eq!(machine_memory("nonsense"), None);
    }

    #[test]
    fn the_tightest_group_counts_in_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/memory.max", "5000\n");
        write("a/b/memory.max", "max\n");
        write("memory/m/memory.limit_in_bytes", "7000\n");
        let limit = |groups: &str| smallest_group_limit(groups, root.path());
        assert_eq!(limit("0::/a/b\n"), Some(5000));
        assert_eq!(limit("0::/a/gone\n"), Some(5000));
        assert_eq!(limit("4:cpu,memory:/m\n3:cpu:/a\n"), Some(7000));
        assert_eq!(limit("4:memory:/m\n0::/a\n"), Some(5000));
        assert_eq!(limit("0::/\n"), None);
    }
}
