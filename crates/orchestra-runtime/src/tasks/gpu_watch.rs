//! Looks at the GPUs while commands run: whose processes are on which, by the lists of the driver. What that means is decided in
//! `orchestra_core::tasks`. In a container the driver may name processes otherwise: then nothing is seen.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use orchestra_core::tasks::{GpuUse, Sighting};
use orchestra_keeper::descendants;
use orchestra_machine::{GpuProbe, ProbeError};
use rustix::process::Pid;
use tokio::sync::watch;

use crate::context::RunContext;

/// The GPUs of a run. Its thread ends with it.
pub struct GpuWatch {
    seen: Arc<Seen>,
    _end: Option<Sender<()>>,
}

#[derive(Default)]
struct Seen(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    gpus: GpuUse,
    /// How many commands have begun.
    begun: u64,
    commands: BTreeMap<usize, Command>,
}

struct Command {
    keeper: Pid,
    /// Which one it is of all that have begun: a keeper has one after the other.
    number: u64,
    /// The GPU on which it was seen without a lease.
    astray: watch::Sender<Option<String>>,
}

impl GpuWatch {
    /// Looks as often as at the devices of workers, where there are GPUs and a driver that lists their processes.
    pub fn start(context: &RunContext) -> Self {
        let seen = Arc::new(Seen::default());
        let options = &context.options.devices;
        let probe = options.probe.clone().filter(|_| !context.plan.tasks.gpus.is_empty());
        let end = probe.and_then(|probe| {
            let (end, is_over) = channel();
            let (seen, every) = (Arc::clone(&seen), options.look_every);
            let looks = move || {
                while is_over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    seen.look(&*probe);
                }
            };
            let started = thread::Builder::new().name("task-gpus".into()).spawn(looks);
            started
                .inspect_err(|error| tracing::warn!(%error, "the GPUs of commands are not looked at"))
                .ok()?;
            Some(end)
        });
        Self { seen, _end: end }
    }

    /// A command runs in this keeper, on these GPUs: the first other one on which it is seen.
    pub fn begin(&self, task: usize, keeper: Pid, gpus: Vec<String>) -> watch::Receiver<Option<String>> {
        let (astray, told) = watch::channel(None);
        let mut inner = self.seen.lock();
        inner.gpus.begin(task, gpus);
        inner.begun += 1;
        let number = inner.begun;
        inner.commands.insert(task, Command { keeper, number, astray });
        told
    }

    /// It has ended: the most bytes that it was seen to hold of one of its GPUs.
    pub fn end(&self, task: usize) -> u64 {
        let mut inner = self.seen.lock();
        inner.commands.remove(&task);
        inner.gpus.end(task)
    }
}

impl Seen {
    fn look(&self, probe: &dyn GpuProbe) {
        if self.lock().commands.is_empty() || !probe.ids_are_ours() {
            return;
        }
        // The lock is not held while the driver or the kernel is asked.
        let (Ok(gpus) | Err(ProbeError::Partial { gpus, .. })) = probe.gpus() else { return };
        if gpus.iter().all(|gpu| gpu.processes.is_empty()) {
            return;
        }
        let command = |(task, command): (&usize, &Command)| (*task, command.keeper, command.number);
        let commands: Vec<(usize, Pid, u64)> = self.lock().commands.iter().map(command).collect();
        let of_tree = |(task, keeper, number): (usize, Pid, u64)| {
            let pids = descendants(keeper).into_iter().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
            pids.map(move |pid| (pid, (task, number)))
        };
        let owners: HashMap<u32, (usize, u64)> = commands.into_iter().flat_map(of_tree).collect();
        let mut inner = self.lock();
        let mut sightings = Vec::new();
        for gpu in &gpus {
            for process in &gpu.processes {
                let Some((task, number)) = owners.get(&process.pid) else { continue };
                // Its keeper has had no other command meanwhile.
                if inner.commands.get(task).is_some_and(|command| command.number == *number) {
                    let (task, gpu) = (*task, gpu.uuid.clone());
                    sightings.push(Sighting { task, gpu, memory: process.memory });
                }
            }
        }
        for (task, gpu) in inner.gpus.look(&sightings) {
            if let Some(command) = inner.commands.get(&task) {
                command.astray.send_replace(Some(gpu));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is whole by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use orchestra_machine::{FakeProbe, Gpu, GpuProcess};

    use super::*;

    #[test]
    fn a_command_is_found_by_the_descendants_of_its_keeper() {
        // This process stands for the keeper, and a child of it for the command.
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = GpuProcess { pid: child.id(), memory: Some(7) };
        let stranger = GpuProcess { pid: 1, memory: Some(1000) };
        let gpu = |uuid: &str| Gpu {
            uuid: uuid.to_owned(),
            processes: vec![process.clone(), stranger.clone()],
            ..Gpu::default()
        };
        let keeper = rustix::process::getpid();
        let watch = GpuWatch { seen: Arc::default(), _end: None };
        let told = watch.begin(0, keeper, vec!["GPU-a".to_owned()]);
        watch.seen.look(&FakeProbe::new(vec![gpu("GPU-a")]));
        assert_eq!(*told.borrow(), None);
        watch.seen.look(&FakeProbe::new(vec![gpu("GPU-a"), gpu("GPU-b")]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((told.borrow().as_deref(), watch.end(0)), (Some("GPU-b"), 7));
    }
}
