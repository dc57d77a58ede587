//! Serves the page to every client that asks, one request per connection. It never waits for a client longer than a few seconds and holds
//! few of them at a time; nothing else in the process waits for it. It measures nothing itself.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpListener as StdTcpListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

use super::page::{self, CONTENT_TYPE};
use super::{MetricSource, Reading};
use crate::TelemetryError;

/// Connections that are open at once. With one more, the oldest is closed: it has had its chance, and clients that hang must not keep a
/// scraper out.
const MOST_CLIENTS: usize = 32;
/// How long one client may take, from the connection to the last byte of the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest head of a request that is read, in bytes: the least that hyper allows.
const LONGEST_REQUEST: usize = 8 << 10;
/// Pause after a connection could not be accepted: usually, all file descriptors are taken.
const BREATH: Duration = Duration::from_millis(100);

/// A page that is being served. Dropping it ends that.
#[derive(Debug)]
pub(super) struct PageServer {
    pub(super) address: SocketAddr,
    /// With a thread of its own. `None` only while it is dropped.
    runtime: Option<Runtime>,
}

impl Drop for PageServer {
    fn drop(&mut self) {
        // It does not wait: a host may drop it in a thread of its own runtime.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl PageServer {
    pub(super) fn start(address: SocketAddr, source: MetricSource) -> Result<Self, TelemetryError> {
        let not_served = |error: std::io::Error| TelemetryError::PageNotServed {
            address,
            advice: match error.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "another program listens there, perhaps another run; give each its own port, or port 0 for any that is free"
                }
                std::io::ErrorKind::AddrNotAvailable => "an address of this machine is needed",
                std::io::ErrorKind::PermissionDenied => "ports below 1024 are for root",
                _ => "choose another address",
            },
            source: error,
        };
        let listener = StdTcpListener::bind(address).map_err(not_served)?;
        let address = listener.local_addr().map_err(not_served)?;
        listener.set_nonblocking(true).map_err(not_served)?;
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("metrics-page").enable_all().build();
        let runtime = runtime.map_err(TelemetryError::Thread)?;
        let inside = runtime.enter();
        let listener = TcpListener::from_std(listener).map_err(not_served)?;
        drop(inside);
        runtime.spawn(serve(listener, source));
        Ok(Self { address, runtime: Some(runtime) })
    }
}

async fn serve(listener: TcpListener, source: MetricSource) {
    let is_local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let mut clients: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::debug!(%error, "a client of the metrics page could not be accepted");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        clients.retain(|client| !client.is_finished());
        if clients.len() >= MOST_CLIENTS
            && let Some(oldest) = clients.pop_front()
        {
            oldest.abort();
        }
        let source = source.clone();
        let task = tokio::spawn(async move {
            // A client that is late, or goes away in the middle, gets nothing more.
            let _ = tokio::time::timeout(PATIENCE, answer(client, &source, is_local)).await;
        });
        clients.push_back(task.abort_handle());
    }
}

/// What a client gets that sends this and nothing more. For checks of what clients may send: no socket is opened.
#[doc(hidden)]
pub fn answer_to(request: &[u8], reading: fn() -> Reading) -> std::io::Result<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let source: MetricSource = Arc::new(reading);
    let (mut client, server) = tokio::io::duplex(LONGEST_REQUEST);
    let asks = async move {
        // The page may hang up before all is sent.
        let _ = client.write_all(request).await;
        let _ = client.shutdown().await;
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.map(|_| got)
    };
    // A request that is none ends with an error, and perhaps with an answer.
    let (_, got) = runtime.block_on(async { tokio::join!(answer(server, &source, true), asks) });
    got
}

async fn answer(
    client: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    source: &MetricSource,
    is_local: bool,
) -> hyper::Result<()> {
    let answer = |request: Request<Incoming>| async move {
        Ok::<_, Infallible>(page_or_hint(&request, source, is_local))
    };
    let mut connection = http1::Builder::new();
    // A client that has said all may have closed its side.
    connection.keep_alive(false).half_close(true).max_buf_size(LONGEST_REQUEST);
    connection.serve_connection(TokioIo::new(client), service_fn(answer)).await
}

/// Whether the host of a request is an address, or this machine. A page that serves this machine alone is asked so; under any other name it is asked by a
/// site in a browser here, whose name leads to this address.
#[must_use]
pub fn names_this_machine(headers: &HeaderMap, uri: &Uri) -> bool {
    let host = headers.get(header::HOST).map(|host| host.to_str().unwrap_or("?"));
    let Some(host) = host.or(uri.host()) else { return true };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    address.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

/// For HEAD, hyper leaves out the body and keeps its length.
fn page_or_hint(request: &Request<Incoming>, source: &MetricSource, is_local: bool) -> Response<Full<Bytes>> {
    let text = "text/plain; charset=utf-8";
    let (status, kind, body) = match request.uri().path() {
        _ if is_local && !names_this_machine(request.headers(), request.uri()) => {
            (StatusCode::FORBIDDEN, text, "this page answers to localhost and to addresses alone\n".into())
        }
        _ if ![Method::GET, Method::HEAD].contains(request.method()) => {
            (StatusCode::METHOD_NOT_ALLOWED, text, "only GET and HEAD are answered\n".into())
        }
        "/metrics" => (StatusCode::OK, CONTENT_TYPE, page::render(&source())),
        "/" => (StatusCode::OK, text, "the metrics of a run of orchestra: /metrics\n".into()),
        _ => (StatusCode::NOT_FOUND, text, "there is nothing here; the metrics are at /metrics\n".into()),
    };
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream as StdTcpStream;

    use super::super::names::PROCESS_CPU;
    use super::*;

    fn server() -> PageServer {
        let source: MetricSource = Arc::new(|| {
            let mut reading = Reading::new();
            reading.add(&PROCESS_CPU, &[], 2_u64);
            reading
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        PageServer::start(address, source).unwrap()
    }

    fn ask(server: &PageServer, request: &str) -> String {
        let mut client = StdTcpStream::connect(server.address).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn the_page_is_there_and_nothing_else_is() {
        let server = server();
        let page = ask(&server, "GET /metrics HTTP/1.1\r\nHost: localhost:9000\r\n\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        let (head, body) = page.split_once("\r\n\r\n").unwrap();
        let head = head.to_lowercase();
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        assert!(body.ends_with("orchestra_process_cpu_time_seconds_total 2\n"), "{body}");
        for (request, status) in [
            ("GET /metrics?x=1 HTTP/1.1\r\n\r\n", "200"),
            ("GET / HTTP/1.0\r\n\r\n", "200"),
            ("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n\r\n", "200"),
            ("GET /metrics HTTP/1.1\r\nHost: [::1]:9000\r\n\r\n", "200"),
            ("GET /metrics HTTP/1.1\r\nHost: [::1]\r\n\r\n", "200"),
            ("GET /metrics HTTP/1.1\r\nHost: site.example:9000\r\n\r\n", "403"),
            ("GET /metrics HTTP/1.1\r\nHost: localhost.site.example\r\n\r\n", "403"),
            ("GET /other HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi", "405"),
            ("rubbish\r\n\r\n", "400"),
            ("GET /metrics HTTP/2\r\n\r\n", "400"),
        ] {
            let answer = ask(&server, request);
            assert_eq!(answer.split(' ').nth(1), Some(status), "{request:?}: {answer}");
        }
    }

    #[test]
    fn a_head_request_gets_the_length_and_no_page() {
        let answer = ask(&server(), "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.ends_with("\r\n\r\n") && !answer.contains("content-length: 0"), "{answer}");
    }

    #[test]
    fn a_request_without_an_end_is_refused() {
        let answer = ask(&server(), &"x".repeat(LONGEST_REQUEST));
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }

    #[test]
    fn clients_that_hang_keep_no_other_out_and_the_oldest_is_closed() {
        let server = server();
        let mut hanging: Vec<StdTcpStream> = Vec::new();
        for _ in 0..2 * MOST_CLIENTS {
            hanging.push(StdTcpStream::connect(server.address).unwrap());
        }
        let page = ask(&server, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        // The end of its connection, however it comes.
        let first = hanging[0].read(&mut [0; 1]).unwrap_or(0);
        assert_eq!(first, 0);
    }

    #[test]
    fn a_dropped_server_gives_its_port_back() {
        let server = server();
        let address = server.address;
        drop(server);
        // The thread ends by itself; until then the port is taken.
        while StdTcpListener::bind(address).is_err() {
            std::thread::yield_now();
        }
    }
}
