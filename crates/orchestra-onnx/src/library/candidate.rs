//! Judges a file that may be ONNX Runtime: is it a library for this processor, how old, with or without CUDA. Reads parts of it
//! and its name; never loads it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::library::cuda::CudaLibraries;
use crate::library::found::Library;
use crate::library::origin::CUDA_PROVIDER;
use crate::library::origin::{Flavor, LibraryOrigin};
use crate::library::shared_library;

/// The oldest version that the `ort` crate, as we build it, accepts.
pub const MINIMUM_VERSION: &str = "1.31";
const MINIMUM: (u32, u32) = (1, 31);

pub(crate) const LIBRARY: &str = "libonnxruntime.so";

/// How far into a file its version symbol is looked for. The dynamic string table lies near the start.
const SYMBOL_SEARCH_BYTES: u64 = 4 << 20;

/// Judges a file, or the best library in a folder. The error completes "it cannot be used: ".
pub(crate) fn examine(path: &Path, flavor: Flavor, origin: LibraryOrigin) -> Result<Library, String> {
    if path.is_dir() {
        examine_folder(path, flavor, origin)
            .unwrap_or_else(|| Err(format!("the folder holds no `{LIBRARY}`")))
    } else {
        examine_file(path, flavor, origin)
    }
}

/// Judges the libraries in a folder, newest first. `None`: it holds none, or does not exist. An error is that of the newest.
pub(crate) fn examine_folder(
    folder: &Path,
    flavor: Flavor,
    origin: LibraryOrigin,
) -> Option<Result<Library, String>> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_library_name(name))
        .collect();
    names.sort_by_key(|name| {
        std::cmp::Reverse((version_of_name(name).as_deref().and_then(major_minor), name.clone()))
    });
    let mut verdicts = names.iter().map(|name| {
        examine_file(&folder.join(name), flavor, origin).map_err(|why| format!("`{name}`: {why}"))
    });
    let newest = verdicts.next()?;
    Some(if newest.is_ok() { newest } else { verdicts.find(Result::is_ok).unwrap_or(newest) })
}

pub(crate) fn examine_file(path: &Path, flavor: Flavor, origin: LibraryOrigin) -> Result<Library, String> {
    let path = fs::canonicalize(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => format!("it cannot be opened: {error}"),
    })?;
    shared_library::needed(&path)?;
    let version = match path.file_name().and_then(|name| version_of_name(name.to_str()?)) {
        Some(version) => Some(version),
        None => version_symbol(&beginning(&path)?),
    };
    if let Some(version) = &version {
        check_version(version)?;
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    if flavor == Flavor::Gpu && !folder.join(CUDA_PROVIDER).is_file() {
        return Err(format!("it is built for the CPU only: `{CUDA_PROVIDER}` is not beside it"));
    }
    Ok(Library { path, version, origin, flavor, cuda: CudaLibraries::default() })
}

/// `libonnxruntime.so` and `libonnxruntime.so.1.31.1`, but not `libonnxruntime_providers_shared.so`.
pub(crate) fn is_library_name(name: &str) -> bool {
    name.strip_prefix(LIBRARY).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// From `libonnxruntime.so.1.31.1`; a mere `.so.1` tells nothing.
fn version_of_name(name: &str) -> Option<String> {
    let version = name.strip_prefix(LIBRARY)?.strip_prefix('.')?;
    major_minor(version).map(|_| version.to_owned())
}

fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn beginning(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(SYMBOL_SEARCH_BYTES).read_to_end(&mut bytes))
        .map_err(|error| format!("it cannot be read: {error}"))?;
    Ok(bytes)
}

/// ONNX Runtime's exported symbols carry the version node `VERS_1.31.1`.
fn version_symbol(start: &[u8]) -> Option<String> {
    const NODE: &[u8] = b"VERS_";
    start.windows(NODE.len()).enumerate().filter(|(_, window)| *window == NODE).find_map(|(at, _)| {
        let rest = &start[at + NODE.len()..];
        let end = rest.iter().position(|b| !b.is_ascii_digit() && *b != b'.')?;
        let version = std::str::from_utf8(&rest[..end]).ok()?;
        major_minor(version).map(|_| version.to_owned())
    })
}

fn check_version(version: &str) -> Result<(), String> {
    match major_minor(version) {
        Some(found) if found < MINIMUM => {
            Err(format!("it is version {version}, but {MINIMUM_VERSION} or newer is needed"))
        }
        Some((major, _)) if major != MINIMUM.0 => {
            Err(format!("it is version {version}, whose interface is not known to orchestra"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_libraries_and_their_versions() {
        assert!(is_library_name("libonnxruntime.so") && is_library_name("libonnxruntime.so.1.31.1"));
        assert!(
            !is_library_name("libonnxruntime_providers_shared.so") && !is_library_name("libonnxruntime.so1")
        );
        assert_eq!(version_of_name("libonnxruntime.so.1.31.1").as_deref(), Some("1.31.1"));
        assert_eq!(version_of_name("libonnxruntime.so.1"), None);
        assert_eq!(version_of_name("libonnxruntime.so"), None);
    }

    #[test]
    fn the_version_symbol_is_found_and_junk_is_not_taken_for_one() {
        assert_eq!(version_symbol(b"..\0VERS_NDX\0VERS_1.32.0\0").as_deref(), Some("1.32.0"));
        assert_eq!(version_symbol(b"VERS_1\0VERS_\0"), None);
        assert_eq!(version_symbol(b"VERS_1.3"), None, "a text that is cut off is no version");
    }

    #[test]
    fn only_known_interfaces_pass() {
        for good in ["1.31.0", "1.31.1", "1.40", "1.100.2"] {
            assert_eq!(check_version(good), Ok(()), "{good}");
        }
        assert!(check_version("1.9.1").unwrap_err().contains("1.31 or newer"));
        assert!(check_version("2.0.0").is_err());
    }
}
