//! What can be wrong with the settings of logs and traces. A collector that does not answer is no error: see `SpanReport`.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

/// Why logs or traces could not be set up.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// `RUST_LOG` cannot be read.
    #[error(
        "`RUST_LOG` is `{value}`, which is not a log filter ({reason}): write a level such as `debug`, or `target=level` pairs \
         such as `orchestra_runtime=debug,orchestra_media=trace`"
    )]
    Filter {
        /// The value.
        value: String,
        /// What the parser says.
        reason: String,
    },
    /// The address of the collector cannot be used.
    #[error("the collector `{endpoint}`, from {origin}, cannot be used: {reason}")]
    Endpoint {
        /// The address as given.
        endpoint: String,
        /// Where it was given.
        origin: String,
        /// What is wrong and what to write instead.
        reason: String,
    },
    /// The address is for gRPC, and this build has none.
    #[error(
        "the collector `{endpoint}`, from {origin}, cannot be used: this build sends over HTTP, and {instead}; or build orchestra with \
         `--features grpc`"
    )]
    NoGrpc {
        /// The address as given.
        endpoint: String,
        /// Where it was given.
        origin: String,
        /// What in it asks for gRPC, and what to write instead.
        instead: String,
    },
    /// A variable names a way of sending that is not known.
    #[error("`{variable}` is `{value}`, which cannot be sent: expected `grpc` or `http/protobuf`")]
    Protocol {
        /// Name of the variable.
        variable: String,
        /// Its value.
        value: String,
    },
    /// The address of the metrics page cannot be read.
    #[error("the metrics page cannot be served at `{address}`, from {origin}: {reason}")]
    Page {
        /// The address as given.
        address: String,
        /// Where it was given.
        origin: &'static str,
        /// What was expected.
        reason: String,
    },
    /// The address of the metrics page cannot be listened on.
    #[error("the metrics page cannot be served at `{address}`, from {origin}: {source}; {advice}")]
    PageNotServed {
        /// The address.
        address: SocketAddr,
        /// Where it was given.
        origin: &'static str,
        /// What to do.
        advice: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The thread that sends traces or metrics did not start.
    #[error("failed to start the thread that sends traces or metrics: {0}")]
    Thread(#[source] io::Error),
    /// A log file cannot be written.
    #[error("failed to open the log file `{path}`: {source}", path = path.display())]
    LogFile {
        /// The file, or its folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A subscriber is installed already.
    #[error("a log subscriber is installed in this process already: only one can be")]
    AlreadyInstalled,
}
