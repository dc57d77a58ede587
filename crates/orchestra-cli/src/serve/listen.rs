//! Listens for `orchestra serve`, at an address or a Unix socket. It bounds how long a connection may be silent, lets requests that have begun end, and reads
//! none.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

/// Between two attempts to take a connection where this process cannot have one more.
const PAUSE: Duration = Duration::from_millis(100);
/// The first bytes of a connection of HTTP/2.
const PREFACE_BYTES: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spoken {
    Http1,
    /// gRPC.
    Http2,
}

/// A place where connections come in.
pub struct Listening {
    listener: Listener,
    /// As clients call it.
    pub address: String,
}

enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

/// The file of a socket. It goes with the listener.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0)); // It may be gone.
    }
}

trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Connection for S {}

impl Listening {
    /// At `HOST:PORT`, or at `unix:/path`.
    pub async fn at(address: &str) -> anyhow::Result<Self> {
        let listening = match address.strip_prefix("unix:") {
            Some(path) => unix(Path::new(path)).map(|listener| (listener, address.to_owned())),
            None => TcpListener::bind(address).await.and_then(|listener| {
                let address = listener.local_addr()?.to_string();
                Ok((Listener::Tcp(listener), address))
            }),
        };
        let (listener, address) = listening.with_context(|| {
            format!("cannot listen at `{address}`, which is HOST:PORT or unix:/path/of/a.sock")
        })?;
        Ok(Self { listener, address })
    }

    /// As curl takes it; of a socket, its file.
    pub fn url(&self) -> String {
        if self.address.starts_with("unix:") {
            self.address.clone()
        } else {
            format!("http://{}", self.address)
        }
    }

    /// Answers connections until it is stopped, and then those requests that have begun.
    pub async fn serve(
        self,
        spoken: Spoken,
        routes: Router,
        read_timeout: Duration,
        mut stopped: watch::Receiver<()>,
    ) {
        let builder = builder(spoken, read_timeout);
        let connections = GracefulShutdown::new();
        loop {
            let stream = tokio::select! {
                biased;
                _ = stopped.changed() => break,
                stream = self.listener.accept() => stream,
            };
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) if is_of_the_client(&error) => continue,
                Err(error) => {
                    tracing::warn!(%error, "connections wait: this process cannot take one more");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let stream: Box<dyn Connection> = match spoken {
                Spoken::Http1 => stream,
                Spoken::Http2 => Box::new(Greeted::within(read_timeout, stream)),
            };
            let service = TowerToHyperService::new(routes.clone());
            let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
            let connection = connections.watch(connection);
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection has ended");
                }
            });
        }
        drop(self.listener);
        connections.shutdown().await;
    }
}

fn builder(spoken: Spoken, read_timeout: Duration) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(read_timeout);
    // A client that is gone without a word is told by its silence.
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(read_timeout).keep_alive_timeout(read_timeout);
    match spoken {
        Spoken::Http1 => builder.http1_only(),
        Spoken::Http2 => builder.http2_only(),
    }
}

/// A socket file that no process listens at any more is taken over.
fn unix(path: &Path) -> io::Result<Listener> {
    let bound = UnixListener::bind(path).or_else(|error| {
        let is_left = error.kind() == io::ErrorKind::AddrInUse
            && StdUnixStream::connect(path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if !is_left {
            return Err(error);
        }
        std::fs::remove_file(path)?;
        UnixListener::bind(path)
    });
    Ok(Listener::Unix { listener: bound?, _file: SocketFile(path.to_owned()) })
}

/// The client has gone before its connection was taken.
fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Connection>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Answers are written whole: nothing is to be waited for.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "answers may be late");
                }
                Ok(Box::new(stream))
            }
            Self::Unix { listener, .. } => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// A connection whose first bytes must come in time. hyper bounds that of HTTP/1, and later silence.
struct Greeted {
    stream: Box<dyn Connection>,
    /// `None`: they are there.
    late: Option<Pin<Box<Sleep>>>,
    n_read: usize,
}

impl Greeted {
    fn within(timeout: Duration, stream: Box<dyn Connection>) -> Self {
        Self { stream, late: Some(Box::pin(sleep(timeout))), n_read: 0 }
    }
}

impl AsyncRead for Greeted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let Some(late) = &mut self.late else { return read };
        if read.is_pending() {
            ready!(late.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        self.n_read += buffer.filled().len() - before;
        if self.n_read >= PREFACE_BYTES {
            self.late = None;
        }
        read
    }
}

impl AsyncWrite for Greeted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }
}
