use std::time::{Duration, UNIX_EPOCH};

use opentelemetry::InstrumentationScope;
use opentelemetry::trace::{Event, Link, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use prost::Message as _;

use super::*;

/// What OpenTelemetry's own library makes of the same spans.
fn theirs(spans: &[SpanData], resource: &Resource) -> ExportTraceServiceRequest {
    let mut resource_spans = group_spans_by_resource_and_scope(spans.to_vec(), &resource.into());
    let scopes = resource_spans.iter_mut().flat_map(|of_resource| &mut of_resource.scope_spans);
    for span in scopes.flat_map(|of_scope| &mut of_scope.spans) {
        // A status that says nothing is the same as none.
        span.status = span.status.take().filter(|status| *status != Default::default());
    }
    ExportTraceServiceRequest { resource_spans }
}

/// What we make of them, one put on after the other.
fn ours(spans: &[SpanData], resource: &Resource, limits: SpanLimits) -> ExportTraceServiceRequest {
    let (mut bytes, mut span) = (Vec::new(), SpanBytes::new(limits));
    for data in spans {
        let parent = SpanContext::new(
            data.span_context.trace_id(),
            data.parent_span_id,
            TraceFlags::SAMPLED,
            data.parent_span_is_remote,
            TraceState::default(),
        );
        let parent = Some(&parent).filter(|p| p.span_id() != SpanId::INVALID);
        span.begin(&data.span_context, parent, &data.name, data.start_time.into());
        data.attributes.iter().for_each(|a| span.attribute(a.key.as_str(), &a.value));
        data.events.iter().for_each(|e| span.event(&e.name, e.timestamp.into(), &e.attributes));
        data.links.iter().for_each(|l| span.link(&l.span_context, &l.attributes[0]));
        if let Status::Error { description } = &data.status {
            span.fail(description);
        }
        span.end(data.end_time.into());
        span.append_to(&mut bytes);
    }
    ExportTraceServiceRequest::decode(&request(&bytes, &EncodedResource::new(resource))[..]).unwrap()
}

fn resource() -> Resource {
    let attributes = [KeyValue::new("service.name", "orchestra"), KeyValue::new("n", 1)];
    Resource::builder_empty().with_attributes(attributes).build()
}

#[track_caller]
fn must_agree(spans: &[SpanData]) {
    let resource = resource();
    assert_eq!(ours(spans, &resource, SpanLimits::default()), theirs(spans, &resource));
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
        status: Status::error("worker lost"),
        ..bare()
    };
    span.events.events.push(Event::new("worker.lost", UNIX_EPOCH + Duration::from_secs(5), attributes(), 0));
    span.events.events.push(Event::new("bare", UNIX_EPOCH, Vec::new(), 0));
    for (to, how) in [(context(3, false), "next"), (context(4, true), "run")] {
        span.links.links.push(Link::new(to, vec![KeyValue::new("orchestra.link", how)], 0));
    }
    must_agree(&[span, SpanData { status: Status::error(""), ..bare() }, bare()]);
}

#[test]
fn what_is_beyond_the_limits_is_left_out_and_counted() {
    let mut span = SpanData { attributes: attributes(), ..bare() };
    for n in 0..3 {
        span.events.events.push(Event::new("worker.lost", UNIX_EPOCH, attributes(), 0));
        let attribute = KeyValue::new("orchestra.link", "batch");
        span.links.links.push(Link::new(context(n + 1, false), vec![attribute], 0));
    }
    let limits = SpanLimits {
        attributes: Some(4),
        events: Some(2),
        links: Some(1),
        event_attributes: Some(1),
        link_attributes: Some(0),
        value_length: Some(5),
    };
    let sent = ours(&[span, bare()], &resource(), limits);
    let spans = &sent.resource_spans[0].scope_spans[0].spans;
    let (span, next) = (&spans[0], &spans[1]);
    assert_eq!((span.attributes.len(), span.dropped_attributes_count), (4, attributes().len() as u32 - 4));
    assert_eq!((span.events.len(), span.dropped_events_count), (2, 1));
    assert_eq!((span.links.len(), span.dropped_links_count), (1, 2));
    assert_eq!((span.links[0].attributes.len(), span.links[0].dropped_attributes_count), (0, 1));
    let event = &span.events[0];
    assert_eq!((event.attributes.len(), event.dropped_attributes_count), (1, attributes().len() as u32 - 1));
    let texts: Vec<String> = span.attributes.iter().map(|a| format!("{:?}", a.value)).collect();
    assert!(texts[0].contains("\"größe\""), "characters are counted, not bytes: {}", texts[0]);
    assert!(texts[2].contains("\"xxxxx\""), "{}", texts[2]);
    assert_eq!((next.dropped_attributes_count, next.dropped_events_count), (0, 0), "each has its own count");
}

#[test]
fn lengths_of_every_width_are_right() {
    // One, two, three and four bytes for the length of a span.
    for length in [0, 1, 20, 100, 126, 127, 128, 129, 16_000, 16_383, 16_384, 17_000, 2_097_151, 2_100_000] {
        must_agree(&[SpanData { name: "n".repeat(length).into(), ..bare() }, bare()]);
    }
}

#[test]
fn many_spans_are_what_the_library_would_send() {
    let mut spans = vec![bare(); 500];
    spans.extend(vec![SpanData { attributes: attributes(), ..bare() }; 20]);
    must_agree(&spans);
}

#[test]
fn no_span_is_a_request_without_spans() {
    let ours = ours(&[], &resource(), SpanLimits::default());
    let scopes = ours.resource_spans.iter().flat_map(|of_resource| &of_resource.scope_spans);
    assert!(scopes.into_iter().all(|of_scope| of_scope.spans.is_empty()));
}
