//! NVRTC, which compiles kernels in workers. Looks where the other libraries of CUDA are looked for; loads nothing.

use orchestra_core::kernel::Compiler;

use super::CudaGeneration;
use super::generation::{self, Wanted};
use super::places::{self, LibraryFolders};
use crate::library::env::Env;
use crate::library::origin::CUDA_LIBRARIES_VARIABLE;
use crate::library::origin::Tried;

/// Those that are here, newest first.
///
/// # Errors
/// There is none: what to do, and which files were of no use.
pub fn find_nvrtc(env: &Env) -> Result<Vec<Compiler>, String> {
    let mut tried = Vec::new();
    let mut found = Vec::new();
    for generation in GENERATIONS {
        let places = places::without_python(env, None, generation, &mut tried);
        found.extend(of_places(&places, generation, &mut tried));
    }
    if found.is_empty() {
        let places = places::of_pythons(env, &mut tried);
        found.extend(GENERATIONS.iter().filter_map(|generation| of_places(&places, *generation, &mut tried)));
    }
    if !found.is_empty() {
        return Ok(found);
    }
    let tried: String = tried.iter().map(|tried| format!("\n{tried}")).collect();
    Err(format!(
        "NVRTC, CUDA's compiler, is not here (`libnvrtc.so.13` or `libnvrtc.so.12`): `python3 -m pip install nvidia-cuda-nvrtc`, for a driver of \
         CUDA 12 `nvidia-cuda-nvrtc-cu12`; or name its folder in `{CUDA_LIBRARIES_VARIABLE}`{tried}"
    ))
}

const GENERATIONS: [CudaGeneration; 2] = [CudaGeneration::Thirteen, CudaGeneration::Twelve];

fn of_places(
    places: &[LibraryFolders],
    generation: CudaGeneration,
    tried: &mut Vec<Tried>,
) -> Option<Compiler> {
    let is_nvrtc = |wanted: &&Wanted| wanted.name.starts_with("libnvrtc.");
    let wanted = generation.wanted().iter().find(is_nvrtc)?;
    let mut examined = |place: &LibraryFolders| {
        place.find(wanted, tried, |path| generation::examine(path, wanted, generation))
    };
    Some(Compiler { release: generation.number(), path: places.iter().find_map(&mut examined)?.path })
}
