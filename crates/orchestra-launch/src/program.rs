//! Programs that run the batches of a stage and speak the worker protocol themselves: their engine, and the answers that plans ask them for.

use std::io::{self, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::{DeviceKind, Program, SandboxRules};
use orchestra_onnx::probe::PROBE;
use orchestra_plan::{AskProgram, BatchPlan, ModelPlan, StagePlan};
use orchestra_runtime::{EngineSpec, Launcher, ProcessLauncher};
use orchestra_runtime::{Launched, WorkerMemory, allowed, inherited, with_standard_streams_alone};
use orchestra_worker::program::{ConfinedProgram, PROGRAM};
use serde_json::Value as Json;

/// How long a program may take to say what it takes and gives: what it imports may be large, and lie on a slow disk.
const ASK_WITHIN: Duration = Duration::from_secs(60);
/// The longest answer, in bytes.
const LONGEST_ANSWER: u64 = 1 << 20;
/// Of what it says beside, the last bytes are kept.
const LAST_WORDS: usize = 2000;
/// How often it is looked at whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Runs the batches of a stage in processes of a program.
pub(crate) struct ProgramEngine {
    pub launcher: Arc<dyn Launcher>,
    pub program: Program,
    pub rules: SandboxRules,
    /// What is told to it with `Load`.
    pub spec: Vec<u8>,
}

impl ProgramEngine {
    pub fn new(
        launcher: &Arc<dyn Launcher>,
        model: &ModelPlan,
        (stage, batch): (&StagePlan, &BatchPlan),
        program: &Program,
    ) -> Self {
        let outputs: Vec<Json> = stage.gives.0.iter().map(told).collect();
        let spec =
            serde_json::json!({ "outputs": outputs, "values": batch.values, "loop": batch.told_loop() });
        let spec = spec.to_string().into_bytes();
        let (program, rules) = (program.clone(), model.sandbox.clone());
        Self { launcher: Arc::clone(launcher), program, rules, spec }
    }
}

/// An output as a program is told of it.
fn told(column: &Column) -> Json {
    let Column { name, ty } = column;
    if let ColumnType::List(Schema(columns)) = ty {
        let columns = columns.iter().map(told).collect::<Vec<_>>();
        return serde_json::json!({ "name": name, "dtype": "list", "columns": columns });
    }
    let Some(tensor) = ty.tensor() else {
        let dtype = match ty {
            ColumnType::Picture => "picture",
            ColumnType::Labels => "labels",
            ColumnType::Bytes(_) => "bytes",
            _ => "text",
        };
        return serde_json::json!({ "name": name, "dtype": dtype });
    };
    let shape: Vec<Option<usize>> = tensor.row.iter().map(|dim| dim.fixed()).collect();
    serde_json::json!({ "name": name, "dtype": tensor.dtype.name(), "shape": shape })
}

impl EngineSpec for ProgramEngine {
    fn launch(&self, device: &DeviceKind, memory: WorkerMemory<'_>) -> io::Result<Launched> {
        let gpu = matches!(device, DeviceKind::Cuda { .. });
        let confined = ConfinedProgram { program: self.program.clone(), rules: self.rules.clone(), gpu };
        let confined = confined.encode().map_err(io::Error::other)?;
        let allowed = allowed(&self.rules);
        let mut env: Vec<(&str, &str)> =
            allowed.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        env.push((PROGRAM, &confined));
        self.launcher.launch(device, &env, memory)
    }

    fn spec(&self, _: &DeviceKind) -> Result<Vec<u8>, String> {
        Ok(self.spec.clone())
    }

    /// An interpreter may hold its one lock for long, in a call or an import, and is healthy.
    fn beats_while_busy(&self) -> bool {
        false
    }
}

/// Asks programs for a plan, confined as their workers are.
#[derive(Debug)]
pub(crate) struct Asks {
    /// What starts them, or why nothing does.
    pub launcher: Result<ProcessLauncher, String>,
}

impl AskProgram for Asks {
    fn ask(&self, program: &Program, rules: &SandboxRules) -> Result<Vec<u8>, String> {
        let launcher = self.launcher.as_ref().map_err(String::clone)?;
        let confined =
            ConfinedProgram { program: program.clone(), rules: rules.clone(), gpu: false }.encode()?;
        let mut variables = allowed(rules);
        variables.push((PROGRAM.to_owned(), confined));
        listen(launcher, &variables, ASK_WITHIN, &|_| ())
    }
}

/// What a process prints that is started as a worker with these variables, sees no GPU, and ends by itself. `waiting` is told now and then how long it has
/// taken so far.
pub(crate) fn listen(
    launcher: &ProcessLauncher,
    variables: &[(String, String)],
    within: Duration,
    waiting: &dyn Fn(Duration),
) -> Result<Vec<u8>, String> {
    // Or a program that is no worker, and plans when it is started, would start itself without end.
    if [PROBE, PROGRAM].iter().any(|name| std::env::var_os(name).is_some()) {
        return Err(format!(
            "`{}` was started as a worker, and did not become one",
            launcher.program.display()
        ));
    }
    let mut command = Command::new(&launcher.program);
    with_standard_streams_alone(&mut command);
    let mut child = command
        .args(&launcher.args)
        .env_clear()
        .envs(inherited())
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .env("CUDA_VISIBLE_DEVICES", "")
        .envs(launcher.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("`{}`: {error}", launcher.program.display()))?;
    let answer = child.stdout.take().map(|pipe| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.take(LONGEST_ANSWER + 1).read_to_end(&mut bytes).map(|_| bytes)
        })
    });
    let words = child.stderr.take().map(|pipe| thread::spawn(move || tail(pipe)));
    let status = ended(&mut child, within, waiting);
    let answer = answer.and_then(|thread| thread.join().ok()).and_then(Result::ok).unwrap_or_default();
    let words = words.and_then(|thread| thread.join().ok()).unwrap_or_default();
    let said = |why: String| match words.trim() {
        "" => why,
        words => format!("{why}; its last words: {words}"),
    };
    match status.map_err(|error| error.to_string())? {
        None => Err(said(format!("it took longer than {} s", within.as_secs()))),
        Some(status) if !status.success() => Err(said(format!("it ended with {status}"))),
        Some(_) if answer.len() as u64 > LONGEST_ANSWER => {
            Err("it says more than 1 MiB of itself".to_owned())
        }
        Some(_) => Ok(answer),
    }
}

/// Waits for the end; `None`: it took too long, and was killed.
fn ended(
    child: &mut Child,
    within: Duration,
    waiting: &dyn Fn(Duration),
) -> io::Result<Option<std::process::ExitStatus>> {
    let start = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None if start.elapsed() < within => {
                waiting(start.elapsed());
                thread::sleep(LOOK_EVERY);
            }
            None => {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
        }
    }
}

/// The end of what comes.
fn tail(mut pipe: impl io::Read) -> String {
    let (mut kept, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = pipe.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..n]);
        kept.drain(..kept.len().saturating_sub(LAST_WORDS));
    }
    String::from_utf8_lossy(&kept).into_owned()
}
