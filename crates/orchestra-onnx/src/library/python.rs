//! Asks the installed Pythons what they have, without importing it. Installs nothing and changes no environment.

use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use crate::library::child::{self, Event, TICK};
use crate::library::env::Env;
use crate::library::system_folders::unique;

/// How long an interpreter may take to answer. A cold one on a network disk takes seconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// An interpreter that says more than this many lines does not answer our question.
const LINES: usize = 1000;

/// `find_spec` of a package without a dot imports nothing.
const QUESTION: &str = r#"
import importlib.util, json
def folders(name):
    try:
        spec = importlib.util.find_spec(name)
        return list(spec.submodule_search_locations)
    except Exception:
        return []
runtime = folders("onnxruntime")
print(json.dumps({"pip": folders("pip") != [], "runtime": runtime[0] if runtime else None, "nvidia": folders("nvidia")}))
"#;

#[derive(Debug, Deserialize)]
pub(crate) struct PythonPackages {
    pub(crate) pip: bool,
    pub(crate) runtime: Option<PathBuf>,
    /// The folders of the package `nvidia`, below which CUDA's libraries lie. It is spread over all places for packages.
    #[serde(default)]
    pub(crate) nvidia: Vec<PathBuf>,
}

/// The interpreters of this environment: that of the active virtual environment, then those on the `PATH`.
pub(crate) fn interpreters(env: &Env) -> Vec<PathBuf> {
    let mut programs: Vec<PathBuf> = Vec::new();
    if let Some(folder) = env.get("VIRTUAL_ENV") {
        programs.push(env.absolute(folder).join("bin/python3"));
    }
    let path = env.list("PATH");
    for name in ["python3", "python"] {
        programs.extend(path.iter().map(|folder| folder.join(name)).find(|program| is_program(program)));
    }
    unique(programs.into_iter().filter(|program| is_program(program)))
}

/// Asks one interpreter. The error completes "it cannot be used: ".
pub(crate) fn ask(program: &Path, env: &Env) -> Result<PythonPackages, String> {
    let mut command = command(program, env);
    // With `-c` Python would take packages from the current folder, too.
    command.arg("-c").arg(QUESTION).current_dir("/");
    let mut ticks = 0;
    let mut lines = 0;
    let mut said = String::new();
    let mut complaint = String::new();
    let status = child::run(&mut command, |event| {
        match event {
            Event::Stdout(line) => said = line,
            Event::Stderr(line) => complaint = line,
            Event::Quiet => ticks += 1,
        }
        lines += 1;
        match TICK * ticks < PATIENCE && lines < LINES {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    match status {
        Ok(Some(status)) if status.success() => serde_json::from_str(&said)
            .map_err(|_| format!("it answered `{said}`, which is not what was asked")),
        Ok(Some(status)) => Err(format!("it failed ({status}): {complaint}")),
        Ok(None) => Err(format!("it did not answer within {} seconds", PATIENCE.as_secs())),
        Err(error) => Err(format!("it cannot be started: {error}")),
    }
}

/// A command that sees the variables of `env` and no others.
pub(crate) fn command(program: &Path, env: &Env) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(&env.variables);
    command
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}
