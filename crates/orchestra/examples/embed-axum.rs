//! A service: a picture of a digit comes in by HTTP, goes through a graph, and its label goes out.
//!
//!     cargo run -p orchestra --example embed-axum -- 127.0.0.1:8080 256
//!     curl --data-binary @examples/digits/images/digit-0001.png http://127.0.0.1:8080/label
//!
//! The second argument bounds the requests without an answer; one more is refused. `/ready` and `/metrics` are for what watches it. A request that comes
//! with a `traceparent` is traced through the graph to the batches of workers that it was in; here spans go to standard error, elsewhere to the exporter of
//! the service. SIGTERM ends it once all requests are answered.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SimpleSpanProcessor, SpanData, SpanExporter};
use orchestra::telemetry::{Recorder, TraceContext};
use orchestra::{Flow, Item, Orchestra, RequestError, Workflow};
use tokio::signal::unix::{SignalKind, signal};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models");
const WORKFLOW: &str = r#"
version = 1
[sources.picture]
kind = "request"
[models.digits]
path = "digits.onnx"
labels = "digits.labels.txt"
[stages.pixels]
kind = "image"
from = "picture"
size = [32, 32]
color = "gray"
[stages.logits]
kind = "infer"
from = "pixels"
model = "digits"
[stages.label]
kind = "classify"
from = "logits"
[sinks.answer]
kind = "reply"
from = "label"
"#;
const WITHIN: Duration = Duration::from_secs(2);

async fn label(State(flow): State<Flow>, headers: HeaderMap, picture: Bytes) -> Result<String, Response> {
    // The name of an item is all that its trace is found by.
    let trace = headers.get("traceparent").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let records = flow.process(Item::bytes(picture).named(trace)).deadline(WITHIN).await.map_err(refusal)?;
    let label = records[0]
        .json()
        .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.error).into_response())?;
    Ok(label.to_string())
}

/// What a client is told: to send another picture, to come again later, or that this service is at fault.
fn refusal(error: RequestError) -> Response {
    let text = error.to_string();
    match error {
        _ if error.is_client_fault() => (StatusCode::UNPROCESSABLE_ENTITY, text).into_response(),
        _ if error.is_retryable() => {
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], text).into_response()
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, text).into_response(),
    }
}

async fn ready(State(flow): State<Flow>) -> StatusCode {
    match tokio::time::timeout(Duration::from_secs(1), flow.ready()).await {
        Ok(Ok(())) => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn metrics(State(flow): State<Flow>) -> String {
    let items = flow.status().items();
    format!(
        "# TYPE digits_requests_total counter\n\
         digits_requests_total{{end=\"done\"}} {}\ndigits_requests_total{{end=\"failed\"}} {}\n",
        items.done, items.failed
    )
}

/// The trace of a request, `00-<trace>-<span>-<flags>`.
fn context(traceparent: &str) -> Option<TraceContext> {
    let mut parts = traceparent.split('-').skip(1).map(|part| u128::from_str_radix(part, 16).ok());
    let mut next = || parts.next().flatten();
    let (trace, span, flags) = (next()?, u64::try_from(next()?).ok()?, u8::try_from(next()?).ok()?);
    Some(TraceContext { trace_id: trace.to_be_bytes(), span_id: span.to_be_bytes(), flags })
}

#[derive(Debug)]
struct ToStandardError;

impl SpanExporter for ToStandardError {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        for SpanData { name, span_context: context, parent_span_id: parent, links, .. } in spans {
            let linked: Vec<String> =
                links.iter().map(|link| link.span_context.span_id().to_string()).collect();
            let (trace, span, linked) = (context.trace_id(), context.span_id(), linked.join(" "));
            eprintln!("{trace}/{span} {name} below {parent}, linked with {linked}");
        }
        Ok(())
    }
}

async fn serve(address: String, queue: usize) -> Result<(), Box<dyn Error>> {
    let recorder = Recorder::for_host(SimpleSpanProcessor::new(ToStandardError), None)?
        .with_item_parents(Arc::new(|_, item| context(item)));
    let orchestra = Orchestra::builder().tracer(recorder.tracer()).build().await?;
    let flow =
        orchestra.flow(Workflow::parse(WORKFLOW, MODELS)?.devices(["cpu"])).queue(queue).start().await?;

    let routes = axum::Router::new()
        .route("/label", post(label))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .layer(DefaultBodyLimit::max(16 << 20))
        .with_state(flow.clone());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let mut terminated = signal(SignalKind::terminate())?;
    axum::serve(listener, routes)
        .with_graceful_shutdown(async move { terminated.recv().await.unwrap_or_default() })
        .await?;

    flow.drain().await;
    recorder.finish(Duration::from_secs(3));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    orchestra::run_if_worker(); // workers are copies of this program
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let queue = arguments.next().as_deref().unwrap_or("256").parse()?;
    tokio::runtime::Runtime::new()?.block_on(serve(address, queue))
}
