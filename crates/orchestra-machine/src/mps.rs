//! Whether NVIDIA's Multi-Process Service (MPS) is there, with which kernels of several processes run on a GPU at once. Only looks: a client finds
//! the service by the same pipes.

use std::ffi::OsString;
use std::path::PathBuf;

/// Where the pipes are that CUDA connects to, unless `CUDA_MPS_PIPE_DIRECTORY` says otherwise.
const DEFAULT_FOLDER: &str = "/tmp/nvidia-mps";

/// The folder with the pipes of the service, if it has any. `named`: `CUDA_MPS_PIPE_DIRECTORY`.
///
/// # Errors
/// The folder without pipes, to which no service belongs.
pub fn mps(named: Option<OsString>) -> Result<PathBuf, PathBuf> {
    let folder = named.filter(|named| !named.is_empty()).map_or_else(|| DEFAULT_FOLDER.into(), PathBuf::from);
    if folder.join("control").exists() { Ok(folder) } else { Err(folder) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_is_known_by_its_pipes() {
        let folder = tempfile::tempdir().unwrap();
        let named = || Some(folder.path().as_os_str().to_owned());
        assert_eq!(mps(named()), Err(folder.path().to_owned()));
        std::fs::write(folder.path().join("control"), "").unwrap();
        assert_eq!(mps(named()), Ok(folder.path().to_owned()));
        assert_eq!(mps(Some(OsString::new())).unwrap_or_else(|folder| folder), PathBuf::from(DEFAULT_FOLDER));
    }
}
