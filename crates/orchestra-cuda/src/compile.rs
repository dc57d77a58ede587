//! From the source of a kernel to code for the device: which compiler, for which architecture, with which options.

use std::ffi::CString;
use std::path::Path;

use orchestra_core::kernel::Compiler;
use orchestra_core::{Kernel, TensorSpec};
use orchestra_worker::load_error::LoadError;

use crate::arguments::{check, definitions};
use crate::ffi::nvrtc::{Compiled, KernelSource, Nvrtc};
use crate::spec::headers_of;

/// The most of the compiler's log that a message holds; what goes wrong first stands first.
const MOST_OF_LOG: usize = 4000;

/// What code is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Binary(i32),
    /// An older one: the driver makes code of it for this device, which the compiler does not know yet.
    Ptx(i32),
}

impl Target {
    /// For a device of a compute capability, by a compiler that knows these. `None`: it knows newer ones alone.
    fn of(capability: i32, known: &[i32]) -> Option<Self> {
        match known.iter().copied().filter(|known| *known <= capability).max()? {
            exact if exact == capability => Some(Target::Binary(exact)),
            older => Some(Target::Ptx(older)),
        }
    }

    fn option(self) -> String {
        match self {
            Target::Binary(capability) => format!("--gpu-architecture=sm_{capability}"),
            Target::Ptx(capability) => format!("--gpu-architecture=compute_{capability}"),
        }
    }
}

/// The first of the compilers whose CUDA the driver runs, by the version that the driver says.
fn compiler_for(kernel: &Kernel, driver: i32) -> Result<&Path, LoadError> {
    let compilers = kernel.compilers.as_ref().map_err(LoadError::permanent)?;
    let runs = |compiler: &&Compiler| i64::from(compiler.release) <= i64::from(driver / 1000);
    let found = compilers.iter().find(runs).map(|compiler| compiler.path.as_path());
    found.ok_or_else(|| {
        let words = |Compiler { release, path }: &Compiler| format!("CUDA {release} (`{}`)", path.display());
        let found: Vec<String> = compilers.iter().map(words).collect();
        LoadError::permanent(format!(
            "the NVIDIA driver runs CUDA up to {}.{}, and NVRTC is here for {}: install a newer driver, or name the folder of an older NVRTC in \
             `ORCHESTRA_CUDA_LIBRARIES`",
            driver / 1000,
            driver % 1000 / 10,
            found.join(" and ")
        ))
    })
}

/// Compiles the kernel for a device of this compute capability, and gives the version of what did it. `driver` is the version that the
/// driver says.
pub fn compile(
    kernel: &Kernel,
    (inputs, outputs): (&[TensorSpec], &[TensorSpec]),
    capability: i32,
    driver: i32,
) -> Result<(Compiled, String), LoadError> {
    let path = compiler_for(kernel, driver)?;
    let compiler = Nvrtc::open(path).map_err(|why| {
        LoadError::permanent(format!("NVRTC, CUDA's compiler, cannot be used: `{}`: {why}", path.display()))
    })?;
    let version = compiler.version();
    let known = compiler.capabilities();
    let target = Target::of(capability, &known).ok_or_else(|| {
        let least = known.first().copied().unwrap_or_default();
        LoadError::permanent(format!(
            "NVRTC {version} makes no code for this GPU of compute capability {}.{}: it knows {}.{} and newer; `python3 -m pip install \
             nvidia-cuda-nvrtc-cu12` has an older one",
            capability / 10,
            capability % 10,
            least / 10,
            least % 10
        ))
    })?;
    let headers = headers_of(path).map(|folder| format!("--include-path={}", folder.display()));
    let options = [target.option()].into_iter().chain(definitions(inputs, outputs)).chain(headers);
    let options: Vec<CString> =
        options.chain(kernel.options.iter().cloned()).map(text).collect::<Result<_, _>>()?;
    let headers = kernel.headers.iter().cloned().map(|(name, header)| Ok((text(name)?, text(header)?)));
    let headers: Vec<(CString, CString)> = headers.collect::<Result<_, LoadError>>()?;
    let source = format!("{}{}", kernel.source, check(kernel, inputs, outputs));
    let source = KernelSource {
        file: &text(kernel.file.clone())?,
        text: &text(source)?,
        headers: &headers,
        function: &text(kernel.function.clone())?,
    };
    let compiled = compiler.compile(&source, &options, matches!(target, Target::Binary(_)));
    let compiled = compiled.map_err(|log| {
        LoadError::permanent(format!("`{}` cannot be compiled: {}", kernel.file, beginning(&log)))
    })?;
    if !compiled.log.is_empty() {
        eprintln!("worker: `{}` was compiled with warnings: {}", kernel.file, beginning(&compiled.log));
    }
    Ok((compiled, version))
}

fn text(text: String) -> Result<CString, LoadError> {
    CString::new(text).map_err(|_| {
        LoadError::permanent(
            "the kernel's source, its options or names hold a byte 0, which no compiler takes",
        )
    })
}

fn beginning(log: &str) -> &str {
    log.get(..log.floor_char_boundary(MOST_OF_LOG)).unwrap_or(log)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::tests::a_kernel;

    #[test]
    fn code_is_made_for_the_device_or_for_an_older_one_that_the_driver_translates() {
        let known = [75, 80, 86, 90, 120];
        assert_eq!(Target::of(90, &known), Some(Target::Binary(90)));
        assert_eq!(Target::of(89, &known), Some(Target::Ptx(86)));
        assert_eq!(Target::of(130, &known), Some(Target::Ptx(120)));
        assert_eq!(Target::of(61, &known), None);
        assert_eq!(Target::of(90, &[]), None);
        assert_eq!(Target::Binary(90).option(), "--gpu-architecture=sm_90");
        assert_eq!(Target::Ptx(86).option(), "--gpu-architecture=compute_86");
    }

    #[test]
    fn a_driver_gets_the_newest_compiler_that_it_runs() {
        let compiler = |release, path: &str| Compiler { release, path: path.into() };
        let with = |compilers| Kernel { compilers, ..a_kernel() };
        let both = with(Ok(vec![compiler(13, "/13"), compiler(12, "/12")]));
        assert_eq!(compiler_for(&both, 13000), Ok(Path::new("/13")));
        assert_eq!(compiler_for(&both, 12080), Ok(Path::new("/12")));
        let why = compiler_for(&with(Ok(vec![compiler(13, "/13")])), 12080).unwrap_err().error;
        assert!(why.contains("up to 12.8") && why.contains("CUDA 13 (`/13`)"), "{why}");
        assert_eq!(compiler_for(&with(Err("none".into())), 13000).unwrap_err().error, "none");
    }
}
