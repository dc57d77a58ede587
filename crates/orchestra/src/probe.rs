//! Finds out where the items of a batch lie in the outputs of a model: starts a worker process that runs it a few times on the CPU, and keeps what it
//! said for every later plan of this user.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orchestra_core::probing::EDITION;
use orchestra_core::{ProbedModel, SessionTuning};
use orchestra_onnx::OnnxSpec;
use orchestra_onnx::library::{Env, Flavor, Library, Request, Silent, find, find_or_fetch};
use orchestra_onnx::probe::{PROBE, Probe};
use orchestra_plan::{ModelPlan, ProbeModel, ProbeRequest};
use orchestra_runtime::ProcessLauncher;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::engines::environment;
use crate::program::listen;

/// How long a model may take for its few batches: it may be large, and the machine busy.
const WITHIN: Duration = Duration::from_secs(120);

/// Runs models in worker processes.
#[derive(Debug, Clone)]
pub(crate) struct ModelProbe {
    /// What starts them, or why nothing does.
    pub launcher: Result<ProcessLauncher, String>,
    /// ONNX Runtime's shared library; `None` searches for it, and fetches it if need be.
    pub ort_library: Option<PathBuf>,
    /// Never use the network.
    pub offline: bool,
}

/// What was found of a model. All but `found` says of what, so that a file that was renamed is not believed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    model: String,
    runtime: String,
    /// Inputs with their shapes, outputs, the only batch, and libraries of operators.
    asked: String,
    /// Of orchestra, which decides what is tried.
    version: String,
    found: ProbedModel,
}

impl ProbeModel for ModelProbe {
    fn probe(&self, request: &ProbeRequest<'_>) -> Result<ProbedModel, String> {
        let launcher = self.launcher.as_ref().map_err(String::clone)?;
        let library = self.library()?;
        let operators: Vec<String> = request.model.custom_ops.iter().map(|(_, digest)| hex(digest)).collect();
        let mut record = Record {
            model: hex(&request.model.digest),
            runtime: library.version.clone().unwrap_or_else(|| library.path.display().to_string()),
            asked: format!(
                "{:?} {:?} {:?} {} {operators:?}",
                request.inputs, request.outputs, request.batch, request.is_alone
            ),
            version: format!("{} {EDITION}", env!("CARGO_PKG_VERSION")),
            found: ProbedModel::default(),
        };
        let file = Env::from_process().user_folder().map(|folder| record.file(&folder.join("outputs")));
        if let Some(found) = file.as_ref().and_then(|file| record.look_up(file)) {
            return Ok(found);
        }
        record.found = run(request, launcher, &library)?;
        if let Some(Err(error)) = file.map(|file| record.keep(&file)) {
            tracing::warn!(%error, "what a model gives could not be kept: the next plan tries it again");
        }
        Ok(record.found)
    }
}

impl ModelProbe {
    /// Any library will do, so one for GPUs that is there goes before one that would have to be fetched.
    fn library(&self) -> Result<Library, String> {
        let env = Env::from_process();
        let request = |flavor| Request { flavor, explicit: self.ort_library.clone(), offline: self.offline };
        let there = find(&request(Flavor::Cpu), &env).0.or_else(|| find(&request(Flavor::Gpu), &env).0);
        match there {
            Some(library) => Ok(library),
            None => {
                find_or_fetch(&request(Flavor::Cpu), &env, &mut Silent).map_err(|error| error.to_string())
            }
        }
    }
}

impl Record {
    fn file(&self, folder: &Path) -> PathBuf {
        let Self { model, runtime, asked, version, .. } = self;
        let digest = Sha256::digest(format!("{model} {runtime} {asked} {version}"));
        folder.join(format!("{}.json", &hex(&digest)[..32]))
    }

    fn look_up(&self, file: &Path) -> Option<ProbedModel> {
        let kept: Record = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
        let found = kept.found.clone();
        (Record { found: ProbedModel::default(), ..kept } == *self).then_some(found)
    }

    /// A reader sees all of it or nothing.
    fn keep(&self, file: &Path) -> io::Result<()> {
        fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        let unfinished = file.with_extension(format!("{}.new", std::process::id()));
        fs::write(&unfinished, text)?;
        fs::rename(&unfinished, file)
    }
}

fn run(
    request: &ProbeRequest<'_>,
    launcher: &ProcessLauncher,
    library: &Library,
) -> Result<ProbedModel, String> {
    let ModelPlan { path, file_digest, weights, custom_ops, sandbox, .. } = request.model;
    let spec = OnnxSpec {
        library: library.path.clone(),
        model: path.clone(),
        digest: *file_digest,
        weights: weights.clone(),
        custom_ops: custom_ops.clone(),
        tuning: SessionTuning::default(),
        sandbox: sandbox.clone(),
        ..OnnxSpec::default()
    };
    let (inputs, outputs) = (request.inputs.to_vec(), request.outputs.to_vec());
    let (batch, is_alone) = (request.batch, request.is_alone);
    let probe = Probe { spec, inputs, outputs, batch, is_alone }.encode()?;
    let mut variables = environment(sandbox, &orchestra_onnx::ENVIRONMENT);
    variables.push((PROBE.to_owned(), probe));
    let said = listen(launcher, &variables, WITHIN)?;
    serde_json::from_slice(&said).map_err(|error| format!("its worker says what is no finding: {error}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
