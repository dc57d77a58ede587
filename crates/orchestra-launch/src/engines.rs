//! Which engine runs each batch stage: a model's, a program's or a kernel's; and the workers of this program, for models and kernels.

use std::io;
use std::sync::Arc;

use orchestra_core::kernel::Compiler;
use orchestra_core::{Code, DeviceKind, SandboxRules, StageId};
use orchestra_cuda::KernelSpec;
use orchestra_onnx::OnnxSpec;
use orchestra_onnx::library::{Env, Library, find_nvrtc};
use orchestra_plan::{BatchPlan, Plan};
use orchestra_runtime::{EngineSpec, EngineVersion, Engines, Launched, Launcher, WorkerMemory, allowed};

use crate::program::ProgramEngine;

/// What stands for the version of this engine in the identity of a run.
const ONNXRUNTIME: &str = "ONNX Runtime";

/// ONNX Runtime of this version, where it is known: what results are compared with when a run goes on.
#[must_use]
pub fn onnxruntime(version: Option<&str>) -> EngineVersion {
    EngineVersion { name: ONNXRUNTIME, version: version.map(str::to_owned) }
}

/// The compilers of kernels, for this process.
pub(crate) fn compilers() -> Result<Vec<Compiler>, String> {
    find_nvrtc(&Env::from_process())
}

/// Workers of this program, for models and kernels.
struct WorkerEngine {
    launcher: Arc<dyn Launcher>,
    /// Variables that workers get besides those that every worker gets.
    env: Vec<(String, String)>,
    /// What `Load` tells a worker on the CPU.
    cpu: Result<Vec<u8>, String>,
    /// What `Load` tells a worker on a GPU.
    gpu: Result<Vec<u8>, String>,
}

/// What the file allows, and what the engine needs.
pub(crate) fn environment(rules: &SandboxRules, needed: &[(&str, &str)]) -> Vec<(String, String)> {
    let needed = needed.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    allowed(rules).into_iter().chain(needed).collect()
}

impl EngineSpec for WorkerEngine {
    fn launch(&self, device: &DeviceKind, memory: WorkerMemory<'_>) -> io::Result<Launched> {
        let env: Vec<(&str, &str)> = self.env.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        self.launcher.launch(device, &env, memory)
    }

    fn spec(&self, device: &DeviceKind) -> Result<Vec<u8>, String> {
        match device {
            DeviceKind::Cpu => self.cpu.clone(),
            DeviceKind::Cuda { .. } => self.gpu.clone(),
        }
    }
}

/// The engines of a plan's batch stages, whose workers `launcher` starts; `library` is that of [`runtime_library`](crate::runtime_library).
#[must_use]
pub fn engines_of(plan: &Plan, launcher: &Arc<dyn Launcher>, library: Option<&Library>) -> Engines {
    let engine = |(stage, batch): (StageId, &BatchPlan)| {
        let model = &plan.models[batch.model.index()];
        let sandbox = &model.sandbox;
        let workers = |env: &[(&str, &str)], cpu, gpu| {
            let (launcher, env) = (Arc::clone(launcher), environment(sandbox, env));
            Arc::new(WorkerEngine { launcher, env, cpu, gpu }) as Arc<dyn EngineSpec>
        };
        let of_code = |code: &Code| match code {
            Code::Program(program) => {
                Arc::new(ProgramEngine::new(launcher, model, (&plan.stages[stage.index()], batch), program))
                    as Arc<dyn EngineSpec>
            }
            Code::Kernel(kernel) => {
                let spec = KernelSpec { kernel: kernel.clone(), sandbox: sandbox.clone() }.encode();
                workers(&orchestra_cuda::ENVIRONMENT, spec.clone(), spec)
            }
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
            sandbox: sandbox.clone(),
            pixel_inputs: plan.pixel_inputs(stage),
            text_inputs: batch.text_inputs(model).cloned().collect(),
            batch_axes: model.turned_inputs(batch.model_inputs()),
            constants: batch.constants.clone(),
            outputs: batch.outputs.clone(),
            largest_outputs: plan.largest_outputs(stage),
            iteration: batch.iteration.clone(),
            loop_inputs: batch.loop_inputs.clone(),
            trim: batch.trim,
        };
        // Libraries that workers on GPUs load first.
        let preload = library.map(|library| library.cuda.preload()).unwrap_or_default();
        let cpu = spec.encode();
        (stage, workers(&orchestra_onnx::ENVIRONMENT, cpu, OnnxSpec { preload, ..spec }.encode()))
    };
    plan.batch_stages().map(engine).collect()
}
