//! What `[limits]` and `[telemetry]` set.

use std::time::Duration;

use orchestra_core::{SandboxMode, choices};
use serde::Serialize;

use crate::settings;

/// `[limits]`
#[derive(Debug, Clone, Serialize)]
pub struct Limits {
    /// Stop beyond this many failures.
    pub max_failed: Option<MaxFailed>,
    /// Stop when so many items that reached a stage first have all failed there; 0: never.
    pub first_failed: u64,
    /// How long reading and decoding one item may take.
    pub item_timeout: Duration,
    /// How long one batch may run in a worker.
    pub batch_timeout: Duration,
    /// How long a worker may take to load its model and to warm up.
    pub load_timeout: Duration,
    /// How long a run that is told to stop may take to finish what is in flight.
    pub grace: Duration,
    /// Pictures that claim more pixels are refused.
    pub max_pixels: u64,
    /// A source whose files claim more items is refused.
    pub max_items: u64,
    /// Whether workers are confined, where their model does not say.
    pub sandbox: SandboxMode,
    /// NAME of `[pipelines.NAME]`, and the keys that it sets.
    #[serde(skip)]
    pub own: Option<(String, Vec<&'static str>)>,
}

impl Limits {
    /// What a limit is called where the file sets it.
    pub fn called(&self, key: &str) -> String {
        match &self.own {
            Some((name, keys)) if keys.contains(&key) => format!("pipelines.{name}.{key}"),
            _ => format!("limits.{key}"),
        }
    }
}

/// `limits.max_failed`
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum MaxFailed {
    Items(u64),
    /// That share of all items, 0.0 to 1.0.
    Share(f64),
}

impl MaxFailed {
    /// Whether `failed` of `total` items are more than allowed.
    pub fn is_exceeded(self, failed: u64, total: u64) -> bool {
        match self {
            MaxFailed::Items(n) => failed > n,
            MaxFailed::Share(share) => failed as f64 > share * total as f64,
        }
    }
}

settings! {
    /// `[telemetry]`
    #[derive(Debug, Clone, Default, Serialize)]
    pub struct TelemetryPlan {
        /// address of an OTLP collector: `"http://localhost:4318"`
        otlp: Option<String>,
        /// how the collector is spoken to
        protocol: Option<OtlpProtocol> => "by the port",
        /// share of the items that get a trace; those that failed, were tried again or took longer than `slow` get one always
        #[range(0, 1)]
        sample: Option<f64> => "0.01",
        /// an item that takes longer is traced
        slow: Option<Duration>,
        /// how long the end of the run waits for spans that are not made yet, and again for those that are not sent
        flush_timeout: Option<Duration> => "\"3s\"",
        /// where the page of metrics is served: `"127.0.0.1:9464"`
        metrics: Option<String>,
        /// lines of the log files
        log_format: Option<LogFormat> => "\"text\"",
    }
}

/// How a collector is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum OtlpProtocol {
    /// gRPC, usually on port 4317.
    #[serde(rename = "grpc")]
    Grpc,
    /// Protobuf over HTTP/1.1, usually on port 4318.
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
}

choices! {
    for OtlpProtocol {
        /// in a build that has it
        Grpc = "grpc",
        HttpProtobuf = "http/protobuf",
    }
}

choices! {
    /// What a log line looks like.
    #[derive(Default, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum LogFormat {
        /// time, level, message, and `name=value` for each field
        #[default]
        Text = "text",
        /// a JSON object
        Json = "json",
    }
}
