//! A kernel that runs as a program (User-mode Linux) over the files of this machine: for tests of control groups, of which a test may not take those
//! of the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use orchestra_testkit::skip::{has_programs, is_deep_check};

use crate::common::{ORCHESTRA, Workplace, repository};

const KERNEL: &str = "linux.uml";

/// A kernel that has run.
pub struct Booted {
    kept: PathBuf,
    said: String,
}

/// Boots a kernel with so much memory, which runs this script as root and ends; no longer than `seconds`. `None` where it or one of `programs` is missing, and
/// the test is skipped. The script is of `sh`, in an empty folder, in which it leaves what is to be [`Booted::kept`]. `/run` is in memory; `in_group COMMAND..`
/// runs a command as the only one of the control group `$group`, and `$orchestra` is the command under test.
#[track_caller]
pub fn boot(
    place: &Workplace,
    memory: &str,
    seconds: u32,
    programs: &[&str],
    script: &str,
) -> Option<Booted> {
    if !is_deep_check("kernels") {
        return None;
    }
    if !has_programs(&[&[KERNEL, "cc"], programs].concat(), "apt-get install user-mode-linux gcc") {
        return None;
    }
    let source = repository().join("tests/uml/xstate.c");
    let library = place.path("xstate.so");
    let compiled =
        Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(compiled.unwrap().success(), "`{}` cannot be compiled", source.display());
    let kept = place.path("kept");
    fs::create_dir(&kept).unwrap();
    let (init, path) = (place.path("init"), std::env::var("PATH").unwrap());
    let text = format!(
        r#"#!/bin/sh
export PATH='{path}':/usr/sbin:/sbin
orchestra='{ORCHESTRA}' group=/sys/fs/cgroup/run
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t tmpfs run /run && mount -t cgroup2 groups /sys/fs/cgroup
mkdir -p $group && echo +memory > /sys/fs/cgroup/cgroup.subtree_control
in_group() {{ sh -c 'echo $$ > "$0"/cgroup.procs; exec "$@"' $group "$@"; }}
cd '{}'
{script}
echo o > /proc/sysrq-trigger
sleep 1000
"#,
        kept.display()
    );
    fs::write(&init, text).unwrap();
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).unwrap();
    let ended = Command::new("timeout")
        .args([&seconds.to_string(), KERNEL, "rootfstype=hostfs", "rootflags=/", "rw"])
        .args([&format!("mem={memory}"), "con=null", "con0=null,fd:1"])
        .arg(format!("init={}", init.display()))
        .env("LD_PRELOAD", library)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Some(Booted { kept, said: String::from_utf8_lossy(&ended.stdout).into_owned() })
}

impl Booted {
    /// Where the script has run.
    pub fn folder(&self) -> &PathBuf {
        &self.kept
    }

    /// A file that it has left there.
    #[track_caller]
    pub fn kept(&self, name: &str) -> String {
        let read = fs::read_to_string(self.kept.join(name));
        read.unwrap_or_else(|error| panic!("`{name}`: {error}\n{}", self.said))
    }
}
