//! Collectors for tests: real servers on a port of loopback. Each does with a request what it was told to, and keeps what it got. They
//! judge nothing.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Debug;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;

/// Pause between two looks, and how many there are: minutes, which only a hang reaches.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const LOOKS: usize = 36_000;

/// Looks again and again until what is seen is enough, and gives it. Ends the test with what was seen last if that takes minutes.
#[track_caller]
pub fn seen<T: Debug>(what: &str, mut look: impl FnMut() -> T, is_enough: impl Fn(&T) -> bool) -> T {
    // Nothing is ever sent on it: its time-out is the pause between two looks.
    let (_keep, never) = channel::<()>();
    for _ in 0..LOOKS {
        let seen = look();
        if is_enough(&seen) {
            return seen;
        }
        assert_eq!(never.recv_timeout(LOOK_EVERY), Err(RecvTimeoutError::Timeout));
    }
    panic!("waited in vain until {what}: {:?}", look());
}

/// What a collector does with a request.
#[derive(Debug, Clone)]
pub enum Do {
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
    pub request: ExportTraceServiceRequest,
    pub headers: HeaderMap,
    /// The path over HTTP.
    pub path: String,
}

impl Got {
    pub fn spans(&self) -> impl Iterator<Item = &Span> {
        self.request.resource_spans.iter().flat_map(|r| &r.scope_spans).flat_map(|scope| &scope.spans)
    }
}

/// A collector on a port and a runtime of its own.
pub struct Collector {
    runtime: Option<Runtime>,
    pub address: SocketAddr,
    /// What it speaks: `http/protobuf` or `grpc`.
    pub protocol: &'static str,
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
    /// One for each protocol that this build speaks.
    pub fn all(first: &[Do]) -> Vec<Self> {
        #[cfg(feature = "grpc")]
        let all = vec![Self::http(first), Self::grpc(first)];
        #[cfg(not(feature = "grpc"))]
        let all = vec![Self::http(first)];
        all
    }

    #[cfg(feature = "grpc")]
    pub fn grpc(first: &[Do]) -> Self {
        Self::start("grpc", first, |shared, stream| async move {
            let service = hyper_util::service::TowerToHyperService::new(grpc::service(shared));
            let server = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
            drop(server.serve_connection(stream, service).await);
        })
    }

    pub fn http(first: &[Do]) -> Self {
        Self::start("http/protobuf", first, |shared, stream| async move {
            let service = service_fn(move |request| answer(Arc::clone(&shared), request));
            let server = hyper::server::conn::http1::Builder::new();
            // It ends with an error when it hangs up on purpose.
            drop(server.serve_connection(stream, service).await);
        })
    }

    fn start<F: Future<Output = ()> + Send + 'static>(
        protocol: &'static str,
        first: &[Do],
        serve: impl Fn(Arc<Shared>, TokioIo<TcpStream>) -> F + Send + 'static,
    ) -> Self {
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
                tokio::spawn(serve(Arc::clone(&of_server), TokioIo::new(stream)));
            }
        });
        Self { runtime: Some(runtime), address, protocol, shared }
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

/// An address of loopback where nothing listens, for as long as this lives: it has the port and does not listen either.
pub struct ClosedPort(TcpSocket);

pub fn closed_port() -> ClosedPort {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    ClosedPort(socket)
}

impl ClosedPort {
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

/// Answers every connection with these bytes, and then with zeros for as long as the client reads.
pub struct Garbler(SocketAddr);

impl Garbler {
    /// On its first `times` connections; over all others it takes what is sent.
    pub fn start(answer: &'static [u8], times: usize) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for (n, mut client) in listener.incoming().flatten().enumerate() {
                std::thread::spawn(move || {
                    // An answer before the request would be none.
                    drop(client.read(&mut [0; 4_096]));
                    if n >= times {
                        drop(client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
                        drop(std::io::copy(&mut client, &mut std::io::sink()));
                        return;
                    }
                    drop(client.write_all(answer));
                    while client.write_all(&[0; 65_536]).is_ok() {}
                });
            }
        });
        Self(address)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.0)
    }
}

#[cfg(feature = "grpc")]
mod grpc {
    use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
        TraceService, TraceServiceServer,
    };
    use tonic::{Code, Request, Response, Status};

    use super::*;

    pub fn service(shared: Arc<Shared>) -> TraceServiceServer<GrpcService> {
        TraceServiceServer::new(GrpcService(shared))
    }

    pub struct GrpcService(Arc<Shared>);

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
                Do::Refuse(code, words, _) => Err(Status::new(Code::from_i32(code.into()), words)),
                Do::HangUp | Do::Ignore => std::future::pending().await,
            }
        }
    }
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
