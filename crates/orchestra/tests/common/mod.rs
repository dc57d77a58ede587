//! A workplace for tests of the library: a folder with pictures, models and a workflow file, and runs of it inside this process. Judges
//! no property itself; whatever it waits for, it waits for with a bound that only a hang reaches.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests, which end at the first surprise")]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use orchestra::{
    DeviceKind, Launched, Launcher, Plan, PlanOptions, ProcessLauncher, RenderStyle, RunHandle, RunOutcome,
    StartOptions,
};
use orchestra_testkit::audit::{ItemKey, Records};
use orchestra_testkit::chaos::{Fault, strike};
use orchestra_testkit::images::{self, Kind, index_of_blocks};
use orchestra_testkit::processes::{Process, with_variable};
use orchestra_testkit::programs::beside_this_program;
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

/// A folder with `images/`, `models/`, `workflow.toml` and, after a run, `out/`.
pub struct Workplace {
    dir: TempDir,
    workflow: String,
}

impl Workplace {
    /// With no pictures, and a workflow file without tables.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["images", "models"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        Self { dir, workflow: "version = 1\nname = \"test\"\n".to_owned() }
    }

    /// With `n` pictures in `images/`, and a source `scans` of them.
    pub fn with_pictures(n: u64) -> Self {
        let mut place = Self::new();
        images::write_pictures(&place.path("images"), n, Kind::Png).unwrap();
        place.source("scans", "images");
        place
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The folder of the models.
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

    /// Adds a source of all pictures in a folder.
    pub fn source(&mut self, name: &str, folder: &str) -> &mut Self {
        self.add(&format!("[sources.{name}]\nkind = \"images\"\npaths = [\"{folder}\"]"))
    }

    /// Adds a model, with more keys.
    pub fn model(&mut self, name: &str, path: PathBuf, more: &str) -> &mut Self {
        self.add(&format!("[models.{name}]\npath = {path:?}\nthreads = 1\n{more}"))
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

    /// Plans the workflow.
    #[track_caller]
    pub fn plan(&self) -> Plan {
        let file = self.path("workflow.toml");
        fs::write(&file, &self.workflow).unwrap();
        let (plan, diagnostics) =
            orchestra::plan_file(&file, &PlanOptions::default(), &orchestra::machine()).unwrap();
        plan.unwrap_or_else(|| panic!("{}\n{}", diagnostics.render(RenderStyle::Plain), self.workflow))
    }

    /// Starts honest workers.
    pub fn workers_of_ours(&self) -> ProcessLauncher {
        let mark = (MARK.into(), self.dir.path().into());
        ProcessLauncher { program: example("worker"), args: Vec::new(), env: vec![mark] }
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

    /// Starts a run.
    pub async fn start(&self) -> RunHandle {
        self.start_with(self.options()).await
    }

    /// Starts a run with these options.
    pub async fn start_with(&self, options: StartOptions) -> RunHandle {
        bounded("the run starts", orchestra::start(self.plan(), options)).await.unwrap()
    }

    /// Runs it from start to end.
    pub async fn run(&self) -> RunOutcome {
        self.run_with(self.options()).await
    }

    /// Runs it from start to end with these options.
    pub async fn run_with(&self, options: StartOptions) -> RunOutcome {
        let run = self.start_with(options).await;
        let snapshots = run.snapshots();
        let outcome = tokio::time::timeout(BOUND, run.wait()).await;
        let outcome = outcome.unwrap_or_else(|_| panic!("the run hangs: {:#?}", *snapshots.borrow()));
        let items = outcome.report.items;
        assert_eq!(items.read, items.done + items.failed, "the account is exact");
        assert_eq!(self.workers(), [], "no worker outlives its run");
        outcome
    }

    /// Runs it, and ends the test unless that gives this exit code.
    #[track_caller]
    pub fn must_end_with(outcome: &RunOutcome, code: i32) {
        assert_eq!(outcome.exit_code, code, "{:?}\n{:#?}", outcome.problems, outcome.report);
    }

    /// Live workers.
    pub fn workers(&self) -> Vec<Process> {
        with_variable(MARK, self.dir.path().to_str().unwrap())
    }

    /// Kills one worker, the oldest or the youngest; whether there was one.
    pub fn kill_a_worker(&self, oldest: bool) -> bool {
        let workers = self.workers();
        let target = if oldest { workers.first() } else { workers.last() };
        target.is_some_and(|w| strike(std::process::id(), w.pid, Fault::Kill))
    }

    /// Lines that a file in the output folder holds now; 0 if there is no such file.
    pub fn n_lines(&self, file: &str) -> usize {
        fs::read(self.out().join(file)).map_or(0, |b| b.iter().filter(|c| **c == b'\n').count())
    }

    /// The records of these sinks' files.
    #[track_caller]
    pub fn records(&self, sinks: &[&str]) -> Records {
        Records::read(&self.out(), sinks).unwrap()
    }

    /// The lines of a file in the output folder, in its order.
    pub fn lines(&self, file: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.out().join(file)).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }
}

/// Starts the workers of one stage in one way and all others in another.
pub struct ByStage {
    /// The stage.
    pub stage: &'static str,
    /// Starts its workers.
    pub this: ProcessLauncher,
    /// Starts all others.
    pub others: ProcessLauncher,
}

impl Launcher for ByStage {
    fn launch(&self, device: &DeviceKind, arena: BorrowedFd<'_>) -> io::Result<Launched> {
        // The memory of a stage's batches has the name of the stage.
        let memory = fs::read_link(format!("/proc/self/fd/{}", arena.as_raw_fd()))?;
        let is_this = memory.to_string_lossy().contains(self.stage);
        let launcher = if is_this { &self.this } else { &self.others };
        launcher.launch(device, arena)
    }
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
    let data = &record["result"][tensor]["data"];
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

/// The key of an item of the source `scans`.
pub fn scan(index: u64) -> ItemKey {
    ItemKey { source: "scans".to_owned(), index }
}

/// The pixels of a test picture at one pixel per block.
pub fn pixels(index: u64) -> Vec<f32> {
    images::picture(index, 8, 4).pixels().map(|p| f32::from(p.0[0])).collect()
}
