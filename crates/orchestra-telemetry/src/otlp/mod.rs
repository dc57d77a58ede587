//! Where collectors are, and how they are spoken to. It never decides what is sent, and encodes nothing.

pub(crate) mod client;
mod settings;
pub(crate) mod variables;

pub use settings::{Configured, OtlpSettings};

/// What is sent. Each has variables, a path and a service of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Spans.
    Traces,
    /// Measurements.
    Metrics,
}

impl Signal {
    /// The part of `OTEL_EXPORTER_OTLP_<part>_ENDPOINT` and its like, and of `OTEL_<part>_EXPORTER`.
    #[must_use]
    pub const fn variable_part(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Metrics => "METRICS",
        }
    }

    /// What follows a general address over HTTP.
    #[must_use]
    pub const fn http_path(self) -> &'static str {
        match self {
            Self::Traces => "/v1/traces",
            Self::Metrics => "/v1/metrics",
        }
    }

    /// For messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
        }
    }
}

/// How requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC; collectors listen on port 4317. Only with the feature `grpc`.
    Grpc,
    /// Protobuf messages over HTTP/1.1; collectors listen on port 4318.
    HttpProtobuf,
}

impl Protocol {
    /// The name that files and variables use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::HttpProtobuf => "http/protobuf",
        }
    }

    /// The protocol of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Grpc, Self::HttpProtobuf].into_iter().find(|p| p.name() == name)
    }

    /// Where a collector on this machine listens.
    #[must_use]
    pub const fn usual_endpoint(self) -> &'static str {
        match self {
            Self::Grpc => "http://localhost:4317",
            Self::HttpProtobuf => "http://localhost:4318",
        }
    }
}
