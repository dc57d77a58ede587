//! Trace contexts as they come from and go to others: headers, frames, the host's own spans. Makes no span.

use std::collections::HashMap;

use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::propagation::TraceContextPropagator;

pub use orchestra_runtime::trace::TraceContext;

/// Reads the value of a `traceparent` header (W3C Trace Context). `None` if it is not valid.
///
/// ```
/// use orchestra_telemetry::traces::context::{from_traceparent, to_traceparent};
/// let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context = from_traceparent(header).unwrap();
/// assert_eq!(context.flags, 1);
/// assert_eq!(to_traceparent(&context), header);
/// ```
#[must_use]
pub fn from_traceparent(header: &str) -> Option<TraceContext> {
    let carrier = HashMap::from([("traceparent".to_owned(), header.to_owned())]);
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
    of_span(context.span().span_context())
}

/// The value of a `traceparent` header.
#[must_use]
pub fn to_traceparent(context: &TraceContext) -> String {
    let (trace, span) = (u128::from_be_bytes(context.trace_id), u64::from_be_bytes(context.span_id));
    format!("00-{trace:032x}-{span:016x}-{:02x}", context.flags)
}

/// The context of the OpenTelemetry span that is active in this thread, as a host's own instrumentation set it; `None` if there is none.
#[must_use]
pub fn current() -> Option<TraceContext> {
    of_span(Context::current().span().span_context())
}

/// The context of an OpenTelemetry span; `None` if it is not valid.
#[must_use]
pub fn of_span(span: &SpanContext) -> Option<TraceContext> {
    span.is_valid().then(|| TraceContext {
        trace_id: span.trace_id().to_bytes(),
        span_id: span.span_id().to_bytes(),
        flags: span.trace_flags().to_u8(),
    })
}

/// The same as OpenTelemetry has it, of a span elsewhere.
pub(super) fn to_span(context: TraceContext) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(context.trace_id), SpanId::from_bytes(context.span_id));
    SpanContext::new(trace, span, TraceFlags::new(context.flags), true, TraceState::default())
}

/// The context of a span of ours.
pub(super) fn sampled(trace: TraceId, span: SpanId) -> SpanContext {
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_that_is_not_valid_gives_nothing() {
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01",
        ] {
            assert_eq!(from_traceparent(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_header_of_a_later_version_is_read_as_far_as_it_is_known() {
        let later = HEADER.replacen("00", "01", 1) + "-what-comes";
        assert_eq!(from_traceparent(&later), from_traceparent(HEADER));
        assert_eq!(to_traceparent(&from_traceparent(HEADER).unwrap()), HEADER);
    }
}
