//! The exporter's life: a thread that sends requests of spans, several at once where the collector is far, and an end that waits no longer
//! than it was told. It makes no spans and keeps none back.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::Instant;

use super::encode::{self, EncodedResource};
use super::queue::{Queue, SpanSink, Spans};
use super::{SpanReport, TraceSettings};
use crate::TelemetryError;
use crate::otlp::{Client, SendError, Signal};
use crate::priority::step_back;

/// Requests under way at once, at most: a far collector answers late, and meanwhile the next ones can go.
const LANES: usize = 4;

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
        let queue = Arc::new(Queue::new(settings.queue, settings.request, settings.limits));
        let (stop, stopping) = watch::channel(false);
        let (give_up, given_up) = watch::channel(false);
        let (alive, done) = channel();
        let exporter = Arc::new(Exporter {
            queue: Arc::clone(&queue),
            resource: EncodedResource::new(&resource(settings)),
            delay: settings.delay,
            endpoint: settings.otlp.endpoint.clone(),
        });
        let lane = |takes: Takes| -> Result<Lane, TelemetryError> {
            let client = Client::new(&settings.otlp, Signal::Traces)?;
            let (stopping, given_up) = (stopping.clone(), given_up.clone());
            Ok(Lane { exporter: Arc::clone(&exporter), client, takes, stopping, given_up })
        };
        let lanes: [_; LANES] =
            [lane(Takes::All)?, lane(Takes::Full)?, lane(Takes::Full)?, lane(Takes::Full)?];
        thread::Builder::new()
            .name("orchestra-traces".to_owned())
            .spawn(move || {
                step_back();
                let [a, b, c, d] = lanes.map(Lane::run);
                runtime.block_on(async { tokio::join!(a, b, c, d) });
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

/// What all that the thread does has in common.
struct Exporter {
    queue: Arc<Queue>,
    resource: EncodedResource,
    delay: Duration,
    endpoint: String,
}

/// Sends one request after the other, over a connection of its own, opened when it is needed.
struct Lane {
    exporter: Arc<Exporter>,
    client: Client,
    takes: Takes,
    stopping: watch::Receiver<bool>,
    given_up: watch::Receiver<bool>,
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
    async fn run(mut self) {
        while let Some(spans) = self.next().await {
            let n = spans.count as u64;
            let message = encode::request(&spans.bytes, &self.exporter.resource);
            drop(spans);
            let answer = tokio::select! {
                answer = self.client.send(message, &mut self.stopping) => answer,
                // An error means that the other end is gone, and with it whoever waits.
                _ = self.given_up.wait_for(|given_up| *given_up) => return,
            };
            let gone = answer.as_ref().is_err_and(SendError::is_silence);
            self.exporter.note(n, answer);
            if gone && *self.stopping.borrow() {
                // It would only be the same with the rest, at the cost of the time of whoever waits.
                while let Some(rest) = self.exporter.queue.any() {
                    self.exporter.queue.unsent(rest.count as u64, None);
                }
            }
        }
    }

    /// The next request: a full one, or what there is once it has waited for a while. `None` at the end.
    async fn next(&mut self) -> Option<Spans> {
        let (queue, delay) = (&self.exporter.queue, self.exporter.delay);
        let mut due = Instant::now() + delay;
        loop {
            if let Some(full) = queue.full() {
                return Some(full);
            }
            if *self.stopping.borrow() {
                return (self.takes == Takes::All).then(|| queue.any()).flatten();
            }
            tokio::select! {
                () = queue.wake.notified() => {}
                _ = self.stopping.wait_for(|stop| *stop) => {}
                () = tokio::time::sleep_until(due), if self.takes == Takes::All => match queue.any() {
                    Some(some) => return Some(some),
                    None => due = Instant::now() + delay,
                },
            }
        }
    }
}

impl Exporter {
    /// Counts what became of a request.
    fn note(&self, spans: u64, answer: Result<bytes::Bytes, SendError>) {
        match answer {
            Ok(answer) => {
                let (rejected, words) = rejected(&answer);
                if self.queue.taken(spans, rejected, words.clone()) {
                    let words = words.unwrap_or_default();
                    tracing::warn!(endpoint = %self.endpoint, rejected, %words, "the trace collector rejects spans");
                }
            }
            Err(error) => {
                if self.queue.unsent(spans, Some(error.to_string())) {
                    tracing::warn!(endpoint = %self.endpoint, %error, "traces cannot be delivered, the run goes on without them");
                }
            }
        }
    }
}

/// The answer of a collector: `ExportTraceServiceResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// How many spans of a request the collector did not take, and what it says.
fn rejected(answer: &[u8]) -> (u64, Option<String>) {
    // What cannot be read is not a rejection: the status of the answer said that it was taken.
    let partial = Answer::decode(answer).ok().and_then(|answer| answer.partial_success);
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
