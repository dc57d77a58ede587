//! Finds out where the items of a batch lie in the outputs of a model: starts a worker process that runs it a few times on the CPU, and keeps what it
//! said for every later plan of this user.

use std::cell::Cell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use orchestra_core::probing::EDITION;
use orchestra_core::{ProbedModel, SessionTuning};
use orchestra_onnx::OnnxSpec;
use orchestra_onnx::library::{Env, Flavor, Library, LibraryRequest, Silent, find, find_or_fetch};
use orchestra_onnx::probe::{PROBE, Probe};
use orchestra_plan::{ModelPlan, ProbeModel, ProbeRequest, fed_texts};
use orchestra_runtime::ProcessLauncher;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::engines::environment;
use crate::program::listen;

/// How long a model may take for its few batches: it may be large, and the machine busy.
const WITHIN: Duration = Duration::from_secs(120);
/// After so long it is said what a plan waits for.
const SAY_AFTER: Duration = Duration::from_secs(5);

/// Runs models in worker processes.
#[derive(Debug, Clone)]
pub(crate) struct ModelProbe {
    /// What starts them, or why nothing does.
    pub launcher: Result<ProcessLauncher, String>,
    /// ONNX Runtime's shared library; `None` searches for it, and fetches it if need be.
    pub ort_library: Option<PathBuf>,
    /// Never use the network.
    pub offline: bool,
    /// Is told what takes long.
    pub notice: Option<fn(&str)>,
}

/// What was found of a model. All but `found` says of what, so that a file that was renamed is not believed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct ProbeRecord {
    model: String,
    runtime: String,
    /// Inputs with their shapes, outputs, the only batch, and libraries of operators.
    asked: String,
    /// Of orchestra, which decides what is tried.
    version: String,
    /// Or that it took too long, which it would each time.
    found: Result<ProbedModel, String>,
}

impl ProbeModel for ModelProbe {
    fn probe(&self, request: &ProbeRequest<'_>) -> Result<ProbedModel, String> {
        let launcher = self.launcher.as_ref().map_err(String::clone)?;
        let library = self.library()?;
        let operators: Vec<String> = request.model.custom_ops.iter().map(|(_, digest)| hex(digest)).collect();
        let mut record = ProbeRecord {
            model: hex(&request.model.digest),
            runtime: library.version.clone().unwrap_or_else(|| library.path.display().to_string()),
            asked: format!(
                "{:?} {:?} {:?} {:?} {:?} {} {operators:?}",
                request.inputs,
                request.model.batch_axes,
                request.constants,
                request.outputs,
                request.batch,
                request.is_alone
            ),
            version: format!("{} {EDITION}", env!("CARGO_PKG_VERSION")),
            found: Ok(ProbedModel::default()),
        };
        let file = Env::from_process().user_folder().map(|folder| record.file(&folder.join("outputs")));
        if let Some(found) = file.as_ref().and_then(|file| record.look_up(file)) {
            return found;
        }
        let start = Instant::now();
        let found = run(request, launcher, &library, self.notice);
        record.found = match (found, &file) {
            (Err(why), Some(file)) if start.elapsed() >= WITHIN => {
                Err(format!("{why} (known from now on; remove `{}` to try it again)", file.display()))
            }
            (found, _) => Ok(found?),
        };
        if let Some(Err(error)) = file.map(|file| record.keep(&file)) {
            tracing::warn!(%error, "what a model gives could not be kept: the next plan tries it again");
        }
        record.found
    }
}

impl ModelProbe {
    /// Any library will do, so one for GPUs that is there goes before one that would have to be fetched.
    fn library(&self) -> Result<Library, String> {
        let env = Env::from_process();
        let request =
            |flavor| LibraryRequest { flavor, explicit: self.ort_library.clone(), offline: self.offline };
        let there = find(&request(Flavor::Cpu), &env).0.or_else(|| find(&request(Flavor::Gpu), &env).0);
        match there {
            Some(library) => Ok(library),
            None => {
                find_or_fetch(&request(Flavor::Cpu), &env, &mut Silent).map_err(|error| error.to_string())
            }
        }
    }
}

impl ProbeRecord {
    fn file(&self, folder: &Path) -> PathBuf {
        let Self { model, runtime, asked, version, .. } = self;
        let digest = Sha256::digest(format!("{model} {runtime} {asked} {version}"));
        folder.join(format!("{}.json", &hex(&digest)[..32]))
    }

    fn look_up(&self, file: &Path) -> Option<Result<ProbedModel, String>> {
        let kept: ProbeRecord = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
        let found = kept.found.clone();
        (ProbeRecord { found: Ok(ProbedModel::default()), ..kept } == *self).then_some(found)
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
    notice: Option<fn(&str)>,
) -> Result<ProbedModel, String> {
    let ModelPlan { path, file_digest, weights, custom_ops, sandbox, text_inputs, .. } = request.model;
    let spec = OnnxSpec {
        library: library.path.clone(),
        model: path.clone(),
        digest: *file_digest,
        weights: weights.clone(),
        custom_ops: custom_ops.clone(),
        tuning: SessionTuning::default(),
        sandbox: sandbox.clone(),
        text_inputs: fed_texts(text_inputs, request.constants).cloned().collect(),
        batch_axes: request.model.turned_inputs(request.inputs),
        constants: request.constants.to_vec(),
        ..OnnxSpec::default()
    };
    let (inputs, outputs) = (request.inputs.to_vec(), request.outputs.to_vec());
    let (batch, is_alone) = (request.batch, request.is_alone);
    let probe = Probe { spec, inputs, outputs, batch, is_alone }.encode()?;
    let mut variables = environment(sandbox, &orchestra_onnx::ENVIRONMENT);
    variables.push((PROBE.to_owned(), probe));
    let is_said = Cell::new(false);
    let waiting = |so_far: Duration| {
        if let Some(notice) = notice.filter(|_| so_far >= SAY_AFTER && !is_said.replace(true)) {
            let (path, within) = (path.display(), WITHIN.as_secs());
            notice(&format!(
                "trying the model `{path}` on the CPU, for {within} s at most, since its file leaves a doubt about its outputs"
            ));
        }
    };
    let said = listen(launcher, &variables, WITHIN, &waiting)?;
    serde_json::from_slice(&said).map_err(|error| format!("its worker says what is no finding: {error}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_a_model_took_too_long_is_known_from_then_on() {
        let asked = || ProbeRecord {
            model: "a".into(),
            runtime: "1".into(),
            asked: "x".into(),
            version: "2".into(),
            found: Ok(ProbedModel::default()),
        };
        let folder = tempfile::tempdir().unwrap();
        let file = asked().file(folder.path());
        assert_eq!(asked().look_up(&file), None);
        let took_too_long = Err("it took longer than 120 s".to_owned());
        ProbeRecord { found: took_too_long.clone(), ..asked() }.keep(&file).unwrap();
        assert_eq!(asked().look_up(&file), Some(took_too_long));
        assert_eq!(ProbeRecord { runtime: "2".into(), ..asked() }.look_up(&file), None);
    }
}
