//! The inside of a fake worker: it speaks the real protocol and uses the real arena, takes as long as its script says and goes wrong where
//! its script says. It judges nothing; what it did is in the log.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use orchestra_core::{BatchId, DType, ErrorClass, WorkerExit};
use orchestra_worker::BUILD;
use orchestra_worker::arena::{RowMemory, SharedMemory, WorkerArena};
use orchestra_worker::frames::{
    BatchRun, DynamicOutput, FromWorker, PROTOCOL_VERSION, RowError, RowsWithoutOutputs, RunErrorKind,
    RunTiming, ToWorker,
};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::{Mutex as AsyncMutex, Notify};

use super::fake_process::{Inbox, Remains, Voice, bytes_of};
use super::gpus::Gpus;
use super::log::{Act, Log};
use super::script::{
    DEVICE_BROKEN, Ending, Load, Other, OutputFault, Point, RunFault, Script, Start, TimedFault, ms,
};

/// What a row of `item` gives.
pub fn answer_to(item: u64) -> f32 {
    item as f32 * 3.0 + 1.0
}

/// How the life of a worker ends.
type Doing<T = ()> = Result<T, WorkerExit>;

/// A worker that lives in the memory of the test.
pub struct Worker {
    inbox: Inbox,
    memory: Option<SharedMemory<OwnedFd>>,
    /// Where it may take memory.
    on: Option<(Gpus, usize)>,
    holds: bool,
    /// What its runs share, as many as there are at once.
    core: Core,
}

struct Core {
    nth: usize,
    script: Script,
    log: Log,
    stderr: AsyncMutex<DuplexStream>,
    /// From the load frame on, as `streams`.
    arena: Option<WorkerArena>,
    /// Batches that it runs at once.
    streams: usize,
    running: Mutex<Vec<BatchRun>>,
    /// Runs that it was sent and has not begun.
    waiting: Mutex<VecDeque<BatchRun>>,
    came: Notify,
    n_runs: AtomicU64,
    answered: Mutex<Option<BatchId>>,
}

/// What becomes of a worker after a run.
enum After {
    Answered,
    /// It stops as by SIGSTOP.
    Freezes,
}

impl Worker {
    /// A worker that has just been started.
    pub fn new(
        nth: usize,
        script: Script,
        log: Log,
        inbox: Inbox,
        stderr: DuplexStream,
        memory: SharedMemory<OwnedFd>,
    ) -> Self {
        let core = Core {
            nth,
            script,
            log,
            stderr: AsyncMutex::new(stderr),
            arena: None,
            streams: 1,
            running: Mutex::default(),
            waiting: Mutex::default(),
            came: Notify::new(),
            n_runs: AtomicU64::new(0),
            answered: Mutex::default(),
        };
        Self { inbox, memory: Some(memory), on: None, holds: false, core }
    }

    /// On one of these GPUs.
    pub fn on(self, on: Option<(Gpus, usize)>) -> Self {
        Self { on, ..self }
    }

    /// As the driver does it when a process is gone.
    pub fn gives_back(&mut self) {
        if let Some((gpus, device)) = self.on.as_ref().filter(|_| std::mem::take(&mut self.holds)) {
            gpus.give_back(*device, self.core.nth as u32, self.core.script.takes);
        }
    }

    /// Lives until it ends by itself.
    pub async fn live(&mut self, voice: &Voice) -> WorkerExit {
        let end = tokio::select! {
            biased;
            end = self.serve(voice) => end,
            never = voice.beat() => match never {},
        };
        match end {
            Err(exit) => exit,
            Ok(never) => match never {},
        }
    }

    async fn serve(&mut self, voice: &Voice) -> Doing<Infallible> {
        self.greet(voice).await?;
        self.load(voice).await?;
        let later = self.core.script.later.clone();
        let happens = async {
            match later {
                Some((after, what)) => {
                    tokio::time::sleep(after).await;
                    what
                }
                None => pending().await,
            }
        };
        let what = tokio::select! {
            biased;
            what = happens => what,
            end = self.work(voice) => return end,
        };
        match what {
            TimedFault::Dies(exit) => Err(exit),
            TimedFault::Freezes => Ok(voice.freeze().await),
            TimedFault::AnswersUnasked => {
                voice.say(&done(BatchId(u64::MAX), Vec::new())).await;
                self.hang().await
            }
        }
    }

    async fn greet(&mut self, voice: &Voice) -> Doing {
        let script = &self.core.script;
        if !script.says.is_empty() {
            let line = format!("{}\n", script.says);
            drop(self.core.stderr.lock().await.write_all(line.as_bytes()).await);
        }
        match script.start.clone() {
            Start::Hello => voice.hello(PROTOCOL_VERSION, BUILD).await,
            Start::Freezes => {
                voice.hello(PROTOCOL_VERSION, BUILD).await;
                match voice.freeze().await {}
            }
            Start::Dies(exit) => return Err(exit),
            Start::Silent | Start::CannotBeStarted => return self.hang().await,
            Start::OtherProtocol => voice.hello(PROTOCOL_VERSION + 1, BUILD).await,
            Start::OtherBuild => voice.hello(PROTOCOL_VERSION, "another build").await,
            Start::SeesEveryDevice => voice.hello_seeing(None, PROTOCOL_VERSION, BUILD).await,
            Start::Garbage => voice.say_bytes(&[0xff; 64]).await,
            Start::LoadedFirst => {
                voice.say(&loaded(Duration::ZERO, 0)).await;
                return self.hang().await;
            }
        }
        Ok(())
    }

    async fn load(&mut self, voice: &Voice) -> Doing {
        let load = match self.inbox.next().await {
            Some(ToWorker::Load(load)) => load,
            Some(other) => panic!("a load frame comes first, not {other:?}"),
            None => return Err(self.core.told_to_end().await),
        };
        let takes = self.core.script.load_takes;
        match self.core.script.load.clone() {
            Load::Works => {
                self.busy(takes).await?;
                self.take_memory(voice).await?;
            }
            Load::Fails(class) => {
                self.busy(takes).await?;
                voice.say(&FromWorker::LoadFailed { class, error: "no room for the model".to_owned() }).await;
                return Err(WorkerExit::Code(1));
            }
            Load::Dies(exit) => {
                self.busy(takes).await?;
                return Err(exit);
            }
            Load::WaitsFor(other) => {
                let end = tokio::time::Instant::now() + other;
                while tokio::time::Instant::now() < end {
                    self.busy(Duration::from_millis(250)).await?;
                    voice.say(&FromWorker::Waiting).await;
                }
                self.busy(takes).await?;
                self.take_memory(voice).await?;
            }
            Load::NeverEnds => return self.hang().await,
            Load::Freezes => match voice.freeze().await {},
        }
        let memory = self.memory.take().expect("there is one load frame");
        self.core.streams = load.streams;
        self.core.arena = Some(WorkerArena::map(memory, load.layout).unwrap());
        let warmed = load.padded_to.unwrap_or_default();
        voice.say(&loaded(takes, warmed)).await;
        self.core.log.add(self.core.nth, Act::Loaded);
        Ok(())
    }

    async fn take_memory(&mut self, voice: &Voice) -> Doing {
        let Some((gpus, device)) = &self.on else { return Ok(()) };
        self.holds = gpus.take(*device, self.core.nth as u32, self.core.script.takes);
        if self.holds {
            return Ok(());
        }
        let error = "CUDA failure 2: out of memory".to_owned();
        voice.say(&FromWorker::LoadFailed { class: ErrorClass::Overload, error }).await;
        Err(WorkerExit::Code(1))
    }

    /// Begins runs in their order, as many at once as it was told, unless it is told to end.
    async fn work(&mut self, voice: &Voice) -> Doing<Infallible> {
        let Self { inbox, core, .. } = self;
        let core = &*core;
        let mut runs = FuturesUnordered::new();
        loop {
            while runs.len() < core.streams
                && let Some(run) = core.next_waiting()
            {
                runs.push(core.run(voice, run));
            }
            tokio::select! {
                biased;
                frame = inbox.next() => match frame {
                    Some(ToWorker::Run(run)) => {
                        core.waiting.lock().unwrap().push_back(run);
                        core.came.notify_waiters();
                    }
                    Some(other) => panic!("only runs come after the load frame, not {other:?}"),
                    None => return Err(core.told_to_end().await),
                },
                Some(after) = runs.next() => match after? {
                    After::Answered => {}
                    After::Freezes => match voice.freeze().await {},
                },
            }
        }
    }

    /// Does something for so long, unless it is told to end.
    async fn busy(&mut self, takes: Duration) -> Doing {
        let told = tokio::select! {
            biased;
            () = self.inbox.end() => true,
            () = tokio::time::sleep(takes) => false,
        };
        if told { Err(self.core.told_to_end().await) } else { Ok(()) }
    }

    async fn hang<T>(&mut self) -> Doing<T> {
        self.inbox.end().await;
        Err(self.core.told_to_end().await)
    }

    /// Goes on writing wrong outputs for as long as it takes until the kill has its effect.
    pub async fn dies_of_a_kill(&mut self) {
        let Core { log, script, running, .. } = &self.core;
        let until = log.now() + script.kill_takes;
        while log.now() < until {
            let running = running.lock().unwrap().clone();
            running.iter().for_each(|run| self.core.write(run, false));
            tokio::time::sleep(ms(5)).await;
        }
    }

    /// Closes its control streams.
    pub fn into_remains(self) -> Remains {
        let Core { nth, log, stderr, script, .. } = self.core;
        Remains { nth, log, stderr: stderr.into_inner(), stderr_stays_open: script.stderr_stays_open }
    }
}

impl Core {
    fn next_waiting(&self) -> Option<BatchRun> {
        self.waiting.lock().unwrap().pop_front()
    }

    async fn run(&self, voice: &Voice, run: BatchRun) -> Doing<After> {
        let nth = self.n_runs.fetch_add(1, Ordering::Relaxed) + 1;
        self.running.lock().unwrap().push(run);
        let items = self.items(&run);
        let fault = self.script.fault(nth, &items);
        self.log.add(self.nth, Act::Began { batch: run.batch, attempt: run.attempt, items });
        self.make_noise().await;
        let after = match fault {
            Some(fault) => self.go_wrong(voice, &run, fault).await?,
            None if run.rows > self.script.rows_that_fit(self.log.now()) => {
                self.fail(voice, &run, RunErrorKind::OutOfMemory).await
            }
            None => self.go_right(voice, &run, self.script.run_takes).await,
        };
        Ok(after)
    }

    async fn go_right(&self, voice: &Voice, run: &BatchRun, takes: Duration) -> After {
        tokio::time::sleep(takes).await;
        self.write(run, true);
        self.runs_no_more(run);
        let timing = RunTiming { run_ns: takes.as_nanos() as u64, ..RunTiming::default() };
        let (batch, dynamic) = (run.batch, self.dynamic(run));
        voice
            .say(&FromWorker::Done {
                batch,
                dynamic,
                without: RowsWithoutOutputs::default(),
                timing,
                rss_bytes: 0,
            })
            .await;
        *self.answered.lock().unwrap() = Some(run.batch);
        After::Answered
    }

    fn runs_no_more(&self, run: &BatchRun) {
        self.log.add(self.nth, Act::Answered(run.batch));
        self.running.lock().unwrap().retain(|other| other.batch != run.batch);
    }

    async fn go_wrong(&self, voice: &Voice, run: &BatchRun, fault: RunFault) -> Doing<After> {
        let takes = self.script.run_takes;
        match fault {
            RunFault::Die(point, exit) => {
                self.run_up_to(point, voice, run).await;
                return Err(exit);
            }
            RunFault::Hang => {}
            RunFault::Freeze => return Ok(After::Freezes),
            RunFault::Slow(takes) => return Ok(self.go_right(voice, run, takes).await),
            RunFault::HalfAnswerThenSilence => {
                self.run_up_to(Point::MidAnswer, voice, run).await;
                return Ok(After::Freezes);
            }
            RunFault::AnswersFor(other) => {
                tokio::time::sleep(takes).await;
                let batch = self.other_batch(other).await;
                voice.say(&done(batch, Vec::new())).await;
            }
            RunFault::AnswersTwice => {
                self.go_right(voice, run, takes).await;
                voice.say(&done(run.batch, Vec::new())).await;
            }
            RunFault::AnswersOddly(odd) => {
                tokio::time::sleep(takes).await;
                self.runs_no_more(run);
                let dropped = if odd == OutputFault::Drops { vec![0] } else { Vec::new() };
                let (kind, error) = (RunErrorKind::Model, String::new());
                let beyond =
                    (odd == OutputFault::FailsBeyond).then_some(RowError { row: run.rows, kind, error });
                let without = RowsWithoutOutputs { dropped, failed: beyond.into_iter().collect() };
                let (batch, dynamic, timing) = (run.batch, self.odd_output(run, odd), RunTiming::default());
                voice.say(&FromWorker::Done { batch, dynamic, without, timing, rss_bytes: 0 }).await;
                return Ok(After::Answered);
            }
            RunFault::Garbage => voice.say_bytes(&[0xff; 64]).await,
            RunFault::SecondHelloThenRight => {
                tokio::time::sleep(takes).await;
                self.write(run, true);
                let (protocol, build) = (PROTOCOL_VERSION, BUILD.to_owned());
                let hello = FromWorker::Hello { protocol, build, pid: 1, visible_devices: None };
                let answer = bytes_of(&done(run.batch, self.dynamic(run)));
                voice.say_bytes(&[bytes_of(&hello), answer].concat()).await;
            }
            RunFault::SecondHello => voice.hello(PROTOCOL_VERSION, BUILD).await,
            RunFault::Fails(kind) => {
                tokio::time::sleep(takes).await;
                let after = self.fail(voice, run, kind).await;
                return if kind == RunErrorKind::Device { Err(DEVICE_BROKEN) } else { Ok(after) };
            }
            RunFault::BreaksAndStays => {
                self.fail(voice, run, RunErrorKind::Device).await;
            }
        }
        // It hangs.
        pending().await
    }

    async fn run_up_to(&self, point: Point, voice: &Voice, run: &BatchRun) {
        let takes = self.script.run_takes;
        if point == Point::BeforeReading {
            return;
        }
        tokio::time::sleep(takes / 2).await;
        self.write(run, false);
        if point == Point::MidRun {
            return;
        }
        tokio::time::sleep(takes / 2).await;
        self.write(run, true);
        let answer = bytes_of(&done(run.batch, self.dynamic(run)));
        match point {
            Point::MidAnswer => voice.say_bytes(&answer[..answer.len() / 2]).await,
            Point::AfterAnswer => {
                self.log.add(self.nth, Act::Answered(run.batch));
                voice.say_bytes(&answer).await;
            }
            Point::BeforeReading | Point::MidRun | Point::AfterOutputs => {}
        }
    }

    async fn fail(&self, voice: &Voice, run: &BatchRun, kind: RunErrorKind) -> After {
        let error = format!("a fake {kind:?} error");
        self.runs_no_more(run);
        voice.say(&FromWorker::Failed { batch: run.batch, kind, error, timing: RunTiming::default() }).await;
        After::Answered
    }

    async fn other_batch(&self, other: Other) -> BatchId {
        match (other, *self.answered.lock().unwrap()) {
            (Other::Earlier, Some(earlier)) => return earlier,
            (Other::Unknown | Other::Earlier, _) => return BatchId(u64::MAX),
            (Other::Next, _) => {}
        }
        loop {
            let came = self.came.notified();
            if let Some(next) = self.waiting.lock().unwrap().front() {
                return next.batch;
            }
            came.await;
        }
    }

    async fn told_to_end(&self) -> WorkerExit {
        self.log.add(self.nth, Act::ToldToEnd);
        match self.script.ending {
            Ending::AtOnce => {}
            Ending::After(pause) => tokio::time::sleep(pause).await,
            Ending::Never => pending().await,
        }
        WorkerExit::Code(0)
    }

    async fn make_noise(&self) {
        let line = [b'x'; 1023];
        for _ in 0..self.script.noise {
            let mut stderr = self.stderr.lock().await;
            // A parent that reads no more is no concern of ours.
            drop(stderr.write_all(&line).await);
            drop(stderr.write_all(b"\n").await);
        }
    }

    fn arena(&self) -> &WorkerArena {
        self.arena.as_ref().expect("runs come after the load")
    }

    fn items(&self, run: &BatchRun) -> Vec<u64> {
        let RowMemory { ptr, len } = self.arena().input_rows(run.slot, 0, run.first_row, run.rows).unwrap();
        // SAFETY: the rows lie in the arena, and the parent leaves them alone until this worker has answered or is gone.
        let bytes = unsafe { std::slice::from_raw_parts(ptr, len) };
        bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]) as u64).collect()
    }

    fn answers(&self, run: &BatchRun) -> Vec<u8> {
        self.items(run).into_iter().flat_map(|item| answer_to(item).to_ne_bytes()).collect()
    }

    /// Writes the outputs of a run, right or wrong, where they have a place in the arena.
    fn write(&self, run: &BatchRun, right: bool) {
        let rows = self.arena().output_rows(run.output_slot, 0, run.first_row, run.rows);
        let Ok(RowMemory { ptr, len }) = rows else { return };
        // SAFETY: the rows lie in the arena, and the parent leaves them alone until this worker has answered or is gone.
        let out = unsafe { std::slice::from_raw_parts_mut(ptr, len) };
        if right { out.copy_from_slice(&self.answers(run)) } else { out.fill(0x5a) }
    }

    /// The output, if it has no place in the arena.
    fn dynamic(&self, run: &BatchRun) -> Vec<DynamicOutput> {
        match self.arena().output_rows(run.output_slot, 0, run.first_row, run.rows) {
            Ok(_) => Vec::new(),
            Err(_) => vec![self.output(run)],
        }
    }

    fn output(&self, run: &BatchRun) -> DynamicOutput {
        DynamicOutput { output: 0, dtype: DType::F32, shape: vec![run.rows, 1], data: self.answers(run) }
    }

    fn odd_output(&self, run: &BatchRun, odd: OutputFault) -> Vec<DynamicOutput> {
        let mut output = self.output(run);
        match odd {
            OutputFault::MoreRows => {
                output.shape[0] += 1;
                output.data.extend([0; 4]);
            }
            OutputFault::FewerRows => {
                output.shape[0] -= 1;
                output.data.truncate(output.shape[0] * 4);
            }
            OutputFault::OtherType => output.dtype = DType::I32,
            OutputFault::HugeShape => output.shape.extend([usize::MAX, 2]),
            OutputFault::Missing => return Vec::new(),
            OutputFault::Drops | OutputFault::FailsBeyond => {}
        }
        vec![output]
    }
}

fn loaded(took: Duration, warmed: usize) -> FromWorker {
    FromWorker::Loaded {
        providers: vec![("FakeExecutionProvider".to_owned(), 1)],
        runtime_version: "none".to_owned(),
        warmed,
        load_ns: took.as_nanos() as u64,
        rss_bytes: 0,
    }
}

fn done(batch: BatchId, dynamic: Vec<DynamicOutput>) -> FromWorker {
    FromWorker::Done {
        batch,
        dynamic,
        without: RowsWithoutOutputs::default(),
        timing: RunTiming::default(),
        rss_bytes: 0,
    }
}
