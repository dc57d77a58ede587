//! Serves the page to whoever asks, one request per connection. It never waits for a client longer than a few seconds and holds few of
//! them at a time; nothing else in the process waits for it. It measures nothing itself.
//!
//! Three kinds of request and one header are understood, so this is written here: a server library would be most of what it compiles.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::Source;
use super::page::{self, CONTENT_TYPE};

/// Connections that are open at once. With one more, the oldest is closed: it has had its chance, and clients that hang must not keep a
/// scraper out.
const MOST_CLIENTS: usize = 32;
/// How long one client may take, from the connection to the last byte of the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest request that is read, in bytes.
const LONGEST_REQUEST: usize = 8 << 10;
/// Pause after a connection could not be accepted: usually, all file descriptors are taken.
const BREATH: Duration = Duration::from_millis(100);

/// A page that is being served. Dropping it ends that.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl Server {
    /// Serves on a socket that listens already.
    pub(super) fn start(listener: StdTcpListener, source: Source) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (stop, mut stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name("metrics-page".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, source) => {}
                    _ = &mut stopped => {}
                }
            });
        })?;
        Ok(Self { address, _stop: stop })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn serve(listener: TcpListener, source: Source) {
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
            let _ = tokio::time::timeout(PATIENCE, answer(client, &source)).await;
        });
        clients.push_back(task.abort_handle());
    }
}

async fn answer(mut client: TcpStream, source: &Source) -> io::Result<()> {
    let mut request = Vec::with_capacity(1 << 10);
    let complete = loop {
        if request.windows(4).any(|end| end == b"\r\n\r\n") {
            break true;
        }
        if request.len() >= LONGEST_REQUEST || client.read_buf(&mut request).await? == 0 {
            break false;
        }
    };
    let answer =
        if complete { Answer::to(&request, source) } else { Answer::text(400, "a request was expected\n") };
    client.write_all(&answer.bytes()).await?;
    client.shutdown().await?;
    // A socket that is closed with unread bytes in it resets the connection, and the client may lose the answer.
    while client.read(&mut [0; 1 << 10]).await? > 0 {}
    Ok(())
}

struct Answer {
    status: u16,
    content_type: &'static str,
    body: String,
    with_body: bool,
}

impl Answer {
    fn to(request: &[u8], source: &Source) -> Self {
        let line = request.split(|b| *b == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let mut words = line.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if !words.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
            return Self::text(400, "a request over HTTP/1.1 was expected\n");
        }
        let mut answer = match target.split(['?', '#']).next().unwrap_or_default() {
            _ if !["GET", "HEAD"].contains(&method) => Self::text(405, "only GET and HEAD are answered\n"),
            "/metrics" => Self {
                status: 200,
                content_type: CONTENT_TYPE,
                body: page::render(&source()),
                with_body: true,
            },
            "/" => Self::text(200, "the metrics of a run of orchestra: /metrics\n"),
            _ => Self::text(404, "there is nothing here; the metrics are at /metrics\n"),
        };
        answer.with_body = method != "HEAD";
        answer
    }

    fn text(status: u16, body: &str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.to_owned(), with_body: true }
    }

    fn bytes(&self) -> Vec<u8> {
        let reason = match self.status {
            200 => "OK",
            404 => "Not Found",
            405 => "Method Not Allowed\r\nAllow: GET, HEAD",
            _ => "Bad Request",
        };
        let mut bytes = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.status,
            self.content_type,
            self.body.len()
        )
        .into_bytes();
        if self.with_body {
            bytes.extend_from_slice(self.body.as_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream as StdTcpStream;
    use std::sync::Arc;

    use super::super::names::PROCESS_CPU;
    use super::super::reading::Reading;
    use super::*;

    fn server() -> Server {
        let listener = StdTcpListener::bind("127.0.0.1:0").unwrap();
        let source: Source = Arc::new(|| {
            let mut reading = Reading::new();
            reading.add(&PROCESS_CPU, &[], 2_u64);
            reading
        });
        Server::start(listener, source).unwrap()
    }

    fn ask(server: &Server, request: &str) -> String {
        let mut client = StdTcpStream::connect(server.address()).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn the_page_is_there_and_nothing_else_is() {
        let server = server();
        let page = ask(&server, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        let (head, body) = page.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        assert!(body.ends_with("orchestra_process_cpu_time_seconds_total 2\n"), "{body}");
        for (request, status) in [
            ("GET /metrics?x=1 HTTP/1.1\r\n\r\n", "200"),
            ("GET / HTTP/1.0\r\n\r\n", "200"),
            ("GET /other HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi", "405"),
            ("rubbish\r\n\r\n", "400"),
            ("GET /metrics HTTP/2\r\n\r\n", "400"),
        ] {
            let answer = ask(&server, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
        }
    }

    #[test]
    fn a_head_request_gets_the_length_and_no_page() {
        let answer = ask(&server(), "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.ends_with("\r\n\r\n") && !answer.contains("Content-Length: 0"), "{answer}");
    }

    #[test]
    fn a_request_without_an_end_is_refused() {
        let answer = ask(&server(), &"x".repeat(LONGEST_REQUEST));
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }

    #[test]
    fn clients_that_hang_keep_nobody_out_and_the_oldest_is_closed() {
        let server = server();
        let mut hanging: Vec<StdTcpStream> = Vec::new();
        for _ in 0..2 * MOST_CLIENTS {
            hanging.push(StdTcpStream::connect(server.address()).unwrap());
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
        let address = server.address();
        drop(server);
        // The thread ends by itself; until then the port is taken.
        while StdTcpListener::bind(address).is_err() {
            std::thread::yield_now();
        }
    }
}
