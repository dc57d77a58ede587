//! Where collectors are, and how they are spoken to. It never decides what is sent, and encodes nothing.

pub(crate) mod client;
#[cfg(feature = "grpc")]
pub(crate) mod grpc;
mod settings;
pub(crate) mod variables;

pub use orchestra_plan::OtlpProtocol as Protocol;
pub use settings::{Configured, OtlpSettings};

/// What is sent. Each has variables and a path of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Traces,
    Metrics,
}

impl Signal {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
        }
    }

    /// What follows a general address over HTTP.
    pub fn http_path(self) -> String {
        format!("/v1/{}", self.name())
    }
}
