//! Sends messages of one signal to a collector, and tells what came of it. A message is sent again for as long as its time allows where
//! the specification says so; nothing is queued here, and nothing counted.

use std::io::{self, Write as _};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, RETRY_AFTER, TE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version};
use http_body_util::Full;
use thiserror::Error;
use tokio::sync::watch;

use super::connection::{Answer, Broken, Connection};
use super::grpc::{self, Status};
use super::{OtlpSettings, Protocol, Signal};
use crate::TelemetryError;

/// The pause before a message is sent for the second time; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause, unless the collector asks for another.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// How much of a collector's words is repeated.
const WORDS: usize = 200;

/// Sends one signal to one collector.
pub struct Client {
    uri: Uri,
    protocol: Protocol,
    headers: HeaderMap,
    gzip: bool,
    timeout: Duration,
    /// `None`: to be opened when there is something to send.
    connection: Option<Connection>,
}

/// Why a message did not reach the collector, or was not taken.
#[derive(Debug, Error)]
pub enum SendError {
    /// Nobody listens there, or the name is not known.
    #[error("no connection: {0}")]
    Unreachable(#[source] io::Error),
    /// The connection ended in the middle.
    #[error("the connection was lost ({error}); gRPC is usually on port 4317 and HTTP on 4318")]
    Lost {
        /// What ended it.
        error: hyper::Error,
    },
    /// Whoever listens there does not speak the protocol.
    #[error(
        "what listens there does not speak `{}`; gRPC is usually on port 4317 and HTTP on 4318",
        protocol.name()
    )]
    Foreign {
        /// What it was spoken to in.
        protocol: Protocol,
    },
    /// The collector does not take it.
    #[error("the collector answered `{status}`{}{words}", if words.is_empty() { "" } else { ": " })]
    Refused {
        /// Its status.
        status: String,
        /// What it says of it.
        words: String,
        /// Whether the same message may be sent again, and after which pause, if it names one.
        again: Option<Option<Duration>>,
    },
    /// The answer is no answer of a collector.
    #[error("the answer cannot be read: {0}")]
    Answer(String),
    /// Time ran out.
    #[error(
        "no answer within {limit:?}{}{}",
        if last.is_some() { "; before that: " } else { "" },
        last.as_ref().map(ToString::to_string).unwrap_or_default()
    )]
    TimedOut {
        /// The time that it had.
        limit: Duration,
        /// What was wrong with the last try that ended.
        last: Option<Box<SendError>>,
    },
}

impl SendError {
    /// Whether no collector answered at all, so that the next message has no better chance now.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        !matches!(self, Self::Refused { .. } | Self::Answer(_))
    }

    /// The pause that the collector asks for, or the usual one; `None`: not to be sent again.
    fn pause(&self, usual: Duration) -> Option<Duration> {
        match self {
            Self::Unreachable(_) | Self::Lost { .. } => Some(usual),
            Self::Refused { again, .. } => again.map(|asked| asked.unwrap_or(usual)),
            Self::Foreign { .. } | Self::Answer(_) | Self::TimedOut { .. } => None,
        }
    }
}

impl Client {
    /// Connects when the first message is sent, not before.
    pub fn new(settings: &OtlpSettings, signal: Signal) -> Result<Self, TelemetryError> {
        let refused = |reason: String| TelemetryError::Endpoint {
            endpoint: settings.endpoint.clone(),
            origin: settings.origin,
            reason,
        };
        let uri = match settings.protocol {
            Protocol::HttpProtobuf => settings.endpoint.clone(),
            Protocol::Grpc => format!("{}{}", settings.endpoint, signal.grpc_path()),
        };
        let uri: Uri = uri.parse().map_err(|e: http::uri::InvalidUri| refused(e.to_string()))?;
        let headers = headers(settings, &uri).map_err(|e| refused(e.to_string()))?;
        Ok(Self {
            uri,
            protocol: settings.protocol,
            headers,
            gzip: settings.gzip,
            timeout: settings.timeout,
            connection: None,
        })
    }

    /// Sends `message` (an `Export…ServiceRequest`) and gives back the answer (an `Export…ServiceResponse`). Takes no longer than the
    /// timeout of the settings. Once `stop` says so, a collector that cannot be reached is not tried again. Must be polled in a tokio
    /// runtime with network and timers.
    pub async fn send(
        &mut self,
        message: Vec<u8>,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Bytes, SendError> {
        let (limit, body) = (self.timeout, self.body(message));
        let mut last = None;
        match tokio::time::timeout(limit, self.attempts(&body, stop, &mut last)).await {
            Ok(result) => result,
            Err(_) => Err(SendError::TimedOut { limit, last: last.map(Box::new) }),
        }
    }

    async fn attempts(
        &mut self,
        body: &Bytes,
        stop: &mut watch::Receiver<bool>,
        last: &mut Option<SendError>,
    ) -> Result<Bytes, SendError> {
        let mut usual = FIRST_PAUSE;
        loop {
            let error = match self.attempt(body).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let Some(pause) = error.pause(usual) else { return Err(error) };
            if *stop.borrow() && matches!(error, SendError::Unreachable(_)) {
                return Err(error);
            }
            *last = Some(error);
            usual = (usual * 2).min(LONGEST_PAUSE);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stopped(stop) => {}
            }
        }
    }

    async fn attempt(&mut self, body: &Bytes) -> Result<Bytes, SendError> {
        if let Some(mut kept) = self.connection.take().filter(Connection::is_open) {
            match kept.send(self.request(body)).await {
                Ok(answer) => {
                    self.connection = Some(kept);
                    return self.understand(&answer);
                }
                // The collector has closed it since.
                Err(Broken::Lost(_)) => {}
                Err(broken) => return Err(self.error(broken)),
            }
        }
        let opened = Connection::open(&self.uri, self.protocol).await;
        let mut connection = opened.map_err(|broken| self.error(broken))?;
        let answer = connection.send(self.request(body)).await.map_err(|broken| self.error(broken))?;
        self.connection = Some(connection);
        self.understand(&answer)
    }

    fn body(&self, message: Vec<u8>) -> Bytes {
        let message = if self.gzip { compressed(&message) } else { message };
        match self.protocol {
            Protocol::Grpc => grpc::framed(&message, self.gzip).into(),
            Protocol::HttpProtobuf => message.into(),
        }
    }

    fn request(&self, body: &Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = Method::POST;
        *request.headers_mut() = self.headers.clone();
        match self.protocol {
            Protocol::Grpc => {
                *request.version_mut() = Version::HTTP_2;
                *request.uri_mut() = self.uri.clone();
            }
            // Over HTTP/1.1 the host is a header, and the address what follows it.
            Protocol::HttpProtobuf => {
                *request.uri_mut() =
                    self.uri.path_and_query().cloned().map(Uri::from).unwrap_or_else(|| self.uri.clone());
            }
        }
        request
    }

    fn understand(&self, answer: &Answer) -> Result<Bytes, SendError> {
        if !answer.status.is_success() {
            return Err(refused(answer));
        }
        if self.protocol == Protocol::HttpProtobuf {
            return Ok(answer.body.clone());
        }
        let status = Status::of(&answer.trailers)
            .or_else(|| Status::of(&answer.headers))
            .ok_or(SendError::Foreign { protocol: self.protocol })?;
        if !status.is_ok() {
            return Err(SendError::Refused {
                status: status.name().to_owned(),
                again: status.again(),
                words: words(status.message.as_bytes()),
            });
        }
        let message = grpc::unframed(&answer.body)
            .ok_or_else(|| SendError::Answer("it is no whole gRPC message".to_owned()))?;
        Ok(answer.body.slice_ref(message))
    }

    fn error(&self, broken: Broken) -> SendError {
        match broken {
            Broken::Unreachable(error) => SendError::Unreachable(error),
            Broken::Lost(error) => SendError::Lost { error },
            Broken::Foreign => SendError::Foreign { protocol: self.protocol },
            Broken::Answer(reason) => SendError::Answer(reason),
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Headers hold keys.
        f.debug_struct("Client")
            .field("uri", &self.uri)
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

/// Ends when `stop` turns true; never, if it is already or if nobody can turn it any more.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    if *stop.borrow() || stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn headers(settings: &OtlpSettings, uri: &Uri) -> Result<HeaderMap, http::Error> {
    let mut headers = HeaderMap::new();
    let agent = concat!("orchestra/", env!("CARGO_PKG_VERSION"));
    headers.insert(USER_AGENT, HeaderValue::from_static(agent));
    match settings.protocol {
        Protocol::Grpc => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert(TE, HeaderValue::from_static("trailers"));
            if settings.gzip {
                headers.insert("grpc-encoding", HeaderValue::from_static("gzip"));
            }
        }
        Protocol::HttpProtobuf => {
            let host = uri.authority().map_or("", |authority| authority.as_str());
            headers.insert(HOST, HeaderValue::try_from(host)?);
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
            if settings.gzip {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
        }
    }
    for (name, value) in &settings.headers {
        headers.append(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
    }
    Ok(headers)
}

fn compressed(message: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(message.len() / 4), Compression::fast());
    encoder
        .write_all(message)
        .and_then(|()| encoder.finish())
        .expect("a vector takes all that is written to it")
}

fn refused(answer: &Answer) -> SendError {
    let status = answer.status;
    let again = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    let seconds = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    SendError::Refused {
        status: status.to_string(),
        words: words(&answer.body),
        again: again.then(|| seconds.map(Duration::from_secs)),
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
