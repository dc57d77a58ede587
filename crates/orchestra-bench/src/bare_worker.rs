//! One worker process and its frames, without actors, ledger or restarts. A worker that fails is the end of the measurement.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use orchestra_core::{BatchId, DeviceKind, SlotId};
use orchestra_runtime::Launcher;
use orchestra_runtime::launcher::Launched;
use orchestra_wire::codec::{self, FrameDecoder};
use orchestra_wire::frames::{FromWorker, Load, Run, ToWorker};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

/// How long a worker may take to load, as in a run.
const LOAD: Duration = Duration::from_secs(600);
/// How long it may take to end when asked; then it is killed.
const END: Duration = Duration::from_secs(5);
/// Bytes of its stderr that are kept.
const LAST_WORDS: usize = 4 << 10;

/// See the module.
pub struct BareWorker {
    launched: Launched,
    decoder: FrameDecoder<FromWorker>,
    buffer: Vec<u8>,
    frame: Vec<u8>,
    next_batch: u64,
    answer_within: Duration,
    last_words: Arc<Mutex<Vec<u8>>>,
}

/// Why a worker is of no use, as the rest of the sentence "a worker ...".
pub type Fault = String;

impl BareWorker {
    /// Starts a worker and has it load. Within a tokio runtime.
    pub async fn start(
        launcher: &dyn Launcher,
        device: &DeviceKind,
        arena: BorrowedFd<'_>,
        load: Load,
        answer_within: Duration,
    ) -> Result<Self, Fault> {
        let mut launched =
            launcher.launch(device, arena).map_err(|error| format!("could not be started: {error}"))?;
        let last_words = Arc::new(Mutex::new(Vec::new()));
        let stderr = std::mem::replace(&mut launched.stderr, Box::new(tokio::io::empty()));
        tokio::spawn(listen(stderr, Arc::clone(&last_words)));
        let mut worker = Self {
            launched,
            decoder: FrameDecoder::new(),
            buffer: vec![0; 64 << 10],
            frame: Vec::new(),
            next_batch: 0,
            answer_within,
            last_words,
        };
        match worker.load(load).await {
            Ok(()) => Ok(worker),
            Err(fault) => {
                let said = worker.kill().await;
                Err(if said.is_empty() { fault } else { format!("{fault}; it said: {said}") })
            }
        }
    }

    async fn load(&mut self, load: Load) -> Result<(), Fault> {
        // What this build starts is this build, or a worker that refuses the load frame.
        match self.frame(LOAD).await? {
            FromWorker::Hello { .. } => {}
            other => return Err(format!("began with {}", name(&other))),
        }
        self.send(&ToWorker::Load(Box::new(load))).await?;
        match self.frame(LOAD).await? {
            FromWorker::Loaded { .. } => Ok(()),
            FromWorker::LoadFailed { error, .. } => Err(format!("could not load: {error}")),
            other => Err(format!("answered a load with {}", name(&other))),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> Option<u32> {
        self.launched.process.pid()
    }

    /// Sends a batch: all rows of a slot.
    pub async fn run(&mut self, slot: SlotId, rows: usize) -> Result<(), Fault> {
        let batch = BatchId(self.next_batch);
        self.next_batch += 1;
        self.send(&ToWorker::Run(Run { batch, attempt: 1, slot, first_row: 0, rows, trace: None })).await
    }

    /// Waits for the next answer, and tells what the batch took in the worker.
    pub async fn done(&mut self) -> Result<Duration, Fault> {
        match self.frame(self.answer_within).await? {
            FromWorker::Done { timing, .. } => {
                let parts = [timing.bind_ns, timing.run_ns, timing.copy_out_ns];
                Ok(Duration::from_nanos(parts.into_iter().fold(0, u64::saturating_add)))
            }
            FromWorker::Failed { error, .. } => Err(format!("could not run a batch: {error}")),
            other => Err(format!("answered a batch with {}", name(&other))),
        }
    }

    /// Asks it to end, and waits until it is gone.
    pub async fn end(mut self) {
        // The end of our side tells it. One that cannot be told is gone, or is killed below.
        let told = self.launched.writer.shutdown().await;
        if told.is_err() || tokio::time::timeout(END, self.launched.process.wait()).await.is_err() {
            self.kill().await;
        }
    }

    /// Kills it, waits until it is gone, and tells what it said last.
    pub async fn kill(mut self) -> String {
        self.launched.process.kill();
        self.launched.process.wait().await;
        let words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&words).trim().replace('\n', " | ")
    }

    async fn send(&mut self, frame: &ToWorker) -> Result<(), Fault> {
        self.frame.clear();
        codec::encode(frame, &mut self.frame).map_err(|e| format!("cannot be told what to do: {e}"))?;
        self.launched.writer.write_all(&self.frame).await.map_err(|_| "ended unasked".to_owned())
    }

    /// The next frame that is no heartbeat.
    async fn frame(&mut self, within: Duration) -> Result<FromWorker, Fault> {
        tokio::time::timeout(within, self.next_frame())
            .await
            .unwrap_or_else(|_| Err(format!("gave no answer within {} s", within.as_secs())))
    }

    async fn next_frame(&mut self) -> Result<FromWorker, Fault> {
        loop {
            match self.decoder.next() {
                Ok(Some(FromWorker::Heartbeat { .. })) => continue,
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(error) => return Err(format!("sent something unreadable: {error}")),
            }
            match self.launched.reader.read(&mut self.buffer).await {
                Ok(n @ 1..) => self.decoder.push(&self.buffer[..n]),
                Ok(0) | Err(_) => return Err("ended unasked".to_owned()),
            }
        }
    }
}

fn name(frame: &FromWorker) -> &'static str {
    match frame {
        FromWorker::Hello { .. } => "a greeting",
        FromWorker::Loaded { .. } => "the end of a load",
        FromWorker::LoadFailed { .. } => "a failed load",
        FromWorker::Done { .. } => "the end of a batch",
        FromWorker::Failed { .. } => "a failed batch",
        FromWorker::Heartbeat { .. } => "a heartbeat",
    }
}

/// Keeps the end of what it says, so that its pipe never fills up.
async fn listen(mut stderr: Box<dyn AsyncRead + Send + Unpin>, kept: Arc<Mutex<Vec<u8>>>) {
    let mut chunk = [0; 1024];
    while let Ok(n @ 1..) = stderr.read(&mut chunk).await {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&chunk[..n]);
        let excess = kept.len().saturating_sub(LAST_WORDS);
        kept.drain(..excess);
    }
}
