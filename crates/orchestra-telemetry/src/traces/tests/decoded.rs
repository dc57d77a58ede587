//! Spans as OpenTelemetry's own library reads them from bytes that we wrote, in the form in which that library has them in memory.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1 as common;
use opentelemetry_proto::tonic::trace::v1 as wire;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use prost::Message as _;

use super::super::encode::{EncodedResource, request};

/// The spans of a request.
pub fn spans_of(spans: &[u8]) -> Vec<SpanData> {
    let resource = EncodedResource::new(&Resource::builder_empty().build());
    let request = ExportTraceServiceRequest::decode(&request(spans, &resource)[..]).expect("it can be read");
    let scopes = request.resource_spans.into_iter().flat_map(|of_resource| of_resource.scope_spans);
    scopes.flat_map(|of_scope| of_scope.spans).map(span).collect()
}

fn span(of: wire::Span) -> SpanData {
    let status = match of.status {
        Some(status) if status.code == 2 => Status::error(status.message),
        _ => Status::Unset,
    };
    let mut events = SpanEvents::default();
    events.events = of.events.into_iter().map(event).collect();
    events.dropped_count = of.dropped_events_count;
    let mut links = SpanLinks::default();
    links.links = of.links.into_iter().map(link).collect();
    links.dropped_count = of.dropped_links_count;
    SpanData {
        span_context: context(&of.trace_id, &of.span_id, of.flags & !0x200),
        parent_span_id: of.parent_span_id.try_into().map_or(SpanId::INVALID, SpanId::from_bytes),
        parent_span_is_remote: of.flags & 0x200 != 0,
        span_kind: SpanKind::Internal,
        name: of.name.into(),
        start_time: time(of.start_time_unix_nano),
        end_time: time(of.end_time_unix_nano),
        attributes: attributes(of.attributes),
        dropped_attributes_count: of.dropped_attributes_count,
        events,
        links,
        status,
        instrumentation_scope: InstrumentationScope::builder("orchestra").build(),
    }
}

fn event(of: wire::span::Event) -> Event {
    Event::new(of.name, time(of.time_unix_nano), attributes(of.attributes), of.dropped_attributes_count)
}

fn link(of: wire::span::Link) -> Link {
    let context = context(&of.trace_id, &of.span_id, of.flags);
    Link::new(context, attributes(of.attributes), of.dropped_attributes_count)
}

fn context(trace: &[u8], span: &[u8], flags: u32) -> SpanContext {
    let trace = TraceId::from_bytes(trace.try_into().expect("16 bytes"));
    let span = SpanId::from_bytes(span.try_into().expect("8 bytes"));
    let flags_of_trace = TraceFlags::new((flags & 0xff) as u8);
    SpanContext::new(trace, span, flags_of_trace, flags & 0x200 != 0, TraceState::default())
}

fn time(nanos: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)
}

fn attributes(of: Vec<common::KeyValue>) -> Vec<KeyValue> {
    let value = |value: Option<common::AnyValue>| match value.and_then(|v| v.value) {
        Some(common::any_value::Value::StringValue(text)) => Value::from(text),
        Some(common::any_value::Value::BoolValue(flag)) => Value::from(flag),
        Some(common::any_value::Value::IntValue(number)) => Value::from(number),
        Some(common::any_value::Value::DoubleValue(number)) => Value::from(number),
        other => panic!("{other:?} is no attribute of ours"),
    };
    of.into_iter().map(|a| KeyValue::new(a.key, value(a.value))).collect()
}
