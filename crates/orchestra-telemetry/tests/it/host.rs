//! A host has OpenTelemetry of its own: spans go through its span processor, below its own spans.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, Tracer as _, TracerProvider as _};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SimpleSpanProcessor, SpanData, SpanExporter};
use orchestra_core::{ItemId, SourceId};
use orchestra_runtime::Tracer as _;
use orchestra_runtime::trace::{EndedItems, RunBegan, RunEnded, Ticket};
use orchestra_telemetry::traces::context;
use orchestra_telemetry::{ItemSampling, Recorder};

#[path = "../../src/traces/tests/fake_plan.rs"]
mod fake_plan;

#[derive(Debug, Clone, Default)]
struct Exporter(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Exporter {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(spans);
        Ok(())
    }
}

fn items(indices: [u64; 2]) -> EndedItems {
    let ticket = |index| {
        let id = ItemId { source: SourceId(0), index };
        Ticket::alone(id, index, &format!("{index}.png"), b"")
    };
    let tickets = indices.map(|index| (ticket(index), None)).into();
    let mut items = EndedItems::each_of(tickets, Duration::from_millis(3));
    items.written(Duration::from_millis(4), &Ok(()));
    items
}

#[test]
fn spans_go_through_the_processor_of_the_host_below_its_requests() {
    let exported = Exporter::default();
    // As the host's own instrumentation of an incoming request would do it.
    let tracer = SdkTracerProvider::builder().build().tracer("host");
    let request = tracer.start("request");
    let request: SpanContext = opentelemetry::trace::Span::span_context(&request).clone();
    let incoming = context::of_span(&request).unwrap();
    let parents = move |_: &str, item: &str| (item == "1.png").then_some(incoming);
    let sampling = ItemSampling { ratio: 1.0, ..ItemSampling::default() };
    let recorder = Recorder::for_host(SimpleSpanProcessor::new(exported.clone()), sampling)
        .unwrap()
        .with_run_parent(incoming)
        .with_item_parents(Arc::new(parents));

    let plan = fake_plan::plan();
    let run = recorder.begin(RunBegan { plan, run_id: "run-1".to_owned(), zero: SystemTime::now() });
    let batch = run.number_batch().context.unwrap();
    assert_eq!(batch.trace_id, request.trace_id().to_bytes(), "for the log, and for the worker");
    run.items_ended(&[items([0, 1])]);
    let (at, problems) = (Duration::from_millis(9), Vec::new());
    run.ended(RunEnded { at, total: Some(2), resumed: 0, done: 2, failed: 0, exit_code: Some(0), problems });
    assert_eq!(recorder.finish(Duration::from_secs(60)), 0);

    let spans = exported.0.lock().unwrap();
    let named = |name: &str| spans.iter().filter(|s| s.name == name).collect::<Vec<_>>();
    let (runs, items) = (named("workflow.run"), named("item"));
    assert_eq!((runs.len(), items.len(), named("item.write").len()), (1, 2, 2));
    assert_eq!(runs[0].span_context.trace_id(), request.trace_id());
    assert_eq!(runs[0].parent_span_id, request.span_id());
    assert_ne!(items[0].span_context.trace_id(), request.trace_id());
    assert_eq!(items[1].span_context.trace_id(), request.trace_id());
    assert_eq!(items[1].parent_span_id, request.span_id());
    let link = &items[0].links.links[0].span_context;
    assert_eq!(link.span_id(), runs[0].span_context.span_id(), "linked with the run");
}
