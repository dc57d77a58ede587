//! The surroundings of a search as a value: variables, folders, pinned wheels. Reads the process's own environment only in
//! `from_process`, so that a test can have any other.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::library::origin::Flavor;
use crate::library::pins::{Pin, pinned};
use crate::library::system_folders::system_folders;

/// Everything outside the request that decides what is found.
#[derive(Debug, Clone)]
pub struct Env {
    /// Environment variables. Programs that are started (`python3`) get exactly these.
    pub variables: BTreeMap<OsString, OsString>,
    /// What relative paths are relative to.
    pub current_folder: PathBuf,
    /// The folders of the dynamic linker, in its order, without those of `LD_LIBRARY_PATH`.
    pub system_folders: Vec<PathBuf>,
    pub pins: Vec<Pin>,
    /// `/`, outside tests: what folders that never change their name lie below.
    pub root: PathBuf,
}

impl Env {
    pub fn from_process() -> Self {
        Self {
            variables: std::env::vars_os().collect(),
            current_folder: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            system_folders: system_folders(Path::new("/")),
            pins: pinned(),
            root: PathBuf::from("/"),
        }
    }

    /// A variable; one that is set but empty counts as not set.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// The folders of a variable like `PATH`. Empty entries, which would mean the current folder, are left out.
    pub(crate) fn list(&self, name: &str) -> Vec<PathBuf> {
        let paths = std::env::split_paths(self.get(name).unwrap_or_default());
        paths.filter(|path| !path.as_os_str().is_empty()).map(|path| self.absolute(path)).collect()
    }

    /// `path` as seen from the current folder.
    pub(crate) fn absolute(&self, path: impl AsRef<Path>) -> PathBuf {
        self.current_folder.join(path)
    }

    /// Where libraries are kept: `onnxruntime` in `ORCHESTRA_CACHE`, else in `orchestra` of `XDG_CACHE_HOME`, else in
    /// `.cache/orchestra` of `HOME`. `None` if no variable is set.
    pub(crate) fn cache_folder(&self) -> Option<PathBuf> {
        Some(self.user_folder()?.join("onnxruntime"))
    }

    /// The folder above it, which is ours, too: `ORCHESTRA_CACHE` itself, if it is set.
    pub fn user_folder(&self) -> Option<PathBuf> {
        match self.get("ORCHESTRA_CACHE") {
            Some(folder) => Some(self.absolute(folder)),
            None => Some(self.user_cache()?.join("orchestra")),
        }
    }

    fn user_cache(&self) -> Option<PathBuf> {
        // The XDG rules say that a relative path is to be ignored.
        let xdg = self.get("XDG_CACHE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute());
        xdg.or_else(|| Some(self.absolute(self.get("HOME")?).join(".cache")))
    }

    /// The pinned wheels of this processor whose library serves `flavor`; the one to fetch is the first.
    pub(crate) fn pins_for(&self, flavor: Flavor) -> Vec<&Pin> {
        let serves = |pin: &&Pin| flavor == Flavor::Cpu || pin.flavor == Flavor::Gpu;
        let of_machine = self.pins.iter().filter(|pin| pin.arch == std::env::consts::ARCH);
        let mut pins: Vec<&Pin> = of_machine.filter(serves).collect();
        pins.sort_by_key(|pin| pin.flavor != flavor);
        pins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(variables: &[(&str, &str)]) -> Env {
        Env {
            variables: variables.iter().map(|(k, v)| (k.into(), v.into())).collect(),
            current_folder: "/here".into(),
            system_folders: vec![],
            pins: pinned(),
            root: "/nowhere".into(),
        }
    }

    #[test]
    fn the_cache_is_where_the_first_set_variable_says() {
        let at = |v: &[(&str, &str)]| env(v).cache_folder().map(|p| p.display().to_string());
        assert_eq!(at(&[]), None);
        assert_eq!(at(&[("HOME", "/u")]).unwrap(), "/u/.cache/orchestra/onnxruntime");
        assert_eq!(
            at(&[("HOME", "/u"), ("XDG_CACHE_HOME", "x")]).unwrap(),
            "/u/.cache/orchestra/onnxruntime"
        );
        assert_eq!(at(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")]).unwrap(), "/x/orchestra/onnxruntime");
        assert_eq!(at(&[("XDG_CACHE_HOME", "/x"), ("ORCHESTRA_CACHE", "c")]).unwrap(), "/here/c/onnxruntime");
        assert_eq!(
            at(&[("HOME", "/u"), ("ORCHESTRA_CACHE", "")]).unwrap(),
            "/u/.cache/orchestra/onnxruntime"
        );
    }

    #[test]
    fn lists_leave_out_empty_entries() {
        assert_eq!(env(&[("PATH", ":/a::b:")]).list("PATH"), [Path::new("/a"), Path::new("/here/b")]);
        assert!(env(&[]).list("PATH").is_empty());
    }

    #[test]
    fn a_gpu_library_serves_the_cpu_too_but_is_not_fetched_for_it() {
        let mut env = env(&[]);
        for pin in &mut env.pins {
            pin.arch = std::env::consts::ARCH.into();
        }
        let flavors = |f| env.pins_for(f).iter().map(|p| p.flavor).collect::<Vec<_>>();
        assert_eq!(flavors(Flavor::Gpu), [Flavor::Gpu]);
        assert_eq!(flavors(Flavor::Cpu)[0], Flavor::Cpu);
        assert!(flavors(Flavor::Cpu).contains(&Flavor::Gpu));
    }
}
