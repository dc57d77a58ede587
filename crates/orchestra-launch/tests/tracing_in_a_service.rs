//! A service that has its own subscriber, propagator and exporter keeps all three, and sees a run in them: the context that came with a
//! request is the parent of the item that came with it, and the run is below the span that started it. One test, because a process has one
//! of the first two.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "it/common/mod.rs"]
mod common;

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Workplace, bounded};
use opentelemetry::global;
use opentelemetry::trace::{
    Span as _, SpanId, TraceContextExt as _, TraceId, Tracer as _, TracerProvider as _,
};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracerProvider, SimpleSpanProcessor, SpanData, SpanExporter};
use orchestra_launch::StartOptions;
use orchestra_telemetry::traces::context;
use orchestra_telemetry::{Recorder, TraceContext};
use orchestra_testkit::models;
use tracing_subscriber::layer::{Context as Layered, Layer, SubscriberExt as _};

const ITEMS: u64 = 12;
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the service sends its spans.
#[derive(Debug, Clone, Default)]
struct Exporter(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Exporter {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(spans);
        Ok(())
    }
}

/// The subscriber of the service: it notes who says something.
#[derive(Clone, Default)]
struct Targets(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> Layer<S> for Targets {
    fn on_event(&self, event: &tracing::Event<'_>, _: Layered<'_, S>) {
        self.0.lock().unwrap().push(event.metadata().target().to_owned());
    }
}

/// The parent that came with the headers of a request, as the service's own propagator reads them.
fn incoming(flags: &str) -> TraceContext {
    let headers = HashMap::from([("traceparent".to_owned(), format!("00-{TRACE}-{SPAN}-{flags}"))]);
    let request = global::get_text_map_propagator(|propagator| propagator.extract(&headers));
    context::of_span(request.span().span_context()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_sees_a_run_in_its_own_traces_and_logs_below_its_requests() {
    let exported = Exporter::default();
    global::set_text_map_propagator(TraceContextPropagator::new());
    let targets = Targets::default();
    let subscriber = tracing_subscriber::registry().with(targets.clone());
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let model = ("affine", "workers = 1");
    let place = Workplace::reading(ITEMS, model, 4, |folder| models::affine(folder, &[1, 32, 32]));
    fs::write(place.path("images/broken.png"), b"no picture").unwrap();
    let names: Vec<String> = fs::read_dir(place.path("images"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "broken.png")
        .collect();
    // One item came with a request that is traced, one with a request that is not, and at one the service's own code falls over.
    let [traced, untraced, panics] = [0, 1, 2].map(|n| names[n].clone());
    let (parent, not_sampled) = (incoming("01"), incoming("00"));
    let parents = move |source: &str, item: &str| {
        assert_eq!(source, "scans");
        let is = |name: &str| item.ends_with(name);
        assert!(!is(&panics), "a bug of the service, as asked");
        if is(&traced) || is("broken.png") { Some(parent) } else { is(&untraced).then_some(not_sampled) }
    };
    let start = SdkTracerProvider::builder().build().tracer("service").start("start a run");
    let start = start.span_context().clone();
    let recorder = Recorder::for_host(SimpleSpanProcessor::new(exported.clone()), Some(Duration::ZERO))
        .unwrap()
        .with_run_parent(context::of_span(&start).unwrap())
        .with_item_parents(Arc::new(parents));
    let options = StartOptions { trace: Some(recorder.tracer()), ..place.options() };
    let run = place.start_with(options).await;
    Workplace::must_end_with(&bounded("the run ends", run.wait()).await, 65);
    assert_eq!(recorder.finish(PATIENCE), 0);

    let spans = exported.0.lock().unwrap();
    let named = |name: &str| spans.iter().filter(|s| s.name == name).collect::<Vec<_>>();
    let of_item = |end: &str| {
        let is_it = |s: &&&SpanData| {
            s.attributes.iter().any(|a| a.key.as_str() == "orchestra.item" && a.value.as_str().ends_with(end))
        };
        named("item").iter().find(is_it).copied().cloned()
    };
    let runs = named("workflow.run");
    assert_eq!(runs.len(), 1);
    let request = (TraceId::from_hex(TRACE).unwrap(), SpanId::from_hex(SPAN).unwrap());
    let run = &runs[0].span_context;
    let started = (start.trace_id(), start.span_id());
    assert_eq!((run.trace_id(), runs[0].parent_span_id), started, "below what started it");
    for end in names.iter().map(String::as_str).chain(["broken.png"]).filter(|end| *end != names[1]) {
        let item = of_item(end).unwrap();
        let below = spans.iter().filter(|s| s.parent_span_id == item.span_context.span_id());
        assert!(below.clone().count() >= 3, "with what it went through");
        assert!(below.into_iter().all(|s| s.span_context.trace_id() == item.span_context.trace_id()));
    }
    for end in [names[0].as_str(), "broken.png"] {
        let item = of_item(end).unwrap();
        assert_eq!((item.span_context.trace_id(), item.parent_span_id), request, "below its request");
    }
    assert!(of_item(&names[1]).is_none(), "the request that it belongs to is not traced");
    for name in &names[2..] {
        let item = of_item(name).unwrap();
        assert_ne!(item.span_context.trace_id(), request.0);
        assert_eq!(item.parent_span_id, SpanId::INVALID, "it came with no request, or with an unknown one");
    }
    let batches = named("batch");
    assert!(!batches.is_empty());
    assert!(batches.iter().all(|b| b.parent_span_id == runs[0].span_context.span_id()), "below the run");
    let linked = of_item(&names[0]).unwrap().links.links.into_iter();
    let linked: Vec<SpanId> = linked.map(|link| link.span_context.span_id()).collect();
    assert!(batches.iter().any(|b| linked.contains(&b.span_context.span_id())), "linked with its batch");
    let said = targets.0.lock().unwrap();
    assert!(said.iter().any(|target| target.starts_with("orchestra")), "{said:?}");
}
