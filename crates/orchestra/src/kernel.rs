//! The engine of stages that launch a kernel of the user: which kernel is in the plan, what compiles it depends on the machine.

use std::io;
use std::sync::Arc;

use orchestra_core::{DeviceKind, Kernel};
use orchestra_cuda::{ENVIRONMENT, KernelSpec};
use orchestra_onnx::library::{Env, find_nvrtc};
use orchestra_plan::ModelPlan;
use orchestra_runtime::launcher::{Launched, WorkerMemory};
use orchestra_runtime::{EngineSpec, Launcher};

use crate::program::allowed;

/// Why no kernel can be compiled on this machine, and what to do; `None`: nothing speaks against it.
pub(crate) fn no_compiler() -> Option<String> {
    find_nvrtc(&Env::from_process()).err()
}

/// Runs the batches of a stage in workers that launch its kernel.
pub(crate) struct KernelWorkers {
    launcher: Arc<dyn Launcher>,
    /// What is told with `Load`; or why it cannot be compiled.
    spec: Result<KernelSpec, String>,
    env: Vec<(String, String)>,
}

impl KernelWorkers {
    pub fn new(launcher: &Arc<dyn Launcher>, model: &ModelPlan, kernel: &Kernel) -> Self {
        let (kernel, sandbox) = (kernel.clone(), model.sandbox.clone());
        let own = ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let env = allowed(&sandbox).into_iter().chain(own).collect();
        let compilers = find_nvrtc(&Env::from_process());
        let spec = compilers.map(|compilers| KernelSpec { kernel, compilers, sandbox });
        Self { launcher: Arc::clone(launcher), spec, env }
    }
}

impl EngineSpec for KernelWorkers {
    fn launch(&self, device: &DeviceKind, memory: WorkerMemory<'_>) -> io::Result<Launched> {
        let env: Vec<(&str, &str)> = self.env.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        self.launcher.launch(device, &env, memory)
    }

    fn spec(&self, _: &DeviceKind) -> Result<Vec<u8>, String> {
        self.spec.as_ref().map_err(Clone::clone)?.encode()
    }
}
