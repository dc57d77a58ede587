//! The part of a `Load` frame that only this engine reads. The parent makes it; frames and runtime pass it on as bytes.

use std::path::{Path, PathBuf};

use bincode::{Decode, Encode};
use orchestra_core::kernel::Compiler;
use orchestra_core::{Kernel, SandboxRules, wire};
use orchestra_worker::Sandbox;
use orchestra_worker::engine::decode_spec;
use orchestra_worker::load_error::LoadError;

/// What a worker process is started with, so that it is one of this engine.
pub const ENVIRONMENT: [(&str, &str); 1] = [("ORCHESTRA_ENGINE", "kernel")];
/// The longest text that a worker takes.
const MOST_BYTES: usize = 1 << 20;

/// Whether this worker process was started for this engine.
pub fn is_asked_for() -> bool {
    let [(name, value)] = ENVIRONMENT;
    std::env::var_os(name).is_some_and(|found| found == value)
}

/// A kernel with what compiles it: [`Load::spec`](orchestra_worker::frames::Load).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct KernelSpec {
    /// What is compiled and launched.
    pub kernel: Kernel,
    /// What the worker may do.
    pub sandbox: SandboxRules,
}

impl KernelSpec {
    /// As it travels in a `Load` frame.
    pub fn encode(&self) -> Result<Vec<u8>, String> {
        wire::encode(self).map_err(|error| {
            format!("the kernel cannot be told to a worker: {error}; the paths of NVRTC must be UTF-8")
        })
    }

    /// Out of a `Load` frame.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, LoadError> {
        decode_spec::<_, MOST_BYTES>(bytes)
    }

    /// What a worker needs: the compilers with what lies beside them, and the driver.
    pub(crate) fn sandbox(&self) -> Sandbox {
        let searched = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let searched = std::env::split_paths(&searched).filter_map(|folder| std::path::absolute(folder).ok());
        let beside = |Compiler { path: library, .. }: &Compiler| {
            let real = library.canonicalize().ok();
            let folders = [Some(library), real.as_ref()].map(|file| Some(file?.parent()?.to_owned()));
            folders.into_iter().flatten().chain(headers_of(library)).collect::<Vec<_>>()
        };
        let read = self.kernel.compilers.iter().flatten().flat_map(beside).chain(searched);
        Sandbox {
            mode: self.sandbox.mode,
            read: read.chain(self.sandbox.read.iter().cloned()).collect(),
            write: self.sandbox.write.clone(),
            gpu: true,
            network: false,
            decodes: false,
            becomes: false,
        }
    }
}

/// Where CUDA's own headers lie, if they came with this compiler: `include` beside its folder, or, in Python's packages of CUDA 12, in that of
/// the runtime.
pub(crate) fn headers_of(compiler: &Path) -> impl Iterator<Item = PathBuf> {
    let above = |n: usize, name: &str| Some(compiler.ancestors().nth(n)?.join(name));
    let folders = [above(2, "include"), above(3, "cuda_runtime/include")];
    folders.into_iter().flatten().filter(|folder| folder.is_dir())
}

#[cfg(test)]
mod tests {
    use orchestra_core::ErrorClass;

    use super::*;
    use crate::arguments::tests::a_kernel;

    #[test]
    fn what_was_told_is_read_and_anything_else_is_refused() {
        let kernel = Kernel { source: "x".repeat(1 << 19), ..a_kernel() };
        let spec = KernelSpec { kernel, sandbox: SandboxRules::default() };
        let bytes = spec.encode().unwrap();
        assert_eq!(KernelSpec::decode(&bytes), Ok(spec));
        for rubbish in [&bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat(), &[0xff; 64]] {
            assert_eq!(KernelSpec::decode(rubbish).unwrap_err().class, ErrorClass::Permanent);
        }
    }
}
