use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::trace::{SpanEvents, SpanLinks};
use prost::Message as _;

use super::*;
use crate::names::attribute;
use crate::traces::settings::{Protocol, usual_request};

#[path = "../../tests/it/common/mod.rs"]
mod common;
use common::{Collector, Do, closed_port, seen};

/// Patient, so that a busy machine fails no test.
const LONG: Duration = Duration::from_secs(120);

fn settings(url: &str) -> TraceSettings {
    let settings = TraceSettings::new(url, "a test", None).unwrap();
    TraceSettings { patience: LONG, timeout: LONG, ..settings }
}

fn span(n: u64) -> SpanData {
    let id = SpanId::from_bytes((n + 1).to_be_bytes());
    let trace = TraceId::from_bytes([7; 16]);
    SpanData {
        span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::default()),
        parent_span_id: SpanId::INVALID,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: "batch".into(),
        start_time: SystemTime::UNIX_EPOCH,
        end_time: SystemTime::UNIX_EPOCH + Duration::from_millis(5),
        attributes: vec![KeyValue::new(attribute::BATCH_ID, n as i64)],
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("orchestra").build(),
    }
}

fn end_all(sink: &Sink, spans: std::ops::Range<u64>) {
    spans.for_each(|n| sink.end(span(n)));
}

/// Starts, ends so many spans, and shuts down.
fn run(settings: &TraceSettings, spans: u64) -> SpanReport {
    let export = SpanExport::start(settings).unwrap();
    end_all(&export.sink(), 0..spans);
    export.shutdown(settings.patience)
}

/// One collector for each protocol that this build speaks.
fn collectors(first: &[Do]) -> Vec<(Collector, TraceSettings)> {
    let of = |collector: Collector| {
        let protocol = <Protocol as orchestra_plan::Choice>::named(collector.protocol);
        let settings = TraceSettings::new(&collector.url(), "a test", protocol).unwrap();
        (collector, TraceSettings { timeout: LONG, patience: LONG, ..settings })
    };
    Collector::all(first).into_iter().map(of).collect()
}

#[test]
fn all_spans_arrive_over_each_protocol_with_the_resource_of_this_program() {
    for (collector, settings) in collectors(&[]) {
        let report = run(&TraceSettings { request: 10, ..settings }, 95);
        assert_eq!(report, SpanReport { ended: 95, delivered: 95, ..SpanReport::default() });
        let mut ids: Vec<Vec<u8>> = collector.spans().into_iter().map(|span| span.span_id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 95);
        for got in collector.got() {
            assert!(got.request.resource_spans[0].scope_spans[0].spans.len() <= 10);
            let attributes = &got.request.resource_spans[0].resource.as_ref().unwrap().attributes;
            let text = |name: &str| {
                let found = attributes.iter().find(|a| a.key == name).unwrap_or_else(|| panic!("no {name}"));
                found.value.clone().unwrap().value.unwrap()
            };
            assert_eq!(text("service.name"), Value::StringValue("orchestra".to_owned()));
            text("service.version");
        }
    }
}

#[test]
fn requests_go_to_the_path_of_traces() {
    let collector = Collector::http(&[]);
    assert_eq!(run(&settings(&format!("{}/base", collector.url())), 1).delivered, 1);
    let got = &collector.got()[0];
    assert_eq!(got.path, "/base/v1/traces");
    assert_eq!(got.headers["content-type"], "application/x-protobuf");
}

#[test]
fn spans_that_the_collector_rejects_are_counted_with_its_words() {
    let collector = Collector::http(&[Do::Reject(3, "too old")]);
    let report = run(&settings(&collector.url()), 10);
    assert_eq!((report.ended, report.delivered, report.rejected), (10, 7, 3));
    assert_eq!(report.words.as_deref(), Some("too old"));
    assert_eq!(report.losses(), [(3, "were rejected by the collector")]);
}

#[test]
fn a_collector_that_rejects_more_than_it_got_cannot_upset_the_count() {
    let collector = Collector::http(&[Do::Reject(i64::MAX, ""), Do::Reject(-5, "")]);
    let report = run(&TraceSettings { request: 5, ..settings(&collector.url()) }, 10);
    assert_eq!((report.rejected, report.delivered, report.lost()), (5, 5, 5));
}

#[test]
fn a_collector_that_is_busy_or_hangs_up_gets_the_request_again() {
    let busy = [Do::Refuse(429, "slower", Some(0)), Do::Refuse(503, "", None), Do::HangUp];
    let collector = Collector::http(&busy);
    assert_eq!(run(&settings(&collector.url()), 1).delivered, 1);
    assert_eq!(collector.got().len(), busy.len() + 1);
}

#[test]
fn what_the_collector_will_never_take_is_sent_once_and_told_with_its_words() {
    for (status, said, words) in [
        (401, "no key", "`401 Unauthorized`: no key"),
        (404, "", "`404 Not Found`"),
        (400, "\n\u{b}bad \u{1} message", ": bad message"),
    ] {
        let collector = Collector::http(&[Do::Refuse(status, said, None)]);
        let report = run(&settings(&collector.url()), 3);
        assert_eq!((report.unsent, report.lost()), (3, 3));
        assert!(report.words.as_ref().unwrap().contains(words), "{report:?}");
        assert_eq!(collector.got().len(), 1);
    }
}

#[test]
fn a_collector_that_is_down_costs_the_spans_and_nothing_else() {
    let closed_port = closed_port();
    let report = run(&settings(&closed_port.url()), 100);
    assert_eq!((report.unsent, report.lost()), (100, 100));
    assert!(report.words.unwrap().contains("no connection: Connection refused"));
}

#[test]
fn after_the_run_a_collector_that_is_down_is_tried_once_more_and_not_for_each_request() {
    let closed_port = closed_port();
    // Each request is tried for a second or two.
    let report = run(&TraceSettings { request: 1, ..settings(&closed_port.url()) }, 5_000);
    assert_eq!((report.unsent, report.late), (5_000, 0));
}

#[cfg(feature = "grpc")]
#[test]
fn over_grpc_too_a_collector_that_refuses_one_request_gets_the_next() {
    let collector = Collector::grpc(&[Do::Refuse(7, "quota is used up", None)]);
    let settings = TraceSettings::new(&collector.url(), "a test", Some(Protocol::Grpc)).unwrap();
    let report = run(&TraceSettings { request: 5, timeout: LONG, patience: LONG, ..settings }, 10);
    assert_eq!((report.unsent, report.delivered), (5, 5));
    assert!(report.words.unwrap().contains("PermissionDenied"));
}

#[test]
fn what_speaks_another_protocol_is_told_of_with_the_usual_ports() {
    let other = common::Garbler::start(b"\0\0\x12\x04\0\0\0\0\0", usize::MAX);
    let timeout = Duration::from_secs(10);
    let words = run(&TraceSettings { timeout, ..settings(&other.url()) }, 1).words.unwrap();
    assert!(words.contains("HTTP is usually on port 4318"), "{words}");
}

#[test]
fn an_answer_without_end_is_cut_off() {
    let endless = common::Garbler::start(b"HTTP/1.1 200 OK\r\n\r\n", 1);
    let report = run(&settings(&endless.url()), 1);
    assert_eq!((report.unsent, report.lost()), (1, 1), "{report:?}");
    assert!(report.words.unwrap().contains("4 MiB"));
}

#[test]
fn what_finds_the_queue_full_is_counted_and_a_quarter_is_kept_for_what_is_rare() {
    // The request is not answered, so the queue fills behind it.
    let collector = Collector::http(&[Do::Ignore]);
    let patience = Duration::from_millis(200);
    let settings = TraceSettings { queue: 20, request: 10, patience, ..settings(&collector.url()) };
    let export = SpanExport::start(&settings).unwrap();
    let sink = export.sink();
    end_all(&sink, 0..10);
    seen("the request has come", || collector.got().len(), |n| *n > 0);
    end_all(&sink, 10..15);
    assert!(!sink.has_room(1), "three quarters wait");
    end_all(&sink, 15..40);
    assert_eq!(export.counts().report().overflowed, 20, "there was room for twenty");
    let report = export.shutdown(patience);
    assert_eq!((report.ended, report.overflowed, report.late), (40, 20, 20));
    assert_eq!(report.lost(), 40);
}

#[test]
fn the_largest_request_of_the_largest_spans_is_taken_by_a_collector() {
    let name = "x".repeat(4096); // The longest path that Linux has.
    let words = "x".repeat(1024); // The most of an error that a span keeps, once as its status and once as an event.
    let largest = |n| {
        let attributes =
            vec![KeyValue::new(attribute::ITEM, name.clone()), KeyValue::new("words", words.clone())];
        SpanData { attributes, status: Status::error(words.clone()), ..span(n) }
    };
    for (protocol, most) in [(Protocol::HttpProtobuf, 20 << 20), (Protocol::Grpc, 4 << 20)] {
        let spans = (0..usual_request(protocol) as u64).map(largest).collect();
        let resource_spans = group_spans_by_resource_and_scope(spans, &Default::default());
        assert!(ExportTraceServiceRequest { resource_spans }.encoded_len() < most);
    }
}

#[tokio::test]
async fn the_end_may_be_awaited_inside_a_runtime_of_one_thread() {
    let collector = Collector::http(&[]);
    assert_eq!(run(&settings(&collector.url()), 1).delivered, 1);
    assert_eq!(collector.spans().len(), 1);
}
