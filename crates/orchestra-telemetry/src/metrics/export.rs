//! The thread that sends metrics to a collector, and its end, which waits no longer than it was told. A collector that is down, slow or
//! takes no metrics costs the metrics and nothing else.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use opentelemetry_http::{HttpClient as _, Request};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use orchestra_core::locked;
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{MetricExport, MetricReport, Source, wire};
use crate::TelemetryError;
use crate::background::Background;
use crate::otlp::OtlpSettings;
use crate::otlp::client::{Client, Outcome};

/// How long the end may take, from [`Export::finish`] on.
const PATIENCE: Duration = Duration::from_secs(3);

/// A running exporter. Dropping it ends it without the last request.
#[derive(Debug)]
pub(super) struct Export {
    thread: Background,
    finished_at: OnceLock<Instant>,
    report: Arc<Mutex<MetricReport>>,
}

impl Export {
    /// Starts the thread. It connects when the first request is due, not before.
    pub(super) fn start(settings: &MetricExport, source: Source) -> Result<Self, TelemetryError> {
        let report = Arc::new(Mutex::new(MetricReport::default()));
        let thread = Background::start("metrics-export", |finishing| {
            let exporter = Exporter {
                transport: Transport::new(&settings.to)?,
                endpoint: settings.to.endpoint.clone(),
                source,
                finishing,
                every: settings.every,
                header: wire::Header::new(&settings.resource, SystemTime::now()),
                report: Arc::clone(&report),
            };
            Ok(move || exporter.run())
        })?;
        Ok(Self { thread, finished_at: OnceLock::new(), report })
    }

    pub(super) fn finish(&self) {
        self.finished_at.get_or_init(Instant::now);
        self.thread.stop();
    }

    pub(super) fn shutdown(self) -> MetricReport {
        self.finish();
        let since = self.finished_at.get().map_or(Duration::ZERO, Instant::elapsed);
        let in_time = self.thread.wait(PATIENCE.saturating_sub(since));
        let mut report = locked(&self.report).clone();
        if !in_time {
            report.lost += 1;
            report.words.get_or_insert_with(|| format!("no answer within {PATIENCE:?}"));
        }
        report
    }
}

struct Exporter {
    transport: Transport,
    endpoint: String,
    source: Source,
    finishing: watch::Receiver<bool>,
    every: Duration,
    header: wire::Header,
    report: Arc<Mutex<MetricReport>>,
}

impl Exporter {
    async fn run(mut self) {
        let mut due = Instant::now() + self.every;
        loop {
            let last = tokio::select! {
                _ = self.finishing.wait_for(|finish| *finish) => true,
                () = tokio::time::sleep_until(due) => false,
            };
            let message = self.header.request(&(self.source)(), SystemTime::now());
            // It is not sent again: the next one has all numbers, too.
            let outcome = self.transport.send(message).await;
            if !self.note(&outcome) || last {
                return;
            }
            // What took longer than the interval is not made up for.
            due = (due + self.every).max(Instant::now());
        }
    }

    /// Counts what became of a request. `false`: no further one has a chance.
    fn note(&self, outcome: &Outcome) -> bool {
        let endpoint = &self.endpoint;
        let mut report = locked(&self.report);
        let rejection = match outcome {
            Outcome::Answered(status, body) if status.is_success() => wire::rejection(body),
            _ => None,
        };
        let Some(error) = outcome.problem().or(rejection) else {
            report.delivered += 1;
            return true;
        };
        if takes_no_metrics(outcome) {
            tracing::info!(%endpoint, %error, "the collector takes no metrics, none are sent to it");
            report.unsupported = true;
            return false;
        }
        report.lost += 1;
        if report.words.replace(error.clone()).is_none() {
            tracing::warn!(%endpoint, %error, "metrics cannot be delivered, the run goes on without them");
        }
        true
    }
}

/// A collector for traces alone, such as Jaeger, does not know the path.
fn takes_no_metrics(outcome: &Outcome) -> bool {
    let unknown = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];
    matches!(outcome, Outcome::Answered(status, _) if unknown.contains(status))
}

enum Transport {
    /// With a request without its body.
    Http(Box<Client>, Request<()>),
    #[cfg(feature = "grpc")]
    Grpc(crate::otlp::grpc::Metrics),
}

impl Transport {
    fn new(to: &OtlpSettings) -> Result<Self, TelemetryError> {
        #[cfg(feature = "grpc")]
        if to.protocol == crate::otlp::Protocol::Grpc {
            return crate::otlp::grpc::Metrics::new(to).map(Self::Grpc);
        }
        Ok(Self::Http(Box::new(Client::new(to.timeout)), post(to)?))
    }

    async fn send(&mut self, message: ExportMetricsServiceRequest) -> Outcome {
        match self {
            Self::Http(client, post) => {
                let request = post.clone().map(|()| message.encode_to_vec().into());
                // The client notes what comes of it.
                let _ = client.send_bytes(request).await;
                client.outcome()
            }
            #[cfg(feature = "grpc")]
            Self::Grpc(client) => client.send(message).await,
        }
    }
}

/// What all requests over HTTP have in common.
fn post(to: &OtlpSettings) -> Result<Request<()>, TelemetryError> {
    let mut post = Request::post(&to.endpoint).body(()).map_err(|error| to.refused(&error.to_string()))?;
    *post.headers_mut() = to.header_map()?;
    post.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    Ok(post)
}
