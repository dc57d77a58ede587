use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_sdk::trace::{SpanEvents, SpanLinks};

use super::*;
use crate::otlp::OtlpSettings;

#[path = "../../tests/common/mod.rs"]
mod common;
use common::{Collector, Do, nobody};

/// Patient, so that a busy machine fails no test.
const LONG: Duration = Duration::from_secs(120);

fn settings(url: &str) -> TraceSettings {
    let settings = TraceSettings::new(url, "a test").unwrap();
    TraceSettings { patience: LONG, otlp: OtlpSettings { timeout: LONG, ..settings.otlp }, ..settings }
}

fn span(n: u64) -> SpanData {
    let id = |n: u64| SpanId::from_bytes((n + 1).to_be_bytes());
    SpanData {
        span_context: SpanContext::new(
            TraceId::from_bytes([7; 16]),
            id(n),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: SpanId::INVALID,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: "batch".into(),
        start_time: SystemTime::UNIX_EPOCH,
        end_time: SystemTime::UNIX_EPOCH + Duration::from_millis(5),
        attributes: vec![KeyValue::new("orchestra.batch.id", n as i64)],
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("orchestra").build(),
    }
}

/// Starts, ends so many spans, and shuts down.
fn run(settings: &TraceSettings, spans: u64) -> SpanReport {
    let traces = Traces::start(settings).unwrap();
    let sink = traces.sink();
    (0..spans).for_each(|n| sink.end(span(n)));
    traces.shutdown()
}

fn collectors(first: &[Do]) -> [(Collector, String); 2] {
    let (grpc, http) = (Collector::grpc(first), Collector::http(first));
    let urls = [grpc.url(), format!("{}/v1/traces", http.url())];
    let [of_grpc, of_http] = urls;
    [(grpc, of_grpc), (http, of_http)]
}

#[test]
fn all_spans_arrive_over_both_protocols_with_the_resource_of_this_program() {
    for (collector, url) in collectors(&[]) {
        let resource = vec![("site".to_owned(), "berlin".to_owned())];
        let report = run(&TraceSettings { request: 10, resource, ..settings(&url) }, 95);
        assert_eq!(report, SpanReport { ended: 95, delivered: 95, ..SpanReport::default() });
        let mut ids: Vec<Vec<u8>> = collector.spans().into_iter().map(|span| span.span_id).collect();
        ids.dedup();
        assert_eq!(ids.len(), 95);
        assert_eq!(collector.got().len(), 10, "nine full requests and the rest");
        for got in collector.got() {
            let attributes = &got.request.resource_spans[0].resource.as_ref().unwrap().attributes;
            let text = |name: &str| {
                let found = attributes.iter().find(|a| a.key == name).unwrap_or_else(|| panic!("no {name}"));
                found.value.clone().unwrap().value.unwrap()
            };
            for (name, value) in [("service.name", "orchestra"), ("site", "berlin")] {
                assert_eq!(text(name), Value::StringValue(value.to_owned()));
            }
            text("service.version");
        }
    }
}

#[test]
fn spans_that_the_collector_rejects_are_counted_with_its_words() {
    for (_collector, url) in collectors(&[Do::Reject(3, "too old")]) {
        let report = run(&settings(&url), 10);
        assert_eq!((report.ended, report.delivered, report.rejected), (10, 7, 3));
        assert_eq!(report.words.as_deref(), Some("too old"));
        assert_eq!(report.losses(), [(3, "were rejected by the collector")]);
    }
}

#[test]
fn a_collector_that_rejects_more_than_it_got_cannot_upset_the_count() {
    for (_collector, url) in collectors(&[Do::Reject(i64::MAX, ""), Do::Reject(-5, "")]) {
        let report = run(&TraceSettings { request: 5, ..settings(&url) }, 10);
        assert_eq!((report.rejected, report.delivered, report.lost()), (5, 5, 5));
    }
}

#[test]
fn a_collector_that_is_down_costs_the_spans_and_nothing_else() {
    for path in ["", "/v1/traces"] {
        let report = run(&settings(&format!("http://{}{path}", nobody())), 100);
        assert_eq!((report.unsent, report.lost()), (100, 100));
        assert!(report.words.unwrap().contains("no connection"));
    }
}

#[test]
fn a_collector_that_never_answers_keeps_no_run_from_ending() {
    for (_collector, url) in collectors(&[Do::Ignore]) {
        let report = run(&TraceSettings { patience: Duration::from_millis(200), ..settings(&url) }, 10);
        assert_eq!((report.late, report.lost()), (10, 10));
    }
}

#[test]
fn a_collector_that_refuses_one_request_gets_the_next() {
    let grpc = Collector::grpc(&[Do::Refuse(3, "not this one", None)]);
    let http = Collector::http(&[Do::Refuse(400, "not this one", None)]);
    for url in [grpc.url(), format!("{}/v1/traces", http.url())] {
        let report = run(&TraceSettings { request: 5, ..settings(&url) }, 10);
        assert_eq!((report.unsent, report.delivered), (5, 5));
        assert!(report.words.unwrap().contains("not this one"));
    }
}

#[test]
fn what_finds_the_queue_full_is_counted_and_what_waits_is_sent() {
    // The first request is never answered, so the queue fills behind it.
    let collector = Collector::grpc(&[Do::Ignore]);
    let settings = TraceSettings {
        queue: 20,
        request: 10,
        patience: Duration::from_millis(200),
        ..settings(&collector.url())
    };
    let traces = Traces::start(&settings).unwrap();
    let sink = traces.sink();
    (0..10).for_each(|n| sink.end(span(n)));
    // Now it is in flight.
    while collector.got().is_empty() {
        std::thread::yield_now();
    }
    (10..50).for_each(|n| sink.end(span(n)));
    let report = traces.shutdown();
    assert_eq!((report.ended, report.overflowed, report.late), (50, 20, 30));
    assert_eq!(report.lost(), 50);
}

#[test]
fn a_span_that_is_alone_is_sent_while_the_run_goes_on() {
    let collector = Collector::grpc(&[]);
    let traces =
        Traces::start(&TraceSettings { delay: Duration::from_millis(1), ..settings(&collector.url()) })
            .unwrap();
    traces.sink().end(span(0));
    while collector.got().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(traces.shutdown().delivered, 1);
}

#[test]
fn requests_are_closed_before_they_are_too_large_for_a_collector() {
    let collector = Collector::grpc(&[]);
    let large = SpanData {
        attributes: vec![KeyValue::new("orchestra.worker.last_words", "x".repeat(600_000))],
        ..span(0)
    };
    let traces = Traces::start(&settings(&collector.url())).unwrap();
    (0..10).for_each(|_| traces.sink().end(large.clone()));
    assert_eq!(traces.shutdown().delivered, 10);
    assert_eq!(collector.got().len(), 3, "of four, four and two spans");
}

#[test]
fn what_ends_after_the_end_is_counted_as_late_and_not_kept() {
    let collector = Collector::http(&[]);
    let traces = Traces::start(&settings(&format!("{}/v1/traces", collector.url()))).unwrap();
    let sink = traces.sink();
    assert_eq!(traces.shutdown(), SpanReport::default());
    sink.end(span(0));
    assert_eq!(sink.0.close().late, 1);
}

#[tokio::test]
async fn the_end_may_be_awaited_inside_a_runtime_of_one_thread() {
    let collector = Collector::grpc(&[]);
    assert_eq!(run(&settings(&collector.url()), 1).delivered, 1);
    assert_eq!(collector.spans().len(), 1);
}
