//! The control groups (cgroup v2) of commands: looks whether this process may make some, and prepares its own. What that means is decided in
//! `orchestra_core::tasks`; the group of a command is made by its keeper.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use orchestra_core::tasks::{Bounds, GroupOwner, GroupView, WhyNot, bounds};
use orchestra_keeper::{Group, descendants};
use rustix::fs::{Access, access};
use rustix::process::getpid;

const MOUNT: &str = "/sys/fs/cgroup";
/// The child of its group in which this process is, once commands have others.
const OWN_CHILD: &str = "orchestra";

/// Where commands get groups.
#[derive(Debug)]
pub struct Groups {
    folder: PathBuf,
    bounds_cores: bool,
}

/// How commands of a run that owns this process would be bounded here. It changes nothing.
#[must_use]
pub fn command_bounds() -> Bounds {
    bounds(here().as_ref().map(|(_, view)| view), GroupOwner::Run)
}

impl Groups {
    /// Prepares the group of this process, where it may; says once which bounds are in force.
    pub fn prepare(owner: GroupOwner) -> Option<Self> {
        let here = here();
        let mut in_force = bounds(here.as_ref().map(|(_, view)| view), owner);
        let mut groups = None;
        if let (Some((folder, _)), Bounds::Groups { enable, cores }) = (here, in_force.clone()) {
            match enable_in(&folder, &enable) {
                Ok(()) => groups = Some(Self { folder, bounds_cores: cores }),
                Err(error) => {
                    tracing::warn!(%error, folder = %folder.display(), "the control group of this process cannot be used");
                    in_force = Bounds::Processes(WhyNot::NotWritable);
                }
            }
        }
        tracing::info!(bounds = %in_force, "bounds on commands");
        groups
    }

    /// The group of the command that has this slot: no other one has it.
    pub fn of_slot(&self, slot: usize) -> Group {
        let name = format!("orchestra-{}-{slot}", getpid().as_raw_nonzero());
        Group {
            folder: self.folder.join(name).to_string_lossy().into_owned(),
            bounds_cores: self.bounds_cores,
        }
    }
}

fn here() -> Option<(PathBuf, GroupView)> {
    let ours: BTreeSet<i32> =
        descendants(getpid()).into_iter().chain([getpid()]).map(|pid| pid.as_raw_nonzero().get()).collect();
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    view(Path::new(MOUNT), &own, |pid| ours.contains(&pid))
}

/// The group of this process below `mount`, as the line `0::/..` of `own` names it.
fn view(mount: &Path, own: &str, is_ours: impl Fn(i32) -> bool) -> Option<(PathBuf, GroupView)> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = mount.join(path);
    let words = |file: &str| -> Option<Vec<String>> {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        Some(text.split_whitespace().map(str::to_owned).collect())
    };
    let may_write = |file: &str| access(folder.join(file), Access::WRITE_OK).is_ok();
    let members = words("cgroup.procs")?;
    let view = GroupView {
        controllers: words("cgroup.controllers")?,
        enabled: words("cgroup.subtree_control")?,
        is_writable: ["", "cgroup.procs", "cgroup.subtree_control"].into_iter().all(may_write),
        strangers: members.iter().filter(|pid| !pid.parse().is_ok_and(&is_ours)).count(),
    };
    Some((folder, view))
}

/// Moves the processes of a group into a child, and gives these controllers to its children.
fn enable_in(folder: &Path, controllers: &[&str]) -> io::Result<()> {
    if controllers.is_empty() {
        return Ok(());
    }
    let child = folder.join(OWN_CHILD);
    match fs::create_dir(&child) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for pid in fs::read_to_string(folder.join("cgroup.procs"))?.lines() {
        match fs::write(child.join("cgroup.procs"), pid) {
            // It has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            moved => moved?,
        }
    }
    let text: Vec<String> = controllers.iter().map(|name| format!("+{name}")).collect();
    fs::write(folder.join("cgroup.subtree_control"), text.join(" "))
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
        assert!(view(fake.path(), own, |_| true).is_none(), "a group without files is none");
        for (file, text) in [
            ("cgroup.procs", "7\n8\n"),
            ("cgroup.controllers", "cpu memory\n"),
            ("cgroup.subtree_control", "\n"),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
        let (found, seen) = view(fake.path(), own, |pid| pid == 7).unwrap();
        assert_eq!((&found, seen.strangers, seen.is_writable), (&folder, 1, true));
        let bounds = |view| bounds(view, GroupOwner::Run);
        assert_eq!(bounds(Some(&seen)), Bounds::Processes(WhyNot::Strangers(1)));
        let (_, ours) = view(fake.path(), own, |_| true).unwrap();
        let Bounds::Groups { enable, cores: false } = bounds(Some(&ours)) else { panic!("{ours:?}") };
        enable_in(&folder, &enable).unwrap();
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
        assert_eq!(
            (read("orchestra/cgroup.procs"), read("cgroup.subtree_control")),
            ("8".into(), "+memory".into())
        );
    }
}
