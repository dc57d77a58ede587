use std::time::Duration;

use opentelemetry::trace::{Event, TraceFlags, TraceId, TraceState};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::trace::{SpanEvents, SpanLinks};
use prost::Message as _;

use super::*;

/// What OpenTelemetry's own library makes of the same spans.
fn theirs(spans: &[SpanData], resource: &Resource) -> ExportTraceServiceRequest {
    let resource_spans = group_spans_by_resource_and_scope(spans.to_vec(), &resource.into());
    ExportTraceServiceRequest { resource_spans }
}

#[track_caller]
fn must_agree(spans: &[SpanData]) {
    let resource = Resource::builder_empty()
        .with_attributes([KeyValue::new("service.name", "orchestra"), KeyValue::new("n", 1)])
        .build();
    let ours = request(spans, &EncodedResource::new(&resource));
    let ours = ExportTraceServiceRequest::decode(&ours[..]).unwrap();
    assert_eq!(ours, theirs(spans, &resource));
}

fn context(n: u8, remote: bool) -> SpanContext {
    let state = TraceState::from_key_value([("vendor", "x"), ("other", "y")]).unwrap();
    SpanContext::new(
        TraceId::from_bytes([n; 16]),
        SpanId::from_bytes([n; 8]),
        TraceFlags::SAMPLED,
        remote,
        if remote { state } else { TraceState::default() },
    )
}

fn bare() -> SpanData {
    SpanData {
        span_context: context(1, false),
        parent_span_id: SpanId::INVALID,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: "batch".into(),
        start_time: UNIX_EPOCH,
        end_time: UNIX_EPOCH + Duration::from_nanos(1_763_755_200_123_456_789),
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("orchestra").build(),
    }
}

fn attributes() -> Vec<KeyValue> {
    vec![
        KeyValue::new("text", "größer"),
        KeyValue::new("empty", ""),
        KeyValue::new("long", "x".repeat(70_000)),
        KeyValue::new("true", true),
        KeyValue::new("false", false),
        KeyValue::new("zero", 0),
        KeyValue::new("negative", -1),
        KeyValue::new("most", i64::MAX),
        KeyValue::new("half", 0.5),
        KeyValue::new("nothing", 0.0),
        KeyValue::new("flags", Value::Array(vec![true, false].into())),
        KeyValue::new("numbers", Value::Array(vec![1_i64, -300, 0].into())),
        KeyValue::new("floats", Value::Array(vec![0.0, 1e300].into())),
        KeyValue::new("texts", Value::Array(Array::String(vec!["a".into(), "".into()]))),
        KeyValue::new("none", Value::Array(Array::I64(Vec::new()))),
    ]
}

#[test]
fn a_span_with_everything_is_what_the_library_would_send() {
    let mut span = SpanData {
        parent_span_id: SpanId::from_bytes([9; 8]),
        parent_span_is_remote: true,
        span_context: context(2, true),
        attributes: attributes(),
        dropped_attributes_count: 3,
        status: Status::error("worker lost"),
        ..bare()
    };
    span.events.events.push(Event::new("worker.lost", UNIX_EPOCH + Duration::from_secs(5), attributes(), 2));
    span.events.events.push(Event::with_name("bare"));
    span.events.dropped_count = 300;
    span.links.links.push(Link::new(context(3, false), attributes(), 7));
    span.links.links.push(Link::with_context(context(4, true)));
    span.links.dropped_count = 1;
    must_agree(&[span]);
}

#[test]
fn every_kind_and_status_is_what_the_library_would_send() {
    let kinds =
        [SpanKind::Client, SpanKind::Server, SpanKind::Producer, SpanKind::Consumer, SpanKind::Internal];
    let mut spans: Vec<SpanData> =
        kinds.into_iter().map(|span_kind| SpanData { span_kind, status: Status::Ok, ..bare() }).collect();
    spans.push(SpanData { status: Status::error(""), ..bare() });
    must_agree(&spans);
}

#[test]
fn lengths_of_every_width_are_right() {
    // One, two, three and four bytes for the length of a span.
    for length in [0, 1, 20, 100, 126, 127, 128, 129, 16_000, 16_383, 16_384, 17_000, 2_097_151, 2_100_000] {
        must_agree(&[SpanData { name: "n".repeat(length).into(), ..bare() }, bare()]);
    }
}

#[test]
fn many_spans_of_two_scopes_are_what_the_library_would_send() {
    let other = InstrumentationScope::builder("host")
        .with_version("1.2")
        .with_schema_url("https://opentelemetry.io/schemas/1.30.0")
        .with_attributes([KeyValue::new("a", 1)])
        .build();
    let mut spans = vec![bare(); 500];
    spans.extend(vec![SpanData { instrumentation_scope: other, attributes: attributes(), ..bare() }; 20]);
    must_agree(&spans);
}

#[test]
fn no_span_is_an_empty_request() {
    let resource = Resource::builder_empty().build();
    let ours = request(&[], &EncodedResource::new(&resource));
    let ours = ExportTraceServiceRequest::decode(&ours[..]).unwrap();
    assert!(ours.resource_spans.iter().all(|of_resource| of_resource.scope_spans.is_empty()));
}
