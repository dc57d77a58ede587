//! Which release a library of CUDA is, from the names around it. Opens no library.

use std::fs;
use std::path::Path;

use super::tensorrt::TENSORRT_FOLDER;

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
        None => of_package(path, package),
    }
}

/// The version in the record of Python's package `package`, if the library at `path` came with it: the package lies in `SITE/nvidia/NAME/lib`
/// or `SITE/tensorrt_libs`, its record in `SITE`.
pub(super) fn of_package(path: &Path, package: &str) -> Option<String> {
    let real = fs::canonicalize(path).ok()?;
    let nvidia = real.ancestors().nth(3).filter(|folder| folder.ends_with("nvidia"));
    let folder = nvidia.or(real.parent().filter(|folder| folder.ends_with(TENSORRT_FOLDER)))?;
    let record = format!("{}-", package.replace('-', "_"));
    let names = fs::read_dir(folder.parent()?).ok()?;
    let versions = names.filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        Some(name.strip_prefix(&record)?.strip_suffix(".dist-info")?.to_owned())
    });
    versions.max()
}
