//! Why a model, or what confines its process, cannot be had.

use orchestra_core::ErrorClass;

/// Why an engine cannot serve a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct LoadError {
    /// `Permanent`, `Transient` or `Overload`: see `FromWorker::LoadFailed`.
    pub class: ErrorClass,
    /// What failed, what was expected, what to do.
    pub error: String,
}

impl LoadError {
    /// No other try on this device can succeed.
    pub fn permanent(error: impl Into<String>) -> Self {
        Self { class: ErrorClass::Permanent, error: error.into() }
    }
}
