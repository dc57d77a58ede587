//! The HTTP client below the exporters of both signals. It notes what came of the last request, which OpenTelemetry's exporters do not
//! tell their caller. It retries nothing and knows neither signal.

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;
use http::StatusCode;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::sync::watch;

/// How much of a collector's words is repeated.
const WORDS: usize = 200;

/// The longest answer that is read.
const LONGEST_ANSWER: usize = 4 << 20;

/// Sends requests, each within a time, and notes what came of the last one. It speaks HTTP/1.1 alone, as collectors do on their HTTP port:
/// the client of `opentelemetry-http` brings HTTP/2 along, a library of its own to compile.
#[derive(Debug)]
pub(crate) struct Client {
    client: legacy::Client<HttpConnector, Full<Bytes>>,
    timeout: Duration,
    last: watch::Sender<Outcome>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Open,
    Answered(StatusCode, Bytes),
    /// No program listens at the address, or the host is not known.
    Unreachable(String),
    /// The connection ended in the middle, or what listens there does not speak HTTP.
    Lost(String),
    /// There was no answer in time.
    TimedOut(Duration),
}

impl Client {
    /// Connects when the first request is sent, not before.
    pub(crate) fn new(timeout: Duration) -> Self {
        let client = legacy::Client::builder(TokioExecutor::new()).build_http();
        Self { client, timeout, last: watch::Sender::new(Outcome::Open) }
    }

    /// To be called before a message is sent, so that the outcome is that of this message.
    pub(crate) fn begin(&self) {
        self.last.send_replace(Outcome::Open);
    }

    pub(crate) fn outcome(&self) -> Outcome {
        self.last.borrow().clone()
    }

    /// Ends once a request has ended as [`Outcome::Unreachable`].
    pub(crate) async fn unreachable(&self) {
        let mut last = self.last.subscribe();
        // An error would mean that the sender is gone, which `self` holds.
        let _ = last.wait_for(|outcome| matches!(outcome, Outcome::Unreachable(_))).await;
    }

    async fn answer(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = self.client.request(request.map(Full::new)).await?.into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await?.to_bytes();
        Ok(Response::from_parts(head, body))
    }

    fn outcome_of(&self, sent: &Result<Response<Bytes>, HttpError>) -> Outcome {
        let error = match sent {
            Ok(answer) => return Outcome::Answered(answer.status(), answer.body().clone()),
            Err(error) => error,
        };
        if error.is::<tokio::time::error::Elapsed>() {
            return Outcome::TimedOut(self.timeout);
        }
        let words = root(error.as_ref()).to_string();
        match error.downcast_ref::<legacy::Error>() {
            Some(error) if error.is_connect() => Outcome::Unreachable(words),
            _ => Outcome::Lost(words),
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = tokio::time::timeout(self.timeout, self.answer(request)).await;
        let sent = sent.unwrap_or_else(|late| Err(late.into()));
        self.last.send_replace(self.outcome_of(&sent));
        sent
    }
}

impl Outcome {
    /// What was wrong, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        Some(match self {
            Self::Open => return None,
            Self::Answered(status, _) if status.is_success() => return None,
            Self::Answered(status, body) => match words(body) {
                words if words.is_empty() => format!("the collector answered `{status}`"),
                words => format!("the collector answered `{status}`: {words}"),
            },
            Self::Unreachable(why) => format!("no connection: {why}"),
            Self::Lost(why) => format!(
                "the connection was lost ({why}); HTTP is usually on port 4318, and gRPC, which is another protocol, on 4317"
            ),
            Self::TimedOut(limit) => format!("no answer within {limit:?}"),
        })
    }
}

/// The error at the bottom of it: those above it only say that a request failed.
pub(crate) fn root<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut root = error;
    while let Some(below) = root.source() {
        root = below;
    }
    root
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
