//! The order in which places are looked at. Fetches nothing and changes nothing.

use std::path::{Path, PathBuf};

use crate::library::cache;
use crate::library::candidate::{LIBRARY, examine, examine_file, examine_folder};
use crate::library::env::Env;
use crate::library::error::LibraryError;
use crate::library::found::{Library, LibraryRequest};
use crate::library::origin::{LibraryOrigin, Tried};
use crate::library::python;

pub(crate) struct LibrarySearch<'a> {
    request: &'a LibraryRequest,
    env: &'a Env,
    /// The places that were of no use up to now.
    pub(crate) tried: Vec<Tried>,
}

impl<'a> LibrarySearch<'a> {
    pub(crate) fn new(request: &'a LibraryRequest, env: &'a Env) -> Self {
        Self { request, env, tried: Vec::new() }
    }

    /// The first library that can be used. An error is of one that the user named: to take another one silently would hide that.
    pub(crate) fn run(&mut self) -> Result<Option<Library>, LibraryError> {
        if let Some(path) = &self.request.explicit {
            let path = self.env.absolute(path);
            return self.named(LibraryOrigin::Explicit, "the library path option", &path).map(Some);
        }
        if let Some(value) = self.env.get("ORT_DYLIB_PATH") {
            let path = self.dylib_path(Path::new(value));
            return self.named(LibraryOrigin::Env, "`ORT_DYLIB_PATH`", &path).map(Some);
        }
        Ok(self.cache().or_else(|| self.system()).or_else(|| self.python()))
    }

    fn named(
        &mut self,
        origin: LibraryOrigin,
        setting: &'static str,
        path: &Path,
    ) -> Result<Library, LibraryError> {
        examine(path, self.request.flavor, origin).map_err(|why| {
            self.note(origin, path.display(), &why);
            LibraryError::Unusable { setting, path: path.to_owned(), why }
        })
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
            self.note(LibraryOrigin::Cache, "~/.cache/orchestra", "no variable names a home or cache folder");
            return None;
        };
        for pin in self.env.pins_for(self.request.flavor) {
            let folder = root.join(pin.folder_name());
            let file = cache::lookup(&folder, pin);
            match file.and_then(|file| examine_file(&file, self.request.flavor, LibraryOrigin::Cache)) {
                Ok(library) => return Some(library),
                Err(why) => self.note(LibraryOrigin::Cache, folder.display(), &why),
            }
        }
        None
    }

    fn system(&mut self) -> Option<Library> {
        let folders = self.linker_folders();
        let empty = folders.len();
        let mut unusable = 0;
        for folder in folders {
            match examine_folder(&folder, self.request.flavor, LibraryOrigin::System) {
                None => {}
                Some(Ok(library)) => return Some(library),
                Some(Err(why)) => {
                    unusable += 1;
                    self.note(LibraryOrigin::System, folder.display(), &why);
                }
            }
        }
        if unusable == 0 {
            self.note(
                LibraryOrigin::System,
                format_args!("{empty} library folders"),
                &format!("they hold no `{LIBRARY}`"),
            );
        }
        None
    }

    fn python(&mut self) -> Option<Library> {
        let interpreters = python::interpreters(self.env);
        if interpreters.is_empty() {
            self.note(LibraryOrigin::Python, "python3", "it is not on the PATH");
        }
        for program in interpreters {
            match python::ask(&program, self.env) {
                Ok(python::PythonPackages { runtime: Some(folder), .. }) => {
                    let folder = folder.join("capi");
                    match examine(&folder, self.request.flavor, LibraryOrigin::Python) {
                        Ok(library) => return Some(library),
                        Err(why) => self.note(LibraryOrigin::Python, folder.display(), &why),
                    }
                }
                Ok(_) => {
                    self.note(LibraryOrigin::Python, program.display(), "it has no package `onnxruntime`")
                }
                Err(why) => self.note(LibraryOrigin::Python, program.display(), &why),
            }
        }
        None
    }

    fn linker_folders(&self) -> Vec<PathBuf> {
        let mut folders = self.env.list("LD_LIBRARY_PATH");
        folders.extend(self.env.system_folders.iter().cloned());
        folders
    }

    fn note(&mut self, origin: LibraryOrigin, place: impl std::fmt::Display, why: &str) {
        self.tried.push(Tried { origin, place: place.to_string(), why: why.to_owned() });
    }
}
