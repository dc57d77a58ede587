//! Our own export of spans: OpenTelemetry's batch processor over its OTLP exporter, and a count of what became of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use opentelemetry::{Key, KeyValue, Value};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter as _, SpanProcessor as _,
};
use tokio::runtime::Runtime;

use super::client::CollectorClient;
use super::counts::{SpanCounts, SpanReport};
use super::settings::TraceSettings;
use super::span::Sink;
use super::step_back;
use crate::TelemetryError;
use crate::names::SERVICE;

/// A running export. Dropping it ends it without what is left.
#[derive(Debug)]
pub(crate) struct SpanExport {
    processor: Arc<BatchSpanProcessor>,
    counts: Arc<SpanCounts>,
    stopping: Arc<AtomicBool>,
}

impl SpanExport {
    /// Starts the threads. It connects when the first spans are due, not before.
    pub(crate) fn start(settings: &TraceSettings) -> Result<Self, TelemetryError> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(1).thread_name("orchestra-traces").on_thread_start(step_back).enable_all();
        let runtime = runtime.build().map_err(TelemetryError::Thread)?;
        let client = Arc::new(CollectorClient::new(settings.timeout));
        let inside = runtime.enter();
        let mut exporter = exporter(settings, &client)?;
        drop(inside);
        exporter.set_resource(&resource());
        let counts = Arc::new(SpanCounts::new(settings.queue));
        let stopping = Arc::new(AtomicBool::new(false));
        let counting = CountingExporter {
            exporter: Arc::new(exporter),
            client,
            runtime,
            counts: Arc::clone(&counts),
            stopping: Arc::clone(&stopping),
            has_given_up: AtomicBool::new(false),
            endpoint: settings.endpoint.clone(),
            stepped_back: Once::new(),
        };
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(settings.queue)
            .with_max_export_batch_size(settings.request)
            .build();
        let processor = BatchSpanProcessor::builder(counting).with_batch_config(batches).build();
        Ok(Self { processor: Arc::new(processor), counts, stopping })
    }

    /// Where spans go when they end.
    pub(crate) fn sink(&self) -> Sink {
        Sink::counted(Arc::clone(&self.processor) as _, Arc::clone(&self.counts))
    }

    pub(crate) fn counts(&self) -> Arc<SpanCounts> {
        Arc::clone(&self.counts)
    }

    /// Sends what is left, but waits no longer than `patience`, and says what was lost.
    pub(crate) fn shutdown(self, patience: Duration) -> SpanReport {
        self.stopping.store(true, Ordering::Relaxed);
        // An error means that the time is over, and what was not sent is counted as late.
        drop(self.processor.shutdown_with_timeout(patience));
        self.counts.close()
    }
}

/// OpenTelemetry's exporter, in a runtime of its own, with a count of what became of each request.
#[derive(Debug)]
struct CountingExporter {
    exporter: Arc<SpanExporter>,
    client: Arc<CollectorClient>,
    runtime: Runtime,
    counts: Arc<SpanCounts>,
    /// Nothing more will come.
    stopping: Arc<AtomicBool>,
    has_given_up: AtomicBool,
    endpoint: String,
    stepped_back: Once,
}

impl opentelemetry_sdk::trace::SpanExporter for CountingExporter {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        self.stepped_back.call_once(step_back);
        let n = spans.len() as u64;
        if self.has_given_up.load(Ordering::Relaxed) {
            self.counts.not_sent(n, None);
            return Ok(());
        }
        let exporter = Arc::clone(&self.exporter);
        let sent = self.runtime.spawn(async move { exporter.export(spans).await }).await;
        let sent =
            sent.map_or_else(|gone| Err(gone.to_string()), |sent| sent.map_err(|error| error.to_string()));
        self.note(n, sent);
        Ok(())
    }
}

impl CountingExporter {
    /// Counts what became of a request.
    fn note(&self, spans: u64, sent: Result<(), String>) {
        let (answer, endpoint) = (self.client.last(), &self.endpoint);
        if let Err(error) = sent {
            // Over gRPC only the exporter's words tell.
            let is_silent = !answer.is_there && (answer.words.is_some() || error.contains("Unavailable"));
            if is_silent && self.stopping.load(Ordering::Relaxed) {
                // The rest would fail in the same way and delay the end of the run.
                self.has_given_up.store(true, Ordering::Relaxed);
            }
            let error = answer.words.unwrap_or(error);
            if self.counts.not_sent(spans, Some(error.clone())) {
                tracing::warn!(%endpoint, %error, "traces cannot be delivered, the run goes on without them");
            }
            return;
        }
        let words = answer.words.clone().unwrap_or_default();
        if self.counts.sent(spans, answer.rejected, answer.words) {
            let rejected = answer.rejected;
            tracing::warn!(%endpoint, rejected, %words, "the trace collector rejects spans");
        }
    }
}

/// OpenTelemetry's exporter, which reads headers and compression from its variables itself.
fn exporter(settings: &TraceSettings, client: &Arc<CollectorClient>) -> Result<SpanExporter, TelemetryError> {
    let built = match settings.protocol {
        #[cfg(feature = "grpc")]
        super::Protocol::Grpc => SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&settings.endpoint)
            .with_timeout(settings.timeout)
            .build(),
        _ => SpanExporter::builder()
            .with_http()
            .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
            .with_endpoint(&settings.endpoint)
            .with_timeout(settings.timeout)
            .with_shared_http_client(Arc::clone(client) as Arc<_>)
            .build(),
    };
    built.map_err(|error| settings.refused(&error.to_string()))
}

/// What the variables of OpenTelemetry say, and the name and version of this program.
fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let of_variables = Resource::builder().with_attribute(version.clone()).build();
    let name = of_variables.get(&Key::from("service.name"));
    match name.is_none_or(
        |name| matches!(&name, Value::String(name) if name.as_str().starts_with("unknown_service")),
    ) {
        true => Resource::builder().with_service_name(SERVICE).with_attribute(version).build(),
        false => of_variables,
    }
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
