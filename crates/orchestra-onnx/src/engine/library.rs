//! ONNX Runtime's shared library and its one environment per process. It loads nothing before it is asked to.

use std::ffi::CStr;
use std::path::Path;
use std::sync::Mutex;

use orchestra_core::locked;
use ort::environment::Environment;

use super::cpu_arena;
use orchestra_worker::library::SharedLibrary;
use orchestra_worker::load_error::LoadError;

/// The runtime allows one environment per process, ever.
static ENVIRONMENT: Mutex<Option<Environment>> = Mutex::new(None);

/// The environment, from the library at `path` the first time, with at most `ceiling` bytes of CPU memory for its sessions. A process keeps its
/// first library and its first ceiling.
pub fn environment(path: &Path, ceiling: Option<u64>) -> Result<Environment, LoadError> {
    let mut kept = locked(&ENVIRONMENT);
    if let Some(environment) = &*kept {
        return Ok(environment.clone());
    }
    let environment = load(path, ceiling).map_err(|why| {
        LoadError::permanent(format!(
            "onnx runtime cannot be loaded from `{}`: {why}; `orchestra doctor` says which library it needs",
            path.display()
        ))
    })?;
    *kept = Some(environment.clone());
    Ok(environment)
}

fn load(path: &Path, ceiling: Option<u64>) -> Result<Environment, String> {
    // A relative path would be looked for beside the executable and then in the system's folders.
    if !path.is_absolute() {
        return Err("the path is not absolute".to_owned());
    }
    let builder = ort::init_from(path).map_err(|e| e.to_string())?;
    let environment = builder.with_name("orchestra-worker").with_telemetry(false).build();
    let environment = environment.map_err(|e| e.to_string())?;
    cpu_arena::register(&environment, ceiling).map_err(|e| e.to_string())?;
    Ok(environment)
}

/// The version of the library at `path`, which is loaded already; `unknown` where it does not say.
pub fn version(path: &Path) -> String {
    query_version(path).unwrap_or_else(|| "unknown".to_owned())
}

fn query_version(path: &Path) -> Option<String> {
    type GetApiBase = unsafe extern "C" fn() -> *const ort::sys::OrtApiBase;
    let library = SharedLibrary::of_this_process(path)?;
    // SAFETY: a symbol of this name has this type in every release of ONNX Runtime.
    let get_api_base: GetApiBase = unsafe { library.get("OrtGetApiBase") }.ok()?;
    // SAFETY: it takes nothing and returns null or a static table.
    let base = unsafe { get_api_base().as_ref() }?;
    // SAFETY: it returns a static string.
    let version = unsafe { CStr::from_ptr((base.GetVersionString)()) };
    Some(version.to_string_lossy().into_owned())
}
