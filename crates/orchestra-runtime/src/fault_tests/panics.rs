//! A panic in each actor, thread and task of a run: the run goes on, or it ends by itself and says the bug, and the next start does each item
//! once. What may panic is thrown by code of a host that is called there, or by a message that makes no sense.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use orchestra_core::PipelineId;
use orchestra_core::shapes::{Fetch, FetchRun, Map, MapRun};
use orchestra_machine::{Gpu, GpuProbe, ProbeError};
use orchestra_plan::{BucketPlan, Plan, Shape};
use orchestra_store::{Expand, ListError, MANIFEST, PushFound};
use orchestra_testkit::production::each_source;
use orchestra_testkit::records::{Records, items};
use orchestra_testkit::workflow_file::WorkflowFile;
use ractor::{ActorCell, ActorRef, Message};
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::fake_plan::plan_of_text;
use super::fake_process::{FakeEngine, Launch, options_with};
use super::gpus::Gpus;
use super::log::Log;
use super::memory_store::MemoryStore;
use super::script::*;
use crate::child::spawn::ProcessLauncher;
use crate::context::RunOptions;
use crate::fleet::device_watch::DeviceOptions;
use crate::flow::uploads;
use crate::messages::{DeviceMsg, PipelineMsg, RootMsg, SourceMsg};
use crate::start::{Earlier, RunHandle, prepare};
use crate::tasks::actor::TasksMsg;
use crate::trace::{
    BatchNumber, EndedItems, RunBegan, RunTracer, TaskTrace, Tracer, WorkerStep, WorkerTrace,
};

const ITEMS: u64 = 100;
pub const BUG: &str = "a bug, as asked";
const BUCKET: &str = "s3://b/p/";
/// The code of a run that was not started, or has not ended in time.
const NO_END: i32 = -1;

/// What a run comes to: `None`, it goes on and does all items; or its exit code, and a part of what it says.
type Then = Option<(i32, &'static str)>;

/// Where it is thrown, how often, and what follows.
const CASES: [(&str, u32, Then); 20] = [
    ("root", 1, Some((70, "the root of the actor tree fell over"))),
    ("pipeline", 1, Some((70, BUG))),
    ("source", 1, None),
    ("batcher", 1, None),
    ("batcher", 4, Some((70, BUG))),
    ("device manager", 1, Some((70, "a device manager"))),
    ("owner of commands", 1, Some((70, "the owner of the commands fell over"))),
    ("committer", 1, Some((70, BUG))),
    ("tracer of items", 1, None),
    ("lister", 1, Some((NO_END, "the thread that lists them panicked"))),
    ("loader", 1, None),
    ("what follows a batch", 1, None),
    ("uploads", 1, Some((75, "a thread panicked"))),
    ("look at a device", 1, Some((70, BUG))),
    ("look at the commands", 1, Some((70, BUG))),
    ("attempt", 1, Some((70, BUG))),
    ("worker started", 1, None),
    ("worker loaded", 1, None),
    ("worker ended", 1, None),
    ("events", 3, None),
];

/// What begins an actor, a thread or a task.
const BEGINS: &str =
    "impl Actor for |thread::Builder|thread::spawn(|tokio::spawn(|runtime.spawn(|scope.spawn(|n_blocking(";

/// Crates of worker processes alone.
const OTHERS: [&str; 4] = ["orchestra-core/", "orchestra-cuda/", "orchestra-onnx/", "orchestra-worker/"];

/// The files where such begin, without `orchestra-` and `.rs`: how many, and the cases for a panic there; in brackets why none is needed.
const PLACES: &str = "\
    cli/src/lab 1 (it waits for a signal); cli/src/live_page 6 (the run goes on without its page); cli/src/progress/painter 1 (it draws); cli/src/serve 2 (the command ends); cli/src/serve/listen 1 (one connection ends); cli/src/signals 2 (they wait for a signal); \
    kinds/src/objects/client 1 (its caller joins it); runtime/src/actor_threads 1 (who called is told); runtime/src/account/history 1 (a warning says so); runtime/src/batch/batcher 1 batcher; runtime/src/child 1 (without it there are no last words); \
    runtime/src/child/spawn 2 (a test of its own and one only reaps); runtime/src/fleet/device_manager 1 device manager; \
    runtime/src/fleet/device_watch 1 look at a device; runtime/src/fleet/worker 1 worker started, worker loaded, worker ended; \
    runtime/src/flow/committer 1 committer; runtime/src/flow/fold 1 what follows a batch; runtime/src/flow/loader/thread 1 loader; \
    runtime/src/flow/processor 1 what follows a batch; runtime/src/flow/source 2 source; runtime/src/flow/uploads 1 uploads; \
    runtime/src/flow/uploads/part_objects 1 (its caller joins it); runtime/src/look 1 (its caller joins it); \
    runtime/src/panics 2 what follows a batch; runtime/src/pipeline 2 pipeline, what follows a batch; runtime/src/root 1 root; \
    runtime/src/start 1 (the start waits for it); runtime/src/tasks/actor 4 owner of commands, attempt; runtime/src/tasks/attempt 2 attempt; \
    runtime/src/tasks/command_watch 1 look at the commands; runtime/src/tasks/keeper_link 1 (the attempt waits for it); serve/src/whole_body 1 (its request ends); store/src/catalog 1 lister; \
    telemetry/src/metrics/server 2 (it answers who looks); telemetry/src/traces/export 1 (its caller waits for it); \
    telemetry/src/traces/recorder 1 (nothing but spans is lost); launch/src/lib 1 (the start waits for it); \
    launch/src/program 2 (its caller joins them); orchestra/src/actor 2 (its supervisor is told); orchestra/src/environment 1 (the start waits for it); \
    orchestra/src/run 1 (who waits for the run is told); orchestra/src/testing/worker 1 (the worker is dead)";

/// Throws the panics of one case. Clones throw the same ones.
#[derive(Debug, Clone, Default)]
pub struct Throws(Arc<Thrower>);

#[derive(Debug, Default)]
struct Thrower {
    at: &'static str,
    left: AtomicU32,
    /// Told whenever a batch is sent.
    sent: Notify,
}

impl Throws {
    pub fn new(at: &'static str, times: u32) -> Self {
        Self(Arc::new(Thrower { at, left: times.into(), sent: Notify::new() }))
    }

    /// Panics, if that is asked for here.
    pub fn at(&self, place: &str) {
        let less = |left: u32| left.checked_sub(1).filter(|_| self.0.at == place);
        assert!(self.0.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err(), "{BUG}");
    }
}

impl Tracer for Throws {
    fn begin(&self, _: RunBegan) -> Arc<dyn RunTracer> {
        Arc::new(self.clone())
    }
}

impl RunTracer for Throws {
    fn number_batch(&self) -> BatchNumber {
        self.0.sent.notify_one();
        self.at("batcher");
        BatchNumber { number: 0, context: None }
    }

    fn items_ended(&self, _: &[EndedItems]) {
        self.at("tracer of items");
    }

    fn worker(&self, told: WorkerTrace) {
        match told.step {
            WorkerStep::Started { .. } => self.at("worker started"),
            WorkerStep::Loaded => self.at("worker loaded"),
            WorkerStep::Ended { .. } => self.at("worker ended"),
            WorkerStep::PlaceParked { .. } => {}
        }
    }

    fn task(&self, _: TaskTrace) {
        self.at("attempt");
    }
}

impl GpuProbe for Throws {
    fn gpus(&self) -> Result<Vec<Gpu>, ProbeError> {
        self.at("look at the commands");
        Gpus::new(1, 80).gpus()
    }

    fn gpu_by_uuid(&self, _: &str) -> Result<Gpu, ProbeError> {
        self.at("look at a device");
        self.gpus().map(|mut gpus| gpus.remove(0))
    }
}

/// A part of a plan, which panics at times.
#[derive(Debug)]
struct Throwing<T>(T, Throws);

impl Expand for Throwing<Arc<dyn Expand>> {
    fn expand(&self, file: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        self.1.at("lister");
        self.0.expand(file, push)
    }
}

impl Fetch for Throwing<Arc<dyn Fetch>> {
    fn start(&self) -> Box<dyn FetchRun> {
        self.1.at("loader");
        self.0.start()
    }
}

impl Map for Throwing<Arc<dyn Map>> {
    fn start(&self) -> Box<dyn MapRun> {
        self.1.at("what follows a batch");
        self.0.start()
    }

    /// Too much for the batcher to do itself. It is asked when the pipeline is built.
    fn cost(&self) -> usize {
        self.1.at("pipeline");
        usize::MAX
    }
}

/// A run that is started twice, and what it writes to.
struct Rig {
    at: &'static str,
    folder: TempDir,
    store: Arc<MemoryStore>,
}

impl Rig {
    fn is_of_commands(&self) -> bool {
        ["owner of commands", "look at the commands", "attempt"].contains(&self.at)
    }

    fn plan(&self, throws: &Throws) -> Plan {
        let mut flow = WorkflowFile::new()
            .source("numbers", "random", format_args!("items = {ITEMS}\nshape = [1, 1, 1]"))
            .table("models.fake", "path = 'fake.onnx'\nmemory = '0.001GiB'\nworkers = 1")
            .stage("read", "infer", "numbers", "model = 'fake'\nbatch = { max = 4, wait = '5ms' }")
            .stage("best", "argmax", "read", "")
            .sink("all", if self.at == "uploads" { "tar" } else { "jsonl" }, "best")
            .table("devices", "use = ['cuda:0']");
        if self.is_of_commands() {
            flow = flow.table("tasks.one", "command = ['true']\ndevice = 'auto'");
        }
        let mut plan = plan_of_text(&flow, 1, self.folder.path()).unwrap();
        if self.at == "uploads" {
            plan.sinks[0].bucket = Some(BucketPlan { url: BUCKET.to_owned(), store: self.store.clone() });
        }
        let source = &mut plan.sources[0];
        source.fetch = Arc::new(Throwing(source.fetch.clone(), throws.clone()));
        let expand = source.expand.take().expect("its kind lists its items");
        source.expand = Some(Arc::new(Throwing(expand, throws.clone())));
        for stage in &mut plan.stages {
            if let Shape::Map(map) = &mut stage.runs {
                *map = Arc::new(Throwing(map.clone(), throws.clone()));
            }
        }
        plan
    }

    fn options(&self, plan: &Plan, throws: &Throws, is_first: bool) -> RunOptions {
        // What is thrown by a message comes while a batch runs.
        let hangs = ["root", "source", "device manager", "committer", "look at a device"].contains(&self.at);
        let first = match self.at {
            _ if hangs && is_first => Script::at_every_run(RunFault::Hang),
            "worker ended" => Script::at_run(1, RunFault::Die(Point::MidRun, KILLED)),
            _ => Script::honest(),
        };
        let script = move |l: Launch| if l.nth == 1 { first.clone() } else { Script::honest() };
        // One that ends at once, or when it is told to.
        let keeper =
            if self.at == "attempt" || !is_first { "true" } else { "dd bs=65536 count=2 of=/dev/null" };
        let args = vec!["-c".into(), keeper.into()];
        let (trace, events) = (throws.clone(), throws.clone());
        RunOptions {
            keepers: Some(ProcessLauncher { program: "sh".into(), args, env: Vec::new() }),
            tasks_only: self.is_of_commands(),
            trace: Some(Arc::new(trace)),
            events: Some(Arc::new(move |_| events.at("events"))),
            devices: DeviceOptions { probe: Some(Arc::new(throws.clone())), look_every: ms(20) },
            ..options_with(plan, FakeEngine::new(Log::start(), script))
        }
    }

    /// How it ends: with which code, and what it says.
    async fn run(&self, throws: &Throws, is_first: bool) -> (i32, String) {
        let plan = self.plan(throws);
        let options = self.options(&plan, throws, is_first);
        let prepared = match prepare(Arc::new(plan), Earlier::GoOn, None, None) {
            Ok(prepared) => prepared,
            Err(error) => return (NO_END, error.to_string()),
        };
        let run = prepared.start(options).await.unwrap();
        if is_first {
            self.throw(&run, throws).await;
        }
        match timeout(Duration::from_secs(30), run.wait()).await {
            Ok(outcome) => (outcome.exit_code, outcome.problems.join("\n")),
            Err(_) => (NO_END, "it hangs".to_owned()),
        }
    }

    /// Throws what a message can throw.
    async fn throw(&self, run: &RunHandle, throws: &Throws) {
        let root = run.root.0.get_cell();
        match self.at {
            // There is no such pipeline, no such place, no such task.
            "root" => run.root.0.cast(RootMsg::Rebuild(PipelineId(99))).unwrap(),
            "device manager" => {
                child::<DeviceMsg>(&root).cast(DeviceMsg::StartWorker { at: 999, place: 0 }).unwrap();
            }
            "owner of commands" => {
                let ended = TasksMsg::Ended(999, Box::new(Err(io::Error::other("no such task"))));
                child::<TasksMsg>(&root).cast(ended).unwrap();
            }
            "source" => {
                throws.0.sent.notified().await;
                let source = child::<SourceMsg>(&child::<PipelineMsg>(&root).get_cell());
                // More than there are.
                (0..2).for_each(|_| source.cast(SourceMsg::Committed(u64::MAX)).unwrap());
            }
            "committer" => run.committer.when_written(|| panic!("{BUG}")),
            _ => return,
        }
        throws.0.left.store(0, Ordering::Relaxed);
    }

    /// Whether each item has one record.
    fn is_whole(&self) -> Result<(), String> {
        if self.is_of_commands() {
            return Ok(());
        }
        if self.at != "uploads" {
            let records = Records::read(self.folder.path(), &["all.jsonl"])?;
            return records.must_be(1, &items("numbers", 0..ITEMS), &BTreeSet::new());
        }
        let objects = self.store.objects.lock().unwrap();
        let manifest = objects.get(&format!("{BUCKET}{MANIFEST}")).ok_or("no manifest")?;
        let manifest: uploads::Manifest = serde_json::from_slice(manifest).map_err(|e| e.to_string())?;
        (manifest.rows == ITEMS).then_some(()).ok_or(format!("{} rows", manifest.rows))
    }
}

/// The child that takes these messages.
fn child<M: Message>(of: &ActorCell) -> ActorRef<M> {
    let takes = |child: &ActorCell| child.is_message_type_of::<M>() == Some(true);
    of.get_children().into_iter().find(takes).expect("there is such an actor").into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_anywhere_ends_the_run_resumable_or_costs_nothing() {
    let mut wrong = Vec::new();
    for (at, times, then) in CASES {
        let throws = Throws::new(at, times);
        let store = Arc::new(MemoryStore { throws: throws.clone(), ..MemoryStore::default() });
        let rig = Rig { at, folder: TempDir::new().unwrap(), store };
        let ended = rig.run(&throws, true).await;
        let (code, why) = then.unwrap_or((0, ""));
        let mut is_right = ended.0 == code && ended.1.contains(why);
        is_right &= throws.0.left.load(Ordering::Relaxed) == 0;
        let mut again = None;
        if then.is_some() {
            // Fake keepers end no command well.
            let expected = if rig.is_of_commands() { 65 } else { 0 };
            let ended = again.insert(rig.run(&Throws::default(), false).await);
            is_right &= ended.0 == expected;
        }
        let whole = rig.is_whole();
        if !is_right || whole.is_err() {
            wrong.push(format!("{at}, {times}: {ended:?}, then {again:?}, {whole:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_cases_have_all_actors_threads_and_tasks() {
    let mut found = BTreeMap::new();
    each_source(|path, text| {
        let file = path.to_str().unwrap().rsplit_once("/crates/").unwrap().1.trim_end_matches(".rs");
        let begins =
            |line: &&str| !line.trim().starts_with("//") && BEGINS.split('|').any(|it| line.contains(it));
        let n = text.lines().filter(begins).count();
        if n > 0 && !OTHERS.iter().any(|other| file.starts_with(other)) {
            found.insert(file.trim_start_matches("orchestra-").to_owned(), n.to_string());
        }
    });
    let mut known = BTreeMap::new();
    for place in PLACES.split("; ") {
        let (file, (n, cases)) =
            place.split_once(' ').map(|(file, it)| (file, it.split_once(' ').unwrap())).unwrap();
        known.insert(file.to_owned(), n.to_owned());
        for case in cases.split(", ").filter(|case| !case.starts_with('(')) {
            assert!(CASES.iter().any(|(at, ..)| *at == case), "{case}");
        }
    }
    assert_eq!(found, known, "say in `PLACES` what a panic there comes to, and throw it in `CASES`");
}
