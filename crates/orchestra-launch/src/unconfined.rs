//! Says at the start of a run what this kernel cannot confine. It confines nothing itself.

use orchestra_core::SandboxMode;
use orchestra_plan::Plan;
use orchestra_runtime::RunOptions;

/// Warns where processes of this run are confined as far as the kernel can, and the kernel lacks a part of that. A part of a run that starts
/// tasks only says nothing: these are not confined.
pub(crate) fn warn(plan: &Plan, options: &RunOptions) {
    let missing = orchestra_worker::sandbox::missing();
    if missing.is_empty() || options.tasks_only {
        return;
    }
    let has_loaders = options.loaders.is_some() && !plan.sources.is_empty();
    let loaders = has_loaders.then_some(plan.limits.sandbox);
    if let Some(processes) = unconfined(loaders, plan.models.iter().map(|model| model.sandbox.mode)) {
        let kernel_has_no = missing.join(", no ");
        tracing::warn!(kernel_has_no, "{processes} are not confined as far as they could be");
    }
}

/// Which processes take what sandbox the kernel has.
fn unconfined(
    loaders: Option<SandboxMode>,
    mut workers: impl Iterator<Item = SandboxMode>,
) -> Option<&'static str> {
    match (loaders == Some(SandboxMode::Auto), workers.any(|mode| mode == SandboxMode::Auto)) {
        (true, true) => Some("loaders and workers"),
        (true, false) => Some("loaders"),
        (false, true) => Some("workers"),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::SandboxMode::{Auto, Off, Require};

    use super::*;

    #[test]
    fn a_run_with_loaders_alone_says_that_they_are_not_confined() {
        assert_eq!(unconfined(Some(Auto), [].into_iter()), Some("loaders"));
        assert_eq!(unconfined(Some(Auto), [Off, Require].into_iter()), Some("loaders"));
        assert_eq!(unconfined(Some(Auto), [Off, Auto].into_iter()), Some("loaders and workers"));
    }

    #[test]
    fn nothing_is_said_of_what_shall_not_be_confined_or_would_not_start() {
        assert_eq!(unconfined(None, [Off, Auto].into_iter()), Some("workers"));
        assert_eq!(unconfined(Some(Require), [Off].into_iter()), None);
        assert_eq!(unconfined(Some(Off), [Require].into_iter()), None);
        assert_eq!(unconfined(None, [].into_iter()), None);
    }
}
