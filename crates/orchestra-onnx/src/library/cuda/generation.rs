//! The releases of CUDA that ONNX Runtime is built for, and the libraries that belong to each. Knows no place.

use std::fmt;
use std::path::Path;

use serde::{Serialize, Serializer};

use super::{Need, version};
use crate::library::shared_library;

/// A major release of CUDA. A build of ONNX Runtime works with the libraries of one of them only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum CudaGeneration {
    Twelve,
    // The build that is fetched is made for it.
    #[default]
    Thirteen,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) name: &'static str,
    pub(super) product: &'static str,
    pub(super) need: Need,
    pub(super) package: &'static str,
}

pub(super) const fn wanted(
    name: &'static str,
    product: &'static str,
    need: Need,
    package: &'static str,
) -> Wanted {
    Wanted { name, product, need, package }
}

/// The libraries of a release, by name and package those whose names tell it: runtime, linker, compiler, cuBLAS's two, random numbers and
/// Fourier transforms. cuDNN has one name for all releases, and a package for each.
// A library stands after those that it is linked against (`readelf -d` of the wheels of CUDA 13.2 and cuDNN 9.26); `libcudnn.so.9` opens its
// parts by name while it runs, so they come before it.
const fn libraries(of_release: [(&'static str, &'static str); 7], cudnn: &'static str) -> [Wanted; 17] {
    let [cudart, nvjitlink, nvrtc, cublas_lt, cublas, curand, cufft] = of_release;
    [
        wanted(cudart.0, "cudart", Need::Always, cudart.1),
        wanted(nvjitlink.0, "nvjitlink", Need::IfThere, nvjitlink.1),
        wanted(nvrtc.0, "nvrtc", Need::SomeModels, nvrtc.1),
        wanted(cublas_lt.0, "cublas", Need::Always, cublas_lt.1),
        wanted(cublas.0, "cublas", Need::Always, cublas.1),
        wanted(curand.0, "curand", Need::Always, curand.1),
        wanted(cufft.0, "cufft", Need::SomeModels, cufft.1),
        wanted("libcudnn_graph.so.9", "cudnn", Need::SomeModels, cudnn),
        wanted("libcudnn_ops.so.9", "cudnn", Need::SomeModels, cudnn),
        wanted("libcudnn_heuristic.so.9", "cudnn", Need::SomeModels, cudnn),
        wanted("libcudnn_cnn.so.9", "cudnn", Need::SomeModels, cudnn),
        wanted("libcudnn_adv.so.9", "cudnn", Need::SomeModels, cudnn),
        wanted("libcudnn_engines_precompiled.so.9", "cudnn", Need::SomeModels, cudnn),
        wanted("libcudnn_engines_runtime_compiled.so.9", "cudnn", Need::SomeModels, cudnn),
        wanted("libcudnn_engines_tensor_ir.so.9", "cudnn", Need::IfThere, cudnn),
        wanted("libcudnn_ext.so.9", "cudnn", Need::IfThere, cudnn),
        wanted("libcudnn.so.9", "cudnn", Need::SomeModels, cudnn),
    ]
}

static OF_13: [Wanted; 17] = libraries(
    [
        ("libcudart.so.13", "nvidia-cuda-runtime"),
        ("libnvJitLink.so.13", "nvidia-nvjitlink"),
        ("libnvrtc.so.13", "nvidia-cuda-nvrtc"),
        ("libcublasLt.so.13", "nvidia-cublas"),
        ("libcublas.so.13", "nvidia-cublas"),
        ("libcurand.so.10", "nvidia-curand"),
        ("libcufft.so.12", "nvidia-cufft"),
    ],
    "nvidia-cudnn-cu13",
);

static OF_12: [Wanted; 17] = libraries(
    [
        ("libcudart.so.12", "nvidia-cuda-runtime-cu12"),
        ("libnvJitLink.so.12", "nvidia-nvjitlink-cu12"),
        ("libnvrtc.so.12", "nvidia-cuda-nvrtc-cu12"),
        ("libcublasLt.so.12", "nvidia-cublas-cu12"),
        ("libcublas.so.12", "nvidia-cublas-cu12"),
        ("libcurand.so.10", "nvidia-curand-cu12"),
        ("libcufft.so.11", "nvidia-cufft-cu12"),
    ],
    "nvidia-cudnn-cu12",
);

impl CudaGeneration {
    pub fn number(self) -> u32 {
        match self {
            CudaGeneration::Twelve => 12,
            CudaGeneration::Thirteen => 13,
        }
    }

    /// Its libraries, in the order in which they must be loaded.
    pub(super) fn wanted(self) -> &'static [Wanted] {
        match self {
            CudaGeneration::Twelve => &OF_12,
            CudaGeneration::Thirteen => &OF_13,
        }
    }

    /// The Python package that brings a library of this name for the other release, if that calls one so.
    pub(super) fn package_elsewhere(self, name: &str) -> Option<&'static str> {
        let other = match self {
            CudaGeneration::Twelve => CudaGeneration::Thirteen,
            CudaGeneration::Thirteen => CudaGeneration::Twelve,
        };
        other.wanted().iter().find(|wanted| wanted.name == name).map(|wanted| wanted.package)
    }

    /// A name that belongs to another release of a library of this one, such as `libcublas.so.12` for CUDA 13.
    pub(super) fn foreign(self, needed: &[String]) -> Option<&str> {
        needed
            .iter()
            .map(String::as_str)
            .find(|name| self.wanted().iter().any(|own| stem(own.name) == stem(name) && own.name != *name))
    }
}

impl fmt::Display for CudaGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA {}", self.number())
    }
}

impl Serialize for CudaGeneration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.number())
    }
}

/// Whether the file at `path` is this library, for this release. cuDNN and cuRAND have the same names for every release of CUDA; what they
/// are linked against tells for which they are, or the Python package that brought them.
pub(super) fn examine(path: &Path, wanted: &Wanted, generation: CudaGeneration) -> Result<(), String> {
    let needed = shared_library::needed(path)?;
    if let Some(foreign) = generation.foreign(&needed) {
        return Err(format!("it needs `{foreign}`, so it is of another release than {generation}"));
    }
    let is_of = |package| version::of_package(path, package).is_some();
    match generation.package_elsewhere(wanted.name).filter(|other| is_of(other)) {
        Some(other) if !is_of(wanted.package) => {
            Err(format!("it came with the package `{other}`, which is not for {generation}"))
        }
        _ => Ok(()),
    }
}

/// What the CUDA provider of a build of ONNX Runtime is linked against.
#[derive(Debug, Default)]
pub(super) struct Linked {
    pub(super) generation: CudaGeneration,
    /// The names of the libraries without which the system does not load it.
    pub(super) needed: Vec<String>,
}

/// Reads it from the provider's file. One that names no library of CUDA counts as built for the release that is fetched.
pub(super) fn of_provider(provider: &Path) -> Result<Linked, String> {
    let needed = shared_library::needed(provider)?;
    let fitting = [CudaGeneration::Thirteen, CudaGeneration::Twelve];
    match fitting.into_iter().find(|generation| generation.foreign(&needed).is_none()) {
        Some(generation) => Ok(Linked { generation, needed }),
        None => {
            let names: Vec<String> =
                needed.iter().filter(|name| is_of_cuda(name)).map(|n| format!("`{n}`")).collect();
            Err(format!(
                "it needs {}, and orchestra knows the libraries of CUDA 12 and of CUDA 13, each with cuDNN 9",
                names.join(", ")
            ))
        }
    }
}

fn is_of_cuda(name: &str) -> bool {
    OF_13.iter().any(|known| stem(known.name) == stem(name))
}

/// `libcublas` of `libcublas.so.13`.
fn stem(name: &str) -> &str {
    name.split_once(".so").map_or(name, |(stem, _)| stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_generations_have_the_same_products_in_the_same_order() {
        let products = |generation: CudaGeneration| {
            generation.wanted().iter().map(|w| (stem(w.name), w.product, w.need)).collect::<Vec<_>>()
        };
        assert_eq!(products(CudaGeneration::Twelve), products(CudaGeneration::Thirteen));
        for wanted in CudaGeneration::Twelve.wanted() {
            assert!(wanted.package.ends_with("-cu12"), "{}", wanted.package);
        }
    }

    #[test]
    fn a_library_of_another_generation_is_told_apart() {
        let needed = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let twelve = needed(&["libcublas.so.12", "libcufft.so.11", "libcudnn.so.9", "libc.so.6"]);
        assert_eq!(CudaGeneration::Twelve.foreign(&twelve), None);
        assert_eq!(CudaGeneration::Thirteen.foreign(&twelve), Some("libcublas.so.12"));
        // Neither the driver's library nor one that both have says anything.
        let either = needed(&["libcurand.so.10", "libcuda.so.1", "libcudadebugger.so.1"]);
        assert_eq!(CudaGeneration::Thirteen.foreign(&either), None);
        let old = needed(&["libcublas.so.12", "libcudnn.so.8"]);
        assert_eq!(CudaGeneration::Twelve.foreign(&old), Some("libcudnn.so.8"));
    }
}
