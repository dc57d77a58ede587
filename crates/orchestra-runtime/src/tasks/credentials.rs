//! Which variables of the run commands do not get unless their table says so: what opens the stores and the collector of the run.

use std::ffi::OsString;

use orchestra_core::credentials::is_credential;
use orchestra_plan::TaskPlan;

pub fn credentials() -> impl Iterator<Item = OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| is_credential(&name.to_string_lossy()))
}

/// Those that the table of a command names.
pub fn passed(task: &TaskPlan) -> impl Iterator<Item = (String, String)> {
    let passes = |name: &str| {
        task.pass_env.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        })
    };
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(text).filter(move |(name, _)| is_credential(name) && passes(name))
}
