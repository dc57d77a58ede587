//! Owns one worker process from its start to its end: reads its frames and its stderr, kills it when told, and reports its death.
//! It understands no frame and decides nothing.

use std::pin::Pin;
use std::time::Duration;

use orchestra_core::WorkerExit;
use orchestra_wire::codec::FrameDecoder;
use orchestra_wire::frames::FromWorker;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::oneshot;

use crate::launcher::WorkerProcess;
use crate::worker_stderr::{self, Speaker};

/// How long a process may take to exit after it closed its socket, and stderr to end after the process.
const LINGER: Duration = Duration::from_secs(10);

/// What the owner of a process reports, in this order: frames, at most one `Garbled`, one `Exited`.
pub enum ProcessEvent {
    /// A frame.
    Frame(FromWorker),
    /// Bytes that are no frame; the process is being killed.
    Garbled(String),
    /// It is gone and reaped.
    Exited {
        /// How.
        exit: WorkerExit,
        /// The tail of its stderr.
        last_words: String,
    },
}

/// Runs until the process is gone. Dropping the sender of `kill` kills the process.
pub async fn own(
    mut process: Box<dyn WorkerProcess>,
    mut frames: Box<dyn AsyncRead + Send + Unpin>,
    stderr: Box<dyn AsyncRead + Send + Unpin>,
    mut kill: oneshot::Receiver<()>,
    speaker: Speaker,
    report: impl Fn(ProcessEvent) + Send,
) {
    let words = tokio::spawn(worker_stderr::last_words(stderr, speaker));
    let mut decoder = FrameDecoder::new();
    let mut buffer = vec![0u8; 64 * 1024];
    let mut linger: Option<Pin<Box<tokio::time::Sleep>>> = None;
    loop {
        tokio::select! {
            biased;
            _ = &mut kill, if linger.is_none() => {
                // What it still says is read to its end, unless a grandchild keeps the socket open.
                process.kill();
                linger = Some(Box::pin(tokio::time::sleep(LINGER)));
            }
            () = async { if let Some(l) = linger.as_mut() { l.await } }, if linger.is_some() => break,
            read = frames.read(&mut buffer) => {
                // End of file and a reset connection mean the same: it is gone, or about to be.
                let Ok(n @ 1..) = read else { break };
                if let Err(what) = forward(&mut decoder, &buffer[..n], &report) {
                    report(ProcessEvent::Garbled(what));
                    process.kill();
                    break;
                }
            }
        }
    }
    let exit = match tokio::time::timeout(LINGER, process.wait()).await {
        Ok(exit) => exit,
        Err(_) => {
            process.kill();
            process.wait().await
        }
    };
    let last_words = match tokio::time::timeout(LINGER, words).await {
        Ok(Ok(words)) => words,
        _ => String::new(), // A grandchild holds the pipe open: the death itself matters more.
    };
    report(ProcessEvent::Exited { exit, last_words });
}

fn forward(
    decoder: &mut FrameDecoder<FromWorker>,
    bytes: &[u8],
    report: &impl Fn(ProcessEvent),
) -> Result<(), String> {
    decoder.push(bytes);
    while let Some(frame) = decoder.next().map_err(|e| e.to_string())? {
        report(ProcessEvent::Frame(frame));
    }
    Ok(())
}
