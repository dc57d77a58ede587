//! What `[limits]` and `[telemetry]` set.

use std::time::Duration;

use orchestra_core::{SandboxMode, choices};
use serde::Serialize;

use crate::fields::{Fields, Spanned};
use crate::settings;
use crate::settings::{Bytes, Setting};
use crate::tree::Toml;

settings! {
    /// `[limits]`
    #[derive(Debug, Clone, Serialize)]
    pub struct Limits {
        /// stop the run when more items than this have failed: `100`, or `"1%"` of all items
        max_failed: Option<MaxFailed>,
        /// stop the run when the first so many items that came to a source, a stage or a sink have all failed there; 0: never. What a start goes on with, or `orchestra retry` tries again, is not stopped so once an item is done
        first_failed: u64 = 100,
        /// how long reading and decoding one item may take
        item_timeout: Duration = "30s",
        /// how long a batch may run in a worker
        batch_timeout: Duration = "60s",
        /// how long a worker may take to load its model and to warm up, what TensorRT compiles for it or for another worker included
        load_timeout: Duration = "10min",
        /// how long the run may take to finish what is in flight when a signal stops it
        grace: Duration = "25s",
        /// a picture that claims more pixels fails as `too_large`, before memory is taken
        #[range(1, 1 << 40)]
        max_pixels: u64 = 268435456,
        /// a source that has more items is refused; of `tensors` and `parquet`, what files claim counts, before they are listed
        #[range(1, 1 << 40)]
        max_items: u64 = 100000000,
        /// what the batch slots of all stages may take together; loaders get half as much again for decoding, and pictures that are [carried](../guide/devices.md#memory) up to a quarter
        #[serde(skip)]
        memory: Option<Spanned<Bytes>> => "half of the machine's",
        /// processes that read and decode, over all sources
        #[serde(skip)]
        #[range(1, 1024)]
        loaders: Option<Spanned<u64>> => "the number of cores",
        /// whether loaders and workers are [confined](../security.md) to what they need
        sandbox: SandboxMode = "auto";
        /// NAME of `[pipelines.NAME]`, and the keys that it sets.
        #[serde(skip)]
        own: Option<(String, Vec<&'static str>)>
    }
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

impl Setting for MaxFailed {
    const TYPE: &'static str = "integer or percent";

    fn read(f: &mut Fields<'_, '_>, key: &str) -> Option<Self> {
        let node = &f.entry(key)?.node;
        match &node.value {
            Toml::Integer(n) if *n >= 0 => return Some(MaxFailed::Items(n.unsigned_abs())),
            Toml::String(text) => {
                let share = text.trim().strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok());
                if let Some(share) = share.filter(|s| (0.0..=100.0).contains(s)) {
                    return Some(MaxFailed::Share(share / 100.0));
                }
            }
            _ => {}
        }
        f.wrong(key, node, "a number of items or a share of them, for example 100 or \"1%\"").none()
    }
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
        /// an item that takes so long is traced, with `"0s"` each is; those that failed or were tried again always are
        slow: Option<Duration>,
        /// how long the end of the run waits for spans that are not made yet, and again for those that are not sent
        flush_timeout: Option<Duration> => "\"3s\"",
        /// where the page of metrics is served: `"127.0.0.1:9464"`
        metrics: Option<String>,
        /// lines of the log files
        log_format: Option<LogFormat> => "\"text\"",
        /// write `report.html` to the output folder at the end: the run as one page
        report: bool = false,
    }
}

settings! {
    /// `[serve]`
    #[derive(Debug, Clone)]
    pub struct ServeSettings {
        /// where the Open Inference Protocol is spoken over HTTP: `HOST:PORT`, or a socket of this machine, `"unix:/run/orchestra.sock"`
        http: String = "127.0.0.1:8000",
        /// where it is spoken over gRPC, likewise
        grpc: String = "127.0.0.1:8001",
        /// a file with the token that requests must bring, `Authorization: Bearer TOKEN`, but those for the health of the server
        token_file: Option<Spanned<String>>,
        /// how many requests of each model or graph may be without an answer; one more is refused
        #[range(1, 1000000)]
        queue: usize = 1024,
        /// without an answer in this time, a request fails
        deadline: Option<Duration>,
        /// how long the head of a request may take to arrive, how long its body may pause, and how long a connection may be idle
        read_timeout: Duration = "60s",
        /// the most bytes of a request, unpacked, and of an answer over gRPC
        message: Bytes = "64MiB",
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
