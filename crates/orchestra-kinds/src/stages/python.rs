//! `kind = "python"`: runs a function or a class in Python over batches of rows, in worker processes that speak the worker protocol themselves,
//! with the help of the package in `clients/python`. What the script takes and gives it is asked while the workflow is planned.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::{Code, DType, Dim, MAX_RANK, Program, SandboxMode, SandboxRules, TensorSpec};
use orchestra_plan::keys::WORKERS;
use orchestra_plan::{
    Draft, Drafted, Fields, FileKind, Files, Key, MAX_BATCH, ProgramContext, ProgramDraft, Reported,
    ResolvedProgram, Settings, Spanned, TypedStage, Upstreams, joined, settings,
};
use serde::Deserialize;

use super::iterate::{FeedSetting, MAX_ROUNDS, UntilSetting, iteration};
use super::shared::batches::{BatchSettings, InputTable, upstreams_of_model};
use super::shared::user_code::{DeclaredOutputs, column_of, file_name};

/// Names a file of `clients/python` with its text.
macro_rules! client {
    ($($file:literal)*) => { [$(($file, include_str!(concat!("../../../../clients/python/", $file)))),*] };
}

/// The package that a script imports, without what is for use by hand. An interpreter runs [`FINDER`], which finds the modules in these texts.
const CLIENT: [(&str, &str); 15] = client!(
    "orchestra.py" "orchestra_stages/__init__.py" "orchestra_stages/__main__.py" "orchestra_stages/alone.py"
    "orchestra_stages/batches.py" "orchestra_stages/calls.py" "orchestra_stages/declare.py" "orchestra_stages/describe.py"
    "orchestra_stages/errors.py" "orchestra_stages/loops.py" "orchestra_stages/script.py" "orchestra_stages/slots.py" "orchestra_stages/values.py"
    "orchestra_stages/wire.py" "orchestra_stages/worker.py"
);
const FINDER: &str = include_str!("../../../../clients/python/orchestra_stages/embedded.py");

/// What an interpreter says of itself: where it is, and which folders it reads. It imports nothing of the folder that it is started in, that of the
/// script, whose `json.py` would run unconfined.
const INTERPRETER: &str = "import posix, sys; sys.path[:] = [p for p in sys.path if p not in ('', posix.getcwd())]; import json, os; \
                           print(json.dumps({'executable': sys.executable, 'read': [os.path.realpath(sys.executable), sys.prefix, sys.exec_prefix, \
                           sys.base_prefix, sys.base_exec_prefix] + sys.path}))";

/// Folders whose libraries every worker may read, and whose rest belongs to others.
const SYSTEM: [&str; 3] = ["/", "/usr", "/usr/local"];

settings! {
    #[derive(Debug)]
    pub struct Python {
        /// the file with the function or class below `@orchestra.stage`; workers may read its folder
        #[missing("name the file with the function: script = \"stage.py\"")]
        script: Spanned<String>,
        /// which of several stages of the script
        function: Option<Spanned<String>> => "the only one",
        /// the interpreter: a path, or a name that is looked for in `PATH`. Without it that of the active virtual environment, or of `.venv` beside the script or this file, else `python3`
        python: Option<Spanned<String>> => "see right",
        /// instead of `from`, for several arguments: `{ argument = "stage" }` or `"stage.tensor"`
        inputs: InputTable,
        /// `{ mean = { dtype = "f32", shape = [3] } }`: what it gives for a row; -1 stands for a dimension that is known after the call
        outputs: Option<DeclaredOutputs> => "those of the decorator",
        /// runs the function on its own outputs, up to so many rounds of each row; `rounds`, an i64, is then an output more, and says how many a row took
        #[range(1, MAX_ROUNDS)]
        rounds: Option<u32>,
        /// `{ argument = "output" }`: which output of a round is which argument of the next; the other arguments keep what the row brought
        feed: Option<FeedSetting> => "outputs with the names of arguments; else the only ones",
        /// `"output < number"` or `"output <= number"`, of an output with one number per row: a row that meets it has ended. What is no number never does
        until: Option<UntilSetting>,
        /// how rows become batches, of which each is a call
        batch: BatchSettings => "`max` of the decorator, else by device",
    }
}

const KEYS: [Key; <Python as Settings>::KEYS.len() + WORKERS.len()] =
    joined([<Python as Settings>::KEYS, WORKERS]);

impl TypedStage for Python {
    const NAME: &'static str = "python";
    const ABOUT: &'static str = "Runs a function or a class in Python over batches of rows, in workers like those of a model. It gives what the script declares. \
         See [Python](../guide/python.md).";
    type Work = ();
    const ALL_KEYS: &'static [Key] = &KEYS;

    fn upstreams(f: &mut Fields<'_, '_>) -> Upstreams {
        upstreams_of_model(f)
    }
}

impl Drafted for Python {
    fn draft(mut self, f: &mut Fields<'_, '_>) -> Option<Draft> {
        f.entry("outputs").is_none_or(|_| self.outputs.is_some()).then_some(())?;
        let mut draft = self.batch.of(file_name(&self.script));
        let (feed, until) = (self.feed.take(), self.until.take());
        match self.rounds {
            Some(rounds) => draft.iteration = Some(iteration(f, rounds, feed, until)?),
            None if f.entry("rounds").is_some() => return None,
            None if f.entry("feed").or(f.entry("until")).is_some() => {
                f.missing("rounds", "say how many rounds a row takes at most: rounds = 100");
                return None;
            }
            None => {}
        }
        draft.program = Some(Arc::new(self));
        Some(Draft::Batch(draft))
    }
}

/// What the client prints of a script.
#[derive(Deserialize)]
struct Described {
    name: String,
    inputs: Vec<PythonTensor>,
    outputs: Option<Vec<PythonTensor>>,
    batch: Option<u64>,
    gpu: bool,
    drops: bool,
    /// Files that make the results, with their digests.
    files: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct PythonTensor {
    name: String,
    dtype: Option<String>,
    shape: Option<Vec<Option<usize>>>,
    /// Of a list.
    columns: Option<Vec<PythonTensor>>,
}

#[derive(Deserialize)]
struct PythonError {
    error: String,
}

impl PythonTensor {
    /// What it gives, which may be a text or a list.
    fn output(&self) -> Option<Column> {
        let ty = match self.dtype.as_deref() {
            Some("text") => ColumnType::Text,
            Some("list") => {
                let columns = self.columns.iter().flatten().map(PythonTensor::output);
                ColumnType::List(Schema(columns.collect::<Option<_>>()?))
            }
            _ => ColumnType::Tensor(self.spec()?),
        };
        Some(Column { name: self.name.clone(), ty })
    }

    /// `None` where the script says nothing of it.
    fn spec(&self) -> Option<TensorSpec> {
        let (dtype, shape) = (self.dtype.as_ref()?, self.shape.as_ref()?);
        let dtype = DType::ALL.into_iter().find(|known| known.numpy_name() == dtype)?;
        let row = shape.iter().map(|dim| dim.map_or(Dim::Dynamic, Dim::Fixed)).collect();
        Some(TensorSpec { name: self.name.clone(), dtype, row, batch: Dim::Dynamic })
    }
}

/// What an interpreter says of itself.
#[derive(Deserialize)]
struct Interpreter {
    executable: String,
    read: Vec<PathBuf>,
}

impl ProgramDraft for Python {
    fn resolve(&self, context: &mut ProgramContext<'_>) -> Result<ResolvedProgram, Reported> {
        let path = context.host.resolve(&context.folder.join(&self.script.value));
        if context.host.file_kind(&path) != FileKind::Regular {
            let why = format!("there is no script `{}`", self.script.value);
            return context.no_file(self.script.span, &path, why).fail();
        }
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        let interpreter = self.interpreter(&folder, context)?;
        let program = self.program(&path, &folder, &interpreter, context.host, "worker");
        let described = self.described(&path, &folder, &interpreter, context)?;
        let declared = described
            .outputs
            .as_ref()
            .map(|outputs| outputs.iter().filter_map(PythonTensor::output).collect());
        let written = self.outputs.as_ref();
        let written = written.map(|DeclaredOutputs(outputs)| outputs.iter().map(column_of).collect());
        let Some(outputs) = written.or(declared).filter(|outputs: &Vec<Column>| !outputs.is_empty()) else {
            let name = &described.name;
            return context
                .error(self.script.span, format!("`{name}` does not say what it gives"))
                .help(format!(
                    "write it into the script, @orchestra.stage(outputs={{\"mean\": (\"float32\", [3])}}), or here: outputs = {{ mean = {{ dtype = \
                     \"f32\", shape = [3] }} }}; `python {} --check` tries it out",
                    self.script.value
                ))
                .fail();
        };
        Ok(ResolvedProgram {
            path,
            identity: serde_json::json!({ "files": described.files, "function": described.name, "outputs": outputs }).to_string(),
            inputs: described.inputs.iter().map(|input| (input.name.clone(), input.spec())).collect(),
            outputs,
            max_batch: described.batch,
            gpu: described.gpu,
            drops: described.drops,
            code: Code::Program(program),
        })
    }
}

impl Python {
    /// Asks the interpreter that is meant for its folders.
    fn interpreter(&self, folder: &Path, context: &mut ProgramContext<'_>) -> Result<Interpreter, Reported> {
        let (host, workflow) = (context.host, context.folder);
        let named = self.python.as_ref().map(|python| match python.value.contains('/') {
            true => host.resolve(&workflow.join(&python.value)).to_string_lossy().into_owned(),
            false => python.value.clone(),
        });
        let of = |environment: PathBuf| {
            let python = environment.join("bin/python");
            (host.file_kind(&python) == FileKind::Regular).then(|| python.to_string_lossy().into_owned())
        };
        let command = named
            .or_else(|| of(host.variable("VIRTUAL_ENV").filter(|folder| !folder.is_empty())?.into()))
            .or_else(|| of(folder.join(".venv")))
            .or_else(|| of(workflow.join(".venv")))
            .unwrap_or_else(|| "python3".to_owned());
        let program = Program {
            command: vec![command.clone(), "-c".into(), INTERPRETER.into()],
            folder: folder.to_owned(),
            env: environment(host),
            ..Program::default()
        };
        // It runs nothing of the script, and what it has to read is known only then. One that came with the workflow is not of the user's choice:
        // it reads all, and does nothing else.
        let comes_along = [folder, workflow].iter().any(|folder| Path::new(&command).starts_with(folder));
        let rules = match comes_along {
            true => SandboxRules { read: vec!["/".into()], write: Vec::new(), ..context.rules.clone() },
            false => SandboxRules { mode: SandboxMode::Off, ..context.rules.clone() },
        };
        let answer = host.ask(&program, &rules).and_then(|answer| {
            serde_json::from_slice::<Interpreter>(&answer)
                .map_err(|error| format!("its answer cannot be read: {error}"))
        });
        answer.or_else(|why| {
            let span = self.python.as_ref().map_or(self.script.span, |python| python.span);
            context
                .error(span, format!("Python cannot be started as `{command}`: {why}"))
                .help("`python` of the stage names the interpreter: python = \".venv/bin/python\"")
                .unavailable()
                .fail()
        })
    }

    /// The process that runs the client in this mode. It reads the folders of the interpreter, but for those that belong to all of the system,
    /// and that of the script.
    fn program(
        &self,
        path: &Path,
        folder: &Path,
        interpreter: &Interpreter,
        host: &dyn Files,
        mode: &str,
    ) -> Program {
        let is_own = |folder: &&PathBuf| {
            folder.is_absolute() && SYSTEM.iter().all(|system| **folder != Path::new(system))
        };
        let mut read: Vec<PathBuf> = interpreter.read.iter().filter(is_own).cloned().collect();
        read.push(interpreter.executable.clone().into());
        read.push(folder.to_owned());
        read.sort();
        read.dedup();
        let text = [interpreter.executable.as_str(), Program::TEXT, mode].map(str::to_owned);
        let script = [path.to_string_lossy().into_owned()];
        let function = self.function.iter().map(|function| function.value.clone());
        Program {
            command: text.into_iter().chain(script).chain(function).collect(),
            text: format!("{FINDER}\nrun({})\n", serde_json::json!(BTreeMap::from(CLIENT))),
            folder: folder.to_owned(),
            env: environment(host),
            read,
        }
    }

    /// What the script says of itself.
    fn described(
        &self,
        path: &Path,
        folder: &Path,
        interpreter: &Interpreter,
        context: &mut ProgramContext<'_>,
    ) -> Result<Described, Reported> {
        let program = self.program(path, folder, interpreter, context.host, "describe");
        let answer = context.host.ask(&program, context.rules).and_then(|answer| {
            if let Ok(PythonError { error }) = serde_json::from_slice(&answer) {
                return Err(error);
            }
            let described: Described = serde_json::from_slice(&answer)
                .map_err(|error| format!("its answer cannot be read: {error}"))?;
            let declared = described.inputs.iter().chain(described.outputs.iter().flatten());
            let too_many =
                |tensor: &&PythonTensor| tensor.shape.as_ref().is_some_and(|shape| shape.len() > MAX_RANK);
            if let Some(tensor) = declared.into_iter().find(too_many) {
                return Err(format!("`{}` is declared with more than {MAX_RANK} dimensions", tensor.name));
            }
            match described.batch {
                Some(rows) if !(1..=MAX_BATCH).contains(&rows) => {
                    Err(format!("`batch` must be from 1 to {MAX_BATCH}, not {rows}"))
                }
                _ => Ok(described),
            }
        });
        answer.or_else(|why| {
            let d = context.error(self.script.span, format!("script `{}`: {why}", self.script.value));
            d.label(format!("run by `{}`", interpreter.executable));
            if ["signal: 9", "signal: 15"].iter().any(|signal| why.contains(&format!("it ended with {signal} "))) {
                d.help("something else ended it, perhaps for want of memory: start it again").outside(true);
            }
            if why.contains("No module named") {
                d.help(format!(
                    "install it: {} -m pip install ..; or name another interpreter with `python` of the stage",
                    interpreter.executable
                ));
            }
            d.fail()
        })
    }
}

/// Variables of its processes: they write no compiled files, which the sandbox forbids, and keep nothing that they say in buffers. Of memory
/// that is freed they keep up to 256 MiB: else glibc gives the arrays of each call back, and each page of the next ones is a fault. CuPy keeps
/// compiled kernels in memory: else it writes them to a folder of the user, and each call that needs one fails in the sandbox.
fn environment(host: &dyn Files) -> Vec<(String, String)> {
    let own = [
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("PYTHONUNBUFFERED", "1"),
        ("MALLOC_TRIM_THRESHOLD_", "268435456"),
        // The most that glibc takes.
        ("MALLOC_MMAP_THRESHOLD_", "33554432"),
        ("CUPY_CACHE_IN_MEMORY", "1"),
    ];
    let is_ours = |name: &str| name.starts_with("PYTHON") || host.variable(name).is_none();
    let own = own.into_iter().filter(|(name, _)| is_ours(name));
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let path = host.variable("PYTHONPATH").map(|path| ("PYTHONPATH".to_owned(), path));
    own.chain(path).collect()
}
