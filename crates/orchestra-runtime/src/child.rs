//! A child process as its owner sees it: its frames, its last words, its kill and its end. It understands no frame and decides nothing.

pub mod spawn;
pub mod words;

use std::sync::LazyLock;
use std::thread::available_parallelism;
use std::time::Duration;

use orchestra_core::WorkerExit;
use orchestra_machine::processes::process;
use orchestra_worker::codec::{CodecError, Frame, FrameDecoder, encode};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use self::spawn::{Launched, WorkerProcess};
use self::words::{StderrText, last_words};

/// How long a process may take to exit after it closed its socket, and stderr to end after the process.
const LINGER: Duration = Duration::from_secs(10);
/// How long a process may say nothing before it is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often its threads are counted.
const COUNT_EVERY: Duration = Duration::from_millis(250);
/// It may run so many threads, which no library comes near: those of all processes of a user have a limit, and the run has to start some, too.
static MOST_THREADS: LazyLock<u64> =
    LazyLock::new(|| 1024 + 16 * available_parallelism().map_or(1, |cores| cores.get() as u64));
/// Bytes that are kept for the next frames.
const KEPT: usize = 1 << 20;
/// Bytes of its frames that are read at once.
const READ_AT_ONCE: usize = 64 << 10;

/// A process that sends frames `F`. Dropping it kills the process, but a keeper.
pub struct Child<F> {
    process: Box<dyn WorkerProcess>,
    reader: Box<dyn AsyncRead + Send + Unpin>,
    decoder: FrameDecoder<F>,
    buffer: Box<[u8]>,
    words: JoinHandle<String>,
    killed: Option<Instant>,
    /// When it was last looked at.
    was_stopped: bool,
    next_look: Instant,
    next_count: Instant,
}

impl<F: Frame> Child<F> {
    /// Takes over a process, and gives the way of frames to it. What it says on stderr is told to `log`. Must be called within a tokio runtime.
    pub fn new(launched: Launched, log: impl FnMut(StderrText<'_>) + Send + 'static) -> (Self, FrameSender) {
        let Launched { reader, writer, stderr, process } = launched;
        let child = Self {
            process,
            reader,
            decoder: FrameDecoder::new(),
            buffer: vec![0; READ_AT_ONCE].into(),
            words: tokio::spawn(last_words(stderr, log)),
            killed: None,
            was_stopped: false,
            next_look: Instant::now() + LOOK_EVERY,
            next_count: Instant::now(),
        };
        (child, FrameSender { writer: Some(writer), bytes: Vec::new(), written: 0 })
    }

    /// Frames of outputs that are larger count as a batch for which there was no memory.
    pub fn limit_room(&mut self, room: usize) {
        self.decoder.limit_room(room);
    }

    /// The next frame; `None`: its socket is closed or reset, so it is gone, or about to be. May be dropped and called again.
    ///
    /// # Errors
    /// What it has sent is no frame, it was stopped by a signal (`kill -STOP`) and did not go on at once, or it runs too many threads.
    pub async fn next(&mut self) -> Result<Option<F>, WorkerExit> {
        loop {
            self.count_threads()?;
            if let Some(frame) =
                self.decoder.next().map_err(|error| WorkerExit::Garbled(error.to_string()))?
            {
                return Ok(Some(frame));
            }
            match timeout_at(self.next_look, self.reader.read(&mut self.buffer)).await {
                Ok(Ok(n @ 1..)) => {
                    self.decoder.push(&self.buffer[..n]);
                    self.looked(false);
                }
                Ok(_) => return Ok(None),
                Err(_) => {
                    let is_stopped = self.state() == Some('T');
                    if is_stopped && self.was_stopped {
                        return Err(WorkerExit::Silent);
                    }
                    self.looked(is_stopped);
                }
            }
        }
    }

    fn count_threads(&mut self) -> Result<(), WorkerExit> {
        let now = Instant::now();
        if now < self.next_count {
            return Ok(());
        }
        self.next_count = now + COUNT_EVERY;
        let threads = self.process.pid().and_then(process).map_or(0, |process| process.threads);
        if threads > *MOST_THREADS { Err(WorkerExit::TooManyThreads(threads)) } else { Ok(()) }
    }

    fn looked(&mut self, is_stopped: bool) {
        (self.was_stopped, self.next_look) = (is_stopped, Instant::now() + LOOK_EVERY);
    }

    /// What the kernel says that it does, as `ps` shows it; `None`: that is not known.
    pub fn state(&self) -> Option<char> {
        self.process.pid().and_then(process).map(|process| process.state)
    }

    /// Kills it. Whether that is the first time.
    pub fn kill(&mut self) -> bool {
        self.process.kill();
        self.killed.replace(self.killed.unwrap_or_else(Instant::now)).is_none()
    }

    /// How it has ended, once its socket is closed: one that was not killed has a while to exit by itself, and one that was killed has `patience`
    /// to die of it. `None`: it did not.
    pub async fn exit(&mut self, patience: Duration) -> Option<WorkerExit> {
        if self.killed.is_none()
            && let Ok(exit) = timeout(LINGER, self.process.wait()).await
        {
            return Some(exit);
        }
        self.kill();
        timeout_at(self.killed? + patience, self.process.wait()).await.ok()
    }

    /// How it has ended, whenever that is.
    pub async fn wait(&mut self) -> WorkerExit {
        self.process.wait().await
    }

    /// The end of what it has said on stderr, once it is gone. Where another process holds that open, it is nothing: the death matters more.
    pub async fn last_words(&mut self) -> String {
        timeout(LINGER, &mut self.words).await.ok().and_then(Result::ok).unwrap_or_default()
    }
}

/// The way of frames to a process.
pub struct FrameSender {
    /// `None`: our side is closed, or the process is gone.
    writer: Option<Box<dyn AsyncWrite + Send + Sync + Unpin>>,
    /// Frames that wait, of which so many bytes are written.
    bytes: Vec<u8>,
    written: usize,
}

impl FrameSender {
    /// Writes a frame. That the process is gone is no error: the end of its own frames tells that.
    pub async fn send(&mut self, frame: &impl Frame) -> Result<(), CodecError> {
        self.queue(frame)?;
        self.flush().await;
        Ok(())
    }

    /// Has `flush` write a frame.
    pub fn queue(&mut self, frame: &impl Frame) -> Result<(), CodecError> {
        encode(frame, &mut self.bytes)
    }

    /// Whether frames wait for [`FrameSender::flush`].
    pub fn is_behind(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Writes what waits. May be dropped and called again.
    pub async fn flush(&mut self) {
        while let Some(writer) = self.writer.as_mut().filter(|_| self.written < self.bytes.len()) {
            match writer.write(&self.bytes[self.written..]).await {
                Ok(n @ 1..) => self.written += n,
                Ok(_) | Err(_) => self.writer = None,
            }
        }
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
        self.written = 0;
    }

    /// Closes our side, which tells the process to exit. Where that cannot be said, it is gone, or killed by the next deadline.
    pub async fn hang_up(&mut self) {
        if let Some(mut writer) = self.writer.take() {
            drop(writer.shutdown().await);
        }
    }
}
