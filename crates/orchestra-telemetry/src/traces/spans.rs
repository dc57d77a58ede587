//! A span in the making, for our own exporter or for that of a host. What is put on it is decided elsewhere.
//!
//! Our own spans have the ids that `ids` works out, and go straight to the exporter's queue: nothing is measured or sampled here, because
//! all of it has happened and been decided already. A host's spans are made by its tracer, with ids of its own.

use std::time::SystemTime;

use opentelemetry::global::{BoxedSpan, BoxedTracer};
use opentelemetry::trace::{
    Event, Link, Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _,
    TraceFlags, TraceId, TraceState, Tracer as _,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::queue::SpanSink;
use crate::names::{attribute, event};

/// Bytes of an error's words that a span keeps: a worker may have said a lot, and each item of its batch repeats it.
const LONGEST_WORDS: usize = 1024;

/// Where spans go.
pub(super) enum Out {
    /// To our exporter.
    Own(SpanSink, InstrumentationScope),
    /// Through the tracer of the host.
    Host(BoxedTracer),
}

/// A span that has not ended. Dropped before that, it was never there (a host's span then ends at that moment).
pub(super) struct Span(Kind);

enum Kind {
    Own(Box<SpanData>, SpanSink),
    Host(BoxedSpan, SystemTime),
}

impl Out {
    /// Whether so many spans more would leave enough room for what matters more than one item of many.
    pub(super) fn has_room(&self, spans: usize) -> bool {
        match self {
            Out::Own(sink, _) => sink.has_room(spans),
            // A host's exporter looks after itself.
            Out::Host(_) => true,
        }
    }

    /// A span that began at `start`. Without a parent it begins the trace `trace`. A host knows neither id.
    pub(super) fn open(
        &self,
        name: &'static str,
        (trace, span): (TraceId, SpanId),
        parent: Option<&SpanContext>,
        start: SystemTime,
    ) -> Span {
        match self {
            Out::Own(sink, scope) => {
                let trace = parent.map_or(trace, SpanContext::trace_id);
                let data = SpanData {
                    span_context: sampled(trace, span),
                    parent_span_id: parent.map_or(SpanId::INVALID, SpanContext::span_id),
                    parent_span_is_remote: parent.is_some_and(SpanContext::is_remote),
                    span_kind: SpanKind::Internal,
                    name: name.into(),
                    start_time: start,
                    end_time: start,
                    attributes: Vec::with_capacity(16),
                    dropped_attributes_count: 0,
                    events: SpanEvents::default(),
                    links: SpanLinks::default(),
                    status: Status::Unset,
                    instrumentation_scope: scope.clone(),
                };
                Span(Kind::Own(Box::new(data), sink.clone()))
            }
            Out::Host(tracer) => {
                let builder =
                    SpanBuilder::from_name(name).with_kind(SpanKind::Internal).with_start_time(start);
                let context =
                    parent.map_or_else(Context::new, |p| Context::new().with_remote_span_context(p.clone()));
                Span(Kind::Host(tracer.build_with_context(builder, &context), start))
            }
        }
    }
}

/// A context of ours.
pub(super) fn sampled(trace: TraceId, span: SpanId) -> SpanContext {
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::default())
}

impl Span {
    /// What others refer to it by.
    pub(super) fn context(&self) -> SpanContext {
        match &self.0 {
            Kind::Own(data, _) => data.span_context.clone(),
            Kind::Host(span, _) => span.span_context().clone(),
        }
    }

    pub(super) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.set_attribute(KeyValue::new(name, value));
    }

    pub(super) fn set_attribute(&mut self, attribute: KeyValue) {
        match &mut self.0 {
            Kind::Own(data, _) => data.attributes.push(attribute),
            Kind::Host(span, _) => span.set_attribute(attribute),
        }
    }

    pub(super) fn event(&mut self, name: &'static str, at: SystemTime, attributes: Vec<KeyValue>) {
        match &mut self.0 {
            Kind::Own(data, _) => data.events.events.push(Event::new(name, at, attributes, 0)),
            Kind::Host(span, _) => span.add_event_with_timestamp(name, at, attributes),
        }
    }

    /// Says that it has to do with another span, and how.
    pub(super) fn link(&mut self, to: SpanContext, how: &'static str) {
        let attributes = vec![KeyValue::new(attribute::LINK, how)];
        match &mut self.0 {
            Kind::Own(data, _) => data.links.links.push(Link::new(to, attributes, 0)),
            Kind::Host(span, _) => span.add_link(to, attributes),
        }
    }

    /// It ended in an error, of a kind from a small set and with these words.
    pub(super) fn fail(&mut self, kind: impl Into<Value>, words: &str, at: SystemTime) {
        let kind = kind.into();
        let words = &words[..words.floor_char_boundary(LONGEST_WORDS)];
        self.set(attribute::ERROR_TYPE, kind.clone());
        let exception = vec![
            KeyValue::new(attribute::EXCEPTION_TYPE, kind),
            KeyValue::new(attribute::EXCEPTION_MESSAGE, words.to_owned()),
        ];
        self.event(event::EXCEPTION, at, exception);
        let status = Status::error(words.to_owned());
        match &mut self.0 {
            Kind::Own(data, _) => data.status = status,
            Kind::Host(span, _) => span.set_status(status),
        }
    }

    /// It ended at this time, or when it began if that is later. Sends it off.
    pub(super) fn end(self, at: SystemTime) {
        match self.0 {
            Kind::Own(mut data, sink) => {
                data.end_time = at.max(data.start_time);
                sink.end(*data);
            }
            Kind::Host(mut span, start) => span.end_with_timestamp(at.max(start)),
        }
    }
}
