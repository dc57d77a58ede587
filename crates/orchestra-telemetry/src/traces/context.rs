//! Trace contexts as a run has them, and as OpenTelemetry does. Makes no span.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

pub use orchestra_runtime::trace::TraceContext;

/// The context of an OpenTelemetry span; `None` if it is not valid.
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

/// The context of a span of ours; `parent` has decided whether it is sampled.
pub(super) fn below(parent: &SpanContext, span: SpanId) -> SpanContext {
    SpanContext::new(parent.trace_id(), span, parent.trace_flags(), false, TraceState::default())
}

/// The context of a span of ours that begins a trace.
pub(super) fn root((trace, span): (TraceId, SpanId)) -> SpanContext {
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::default())
}
