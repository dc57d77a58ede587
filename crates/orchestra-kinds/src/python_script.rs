//! A script in Python, as the kinds that run one know it: its interpreter, its processes, and what it says of itself. It knows no kind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use orchestra_core::{Program, SandboxMode, SandboxRules};
use orchestra_plan::{Fields, FileKind, Files, Limits, ProgramContext, Reported, Spanned};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Names a file of `clients/python` with its text.
macro_rules! client {
    ($($file:literal)*) => { [$(($file, include_str!(concat!("../../../clients/python/", $file)))),*] };
}

/// The package that a script imports, without what is for use by hand. An interpreter runs [`FINDER`], which finds the modules in these texts.
const CLIENT: [(&str, &str); 20] = client!(
    "orchestra/__init__.py" "orchestra_stages/__init__.py" "orchestra_stages/__main__.py" "orchestra_stages/alone.py"
    "orchestra_stages/batches.py" "orchestra_stages/calls.py" "orchestra_stages/declare.py" "orchestra_stages/describe.py"
    "orchestra_stages/errors.py" "orchestra_stages/hand.py" "orchestra_stages/listing.py" "orchestra_stages/loops.py" "orchestra_stages/script.py"
    "orchestra_stages/sinks.py" "orchestra_stages/slots.py" "orchestra_stages/sources.py" "orchestra_stages/values.py" "orchestra_stages/wire.py"
    "orchestra_stages/worker.py" "orchestra_stages/writing.py"
);
const FINDER: &str = include_str!("../../../clients/python/orchestra_stages/embedded.py");

/// What an interpreter says of itself: where it is, and which folders it reads. It imports nothing of the folder that it is started in, that of the
/// script, whose `json.py` would run unconfined.
const INTERPRETER: &str = "import posix, sys; sys.path[:] = [p for p in sys.path if p not in ('', posix.getcwd())]; import json, os; \
                           print(json.dumps({'executable': sys.executable, 'read': [os.path.realpath(sys.executable), sys.prefix, sys.exec_prefix, \
                           sys.base_prefix, sys.base_exec_prefix] + sys.path}))";

/// Folders whose libraries every worker may read, and whose rest belongs to others.
const SYSTEM: [&str; 3] = ["/", "/usr", "/usr/local"];

/// The keys of a kind that name a script.
#[derive(Debug, Clone, Copy)]
pub struct ScriptKeys<'a> {
    /// The file, relative to that of the workflow.
    pub script: &'a Spanned<String>,
    /// Which of several functions.
    pub function: Option<&'a Spanned<String>>,
    /// The interpreter, where the file names one.
    pub python: Option<&'a Spanned<String>>,
}

/// The keys of a source or a sink that say what its script may do.
#[derive(Debug, Clone, Copy)]
pub struct ScriptSandbox<'a> {
    /// `None`: that of `[limits]`.
    pub mode: Option<SandboxMode>,
    pub read: &'a [Spanned<String>],
    pub write: &'a [Spanned<String>],
    pub env: &'a [Spanned<String>],
}

impl ScriptSandbox<'_> {
    /// Warns of keys that have no effect. Paths are relative to the folder.
    pub fn rules(
        &self,
        limits: &Limits,
        (host, folder): (&dyn Files, &Path),
        fields: &mut Fields<'_, '_>,
    ) -> SandboxRules {
        let mode = self.mode.unwrap_or(limits.sandbox);
        for (key, values) in [("sandbox_write", self.write), ("sandbox_env", self.env)] {
            if let Some(first) = values.first().filter(|_| mode == SandboxMode::Off) {
                let message = format!("{}: `{key}` has no effect: the script is not confined", fields.what);
                fields.diags.warning(first.span, message).label("has no effect").help("leave it out");
            }
        }
        let resolved = |path: &Spanned<String>| host.resolve(&folder.join(&path.value));
        let paths = |paths: &[Spanned<String>]| -> Vec<PathBuf> { paths.iter().map(resolved).collect() };
        SandboxRules {
            mode,
            read: paths(self.read),
            write: paths(self.write),
            env: self.env.iter().map(|name| name.value.clone()).collect(),
        }
    }
}

/// A script that is there, and an interpreter that runs.
#[derive(Debug)]
pub struct PythonScript<'a> {
    keys: ScriptKeys<'a>,
    /// Absolute.
    pub path: PathBuf,
    folder: PathBuf,
    interpreter: Interpreter,
}

/// What an interpreter says of itself.
#[derive(Debug, Deserialize)]
struct Interpreter {
    executable: String,
    read: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct PythonError {
    error: String,
}

impl<'a> PythonScript<'a> {
    /// Finds the script, and asks the interpreter that is meant for its folders.
    pub fn find(keys: ScriptKeys<'a>, context: &mut ProgramContext<'_>) -> Result<Self, Reported> {
        let ScriptKeys { script, .. } = keys;
        let path = context.host.resolve(&context.folder.join(&script.value));
        if context.host.file_kind(&path) != FileKind::Regular {
            let why = format!("there is no script `{}`", script.value);
            return context.no_file(script.span, &path, why).fail();
        }
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        let interpreter = interpreter(keys, &folder, context)?;
        Ok(Self { keys, path, folder, interpreter })
    }

    /// The process that runs the client in this mode. It reads the folders of the interpreter, but for those that belong to all of the system,
    /// and that of the script.
    pub fn program(&self, host: &dyn Files, mode: &str) -> Program {
        let is_own = |folder: &&PathBuf| {
            folder.is_absolute() && SYSTEM.iter().all(|system| **folder != Path::new(system))
        };
        let Self { interpreter, folder, .. } = self;
        let mut read: Vec<PathBuf> = interpreter.read.iter().filter(is_own).cloned().collect();
        read.push(interpreter.executable.clone().into());
        read.push(folder.clone());
        read.sort();
        read.dedup();
        let text = [interpreter.executable.as_str(), Program::TEXT, mode].map(str::to_owned);
        let script = [self.path.to_string_lossy().into_owned()];
        let function = self.keys.function.iter().map(|function| function.value.clone());
        Program {
            command: text.into_iter().chain(script).chain(function).collect(),
            text: format!("{FINDER}\nrun({})\n", serde_json::json!(BTreeMap::from(CLIENT))),
            folder: folder.clone(),
            env: environment(host),
            read,
        }
    }

    /// What the script says of itself in this mode, and `check` finds nothing wrong with.
    pub fn described<T: DeserializeOwned>(
        &self,
        mode: &str,
        check: impl FnOnce(&T) -> Result<(), String>,
        context: &mut ProgramContext<'_>,
    ) -> Result<T, Reported> {
        let program = self.program(context.host, mode);
        let answer = context.host.ask(&program, context.rules).and_then(|answer| {
            if let Ok(PythonError { error }) = serde_json::from_slice(&answer) {
                return Err(error);
            }
            let described: T = serde_json::from_slice(&answer)
                .map_err(|error| format!("its answer cannot be read: {error}"))?;
            check(&described).map(|()| described)
        });
        answer.or_else(|why| {
            let ScriptKeys { script, .. } = self.keys;
            let executable = &self.interpreter.executable;
            let d = context.error(script.span, format!("script `{}`: {why}", script.value));
            d.label(format!("run by `{executable}`"));
            if ["signal: 9", "signal: 15"]
                .iter()
                .any(|signal| why.contains(&format!("it ended with {signal} ")))
            {
                d.help("something else ended it, perhaps for want of memory: start it again").outside(true);
            }
            if why.contains("No module named") {
                d.help(format!(
                    "install it: {executable} -m pip install ..; or name another interpreter with `python`"
                ));
            }
            d.fail()
        })
    }
}

fn interpreter(
    keys: ScriptKeys<'_>,
    folder: &Path,
    context: &mut ProgramContext<'_>,
) -> Result<Interpreter, Reported> {
    let (host, workflow) = (context.host, context.folder);
    let named = keys.python.map(|python| match python.value.contains('/') {
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
        let span = keys.python.map_or(keys.script.span, |python| python.span);
        context
            .error(span, format!("Python cannot be started as `{command}`: {why}"))
            .help("`python` names the interpreter: python = \".venv/bin/python\"")
            .unavailable()
            .fail()
    })
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
