//! Names of spans, metrics and log fields; log files; the export of traces and metrics.
//!
//! Installs nothing by itself: only [`Telemetry::install`], which a command calls, touches the process. A library that embeds
//! orchestra needs [`names`] and [`traces`] at most, and never sees a subscriber.

mod background;
#[expect(missing_docs, reason = "an item that explains itself needs no comment")]
mod error;
#[expect(missing_docs, reason = "an item that explains itself needs no comment")]
pub mod logs;
#[expect(missing_docs, reason = "an item that explains itself needs no comment")]
pub mod metrics;
pub mod names;
#[expect(missing_docs, reason = "an item that explains itself needs no comment")]
pub mod otlp;
#[expect(missing_docs, reason = "an item that explains itself needs no comment")]
mod setup;
#[expect(missing_docs, reason = "an item that explains itself needs no comment")]
pub mod traces;

use background::step_back;
pub use error::TelemetryError;
pub use logs::{Format as LogFormat, LogFiles, LogReport, Terminal};
pub use setup::{LogSettings, SpanWatch, Telemetry, TelemetryGuard, TelemetryReport};
pub use traces::{
    ConfiguredTraces, ItemParents, ItemSampling, Recorder, ResolvedTraces, SpanReport, TraceContext,
    TraceSettings,
};
