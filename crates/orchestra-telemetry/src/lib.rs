//! Names of spans, metrics and log fields; log files; the export of traces, and the page of metrics.
//!
//! Installs nothing by itself: only [`Telemetry::install`], which a command calls, touches the process. A library that embeds
//! orchestra needs [`names`] and [`traces`] at most, and never sees a subscriber.

mod error;
pub mod logs;
pub mod metrics;
pub mod names;
mod setup;
pub mod traces;

pub use error::TelemetryError;
pub use logs::{LogFiles, LogReport, Terminal};
pub use orchestra_plan::LogFormat;
pub use setup::{LogSettings, SpanWatch, Telemetry, TelemetryGuard, TelemetryReport};
pub use traces::{ItemParents, Recorder, ResolvedTraces, SpanReport, TraceContext, TraceSettings};
