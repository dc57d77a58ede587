//! The engines of stages that run in workers. That of models: which model and how is in the plan, where ONNX Runtime is depends on the machine.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use orchestra_core::{Code, DeviceKind, SandboxMode, SandboxRules, StageId};
use orchestra_onnx::library::Library;
use orchestra_onnx::{ENVIRONMENT, OnnxSpec};
use orchestra_plan::{BatchPlan, Plan};
use orchestra_runtime::launcher::{Launched, WorkerMemory};
use orchestra_runtime::{EngineSpec, Engines, Launcher};

use crate::kernel::KernelWorkers;
use crate::program::{ProgramEngine, allowed};

struct OnnxEngine {
    launcher: Arc<dyn Launcher>,
    /// Of a worker on the CPU.
    spec: OnnxSpec,
    /// Libraries that workers on GPUs load first.
    preload: Vec<PathBuf>,
    /// Variables that workers get besides those that every worker gets.
    env: Vec<(String, String)>,
}

/// What ONNX Runtime needs, and what the file allows.
fn environment(rules: &SandboxRules) -> Vec<(String, String)> {
    let needed = ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned()));
    allowed(rules).into_iter().chain(needed).collect()
}

impl EngineSpec for OnnxEngine {
    fn launch(&self, device: &DeviceKind, memory: WorkerMemory<'_>) -> io::Result<Launched> {
        let env: Vec<(&str, &str)> = self.env.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        self.launcher.launch(device, &env, memory)
    }

    fn spec(&self, device: &DeviceKind) -> Result<Vec<u8>, String> {
        match device {
            DeviceKind::Cpu => self.spec.encode(),
            DeviceKind::Cuda { .. } => {
                OnnxSpec { preload: self.preload.clone(), ..self.spec.clone() }.encode()
            }
        }
    }
}

/// The engines of a plan's batch stages, whose workers `launcher` starts; `library` is that of [`runtime_library`](crate::runtime_library).
#[must_use]
pub fn engines_of(plan: &Plan, launcher: &Arc<dyn Launcher>, library: Option<&Library>) -> Engines {
    let engine = |(stage, batch): (StageId, &BatchPlan)| {
        let model = &plan.models[batch.model.index()];
        let of_code = |code: &Code| match code {
            Code::Program(program) => {
                Arc::new(ProgramEngine::new(launcher, model, program)) as Arc<dyn EngineSpec>
            }
            Code::Kernel(kernel) => Arc::new(KernelWorkers::new(launcher, model, kernel)),
        };
        if let Some(engine) = model.code.as_ref().map(of_code) {
            return (stage, engine);
        }
        let spec = OnnxSpec {
            library: library.map(|library| library.path.clone()).unwrap_or_default(),
            preload: Vec::new(),
            model: model.path.clone(),
            digest: model.file_digest,
            weights: model.weights.clone(),
            memory_limit: model.memory_limit,
            tf32: model.tf32,
            tuning: model.tuning.clone(),
            custom_ops: model.custom_ops.clone(),
            sandbox: model.sandbox.clone(),
            pixel_inputs: plan.pixel_inputs(stage),
            largest_outputs: plan.largest_outputs(stage),
            iteration: batch.iteration.clone(),
        };
        let preload = library.map(|library| library.cuda.preload()).unwrap_or_default();
        let engine =
            OnnxEngine { launcher: Arc::clone(launcher), spec, preload, env: environment(&model.sandbox) };
        (stage, Arc::new(engine) as Arc<dyn EngineSpec>)
    };
    let missing = orchestra_worker::sandbox::missing();
    if !missing.is_empty() && plan.models.iter().any(|model| model.sandbox.mode == SandboxMode::Auto) {
        tracing::warn!(
            kernel_has_no = missing.join(", no "),
            "workers are not confined as far as they could be"
        );
    }
    plan.batch_stages().map(engine).collect()
}
