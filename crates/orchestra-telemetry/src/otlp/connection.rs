//! One connection to a collector, over HTTP/1.1 or HTTP/2: a request in, an answer out. It knows no retries and no gRPC.

use std::io;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::Protocol;

/// An answer is a count and a sentence; more than this is no collector's.
const LARGEST_ANSWER: usize = 1 << 20;

/// An open connection. A task of the runtime drives it, and ends with it.
pub(super) enum Connection {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) trailers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Broken {
    /// No connection was made.
    Unreachable(io::Error),
    /// It ended in the middle.
    Lost(hyper::Error),
    /// The other side does not speak this protocol.
    Foreign,
    /// The answer cannot be read to its end.
    Answer(String),
}

impl Connection {
    pub(super) async fn open(uri: &Uri, protocol: Protocol) -> Result<Self, Broken> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let stream =
            TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await.map_err(Broken::Unreachable)?;
        stream.set_nodelay(true).map_err(Broken::Unreachable)?;
        let stream = TokioIo::new(stream);
        // The driving tasks end with an error of the connection, which the request that waits on it reports.
        match protocol {
            Protocol::HttpProtobuf => {
                let (sender, driver) = http1::handshake(stream).await.map_err(broken)?;
                tokio::spawn(driver);
                Ok(Self::Http1(sender))
            }
            Protocol::Grpc => {
                let (sender, driver) =
                    http2::handshake(TokioExecutor::new(), stream).await.map_err(broken)?;
                tokio::spawn(driver);
                Ok(Self::Http2(sender))
            }
        }
    }

    /// Whether it can take another request, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Http1(sender) => !sender.is_closed(),
            Self::Http2(sender) => !sender.is_closed(),
        }
    }

    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, Broken> {
        let response = match self {
            Self::Http1(sender) => {
                sender.ready().await.map_err(broken)?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await.map_err(broken)?;
                sender.send_request(request).await
            }
        };
        answer(response.map_err(broken)?).await
    }
}

async fn answer(response: http::Response<Incoming>) -> Result<Answer, Broken> {
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, LARGEST_ANSWER);
    let collected = body.collect().await.map_err(|error| Broken::Answer(error.to_string()))?;
    let trailers = collected.trailers().cloned().unwrap_or_default();
    Ok(Answer { status: parts.status, headers: parts.headers, trailers, body: collected.to_bytes() })
}

fn broken(error: hyper::Error) -> Broken {
    if error.is_parse() { Broken::Foreign } else { Broken::Lost(error) }
}
