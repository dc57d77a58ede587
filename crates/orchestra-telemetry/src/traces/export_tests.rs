use std::time::{Duration, SystemTime};

use opentelemetry::Value as Attribute;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use opentelemetry_proto::tonic::common::v1::any_value::Value;

use super::super::queue::{Importance, Writer};
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

/// Ends a span with this attribute, which has a number.
fn end(writer: &mut Writer, n: u64, importance: Importance, attribute: &Attribute) {
    let id = SpanId::from_bytes((n + 1).to_be_bytes());
    let trace = TraceId::from_bytes([7; 16]);
    let context = SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::default());
    let mut span = writer.span();
    span.begin(&context, None, "batch", SystemTime::UNIX_EPOCH.into());
    span.attribute("orchestra.batch.id", attribute);
    span.end((SystemTime::UNIX_EPOCH + Duration::from_millis(5)).into());
    writer.end(span, importance);
}

/// Ends spans with these numbers.
fn end_all(sink: &SpanSink, spans: std::ops::Range<u64>, importance: Importance) {
    let mut writer = sink.writer();
    spans.for_each(|n| end(&mut writer, n, importance, &Attribute::from(n as i64)));
}

/// Starts, ends so many spans, and shuts down.
fn run(settings: &TraceSettings, spans: u64) -> SpanReport {
    let traces = Traces::start(settings).unwrap();
    end_all(&traces.sink(), 0..spans, Importance::Plain);
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
        let nobody = nobody();
        let report = run(&settings(&format!("{}{path}", nobody.url())), 100);
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
fn what_finds_the_queue_full_is_counted_and_gives_way_to_what_is_rare() {
    // No request is answered, so the queue fills behind those that are in flight.
    let collector = Collector::grpc(&vec![Do::Ignore; 10]);
    let settings = TraceSettings {
        queue: 20,
        request: 10,
        patience: Duration::from_millis(200),
        ..settings(&collector.url())
    };
    let traces = Traces::start(&settings).unwrap();
    let sink = traces.sink();
    for n in 0..LANES as u64 {
        end_all(&sink, n * 10..n * 10 + 10, Importance::Plain);
        while collector.got().len() <= n as usize {
            std::thread::yield_now();
        }
    }
    let waiting = || sink.0.report();
    end_all(&sink, 40..70, Importance::Plain);
    assert_eq!(waiting().overflowed, 10, "there was room for twenty");
    end_all(&sink, 70..75, Importance::Rare);
    assert_eq!(waiting().overflowed, 20, "the oldest ten that are plain give way");
    end_all(&sink, 75..95, Importance::Rare);
    assert_eq!(waiting().overflowed, 40, "what is rare gives way to nothing");
    let report = traces.shutdown();
    assert_eq!((report.ended, report.overflowed, report.late), (95, 40, 55));
    assert_eq!(report.lost(), 95);
}

#[test]
fn several_requests_are_under_way_at_once() {
    let collector = Collector::http(&[Do::Ignore, Do::Ignore]);
    let url = format!("{}/v1/traces", collector.url());
    let traces = Traces::start(&TraceSettings { request: 10, ..settings(&url) }).unwrap();
    end_all(&traces.sink(), 0..40, Importance::Plain);
    while collector.got().len() < 4 {
        std::thread::yield_now();
    }
    drop(collector); // Or the end would wait for the two that it never answers.
    let report = traces.shutdown();
    assert_eq!((report.ended, report.delivered), (40, 20), "{report:?}");
}

#[test]
fn a_span_that_is_alone_is_sent_while_the_run_goes_on() {
    let collector = Collector::grpc(&[]);
    let traces =
        Traces::start(&TraceSettings { delay: Duration::from_millis(1), ..settings(&collector.url()) })
            .unwrap();
    end_all(&traces.sink(), 0..1, Importance::Plain);
    while collector.got().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(traces.shutdown().delivered, 1);
}

#[test]
fn requests_are_closed_before_they_are_too_large_for_a_collector() {
    let collector = Collector::grpc(&[]);
    let large = Attribute::from("x".repeat(600_000));
    let traces = Traces::start(&settings(&collector.url())).unwrap();
    let mut writer = traces.sink().writer();
    (0..10).for_each(|n| end(&mut writer, n, Importance::Rare, &large));
    drop(writer);
    assert_eq!(traces.shutdown().delivered, 10);
    assert_eq!(collector.got().len(), 4, "of three, three, three and one span");
}

#[test]
fn what_ends_after_the_end_is_counted_as_late_and_not_kept() {
    let collector = Collector::http(&[]);
    let traces = Traces::start(&settings(&format!("{}/v1/traces", collector.url()))).unwrap();
    let sink = traces.sink();
    assert_eq!(traces.shutdown(), SpanReport::default());
    end_all(&sink, 0..1, Importance::Plain);
    assert_eq!(sink.0.close().late, 1);
}

#[tokio::test]
async fn the_end_may_be_awaited_inside_a_runtime_of_one_thread() {
    let collector = Collector::grpc(&[]);
    assert_eq!(run(&settings(&collector.url()), 1).delivered, 1);
    assert_eq!(collector.spans().len(), 1);
}
