//! Which release a library of CUDA is, from the names around it. Opens no library.

use std::fs;
use std::path::Path;

/// The version of the library at `path`: from the full name behind its links (`libcudart.so.13.2.75`), else from the records that pip keeps
/// beside the packages (`nvidia_cublas-13.4.1.3.dist-info`).
pub(super) fn of(path: &Path, package: &str) -> Option<String> {
    let link = path.file_name()?.to_str()?;
    let (stem, major) = link.split_once(".so.")?;
    let real = fs::canonicalize(path).ok()?;
    let of_name = real
        .file_name()
        .and_then(|name| name.to_str()?.strip_prefix(stem)?.strip_prefix(".so."))
        .filter(|version| version.len() > major.len());
    match of_name {
        Some(version) => Some(version.to_owned()),
        None => of_package(&real, package),
    }
}

/// Whether the library at `path` came with Python's package `package`.
pub(super) fn is_of_package(path: &Path, package: &str) -> bool {
    fs::canonicalize(path).is_ok_and(|real| of_package(&real, package).is_some())
}

/// A package lies in `SITE/nvidia/NAME/lib`, its record in `SITE`.
fn of_package(library: &Path, package: &str) -> Option<String> {
    let nvidia = library.ancestors().nth(3)?;
    if nvidia.file_name()? != "nvidia" {
        return None;
    }
    let record = format!("{}-", package.replace('-', "_"));
    let mut versions: Vec<String> = fs::read_dir(nvidia.parent()?)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| Some(name.strip_prefix(&record)?.strip_suffix(".dist-info")?.to_owned()))
        .collect();
    versions.sort();
    versions.pop()
}
