//! Every way in which looking for the library can fail, each with what to do about it. Decides nothing.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::library::cuda::CudaGeneration;
use crate::library::origin::{Flavor, Tried};

/// Why there is no library. All but `Cancelled` mean that the machine lacks something.
#[derive(Debug, Error)]
pub enum LibraryError {
    #[error(
        "`{path}`, which {setting} names, cannot be used as ONNX Runtime: {why}; name a `libonnxruntime.so` of \
         version {minimum} or newer, or nothing at all to let orchestra find one",
        minimum = crate::library::MINIMUM_VERSION
    )]
    Unusable { setting: &'static str, path: PathBuf, why: String },
    #[error(
        "no ONNX Runtime for {flavor} is on this machine, and offline none is fetched; searched: {}; set `ORT_DYLIB_PATH` \
         to a `libonnxruntime.so`, or run once without being offline",
        listed(tried)
    )]
    Offline { flavor: Flavor, tried: Vec<Tried> },
    #[error(
        "no ONNX Runtime for {flavor} can be fetched for the processor `{arch}`; build or install one and set \
         `ORT_DYLIB_PATH` to its `libonnxruntime.so`"
    )]
    NoPin { flavor: Flavor, arch: String },
    #[error(
        "`{path}`, the CUDA provider of ONNX Runtime, cannot be used: {why}; set `ORT_DYLIB_PATH` to the `libonnxruntime.so` of another \
         GPU build, or run on the CPU (`use = [\"cpu\"]`)"
    )]
    Provider { path: PathBuf, why: String },
    #[error(
        "CUDA cannot be used: {} {} on this machine{}, and ONNX Runtime is built for {generation}; `{help}` fetches what is missing, or \
         set `{variable}` to the folder that holds it, or run on the CPU (`use = [\"cpu\"]`); `orchestra doctor` says where was looked",
        quoted_names(missing),
        if missing.len() == 1 { "is nowhere" } else { "are nowhere" },
        in_brackets(&listed(tried)),
        variable = crate::library::CUDA_LIBRARIES_VARIABLE
    )]
    NoCuda { generation: CudaGeneration, missing: Vec<&'static str>, help: String, tried: Vec<Tried> },
    #[error(
        "TensorRT cannot be used: {} {} on this machine{}; `{help}` fetches what is missing, or set `{variable}` to the folder \
         that holds it, or leave `provider = \"tensorrt\"` out to run on CUDA alone",
        quoted_names(missing),
        if missing.len() == 1 { "is nowhere" } else { "are nowhere" },
        in_brackets(&listed(tried)),
        variable = crate::library::CUDA_LIBRARIES_VARIABLE
    )]
    NoTensorRt { missing: Vec<&'static str>, help: &'static str, tried: Vec<Tried> },
    #[error(
        "TensorRT cannot be used: `{}` is not beside `{runtime}`; use a GPU build of ONNX Runtime that has it (a folder that an \
         earlier orchestra filled lacks it: remove that, and it is fetched anew), or leave `provider = \"tensorrt\"` out to run \
         on CUDA alone",
        crate::library::TENSORRT_PROVIDER
    )]
    NoTensorRtProvider { runtime: PathBuf },
    #[error("there is no folder to keep ONNX Runtime in; set `HOME` or `ORCHESTRA_CACHE`")]
    NoCacheFolder,
    #[error(
        "`python3`, whose pip downloads `{package}`, was not found{}; install Python (`apt install python3 python3-pip` or \
         `dnf install python3 python3-pip`), or set `ORT_DYLIB_PATH` to a `libonnxruntime.so`",
        in_brackets(&tried.join("; "))
    )]
    NoPython { package: String, tried: Vec<String> },
    #[error(
        "`{python}` has no pip to download `{package}` with; run `{python} -m ensurepip`, `apt install python3-pip` or \
         `dnf install python3-pip`, or set `ORT_DYLIB_PATH` to a `libonnxruntime.so`"
    )]
    NoPip { python: PathBuf, package: String },
    #[error(
        "pip could not download `{package}`{}; check the network, and the index and the proxy that pip is set up with, or copy the cache folder \
         of a machine that has it, or set `ORT_DYLIB_PATH` to a `libonnxruntime.so`{}",
        if *has_stalled { ", because nothing arrived for minutes" } else { "" },
        said(lines)
    )]
    Pip { package: String, has_stalled: bool, lines: Vec<String> },
    #[error("`{file}` is damaged: {why}; {help}")]
    Damaged { file: PathBuf, why: String, help: &'static str },
    #[error(
        "`{folder}` has too little room for ONNX Runtime: {needed_mb} MB are needed{}; free some, or set `ORCHESTRA_CACHE` to \
         a folder on another disk",
        free_mb.map(|mb| format!(", {mb} MB are free")).unwrap_or_default()
    )]
    DiskFull { folder: PathBuf, needed_mb: u64, free_mb: Option<u64> },
    #[error(
        "failed to {action} `{path}`: {source}; check its permissions, or set `ORCHESTRA_CACHE` to a folder of a local disk \
         that can be written"
    )]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("the download of ONNX Runtime was given up")]
    Cancelled,
}

impl LibraryError {
    /// For `map_err`: names the file that an operating system error is about.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

fn listed(tried: &[Tried]) -> String {
    tried.iter().map(Tried::to_string).collect::<Vec<_>>().join("; ")
}

fn quoted_names(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn in_brackets(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

fn said(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n  pip: {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_file_and_what_to_do() {
        let text = LibraryError::NoPip { python: "/usr/bin/python3".into(), package: "onnxruntime".into() }
            .to_string();
        assert!(
            text.contains("`/usr/bin/python3 -m ensurepip`") && text.contains("apt install python3-pip"),
            "{text}"
        );
        let text =
            LibraryError::DiskFull { folder: "/c".into(), needed_mb: 900, free_mb: Some(3) }.to_string();
        assert!(
            text.contains("900 MB are needed, 3 MB are free") && text.contains("ORCHESTRA_CACHE"),
            "{text}"
        );
    }
}
