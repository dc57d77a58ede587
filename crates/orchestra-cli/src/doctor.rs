//! `orchestra doctor`: whether this machine is ready, and what to do if not. Looks only; it fetches, loads and changes nothing.

mod cuda;
mod tensorrt;

use orchestra::Machine;
use orchestra_machine::NvmlProbe;
use orchestra_ortlib::{Env, Flavor, Library, Request, Tried};
use orchestra_plan::format_bytes;
use serde_json::{Value, json};

use crate::Failed;
use crate::args::DoctorArgs;
use crate::exit_code::ExitCode;
use crate::stdout;

/// Open files that a run with many workers may need.
const ENOUGH_OPEN_FILES: u64 = 1024;

/// One finding.
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

    fn lines(&self) -> String {
        let mut text =
            format!("{:<8} {:<15} {}\n", if self.ok { "ok" } else { "MISSING" }, self.subject, self.text);
        for line in self.help.iter().flat_map(|h| h.lines()) {
            text += &format!("{:<24} {line}\n", "");
        }
        text
    }

    fn json(&self) -> Value {
        json!({"subject": self.subject, "ok": self.ok, "text": self.text, "help": self.help})
    }
}

/// Looks at everything a run needs; exit code 69 if something is missing.
pub fn doctor(args: &DoctorArgs) -> Result<ExitCode, Failed> {
    let machine = orchestra::machine();
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
        jpeg(),
        runtime_library(Flavor::Cpu, args),
    ];
    findings.extend(of_gpus(&machine, args));
    if args.json {
        stdout::print(&format!("{}\n", Value::Array(findings.iter().map(Finding::json).collect())))?;
    } else {
        stdout::print(&findings.iter().map(Finding::lines).collect::<String>())?;
    }
    let ready = findings.iter().all(|f| f.ok);
    Ok(if ready { ExitCode::Done } else { ExitCode::Unavailable })
}

/// A machine without a GPU lacks nothing, and is told all the same which libraries of CUDA it has.
fn of_gpus(machine: &Machine, args: &DoctorArgs) -> Vec<Finding> {
    let has_gpu = !machine.gpus.is_empty();
    let request = Request { flavor: Flavor::Gpu, explicit: args.ort_library.clone(), offline: true };
    let (runtime, _) = orchestra_ortlib::find(&request, &Env::from_process());
    let mut findings = Vec::new();
    if has_gpu {
        findings.push(driver());
        let mut gpus = Finding::good("gpus", format!("{} usable", machine.gpus.len()));
        gpus.help.clone_from(&machine.gpu_error);
        findings.push(gpus);
        findings.push(runtime_library(Flavor::Gpu, args));
    } else {
        let why = machine.gpu_error.as_deref().unwrap_or("there are none");
        findings.push(Finding::good("gpus", format!("none will be used: {why}")));
    }
    let runtime = runtime.as_ref().map(|library| library.path.as_path());
    findings.extend(cuda::findings(runtime, has_gpu));
    findings.push(tensorrt::finding(runtime));
    findings
}

/// Which decoder JPEG files go through. The Rust one is good enough to be no finding against the machine.
fn jpeg() -> Finding {
    let subject = "jpeg decoder";
    match orchestra_media::jpeg_backend() {
        Ok(backend) => {
            let mut finding = Finding::good(subject, backend.to_string());
            finding.help = backend.missing.as_ref().map(|why| {
                format!("libjpeg-turbo would be faster (Debian and Ubuntu: `apt install libturbojpeg0`), but: {why}")
            });
            finding
        }
        Err(error) => Finding::bad(subject, error.to_string(), "a run would refuse to start"),
    }
}

fn runtime_library(flavor: Flavor, args: &DoctorArgs) -> Finding {
    let subject = match flavor {
        Flavor::Cpu => "onnxruntime",
        Flavor::Gpu => "onnxruntime-gpu",
    };
    let request = Request { flavor, explicit: args.ort_library.clone(), offline: true };
    match orchestra_ortlib::find(&request, &Env::from_process()) {
        (Some(Library { path, version, origin, .. }), _) => {
            let version = version.unwrap_or_else(|| "unknown version".to_owned());
            Finding::good(subject, format!("{version}, {origin}: {}", path.display()))
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

fn driver() -> Finding {
    match NvmlProbe::new().driver() {
        Ok(driver) => {
            let (major, minor) = driver.cuda;
            Finding::good("driver", format!("{}, up to CUDA {major}.{minor}", driver.version))
        }
        Err(error) => Finding::bad("driver", error.to_string(), "install or repair the NVIDIA driver"),
    }
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
