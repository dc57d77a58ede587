//! Trace contexts as plain bytes, and spans that are told of after they ended. Exports nothing itself; without the feature
//! `otlp`, or without an exporter, everything here does nothing.

use std::time::SystemTime;

use tracing::Span;

/// A W3C trace context as it travels to a worker: trace id, span id, flags (bit 0 is "sampled").
pub type TraceParts = ([u8; 16], [u8; 8], u8);

/// A span that has ended already, for example a phase of a batch that a worker reported.
#[derive(Debug, Clone, Copy)]
pub struct FinishedSpan<'a> {
    /// A constant of [`crate::names::span`].
    pub name: &'static str,
    /// The span that it is a part of.
    pub parent: TraceParts,
    /// When it began.
    pub start: SystemTime,
    /// When it ended.
    pub end: SystemTime,
    /// Attributes, by constants of [`crate::names::attribute`].
    pub attributes: &'a [(&'static str, Value<'a>)],
}

/// The value of an attribute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// Text.
    Text(&'a str),
    /// A whole number.
    Integer(i64),
    /// A number.
    Float(f64),
}

/// The context of the span that is entered now; `None` if there is none or nothing exports it.
#[must_use]
pub fn current() -> Option<TraceParts> {
    of_span(&Span::current())
}

/// The context of `span`; `None` if it is disabled or nothing exports it.
#[must_use]
pub fn of_span(span: &Span) -> Option<TraceParts> {
    imp::of_span(span)
}

/// Makes the span that `parent` names the parent of `span`, which must not have been entered yet: from then on its parent stands
/// and this does nothing.
pub fn set_parent(span: &Span, parent: TraceParts) {
    imp::set_parent(span, parent);
}

/// Says that `span` is about the same thing as the span that `other` names, for example a batch about an item.
pub fn add_link(span: &Span, other: TraceParts) {
    imp::add_link(span, other);
}

/// Exports a span that has ended already, through the exporter that was installed for the process.
pub fn record_finished(span: &FinishedSpan<'_>) {
    imp::record_finished(span);
}

#[cfg(feature = "otlp")]
mod imp {
    use opentelemetry::trace::{
        Span as _, SpanBuilder, SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
        Tracer as _,
    };
    use opentelemetry::{Context, KeyValue, global};
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    use super::{FinishedSpan, TraceParts, Value};
    use crate::names::SERVICE;

    pub(super) fn of_span(span: &Span) -> Option<TraceParts> {
        let context = span.context();
        let span = context.span();
        let span = span.span_context();
        span.is_valid()
            .then(|| (span.trace_id().to_bytes(), span.span_id().to_bytes(), span.trace_flags().to_u8()))
    }

    pub(super) fn set_parent(span: &Span, parent: TraceParts) {
        // An error means: no exporter, a disabled span, or a span that has begun. Each is documented to do nothing.
        let _ = span.set_parent(Context::new().with_remote_span_context(remote(parent)));
    }

    pub(super) fn add_link(span: &Span, other: TraceParts) {
        span.add_link(remote(other));
    }

    pub(super) fn record_finished(span: &FinishedSpan<'_>) {
        let parent = remote(span.parent);
        if !parent.is_valid() || !parent.is_sampled() {
            return;
        }
        let attributes = span.attributes.iter().map(|(name, value)| match *value {
            Value::Text(text) => KeyValue::new(*name, text.to_owned()),
            Value::Integer(number) => KeyValue::new(*name, number),
            Value::Float(number) => KeyValue::new(*name, number),
        });
        let builder =
            SpanBuilder::from_name(span.name).with_start_time(span.start).with_attributes(attributes);
        let context = Context::new().with_remote_span_context(parent);
        global::tracer(SERVICE).build_with_context(builder, &context).end_with_timestamp(span.end);
    }

    fn remote((trace, span, flags): TraceParts) -> SpanContext {
        SpanContext::new(
            TraceId::from_bytes(trace),
            SpanId::from_bytes(span),
            TraceFlags::new(flags),
            true,
            TraceState::default(),
        )
    }
}

#[cfg(not(feature = "otlp"))]
mod imp {
    use tracing::Span;

    use super::{FinishedSpan, TraceParts};

    pub(super) fn of_span(_: &Span) -> Option<TraceParts> {
        None
    }

    pub(super) fn set_parent(_: &Span, _: TraceParts) {}

    pub(super) fn add_link(_: &Span, _: TraceParts) {}

    pub(super) fn record_finished(_: &FinishedSpan<'_>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_exporter_nothing_happens() {
        assert_eq!(current(), None);
        let span = tracing::info_span!("x");
        set_parent(&span, ([1; 16], [2; 8], 1));
        add_link(&span, ([1; 16], [2; 8], 1));
        let now = SystemTime::UNIX_EPOCH;
        record_finished(&FinishedSpan {
            name: "y",
            parent: ([1; 16], [2; 8], 1),
            start: now,
            end: now,
            attributes: &[("a", Value::Text("b"))],
        });
        assert_eq!(of_span(&span), None);
    }
}
