//! A workplace for tests of the real command: a folder with pictures, a model and a workflow file, and runs started in it. Judges no
//! property itself; whatever it waits for, it waits for with a bound that only a hang reaches.

pub mod gpu;
pub mod page;
pub mod random;
pub mod under;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use orchestra_testkit::gate::Gate;
use orchestra_testkit::images::index_of_blocks;
use orchestra_testkit::processes::with_variable;
use orchestra_testkit::records::{ItemKey, Records, items};
use orchestra_testkit::skip::skip;
use orchestra_testkit::striker::workers_of;
use orchestra_testkit::workflow_file::WorkflowFile;
use orchestra_testkit::{GATE, leaks, models};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// The command under test.
pub const ORCHESTRA: &str = env!("CARGO_BIN_EXE_orchestra");
/// Carried by every process that a workplace starts, directly or not; its value is the workplace's folder.
const MARK: &str = "ORCHESTRA_TEST_WORKPLACE";
/// Names the device on which workflows of [`Workplace::write_blocks`] run instead of the CPU, such as `cuda:0`.
const TEST_DEVICE: &str = "ORCHESTRA_TEST_DEVICE";
/// Time between two looks at a condition.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Looks after which a condition counts as never met: minutes, far beyond what any machine needs.
const LOOKS: usize = 18_000;

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A file as `numpy.save` writes it.
pub fn npy_of(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let header = format!("{header:<117}\n");
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// One of f32.
pub fn npy(shape: &str, numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    npy_of("<f4", shape, &numbers.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
}

/// The files of an archive, with their names.
pub fn members_of(tar: &[u8]) -> Vec<(String, Vec<u8>)> {
    assert!(tar.ends_with(&[0; 1024]), "an archive has an end");
    let mut archive = tar::Archive::new(tar);
    let member = |mut member: tar::Entry<&[u8]>| {
        let (name, mut content) = (member.path().unwrap().display().to_string(), Vec::new());
        member.read_to_end(&mut content).unwrap();
        (name, content)
    };
    archive.entries().unwrap().map(Result::unwrap).map(member).collect()
}

/// The Python of an environment of `scripts/python-env.sh`, which is made where it is missing; `None`: it cannot be made, and the test is skipped.
#[track_caller]
pub fn python_env(name: &str) -> Option<String> {
    let script = repository().join("scripts/python-env.sh");
    let made = Command::new(script).arg(name).stdin(Stdio::null()).output().unwrap();
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr);
        skip(
            &format!("no Python with `{name}`: {}", said.lines().last().unwrap_or("?")),
            &format!("`scripts/python-env.sh {name}` makes an environment that has it"),
        );
        return None;
    }
    Some(String::from_utf8(made.stdout).unwrap().trim_end().to_owned())
}

/// An interpreter that has numpy: one that is there, or a virtual environment that is made once; `None` where there can be none, and the test is
/// skipped.
#[track_caller]
pub fn python() -> Option<&'static str> {
    static FOUND: OnceLock<Result<String, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-with-numpy");
        let made_python = made.join("bin/python").to_str().unwrap().to_owned();
        let runs = |program: &str, arguments: &[&str]| {
            let command = Command::new(program).args(arguments).stdin(Stdio::null()).output();
            command.is_ok_and(|output| output.status.success())
        };
        let has_numpy = |python: &str| runs(python, &["-c", "import numpy"]);
        let named = std::env::var("PYTHON").ok();
        let ready = named
            .iter()
            .map(String::as_str)
            .chain([&*made_python, "python3"])
            .find(|python| has_numpy(python));
        let is_made = || {
            runs("python3", &["-m", "venv", made.to_str().unwrap()])
                && runs(&made_python, &["-m", "pip", "install", "--quiet", "numpy"])
                && has_numpy(&made_python)
        };
        match ready {
            Some(python) => Ok(python.to_owned()),
            None if is_made() => Ok(made_python.clone()),
            None => Err("no python3 with numpy".to_owned()),
        }
    });
    match found {
        Ok(python) => Some(python),
        Err(missing) => {
            skip(missing, "install numpy, or name a Python that has it with PYTHON=..");
            None
        }
    }
}

/// A folder with `images/`, `models/`, `tmp/`, `workflow.toml` and, after a run, `out/`.
pub struct Workplace {
    dir: TempDir,
}

/// A started command.
pub struct Run {
    child: Child,
    stderr: PathBuf,
    stdout: PathBuf,
}

#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stderr: String,
    pub stdout: String,
}

/// Settings of the workflow `pixels -> blocks`, which gives back the index that is drawn in each picture.
pub struct Blocks {
    /// Matrix products after the model proper: how slow it is.
    pub steps: usize,
    /// Put the trap operator before it.
    pub trap: bool,
    pub batch: usize,
    pub devices: usize,
    /// More tables of the file.
    pub more: &'static str,
}

impl Default for Blocks {
    fn default() -> Self {
        Self { steps: 0, trap: false, batch: 8, devices: 2, more: "" }
    }
}

/// Does runs until their strikes have hit so often in all: on a fast machine one is over after few of them, and the next has less time in between.
/// `run` is told how much, and gives how many hit.
#[track_caller]
pub fn until_struck(least: usize, every: Duration, run: impl Fn(Duration) -> usize) {
    const MOST_RUNS: usize = 10;
    let (mut struck, mut every) = (0, every);
    for _ in 0..MOST_RUNS {
        struck += run(every);
        if struck >= least {
            return;
        }
        every = every * 3 / 4;
    }
    panic!("{struck} strikes hit in {MOST_RUNS} runs, where {least} shall");
}

impl Workplace {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["images", "models", "tmp"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        Self { dir }
    }

    /// One with this workflow file.
    pub fn of(text: impl AsRef<[u8]>) -> Self {
        let place = Self::new();
        place.write(text);
        place
    }

    /// Writes the workflow file.
    pub fn write(&self, text: impl AsRef<[u8]>) {
        fs::write(self.workflow(), text).unwrap();
    }

    /// A run of another workflow file, whose output folder has this name.
    #[track_caller]
    pub fn run_file(&self, text: impl AsRef<[u8]>, name: &str, variables: &[(&str, &str)]) -> Ended {
        let (file, out) = (self.path(&format!("{name}.toml")), self.path(name));
        fs::write(&file, text).unwrap();
        let run = ["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
        self.start_command_with(&run, variables).wait()
    }

    /// One with `stage.py` and these tables, in which `kind = "python"` stands for all that names the script; `None`: the test is skipped.
    #[track_caller]
    pub fn with_script(script: &str, tables: &str) -> Option<Self> {
        let python = python()?;
        let keys = format!("kind = \"python\"\nscript = \"stage.py\"\npython = {python:?}");
        let tables = tables.replace("kind = \"python\"", &keys);
        let place = Self::of(format!("version = 1\n{tables}\n[devices]\nuse = [\"cpu\"]\n"));
        fs::write(place.path("stage.py"), script).unwrap();
        Some(place)
    }

    /// One with a workflow file of these tables.
    pub fn with_slots(slots: usize, tables: &str) -> Self {
        let place = Self::new();
        place.write_slots(slots, tables);
        place
    }

    /// Writes such a file.
    pub fn write_slots(&self, slots: usize, tables: &str) {
        self.write(format!("version = 1\n[devices]\nslots = {slots}\n{tables}"));
    }

    /// One with the workflow of `blocks` over the folder `images`.
    pub fn with_blocks(blocks: &Blocks) -> Self {
        let place = Self::new();
        place.write_blocks(blocks, "paths = [\"images\"]");
        place
    }

    /// One with the usual workflow over pictures `0..n`.
    pub fn with_pictures(n: u64) -> Self {
        let place = Self::with_blocks(&Blocks::default());
        write_pictures(&place.images(), n);
        place
    }

    /// Writes the workflow of `blocks`; `listing` is the source's `paths` or `manifest`.
    pub fn write_blocks(&self, blocks: &Blocks, listing: &str) {
        let models = self.path("models");
        let model = match (blocks.trap, blocks.steps) {
            (true, 0) => models::blocks_behind_trap(&models, [1, 32, 32]),
            (true, steps) => models::slow_blocks_behind_trap(&models, [1, 32, 32], steps),
            (false, 0) => models::blocks(&models, [1, 32, 32]),
            (false, steps) => models::slow_blocks(&models, [1, 32, 32], steps),
        };
        let model = model.unwrap();
        fs::create_dir_all(self.path("gate")).unwrap();
        let custom = match blocks.trap {
            // The gate is outside of what a worker may touch.
            true => format!(
                "custom_ops = [{:?}]\nsandbox_write = [\"gate\"]",
                orchestra_testkit::trap_library().unwrap()
            ),
            false => String::new(),
        };
        let devices = vec!["cpu"; blocks.devices];
        let batch = format!("batch = {{ max = {}, wait = \"5ms\" }}", blocks.batch);
        let text = WorkflowFile::named("blocks")
            .source("scans", "images", listing)
            .table("models.blocks", format_args!("path = {model:?}\nthreads = 1\n{custom}"))
            .gray("pixels", "scans", [32, 32], "scale = 1.0")
            .stage("read", "infer", "pixels", format_args!("model = \"blocks\"\n{batch}"))
            .table("sinks.results", "kind = \"jsonl\"\nfrom = \"read\"\npath = \"results.jsonl\"")
            .table("devices", format_args!("use = {devices:?}\n{}", blocks.more))
            .table("telemetry", "flush_timeout = \"10m\"");
        self.write(on_test_device(&text));
    }

    /// All batches go to one worker, in the order of the source where one loader reads it.
    pub fn one_worker(&self) {
        self.edit("use = [\"cpu\", \"cpu\"]", "use = [\"cpu\"]");
        self.edit("threads = 1\n", "threads = 1\nworkers = 1\n");
    }

    /// One with items `0..n` and a model behind a gate. Where it is closed, no run comes to its end before it is opened. Each batch goes by
    /// itself.
    pub fn with_gate(n: u64) -> Self {
        let place = Self::with_blocks(&Blocks { trap: true, ..Blocks::default() });
        write_pictures(&place.images(), n);
        place
    }

    /// Lets `n` more items pass the trap of the model, and the rest of the batches that they lie in. While nothing runs.
    pub fn close_gate_after(&self, n: usize) {
        Gate::in_folder(&self.path("gate")).close_after(n).unwrap();
    }

    /// Batches that wait at the gate, or have waited, since it was closed.
    pub fn waiting_at_gate(&self) -> u64 {
        Gate::in_folder(&self.path("gate")).n_waiting()
    }

    /// Lets everything pass, from now on.
    pub fn open_gate(&self) {
        Gate::in_folder(&self.path("gate")).open().unwrap();
    }

    /// `orchestra run workflow.toml` at the moment when it has written `n` results more than there were. It does those of a batch or two
    /// beyond them, and then waits for the gate. Only where no result is cut off by this start: the last one has ended by itself.
    #[track_caller]
    pub fn start_until(&self, n: usize) -> Run {
        let before = self.n_results();
        assert!(before == 0 || self.out().join("run.json").exists(), "the run before was killed");
        let wanted = before + n;
        self.close_gate_after(n);
        let mut run = self.start(&[]);
        run.must_reach("the run is under way", || self.n_results() >= wanted);
        run
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn workflow(&self) -> PathBuf {
        self.path("workflow.toml")
    }

    /// The folder of the pictures.
    pub fn images(&self) -> PathBuf {
        self.path("images")
    }

    /// The output folder.
    pub fn out(&self) -> PathBuf {
        self.path("out")
    }

    /// Replaces text in the workflow file.
    pub fn edit(&self, from: &str, to: &str) {
        let (from, to) = (&*on_test_device(from), &*on_test_device(to));
        let text = fs::read_to_string(self.workflow()).unwrap();
        assert!(text.contains(from), "`{from}` is not in the workflow file");
        self.write(text.replace(from, to));
    }

    /// `orchestra run workflow.toml` with more arguments, started.
    pub fn start(&self, arguments: &[&str]) -> Run {
        self.start_on_file("run", arguments, &[])
    }

    /// `orchestra run workflow.toml` with more arguments, from start to end.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        self.start(arguments).wait()
    }

    /// `orchestra run workflow.toml` with these variables in its environment, started.
    pub fn start_with(&self, variables: &[(&str, &str)]) -> Run {
        self.start_on_file("run", &[], variables)
    }

    /// The same, from start to end.
    pub fn run_with(&self, variables: &[(&str, &str)]) -> Ended {
        self.start_with(variables).wait()
    }

    /// `orchestra COMMAND workflow.toml` with more arguments, and these variables in its environment, started.
    pub fn start_on_file(&self, command: &str, more: &[&str], variables: &[(&str, &str)]) -> Run {
        self.start_command_with(&[&[command, self.workflow().to_str().unwrap()], more].concat(), variables)
    }

    /// `orchestra COMMAND workflow.toml` with more arguments, from start to end.
    pub fn on_file(&self, command: &str, more: &[&str]) -> Ended {
        self.on(command, &self.workflow(), more)
    }

    /// `orchestra COMMAND out` with more arguments, from start to end.
    pub fn on_out(&self, command: &str, more: &[&str]) -> Ended {
        self.on(command, &self.out(), more)
    }

    /// `orchestra COMMAND PATH` with more arguments, from start to end.
    pub fn on(&self, command: &str, path: &Path, more: &[&str]) -> Ended {
        self.command(&[&[command, path.to_str().unwrap()], more].concat())
    }

    pub fn start_command(&self, arguments: &[&str]) -> Run {
        self.start_command_with(arguments, &[])
    }

    pub fn command(&self, arguments: &[&str]) -> Ended {
        self.start_command(arguments).wait()
    }

    /// Any command, with this as its standard input.
    pub fn start_command_fed(&self, arguments: &[&str], stdin: Stdio) -> Run {
        self.start_process(arguments, &[], stdin)
    }

    pub fn start_command_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Run {
        self.start_process(arguments, variables, Stdio::null())
    }

    /// `orchestra run workflow.toml` with more arguments, from start to end, in a shell that has set `limits` before, such as `ulimit -v 900000`.
    pub fn run_under(&self, limits: &str, arguments: &[&str]) -> Ended {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{limits} && exec \"$@\""), "sh", ORCHESTRA, "run"]);
        shell.arg(self.workflow()).args(arguments);
        self.spawn(shell, &[], Stdio::null()).wait()
    }

    fn start_process(&self, arguments: &[&str], variables: &[(&str, &str)], stdin: Stdio) -> Run {
        let mut command = Command::new(ORCHESTRA);
        command.args(arguments);
        self.spawn(command, variables, stdin)
    }

    fn spawn(&self, mut command: Command, variables: &[(&str, &str)], stdin: Stdio) -> Run {
        // Threads of a test may share a workplace.
        static PROCESSES: AtomicUsize = AtomicUsize::new(0);
        let n = PROCESSES.fetch_add(1, Ordering::Relaxed);
        let (stderr, stdout) = (self.path(&format!("stderr-{n}")), self.path(&format!("stdout-{n}")));
        let child = command
            .env(MARK, self.dir.path())
            .env(GATE, self.path("gate"))
            .env("TMPDIR", self.path("tmp"))
            .env_remove("RUST_LOG")
            .envs(variables.iter().copied())
            .stdin(stdin)
            .stderr(File::create(&stderr).unwrap())
            .stdout(File::create(&stdout).unwrap())
            .spawn()
            .unwrap();
        Run { child, stderr, stdout }
    }

    /// The audit at the end of a run: waits until no process that was started here lives; then nothing lies in the folder for temporary
    /// files, the output folder holds only what docs/guide/running.md names, and no log speaks of a bug.
    #[track_caller]
    pub fn nothing_is_left(&self) {
        self.nothing_is_left_but(&["results.jsonl"]);
    }

    /// As `nothing_is_left`, of a run with these results.
    #[track_caller]
    pub fn nothing_is_left_but(&self, results: &[&str]) {
        self.no_process_is_left();
        let mut left = leaks::temporary_files(&self.path("tmp"));
        left.extend(leaks::output_folder(&self.out(), results));
        assert!(left.is_empty(), "a run left something behind: {left:#?}");
    }

    /// The audit after a run was killed, which may have been in the middle of writing a file: no process outlives it.
    #[track_caller]
    pub fn no_process_is_left(&self) {
        let mark = self.dir.path().to_str().unwrap();
        let mut left = Vec::new();
        let gone = met(|| {
            left = leaks::processes(MARK, mark);
            left.is_empty()
        });
        assert!(gone, "processes outlive their run: {left:#?}");
    }

    /// Ends the processes that custom operators have left behind, which are not the run's.
    pub fn end_strangers(&self) {
        let mark = self.dir.path().to_str().unwrap();
        for process in with_variable(MARK, mark) {
            let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw).unwrap();
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Worker processes that were lost so far, of all starts, as the log of the pipeline says.
    pub fn workers_lost(&self) -> usize {
        let log = fs::read_to_string(self.out().join("logs/scans.log")).unwrap();
        log.lines().filter(|l| l.contains("worker lost")).count()
    }

    /// The records of the only sink.
    pub fn records(&self) -> Records {
        Records::read(&self.out(), &["results.jsonl"]).unwrap()
    }

    /// Whether exactly the items `done` have a record and exactly `failed` a failure, each once.
    pub fn must_hold(&self, done: &BTreeSet<ItemKey>, failed: &BTreeSet<ItemKey>) -> Records {
        let records = self.records();
        records.must_be(1, done, failed).unwrap();
        records
    }

    /// Whether the items `0..n` are done, none failed, and each record shows the picture of its own item: pictures are numbered as
    /// their items are.
    pub fn holds_exactly(&self, n: u64) {
        let records = self.must_hold(&items("scans", 0..n), &BTreeSet::new());
        shows_its_own(&records);
    }

    /// `run.json`.
    pub fn report(&self) -> Value {
        serde_json::from_slice(&fs::read(self.out().join("run.json")).unwrap()).unwrap()
    }

    /// Its tasks by name.
    pub fn tasks(&self) -> BTreeMap<String, Value> {
        let tasks = self.report()["tasks"].as_array().unwrap().clone();
        tasks.into_iter().map(|task| (task["task"].as_str().unwrap().to_owned(), task)).collect()
    }

    /// Workers that were replaced, as `run.json` says.
    pub fn restarts(&self) -> u64 {
        let report = self.report();
        report["devices"].as_array().unwrap().iter().map(|d| d["restarts"].as_u64().unwrap()).sum()
    }

    /// Lines in the results so far; the last one may be torn.
    pub fn n_results(&self) -> usize {
        fs::read(self.out().join("results.jsonl")).map_or(0, |b| b.iter().filter(|c| **c == b'\n').count())
    }

    /// The records of `failures.jsonl`.
    pub fn failures(&self) -> Vec<Value> {
        self.lines("failures.jsonl")
    }

    pub fn errors(&self) -> Vec<String> {
        self.failures().iter().map(|failure| failure["error"].as_str().unwrap().to_owned()).collect()
    }

    /// What a file in the workplace says; nothing where it is not there.
    pub fn text(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_default()
    }

    pub fn text_lines(&self, file: &str) -> Vec<String> {
        self.text(file).lines().map(str::to_owned).collect()
    }

    /// The lines of a file of the output folder; none where it is not there.
    pub fn lines(&self, file: &str) -> Vec<Value> {
        json_lines(&self.out().join(file))
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if thread::panicking() {
            // What lies in it tells why.
            self.dir.disable_cleanup(true);
            println!("the workplace is kept: {}", self.dir.path().display());
        }
    }
}

impl Run {
    /// The parent's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Kills it, and waits until none of the processes of its workplace lives.
    #[track_caller]
    pub fn kill_in(self, place: &Workplace) {
        self.signal(Signal::KILL);
        let ended = self.wait();
        assert_eq!(ended.status.code(), None, "it was not killed:\n{}", ended.stderr);
        place.no_process_is_left();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// A way to send it signals while it is waited for. An ended one that was not waited for yet takes them in silence.
    pub fn signaller(&self) -> impl Fn(Signal) + use<> {
        let pid = Pid::from_child(&self.child);
        move |signal| kill_process(pid, signal).unwrap()
    }

    /// The file into which it says what it says.
    pub fn stderr(&self) -> PathBuf {
        self.stderr.clone()
    }

    pub fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    /// Waits until `condition` holds; `false` if the run ended before that.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut condition: impl FnMut() -> bool) -> bool {
        let mut met = false;
        until(what, || {
            met = condition();
            met || !self.is_running()
        });
        met
    }

    /// Waits until `condition` holds, which is before it ends.
    #[track_caller]
    pub fn must_reach(&mut self, what: &str, condition: impl FnMut() -> bool) {
        assert!(self.until(what, condition), "it ended before {what}: {}", self.said());
    }

    /// Waits until it says `words` on stderr.
    #[track_caller]
    pub fn must_say(&mut self, words: &str) {
        let stderr = self.stderr();
        self.must_reach(words, || fs::read_to_string(&stderr).unwrap().contains(words));
    }

    /// Live workers now.
    pub fn workers(&self) -> Vec<u32> {
        workers_of(self.pid()).iter().map(|w| w.pid).collect()
    }

    pub fn wait(mut self) -> Ended {
        let pid = self.pid();
        let (stderr, stdout) = (self.stderr.clone(), self.stdout.clone());
        let mut status = None;
        until(&format!("process {pid} ends ({})", stderr.display()), || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        Ended {
            status: status.unwrap(),
            stderr: fs::read_to_string(stderr).unwrap(),
            stdout: fs::read_to_string(stdout).unwrap(),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // A test that fails must leave no run behind; one that was waited for is gone, which is no error here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The same, whose exit code must be this.
    #[track_caller]
    pub fn exited(self, code: i32) -> Self {
        self.must_exit(code);
        self
    }

    /// Ends the test unless the exit code is this.
    #[track_caller]
    pub fn must_exit(&self, code: i32) -> &Self {
        assert_eq!(
            self.status.code(),
            Some(code),
            "signal {:?}, said:\n{}",
            self.status.signal(),
            self.stderr
        );
        self
    }

    /// Ends the test unless it printed all of this.
    #[track_caller]
    pub fn must_print(&self, parts: &[&str]) -> &Self {
        for part in parts {
            assert!(self.stdout.contains(part), "`{part}` is not printed:\n{}\n{}", self.stdout, self.stderr);
        }
        self
    }

    /// Ends the test unless it said all of this.
    #[track_caller]
    pub fn must_say(&self, parts: &[&str]) -> &Self {
        for part in parts {
            assert!(self.stderr.contains(part), "nothing is said of `{part}`:\n{}", self.stderr);
        }
        self
    }
}

/// A text of a workflow file whose lists of CPU devices are the test device, once, where there is one.
fn on_test_device(text: &str) -> String {
    let Ok(device) = std::env::var(TEST_DEVICE) else { return text.to_owned() };
    let lists = ["use = [\"cpu\", \"cpu\"]", "use = [\"cpu\"]"];
    lists.iter().fold(text.to_owned(), |text, list| text.replace(list, &format!("use = [{device:?}]")))
}

/// Waits until `condition` holds.
#[track_caller]
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(met(condition), "waited in vain until {what}");
}

/// Waits until `condition` holds; `false` after minutes.
fn met(mut condition: impl FnMut() -> bool) -> bool {
    // Nothing is ever sent on it: its time-out is the pause between two looks.
    let (_keep, never) = channel::<()>();
    for _ in 0..LOOKS {
        if condition() {
            return true;
        }
        pause(&never);
    }
    false
}

fn pause(never: &Receiver<()>) {
    assert_eq!(never.recv_timeout(LOOK_EVERY), Err(RecvTimeoutError::Timeout));
}

/// The same but for what batches of other sizes round otherwise: a death halves them.
pub fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| is_same(a, b)))
        }
        (Value::Number(a), Value::Number(b)) => {
            (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() <= 1e-5 * a.as_f64().unwrap().abs().max(1.0)
        }
        (a, b) => a == b,
    }
}

/// The values of a file with one on each line; none where it is not there.
pub fn json_lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// Whether each record shows the picture of its own item.
#[track_caller]
pub fn shows_its_own(records: &Records) {
    for key in records.done.keys() {
        assert_eq!(drawn(records, key), key.index, "the record of `{key}` shows another picture");
    }
}

/// The index that the record of an item shows.
pub fn drawn(records: &Records, key: &ItemKey) -> u64 {
    let record = &records.done[key]["results.jsonl"];
    let data = record["result"]["blocks"]["data"].as_array().unwrap();
    let blocks: Vec<f32> = data.iter().map(|v| v.as_f64().unwrap() as f32).collect();
    index_of_blocks(&blocks).unwrap_or_else(|| panic!("the record of `{key}` shows no index: {record}"))
}

/// Writes pictures `0..n`, a part of them on each core.
pub fn write_pictures(folder: &Path, n: u64) {
    use orchestra_testkit::images::{Kind, write_picture};
    let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    thread::scope(|scope| {
        for first in 0..threads {
            scope.spawn(move || {
                for index in (first..n).step_by(threads as usize) {
                    write_picture(folder, index, 32, 32, Kind::Png).unwrap();
                }
            });
        }
    });
}

pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}
