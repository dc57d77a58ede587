//! Everything that is sent to a collector: where to, and how. Best effort by contract; it never decides what is sent, and encodes nothing.
//!
//! OTLP is one request and one answer, `POST` over HTTP/1.1, or gRPC, which is a `POST` over HTTP/2 with five more bytes and two more
//! headers. Both are written here over `hyper`; a gRPC library and the layers that it brings would double what a first build compiles for it.

#[cfg(feature = "otlp")]
mod client;
#[cfg(feature = "otlp")]
mod connection;
#[cfg(feature = "otlp")]
mod grpc;
mod settings;
pub(crate) mod variables;

#[cfg(feature = "otlp")]
pub use client::{Client, SendError};
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

    /// The method of the collector's gRPC service.
    #[must_use]
    pub const fn grpc_path(self) -> &'static str {
        match self {
            Self::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            Self::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
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
    /// gRPC; collectors listen on port 4317.
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
