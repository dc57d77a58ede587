//! The libraries of CUDA and cuDNN that the GPU build of ONNX Runtime needs: which they are, and where each of them was found.
//! Loads none of them: a worker does that, by full path and in this order, and so needs no `LD_LIBRARY_PATH`.

mod generation;
mod nvrtc;
mod places;
mod tensorrt;
mod version;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::library::env::Env;
use crate::library::origin::CUDA_PROVIDER;
use crate::library::origin::{LibraryOrigin, Tried};
pub use generation::CudaGeneration;
use generation::{Linked, Wanted};
pub use nvrtc::find_nvrtc;
use places::LibraryFolders;
pub use tensorrt::{TENSORRT_PROVIDER, add_tensorrt, find_tensorrt, how_to_get_tensorrt, tensorrt_provider};

/// What was found, and what was not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CudaLibraries {
    pub generation: CudaGeneration,
    /// Why the CUDA provider of ONNX Runtime cannot be used whatever else is there; completes "it cannot be used: ".
    pub provider_problem: Option<String>,
    /// Whether the driver's library `libcuda.so.1` lies where the system looks for libraries. Where it does not, only the driver itself
    /// can tell whether it is there.
    pub has_driver_library: bool,
    /// In the order in which they must be loaded: each after what it needs itself.
    pub libraries: Vec<CudaLibrary>,
    /// Files and folders that were of no use although they looked like it.
    pub tried: Vec<Tried>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CudaLibrary {
    /// The name under which programs ask for it, for example `libcublas.so.13`.
    pub name: &'static str,
    /// The product that it belongs to. Its libraries come from one place wherever one place has them all.
    pub product: &'static str,
    /// What cannot do without it.
    pub need: Need,
    pub package: &'static str,
    /// Where it is; `None`: nowhere that was looked at.
    pub found: Option<FoundLibrary>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// The CUDA provider does not load without it.
    Always,
    /// Some operators need it: convolutions, Fourier transforms, kernels that are compiled on the spot.
    SomeModels,
    /// Only some releases have it.
    IfThere,
}

/// A file that can be loaded, as far as it tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FoundLibrary {
    /// The file, absolute. Links are kept: what a library loads by itself is looked for beside the link.
    pub path: PathBuf,
    /// From the name of the file or of the Python package; `None` where neither tells.
    pub version: Option<String>,
    pub origin: LibraryOrigin,
}

/// Looks for all of them. `runtime` is ONNX Runtime's library: the CUDA provider beside it says which release of CUDA is needed, and its
/// neighbours are looked at, too. The places, in order: the folders of `ORCHESTRA_CUDA_LIBRARIES`, of `LD_LIBRARY_PATH`, beside `runtime`,
/// the system's, and only where something is still missing the packages of every Python.
pub fn find_cuda(env: &Env, runtime: Option<&Path>) -> CudaLibraries {
    let provider = runtime.map(|runtime| runtime.with_file_name(CUDA_PROVIDER)).filter(|file| file.is_file());
    let (linked, provider_problem) = match provider.map(|file| generation::of_provider(&file)) {
        None => (Linked::default(), None),
        Some(Ok(linked)) => (linked, None),
        Some(Err(why)) => (Linked::default(), Some(why)),
    };
    let generation = linked.generation;
    let mut tried = Vec::new();
    let places = places::without_python(env, runtime, generation, &mut tried);
    let search = CudaSearch {
        wanted: generation.wanted(),
        is_needed: |need| need != Need::IfThere,
        examine: &|wanted, path| generation::examine(path, wanted, generation),
    };
    let mut libraries = search.run(places, |tried| places::of_pythons(env, tried), &mut tried);
    for library in &mut libraries {
        // What the provider itself is linked against, nothing runs without.
        if linked.needed.iter().any(|name| name == library.name) {
            library.need = Need::Always;
        }
    }
    libraries.retain(|l| l.found.is_some() || l.need != Need::IfThere);
    let has_driver_library = places::has_driver_library(env);
    CudaLibraries { generation, provider_problem, has_driver_library, libraries, tried }
}

impl CudaLibraries {
    /// The files to load, in order.
    pub fn preload(&self) -> Vec<PathBuf> {
        self.libraries.iter().filter_map(|l| Some(l.found.as_ref()?.path.clone())).collect()
    }

    /// What was not found and is needed like this.
    pub fn missing(&self, need: Need) -> impl Iterator<Item = &CudaLibrary> {
        self.libraries.iter().filter(move |l| l.need == need && l.found.is_none())
    }

    /// The products, each with its libraries, in the order of loading.
    pub fn products(&self) -> Vec<(&'static str, Vec<&CudaLibrary>)> {
        let mut products: Vec<(&'static str, Vec<&CudaLibrary>)> = Vec::new();
        for library in &self.libraries {
            match products.iter_mut().find(|(name, _)| *name == library.product) {
                Some((_, libraries)) => libraries.push(library),
                None => products.push((library.product, vec![library])),
            }
        }
        products
    }

    /// A command that fetches what is missing, if anything is.
    pub fn how_to_get(&self) -> Option<String> {
        let mut packages: Vec<&str> =
            self.libraries.iter().filter(|l| l.found.is_none()).map(|l| l.package).collect();
        packages.dedup();
        (!packages.is_empty()).then(|| format!("python3 -m pip install {}", packages.join(" ")))
    }
}

/// What is looked for, and which files will do.
struct CudaSearch<'a> {
    wanted: &'a [Wanted],
    /// What a place must have to hold the whole of a product.
    is_needed: fn(Need) -> bool,
    /// What a file has against it.
    examine: &'a dyn Fn(&Wanted, &Path) -> Result<(), String>,
}

impl CudaSearch<'_> {
    /// In `places`, and only where something that is needed is missing there also in those of Pythons.
    fn run(
        &self,
        mut places: Vec<LibraryFolders>,
        of_pythons: impl FnOnce(&mut Vec<Tried>) -> Vec<LibraryFolders>,
        tried: &mut Vec<Tried>,
    ) -> Vec<CudaLibrary> {
        let libraries = self.choose(&places, tried);
        if libraries.iter().all(|l| l.found.is_some() || l.need == Need::IfThere) {
            return libraries;
        }
        places.extend(of_pythons(tried));
        self.choose(&places, tried)
    }

    /// One file for each library. The libraries of a product come from the first place that has all that are needed, because two releases
    /// of cuBLAS do not work together; where no place has all, each comes from the first place that has it.
    fn choose(&self, places: &[LibraryFolders], tried: &mut Vec<Tried>) -> Vec<CudaLibrary> {
        let mut find = |place: &LibraryFolders, w| place.find(w, tried, |path| (self.examine)(w, path));
        let of_place = |place| self.wanted.iter().map(|w| find(place, w)).collect();
        let candidates: Vec<Vec<Option<FoundLibrary>>> = places.iter().map(of_place).collect();
        let is_whole = |place: &[Option<FoundLibrary>], product: &str| {
            let of_product = || self.wanted.iter().zip(place).filter(|(w, _)| w.product == product);
            let has_needed = of_product().all(|(w, found)| found.is_some() || !(self.is_needed)(w.need));
            has_needed && of_product().any(|(_, found)| found.is_some())
        };
        let library = |(i, w): (usize, &Wanted)| {
            let whole = candidates.iter().find(|place| is_whole(place, w.product));
            let found = match whole {
                Some(place) => place[i].clone(),
                None => candidates.iter().find_map(|place| place[i].clone()),
            };
            CudaLibrary { name: w.name, product: w.product, need: w.need, package: w.package, found }
        };
        self.wanted.iter().enumerate().map(library).collect()
    }
}
