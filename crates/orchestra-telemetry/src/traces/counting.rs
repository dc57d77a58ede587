//! Counts spans on their way: in at the processor, out at the exporter. The difference is what was lost, wherever it was lost.
//! Changes no span.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_otlp::SpanExporter as OtlpExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use tokio::runtime::Runtime;

use super::SpanReport;

/// The two counters.
#[derive(Debug, Default)]
pub(super) struct Counts {
    ended: AtomicU64,
    delivered: AtomicU64,
    told: AtomicBool,
}

impl Counts {
    pub(super) fn report(&self) -> SpanReport {
        // Delivered first: a span that is counted there has been counted as ended before.
        let delivered = self.delivered.load(Ordering::SeqCst);
        SpanReport { ended: self.ended.load(Ordering::SeqCst), delivered }
    }
}

/// The batch processor, counting what comes in.
#[derive(Debug)]
pub(super) struct CountingProcessor {
    pub(super) inner: BatchSpanProcessor,
    pub(super) counts: Arc<Counts>,
}

impl SpanProcessor for CountingProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.counts.ended.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// The OTLP exporter, counting what the collector took. It owns the runtime that the connection lives on, so that this outlives
/// the last attempt even when the shutdown did not wait for it.
#[derive(Debug)]
pub(super) struct CountingExporter {
    pub(super) inner: OtlpExporter,
    pub(super) runtime: ExportRuntime,
    pub(super) counts: Arc<Counts>,
    pub(super) endpoint: String,
    pub(super) patience: Duration,
}

impl SpanExporter for CountingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let attempt = {
            // The timer needs a runtime when it is made; the thread that waits for it has none.
            let _entered = self.runtime.0.as_ref().map(Runtime::enter);
            // The exporter's own limit does not cover the time a connection takes.
            tokio::time::timeout(self.patience, self.inner.export(batch))
        };
        let result = attempt.await.unwrap_or(Err(OTelSdkError::Timeout(self.patience)));
        match &result {
            Ok(()) => {
                self.counts.delivered.fetch_add(spans, Ordering::SeqCst);
            }
            Err(error) if !self.counts.told.swap(true, Ordering::SeqCst) => {
                tracing::warn!(endpoint = %self.endpoint, %error, "traces cannot be delivered, the run goes on without them");
            }
            Err(_) => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.inner.shutdown()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// A runtime that may be dropped anywhere, also inside another one.
#[derive(Debug)]
pub(super) struct ExportRuntime(pub(super) Option<Runtime>);

impl Drop for ExportRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
