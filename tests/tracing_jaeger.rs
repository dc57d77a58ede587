//! The real command sends its traces to a real Jaeger, and Jaeger's own query API gives back what happened: one trace of the run with its
//! batches and what the worker processes did, and traces of items that are linked with them. Where no Jaeger has been built it says so and looks
//! at nothing; `tracing_otlp.rs` looks at the same spans without one.

use crate::common::{Workplace, until};
use crate::jaeger::Jaeger;
use crate::spans::{Trace, check_items, check_run};
use crate::traced::{IMAGES, batches, complete, digits, run_id};

/// The only trace of a run, once Jaeger can find it with so many batches: it stores what it has taken a little later.
fn run_trace(jaeger: &Jaeger, service: &str, run: &str, batches: u64) -> Trace {
    let mut ids = Vec::new();
    until("Jaeger knows the run", || {
        ids = jaeger.find(service, "workflow.run", ("orchestra.run.id", run));
        !ids.is_empty()
    });
    assert_eq!(ids.len(), 1, "a run has one trace");
    let mut trace = jaeger.trace(&ids[0]);
    until("Jaeger has the batches of the run", || {
        trace = jaeger.trace(&ids[0]);
        trace.named("batch").len() as u64 >= batches
    });
    trace
}

/// The traces of these items, once each is whole.
fn item_traces(jaeger: &Jaeger, ids: &[String]) -> Vec<Trace> {
    let of_item = |id: &String| {
        let mut trace = jaeger.trace(id);
        until("Jaeger has all steps of the item", || {
            trace = jaeger.trace(id);
            trace.is_whole_item()
        });
        trace
    };
    ids.iter().map(of_item).collect()
}

#[test]
fn a_run_is_one_trace_and_its_items_are_linked_with_its_batches() {
    let Some(jaeger) = Jaeger::start() else { return };
    let place = Workplace::new();
    let ended = digits(&place, &["--otlp", &jaeger.http(), "--set", "telemetry.sample=1"], &[]);
    ended.must_exit(0);
    complete(&ended);
    let run = run_id(&place);
    let trace = run_trace(&jaeger, "orchestra", &run, batches(&place));

    check_run(&trace, &run, batches(&place), IMAGES);
    let mut items = Vec::new();
    until("Jaeger has a trace of every item", || {
        items = jaeger.find("orchestra", "item", ("orchestra.run.id", &run));
        items.len() as u64 >= IMAGES
    });
    assert_eq!(items.len() as u64, IMAGES, "every item is sampled");
    check_items(&trace, &item_traces(&jaeger, &items));
    place.nothing_is_left();
}

#[test]
fn a_share_of_the_items_is_traced_under_the_name_that_the_variables_give() {
    let Some(jaeger) = Jaeger::start() else { return };
    let place = Workplace::new();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", jaeger.http()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf".to_owned()),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip".to_owned()),
        ("OTEL_SERVICE_NAME", "labels".to_owned()),
    ];
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let ended = digits(&place, &["--set", "telemetry.sample=0.2"], &variables);
    ended.must_exit(0);
    complete(&ended);
    let run = run_id(&place);
    let trace = run_trace(&jaeger, "labels", &run, batches(&place));
    assert_eq!(trace.named("batch").len() as u64, batches(&place), "batches are there whatever the share");
    let mut items = Vec::new();
    until("Jaeger has a trace of an item", || {
        items = jaeger.find("labels", "item", ("orchestra.run.id", &run));
        !items.is_empty()
    });
    assert!((1..IMAGES / 2).contains(&(items.len() as u64)), "{} of {IMAGES} items", items.len());
    check_items(&trace, &item_traces(&jaeger, &items));
}
