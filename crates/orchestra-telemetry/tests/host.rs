//! A host with a tracer provider of its own keeps it: spans go through it, with its sampler, its ids and its parents. One test, because a
//! process has one provider.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, global};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use orchestra_core::{ItemId, SourceId};
use orchestra_runtime::Tracer as _;
use orchestra_runtime::trace::{EndedItems, RunBegan, RunEnded, Ticket};
use orchestra_telemetry::traces::context;
use orchestra_telemetry::{ItemSampling, Recorder};

#[path = "../src/traces/tests/fake_plan.rs"]
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
        let (name, path) = (format!("{index}.png"), PathBuf::new());
        Ticket::alone(id, index, &name, &path)
    };
    let tickets = indices.map(|index| (ticket(index), None)).into();
    let mut items = EndedItems::each_of(tickets, Duration::from_millis(3));
    items.written(Duration::from_millis(4), &Ok(()));
    items
}

#[test]
fn spans_go_through_the_provider_of_the_host_below_its_requests() {
    let exported = Exporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exported.clone()).build();
    global::set_tracer_provider(provider.clone());
    // As the host's own instrumentation of an incoming request would do it.
    let tracer = provider.tracer("host");
    let request = Context::new().with_span(tracer.start("request"));
    let incoming = {
        let _active = request.clone().attach();
        context::current().unwrap()
    };
    let parents = move |_: &str, item: &str| (item == "1.png").then_some(incoming);
    let recorder = Recorder::for_host(ItemSampling { ratio: 1.0, ..ItemSampling::default() })
        .unwrap()
        .with_item_parents(Arc::new(parents));

    let plan = fake_plan::plan();
    let run = recorder.begin(RunBegan { plan, run_id: "run-1".to_owned(), zero: SystemTime::now() });
    assert_eq!(run.number_batch().context, None, "a host chooses its ids when it makes a span");
    run.items_ended(&[items([0, 1])]);
    let (at, problems) = (Duration::from_millis(9), Vec::new());
    run.ended(RunEnded { at, total: Some(2), resumed: 0, done: 2, failed: 0, exit_code: Some(0), problems });
    assert_eq!(recorder.finish(Duration::from_secs(60)), 0);

    let spans = exported.0.lock().unwrap();
    let named = |name: &str| spans.iter().filter(|s| s.name == name).collect::<Vec<_>>();
    let (runs, items) = (named("workflow.run"), named("item"));
    assert_eq!((runs.len(), items.len(), named("item.write").len()), (1, 2, 2));
    let request: SpanContext = request.span().span_context().clone();
    assert_ne!(items[0].span_context.trace_id(), request.trace_id());
    assert_eq!(items[1].span_context.trace_id(), request.trace_id());
    assert_eq!(items[1].parent_span_id, request.span_id());
    let link = &items[0].links.links[0].span_context;
    assert_eq!(link.span_id(), runs[0].span_context.span_id(), "linked by the ids that the host chose");
}
