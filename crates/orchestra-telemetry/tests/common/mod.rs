//! Collectors for tests: real servers on a port of loopback, of another make than the client. gRPC is tonic's, HTTP is hyper's; each does
//! with a request what it was told to, and keeps what it got. They judge nothing.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tonic::codec::CompressionEncoding;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};

/// What a collector does with a request.
#[derive(Debug, Clone)]
pub enum Do {
    /// Takes it.
    Take,
    /// Takes all spans but so many, and says why.
    Reject(i64, &'static str),
    /// Answers with this status, of HTTP or of gRPC, these words, and asks for a pause of so many seconds.
    Refuse(u16, &'static str, Option<u64>),
    /// Ends the connection without an answer (HTTP).
    HangUp,
    /// Never answers.
    Ignore,
}

/// A request that came.
#[derive(Debug, Clone)]
pub struct Got {
    /// What was sent.
    pub request: ExportTraceServiceRequest,
    /// Its headers.
    pub headers: HeaderMap,
    /// The path over HTTP.
    pub path: String,
}

impl Got {
    /// Its spans.
    pub fn spans(&self) -> impl Iterator<Item = &Span> {
        self.request.resource_spans.iter().flat_map(|r| &r.scope_spans).flat_map(|scope| &scope.spans)
    }
}

/// A collector on a port and a runtime of its own.
pub struct Collector {
    runtime: Option<Runtime>,
    /// Where it listens.
    pub address: SocketAddr,
    /// What it speaks: gRPC, or HTTP.
    pub is_grpc: bool,
    shared: Arc<Shared>,
}

struct Shared {
    /// What to do with the first requests; then all are taken.
    first: Mutex<VecDeque<Do>>,
    got: Mutex<Vec<Got>>,
}

impl Shared {
    fn take(&self, got: Got) -> Do {
        self.got.lock().unwrap().push(got);
        self.first.lock().unwrap().pop_front().unwrap_or(Do::Take)
    }
}

impl Collector {
    /// One that speaks gRPC.
    pub fn grpc(first: &[Do]) -> Self {
        let (runtime, shared) = parts(first);
        let entered = runtime.enter();
        let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = incoming.local_addr().unwrap();
        let service = TraceServiceServer::new(GrpcService(Arc::clone(&shared)))
            .accept_compressed(CompressionEncoding::Gzip);
        runtime.spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
        drop(entered);
        Self { runtime: Some(runtime), address, is_grpc: true, shared }
    }

    /// One that speaks HTTP/1.1.
    pub fn http(first: &[Do]) -> Self {
        let (runtime, shared) = parts(first);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let entered = runtime.enter();
        let listener = TcpListener::from_std(listener).unwrap();
        drop(entered);
        let of_server = Arc::clone(&shared);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&of_server);
                let service = service_fn(move |request| answer(Arc::clone(&shared), request));
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                // It ends with an error when it hangs up on purpose.
                tokio::spawn(async move { drop(connection.await) });
            }
        });
        Self { runtime: Some(runtime), address, is_grpc: false, shared }
    }

    /// `http://HOST:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All requests so far.
    pub fn got(&self) -> Vec<Got> {
        self.shared.got.lock().unwrap().clone()
    }

    /// All spans so far, also of requests that were refused.
    pub fn spans(&self) -> Vec<Span> {
        self.shared.got.lock().unwrap().iter().flat_map(Got::spans).cloned().collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // Also allowed where the collector is dropped inside another runtime.
        self.runtime.take().unwrap().shutdown_background();
    }
}

fn parts(first: &[Do]) -> (Runtime, Arc<Shared>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let first = Mutex::new(first.iter().cloned().collect());
    (runtime, Arc::new(Shared { first, got: Mutex::default() }))
}

/// An address of loopback where nobody listens, for as long as this lives: it has the port and does not listen either.
pub struct Nobody(TcpSocket);

pub fn nobody() -> Nobody {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    Nobody(socket)
}

impl Nobody {
    pub fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap())
    }
}

fn taken(rejected: Option<(i64, &str)>) -> ExportTraceServiceResponse {
    let partial_success = rejected.map(|(rejected_spans, words)| ExportTracePartialSuccess {
        rejected_spans,
        error_message: words.to_owned(),
    });
    ExportTraceServiceResponse { partial_success }
}

struct GrpcService(Arc<Shared>);

#[tonic::async_trait]
impl TraceService for GrpcService {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let got = Got { request, headers: metadata.into_headers(), path: String::new() };
        match self.0.take(got) {
            Do::Take => Ok(Response::new(taken(None))),
            Do::Reject(n, words) => Ok(Response::new(taken(Some((n, words))))),
            Do::Refuse(code, words, None) => Err(Status::new(Code::from_i32(code.into()), words)),
            Do::Refuse(code, words, Some(pause)) => {
                let details = Bytes::from(with_retry_info(code, pause));
                Err(Status::with_details(Code::from_i32(code.into()), words, details))
            }
            Do::HangUp | Do::Ignore => std::future::pending().await,
        }
    }
}

/// `google.rpc.Status` with a `google.rpc.RetryInfo` as its only detail.
fn with_retry_info(code: u16, seconds: u64) -> Vec<u8> {
    let field =
        |number: u8, bytes: &[u8]| [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat();
    let small = |n: u64| [1 << 3, u8::try_from(n).unwrap()];
    assert!(code < 0x80 && seconds < 0x80);
    let info = field(1, &small(seconds));
    let any = [field(1, b"type.googleapis.com/google.rpc.RetryInfo"), field(2, &info)].concat();
    [&small(code.into())[..], &field(3, &any)].concat()
}

async fn answer(
    shared: Arc<Shared>,
    request: http::Request<Incoming>,
) -> Result<http::Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let (parts, body) = request.into_parts();
    if parts.uri.path().ends_with("/v1/metrics") {
        // A collector for traces alone, as Jaeger is one.
        return Ok(http::Response::builder().status(404).body(Full::default())?);
    }
    let mut body = body.collect().await?.to_bytes().to_vec();
    if parts.headers.get("content-encoding").is_some_and(|encoding| encoding == "gzip") {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut plain)?;
        body = plain;
    }
    let request = ExportTraceServiceRequest::decode(&body[..])?;
    let path = parts.uri.path().to_owned();
    let ok = |message: ExportTraceServiceResponse| {
        let body = Full::new(Bytes::from(message.encode_to_vec()));
        http::Response::builder().header("content-type", "application/x-protobuf").body(body)
    };
    Ok(match shared.take(Got { request, headers: parts.headers, path }) {
        Do::Take => ok(taken(None)),
        Do::Reject(n, words) => ok(taken(Some((n, words)))),
        Do::Refuse(status, words, pause) => {
            let builder = http::Response::builder().status(status);
            let builder = match pause {
                Some(seconds) => builder.header("retry-after", seconds),
                None => builder,
            };
            builder.body(Full::new(Bytes::from_static(words.as_bytes())))
        }
        Do::HangUp => return Err("told to hang up".into()),
        Do::Ignore => std::future::pending::<Result<_, Infallible>>().await?,
    }?)
}
