//! The HTTP client below OpenTelemetry's exporter. It notes what a collector answered, which the exporter does not tell. It retries nothing.

use std::error::Error;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use orchestra_core::locked;
use prost::Message as _;

/// How much of a collector's words is repeated.
const WORDS: usize = 200;

#[derive(Debug)]
pub(super) struct CollectorClient {
    inner: HyperClient,
    last: Mutex<CollectorAnswer>,
}

/// What came of a request.
#[derive(Debug, Default)]
pub(super) struct CollectorAnswer {
    /// A collector answered, whatever it said.
    pub is_there: bool,
    /// Spans that it did not take of a request that it took.
    pub rejected: u64,
    /// What it said, or what was wrong.
    pub words: Option<String>,
}

impl CollectorClient {
    /// Connects when the first request is sent, not before.
    pub fn new(timeout: Duration) -> Self {
        Self { inner: HyperClient::with_default_connector(timeout, None), last: Mutex::default() }
    }

    /// What came of the last request since this was asked.
    pub fn last(&self) -> CollectorAnswer {
        std::mem::take(&mut *locked(&self.last))
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.inner.send_bytes(request).await;
        *locked(&self.last) = match &sent {
            Ok(response) => CollectorAnswer::of(response),
            Err(error) => {
                CollectorAnswer { words: Some(problem(error.as_ref())), ..CollectorAnswer::default() }
            }
        };
        sent
    }
}

impl CollectorAnswer {
    fn of(response: &Response<Bytes>) -> Self {
        let (status, body) = (response.status(), &response.body()[..]);
        if status.is_success() {
            // What cannot be read is not a rejection: the status said that it was taken.
            let answer = ExportTraceServiceResponse::decode(body).unwrap_or_default();
            let partial = answer.partial_success.unwrap_or_default();
            let words = Some(partial.error_message).filter(|words| !words.is_empty());
            return Self {
                is_there: true,
                rejected: u64::try_from(partial.rejected_spans).unwrap_or(0),
                words,
            };
        }
        let said = words(body);
        let separator = if said.is_empty() { "" } else { ": " };
        let words = Some(format!("the collector answered `{status}`{separator}{said}"));
        Self { is_there: true, rejected: 0, words }
    }
}

/// Why a request had no answer. The innermost error says it: those around it only say that a request failed.
fn problem(error: &(dyn Error + 'static)) -> String {
    let mut root = error;
    while let Some(below) = root.source() {
        root = below;
    }
    if root.is::<tokio::time::error::Elapsed>() {
        return "no answer in time".to_owned();
    }
    match root.is::<std::io::Error>() {
        true => format!("no connection: {root}"),
        false => format!(
            "the connection was lost ({root}); HTTP is usually on port 4318, and gRPC, which is another protocol, on 4317"
        ),
    }
}

/// What a person can read of an answer, which may be a protobuf message around a sentence.
fn words(body: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(body)
        .chars()
        .map(|c| if c.is_control() || c == char::REPLACEMENT_CHARACTER { ' ' } else { c })
        .take(WORDS)
        .collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
