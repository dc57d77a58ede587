//! What can be wrong with the settings of logs and traces. A collector that does not answer is no error: see `SpanReport`.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

#[derive(Debug, Error)]
pub enum TelemetryError {
    #[error(
        "`RUST_LOG` is `{value}`, which is not a log filter ({reason}): write a level such as `debug`, or `target=level` pairs \
         such as `orchestra_runtime=debug,orchestra_media=trace`"
    )]
    Filter { value: String, reason: String },
    #[error("the collector `{endpoint}`, from {origin}, cannot be used: {reason}")]
    Endpoint { endpoint: String, origin: String, reason: String },
    #[error(
        "the collector `{endpoint}`, from {origin}, cannot be used: this build sends over HTTP, and {why}; write `http://{host}:4318`, or \
         build orchestra with its default feature `grpc`"
    )]
    NoGrpc { endpoint: String, origin: String, why: &'static str, host: String },
    #[error("`{variable}` is `{value}`, which cannot be sent: expected `grpc` or `http/protobuf`")]
    Protocol { variable: String, value: String },
    #[error(
        "the metrics page cannot be served at `{address}`, from `telemetry.metrics` or `--metrics`: expected `HOST:PORT` to listen on, such as \
         `127.0.0.1:9464`, or a port ({reason})"
    )]
    Page { address: String, reason: String },
    #[error(
        "the metrics page cannot be served at `{address}`, from `telemetry.metrics` or `--metrics`: {source}; {advice}"
    )]
    PageNotServed { address: SocketAddr, advice: &'static str, source: io::Error },
    #[error("failed to start the threads that send traces or serve metrics: {0}")]
    Thread(#[source] io::Error),
    #[error("failed to open the log file `{path}`: {source}", path = path.display())]
    LogFile { path: PathBuf, source: io::Error },
    #[error("a log subscriber is installed in this process already: only one can be")]
    AlreadyInstalled,
}
