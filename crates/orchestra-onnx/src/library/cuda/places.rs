//! The folders in which CUDA's libraries may lie, in order. Judges single files; chooses none.

use std::fs;
use std::path::{Path, PathBuf};

use super::generation::Wanted;
use super::{CudaGeneration, FoundLibrary, version};
use crate::library::env::Env;
use crate::library::origin::CUDA_LIBRARIES_VARIABLE;
use crate::library::origin::{LibraryOrigin, Tried};
use crate::library::python;

/// The driver's own library. It comes with the driver and never from anywhere else.
const DRIVER_LIBRARY: &str = "libcuda.so.1";

/// Where NVIDIA's installers put them, and distributions.
fn usual(generation: CudaGeneration) -> [String; 4] {
    let release = format!("/usr/local/cuda-{}/lib64", generation.number());
    ["/usr/local/cuda/lib64".into(), release, "/opt/cuda/lib64".into(), "/usr/local/cudnn/lib64".into()]
}

pub(super) fn has_driver_library(env: &Env) -> bool {
    let folders = env.list("LD_LIBRARY_PATH").into_iter().chain(env.system_folders.iter().cloned());
    folders.into_iter().any(|folder| folder.join(DRIVER_LIBRARY).exists())
}

/// Folders that count as one place.
pub(super) struct LibraryFolders {
    origin: LibraryOrigin,
    folders: Vec<PathBuf>,
}

impl LibraryFolders {
    pub(super) fn new(origin: LibraryOrigin, folders: Vec<PathBuf>) -> LibraryFolders {
        LibraryFolders { origin, folders }
    }

    /// The first file of this name that `examine` has nothing against. What it has against others is noted.
    pub(super) fn find(
        &self,
        wanted: &Wanted,
        tried: &mut Vec<Tried>,
        examine: impl Fn(&Path) -> Result<(), String>,
    ) -> Option<FoundLibrary> {
        let files = self.folders.iter().map(|folder| folder.join(wanted.name)).filter(|path| path.exists());
        for path in files {
            match examine(&path) {
                Ok(()) => {
                    let version = version::of(&path, wanted.package);
                    return Some(FoundLibrary { path, version, origin: self.origin });
                }
                Err(why) => {
                    let place = path.display().to_string();
                    let note = Tried { origin: self.origin, place, why };
                    if !tried.contains(&note) {
                        tried.push(note);
                    }
                }
            }
        }
        None
    }
}

/// All places but those that a Python must be asked for.
pub(super) fn without_python(
    env: &Env,
    runtime: Option<&Path>,
    generation: CudaGeneration,
    tried: &mut Vec<Tried>,
) -> Vec<LibraryFolders> {
    let mut places = Vec::new();
    for folder in env.list(CUDA_LIBRARIES_VARIABLE) {
        if folder.is_dir() {
            places.push(LibraryFolders { origin: LibraryOrigin::Named, folders: with_subfolders(&folder) });
        } else {
            let why = format!("`{CUDA_LIBRARIES_VARIABLE}` names it, and it is no folder");
            tried.push(Tried { origin: LibraryOrigin::Named, place: folder.display().to_string(), why });
        }
    }
    for folder in env.list("LD_LIBRARY_PATH") {
        places.push(LibraryFolders { origin: LibraryOrigin::LoaderPath, folders: vec![folder] });
    }
    if let Some(runtime) = runtime {
        places.push(LibraryFolders { origin: LibraryOrigin::BesideRuntime, folders: beside(runtime) });
    }
    let usual = usual(generation).map(|folder| env.root.join(folder.trim_start_matches('/')));
    let system = env.system_folders.iter().cloned().chain(usual).collect();
    places.push(LibraryFolders { origin: LibraryOrigin::System, folders: system });
    places
}

/// The packages `nvidia` of all Pythons, each a place.
pub(super) fn of_pythons(env: &Env, tried: &mut Vec<Tried>) -> Vec<LibraryFolders> {
    of_each_python(env, tried, libraries_below)
}

/// For each Python a place of the folders that lie near its packages `nvidia`.
pub(super) fn of_each_python(
    env: &Env,
    tried: &mut Vec<Tried>,
    near: impl Fn(&Path) -> Vec<PathBuf>,
) -> Vec<LibraryFolders> {
    let mut places = Vec::new();
    for program in python::interpreters(env) {
        match python::ask(&program, env) {
            Ok(answer) => {
                let folders = answer.nvidia.iter().flat_map(|nvidia| near(nvidia)).collect();
                places.push(LibraryFolders::new(LibraryOrigin::Python, folders));
            }
            Err(why) => {
                tried.push(Tried {
                    origin: LibraryOrigin::Python,
                    place: program.display().to_string(),
                    why,
                });
            }
        }
    }
    places
}

/// Beside the runtime itself, then `nvidia/*/lib` of the folders above it: the packages of the Python that it was installed with.
fn beside(runtime: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for (up, folder) in runtime.ancestors().skip(1).take(4).enumerate() {
        if up == 0 {
            folders.push(folder.to_owned());
        }
        folders.extend(libraries_below(&folder.join("nvidia")));
    }
    folders
}

/// A folder that the user named may be the one with the libraries, an installation of CUDA, or a Python's `nvidia`.
fn with_subfolders(folder: &Path) -> Vec<PathBuf> {
    let mut folders = vec![folder.to_owned(), folder.join("lib64"), folder.join("lib")];
    folders.extend(libraries_below(folder));
    folders.extend(libraries_below(&folder.join("nvidia")));
    folders
}

/// `*/lib` below a folder, in the order of their names.
fn libraries_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut folders: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path().join("lib")).filter(|lib| lib.is_dir()).collect();
    folders.sort();
    folders
}
