//! The folders in which the dynamic linker looks for libraries. Reads its cache; runs nothing.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Where a library may lie although the linker's cache does not name it.
const USUAL: [&str; 5] = ["/usr/local/lib", "/usr/lib", "/usr/lib64", multiarch(), "/opt/onnxruntime/lib"];

const fn multiarch() -> &'static str {
    if cfg!(target_arch = "aarch64") { "/usr/lib/aarch64-linux-gnu" } else { "/usr/lib/x86_64-linux-gnu" }
}

/// The folders that the linker's cache names, which are those of its configuration and those that `ldconfig FOLDER` added, then the usual
/// ones; `root` is `/` outside tests. None is named twice.
pub(crate) fn system_folders(root: &Path) -> Vec<PathBuf> {
    let folders = folders_of_cache(root).into_iter().chain(USUAL.iter().map(PathBuf::from));
    unique(folders).iter().map(|folder| under(root, folder)).collect()
}

/// The folders of the libraries in the linker's cache. Its records point into a table of texts that end with a zero byte, and no other
/// text in it starts with `/`.
fn folders_of_cache(root: &Path) -> Vec<PathBuf> {
    let cache = fs::read(under(root, Path::new("/etc/ld.so.cache"))).unwrap_or_default();
    let paths = cache.split(|b| *b == 0).filter(|text| text.starts_with(b"/"));
    unique(paths.filter_map(|path| Path::new(OsStr::from_bytes(path)).parent().map(Path::to_owned)))
}

fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Each path once, where it came first.
pub(crate) fn unique(paths: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut unique: Vec<PathBuf> = Vec::new();
    for path in paths {
        if !unique.contains(&path) {
            unique.push(path);
        }
    }
    unique
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linkers_own_folders_come_first_and_once() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        let text = b"glibc-ld.so.cache1.1\0\x02\0libcublas.so.13\0/nv/lib64/libcublas.so.13\0/usr/lib/libc.so.6\0/nv/lib64/libcudart.so.13\0";
        fs::write(root.path().join("etc/ld.so.cache"), text).unwrap();
        let folders = system_folders(root.path());
        assert_eq!(folders[..2], ["nv/lib64", "usr/lib"].map(|folder| root.path().join(folder)));
        assert_eq!(folders.len(), USUAL.len() + 1);
    }

    #[test]
    fn without_a_cache_the_usual_folders_remain() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(system_folders(root.path()).len(), USUAL.len());
    }
}
