//! Commands that outlive their run (`on_run_death = "keep"`): a file for each in the output folder, locked by its keeper for as long as it lives,
//! says what the command is and has. It starts and ends nothing but what [`end_all`] is asked to.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use orchestra_core::tasks::Start;
use orchestra_keeper::{STOP_SIGNAL, adopt, is_free, is_stopped, kill_tree};
use orchestra_plan::TasksPlan;
use orchestra_store::OutputFolder;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// How often it is looked whether a command has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A command, and what it has to itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outliving {
    pub task: String,
    pub attempt: u32,
    slot: u64,
    /// By their UUIDs: their places may be others in another start.
    gpus: Vec<String>,
    cores: Vec<u64>,
    /// The folder of its control group, where it has one.
    #[serde(default)]
    pub control_group: Option<PathBuf>,
}

/// A command that has outlived its run.
#[derive(Debug)]
pub struct Survivor {
    pub command: Outliving,
    pub socket: UnixStream,
    pub keeper: Pid,
    pub lock: PathBuf,
}

impl Outliving {
    pub fn new(plan: &TasksPlan, start: &Start, control_group: Option<PathBuf>) -> Self {
        let lease = &start.lease;
        Self {
            task: plan.tasks[start.task].id.clone(),
            attempt: start.attempt,
            slot: lease.slot as u64,
            gpus: lease.gpus.iter().map(|gpu| plan.gpus[*gpu].uuid.clone()).collect(),
            cores: lease.cores.iter().map(|core| *core as u64).collect(),
            control_group,
        }
    }

    /// Its slot, and its GPUs and cores by their places in this plan.
    pub fn lease(&self, plan: &TasksPlan) -> (usize, Vec<usize>, Vec<usize>) {
        let place = |uuid: &String| plan.gpus.iter().position(|gpu| gpu.uuid == *uuid);
        (
            self.slot as usize,
            self.gpus.iter().filter_map(place).collect(),
            self.cores.iter().map(|core| *core as usize).collect(),
        )
    }

    /// Writes its file, for its keeper to lock.
    pub fn write(&self, output: &Path) -> io::Result<()> {
        fs::create_dir_all(folder(output))?;
        fs::write(lock_file(output, &self.task, self.attempt), serde_json::to_vec(self)?)
    }
}

/// The file that the keeper of a command that outlives its run has locked.
pub fn lock_file(output: &Path, task: &str, attempt: u32) -> PathBuf {
    let digest = format!("{:x}", Sha256::digest(format!("{attempt} {task}")));
    folder(output).join(&digest[..32])
}

/// Forgets a command that has ended.
pub fn forget(output: &Path, task: &str, attempt: u32) {
    remove(&lock_file(output, task, attempt));
}

/// The commands that have outlived the runs into this folder, each asked for. Files of those that have ended go.
pub fn survivors(output: &Path) -> io::Result<Vec<Survivor>> {
    let mut survivors = Vec::new();
    for lock in locks(output)? {
        let Some((socket, keeper)) = adopt(&lock)? else {
            remove(&lock);
            continue;
        };
        let command = serde_json::from_slice(&fs::read(&lock)?)?;
        survivors.push(Survivor { command, socket, keeper, lock });
    }
    Ok(survivors)
}

/// The tasks whose commands have outlived the runs into this folder, without asking for them.
pub fn alive(output: &Path) -> BTreeSet<String> {
    let locks = locks(output).unwrap_or_default();
    let living = locks.iter().filter(|lock| is_free(lock).is_ok_and(|is_free| !is_free));
    let read = |lock: &PathBuf| serde_json::from_slice::<Outliving>(&fs::read(lock).ok()?).ok();
    living.filter_map(read).map(|command| command.task).collect()
}

/// Asks these to end, and waits until they have.
pub fn end_all(survivors: Vec<Survivor>) -> io::Result<()> {
    for Survivor { command, socket, .. } in &survivors {
        tracing::warn!(task = %command.task, "a command that has outlived its run is asked to end");
        let mut socket: &UnixStream = socket;
        drop(socket.write_all(&[STOP_SIGNAL])); // An error means that it has ended.
    }
    wait_for_all(survivors)
}

/// Waits until these have ended by themselves.
pub fn wait_for_all(survivors: Vec<Survivor>) -> io::Result<()> {
    for Survivor { command, keeper, lock, .. } in survivors {
        tracing::warn!(task = %command.task, keeper = %keeper, "waiting for the end of a command that has outlived its run");
        while !is_free(&lock)? {
            // One that was stopped by a signal would never end, whenever that was.
            if is_stopped(keeper) {
                tracing::error!(pid = %keeper, "the keeper of a command was stopped by a signal: it is killed with the command");
                kill_tree(keeper);
            }
            sleep(LOOK_EVERY);
        }
        remove(&lock);
    }
    Ok(())
}

fn folder(output: &Path) -> PathBuf {
    output.join(OutputFolder::private_file("outliving"))
}

fn locks(output: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder(output)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_none()).collect())
}

/// What cannot be removed now is at the next start.
fn remove(lock: &Path) {
    drop(fs::remove_file(lock.with_extension("socket")));
    drop(fs::remove_file(lock));
}
