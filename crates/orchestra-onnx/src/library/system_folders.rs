//! The folders in which the dynamic linker looks for libraries. Reads its configuration; runs nothing.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::library::env::unique;

/// Where a library may lie although the linker's configuration does not name it.
const USUAL: [&str; 5] = ["/usr/local/lib", "/usr/lib", "/usr/lib64", multiarch(), "/opt/onnxruntime/lib"];

/// Includes of includes are followed this deep; real configurations need 1.
const DEPTH: usize = 4;

const fn multiarch() -> &'static str {
    if cfg!(target_arch = "aarch64") { "/usr/lib/aarch64-linux-gnu" } else { "/usr/lib/x86_64-linux-gnu" }
}

/// The linker's folders, in its order, then the usual ones, then those that its cache names (`ldconfig FOLDER` adds some that no file names); `root` is `/` outside tests. None is named twice.
pub(crate) fn system_folders(root: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    read_configuration(root, Path::new("/etc/ld.so.conf"), DEPTH, &mut folders);
    folders.extend(USUAL.iter().map(PathBuf::from));
    folders.extend(folders_of_cache(root));
    unique(folders).iter().map(|folder| under(root, folder)).collect()
}

/// The folders of the libraries in the linker's cache. Its records point into a table of texts that end with a zero byte, and no other
/// text in it starts with `/`.
fn folders_of_cache(root: &Path) -> Vec<PathBuf> {
    let cache = fs::read(under(root, Path::new("/etc/ld.so.cache"))).unwrap_or_default();
    let paths = cache.split(|b| *b == 0).filter(|text| text.starts_with(b"/"));
    unique(paths.filter_map(|path| Path::new(OsStr::from_bytes(path)).parent().map(Path::to_owned)))
}

fn read_configuration(root: &Path, file: &Path, depth: usize, folders: &mut Vec<PathBuf>) {
    let Ok(text) = fs::read_to_string(under(root, file)) else { return };
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        match line.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])) {
            Some(patterns) if depth > 0 => {
                for included in patterns.split_whitespace().flat_map(|p| expand(root, file, p)) {
                    read_configuration(root, &included, depth - 1, folders);
                }
            }
            None if line.starts_with('/') => folders.push(line.into()),
            _ => {}
        }
    }
}

/// The files that a pattern with at most one `*`, in its last part, names. Others do not occur in practice and name none.
fn expand(root: &Path, from: &Path, pattern: &str) -> Vec<PathBuf> {
    let pattern = from.parent().unwrap_or(from).join(pattern);
    let (Some(folder), Some(name)) = (pattern.parent(), pattern.file_name().and_then(|n| n.to_str())) else {
        return Vec::new();
    };
    let Some((start, end)) = name.split_once('*') else { return vec![pattern] };
    let Ok(entries) = fs::read_dir(under(root, folder)) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|n| n.len() >= start.len() + end.len() && n.starts_with(start) && n.ends_with(end))
        .map(|n| folder.join(n))
        .collect();
    files.sort();
    files
}

fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linkers_own_folders_come_first_and_once() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc/ld.so.conf.d");
        fs::create_dir_all(&etc).unwrap();
        fs::write(root.path().join("etc/ld.so.conf"), "include /etc/ld.so.conf.d/*.conf\n/last\n").unwrap();
        fs::write(etc.join("b.conf"), "# text\n/b # more\n\n/usr/lib\n").unwrap();
        fs::write(etc.join("a.conf"), "/a\ninclude /etc/ld.so.conf\n").unwrap();
        fs::write(etc.join("a.conf.bak"), "/never\n").unwrap();
        let folders = system_folders(root.path());
        let names: Vec<_> =
            folders.iter().map(|f| f.strip_prefix(root.path()).unwrap().to_str().unwrap()).collect();
        assert_eq!(names[0], "a");
        assert!(
            ["b", "last", "usr/lib", "opt/onnxruntime/lib"].iter().all(|n| names.contains(n)),
            "{names:?}"
        );
        assert!(!names.contains(&"never"));
        assert_eq!(names.iter().filter(|n| **n == "usr/lib").count(), 1);
    }

    #[test]
    fn folders_that_only_the_cache_names_come_last() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        let text = b"glibc-ld.so.cache1.1\0\x02\0libcublas.so.13\0/nv/lib64/libcublas.so.13\0/usr/lib/libc.so.6\0/nv/lib64/libcudart.so.13\0";
        fs::write(root.path().join("etc/ld.so.cache"), text).unwrap();
        let folders = system_folders(root.path());
        assert_eq!(folders.len(), USUAL.len() + 1);
        assert_eq!(folders.last().unwrap(), &root.path().join("nv/lib64"));
    }

    #[test]
    fn without_a_configuration_the_usual_folders_remain() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(system_folders(root.path()).len(), USUAL.len());
    }
}
