//! The engine of stages that launch a kernel of the user, and the compilers that this machine has for it.

use std::io;
use std::sync::Arc;

use orchestra_core::kernel::Compiler;
use orchestra_core::{DeviceKind, Kernel};
use orchestra_cuda::{ENVIRONMENT, KernelSpec};
use orchestra_onnx::library::{Env, find_nvrtc};
use orchestra_plan::ModelPlan;
use orchestra_runtime::launcher::{Launched, WorkerMemory};
use orchestra_runtime::{EngineSpec, Launcher};

use crate::program::allowed;

/// As `find_nvrtc`, for this process.
pub(crate) fn compilers() -> Result<Vec<Compiler>, String> {
    find_nvrtc(&Env::from_process())
}

/// Runs the batches of a stage in workers that launch its kernel.
pub(crate) struct KernelWorkers {
    launcher: Arc<dyn Launcher>,
    /// What is told with `Load`.
    spec: KernelSpec,
    env: Vec<(String, String)>,
}

impl KernelWorkers {
    pub fn new(launcher: &Arc<dyn Launcher>, model: &ModelPlan, kernel: &Kernel) -> Self {
        let (kernel, sandbox) = (kernel.clone(), model.sandbox.clone());
        let own = ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let env = allowed(&sandbox).into_iter().chain(own).collect();
        Self { launcher: Arc::clone(launcher), spec: KernelSpec { kernel, sandbox }, env }
    }
}

impl EngineSpec for KernelWorkers {
    fn launch(&self, device: &DeviceKind, memory: WorkerMemory<'_>) -> io::Result<Launched> {
        let env: Vec<(&str, &str)> = self.env.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        self.launcher.launch(device, &env, memory)
    }

    fn spec(&self, _: &DeviceKind) -> Result<Vec<u8>, String> {
        self.spec.encode()
    }
}
