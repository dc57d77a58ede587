//! Owns one worker process from its start to its end: reads its frames and its stderr, kills it when told, and reports its death.
//! It understands no frame and decides nothing.

use std::time::Duration;

use orchestra_core::WorkerExit;
use orchestra_machine::processes;
use orchestra_worker::codec::FrameDecoder;
use orchestra_worker::frames::FromWorker;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::fleet::launcher::WorkerProcess;
use crate::fleet::worker_stderr::{self, Speaker};

/// How long a process may take to exit after it closed its socket, and stderr to end after the process.
const LINGER: Duration = Duration::from_secs(10);

/// What the owner of a process reports, in this order: frames, at most one `Garbled`, at most one `Undying`, one `Exited`.
pub enum ProcessEvent {
    Frame(FromWorker),
    /// Bytes that are no frame; the process is being killed.
    Garbled(String),
    /// It was killed long ago and is still there. Should it ever end, `Exited` follows.
    Undying {
        pid: Option<u32>,
        /// As in [`processes::Process`]; `?` where it is not known.
        state: char,
    },
    Exited {
        exit: WorkerExit,
        /// The tail of its stderr.
        last_words: String,
    },
}

/// Runs until the process is gone. Dropping the sender of `kill` kills it; it has `patience` to end of that.
pub async fn own(
    mut process: Box<dyn WorkerProcess>,
    mut frames: Box<dyn AsyncRead + Send + Unpin>,
    stderr: Box<dyn AsyncRead + Send + Unpin>,
    mut kill: oneshot::Receiver<()>,
    patience: Duration,
    speaker: Speaker,
    report: impl Fn(ProcessEvent) + Send + Sync,
) {
    let words = tokio::spawn(worker_stderr::last_words(stderr, speaker));
    let mut reading = std::pin::pin!(forward(&mut *frames, &report));
    let (read, mut killed_at) = tokio::select! {
        biased;
        _ = &mut kill => {
            process.kill();
            let killed_at = Some(Instant::now());
            // What it still says is read to its end, unless a grandchild keeps the socket open.
            (tokio::time::timeout(LINGER, &mut reading).await.unwrap_or(Ok(())), killed_at)
        }
        read = &mut reading => (read, None),
    };
    if let Err(what) = read {
        report(ProcessEvent::Garbled(what));
        process.kill();
        killed_at = Some(Instant::now());
    }
    let exit = match end_in_time(process.as_mut(), killed_at, patience).await {
        Some(exit) => exit,
        None => {
            let pid = process.pid();
            let state = pid.and_then(processes::process).map_or('?', |process| process.state);
            report(ProcessEvent::Undying { pid, state });
            process.wait().await
        }
    };
    let last_words = match tokio::time::timeout(LINGER, words).await {
        Ok(Ok(words)) => words,
        _ => String::new(), // A grandchild holds the pipe open: the death itself matters more.
    };
    report(ProcessEvent::Exited { exit, last_words });
}

/// The end of a process whose socket is closed: one that was not killed has a while to exit by itself, and one that was killed to die of it.
/// `None`: it did not.
async fn end_in_time(
    process: &mut dyn WorkerProcess,
    killed_at: Option<Instant>,
    patience: Duration,
) -> Option<WorkerExit> {
    let killed_at = match killed_at {
        Some(at) => at,
        None => match tokio::time::timeout(LINGER, process.wait()).await {
            Ok(exit) => return Some(exit),
            Err(_) => {
                process.kill();
                Instant::now()
            }
        },
    };
    tokio::time::timeout_at(killed_at + patience, process.wait()).await.ok()
}

/// Reports frames until no more come: end of file and a reset connection mean the same, that it is gone, or about to be.
async fn forward(
    frames: &mut (dyn AsyncRead + Send + Unpin),
    report: &(impl Fn(ProcessEvent) + Sync),
) -> Result<(), String> {
    let mut decoder = FrameDecoder::new();
    let mut buffer = vec![0u8; 64 * 1024];
    while let Ok(n @ 1..) = frames.read(&mut buffer).await {
        decoder.push(&buffer[..n]);
        while let Some(frame) = decoder.next().map_err(|e| e.to_string())? {
            report(ProcessEvent::Frame(frame));
        }
    }
    Ok(())
}
