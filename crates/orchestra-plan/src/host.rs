//! Everything the planner may ask of the world, and the real world's answers. Decides nothing.

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use orchestra_core::kernel::Compiler;
use orchestra_core::{InputConstant, ProbedModel, Program, SandboxRules, TensorSpec};
use orchestra_store::{ItemEntry, ListError, ListingSpec};
use serde::Serialize;

use crate::files::{FileKind, Files, LookRequest, MAX_SMALL_FILE, digest_file, lexical, open_regular};
use crate::kind::Kinds;
use crate::model_file::{ModelError, ModelFile};
use crate::onnx::read_model;
use crate::plan::{ModelPlan, TaskHistory, TaskResults, TasksPlan};

/// The world, as far as a plan depends on it.
pub trait Host: Files {
    /// The kinds of sources, stages and sinks that a file may name.
    fn kinds(&self) -> Kinds;

    /// Reads a model file: its digest, inputs and outputs.
    fn model(&self, path: &Path) -> Result<ModelFile, ModelError>;

    /// Some item of the source; `None` where it names nothing.
    fn first_item(&self, spec: &ListingSpec) -> Result<Option<ItemEntry>, ListError>;

    /// What earlier runs into this folder have left of these tasks.
    fn task_history(&self, tasks: &TasksPlan, output: &Path) -> TaskHistory {
        let _ = (tasks, output);
        TaskHistory::default()
    }

    /// What tasks of earlier runs into this folder have noted.
    fn task_results(&self, output: &Path) -> TaskResults {
        let _ = output;
        TaskResults::default()
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

/// Looks into files for a plan: in a process of its own, since others made them.
pub trait LookInto: fmt::Debug + Send + Sync {
    /// As [`SourceKind::describe`](crate::SourceKind::describe) answers.
    fn look(&self, request: &LookRequest<'_>) -> Result<Vec<u8>, ListError>;
}

/// A model that is to be run a few times on the CPU, to find out where the items of a batch lie in its outputs.
#[derive(Debug, Clone, Copy)]
pub struct ProbeRequest<'a> {
    pub model: &'a ModelPlan,
    /// All inputs of the model but those of texts and constants, with rows of the shape that they will have.
    pub inputs: &'a [TensorSpec],
    pub constants: &'a [InputConstant],
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
    fn probe(&self, request: &ProbeRequest<'_>) -> Result<ProbedModel, String>;
}

/// Asks programs for a plan.
pub trait AskProgram: fmt::Debug + Send + Sync {
    /// What it prints.
    fn ask(&self, program: &Program, rules: &SandboxRules) -> Result<Vec<u8>, String>;
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
    /// What answers [`Files::ask`]; `None`: nothing is started.
    pub ask: Option<Arc<dyn AskProgram>>,
    /// What answers [`Files::compilers`]; `None`: nothing is looked for.
    pub compilers: Option<FindCompilers>,
    /// What answers [`Host::task_history`]; `None`: there were no runs.
    pub task_history: Option<FindTaskHistory>,
    /// What answers [`Host::task_results`]; `None`: there were no runs.
    pub task_results: Option<FindTaskResults>,
    /// What answers [`Host::probe`]; `None`: no model is run.
    pub probe: Option<Arc<dyn ProbeModel>>,
    /// What answers [`Files::look`]; `None`: no file is looked into.
    pub look: Option<Arc<dyn LookInto>>,
}

/// As [`Host::task_results`].
pub type FindTaskResults = fn(&Path) -> TaskResults;

/// As [`Host::task_history`].
pub type FindTaskHistory = fn(&TasksPlan, &Path) -> TaskHistory;

/// As [`Files::compilers`].
pub type FindCompilers = fn() -> Result<Vec<Compiler>, String>;

impl RealHost {
    /// A host that remembers nothing of earlier runs.
    pub fn with_machine(kinds: Kinds, machine: MachineView) -> Self {
        Self {
            kinds,
            machine,
            engines: None,
            is_described: false,
            ask: None,
            compilers: None,
            task_history: None,
            task_results: None,
            probe: None,
            look: None,
        }
    }
}

impl Files for RealHost {
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

    fn compilers(&self) -> Result<Vec<Compiler>, String> {
        self.compilers.filter(|_| !self.is_described).map_or_else(|| Ok(Vec::new()), |look| look())
    }

    fn ask(&self, program: &Program, rules: &SandboxRules) -> Result<Vec<u8>, String> {
        let ask = self.ask.as_ref().ok_or_else(|| "this program plans without starting others".to_owned())?;
        ask.ask(program, rules)
    }

    fn look(&self, request: &LookRequest<'_>) -> Option<Result<Vec<u8>, ListError>> {
        self.look.as_ref().map(|look| look.look(request))
    }
}

impl Host for RealHost {
    fn kinds(&self) -> Kinds {
        self.kinds.clone()
    }

    fn model(&self, path: &Path) -> Result<ModelFile, ModelError> {
        read_model(path)
    }

    fn first_item(&self, spec: &ListingSpec) -> Result<Option<ItemEntry>, ListError> {
        orchestra_store::first_item(spec)
    }

    fn engines(&self) -> Option<PathBuf> {
        self.engines.clone()
    }

    fn task_history(&self, tasks: &TasksPlan, output: &Path) -> TaskHistory {
        self.task_history.map_or_else(TaskHistory::default, |history| history(tasks, output))
    }

    fn task_results(&self, output: &Path) -> TaskResults {
        self.task_results.map_or_else(TaskResults::default, |results| results(output))
    }

    fn probe(&self, request: &ProbeRequest<'_>) -> Option<Result<ProbedModel, String>> {
        self.probe.as_ref().map(|probe| probe.probe(request))
    }

    fn machine(&self) -> Result<MachineView, String> {
        Ok(self.machine.clone())
    }
}
