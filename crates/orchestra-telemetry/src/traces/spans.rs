//! A span in the making, for our own exporter or for that of a host. What is put on it is decided elsewhere.
//!
//! Both are made by a tracer of OpenTelemetry: a host's, or one of the SDK whose spans get the ids that `ids` works out and end in our
//! queue. Nothing is measured or sampled here, because all of it has happened and been decided already.

use std::cell::Cell;
use std::time::Duration;

use opentelemetry::global::{self, BoxedSpan, BoxedTracer};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId,
    TraceState, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{IdGenerator, Sampler, SdkTracerProvider, SpanData, SpanProcessor};

use super::queue::{Importance, SpanSink};
use super::wall::Wall;
use crate::names::{SERVICE, attribute, event};

/// Bytes of an error's words that a span keeps: a worker may have said a lot, and each item of its batch repeats it.
const LONGEST_WORDS: usize = 1024;

/// Where spans go.
pub(super) struct Out {
    plain: BoxedTracer,
    rare: BoxedTracer,
    /// Our queue, unless they go to a host.
    sink: Option<SpanSink>,
}

/// A span that has not ended.
pub(super) struct Span {
    span: BoxedSpan,
    start: Wall,
}

impl Out {
    /// To our exporter.
    pub(super) fn own(sink: &SpanSink) -> Self {
        let tracer = |importance| {
            let provider = SdkTracerProvider::builder()
                .with_sampler(Sampler::AlwaysOn)
                .with_id_generator(GivenIds)
                // The exporter sets the resource, for all spans of a request at once.
                .with_resource(Resource::builder_empty().build())
                .with_span_processor(IntoQueue { sink: sink.clone(), importance })
                .build();
            BoxedTracer::new(Box::new(provider.tracer(SERVICE)))
        };
        Self { plain: tracer(Importance::Plain), rare: tracer(Importance::Rare), sink: Some(sink.clone()) }
    }

    /// Through the tracer provider that the host has set.
    pub(super) fn host() -> Self {
        Self { plain: global::tracer(SERVICE), rare: global::tracer(SERVICE), sink: None }
    }

    /// Whether so many spans more would leave enough room for what matters more than one item of many. A host's exporter looks after
    /// itself.
    pub(super) fn has_room(&self, spans: usize) -> bool {
        self.sink.as_ref().is_none_or(|sink| sink.has_room(spans))
    }

    /// A span that began at `start`. Without a parent it begins the trace `trace`. A host knows neither id, nor what is important.
    pub(super) fn open(
        &self,
        name: &'static str,
        ids: (TraceId, SpanId),
        parent: Option<&SpanContext>,
        start: Wall,
        importance: Importance,
    ) -> Span {
        let builder =
            SpanBuilder::from_name(name).with_kind(SpanKind::Internal).with_start_time(start.system_time());
        let parent = parent.map_or_else(Context::new, |p| Context::new().with_remote_span_context(p.clone()));
        let tracer = match importance {
            Importance::Plain => &self.plain,
            Importance::Rare => &self.rare,
        };
        NEXT_IDS.set(ids);
        Span { span: tracer.build_with_context(builder, &parent), start }
    }
}

thread_local! {
    /// Ids of the span that this thread builds next.
    static NEXT_IDS: Cell<(TraceId, SpanId)> = const { Cell::new((TraceId::INVALID, SpanId::INVALID)) };
}

/// Gives the span that is being built in this thread the ids that [`Out::open`] was told.
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

/// Puts spans that have ended into the queue.
#[derive(Debug)]
struct IntoQueue {
    sink: SpanSink,
    importance: Importance,
}

impl SpanProcessor for IntoQueue {
    fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        self.sink.0.push(span, self.importance);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// A context of ours.
pub(super) fn sampled(trace: TraceId, span: SpanId) -> SpanContext {
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::default())
}

impl Span {
    /// What others refer to it by.
    pub(super) fn context(&self) -> SpanContext {
        self.span.span_context().clone()
    }

    pub(super) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.set_attribute(KeyValue::new(name, value));
    }

    pub(super) fn set_all(&mut self, attributes: &[KeyValue]) {
        attributes.iter().for_each(|a| self.set_attribute(a.clone()));
    }

    pub(super) fn set_attribute(&mut self, attribute: KeyValue) {
        self.span.set_attribute(attribute);
    }

    pub(super) fn event(&mut self, name: &'static str, at: Wall, attributes: Vec<KeyValue>) {
        self.span.add_event_with_timestamp(name, at.system_time(), attributes);
    }

    /// Says that it has to do with another span, and how.
    pub(super) fn link(&mut self, to: SpanContext, how: &'static str) {
        self.span.add_link(to, vec![KeyValue::new(attribute::LINK, how)]);
    }

    /// It ended in an error, of a kind from a small set and with these words.
    pub(super) fn fail(&mut self, kind: impl Into<Value>, words: &str, at: Wall) {
        let kind = kind.into();
        let words = &words[..words.floor_char_boundary(LONGEST_WORDS)];
        self.set(attribute::ERROR_TYPE, kind.clone());
        let exception = vec![
            KeyValue::new(attribute::EXCEPTION_TYPE, kind),
            KeyValue::new(attribute::EXCEPTION_MESSAGE, words.to_owned()),
        ];
        self.event(event::EXCEPTION, at, exception);
        self.span.set_status(Status::error(words.to_owned()));
    }

    /// It ended at this time, or when it began if that is later. Sends it off.
    pub(super) fn end(mut self, at: Wall) {
        self.span.end_with_timestamp(at.max(self.start).system_time());
    }
}
