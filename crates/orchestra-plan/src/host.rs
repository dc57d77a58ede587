//! Everything the planner may ask of the world, and the real world's answers. Decides nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use orchestra_core::kernel::Compiler;
use orchestra_core::shapes::{KindSettings, Network};
use orchestra_core::{Dim, ProbedModel, Program, SandboxMode, SandboxRules, TensorSpec};
use orchestra_store::{ItemEntry, ListError, ListingSpec};
use serde::Serialize;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::kind::Kinds;
use crate::outputs::ModelOutput;
use crate::plan::ModelPlan;
use crate::tasks::{TasksEnded, TasksPlan};

/// What is larger holds no labels.
const MAX_SMALL_FILE: u64 = 64 << 20;

/// The world, as far as a plan depends on it.
pub trait Host {
    /// The kinds of sources, stages and sinks that a file may name.
    fn kinds(&self) -> Kinds;

    /// The first `n` bytes of a file, or all of it where it is shorter.
    fn head(&self, path: &Path, n: usize) -> io::Result<Vec<u8>> {
        self.read(path).map(|mut bytes| {
            bytes.truncate(n);
            bytes
        })
    }

    /// What a file or object of a source holds, as far as its kind asks for it; `None`: no file is looked into here.
    fn look(&self, request: &LookRequest<'_>) -> Option<Result<Vec<u8>, ListError>> {
        let _ = request;
        None
    }

    /// The contents of a small file (labels).
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// A variable of the environment; `None` where there is none, or no text.
    fn variable(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }

    /// SHA-256 of a file (custom operator libraries).
    fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
        self.read(path).map(|bytes| Sha256::digest(bytes).into())
    }

    /// Reads a model file: its digest, inputs and outputs.
    ///
    /// # Errors
    /// The file is missing, unreadable, no ONNX model, cut short, or uses types that cannot be fed.
    fn model(&self, path: &Path) -> Result<ModelFile, ModelError>;

    /// Some item of the source; `None` where it names nothing.
    ///
    /// # Errors
    /// A missing file, a bad pattern, a bad row.
    fn first_item(&self, spec: &ListingSpec) -> Result<Option<ItemEntry>, ListError>;

    /// What lies at `path`, links followed.
    fn file_kind(&self, path: &Path) -> FileKind;

    /// The path without `.` and `..`, as far as that changes nothing.
    fn resolve(&self, path: &Path) -> PathBuf {
        lexical(path)
    }

    /// What a program prints that is confined to `rules`, and ends by itself soon.
    ///
    /// # Errors
    /// It cannot be started, takes too long, prints too much or fails; with its last words.
    fn ask(&self, program: &Program, rules: &SandboxRules) -> Result<Vec<u8>, String> {
        let _ = (program, rules);
        Err("programs cannot be started here".to_owned())
    }

    /// What can compile kernels on this machine, newest first.
    ///
    /// # Errors
    /// Nothing can, and what to do.
    fn compilers(&self) -> Result<Vec<Compiler>, String> {
        Ok(Vec::new())
    }

    /// Per task: whether it was done in a run into this folder, and nothing that it depends on or has left has changed since.
    fn tasks_done(&self, tasks: &TasksPlan, output: &Path) -> Vec<bool> {
        let _ = output;
        vec![false; tasks.tasks.len()]
    }

    /// Whether all tasks of a table are done, and its link leads to the best of them.
    fn has_best(&self, tasks: &TasksPlan, output: &Path, table: &str) -> bool {
        let _ = (tasks, output, table);
        false
    }

    /// When tasks have ended in runs into this folder.
    fn tasks_ended(&self, tasks: &TasksPlan, output: &Path) -> TasksEnded {
        let _ = (tasks, output);
        TasksEnded::default()
    }

    /// Where programs keep what they have compiled of models; `None` where there is no such folder.
    fn engines(&self) -> Option<PathBuf> {
        None
    }

    /// Runs a model a few times; `None`: nothing is run here.
    fn probe(&self, request: &ProbeRequest<'_>) -> Option<Result<ProbedModel, String>> {
        let _ = request;
        None
    }

    /// Cores, memory and devices.
    fn machine(&self) -> Result<MachineView, String>;
}

/// What lies at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Nothing that can be reached.
    Missing,
    /// A file that can be read more than once.
    Regular,
    Folder,
    /// A pipe, a device or a socket.
    Other,
}

/// A model file, read but not loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// SHA-256 of the file alone.
    pub file_digest: [u8; 32],
    /// SHA-256 of the file; with external weights, over that and the names and digests of the weight files.
    pub digest: [u8; 32],
    /// Its files of external weights, by their names in the folder of the model, with the SHA-256 of each.
    pub weights: Vec<(String, [u8; 32])>,
    /// Bytes of the file and of its external weights.
    pub bytes: u64,
    /// What it takes and gives.
    pub signature: Signature,
}

/// Inputs and outputs of a model as its file states them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    /// What must be fed. Weights that the file lists among its inputs are left out.
    pub inputs: Vec<TensorSpec>,
    /// What comes out.
    pub outputs: Vec<ModelOutput>,
    /// Version of the ONNX file format.
    pub ir_version: i64,
    /// Version of the default operator set; 0 where the file names none.
    pub opset: i64,
    /// What those who exported it wrote into it (`metadata_props`). No more than [`MAX_METADATA`] bytes are kept.
    pub metadata: BTreeMap<String, String>,
    /// How often the graph and those within it use each operator, by its name, with its domain where that is not ONNX's own.
    pub operators: BTreeMap<String, u64>,
}

/// Behind the name of an operator that works as in training.
pub(crate) const TRAINING: &str = "(training)";

impl Signature {
    /// The outputs that are tensors, as they seem to be by their declaration: with the batch as the first dimension. A dimension that the
    /// file does not state is `Dynamic`; an output of unknown rank has the row `[?]`.
    #[must_use]
    pub fn output_tensors(&self) -> Vec<TensorSpec> {
        let batch = self.inputs.first().map_or(Dim::Dynamic, |input| input.batch);
        self.outputs.iter().filter_map(|output| output.tensor(batch)).collect()
    }

    /// The classifier of a table gives a list of maps in place of a tensor.
    pub(crate) fn has_zip_map(&self) -> bool {
        self.operators.contains_key("ai.onnx.ml.ZipMap")
    }

    /// An operator that works as in training: it takes the batch for the world, and changes what it knows of it from run to run.
    pub(crate) fn training(&self) -> Option<&str> {
        self.operators.keys().find_map(|name| name.strip_suffix(TRAINING)).map(str::trim_end)
    }
}

/// A file or object of a source that its kind asks something of, while it is planned.
#[derive(Debug, Clone, Copy)]
pub struct LookRequest<'a> {
    /// In a form of the kind, which alone reads the answer.
    pub question: &'a KindSettings,
    /// Its path, or its URL.
    pub file: &'a Path,
    /// What is needed to reach it, where it is an object.
    pub network: Option<&'a Network>,
    /// Whether what looks into it is confined.
    pub sandbox: SandboxMode,
}

/// Looks into files for a plan: in a process of its own, since others made them.
pub trait LookInto: fmt::Debug + Send + Sync {
    /// As [`SourceKind::describe`](crate::SourceKind::describe) answers.
    ///
    /// # Errors
    /// Those of that, or the process ended.
    fn look(&self, request: &LookRequest<'_>) -> Result<Vec<u8>, ListError>;
}

/// A model that is to be run a few times on the CPU, to find out where the items of a batch lie in its outputs.
#[derive(Debug, Clone, Copy)]
pub struct ProbeRequest<'a> {
    pub model: &'a ModelPlan,
    /// All inputs of the model, with rows of the shape that they will have.
    pub inputs: &'a [TensorSpec],
    /// Names of the outputs to look at.
    pub outputs: &'a [String],
    /// The only batch that the model takes.
    pub batch: Option<usize>,
    /// No batch has more than one item, and the model's file leaves no doubt of where that lies: no larger one has to be tried.
    pub is_alone: bool,
}

/// Runs models for a plan.
pub trait ProbeModel: fmt::Debug + Send + Sync {
    /// What is found; outputs are in their order.
    ///
    /// # Errors
    /// The model cannot be run.
    fn probe(&self, request: &ProbeRequest<'_>) -> Result<ProbedModel, String>;
}

/// Asks programs for a plan.
pub trait AskProgram: fmt::Debug + Send + Sync {
    /// What it prints.
    ///
    /// # Errors
    /// Those of [`Host::ask`].
    fn ask(&self, program: &Program, rules: &SandboxRules) -> Result<Vec<u8>, String>;
}

/// Bytes of metadata of a model that are kept: class names and settings take kilobytes.
pub const MAX_METADATA: usize = 4 << 20;

/// Why a model cannot be planned with. Each completes "model `name`: ".
#[derive(Debug, Error)]
pub enum ModelError {
    /// No such file.
    #[error("the file does not exist")]
    Missing,
    /// It cannot be opened or read.
    #[error("the file cannot be read: {0}")]
    Unreadable(io::Error),
    /// It is something else.
    #[error("the file is no ONNX model: {0}")]
    NotOnnx(String),
    /// It ends too early.
    #[error("the file is cut short: it ends inside a field, after {0} bytes")]
    Truncated(u64),
    /// A tensor that cannot be fed or taken.
    #[error("{0}")]
    Unsupported(String),
    /// A file of external weights is missing or unreadable.
    #[error("its weights `{file}` cannot be read: {reason}")]
    Weights {
        /// As the model names it, relative to the model's folder.
        file: String,
        reason: String,
    },
}

/// A machine as the planner sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct MachineView {
    /// Cores that this process may use.
    pub cores: usize,
    /// Bytes of memory that this process may use; 0 where unknown.
    pub memory: u64,
    /// GPUs that this process may use.
    pub devices: Vec<DeviceView>,
    /// NUMA nodes with the cores of each, where there is more than one.
    pub nodes: Vec<NodeView>,
    /// GPUs that no worker could use, since something that models need is missing. Commands have their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub for_commands: Vec<DeviceView>,
    /// Why there are no GPUs (or not all of them), as a lowercase fragment.
    pub no_gpu: Option<String>,
}

/// Cores that are near to one another and to some of the memory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct NodeView {
    /// The kernel's number for it.
    pub id: u32,
    /// Its cores that this process may use.
    pub cores: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct DeviceView {
    /// `cuda:0`
    pub name: String,
    /// NVML's UUID.
    pub uuid: String,
    /// The product, for people; may be empty.
    pub model: String,
    /// Bytes of memory.
    pub total: u64,
    /// Unused bytes.
    pub free: u64,
    /// Processes compute on it at once, by NVIDIA's Multi-Process Service; without it they take turns.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mps: bool,
    /// The NUMA node that it is plugged into, where that is known.
    pub node: Option<u32>,
}

/// Real files, and a machine that is given.
#[derive(Debug)]
pub struct RealHost {
    /// That a file may name.
    pub kinds: Kinds,
    /// Cores, memory and devices.
    pub machine: MachineView,
    /// A folder for compiled models, which need not exist.
    pub engines: Option<PathBuf>,
    /// The machine is not this one: nothing on this one is looked for.
    pub is_described: bool,
    /// What answers [`Host::ask`]; `None`: nothing is started.
    pub ask: Option<Arc<dyn AskProgram>>,
    /// What answers [`Host::compilers`]; `None`: nothing is looked for.
    pub compilers: Option<FindCompilers>,
    /// What answers [`Host::tasks_done`]; `None`: none is.
    pub tasks_done: Option<TasksDone>,
    /// What answers [`Host::has_best`]; `None`: no table has.
    pub has_best: Option<HasBest>,
    /// What answers [`Host::tasks_ended`]; `None`: no task has.
    pub tasks_ended: Option<FindTasksEnded>,
    /// What answers [`Host::probe`]; `None`: no model is run.
    pub probe: Option<Arc<dyn ProbeModel>>,
    /// What answers [`Host::look`]; `None`: no file is looked into.
    pub look: Option<Arc<dyn LookInto>>,
}

/// As [`Host::tasks_ended`].
pub type FindTasksEnded = fn(&TasksPlan, &Path) -> TasksEnded;

/// As [`Host::compilers`].
pub type FindCompilers = fn() -> Result<Vec<Compiler>, String>;

/// As [`Host::has_best`].
pub type HasBest = fn(&TasksPlan, &Path, &str) -> bool;

/// As [`Host::tasks_done`].
pub type TasksDone = fn(&TasksPlan, &Path) -> Vec<bool>;

impl RealHost {
    /// A host that remembers nothing of earlier runs.
    #[must_use]
    pub fn with_machine(kinds: Kinds, machine: MachineView) -> Self {
        Self {
            kinds,
            machine,
            engines: None,
            is_described: false,
            ask: None,
            compilers: None,
            tasks_done: None,
            has_best: None,
            tasks_ended: None,
            probe: None,
            look: None,
        }
    }
}

impl Host for RealHost {
    fn kinds(&self) -> Kinds {
        self.kinds.clone()
    }

    fn head(&self, path: &Path, n: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        open_regular(path)?.take(n as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        open_regular(path)?.take(MAX_SMALL_FILE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_SMALL_FILE {
            return Err(io::Error::other("it is larger than 64 MiB"));
        }
        Ok(bytes)
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
        digest_file(path)
    }

    fn model(&self, path: &Path) -> Result<ModelFile, ModelError> {
        crate::onnx::read_model(path)
    }

    fn first_item(&self, spec: &ListingSpec) -> Result<Option<ItemEntry>, ListError> {
        orchestra_store::first_item(spec)
    }

    fn file_kind(&self, path: &Path) -> FileKind {
        match std::fs::metadata(path) {
            Ok(m) if m.is_file() => FileKind::Regular,
            Ok(m) if m.is_dir() => FileKind::Folder,
            Ok(_) => FileKind::Other,
            Err(_) => FileKind::Missing,
        }
    }

    fn resolve(&self, path: &Path) -> PathBuf {
        // What `..` means depends on links, so the file system is asked where there is one.
        if path.components().any(|c| c == Component::ParentDir)
            && let Ok(real) = path.canonicalize()
        {
            return real;
        }
        lexical(path)
    }

    fn engines(&self) -> Option<PathBuf> {
        self.engines.clone()
    }

    fn compilers(&self) -> Result<Vec<Compiler>, String> {
        self.compilers.filter(|_| !self.is_described).map_or_else(|| Ok(Vec::new()), |look| look())
    }

    fn ask(&self, program: &Program, rules: &SandboxRules) -> Result<Vec<u8>, String> {
        let ask = self.ask.as_ref().ok_or_else(|| "this program plans without starting others".to_owned())?;
        ask.ask(program, rules)
    }

    fn tasks_done(&self, tasks: &TasksPlan, output: &Path) -> Vec<bool> {
        self.tasks_done.map_or_else(|| vec![false; tasks.tasks.len()], |done| done(tasks, output))
    }

    fn has_best(&self, tasks: &TasksPlan, output: &Path, table: &str) -> bool {
        self.has_best.is_some_and(|has_best| has_best(tasks, output, table))
    }

    fn tasks_ended(&self, tasks: &TasksPlan, output: &Path) -> TasksEnded {
        self.tasks_ended.map_or_else(TasksEnded::default, |ended| ended(tasks, output))
    }

    fn probe(&self, request: &ProbeRequest<'_>) -> Option<Result<ProbedModel, String>> {
        self.probe.as_ref().map(|probe| probe.probe(request))
    }

    fn look(&self, request: &LookRequest<'_>) -> Option<Result<Vec<u8>, ListError>> {
        self.look.as_ref().map(|look| look.look(request))
    }

    fn machine(&self) -> Result<MachineView, String> {
        Ok(self.machine.clone())
    }
}

/// Opens a file that can be read more than once: to open a pipe waits for its writer, and a device may never end.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() && !meta.is_dir() {
        return Err(io::Error::other("it is a pipe, a device or a socket; a file is expected"));
    }
    File::open(path)
}

/// SHA-256 of a file, read as a stream.
pub(crate) fn digest_file(path: &Path) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    io::copy(&mut open_regular(path)?, &mut hash)?;
    Ok(hash.finalize().into())
}

/// The path without `.` and `..`, by its text alone.
pub(crate) fn lexical(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(clean.components().next_back(), Some(Component::Normal(_))) => {
                clean.pop();
            }
            Component::ParentDir if clean.has_root() => {}
            part => clean.push(part),
        }
    }
    clean
}
