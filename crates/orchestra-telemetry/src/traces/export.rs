//! The exporter's life: start, subscriber layer, bounded shutdown. Never waits for a collector longer than it was told.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{KeyValue, global};
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider};
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

use super::counting::{CountingExporter, CountingProcessor, Counts, ExportRuntime};
use super::{Sampling, SpanReport, TraceSettings};
use crate::TelemetryError;
use crate::logs::filter::NOISE;
use crate::names::SERVICE;

/// Spans that may wait for the exporter. The library's own 2048 overflow in bursts; a span is about 1 KiB.
const QUEUE: usize = 65_536;
/// Spans per request.
const REQUEST: usize = 2_048;
/// How long a span waits for company.
const DELAY: Duration = Duration::from_millis(500);

/// A running exporter. Dropping it is a shutdown.
#[derive(Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    counts: Arc<Counts>,
    patience: Duration,
}

impl Traces {
    /// Starts the exporter on a thread of its own. Connects when the first spans are due, not before.
    pub(crate) fn start(settings: &TraceSettings) -> Result<Self, TelemetryError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("orchestra-traces")
            .enable_all()
            .build()
            .map_err(TelemetryError::Thread)?;
        let inner = {
            let _entered = runtime.enter();
            OtlpExporter::builder()
                .with_tonic()
                .with_endpoint(&settings.endpoint)
                .with_timeout(settings.patience)
                .build()
                .map_err(|error| TelemetryError::Endpoint {
                    endpoint: settings.endpoint.clone(),
                    origin: settings.origin,
                    reason: error.to_string(),
                })
        };
        let runtime = ExportRuntime(Some(runtime));
        let counts = Arc::new(Counts::default());
        let exporter = CountingExporter {
            inner: inner?,
            runtime,
            counts: counts.clone(),
            endpoint: settings.endpoint.clone(),
            patience: settings.patience,
        };
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE)
            .with_max_export_batch_size(REQUEST)
            .with_scheduled_delay(DELAY)
            .build();
        let processor = CountingProcessor {
            inner: BatchSpanProcessor::builder(exporter).with_batch_config(batches).build(),
            counts: counts.clone(),
        };
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(sampler(settings.sampling))
            .with_resource(resource(&settings.service_name))
            .build();
        Ok(Self { provider, counts, patience: settings.patience })
    }

    /// The layer that feeds it.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(SERVICE))
            .with_location(false)
            .with_threads(false)
            .with_filter(Targets::new().with_default(LevelFilter::INFO).with_targets(NOISE))
    }

    /// Finished spans (`context::record_finished`) go through this exporter from now on.
    pub(crate) fn make_global(&self) {
        global::set_tracer_provider(self.provider.clone());
    }

    /// Sends what is left, within the time allowed, and says what was lost.
    pub(crate) fn shutdown(self) -> SpanReport {
        self.stop();
        self.counts.report()
    }

    fn stop(&self) {
        // An error means that time ran out, or that it was stopped before. The counters tell what that cost.
        let _ = self.provider.shutdown_with_timeout(self.patience);
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        self.stop();
    }
}

fn sampler(sampling: Sampling) -> Sampler {
    let parent = |root: Sampler| Sampler::ParentBased(Box::new(root));
    match sampling {
        Sampling::AlwaysOn => Sampler::AlwaysOn,
        Sampling::AlwaysOff => Sampler::AlwaysOff,
        Sampling::Ratio(share) => Sampler::TraceIdRatioBased(share),
        Sampling::ParentAlwaysOn => parent(Sampler::AlwaysOn),
        Sampling::ParentAlwaysOff => parent(Sampler::AlwaysOff),
        Sampling::ParentRatio(share) => parent(Sampler::TraceIdRatioBased(share)),
    }
}

fn resource(service_name: &str) -> Resource {
    Resource::builder()
        .with_service_name(service_name.to_owned())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}
