//! A workplace for tests of the library: a folder with pictures, models and a workflow file, and runs of it inside this process. Judges
//! no property itself; whatever it waits for, it waits for with a bound that only a hang reaches.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod number_stages;

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use orchestra_core::DType;
use orchestra_launch::kind::Kinds;
use orchestra_launch::{
    DeviceKind, Earlier, Launched, Launcher, Plan, PlanOptions, Prepared, ProcessLauncher, RenderStyle,
    RunHandle, RunObserver, RunOutcome, StartOptions, StartRunError, WorkerMemory,
};
use orchestra_testkit::gate::Gate;
use orchestra_testkit::images::{self, Kind, index_of_blocks};
use orchestra_testkit::leaks::{self, Holdings};
use orchestra_testkit::processes::{Process, with_variable};
use orchestra_testkit::programs::beside_this_program;
use orchestra_testkit::records::{ItemKey, Records, items};
use orchestra_testkit::striker::{Fault, is_loader, strike};
use orchestra_testkit::{GATE, models, trap_library};
use serde_json::Value;
use tempfile::TempDir;

/// Carried by every worker of a workplace; its value is the workplace's folder.
const MARK: &str = "ORCHESTRA_TEST_WORKPLACE";
/// Beyond it, something hangs.
const BOUND: Duration = Duration::from_secs(120);
/// Time between two looks at a condition.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// An image stage of 4 by 8 pixels: one for each block of a test picture, exactly as it is drawn, 0 or 255.
pub const ONE_PIXEL_PER_BLOCK: &str = "size = [4, 8]\ncolor = \"gray\"\nfilter = \"nearest\"\nscale = 1.0";
/// An image stage that gives test pictures as they are: what trap pictures need.
pub const AS_IT_IS: &str = "size = [32, 32]\ncolor = \"gray\"\nscale = 1.0";
/// The row that [`ONE_PIXEL_PER_BLOCK`] makes.
pub const ROW: [usize; 3] = [1, 4, 8];

/// Looks after which something counts as left behind for ever.
const LOOKS: usize = 12_000;

/// A folder with `images/`, `models/`, `tmp/`, `workflow.toml` and, after a run, `out/`. Dropping it is the audit of all runs in it: see
/// [`Workplace::leaks`].
pub struct Workplace {
    dir: TempDir,
    workflow: String,
    /// Of every run that was started here.
    runs: Mutex<Vec<RunObserver>>,
}

impl Workplace {
    /// With no pictures, and a workflow file without tables.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["images", "models", "tmp"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let workflow = "version = 1\nname = \"test\"\n".to_owned();
        Self { dir, workflow, runs: Mutex::new(Vec::new()) }
    }

    /// With `n` pictures in `images/`, and a source `scans` of them.
    pub fn with_pictures(n: u64) -> Self {
        let mut place = Self::new();
        images::write_pictures(&place.path("images"), n, Kind::Png).unwrap();
        place.source("scans", "images");
        place
    }

    /// With pictures as they are, a model that this writes, which takes them, and a sink `all` of what it gives.
    pub fn reading<E: std::fmt::Debug>(
        n: u64,
        model: (&str, &str),
        batch: usize,
        write: impl FnOnce(&Path) -> Result<PathBuf, E>,
    ) -> Self {
        let ((name, keys), mut place) = (model, Self::with_pictures(n));
        let path = write(&place.models()).unwrap();
        place.model(name, path, keys).image("pixels", "scans", AS_IT_IS).infer("read", "pixels", name, batch);
        place.sink("all", "read", "").devices(1);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn models(&self) -> PathBuf {
        self.path("models")
    }

    /// The output folder.
    pub fn out(&self) -> PathBuf {
        self.path("out")
    }

    /// Adds any text to the workflow file.
    pub fn add(&mut self, text: &str) -> &mut Self {
        self.workflow.push_str(text);
        self.workflow.push('\n');
        self
    }

    /// Replaces text in the workflow file.
    pub fn set(&mut self, from: &str, to: &str) -> &mut Self {
        assert!(self.workflow.contains(from), "`{from}` is not in the workflow file");
        self.workflow = self.workflow.replace(from, to);
        self
    }

    /// Adds a source of all pictures in a folder.
    pub fn source(&mut self, name: &str, folder: &str) -> &mut Self {
        self.add(&format!("[sources.{name}]\nkind = \"images\"\npaths = [\"{folder}\"]"))
    }

    /// Adds a model, with more keys.
    pub fn model(&mut self, name: &str, path: PathBuf, more: &str) -> &mut Self {
        self.add(&format!("[models.{name}]\npath = {path:?}\nthreads = 1\n{more}"))
    }

    /// Adds a model of 32 by 32 pixels that reads the index of a picture, takes a while, and stands behind the workplace's gate.
    pub fn gated(&mut self, name: &str, workers: usize) -> &mut Self {
        let model = models::slow_blocks_behind_trap(&self.models(), [1, 32, 32], 40).unwrap();
        self.model(
            name,
            model,
            &format!(
                "workers = {workers}\ncustom_ops = [{:?}]\nsandbox_write = \"gate\"",
                trap_library().unwrap()
            ),
        )
    }

    /// Adds an image stage, with more keys.
    pub fn image(&mut self, name: &str, from: &str, more: &str) -> &mut Self {
        self.add(&format!("[stages.{name}]\nkind = \"image\"\nfrom = \"{from}\"\n{more}"))
    }

    /// Adds an infer stage of a model with one input, with batches of up to `batch` items.
    pub fn infer(&mut self, name: &str, from: &str, model: &str, batch: usize) -> &mut Self {
        let reads = format!("from = \"{from}\"");
        self.infer_of(name, &reads, model, batch)
    }

    /// Adds an infer stage; `reads` is its `from` or `inputs`.
    pub fn infer_of(&mut self, name: &str, reads: &str, model: &str, batch: usize) -> &mut Self {
        let batch = format!("batch = {{ max = {batch}, wait = \"5ms\" }}");
        self.add(&format!("[stages.{name}]\nkind = \"infer\"\n{reads}\nmodel = \"{model}\"\n{batch}"))
    }

    /// Adds a sink to the file `NAME.jsonl`, with more keys.
    pub fn sink(&mut self, name: &str, from: &str, more: &str) -> &mut Self {
        self.add(&format!("[sinks.{name}]\nkind = \"jsonl\"\nfrom = \"{from}\"\n{more}"))
    }

    /// Says how many CPU devices there are, with more keys of that table.
    pub fn devices(&mut self, n: usize) -> &mut Self {
        self.add(&format!("[devices]\nuse = {:?}", vec!["cpu"; n]))
    }

    /// Writes the workflow file.
    pub fn write_workflow(&self) {
        fs::write(self.path("workflow.toml"), &self.workflow).unwrap();
    }

    #[track_caller]
    pub fn plan(&self) -> Plan {
        self.plan_with(orchestra_launch::kinds())
    }

    /// Plans the workflow, which may name these kinds.
    #[track_caller]
    pub fn plan_with(&self, kinds: Kinds) -> Plan {
        let (plan, diagnostics) = self.try_plan(kinds);
        plan.unwrap_or_else(|| panic!("{diagnostics}\n{}", self.workflow))
    }

    /// Plans the workflow, and gives what is said of it.
    #[track_caller]
    pub fn try_plan(&self, kinds: Kinds) -> (Option<Plan>, String) {
        let file = self.path("workflow.toml");
        self.write_workflow();
        let (options, machine) = (PlanOptions::default(), orchestra_launch::machine());
        let (plan, diagnostics) =
            orchestra_launch::plan_file_with(&file, &options, &machine, kinds, &self.options()).unwrap();
        (plan, diagnostics.render(RenderStyle::Plain))
    }

    /// What is said of a workflow of which there is no plan.
    #[track_caller]
    pub fn refused(&self, kinds: Kinds) -> String {
        let (plan, diagnostics) = self.try_plan(kinds);
        assert!(plan.is_none(), "{}", self.workflow);
        diagnostics
    }

    /// Opens the output folder for a plan.
    pub fn prepare(&self, plan: Arc<Plan>) -> Result<Prepared, StartRunError> {
        // This program is no loader.
        orchestra_launch::prepare_with(plan, Earlier::GoOn, self.options().launcher.as_ref(), None)
    }

    pub async fn start_plan(&self, plan: Plan) -> RunHandle {
        let run = bounded("the run starts", orchestra_launch::start(plan, self.options())).await.unwrap();
        self.watch(&run);
        run
    }

    pub async fn run_plan_with(&self, plan: Plan, options: StartOptions) -> RunOutcome {
        let run = bounded("the run starts", orchestra_launch::start(plan, options)).await.unwrap();
        self.watch(&run);
        bounded("the run ends", run.wait()).await
    }

    /// Runs a plan from start to end.
    pub async fn run_plan(&self, plan: Plan) -> RunOutcome {
        bounded("the run ends", self.start_plan(plan).await.wait()).await
    }

    /// Starts honest workers.
    pub fn workers_of_ours(&self) -> ProcessLauncher {
        let mark = (MARK.into(), self.dir.path().into());
        let temporary = ("TMPDIR".into(), self.path("tmp").into());
        let gate = (GATE.into(), self.path("gate").into());
        ProcessLauncher { program: example("worker"), args: Vec::new(), env: vec![mark, temporary, gate] }
    }

    /// A gate that the workers come to whose model is [`Workplace::gated`]. Open until it is closed.
    pub fn gate(&self) -> Gate {
        Gate::in_folder(&self.path("gate"))
    }

    /// Starts workers that misbehave.
    pub fn faulty_workers(&self, variables: &[(&str, &str)]) -> ProcessLauncher {
        let mut launcher = self.workers_of_ours();
        launcher.program = example("orchestra-faulty-worker");
        launcher.env.extend(variables.iter().map(|(name, value)| (name.into(), value.into())));
        launcher
    }

    /// Options with honest workers.
    pub fn options(&self) -> StartOptions {
        StartOptions { launcher: Some(Arc::new(self.workers_of_ours())), ..StartOptions::default() }
    }

    pub async fn start(&self) -> RunHandle {
        self.start_with(self.options()).await
    }

    pub async fn start_with(&self, options: StartOptions) -> RunHandle {
        let run = bounded("the run starts", orchestra_launch::start(self.plan(), options)).await.unwrap();
        self.watch(&run);
        run
    }

    /// Makes a run part of the audit that was not started here.
    pub fn watch(&self, run: &RunHandle) {
        self.runs.lock().unwrap().push(run.observer());
    }

    /// Makes a flow part of the audit.
    pub fn watch_flow(&self, flow: RunObserver) {
        self.runs.lock().unwrap().push(flow);
    }

    /// What is left of the runs that were started here: worker processes, actors and threads, batch slots that have not come home,
    /// temporary files, and files in the output folder that no document names.
    pub fn leaks(&self) -> Vec<String> {
        let mut left = leaks::processes(MARK, self.dir.path().to_str().unwrap());
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        for (n, run) in runs.iter().enumerate() {
            left.extend(run.left().iter().map(|left| format!("run {n} has {left}")));
        }
        left.extend(leaks::temporary_files(&self.path("tmp")));
        let sinks: Vec<&str> = self.workflow.lines().filter_map(|l| l.strip_prefix("[sinks.")).collect();
        let sinks = sinks.iter().map(|sink| sink.trim_end_matches(']'));
        // A file, or a folder of them.
        let files: Vec<String> = sinks.flat_map(|sink| [format!("{sink}.jsonl"), sink.to_owned()]).collect();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        left.extend(leaks::output_folder(&self.out(), &files));
        left
    }

    /// Runs it from start to end.
    pub async fn run(&self) -> RunOutcome {
        self.run_with(self.options()).await
    }

    pub async fn run_with(&self, options: StartOptions) -> RunOutcome {
        let run = self.start_with(options).await;
        let snapshots = run.snapshots();
        let outcome = tokio::time::timeout(BOUND, run.wait()).await;
        let outcome = outcome.unwrap_or_else(|_| panic!("the run hangs: {:#?}", *snapshots.borrow()));
        let items = outcome.report.items;
        assert_eq!(items.read, items.done + items.failed, "the account is exact");
        assert_eq!((self.workers(), self.loaders()), (vec![], vec![]), "no process outlives its run");
        outcome
    }

    /// Runs it, and ends the test unless that gives this exit code.
    #[track_caller]
    pub fn must_end_with(outcome: &RunOutcome, code: i32) {
        assert_eq!(outcome.exit_code, code, "{:?}\n{:#?}", outcome.problems, outcome.report);
    }

    /// What a run came to, which must be this code.
    pub async fn ended_with(run: impl Future<Output = RunOutcome>, code: i32) -> RunOutcome {
        let outcome = run.await;
        Self::must_end_with(&outcome, code);
        outcome
    }

    /// Starts a worker that gets no frames. Must be called within a runtime.
    pub fn launch_one(&self) -> Launched {
        let file = fs::File::open("/dev/null").unwrap();
        let memory = WorkerMemory { inputs: file.as_fd(), outputs: file.as_fd() };
        self.workers_of_ours().launch(&DeviceKind::Cpu, &[], memory).unwrap()
    }

    pub fn workers(&self) -> Vec<Process> {
        let ours = with_variable(MARK, self.dir.path().to_str().unwrap());
        ours.into_iter().filter(|process| !is_loader(process)).collect()
    }

    pub fn loaders(&self) -> Vec<Process> {
        with_variable(MARK, self.dir.path().to_str().unwrap()).into_iter().filter(is_loader).collect()
    }

    /// Kills one worker, the oldest or the youngest; whether there was one.
    pub fn kill_a_worker(&self, oldest: bool) -> bool {
        let workers = self.workers();
        let target = if oldest { workers.first() } else { workers.last() };
        target.is_some_and(|w| strike(std::process::id(), w.pid, Fault::Kill))
    }

    /// Kills a worker each time `every` more items have ended, up to `rounds` times. Gives how many were killed.
    pub async fn kill_while_it_runs(&self, run: &RunHandle, rounds: u64, every: u64) -> u64 {
        // A run may be over between two snapshots; its counters are never late.
        let (meter, snapshots) = (run.meter(), run.snapshots());
        let is_over = || snapshots.has_changed().is_err();
        let mut look = tokio::time::interval(Duration::from_millis(5));
        let mut kills = 0;
        for round in 1..=rounds {
            while meter.stats().done.get() < every * round && !is_over() {
                look.tick().await;
            }
            kills += u64::from(!is_over() && self.kill_a_worker(round % 2 == 0));
        }
        kills
    }

    /// Lines that a file in the output folder holds now; 0 if there is no such file.
    pub fn n_lines(&self, file: &str) -> usize {
        fs::read(self.out().join(file)).map_or(0, |b| b.iter().filter(|c| **c == b'\n').count())
    }

    #[track_caller]
    pub fn records(&self, sinks: &[&str]) -> Records {
        Records::read(&self.out(), sinks).unwrap()
    }

    /// The indices of the items that a file in the output folder has lines of.
    pub fn indices(&self, file: &str) -> BTreeSet<u64> {
        self.lines(file).iter().map(|line| line["index"].as_u64().unwrap()).collect()
    }

    /// The lines of a file in the output folder, in its order.
    pub fn lines(&self, file: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.out().join(file)).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }
}

/// The audit at the end of every test: whatever is left of its runs fails it.
impl Drop for Workplace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What lies in it tells why.
            self.dir.disable_cleanup(true);
            println!("the workplace is kept: {}", self.dir.path().display());
            return;
        }
        none_left("runs of this workplace", || self.leaks());
    }
}

/// Runs a test alone in its program, on a runtime of its own, and audits the program afterwards, as [`audited_without_runtime`].
#[track_caller]
pub fn audited(test: impl Future<Output = ()>) {
    audited_without_runtime(|| host().block_on(test));
}

/// Runs a test alone in its program, and audits the program afterwards: what is open, running or mapped then and was not before fails the
/// test. Only means something where every test of the program is run by it.
#[track_caller]
pub fn audited_without_runtime(test: impl FnOnce()) {
    static OPENED_ONCE: Once = Once::new();
    let _alone = alone();
    OPENED_ONCE.call_once(|| {
        // Signals and drivers: opened by the first child of the program, and kept.
        host().block_on(async {
            let mut process = Workplace::new().launch_one().process;
            process.kill();
            process.wait().await;
        });
        drop(orchestra_launch::machine());
        orchestra_testkit::hold::prepare().unwrap();
    });
    let before = Holdings::now();
    test();
    none_left("this program", || before.leaked_since());
}

/// Waits until no test of this program is audited: for what stays open as long as the program.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that failed before this one is no reason to fail, too.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn host() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

#[track_caller]
fn none_left(of: &str, look: impl Fn() -> Vec<String>) {
    // Nothing is ever sent on it: its time-out is the pause between two looks.
    let (_keep, never) = channel::<()>();
    let mut left = look();
    for _ in 0..LOOKS {
        if left.is_empty() {
            return;
        }
        assert_eq!(never.recv_timeout(LOOK_EVERY), Err(RecvTimeoutError::Timeout));
        left = look();
    }
    panic!("left behind by {of}: {left:#?}");
}

/// `n` pictures, and a model that gives them back as they are: what workers do that copy inputs to outputs. More keys of the model may
/// be given. No batch is too slow, unless [`impatient`] says so, and each goes by itself: what a fault does to a run, it means for a batch.
pub fn copying(n: u64, batch: usize, devices: usize, model_keys: &str) -> Workplace {
    let mut place = Workplace::with_pictures(n);
    let model = models::identity(&place.models(), DType::F32, &ROW).unwrap();
    place
        .model("same", model, model_keys)
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .infer("read", "pixels", "same", batch)
        .sink("all", "read", "")
        .add("[limits]\nbatch_timeout = \"1h\"")
        .devices(devices);
    place
}

/// Options with these workers, and with shorter pauses than a real run has. No worker has less time than there: one that is late on a
/// busy machine must not count as dead.
pub fn hurried(launcher: impl Launcher + 'static) -> StartOptions {
    let mut options = StartOptions { launcher: Some(Arc::new(launcher)), ..StartOptions::default() };
    options.timeouts.shutdown = Duration::from_secs(1);
    options.restart.first_pause = Duration::from_millis(10);
    options
}

/// The same for workers with this fault in a workplace of [`copying`]: if they hang or say nothing, they are given up after five seconds, which
/// an honest one beside them on a busy machine does not need.
pub fn impatient(place: &mut Workplace, fault: &str, launcher: impl Launcher + 'static) -> StartOptions {
    let mut options = hurried(launcher);
    if ["hang-on-batch", "never-hello"].iter().any(|silent| fault.contains(silent)) {
        place.set("batch_timeout = \"1h\"", "batch_timeout = \"5s\"");
        options.timeouts.handshake = Duration::from_secs(5);
    }
    options
}

/// The records of the only sink of [`copying`], each of which shows its own picture.
#[track_caller]
pub fn copies(place: &Workplace) -> Records {
    let records = place.records(&["all.jsonl"]);
    each_shows_its_own_picture(&records, "all.jsonl", "y");
    records
}

/// Ends the test unless exactly the items `0..n` are done, each with the copy of its own picture, and none failed.
#[track_caller]
pub fn all_copied(place: &Workplace, n: u64, what: &str) {
    if let Err(error) = copies(place).must_be(1, &items("scans", 0..n), &BTreeSet::new()) {
        panic!("`{what}`: {error}");
    }
}

/// Dead workers that were replaced.
pub fn restarts(outcome: &RunOutcome) -> u64 {
    outcome.report.devices.iter().map(|d| d.restarts).sum()
}

/// Where cargo puts an example of this crate.
pub fn example(name: &str) -> PathBuf {
    beside_this_program(&format!("examples/{name}")).unwrap()
}

/// Waits for `future`; ends the test if that takes minutes.
pub async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, future).await.unwrap_or_else(|_| panic!("waited in vain until {what}"))
}

/// Waits until `condition` holds; ends the test if that takes minutes.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let looking = async {
        let mut look = tokio::time::interval(LOOK_EVERY);
        while !condition() {
            look.tick().await;
        }
    };
    bounded(what, looking).await;
}

/// The numbers of one tensor of a record, flat, in their order.
#[track_caller]
pub fn numbers(record: &Value, tensor: &str) -> Vec<f32> {
    fn collect(value: &Value, into: &mut Vec<f32>) {
        match value {
            Value::Array(values) => values.iter().for_each(|v| collect(v, into)),
            Value::Bool(b) => into.push(f32::from(u8::from(*b))),
            number => into.push(number.as_f64().unwrap_or_else(|| panic!("`{number}` is no number")) as f32),
        }
    }
    let value = &record["result"][tensor];
    // A number without dimensions is written as that number.
    let data = if value.is_object() { &value["data"] } else { value };
    assert!(!data.is_null(), "no tensor `{tensor}`: {record}");
    let mut flat = Vec::new();
    collect(data, &mut flat);
    flat
}

/// Ends the test unless each record of a sink's file shows, in this tensor, the picture of its own item: the pictures of a source are
/// numbered as its items are.
#[track_caller]
pub fn each_shows_its_own_picture(records: &Records, file: &str, tensor: &str) {
    for (key, of_item) in &records.done {
        let Some(record) = of_item.get(file) else { continue };
        assert_eq!(
            index_of_blocks(&numbers(record, tensor)),
            Some(key.index),
            "the record of `{key}`: {record}"
        );
    }
}

/// Ends the test unless exactly the items `0..n` are done, each with the index that its picture shows, and none failed.
#[track_caller]
pub fn all_are_read(place: &Workplace, n: u64) {
    let records = place.records(&["all.jsonl"]);
    records.must_be(1, &items("scans", 0..n), &BTreeSet::new()).unwrap();
    each_shows_its_own_picture(&records, "all.jsonl", "blocks");
}

/// The key of an item of the source `scans`.
pub fn scan(index: u64) -> ItemKey {
    ItemKey { source: "scans".to_owned(), index }
}

/// The pixels of a test picture at one pixel per block.
pub fn pixels(index: u64) -> Vec<f32> {
    images::picture(index, 8, 4).pixels().map(|p| f32::from(p.0[0])).collect()
}
