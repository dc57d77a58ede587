//! The parent's end of the worker protocol, one frame at a time: a worker process without actors, ledger or restarts. Blocks.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orchestra_core::{WorkerExit, locked};
use orchestra_runtime::Launched;
use orchestra_worker::codec::{self, CodecError, FrameDecoder};
use orchestra_worker::frames::{FromWorker, ToWorker};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// Bytes of a worker's stderr that are kept: the last ones.
const LAST_WORDS: usize = 4 << 10;

/// A worker process. Dropping it kills it and waits for its end.
pub struct WorkerClient {
    /// Its own, so that no worker waits for the frames of another one.
    runtime: Runtime,
    launched: Launched,
    pid: Option<u32>,
    decoder: FrameDecoder<FromWorker>,
    buffer: Vec<u8>,
    frame: Vec<u8>,
    last_words: Arc<Mutex<Vec<u8>>>,
    listener: JoinHandle<()>,
}

impl WorkerClient {
    /// The worker that `launch` starts, which is called within a tokio runtime.
    pub fn start(launch: impl FnOnce() -> io::Result<Launched>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let mut launched = launch()?;
        let last_words = Arc::new(Mutex::new(Vec::new()));
        let stderr = std::mem::replace(&mut launched.stderr, Box::new(tokio::io::empty()));
        let listener = runtime.spawn(keep_last_words(stderr, Arc::clone(&last_words)));
        drop(inside);
        let pid = launched.process.pid();
        let (decoder, buffer) = (FrameDecoder::new(), vec![0; 64 << 10]);
        Ok(Self { runtime, launched, pid, decoder, buffer, frame: Vec::new(), last_words, listener })
    }

    /// Its process id; `None` if it is no process of its own.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    pub fn send(&mut self, frame: &ToWorker) -> Result<(), CodecError> {
        let mut bytes = std::mem::take(&mut self.frame);
        bytes.clear();
        let sent = codec::encode(frame, &mut bytes).and_then(|()| self.send_bytes(&bytes));
        self.frame = bytes;
        sent
    }

    /// Sends bytes that may be no frame.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), CodecError> {
        self.runtime.block_on(self.launched.writer.write_all(bytes)).map_err(|_| CodecError::Gone)
    }

    /// Waits for the next frame; `None` when the worker is gone.
    pub fn frame(&mut self) -> Result<Option<FromWorker>, CodecError> {
        self.runtime.block_on(next_frame(&mut self.launched, &mut self.decoder, &mut self.buffer))
    }

    /// As [`WorkerClient::frame`], without heartbeats and waits for another worker.
    pub fn answer(&mut self) -> Result<Option<FromWorker>, CodecError> {
        loop {
            match self.frame() {
                Ok(Some(FromWorker::Heartbeat | FromWorker::Waiting)) => {}
                other => return other,
            }
        }
    }

    /// Asks it to end: closes this side of the socket for writing.
    pub fn hang_up(&mut self) -> io::Result<()> {
        self.runtime.block_on(self.launched.writer.shutdown())
    }

    pub fn wait(&mut self) -> WorkerExit {
        self.runtime.block_on(self.launched.process.wait())
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) -> WorkerExit {
        self.launched.process.kill();
        self.wait()
    }

    /// Waits for the end of its stderr, and gives the last of it. To be called after its end.
    pub fn last_words(&mut self) -> String {
        let Self { runtime, listener, .. } = self;
        if !listener.is_finished() {
            // A process that the worker has started may hold its stderr open.
            drop(runtime.block_on(async { tokio::time::timeout(Duration::from_secs(1), listener).await }));
        }
        let words = locked(&self.last_words);
        String::from_utf8_lossy(&words).into_owned()
    }
}

impl Drop for WorkerClient {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn next_frame(
    launched: &mut Launched,
    decoder: &mut FrameDecoder<FromWorker>,
    buffer: &mut [u8],
) -> Result<Option<FromWorker>, CodecError> {
    loop {
        if let Some(frame) = decoder.next()? {
            return Ok(Some(frame));
        }
        match launched.reader.read(buffer).await {
            Ok(n @ 1..) => decoder.push(&buffer[..n]),
            // Or the reset that a Unix socket reports when its peer has died with unread data.
            Ok(_) => return decoder.finish().map(|()| None),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                return decoder.finish().map(|()| None);
            }
            Err(error) => return Err(CodecError::Io(error)),
        }
    }
}

/// Reads all that it says, so that its pipe never fills up.
async fn keep_last_words(mut stderr: Box<dyn AsyncRead + Send + Unpin>, kept: Arc<Mutex<Vec<u8>>>) {
    let mut chunk = [0; 1024];
    while let Ok(n @ 1..) = stderr.read(&mut chunk).await {
        let mut kept = locked(&kept);
        kept.extend_from_slice(&chunk[..n]);
        let excess = kept.len().saturating_sub(LAST_WORDS);
        kept.drain(..excess);
    }
}
