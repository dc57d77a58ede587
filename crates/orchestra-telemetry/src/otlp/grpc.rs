//! Both signals over gRPC, in a build that has it. What comes of a request of metrics is told as it would be over HTTP.

use std::error::Error as _;
use std::time::Duration;

use http::StatusCode;
use opentelemetry_otlp::{
    ExporterBuildError, RetryPolicy, SpanExporter, WithExportConfig as _, WithTonicConfig as _,
};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use prost::Message as _;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::OtlpSettings;
use super::client::{Outcome, root};
use crate::TelemetryError;

/// OpenTelemetry's exporter. To be called inside the runtime that will send.
pub(crate) fn spans(to: &OtlpSettings, retries: RetryPolicy) -> Result<SpanExporter, TelemetryError> {
    let built: Result<_, ExporterBuildError> = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(&to.endpoint)
        .with_timeout(to.timeout)
        .with_metadata(MetadataMap::from_headers(to.header_map()?))
        .with_retry_policy(retries)
        .build();
    built.map_err(|error| to.refused(&error.to_string()))
}

pub(crate) struct Metrics {
    client: MetricsServiceClient<Channel>,
    metadata: MetadataMap,
    timeout: Duration,
}

impl Metrics {
    /// Connects when the first request is sent. To be called inside the runtime that will send it.
    pub(crate) fn new(to: &OtlpSettings) -> Result<Self, TelemetryError> {
        let endpoint =
            Endpoint::from_shared(to.endpoint.clone()).map_err(|error| to.refused(&error.to_string()))?;
        Ok(Self {
            client: MetricsServiceClient::new(endpoint.timeout(to.timeout).connect_lazy()),
            metadata: MetadataMap::from_headers(to.header_map()?),
            timeout: to.timeout,
        })
    }

    pub(crate) async fn send(&mut self, message: ExportMetricsServiceRequest) -> Outcome {
        let request = Request::from_parts(self.metadata.clone(), Default::default(), message);
        match self.client.export(request).await {
            Ok(answer) => Outcome::Answered(StatusCode::OK, answer.into_inner().encode_to_vec().into()),
            Err(status) => self.outcome(&status),
        }
    }

    fn outcome(&self, status: &Status) -> Outcome {
        let code = match status.code() {
            Code::Unavailable => {
                let why =
                    status.source().map_or_else(|| status.message().to_owned(), |e| root(e).to_string());
                return Outcome::Unreachable(why);
            }
            Code::DeadlineExceeded | Code::Cancelled => return Outcome::TimedOut(self.timeout),
            Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::InvalidArgument => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Outcome::Answered(code, format!("{}: {}", status.code(), status.message()).into())
    }
}
