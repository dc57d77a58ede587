//! The control group of a command (cgroup v2): made before it starts, with limits over all its processes, and removed when it is empty.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::PathBuf;

use crate::messages::Group;

pub(crate) struct Grouped {
    folder: PathBuf,
    /// What joins by writing to it.
    pub members: File,
}

/// What a group knows of its processes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub ran_out_of_memory: bool,
    /// Bytes, of all of them together.
    pub peak_memory: Option<u64>,
}

impl Grouped {
    /// Makes the group, with so many bytes of memory. `cores` are numbers of the system.
    pub fn create(group: &Group, memory: Option<u64>, cores: &[usize]) -> io::Result<Self> {
        let folder = PathBuf::from(&group.folder);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let set = |file: &str, value: &str| fs::write(folder.join(file), value);
        if let Some(bytes) = memory {
            set("memory.max", &bytes.to_string())?;
            set("memory.oom.group", "1")?;
            // A system without swap has no such file.
            match set("memory.swap.max", "0") {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if group.bounds_cores && !cores.is_empty() {
            let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
            set("cpuset.cpus", &cores.join(","))?;
        }
        let members = OpenOptions::new().write(true).open(folder.join("cgroup.procs"))?;
        Ok(Self { folder, members })
    }

    pub fn kill(&self) {
        // Kernels before 5.14 have no such file: then its processes are killed as children alone.
        drop(fs::write(self.folder.join("cgroup.kill"), "1"));
    }

    pub fn usage(&self) -> Usage {
        let read = |file: &str| fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let kills = read("memory.events")
            .lines()
            .filter_map(|line| line.strip_prefix("oom_kill ")?.parse::<u64>().ok())
            .sum::<u64>();
        Usage { ran_out_of_memory: kills > 0, peak_memory: read("memory.peak").trim().parse().ok() }
    }
}

/// The process that calls this joins. It takes no memory.
pub(crate) fn join(mut members: &File) -> io::Result<()> {
    members.write_all(b"0")
}

impl Drop for Grouped {
    fn drop(&mut self) {
        drop(fs::remove_dir(&self.folder)); // What hangs in the kernel keeps it.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_and_the_usage_is_read() {
        // As the system would have made it.
        let fake = tempfile::tempdir().unwrap();
        let read = |file: &str| fs::read_to_string(fake.path().join(file)).unwrap();
        fs::write(fake.path().join("cgroup.procs"), "").unwrap();
        let group = Group { folder: fake.path().to_str().unwrap().to_owned(), bounds_cores: true };
        let grouped = Grouped::create(&group, Some(64 << 20), &[1, 3]).unwrap();
        assert_eq!(
            ["memory.max", "memory.swap.max", "memory.oom.group", "cpuset.cpus"].map(read),
            ["67108864", "0", "1", "1,3"]
        );
        join(&grouped.members).unwrap();
        grouped.kill();
        assert_eq!((read("cgroup.procs"), read("cgroup.kill")), ("0".into(), "1".into()));
        assert_eq!(grouped.usage(), Usage::default());
        fs::write(fake.path().join("memory.events"), "low 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 1\n")
            .unwrap();
        fs::write(fake.path().join("memory.peak"), "67100000\n").unwrap();
        assert_eq!(grouped.usage(), Usage { ran_out_of_memory: true, peak_memory: Some(67_100_000) });
    }
}
