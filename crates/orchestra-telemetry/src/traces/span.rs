//! One span in the making, for our own exporter or for that of a host. It decides nothing of what is on a span.
//!
//! A tracer of OpenTelemetry makes it: the host's, or one of the SDK whose spans get the ids of `ids` and end in our queue. Nothing is
//! measured or sampled here, because all of it has happened and been decided already.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::global::{self, BoxedSpan, BoxedTracer};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceId,
    Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{IdGenerator, Sampler, SdkTracerProvider, SpanData, SpanProcessor};

use super::queue::{Importance, Queue};
use crate::names::{SERVICE, attribute, event};

/// Bytes of an error that a span keeps: a worker may have said a lot, and each item of its batch repeats it.
const LONGEST_ERROR: usize = 1024;

pub(super) struct Out {
    plain: BoxedTracer,
    rare: BoxedTracer,
    /// Our queue, unless they go to a host.
    sink: Option<Arc<Queue>>,
}

/// A span that has not ended. Its times are those of the run, counted from `zero`.
pub(super) struct Span {
    span: BoxedSpan,
    zero: SystemTime,
    start: Duration,
}

impl Out {
    /// To our exporter, or else through the tracer provider that the host has set.
    pub(super) fn new(sink: Option<&Arc<Queue>>) -> Self {
        let tracer = |importance| match sink {
            None => global::tracer(SERVICE),
            Some(sink) => {
                let provider = SdkTracerProvider::builder()
                    .with_sampler(Sampler::AlwaysOn)
                    .with_id_generator(GivenIds)
                    // The exporter sets the resource, for all spans of a request at once.
                    .with_resource(Resource::builder_empty().build())
                    .with_span_processor(IntoQueue { sink: sink.clone(), importance })
                    .build();
                BoxedTracer::new(Box::new(provider.tracer(SERVICE)))
            }
        };
        Self { plain: tracer(Importance::Plain), rare: tracer(Importance::Rare), sink: sink.cloned() }
    }

    /// Whether so many spans more leave enough room for rare ones. A host's exporter looks after itself.
    pub(super) fn has_room(&self, spans: usize) -> bool {
        self.sink.as_ref().is_none_or(|sink| sink.has_room(spans))
    }

    /// A span that began at `start`. Without a parent it begins the trace of `ids`. A host uses neither `ids` nor `importance`.
    pub(super) fn open(
        &self,
        importance: Importance,
        name: &'static str,
        ids: (TraceId, SpanId),
        parent: Option<&SpanContext>,
        (zero, start): (SystemTime, Duration),
    ) -> Span {
        let time = wall_time(zero, start);
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Internal).with_start_time(time);
        let parent = parent.map_or_else(Context::new, |p| Context::new().with_remote_span_context(p.clone()));
        let tracer = if importance == Importance::Plain { &self.plain } else { &self.rare };
        NEXT_IDS.set(ids);
        Span { span: tracer.build_with_context(builder, &parent), zero, start }
    }
}

fn wall_time(zero: SystemTime, at: Duration) -> SystemTime {
    zero.checked_add(at).unwrap_or(zero)
}

thread_local! {
    /// Ids of the span that this thread builds next: the SDK takes ids from a generator only.
    static NEXT_IDS: Cell<(TraceId, SpanId)> = const { Cell::new((TraceId::INVALID, SpanId::INVALID)) };
}

#[derive(Debug)]
struct GivenIds;

impl IdGenerator for GivenIds {
    fn new_trace_id(&self) -> TraceId {
        NEXT_IDS.get().0
    }

    fn new_span_id(&self) -> SpanId {
        NEXT_IDS.get().1
    }
}

#[derive(Debug)]
struct IntoQueue {
    sink: Arc<Queue>,
    importance: Importance,
}

impl SpanProcessor for IntoQueue {
    fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        self.sink.push(span, self.importance);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl Span {
    pub(super) fn context(&self) -> SpanContext {
        self.span.span_context().clone()
    }

    pub(super) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.span.set_attribute(KeyValue::new(name, value));
    }

    pub(super) fn add(&mut self, attributes: impl IntoIterator<Item = KeyValue>) {
        self.span.set_attributes(attributes);
    }

    pub(super) fn event(&mut self, name: &'static str, at: Duration, attributes: Vec<KeyValue>) {
        self.span.add_event_with_timestamp(name, wall_time(self.zero, at), attributes);
    }

    /// `how` is the value of `orchestra.link`.
    pub(super) fn link(&mut self, to: SpanContext, how: &'static str) {
        self.span.add_link(to, vec![KeyValue::new(attribute::LINK, how)]);
    }

    /// It ended in an error, of a kind from a small set.
    pub(super) fn fail(&mut self, kind: impl Into<Value>, error: &str, at: Duration) {
        let kind = kind.into();
        let error = &error[..error.floor_char_boundary(LONGEST_ERROR)];
        self.set(attribute::ERROR_TYPE, kind.clone());
        let exception = vec![
            KeyValue::new(attribute::EXCEPTION_TYPE, kind),
            KeyValue::new(attribute::EXCEPTION_MESSAGE, error.to_owned()),
        ];
        self.event(event::EXCEPTION, at, exception);
        self.span.set_status(Status::error(error.to_owned()));
    }

    /// It ended at this time, or when it began if that is later.
    pub(super) fn end(mut self, at: Duration) {
        self.span.end_with_timestamp(wall_time(self.zero, at.max(self.start)));
    }
}

/// OpenTelemetry has no unsigned numbers.
pub(super) fn number(n: impl TryInto<i64>) -> Value {
    Value::I64(n.try_into().unwrap_or(i64::MAX))
}
