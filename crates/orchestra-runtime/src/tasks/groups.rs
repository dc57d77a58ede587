//! The control groups (cgroup v2) of commands: looks whether this process may make some, and prepares its own. The group of a command is made
//! by its keeper.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use orchestra_worker::keeper::{CommandGroup, trees};
use rustix::fs::{Access, access};
use rustix::process::getpid;

const MOUNT: &str = "/sys/fs/cgroup";
/// The child of its group in which this process is, once commands have others.
const OWN_CHILD: &str = "orchestra";

/// Whose the control group of this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupOwner {
    /// A program's that has orchestra as a library: nothing of it is moved, and nothing of the group changed.
    #[default]
    Host,
    Run,
}

/// Where commands get groups.
#[derive(Debug)]
pub struct Groups {
    folder: PathBuf,
    bounds_cores: bool,
    /// Controllers that the group of this process does not give to its children yet.
    missing: Vec<&'static str>,
}

/// How commands of a run that owns this process would be bounded here, for people. It changes nothing.
pub fn command_bounds() -> String {
    in_words(&Groups::find(GroupOwner::Run))
}

fn in_words(found: &Result<Groups, String>) -> String {
    match found {
        Ok(Groups { bounds_cores: true, .. }) => {
            "`memory` bounds all processes of a command together, and `cpus` what they may use (cgroup v2)"
                .to_owned()
        }
        Ok(_) => "`memory` bounds all processes of a command together (cgroup v2)".to_owned(),
        Err(why) => format!("`memory` bounds each process of a command by itself: {why}"),
    }
}

impl Groups {
    /// Prepares the group of this process, where it may; says once which bounds are in force.
    pub fn prepare(owner: GroupOwner) -> Option<Self> {
        let enabled = |groups: Self| match groups.enable() {
            Ok(()) => Ok(groups),
            Err(error) => Err(format!("`{}` cannot be used: {error}", groups.folder.display())),
        };
        let found = Self::find(owner).and_then(enabled);
        tracing::info!(bounds = in_words(&found), "bounds on commands");
        found.ok()
    }

    /// The group of the command that has this slot: no other one has it.
    pub fn of_slot(&self, slot: usize) -> CommandGroup {
        let name = format!("orchestra-{}-{slot}", getpid().as_raw_nonzero());
        CommandGroup {
            folder: self.folder.join(name).to_string_lossy().into_owned(),
            bounds_cores: self.bounds_cores,
        }
    }

    fn find(owner: GroupOwner) -> Result<Self, String> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let started = trees(&[getpid()]).into_iter().map(|process| process.pid);
        let ours: BTreeSet<String> =
            started.chain([getpid()]).map(|pid| pid.as_raw_nonzero().to_string()).collect();
        Self::below(Path::new(MOUNT), &own, owner, |pid| ours.contains(pid))
    }

    /// In the group of this process below `mount`, as the line `0::/..` of `own` names it; or why commands get none. Where a controller is
    /// missing, this process and all that it has started have to move: a group with processes gives its children nothing.
    fn below(
        mount: &Path,
        own: &str,
        owner: GroupOwner,
        is_ours: impl Fn(&str) -> bool,
    ) -> Result<Self, String> {
        let path = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let folder = mount.join(path.ok_or("there is no cgroup v2 here")?);
        let words = |file: &str| -> Result<Vec<String>, String> {
            let text = fs::read_to_string(folder.join(file)).map_err(|_| "there is no cgroup v2 here")?;
            Ok(text.split_whitespace().map(str::to_owned).collect())
        };
        let [controllers, enabled, members] =
            [words("cgroup.controllers")?, words("cgroup.subtree_control")?, words("cgroup.procs")?];
        let has = |names: &[String], name: &str| names.iter().any(|has| has == name);
        let may_write = |file: &str| access(folder.join(file), Access::WRITE_OK).is_ok();
        if !["", "cgroup.procs", "cgroup.subtree_control"].into_iter().all(may_write) {
            return Err("the control group of this process is not delegated to its user".to_owned());
        }
        if !has(&controllers, "memory") {
            return Err("the control group of this process has no controller `memory`".to_owned());
        }
        let wanted = ["memory", "cpuset"].into_iter().filter(|name| has(&controllers, name));
        let missing: Vec<&str> = wanted.filter(|name| !has(&enabled, name)).collect();
        let strangers = members.iter().filter(|pid| !is_ours(pid)).count();
        match (owner, strangers) {
            _ if missing.is_empty() => {}
            (GroupOwner::Host, _) => {
                return Err("the control group is that of the program that the run is a part of".to_owned());
            }
            (GroupOwner::Run, 0) => {}
            (GroupOwner::Run, n) => {
                return Err(format!("{n} other processes are in the control group of this one"));
            }
        }
        Ok(Self { bounds_cores: has(&controllers, "cpuset"), folder, missing })
    }

    /// Moves the processes of the group into a child, and gives what is missing to its children.
    fn enable(&self) -> io::Result<()> {
        if self.missing.is_empty() {
            return Ok(());
        }
        let child = self.folder.join(OWN_CHILD);
        fs::create_dir_all(&child)?;
        for pid in fs::read_to_string(self.folder.join("cgroup.procs"))?.lines() {
            match fs::write(child.join("cgroup.procs"), pid) {
                // It has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                moved => moved?,
            }
        }
        let text: Vec<String> = self.missing.iter().map(|name| format!("+{name}")).collect();
        fs::write(self.folder.join("cgroup.subtree_control"), text.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_is_ours_gives_its_controllers_to_those_of_commands() {
        let fake = tempfile::tempdir().unwrap();
        let folder = fake.path().join("user/run.scope");
        fs::create_dir_all(&folder).unwrap();
        let own = "1:cpu:/elsewhere\n0::/user/run.scope\n";
        let found = |owner, ours: &str| {
            let found = Groups::below(fake.path(), own, owner, |pid| ours.contains(pid));
            found.map(|groups| (groups.missing.clone(), groups))
        };
        let refused = |owner, ours: &str| found(owner, ours).unwrap_err();
        assert!(refused(GroupOwner::Run, "78").contains("no cgroup v2"), "a group without files is none");
        let set = |file: &str, text: &str| fs::write(folder.join(file), text).unwrap();
        set("cgroup.procs", "7\n8\n");
        set("cgroup.controllers", "cpu hugetlb\n");
        set("cgroup.subtree_control", "\n");
        assert!(refused(GroupOwner::Run, "78").contains("no controller `memory`"));
        set("cgroup.controllers", "cpu memory\n");
        assert!(refused(GroupOwner::Run, "7").starts_with("1 other processes"));
        assert!(refused(GroupOwner::Host, "78").contains("that of the program"));
        let (missing, groups) = found(GroupOwner::Run, "78").unwrap();
        assert_eq!((missing, groups.bounds_cores), (vec!["memory"], false));
        groups.enable().unwrap();
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
        assert_eq!(
            (read("orchestra/cgroup.procs"), read("cgroup.subtree_control")),
            ("8".into(), "+memory".into())
        );
        set("cgroup.controllers", "cpuset memory\n");
        set("cgroup.subtree_control", "cpuset memory\n");
        for owner in [GroupOwner::Run, GroupOwner::Host] {
            let (missing, groups) = found(owner, "7").unwrap();
            assert_eq!((missing.len(), groups.bounds_cores), (0, true), "nothing is to be moved");
        }
    }
}
