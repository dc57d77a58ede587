//! Starts a command in a group of its own, with its limits. What these are is said by the order; nothing of them stays with the keeper.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::keeper::group::{Grouped, join, kernel_kills};
use crate::keeper::log::CommandLog;
use crate::keeper::messages::CommandOrder;
use crate::keeper::metrics::MetricReader;

pub(crate) struct RunningCommand {
    pub group: Pid,
    /// Its control group, where it has one.
    pub limited: Option<Grouped>,
    /// Readable when it has ended.
    pub process: OwnedFd,
    pub output: File,
    pub log: CommandLog,
    pub started: Instant,
    /// [`kernel_kills`] at that time.
    pub kernel_kills: Option<u64>,
}

/// Starts the command; why it cannot be started is a fragment for people.
pub(crate) fn start(order: &CommandOrder) -> Result<RunningCommand, String> {
    let text = |error: rustix::io::Errno| error.to_string();
    let metrics = MetricReader::new(&order.metrics, order.curves.as_deref())?;
    let log = CommandLog::create(&order.log, metrics)
        .map_err(|e| format!("its log `{}` cannot be written: {e}", order.log))?;
    let Some((program, arguments)) = order.command.split_first() else {
        return Err("it is empty".to_owned());
    };
    if !fs::metadata(&order.cwd).is_ok_and(|folder| folder.is_dir()) {
        return Err(format!("its folder `{}` does not exist", order.cwd));
    }
    let cores = cores(&order.cores).map_err(|e| format!("it cannot be kept on its cores: {e}"))?;
    let numbers: Vec<usize> =
        (0..CpuSet::MAX_CPU).filter(|core| cores.is_some_and(|set| set.is_set(*core))).collect();
    let limited =
        order.group.as_ref().map(|group| Grouped::create(group, order.memory, &numbers)).transpose();
    let limited = limited.map_err(|e| format!("its control group cannot be made: {e}"))?;
    let members = limited.as_ref().map(|group| group.members.try_clone()).transpose();
    let members = members.map_err(|e| e.to_string())?;
    let limits = limits(order);
    let kernel_kills = kernel_kills();
    let (output, written) = pipe_with(PipeFlags::CLOEXEC).map_err(text)?;
    let other = written.try_clone().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(&order.cwd)
        .envs(order.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::from(written))
        .stderr(Stdio::from(other))
        .process_group(0);
    // SAFETY: system calls, which take no memory.
    unsafe {
        command.pre_exec(move || {
            // The command ends with its keeper.
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            if let Some(members) = &members {
                join(members)?;
            }
            if let Some(cores) = &cores {
                sched_setaffinity(None, cores)?;
            }
            for (resource, limit) in limits {
                setrlimit(resource, limit)?;
            }
            Ok(())
        });
    }
    let started = Instant::now();
    let child = command.spawn().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => format!("there is no program `{program}`"),
        _ => format!("`{program}`: {e}"),
    })?;
    let group = Pid::from_child(&child);
    let process = pidfd_open(group, PidfdFlags::empty()).map_err(text)?;
    fcntl_setfl(&output, OFlags::NONBLOCK).map_err(text)?;
    // With `command` our ends of the pipe for writing are closed.
    Ok(RunningCommand { group, limited, process, output: output.into(), log, started, kernel_kills })
}

/// What the command gets of this process by these numbers.
fn limits(order: &CommandOrder) -> [(Resource, Rlimit); 2] {
    // No limit can be raised above the hard one, which then bounds the command more than it asks for.
    let at_most = |asked: Option<u64>, hard: Option<u64>| match (asked, hard) {
        (Some(asked), Some(hard)) => Some(asked.min(hard)),
        (asked, hard) => asked.or(hard),
    };
    let (data, files) = (getrlimit(Resource::Data), getrlimit(Resource::Nofile));
    let data = match order.memory.filter(|_| order.group.is_none()) {
        None => data,
        Some(bytes) => {
            let bytes = at_most(Some(bytes), data.maximum);
            Rlimit { current: bytes, maximum: bytes }
        }
    };
    let files = Rlimit { current: at_most(order.open_files, files.maximum), maximum: files.maximum };
    [(Resource::Data, data), (Resource::Nofile, files)]
}

/// The cores of this process at these places; `None` where any will do.
fn cores(places: &[u32]) -> io::Result<Option<CpuSet>> {
    if places.is_empty() {
        return Ok(None);
    }
    let may_use = sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| may_use.is_set(*core)).collect();
    let mut set = CpuSet::new();
    places.iter().filter_map(|place| cores.get(*place as usize)).for_each(|core| set.set(*core));
    Ok(Some(set))
}
