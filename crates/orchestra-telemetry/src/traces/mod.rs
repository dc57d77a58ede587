//! The export of traces over OTLP gRPC. Best effort by contract: a collector that is slow, down or absent never fails or delays
//! a run; what it missed is counted.
//!
//! Only the parent process exports. Workers report when each phase of a batch began and ended, and the parent makes the spans
//! ([`context::record_finished`]).

pub mod context;
#[cfg(feature = "otlp")]
mod counting;
#[cfg(feature = "otlp")]
mod export;
#[cfg(not(feature = "otlp"))]
mod off;
mod settings;

pub use context::{FinishedSpan, TraceParts, Value};
pub use settings::{ResolvedTraces, Sampling, TraceSettings};

#[cfg(feature = "otlp")]
pub(crate) use export::Traces;
#[cfg(not(feature = "otlp"))]
pub(crate) use off::Traces;

/// What became of the spans of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpanReport {
    /// Sampled spans that ended.
    pub ended: u64,
    /// Those that the collector took.
    pub delivered: u64,
}

impl SpanReport {
    /// Spans that no collector took: the queue was full, the collector refused, or time ran out.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.ended.saturating_sub(self.delivered)
    }
}
