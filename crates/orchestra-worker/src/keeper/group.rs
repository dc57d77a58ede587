//! The control group of a command (cgroup v2): made before it starts, with limits over all its processes, and removed when it is empty.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::keeper::messages::CommandGroup;

/// How long what was killed may take to leave its group.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(5);

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
    pub fn create(group: &CommandGroup, memory: Option<u64>, cores: &[usize]) -> io::Result<Self> {
        make_anew(Path::new(&group.folder))?;
        Self::bounded(group, memory, cores)
    }

    fn bounded(group: &CommandGroup, memory: Option<u64>, cores: &[usize]) -> io::Result<Self> {
        let folder = PathBuf::from(&group.folder);
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
        kill_control_group(&self.folder);
    }

    pub fn usage(&self) -> Usage {
        let read = |file: &str| fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let kills = oom_kills(&read("memory.events"));
        Usage {
            ran_out_of_memory: kills.is_some_and(|kills| kills > 0),
            peak_memory: read("memory.peak").trim().parse().ok(),
        }
    }
}

/// How many processes of this machine the kernel has killed for lack of memory, in whatever group; `None` where it does not say.
pub(crate) fn kernel_kills() -> Option<u64> {
    oom_kills(&fs::read_to_string("/proc/vmstat").ok()?)
}

/// The counter in a file of the kernel with a name and a number in each line.
fn oom_kills(counters: &str) -> Option<u64> {
    counters.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
}

/// Kills all processes of a control group, also those that have left the group of their parent.
pub fn kill_control_group(folder: &Path) {
    // Kernels before 5.14 have no such file: then its processes are killed as children alone.
    let file = OpenOptions::new().write(true).open(folder.join("cgroup.kill"));
    drop(file.and_then(|mut file| file.write_all(b"1")));
}

/// Makes an empty group. Where a keeper was killed, its group is still there, with limits, counts and perhaps processes of the last command: all goes.
fn make_anew(folder: &Path) -> io::Result<()> {
    let deadline = Instant::now() + KILL_PATIENCE;
    loop {
        match fs::create_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made,
        }
        kill_control_group(folder);
        match remove(folder) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // What was killed has not ended.
            Err(_) if Instant::now() < deadline => sleep(LOOK_EVERY),
            Err(error) => {
                let why =
                    format!("`{}`, left by an earlier command, cannot be removed: {error}", folder.display());
                return Err(io::Error::new(error.kind(), why));
            }
        }
    }
}

/// Removes a group, and those that its processes have made in it. Files of groups go with them.
fn remove(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
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
        fs::write(fake.path().join("cgroup.kill"), "").unwrap();
        let group = CommandGroup { folder: fake.path().to_str().unwrap().to_owned(), bounds_cores: true };
        let grouped = Grouped::bounded(&group, Some(64 << 20), &[1, 3]).unwrap();
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
        assert_eq!(oom_kills("pgscan_khugepaged 3\noom_kill 7\nnuma_hit 1\n"), Some(7));
        assert_eq!(oom_kills("no such counter 1\n"), None);
        assert_eq!(grouped.usage(), Usage { ran_out_of_memory: true, peak_memory: Some(67_100_000) });
    }

    /// The group of a command whose keeper was killed: what is in it is killed, and then nothing of it is left.
    #[test]
    fn a_group_that_is_still_there_is_emptied_and_made_anew() {
        let fake = tempfile::tempdir().unwrap();
        let folder = fake.path().join("orchestra-1-0");
        fs::create_dir_all(folder.join("of-the-command")).unwrap();
        for (file, text) in [("cgroup.kill", ""), ("memory.max", "7"), ("memory.events", "oom_kill 2\n")] {
            fs::write(folder.join(file), text).unwrap();
        }
        // As the system: a group can be removed once its processes were killed.
        let system = std::thread::spawn({
            let folder = folder.clone();
            move || {
                while fs::read_to_string(folder.join("cgroup.kill")).unwrap() != "1" {
                    std::thread::yield_now();
                }
                ["memory.max", "memory.events", "cgroup.kill"]
                    .iter()
                    .for_each(|file| fs::remove_file(folder.join(file)).unwrap());
            }
        });
        make_anew(&folder).unwrap();
        system.join().unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir(&folder).unwrap();
        make_anew(&folder).unwrap();
        assert!(folder.is_dir());
    }
}
