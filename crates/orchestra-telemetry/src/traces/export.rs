//! The exporter's life: a thread that hands requests of spans to OpenTelemetry's exporter, several at once where the collector is far, and
//! an end that waits no longer than it was told. It makes no spans and keeps none back.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use opentelemetry::KeyValue;
#[cfg(feature = "grpc")]
use opentelemetry_otlp::WithTonicConfig as _;
use opentelemetry_otlp::{RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::Instant;

use super::queue::{Queue, SpanSink};
use super::{SpanReport, TraceSettings};
use crate::TelemetryError;
use crate::otlp::client::{Client, Outcome};
use crate::otlp::{OtlpSettings, Protocol};
use crate::priority::step_back;

/// Requests under way at once, at most: a far collector answers late, and meanwhile the next ones can go.
const LANES: usize = 4;
/// The longest pause before a request is sent again, unless the collector asks for another.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// A running exporter. Dropping it is a shutdown.
#[derive(Debug)]
pub(crate) struct Traces {
    queue: Arc<Queue>,
    /// Turns true when nothing more will come.
    stop: watch::Sender<bool>,
    /// Turns true when nobody waits any more.
    give_up: watch::Sender<bool>,
    /// Ends with the thread.
    done: Receiver<()>,
    patience: Duration,
}

impl Traces {
    /// Starts the thread. It connects when the first spans are due, not before.
    pub(crate) fn start(settings: &TraceSettings) -> Result<Self, TelemetryError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(TelemetryError::Thread)?;
        let queue = Arc::new(Queue::new(settings.queue, settings.request));
        let (stop, stopping) = watch::channel(false);
        let (give_up, mut given_up) = watch::channel(false);
        let (alive, done) = channel();
        let inside = runtime.enter();
        let lane = |takes| Lane::new(settings, &queue, takes, stopping.clone());
        let lanes: [_; LANES] =
            [lane(Takes::All)?, lane(Takes::Full)?, lane(Takes::Full)?, lane(Takes::Full)?];
        drop(inside);
        thread::Builder::new()
            .name("orchestra-traces".to_owned())
            .spawn(move || {
                step_back();
                runtime.block_on(async {
                    let [a, b, c, d] = lanes.map(Lane::run);
                    tokio::select! {
                        _ = async { tokio::join!(a, b, c, d) } => {}
                        // An error means that the other end is gone, and with it whoever waits.
                        _ = given_up.wait_for(|given_up| *given_up) => {}
                    }
                });
                // A name that is still being looked up must not hold the end.
                runtime.shutdown_background();
                drop::<std::sync::mpsc::Sender<()>>(alive);
            })
            .map_err(TelemetryError::Thread)?;
        Ok(Self { queue, stop, give_up, done, patience: settings.patience })
    }

    /// Where spans go when they end.
    pub(crate) fn sink(&self) -> SpanSink {
        SpanSink(Arc::clone(&self.queue))
    }

    /// What became of the spans so far, for whoever looks while the run goes on.
    pub(crate) fn watch(&self) -> impl Fn() -> SpanReport + Send + Sync + use<> {
        let queue = Arc::clone(&self.queue);
        move || queue.report()
    }

    /// Sends what is left, within the time allowed, and says what was lost.
    pub(crate) fn shutdown(self) -> SpanReport {
        self.stop()
    }

    fn stop(&self) -> SpanReport {
        if *self.give_up.borrow() {
            return self.queue.close();
        }
        self.stop.send_replace(true);
        // Nothing is ever sent on it: either time runs out, or the thread has ended.
        let _ = self.done.recv_timeout(self.patience);
        self.give_up.send_replace(true);
        self.queue.close()
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sends one request after the other. Each lane has an exporter and a client of its own, so that the outcome of its last request is known.
struct Lane {
    queue: Arc<Queue>,
    exporter: SpanExporter,
    client: Arc<Client>,
    takes: Takes,
    delay: Duration,
    endpoint: String,
    stopping: watch::Receiver<bool>,
}

/// Which requests a lane takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// All of them: those that are full, those that have waited, and the last.
    All,
    /// Full ones only: those that wait while the others are at work.
    Full,
}

impl Lane {
    fn new(
        settings: &TraceSettings,
        queue: &Arc<Queue>,
        takes: Takes,
        stopping: watch::Receiver<bool>,
    ) -> Result<Self, TelemetryError> {
        let client = Arc::new(Client::new(settings.otlp.timeout));
        let mut exporter = exporter(&settings.otlp, &client)?;
        exporter.set_resource(&resource(settings));
        let (queue, endpoint) = (Arc::clone(queue), settings.otlp.endpoint.clone());
        Ok(Self { queue, exporter, client, takes, delay: settings.delay, endpoint, stopping })
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
                // It would only be the same with the rest, at the cost of the time of whoever waits.
                while let Some(rest) = self.queue.any() {
                    self.queue.unsent(rest.len() as u64, None);
                }
            }
        }
    }

    /// The next request: a full one, or what there is once it has waited for a while. `None` at the end.
    async fn next(&mut self) -> Option<Vec<SpanData>> {
        let mut due = Instant::now() + self.delay;
        loop {
            if let Some(full) = self.queue.full() {
                return Some(full);
            }
            if *self.stopping.borrow() {
                return (self.takes == Takes::All).then(|| self.queue.any()).flatten();
            }
            tokio::select! {
                () = self.queue.wake.notified() => {}
                _ = self.stopping.wait_for(|stop| *stop) => {}
                () = tokio::time::sleep_until(due), if self.takes == Takes::All => match self.queue.any() {
                    Some(some) => return Some(some),
                    None => due = Instant::now() + self.delay,
                },
            }
        }
    }

    /// Counts what became of a request.
    fn note(&self, spans: u64, sent: Result<(), String>, outcome: &Outcome) {
        let endpoint = &self.endpoint;
        if let Err(error) = sent {
            let error = outcome.problem().unwrap_or(error);
            if self.queue.unsent(spans, Some(error.clone())) {
                tracing::warn!(%endpoint, %error, "traces cannot be delivered, the run goes on without them");
            }
            return;
        }
        let (rejected, words) = rejected(outcome);
        if self.queue.taken(spans, rejected, words.clone()) {
            let words = words.unwrap_or_default();
            tracing::warn!(%endpoint, rejected, %words, "the trace collector rejects spans");
        }
    }
}

/// Ends when nothing more will come and the collector cannot be reached: to try again would only keep those who wait.
async fn hopeless(stopping: &mut watch::Receiver<bool>, client: &Client) {
    // An error: whoever could stop it is gone, and nothing more will come.
    let _ = stopping.wait_for(|stop| *stop).await;
    client.unreachable().await;
}

/// OpenTelemetry's exporter. It sends a request again for as long as its time allows where the specification says so.
fn exporter(otlp: &OtlpSettings, client: &Arc<Client>) -> Result<SpanExporter, TelemetryError> {
    let retries = RetryPolicy::recommended().with_max_retries(usize::MAX).with_max_delay(LONGEST_PAUSE);
    let built = match otlp.protocol {
        Protocol::HttpProtobuf => SpanExporter::builder()
            .with_http()
            .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
            .with_endpoint(&otlp.endpoint)
            .with_timeout(otlp.timeout)
            .with_headers(otlp.headers.iter().cloned().collect())
            .with_retry_policy(retries)
            .with_shared_http_client(Arc::clone(client) as Arc<_>)
            .build(),
        #[cfg(feature = "grpc")]
        Protocol::Grpc => SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&otlp.endpoint)
            .with_timeout(otlp.timeout)
            .with_retry_policy(retries)
            .build(),
        #[cfg(not(feature = "grpc"))]
        Protocol::Grpc => return Err(otlp.refused("this build has no gRPC")),
    };
    built.map_err(|error| otlp.refused(&error.to_string()))
}

/// How many spans of a request the collector did not take, and what it says.
fn rejected(outcome: &Outcome) -> (u64, Option<String>) {
    let Outcome::Answered(_, body) = outcome else { return (0, None) };
    // What cannot be read is not a rejection: the status of the answer said that it was taken.
    let partial =
        ExportTraceServiceResponse::decode(&body[..]).ok().and_then(|answer| answer.partial_success);
    partial.map_or((0, None), |partial| {
        let words = Some(partial.error_message).filter(|words| !words.is_empty());
        (u64::try_from(partial.rejected_spans).unwrap_or(0), words)
    })
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
