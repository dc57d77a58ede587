//! `orchestra doctor`: whether this machine is ready, and what to do if not. Looks only; it fetches, loads and changes nothing.

mod cuda;
mod tensorrt;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use orchestra_launch::library::{CudaLibraries, Env, Flavor, Library, LibraryRequest, Tried, find_cuda};
use orchestra_launch::plan::format_bytes;
use orchestra_launch::{DriverProbe, GpuProbe, Machine, NvmlProbe, driver_problem};
use serde::Serialize;

use crate::Failed;
use crate::args::DoctorArgs;
use crate::exit_code::ExitCode;
use crate::human::counted;
use crate::stdout;

/// Open files that a run with many workers may need.
const ENOUGH_OPEN_FILES: u64 = 1024;

#[derive(Serialize)]
struct Finding {
    subject: &'static str,
    ok: bool,
    text: String,
    help: Option<String>,
}

impl Finding {
    fn good(subject: &'static str, text: impl Into<String>) -> Self {
        Self { subject, ok: true, text: text.into(), help: None }
    }

    fn bad(subject: &'static str, text: impl Into<String>, help: impl Into<String>) -> Self {
        Self { subject, ok: false, text: text.into(), help: Some(help.into()) }
    }

    /// A library that is there.
    fn found(subject: &'static str, version: Option<&str>, origin: impl Display, path: &Path) -> Self {
        let version = version.unwrap_or("unknown version");
        Self::good(subject, format!("{version}, {origin}: {}", path.display()))
    }

    fn lines(&self) -> String {
        let mut text =
            format!("{:<8} {:<15} {}\n", if self.ok { "ok" } else { "MISSING" }, self.subject, self.text);
        for line in self.help.iter().flat_map(|h| h.lines()) {
            text += &format!("{:<24} {line}\n", "");
        }
        text
    }
}

/// Looks at everything a run needs; exit code 69 if something is missing.
pub fn doctor(args: &DoctorArgs) -> Result<ExitCode, Failed> {
    let machine = orchestra_launch::machine();
    let mut findings = vec![
        Finding::good("processor", format!("{} cores", machine.cores)),
        Finding::good(
            "memory",
            format!(
                "{} of {} free",
                format_bytes(machine.memory_available),
                format_bytes(machine.memory_total)
            ),
        ),
        open_files(),
        sandbox(),
        Finding::good("commands", orchestra_launch::command_bounds()),
        runtime_library(Flavor::Cpu, args),
    ];
    findings.extend(of_gpus(&machine, args));
    if args.json {
        stdout::print_json(&findings)?;
    } else {
        stdout::print(&findings.iter().map(Finding::lines).collect::<String>())?;
    }
    let ready = findings.iter().all(|f| f.ok);
    Ok(if ready { ExitCode::Done } else { ExitCode::Unavailable })
}

/// A machine without a GPU lacks nothing, and is told all the same which libraries of CUDA it has.
fn of_gpus(machine: &Machine, args: &DoctorArgs) -> Vec<Finding> {
    let has_gpu = !machine.gpus.is_empty();
    let request = LibraryRequest { flavor: Flavor::Gpu, explicit: args.ort_library.clone(), offline: true };
    let env = Env::from_process();
    let (runtime, _) = orchestra_launch::library::find(&request, &env);
    let libraries = find_cuda(&env, runtime.as_ref().map(|library| library.path.as_path()));
    let mut findings = Vec::new();
    if has_gpu {
        findings.push(driver(&NvmlProbe::new(), &libraries));
        let mut gpus = Finding::good("gpus", format!("the driver lists {}", machine.gpus.len()));
        gpus.help.clone_from(&machine.gpu_error);
        findings.push(gpus);
        findings.push(of_mps(orchestra_launch::mps(std::env::var_os("CUDA_MPS_PIPE_DIRECTORY"))));
        findings.push(of_processes(&NvmlProbe::new()));
        findings.push(runtime_library(Flavor::Gpu, args));
    } else {
        let why = machine.gpu_error.as_deref().unwrap_or("there are none");
        findings.push(Finding::good("gpus", format!("none will be used: {why}")));
    }
    findings.extend(cuda::findings(&libraries, has_gpu));
    findings.push(tensorrt::finding(runtime.as_ref().map(|library| library.path.as_path())));
    if has_gpu {
        findings
            .push(auto(orchestra_launch::why_no_cuda(args.ort_library.clone(), false), machine.gpus.len()));
    }
    findings
}

fn runtime_library(flavor: Flavor, args: &DoctorArgs) -> Finding {
    let subject = match flavor {
        Flavor::Cpu => "onnxruntime",
        Flavor::Gpu => "onnxruntime-gpu",
    };
    let request = LibraryRequest { flavor, explicit: args.ort_library.clone(), offline: true };
    match orchestra_launch::library::find(&request, &Env::from_process()) {
        (Some(Library { path, version, origin, .. }), _) => {
            Finding::found(subject, version.as_deref(), origin, &path)
        }
        (None, tried) => {
            let places = tried.iter().map(Tried::to_string).collect::<Vec<_>>().join("\n");
            let help = format!(
                "the first run fetches it with pip, unless --offline forbids it; or set ORT_DYLIB_PATH\nlooked at:\n{places}"
            );
            Finding::bad(subject, "not on this machine", help)
        }
    }
}

/// Whether the driver is new enough for what ONNX Runtime is built for: the build that is here, or the one that would be fetched.
fn driver(probe: &dyn DriverProbe, libraries: &CudaLibraries) -> Finding {
    let needed = libraries.generation;
    if let Some(problem) = driver_problem(probe, needed.number(), libraries.has_driver_library) {
        return Finding::bad("driver", problem, "until then nothing runs on a GPU");
    }
    match (probe.version(), probe.cuda()) {
        (Ok(version), Ok((major, minor))) => Finding::good(
            "driver",
            format!("{version}, up to CUDA {major}.{minor}; ONNX Runtime needs {needed}"),
        ),
        (Err(error), _) | (_, Err(error)) => {
            Finding::bad("driver", error.to_string(), "install or repair the NVIDIA driver")
        }
    }
}

/// Whether several workers of a GPU compute at once. A run needs no such service.
fn of_mps(pipes: Result<PathBuf, PathBuf>) -> Finding {
    match pipes {
        Ok(folder) => Finding::good("mps", format!("workers of a GPU compute at once: {}", folder.display())),
        Err(folder) => {
            let text =
                format!("workers of a GPU take turns: no service has its pipes in {}", folder.display());
            let help =
                "start it with `nvidia-cuda-mps-control -d`, as the same user, before a run".to_owned();
            Finding { help: Some(help), ..Finding::good("mps", text) }
        }
    }
}

/// Whether it can be asked what a process has of a GPU. Runs go on without.
fn of_processes(probe: &dyn GpuProbe) -> Finding {
    if probe.ids_are_ours() {
        return Finding::good("processes", "the driver tells which GPU each is on, and what it takes");
    }
    let text = "the driver calls them by other numbers than this container";
    let help = "a command on a GPU without a lease is not found, and what commands take of one is not seen; \
                start the container with the process ids of its host (`--pid=host`)";
    Finding { help: Some(help.to_owned()), ..Finding::good("processes", text) }
}

/// What all of this means for a workflow that leaves the choice of devices to orchestra.
fn auto(why_not: Option<String>, n_gpus: usize) -> Finding {
    match why_not {
        None => Finding::good("auto", format!("takes {}", counted(n_gpus as u64, "GPU", "GPUs"))),
        Some(why) => Finding::bad(
            "auto",
            format!("takes the CPU, because no GPU can be used: {why}"),
            "a workflow that names a GPU ends with exit code 69",
        ),
    }
}

/// What loaders and workers can be confined by. A run goes on without it, unless its file requires it.
fn sandbox() -> Finding {
    let missing = orchestra_launch::missing_of_sandbox();
    if missing.is_empty() {
        return Finding::good("sandbox", "loaders and workers are confined to what they need");
    }
    let mut finding =
        Finding::good("sandbox", "loaders and workers are not confined as far as they could be");
    finding.help = Some(format!("the kernel has no {}", missing.join("\nthe kernel has no ")));
    finding
}

fn open_files() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    match limit.current {
        Some(n) if n < ENOUGH_OPEN_FILES => Finding::bad(
            "open files",
            format!("the limit is {n}"),
            format!(
                "raise it to {ENOUGH_OPEN_FILES} or more, for example with `ulimit -n {ENOUGH_OPEN_FILES}`"
            ),
        ),
        Some(n) => Finding::good("open files", format!("the limit is {n}")),
        None => Finding::good("open files", "no limit"),
    }
}

#[cfg(test)]
mod tests {
    use orchestra_launch::library::CudaGeneration;
    use orchestra_launch::{FakeProbe, Gpu, ProbeError};

    use super::*;

    struct Driver(&'static str, Result<(i32, i32), ProbeError>);

    impl DriverProbe for Driver {
        fn version(&self) -> Result<String, ProbeError> {
            Ok(self.0.to_owned())
        }

        fn cuda(&self) -> Result<(i32, i32), ProbeError> {
            self.1.clone()
        }
    }

    fn found(driver_of: &Driver, generation: CudaGeneration) -> Finding {
        let libraries = CudaLibraries { generation, has_driver_library: true, ..CudaLibraries::default() };
        driver(driver_of, &libraries)
    }

    #[test]
    fn a_driver_is_good_only_for_what_the_runtime_is_built_for() {
        let of_12 = Driver("570.86.15", Ok((12, 8)));
        let good = found(&of_12, CudaGeneration::Twelve);
        assert_eq!(
            (good.ok, good.text.as_str()),
            (true, "570.86.15, up to CUDA 12.8; ONNX Runtime needs CUDA 12")
        );
        let bad = found(&of_12, CudaGeneration::Thirteen);
        assert!(!bad.ok, "{}", bad.text);
        for part in ["570.86.15", "12.8", "CUDA 13", "driver 580 or newer"] {
            assert!(bad.text.contains(part), "{}", bad.text);
        }
        let half = Driver("580.65.06", Err(ProbeError::NoDriverLibrary));
        assert!(!found(&half, CudaGeneration::Thirteen).ok, "it does not tell its CUDA");
    }

    /// A driver in front of a container.
    struct Outside;

    impl GpuProbe for Outside {
        fn ids_are_ours(&self) -> bool {
            false
        }

        fn gpus(&self) -> Result<Vec<Gpu>, ProbeError> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn it_is_said_where_commands_on_a_wrong_gpu_are_not_found() {
        let unseen = of_processes(&Outside);
        assert!(unseen.ok && unseen.help.is_some_and(|help| help.contains("is not found")));
        assert_eq!(of_processes(&FakeProbe::new(Vec::new())).help, None);
    }

    #[test]
    fn what_auto_does_is_said_with_its_reason() {
        assert_eq!(auto(None, 2).text, "takes 2 GPUs");
        let cpu = auto(Some("no cuBLAS".into()), 2);
        assert!(!cpu.ok && cpu.text.ends_with("no GPU can be used: no cuBLAS"), "{}", cpu.text);
    }
}
