//! The exporter's life: a thread that hands requests of spans to OpenTelemetry's exporter, one after the other, and an end that waits no
//! longer than it was told. It makes no spans and keeps none back.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::Instant;

use super::queue::Queue;
use super::{SpanReport, TraceSettings};
use crate::TelemetryError;
use crate::background::{Background, step_back};
use crate::otlp::OtlpSettings;
use crate::otlp::client::{Client, Outcome};

/// The longest pause before a request is sent again, unless the collector asks for another.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// A running exporter. Dropping it ends it without what is left.
#[derive(Debug)]
pub(crate) struct Traces {
    queue: Arc<Queue>,
    thread: Background,
}

impl Traces {
    /// Starts the thread. It connects when the first spans are due, not before.
    pub(crate) fn start(settings: &TraceSettings) -> Result<Self, TelemetryError> {
        let queue = Arc::new(Queue::new(settings.queue, settings.request));
        let thread = Background::start("orchestra-traces", |stopping| {
            let sender = Sender::new(settings, &queue, stopping)?;
            Ok(move || {
                step_back();
                sender.run()
            })
        })?;
        Ok(Self { queue, thread })
    }

    /// Where spans go when they end.
    pub(crate) fn sink(&self) -> Arc<Queue> {
        Arc::clone(&self.queue)
    }

    /// Sends what is left, but waits no longer than `patience`, and says what was lost.
    pub(crate) fn shutdown(self, patience: Duration) -> SpanReport {
        self.thread.stop();
        self.thread.wait(patience);
        self.queue.close()
    }
}

struct Sender {
    queue: Arc<Queue>,
    exporter: SpanExporter,
    client: Arc<Client>,
    delay: Duration,
    endpoint: String,
    stopping: watch::Receiver<bool>,
}

impl Sender {
    fn new(
        settings: &TraceSettings,
        queue: &Arc<Queue>,
        stopping: watch::Receiver<bool>,
    ) -> Result<Self, TelemetryError> {
        let client = Arc::new(Client::new(settings.otlp.timeout));
        let mut exporter = exporter(&settings.otlp, &client)?;
        exporter.set_resource(&resource(settings));
        let (queue, endpoint) = (Arc::clone(queue), settings.otlp.endpoint.clone());
        Ok(Self { queue, exporter, client, delay: settings.delay, endpoint, stopping })
    }

    async fn run(mut self) {
        while let Some(spans) = self.next().await {
            let n = spans.len() as u64;
            self.client.begin();
            let sent = tokio::select! {
                sent = self.exporter.export(spans) => sent.map_err(|error| error.to_string()),
                () = hopeless(&mut self.stopping, &self.client) => Err(String::new()),
            };
            let outcome = self.client.outcome();
            let is_silent = sent.as_ref().is_err_and(|error| match outcome {
                Outcome::Answered(..) => false,
                // Over gRPC only the exporter's words tell.
                Outcome::Open => error.is_empty() || error.contains("Unavailable"),
                Outcome::Unreachable(_) | Outcome::Lost(_) | Outcome::TimedOut(_) => true,
            });
            self.note(n, sent, &outcome);
            if is_silent && *self.stopping.borrow() {
                // The rest would fail in the same way and delay the end of the run.
                self.queue.sent(self.queue.drain(), None, None);
            }
        }
    }

    /// The next request: a full one, or what there is once it has waited for a while. `None` at the end.
    async fn next(&mut self) -> Option<Vec<SpanData>> {
        loop {
            let due = Instant::now() + self.delay;
            while !self.queue.has_request() && !*self.stopping.borrow() {
                tokio::select! {
                    () = self.queue.wake.notified() => {}
                    _ = self.stopping.wait_for(|stop| *stop) => {}
                    () = tokio::time::sleep_until(due) => break,
                }
            }
            // Before the queue is looked at: what ends after the stop is late.
            let is_stopping = *self.stopping.borrow();
            let spans = self.queue.take();
            if spans.is_some() || is_stopping {
                return spans;
            }
        }
    }

    /// Counts what became of a request.
    fn note(&self, spans: u64, sent: Result<(), String>, outcome: &Outcome) {
        let endpoint = &self.endpoint;
        if let Err(error) = sent {
            let error = outcome.problem().unwrap_or(error);
            if self.queue.sent(spans, None, Some(error.clone())) {
                tracing::warn!(%endpoint, %error, "traces cannot be delivered, the run goes on without them");
            }
            return;
        }
        let (rejected, words) = rejected(outcome);
        if self.queue.sent(spans, Some(rejected), words.clone()) {
            let words = words.unwrap_or_default();
            tracing::warn!(%endpoint, rejected, %words, "the trace collector rejects spans");
        }
    }
}

/// Ends when nothing more will come and the collector cannot be reached: to try again would only delay the end.
async fn hopeless(stopping: &mut watch::Receiver<bool>, client: &Client) {
    // An error: the sender is gone, and nothing more will come.
    let _ = stopping.wait_for(|stop| *stop).await;
    client.unreachable().await;
}

/// OpenTelemetry's exporter. It sends a request again for as long as its time allows where the specification says so.
fn exporter(otlp: &OtlpSettings, client: &Arc<Client>) -> Result<SpanExporter, TelemetryError> {
    let retries = RetryPolicy::recommended().with_max_retries(usize::MAX).with_max_delay(LONGEST_PAUSE);
    #[cfg(feature = "grpc")]
    if otlp.protocol == crate::otlp::Protocol::Grpc {
        return crate::otlp::grpc::spans(otlp, retries);
    }
    let built = SpanExporter::builder()
        .with_http()
        .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
        .with_endpoint(&otlp.endpoint)
        .with_timeout(otlp.timeout)
        .with_headers(otlp.headers.iter().cloned().collect())
        .with_retry_policy(retries)
        .with_shared_http_client(Arc::clone(client) as Arc<_>)
        .build();
    built.map_err(|error| otlp.refused(&error.to_string()))
}

/// How many spans of a request the collector did not take, and what it says.
fn rejected(outcome: &Outcome) -> (u64, Option<String>) {
    let Outcome::Answered(_, body) = outcome else { return (0, None) };
    // What cannot be read is not a rejection: the status of the answer said that it was taken.
    let answer = ExportTraceServiceResponse::decode(&body[..]).unwrap_or_default();
    let partial = answer.partial_success.unwrap_or_default();
    let words = Some(partial.error_message).filter(|words| !words.is_empty());
    (u64::try_from(partial.rejected_spans).unwrap_or(0), words)
}

fn resource(settings: &TraceSettings) -> Resource {
    let attribute = |(key, value): &(String, String)| KeyValue::new(key.clone(), value.clone());
    Resource::builder_empty()
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_attributes(settings.resource.iter().map(attribute))
        .with_service_name(settings.service_name.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
