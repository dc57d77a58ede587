//! The order in which places are looked at. Fetches nothing and changes nothing.

use std::path::{Path, PathBuf};

use crate::cache;
use crate::candidate::{Candidate, LIBRARY, examine, examine_file, examine_folder};
use crate::cuda::CudaLibraries;
use crate::env::Env;
use crate::error::LibraryError;
use crate::library::{Flavor, Library, Origin, Request, Tried};
use crate::python;

/// One search.
pub(crate) struct Search<'a> {
    request: &'a Request,
    env: &'a Env,
    /// The places that were of no use up to now.
    pub(crate) tried: Vec<Tried>,
}

/// How a search ended.
pub(crate) enum Outcome {
    Found(Library),
    /// The user named a library that cannot be used. To take another one silently would hide that.
    Refused(LibraryError),
    Absent,
}

impl<'a> Search<'a> {
    pub(crate) fn new(request: &'a Request, env: &'a Env) -> Self {
        Self { request, env, tried: Vec::new() }
    }

    pub(crate) fn run(&mut self) -> Outcome {
        if let Some(path) = &self.request.explicit {
            return self.named(Origin::Explicit, "the library path option", &self.env.absolute(path));
        }
        if let Some(value) = self.env.get("ORT_DYLIB_PATH") {
            let path = self.dylib_path(Path::new(value));
            return self.named(Origin::Env, "`ORT_DYLIB_PATH`", &path);
        }
        match self.cache().or_else(|| self.system()).or_else(|| self.python()) {
            Some(library) => Outcome::Found(library),
            None => Outcome::Absent,
        }
    }

    fn named(&mut self, origin: Origin, setting: &'static str, path: &Path) -> Outcome {
        match examine(path, self.request.flavor) {
            Ok(candidate) => Outcome::Found(self.library(candidate, origin)),
            Err(why) => {
                self.note(origin, path.display(), &why);
                Outcome::Refused(LibraryError::Unusable { setting, path: path.to_owned(), why })
            }
        }
    }

    /// A bare file name means the dynamic linker's search, as in a call of `dlopen`.
    fn dylib_path(&self, value: &Path) -> PathBuf {
        let path = self.env.absolute(value);
        let is_bare = value.components().count() == 1 && !value.is_absolute();
        if path.exists() || !is_bare {
            return path;
        }
        self.linker_folders()
            .into_iter()
            .map(|folder| folder.join(value))
            .find(|p| p.exists())
            .unwrap_or(path)
    }

    fn cache(&mut self) -> Option<Library> {
        let Some(root) = self.env.cache_folder() else {
            self.note(Origin::Cache, "~/.cache/orchestra", "no variable names a home or cache folder");
            return None;
        };
        for pin in self.env.pins_for(self.request.flavor) {
            let folder = root.join(pin.folder_name());
            match cache::lookup(&folder, pin).and_then(|file| examine_file(&file, self.request.flavor)) {
                Ok(candidate) => return Some(self.library(candidate, Origin::Cache)),
                Err(why) => self.note(Origin::Cache, folder.display(), &why),
            }
        }
        None
    }

    fn system(&mut self) -> Option<Library> {
        let folders = self.linker_folders();
        let empty = folders.len();
        let mut unusable = 0;
        for folder in folders {
            match examine_folder(&folder, self.request.flavor) {
                None => {}
                Some(Ok(candidate)) => return Some(self.library(candidate, Origin::System)),
                Some(Err(why)) => {
                    unusable += 1;
                    self.note(Origin::System, folder.display(), &why);
                }
            }
        }
        if unusable == 0 {
            self.note(
                Origin::System,
                format_args!("{empty} library folders"),
                &format!("they hold no `{LIBRARY}`"),
            );
        }
        None
    }

    fn python(&mut self) -> Option<Library> {
        let interpreters = python::interpreters(self.env);
        if interpreters.is_empty() {
            self.note(Origin::Python, "python3", "it is not on the PATH");
        }
        for program in interpreters {
            let folder = match python::ask(&program, self.env) {
                Ok(python::Answer { runtime: Some(folder), .. }) => folder.join("capi"),
                Ok(_) => {
                    self.note(Origin::Python, program.display(), "it has no package `onnxruntime`");
                    continue;
                }
                Err(why) => {
                    self.note(Origin::Python, program.display(), &why);
                    continue;
                }
            };
            match examine(&folder, self.request.flavor) {
                Ok(candidate) => return Some(self.library(candidate, Origin::Python)),
                Err(why) => self.note(Origin::Python, folder.display(), &why),
            }
        }
        None
    }

    fn linker_folders(&self) -> Vec<PathBuf> {
        let mut folders = self.env.list("LD_LIBRARY_PATH");
        folders.extend(self.env.system_folders.iter().cloned());
        folders
    }

    fn library(&self, candidate: Candidate, origin: Origin) -> Library {
        library(candidate, origin, self.request.flavor)
    }

    fn note(&mut self, origin: Origin, place: impl std::fmt::Display, why: &str) {
        self.tried.push(Tried { origin, place: place.to_string(), why: why.to_owned() });
    }
}

pub(crate) fn library(candidate: Candidate, origin: Origin, flavor: Flavor) -> Library {
    Library {
        path: candidate.path,
        version: candidate.version,
        origin,
        flavor,
        cuda: CudaLibraries::default(),
    }
}
