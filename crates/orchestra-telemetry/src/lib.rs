//! Names of spans and log fields, log files, and the export of traces.
//!
//! Installs nothing by itself: only [`Telemetry::install`], which a command calls, touches the process. A library that embeds
//! orchestra needs [`names`] and [`traces::context`] at most, and never sees a subscriber.

mod error;
pub mod logs;
pub mod names;
mod setup;
pub mod traces;

pub use error::TelemetryError;
pub use logs::{LogFiles, LogReport, Terminal};
pub use setup::{LogSettings, Telemetry, TelemetryGuard, TelemetryReport};
pub use traces::{ResolvedTraces, Sampling, SpanReport, TraceParts, TraceSettings};
