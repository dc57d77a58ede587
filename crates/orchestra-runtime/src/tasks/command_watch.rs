//! Looks once a second at the commands that run: the memory that their processes have, and on which GPUs these are, by the lists of the driver; and at what
//! is free of these GPUs. What that means is decided in `orchestra_core::tasks`. In a container the driver may name processes otherwise: then none is seen.
//! What is known of the commands goes to a file in the output folder, for `orchestra tasks --watch`.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use orchestra_core::locked;

use orchestra_core::tasks::{CommandOnGpu, GpuUse};
use orchestra_machine::{GpuProbe, ProbeError};
use orchestra_worker::keeper::{Descendant, trees};
use rustix::process::Pid;

use crate::context::RunContext;
use crate::tasks::board::TaskBoard;
use crate::tasks::live::LiveFile;

/// The commands of a run. Its thread ends with it.
pub struct CommandWatch {
    seen: Arc<WatchedCommands>,
    file: Arc<LiveFile>,
    _end: Option<Sender<()>>,
}

#[derive(Default)]
struct WatchedCommands(Mutex<CommandTable>);

#[derive(Default)]
struct CommandTable {
    gpus: GpuUse,
    commands: BTreeMap<usize, WatchedCommand>,
    /// When the last look at the GPUs began, and the bytes that were free of each, by its UUID.
    free: (Duration, HashMap<String, u64>),
}

struct WatchedCommand {
    name: String,
    keeper: Pid,
    /// It has begun since the last look.
    is_new: bool,
}

impl CommandWatch {
    /// Looks as often as at the devices of workers: at GPUs where there are some, and a driver that lists their processes.
    pub fn start(context: &Arc<RunContext>) -> Self {
        let seen = Arc::new(WatchedCommands::default());
        let file = Arc::new(LiveFile::new(&context.plan.output));
        let (end, is_over) = channel();
        let bug = context.bug.clone();
        let looks = {
            let (context, seen, file) = (Arc::clone(context), Arc::clone(&seen), Arc::clone(&file));
            let options = &context.options.devices;
            let (every, probe) = (options.look_every, options.probe.clone());
            let probe = probe.filter(|_| !context.plan.tasks.gpus.is_empty());
            if probe.as_ref().is_some_and(|probe| !probe.ids_are_ours()) {
                tracing::warn!(
                    "the driver calls processes by other numbers than this container: a command on a GPU without a lease is not found, and what commands \
                     take of a GPU is not seen; a container that shares the process ids of its host has both"
                );
            }
            move || {
                while is_over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    seen.look(probe.as_deref(), &context.tasks, context.clock.now());
                    file.write(context.tasks.reports(&context.plan.tasks, context.clock.now()));
                }
            }
        };
        let looks = move || drop(bug.caught("the look at the commands", looks));
        let started = thread::Builder::new().name("commands".into()).spawn(looks);
        let end = started.map(|_| end);
        let end = end.inspect_err(|error| tracing::warn!(%error, "running commands are not looked at")).ok();
        Self { seen, file, _end: end }
    }

    /// No command runs any more: the file that names them is gone when this returns, while the thread may still wait for the driver.
    pub fn over(&self) {
        self.file.remove();
    }

    /// A command runs in this keeper, on these GPUs.
    pub fn begin(&self, task: usize, name: &str, keeper: Pid, gpus: Vec<String>) {
        let mut inner = locked(&self.seen.0);
        inner.gpus.begin(task, gpus);
        inner.commands.insert(task, WatchedCommand { name: name.to_owned(), keeper, is_new: true });
    }

    /// It has ended: the most bytes that it was seen to hold of one of its GPUs.
    pub fn end(&self, task: usize) -> u64 {
        let mut inner = locked(&self.seen.0);
        inner.commands.remove(&task);
        inner.gpus.end(task)
    }

    /// Bytes of this GPU that were free at the last look, and when that began; `None` where the driver did not tell.
    pub fn free(&self, uuid: &str) -> Option<(Duration, u64)> {
        let inner = locked(&self.seen.0);
        let (began, free) = &inner.free;
        Some((*began, *free.get(uuid)?))
    }
}

impl Drop for CommandWatch {
    fn drop(&mut self) {
        self.over();
    }
}

impl WatchedCommands {
    /// The lock is not held while the driver or the kernel is asked.
    fn look(&self, probe: Option<&dyn GpuProbe>, board: &TaskBoard, now: Duration) {
        let (commands, has_lasted) = {
            let mut inner = locked(&self.0);
            let commands: HashMap<Pid, usize> =
                inner.commands.iter().map(|(task, command)| (command.keeper, *task)).collect();
            let has_lasted = inner.commands.values().any(|command| !command.is_new);
            inner.commands.values_mut().for_each(|command| command.is_new = false);
            (commands, has_lasted)
        };
        let mut gpus = match probe.map(GpuProbe::gpus) {
            Some(Ok(gpus) | Err(ProbeError::Partial { gpus, .. })) => gpus,
            _ => Vec::new(),
        };
        locked(&self.0).free = (now, gpus.iter().map(|gpu| (gpu.uuid.clone(), gpu.memory_free)).collect());
        if commands.is_empty() || probe.is_some_and(|probe| !probe.ids_are_ours()) {
            gpus.clear();
        }
        let are_used = gpus.iter().any(|gpu| !gpu.processes.is_empty());
        // Commands that are over within a second cost nothing here.
        if !has_lasted && !are_used {
            return;
        }
        let roots: Vec<Pid> = commands.keys().copied().collect();
        let processes = trees(&roots);
        let pid = |process: &Descendant| process.pid.as_raw_nonzero().get().cast_unsigned();
        let owners: HashMap<u32, Pid> =
            processes.iter().map(|process| (pid(process), process.root)).collect();
        let mut memory: HashMap<Pid, u64> = HashMap::new();
        for process in &processes {
            *memory.entry(process.root).or_default() += process.memory;
        }
        let mut inner = locked(&self.0);
        // A task whose command has ended meanwhile may have another keeper by now.
        let has = |inner: &CommandTable, task: usize, keeper: Pid| {
            inner.commands.get(&task).is_some_and(|command| command.keeper == keeper)
        };
        for (keeper, bytes) in memory {
            if has(&inner, commands[&keeper], keeper) {
                board.has_memory(commands[&keeper], bytes);
            }
        }
        let mut sightings = Vec::new();
        for gpu in &gpus {
            for process in &gpu.processes {
                let Some(keeper) = owners.get(&process.pid) else { continue };
                let task = commands[keeper];
                if has(&inner, task, *keeper) {
                    sightings.push(CommandOnGpu { task, gpu: gpu.uuid.clone(), memory: process.memory });
                }
            }
        }
        for (task, gpu) in inner.gpus.look(&sightings) {
            if let Some(command) = inner.commands.get(&task) {
                tracing::warn!(
                    task = %command.name, %gpu,
                    "a command is on a GPU that it has no lease on, and may take memory of others there; it must keep to `CUDA_VISIBLE_DEVICES`"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use orchestra_machine::{FakeProbe, Gpu, GpuProcess};
    use orchestra_plan::TasksPlan;

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
        // A program that has just begun has next to no memory.
        let resident = || {
            let pages = std::fs::read_to_string(format!("/proc/{}/statm", child.id())).unwrap();
            pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
        };
        let looks =
            (0..10_000_000).take_while(|_| resident() < 64).inspect(|_| std::thread::yield_now()).count();
        assert!(resident() >= 64, "after {looks} looks it has {} pages", resident());
        let keeper = rustix::process::getpid();
        let watch =
            CommandWatch { seen: Arc::default(), file: Arc::new(LiveFile::new(Path::new(""))), _end: None };
        watch.begin(0, "train", keeper, vec!["GPU-a".to_owned()]);
        let board = TaskBoard::of_one_that_runs();
        let look = |gpus| watch.seen.look(Some(&FakeProbe::new(gpus)), &board, Duration::ZERO);
        look(vec![gpu("GPU-a"), gpu("GPU-b")]);
        let memory = board.reports(&TasksPlan::default(), Duration::ZERO)[0].peak_memory;
        assert!((1 << 16..1 << 30).contains(&memory), "{memory} bytes of `sleep`");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(watch.end(0), 7);
    }
}
