//! The exporter's life: a thread that sends requests of spans, and an end that waits no longer than it was told. It makes no spans and
//! keeps none back.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use opentelemetry_sdk::trace::SpanData;
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::Instant;

use super::encode::{self, EncodedResource};
use super::queue::{Queue, SpanSink};
use super::{SpanReport, TraceSettings};
use crate::TelemetryError;
use crate::otlp::{Client, SendError, Signal};
use crate::priority::step_back;

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
        let client = Client::new(&settings.otlp, Signal::Traces)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(TelemetryError::Thread)?;
        let queue = Arc::new(Queue::new(settings.queue, settings.request));
        let (stop, stopping) = watch::channel(false);
        let (give_up, given_up) = watch::channel(false);
        let (alive, done) = channel();
        let mut exporter = Exporter {
            queue: Arc::clone(&queue),
            client,
            resource: EncodedResource::new(&resource(settings)),
            delay: settings.delay,
            stopping,
            given_up,
            endpoint: settings.otlp.endpoint.clone(),
        };
        thread::Builder::new()
            .name("orchestra-traces".to_owned())
            .spawn(move || {
                step_back();
                runtime.block_on(exporter.run());
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

/// What the thread works with.
struct Exporter {
    queue: Arc<Queue>,
    client: Client,
    resource: EncodedResource,
    delay: Duration,
    stopping: watch::Receiver<bool>,
    given_up: watch::Receiver<bool>,
    endpoint: String,
}

impl Exporter {
    async fn run(&mut self) {
        while let Some(spans) = self.next().await {
            let n = spans.len() as u64;
            let message = encode::request(&spans, &self.resource);
            drop(spans);
            let answer = tokio::select! {
                answer = self.client.send(message, &mut self.stopping) => answer,
                // An error means that the other end is gone, and with it whoever waits.
                _ = self.given_up.wait_for(|given_up| *given_up) => return,
            };
            let gone = answer.as_ref().is_err_and(SendError::is_silence);
            self.note(n, answer);
            if gone && *self.stopping.borrow() {
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
                return self.queue.any();
            }
            tokio::select! {
                () = self.queue.wake.notified() => {}
                _ = self.stopping.wait_for(|stop| *stop) => {}
                () = tokio::time::sleep_until(due) => match self.queue.any() {
                    Some(some) => return Some(some),
                    None => due = Instant::now() + self.delay,
                },
            }
        }
    }

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
