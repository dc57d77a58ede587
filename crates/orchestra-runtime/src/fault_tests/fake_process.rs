//! The outside of a fake worker: how it is started, killed and waited for, and the streams between it and its parent. What it does inside is
//! not known here.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use orchestra_core::restart::RestartPolicy;
use orchestra_core::{DeviceKind, WorkerExit};
use orchestra_plan::Plan;
use orchestra_worker::codec::{self, FrameDecoder};
use orchestra_worker::frames::{FromWorker, ToWorker};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::{Mutex, oneshot, watch};

use super::fake_worker::Worker;
use super::gpus::Gpus;
use super::log::{Act, Log};
use super::script::{KILLED, Script, Start, ms};
use crate::child::spawn::{Launched, WorkerProcess};
use crate::context::{RunOptions, Timeouts};
use crate::fleet::device_watch::DeviceOptions;
use crate::fleet::launcher::{EngineSpec, WorkerMemory};
use crate::tasks::groups::GroupOwner;

/// Room of each in-memory stream in bytes: as much as a socket has, so that neither side waits for the other to read.
pub const STREAM: usize = 256 << 10;
/// How often a heart beats.
const HEARTBEAT: Duration = ms(250);

/// Which start of a worker this is.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// In the order of all starts, from 1.
    pub nth: usize,
    /// Where, from 0.
    pub device: usize,
    /// In the order of the starts on that device, from 1.
    pub nth_here: usize,
}

/// Fake workers, started as a script for each says.
pub struct FakeEngine {
    script_of: Box<dyn Fn(Launch) -> Script + Send + Sync>,
    log: Log,
    gpus: Option<Gpus>,
    /// What [`EngineSpec::beats_while_busy`] says.
    pub beats_while_busy: bool,
    /// Bytes of what its workers are to load.
    pub spec_bytes: usize,
    starts: StdMutex<Vec<usize>>,
}

/// A run whose batch stages have this engine, and that has nothing else of its own.
pub fn options_with(plan: &Plan, engine: FakeEngine) -> RunOptions {
    let engine: Arc<dyn EngineSpec> = Arc::new(engine);
    RunOptions {
        engine: None,
        loaders: None,
        keepers: None,
        group_owner: GroupOwner::Host,
        tasks_only: false,
        first_part: None,
        engines: plan.batch_stages().map(|(id, _)| (id, Arc::clone(&engine))).collect(),
        timeouts: Timeouts::default(),
        restart: RestartPolicy::default(),
        trace: None,
        events: None,
        devices: DeviceOptions::default(),
    }
}

impl FakeEngine {
    /// Workers that live as `script_of` says.
    pub fn new(log: Log, script_of: impl Fn(Launch) -> Script + Send + Sync + 'static) -> Self {
        Self {
            script_of: Box::new(script_of),
            log,
            gpus: None,
            beats_while_busy: true,
            spec_bytes: 0,
            starts: StdMutex::default(),
        }
    }

    /// Their memory is that of these GPUs.
    pub fn on(self, gpus: Option<Gpus>) -> Self {
        Self { gpus, ..self }
    }

    fn count(&self, device: &DeviceKind) -> Launch {
        let device = match device {
            DeviceKind::Cuda { uuid } => uuid.trim_start_matches("GPU-").parse().unwrap(),
            DeviceKind::Cpu => 0,
        };
        let mut starts = self.starts.lock().unwrap();
        starts.push(device);
        Launch { nth: starts.len(), device, nth_here: starts.iter().filter(|d| **d == device).count() }
    }
}

impl EngineSpec for FakeEngine {
    fn launch(&self, device: &DeviceKind, memory: WorkerMemory<'_>) -> io::Result<Launched> {
        let launch = self.count(device);
        let script = (self.script_of)(launch);
        let log = self.log.clone();
        log.add(launch.nth, Act::Started(launch.device));
        if script.start == Start::CannotBeStarted {
            let why = "no such program".to_owned();
            log.add(launch.nth, Act::Ended(WorkerExit::SpawnFailed(why.clone())));
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        let (writer, inbox) = duplex(STREAM);
        let (outbox, reader) = duplex(STREAM);
        let (stderr_in, stderr) = duplex(STREAM);
        let (kill, killed) = oneshot::channel();
        let (report, gone) = watch::channel(None);
        let inbox = Inbox { stream: inbox, decoder: FrameDecoder::new() };
        let memory = memory.try_clone_to_owned()?;
        let on = self.gpus.clone().map(|gpus| (gpus, launch.device));
        let worker = Worker::new(launch.nth, script, log, inbox, stderr_in, memory).on(on);
        let sees = match device {
            DeviceKind::Cuda { uuid } => uuid.clone(),
            DeviceKind::Cpu => String::new(),
        };
        tokio::spawn(live(worker, Voice::new(outbox, sees), killed, report));
        let process = FakeProcess { pid: launch.nth as u32, kill: Some(kill), gone };
        Ok(Launched {
            reader: Box::new(reader),
            writer: Box::new(writer),
            stderr: Box::new(stderr),
            process: Box::new(process),
        })
    }

    fn spec(&self, _: &DeviceKind) -> Result<Vec<u8>, String> {
        Ok(vec![0; self.spec_bytes])
    }

    fn beats_while_busy(&self) -> bool {
        self.beats_while_busy
    }
}

/// The parent's hold on a fake worker.
struct FakeProcess {
    pid: u32,
    kill: Option<oneshot::Sender<()>>,
    gone: watch::Receiver<Option<WorkerExit>>,
}

impl WorkerProcess for FakeProcess {
    fn pid(&self) -> Option<u32> {
        Some(self.pid)
    }

    fn kill(&mut self) {
        self.kill = None;
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = WorkerExit> + Send + '_>> {
        Box::pin(async {
            match self.gone.wait_for(Option::is_some).await {
                Ok(exit) => exit.clone().unwrap_or(KILLED),
                Err(_) => KILLED, // The test is over, and its runtime with it.
            }
        })
    }
}

/// From the start of a process to its end, in the order in which the kernel does it: the streams are closed, then the exit is known.
async fn live(
    mut worker: Worker,
    voice: Voice,
    killed: oneshot::Receiver<()>,
    report: watch::Sender<Option<WorkerExit>>,
) {
    let end = tokio::select! {
        biased;
        _ = killed => None,
        end = worker.live(&voice) => Some(end),
    };
    if end.is_none() {
        worker.dies_of_a_kill().await;
    }
    worker.gives_back();
    let exit = end.unwrap_or(KILLED);
    let Remains { nth, log, stderr, stderr_stays_open } = worker.into_remains();
    drop(voice);
    if stderr_stays_open > Duration::ZERO {
        tokio::spawn(async move {
            tokio::time::sleep(stderr_stays_open).await;
            drop(stderr);
        });
    } else {
        drop(stderr);
    }
    log.add(nth, Act::Ended(exit.clone()));
    report.send_replace(Some(exit));
}

/// What is left of a worker: its end of the control streams is closed.
pub struct Remains {
    /// Its place in the order of all starts, from 1.
    pub nth: usize,
    /// Where its end is noted.
    pub log: Log,
    /// Another process may keep it open.
    pub stderr: DuplexStream,
    pub stderr_stays_open: Duration,
}

/// What a worker hears.
pub struct Inbox {
    stream: DuplexStream,
    decoder: FrameDecoder<ToWorker>,
}

impl Inbox {
    /// The next frame; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<ToWorker> {
        loop {
            if let Some(frame) = self.decoder.next().expect("the parent speaks the protocol") {
                return Some(frame);
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    /// Returns at the end of the stream. Frames that come before it are kept.
    pub async fn end(&mut self) {
        while self.fill().await {}
    }

    async fn fill(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let n = self.stream.read(&mut bytes).await.unwrap_or(0);
        self.decoder.push(&bytes[..n]);
        n > 0
    }
}

/// How a worker makes itself heard.
pub struct Voice {
    out: Mutex<DuplexStream>,
    /// Its `CUDA_VISIBLE_DEVICES`.
    sees: String,
    greeted: AtomicBool,
    frozen: AtomicBool,
}

impl Voice {
    fn new(out: DuplexStream, sees: String) -> Self {
        Self { out: Mutex::new(out), sees, greeted: AtomicBool::new(false), frozen: AtomicBool::new(false) }
    }

    pub async fn say(&self, frame: &FromWorker) {
        self.say_bytes(&bytes_of(frame)).await;
    }

    pub async fn say_bytes(&self, bytes: &[u8]) {
        // A parent that is gone interests a worker no more than the end of its input does.
        drop(self.out.lock().await.write_all(bytes).await);
    }

    pub async fn hello(&self, protocol: u32, build: &str) {
        self.hello_seeing(Some(self.sees.clone()), protocol, build).await;
    }

    pub async fn hello_seeing(&self, visible_devices: Option<String>, protocol: u32, build: &str) {
        let hello = FromWorker::Hello { protocol, build: build.to_owned(), pid: 1, visible_devices };
        self.say(&hello).await;
        self.greeted.store(true, Ordering::Relaxed);
    }

    pub async fn beat(&self) -> Infallible {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            if self.greeted.load(Ordering::Relaxed) && !self.frozen.load(Ordering::Relaxed) {
                self.say(&FromWorker::Heartbeat).await;
            }
        }
    }

    /// As by SIGSTOP.
    pub async fn freeze(&self) -> Infallible {
        self.frozen.store(true, Ordering::Relaxed);
        std::future::pending().await
    }
}

pub fn bytes_of(frame: &FromWorker) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode(frame, &mut bytes).unwrap();
    bytes
}
