//! Why a request has no answer, and what that is called over HTTP and gRPC.

use std::time::Duration;

use orchestra::{RequestError, StartError};
use thiserror::Error;

/// From a refusal for want of room until it is worth while to ask again.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ServeError {
    pub kind: ErrorKind,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong wherever it is sent.
    Invalid,
    NotFound,
    TooLarge,
    /// Its body has not arrived in time.
    TooSlow,
    Unauthorized,
    /// As many requests wait as may.
    Overloaded,
    /// It is not loaded, or ends.
    Unavailable,
    Deadline,
    /// The fault of this machine.
    Internal,
}

impl ServeError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub fn too_slow() -> Self {
        Self::new(ErrorKind::TooSlow, "the body of the request has not arrived in time")
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }
}

impl From<RequestError> for ServeError {
    fn from(error: RequestError) -> Self {
        let kind = match &error {
            RequestError::Overloaded { .. } => ErrorKind::Overloaded,
            RequestError::Deadline => ErrorKind::Deadline,
            RequestError::Closed(_) => ErrorKind::Unavailable,
            error if error.is_client_fault() => ErrorKind::Invalid,
            _ => ErrorKind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<StartError> for ServeError {
    fn from(error: StartError) -> Self {
        let kind = match error {
            StartError::Workflow(_) | StartError::Options(_) => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, error.to_string())
    }
}
