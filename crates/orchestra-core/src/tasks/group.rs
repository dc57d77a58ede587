//! Whether commands get control groups (cgroup v2) with limits over all their processes, or each process a limit of its own. It reads no file.

use std::fmt;

/// What the control group of this process is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupView {
    /// What it may give to its children: `cgroup.controllers`.
    pub controllers: Vec<String>,
    /// What it gives to its children: `cgroup.subtree_control`.
    pub enabled: Vec<String>,
    /// This process may make children of it, and move processes.
    pub is_writable: bool,
    /// Processes in it that this one has not started, itself left out.
    pub strangers: usize,
}

/// Whose the control group of this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupOwner {
    /// A program's that has orchestra as a library: nothing of it is moved, and nothing of the group changed.
    #[default]
    Host,
    /// The run's alone.
    Run,
}

/// How commands are bounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bounds {
    /// A group for each. Where something is to be enabled, this process and all that it has started move into a child of their own before: a
    /// group with processes gives its children nothing.
    Groups {
        /// What is not given to the children yet.
        enable: Vec<&'static str>,
        /// `cpus` bounds what the processes may choose from.
        cores: bool,
    },
    /// A limit for each process.
    Processes(WhyNot),
}

/// Why there are no groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyNot {
    /// The system has none of this kind.
    NoGroups,
    /// Others own it.
    NotWritable,
    /// It can give its children no limit on memory.
    NoController,
    /// They would have to be moved.
    Strangers(usize),
    /// The host would have to be moved.
    OfHost,
}

/// How commands are bounded where the group of this process is this, and whose; `None`: it has none.
#[must_use]
pub fn bounds(view: Option<&GroupView>, owner: GroupOwner) -> Bounds {
    let Some(view) = view else { return Bounds::Processes(WhyNot::NoGroups) };
    let gives = |name: &str| view.controllers.iter().any(|controller| controller == name);
    let wanted = ["memory", "cpuset"].into_iter().filter(|name| gives(name));
    let enable: Vec<&str> =
        wanted.filter(|name| !view.enabled.iter().any(|enabled| enabled == name)).collect();
    match view {
        _ if !view.is_writable => Bounds::Processes(WhyNot::NotWritable),
        _ if !gives("memory") => Bounds::Processes(WhyNot::NoController),
        _ if !enable.is_empty() && owner == GroupOwner::Host => Bounds::Processes(WhyNot::OfHost),
        _ if !enable.is_empty() && view.strangers > 0 => Bounds::Processes(WhyNot::Strangers(view.strangers)),
        _ => Bounds::Groups { enable, cores: gives("cpuset") },
    }
}

/// For people.
impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bounds::Groups { cores: true, .. } => {
                f.write_str("`memory` bounds all processes of a command together, and `cpus` what they may use (cgroup v2)")
            }
            Bounds::Groups { .. } => {
                f.write_str("`memory` bounds all processes of a command together (cgroup v2)")
            }
            Bounds::Processes(why) => write!(f, "`memory` bounds each process of a command by itself: {why}"),
        }
    }
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyNot::NoGroups => f.write_str("there is no cgroup v2 here"),
            WhyNot::NotWritable => {
                f.write_str("the control group of this process is not delegated to its user")
            }
            WhyNot::NoController => {
                f.write_str("the control group of this process has no controller `memory`")
            }
            WhyNot::OfHost => {
                f.write_str("the control group is that of the program that the run is a part of")
            }
            WhyNot::Strangers(n) => write!(f, "{n} other processes are in the control group of this one"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_used_where_they_are_ours_alone_and_have_memory() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let delegated = GroupView {
            controllers: names(&["cpuset", "cpu", "memory", "pids"]),
            enabled: names(&["cpuset"]),
            is_writable: true,
            strangers: 0,
        };
        let groups = Bounds::Groups { enable: vec!["memory"], cores: true };
        assert_eq!(bounds(Some(&delegated), GroupOwner::Run), groups);
        assert_eq!(bounds(Some(&delegated), GroupOwner::Host), Bounds::Processes(WhyNot::OfHost));
        for (view, why) in [
            (None, WhyNot::NoGroups),
            (Some(GroupView { is_writable: false, ..delegated.clone() }), WhyNot::NotWritable),
            (
                Some(GroupView { controllers: names(&["cpu", "hugetlb"]), ..delegated.clone() }),
                WhyNot::NoController,
            ),
            (Some(GroupView { strangers: 2, ..delegated.clone() }), WhyNot::Strangers(2)),
        ] {
            assert_eq!(bounds(view.as_ref(), GroupOwner::Run), Bounds::Processes(why));
        }
        let enabled = GroupView { enabled: names(&["cpuset", "memory"]), strangers: 2, ..delegated };
        for owner in [GroupOwner::Run, GroupOwner::Host] {
            let groups = Bounds::Groups { enable: vec![], cores: true };
            assert_eq!(bounds(Some(&enabled), owner), groups, "nothing is to be moved");
        }
    }
}
