//! A GPU that the CPU plays: twins of the driver's libraries and of NVRTC, for processes that are told where they lie. What nvml.c and cuda/driver.c read of
//! the environment is up to the test.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::repository;

/// Builds the libraries, in folders of this one.
pub fn build(folder: &Path) {
    for name in ["driver", "cuda", "cache"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    let sources = repository().join("tests/common");
    let shim = format!("-DSHIM=\"{}\"", sources.join("cuda/shim.h").display());
    for (source, library, more) in [
        ("nvml.c", "driver/libnvidia-ml.so.1", &["-DDRIVER=\"580.65.06\"", "-DCUDA=13000"][..]),
        ("cuda/driver.c", "driver/libcuda.so.1", &["-ldl"]),
        ("cuda/nvrtc.c", "cuda/libnvrtc.so.13", &[&shim]),
    ] {
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(folder.join(library)).arg(sources.join(source));
        let ended = cc.args(more).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}

/// By these variables a process finds them, and sees the GPU.
pub fn variables(folder: &Path) -> [(&'static str, String); 4] {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    [
        ("LD_LIBRARY_PATH", path("driver")),
        ("ORCHESTRA_CUDA_LIBRARIES", path("cuda")),
        ("CUDA_FAKE_CACHE", path("cache")),
        ("CUDA_VISIBLE_DEVICES", "0".to_owned()),
    ]
}
