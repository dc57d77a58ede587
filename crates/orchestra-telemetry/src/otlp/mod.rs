//! Where collectors are, and how they are spoken to. It never decides what is sent, and encodes nothing.

pub(crate) mod client;
mod settings;
pub(crate) mod variables;

pub use settings::{Configured, OtlpSettings};

/// What is sent. Each has variables, a path and a service of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Traces,
    Metrics,
}

impl Signal {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
        }
    }

    /// What follows a general address over HTTP.
    #[must_use]
    pub fn http_path(self) -> String {
        format!("/v1/{}", self.name())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC; collectors listen on port 4317. Only with the feature `grpc`.
    Grpc,
    /// Protobuf messages over HTTP/1.1; collectors listen on port 4318.
    HttpProtobuf,
}

impl Protocol {
    /// The protocol that files and variables call so.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "grpc" => Some(Self::Grpc),
            "http/protobuf" => Some(Self::HttpProtobuf),
            _ => None,
        }
    }
}
