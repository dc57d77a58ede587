//! What tracing costs a run: the same run without it, with one item in a hundred traced, with all of them, and with a collector that is
//! down, each side by side with a run without.
//!
//! Each run is the real command over the images of `examples/digits`, listed many times over. What else goes on on a machine changes its
//! speed by more than what is measured, within seconds; so the two commands of a pair take turns of a tenth of a second, one
//! stopped while the other has the machine, and whatever goes on meets both. The rate of each is the items by the time of its turns, from
//! the start of the command to its end: starting, about 50 ms of two seconds, is in both. The collector is a process that reads requests and answers them, and has the turns of
//! the run that it serves: it takes a part of the same cores, as a collector on the same machine does.
//!
//! Printed are the medians of the ratios of the pairs, with the interval that holds the true median in 19 of 20 such benchmarks; and the
//! processor time of the run, its workers included, as such a ratio. The first line is two runs without tracing: how far it is from 1
//! is how far the others are not to be trusted.
//! Run with `cargo bench -p orchestra-cli --bench tracing [-- ITEMS ROUNDS]`. With the tests it runs too, one round over few items.

#![allow(clippy::unwrap_used, reason = "a benchmark may stop where it stands")]

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use orchestra_machine::processes;
use rustix::process::{Pid, Signal, kill_process};

const ITEMS: usize = 50_000;
const ROUNDS: usize = 20;
/// Items of the one round of a test, which measures nothing.
const ITEMS_OF_A_TEST: usize = 400;
const IMAGES: usize = 400;

/// Long beside what it costs to stop and wake a process, short beside what else happens on a machine.
const TURN: Duration = Duration::from_millis(100);

fn main() {
    if std::env::args().any(|argument| argument == "collector") {
        return collect();
    }
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    // `cargo bench` adds it.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let (items, rounds) = match is_bench {
        true => (numbers.next().unwrap_or(ITEMS), numbers.next().unwrap_or(ROUNDS)),
        false => (ITEMS_OF_A_TEST, 1),
    };
    if !is_bench && std::env::args().len() > 1 {
        return; // `cargo test` looks for a certain test, or lists them.
    }
    let place = tempfile::tempdir().unwrap();
    let workflow = write_workflow(place.path(), items);
    let nothing = Case { name: "no tracing", collector: Collector::None, sample: "0" };
    let cases = [
        nothing,
        Case { name: "1 % of the items", collector: Collector::Up, sample: "0.01" },
        Case { name: "every item", collector: Collector::Up, sample: "1" },
        Case { name: "1 %, collector down", collector: Collector::Down, sample: "0.01" },
        Case { name: "every item, collector down", collector: Collector::Down, sample: "1" },
    ];
    println!("{items} items, {rounds} rounds; a warm-up comes first");
    let places = [place.path().join("without"), place.path().join("with")];
    pair([nothing, nothing], &workflow, &places, false);
    let mut measured: Vec<Vec<[Measured; 2]>> = cases.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for (case, pairs) in cases.iter().zip(&mut measured) {
            pairs.push(pair([nothing, *case], &workflow, &places, round % 2 == 1));
        }
    }
    println!(
        "{:<28} {:>10} {:>10} {:>7} {:>16} {:>9} {:>16} {:>9}",
        "", "without/s", "items/s", "ratio", "(19 of 20)", "CPU time", "(19 of 20)", "MB sent"
    );
    for (case, pairs) in cases.iter().zip(&measured) {
        let rate = |one: &Measured| items as f64 / one.seconds;
        let ratios = pairs.iter().map(|[without, with]| rate(with) / rate(without));
        let cpu = pairs.iter().map(|[without, with]| with.cpu_seconds / without.cpu_seconds);
        println!(
            "{:<28} {:>10.0} {:>10.0} {:>7.3} {:>16} {:>9.3} {:>16} {:>9.1}",
            case.name,
            median(pairs.iter().map(|[without, _]| rate(without))),
            median(pairs.iter().map(|[_, with]| rate(with))),
            median(ratios.clone()),
            interval(ratios),
            median(cpu.clone()),
            interval(cpu),
            median(pairs.iter().map(|[_, with]| with.sent as f64 / 1e6)),
        );
        if let Some(said) = pairs.last().and_then(|[_, with]| with.said.as_ref()) {
            println!("    last round: {said}");
        }
    }
}

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    collector: Collector,
    sample: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum Collector {
    None,
    Up,
    Down,
}

struct Measured {
    /// The turns that it had.
    seconds: f64,
    /// Of the cores, by the command and all of its workers.
    cpu_seconds: f64,
    /// Bytes that the collector was sent.
    sent: u64,
    /// What it says of spans that were lost.
    said: Option<String>,
}

/// Runs two commands that take turns; the second begins if `swapped`.
fn pair(cases: [Case; 2], workflow: &Path, places: &[PathBuf; 2], swapped: bool) -> [Measured; 2] {
    let mut runs = [Run::new(cases[0], workflow, &places[0]), Run::new(cases[1], workflow, &places[1])];
    let order = if swapped { [1, 0] } else { [0, 1] };
    while runs.iter().any(|run| run.measured.is_none()) {
        for at in order {
            if runs[at].measured.is_none() {
                runs[at].turn();
            }
        }
    }
    runs.map(|mut run| run.measured.take().unwrap())
}

/// A command that takes turns with another one.
struct Run {
    command: Command,
    /// What it says: a pipe is not read while it is stopped.
    stderr: PathBuf,
    collector: Option<(Child, BufReader<std::process::ChildStdout>)>,
    /// From its first turn on.
    child: Option<Child>,
    had: Duration,
    /// When it is over.
    measured: Option<Measured>,
}

impl Run {
    fn new(case: Case, workflow: &Path, out: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orchestra"));
        command.arg("run").arg(workflow).arg("--fresh").arg("--output").arg(out);
        command.arg("--set").arg(format!("telemetry.sample={}", case.sample));
        fs::create_dir_all(out).unwrap();
        let stderr = out.with_extension("stderr");
        command.stdout(Stdio::null()).stderr(fs::File::create(&stderr).unwrap());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("OTEL_")) {
            command.env_remove(name);
        }
        let mut collector = None;
        let address = match case.collector {
            Collector::None => None,
            Collector::Up => {
                let (child, stdout, address) = start_collector();
                collector = Some((child, stdout));
                Some(address)
            }
            // Nothing listens there any more.
            Collector::Down => {
                Some(TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string())
            }
        };
        if let Some(address) = address {
            command.arg("--otlp").arg(format!("http://{address}"));
        }
        let run = Self { command, stderr, collector, child: None, had: Duration::ZERO, measured: None };
        run.signal(Signal::STOP);
        run
    }

    /// Has the machine for a turn, or until it is over.
    fn turn(&mut self) {
        let begun = Instant::now();
        self.signal(Signal::CONT);
        let child = match &mut self.child {
            Some(child) => child,
            none => none.insert(self.command.spawn().unwrap()),
        };
        let mut status = None;
        let cpu_before = cpu_of_children();
        while status.is_none() && begun.elapsed() < TURN {
            std::thread::sleep(Duration::from_millis(1));
            status = child.try_wait().unwrap();
        }
        if let Some(status) = status {
            self.had += begun.elapsed();
            self.child = None;
            let stderr = fs::read_to_string(&self.stderr).unwrap();
            assert!(status.success(), "{stderr}");
            self.measured = Some(Measured {
                seconds: self.had.as_secs_f64(),
                cpu_seconds: cpu_of_children() - cpu_before,
                sent: self.collector.take().map_or(0, end_collector),
                said: stderr.lines().find(|line| line.contains("traces are incomplete")).map(str::to_owned),
            });
        } else {
            self.signal(Signal::STOP);
            self.had += begun.elapsed();
        }
    }

    /// To the command, its workers and its collector. The one that starts others is stopped first.
    fn signal(&self, signal: Signal) {
        let command = self.child.as_ref().map(Child::id);
        let workers = || command.into_iter().flat_map(processes::children).map(|worker| worker.pid);
        let of_command: Vec<u32> = match signal {
            Signal::STOP => {
                send(command, signal);
                workers().collect()
            }
            _ => workers().chain(command).collect(),
        };
        send(of_command, signal);
        send(self.collector.iter().map(|(child, _)| child.id()), signal);
    }
}

/// Nothing stays stopped, or at all, when the benchmark stops where it stands.
impl Drop for Run {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
        for child in self.child.iter_mut().chain(self.collector.iter_mut().map(|(child, _)| child)) {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn send(pids: impl IntoIterator<Item = u32>, signal: Signal) {
    for pid in pids.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
        // A worker may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
}

/// The example's workflow over a list that names its images again and again.
fn write_workflow(place: &Path, items: usize) -> PathBuf {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits").canonicalize().unwrap();
    let mut images: Vec<PathBuf> =
        fs::read_dir(example.join("images")).unwrap().map(|entry| entry.unwrap().path()).collect();
    images.sort();
    assert_eq!(images.len(), IMAGES);
    let mut list = "file\n".to_owned();
    for image in images.iter().cycle().take(items) {
        writeln!(list, "{}", image.display()).unwrap();
    }
    fs::write(place.join("list.csv"), list).unwrap();
    let text = fs::read_to_string(example.join("workflow.toml")).unwrap();
    let models = example.join("../../models").canonicalize().unwrap();
    let text = text
        .lines()
        .map(|line| match line.split_once('=').map(|(key, _)| key.trim()) {
            Some("paths") => "manifest = \"list.csv\"".to_owned(),
            _ => line.replace("../../models", &models.to_string_lossy()),
        })
        .collect::<Vec<_>>()
        .join("\n");
    let workflow = place.join("workflow.toml");
    fs::write(&workflow, text).unwrap();
    workflow
}

/// Starts this program once more, as a collector. Gives where it says what it was sent, and its address.
fn start_collector() -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.arg("collector").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut address = String::new();
    stdout.read_line(&mut address).unwrap();
    (child, stdout, address.trim().to_owned())
}

/// Gives the bytes that it was sent.
fn end_collector((mut child, mut stdout): (Child, BufReader<std::process::ChildStdout>)) -> u64 {
    drop(child.stdin.take());
    let mut bytes = String::new();
    stdout.read_line(&mut bytes).unwrap();
    child.wait().unwrap();
    bytes.trim().parse().unwrap()
}

/// Reads requests of OTLP over HTTP and takes them all, unread, until its standard input ends.
fn collect() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    let bytes = Arc::new(AtomicU64::new(0));
    let of_thread = Arc::clone(&bytes);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let bytes = Arc::clone(&of_thread);
            // It ends when the run closes the connection.
            std::thread::spawn(move || drop(serve(stream.unwrap(), &bytes)));
        }
    });
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    println!("{}", bytes.load(Ordering::Relaxed));
}

fn serve(mut stream: TcpStream, bytes: &AtomicU64) -> std::io::Result<()> {
    let mut reader = BufReader::with_capacity(1 << 18, stream.try_clone()?);
    let mut length = 0;
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        } else if line == "\r\n" {
            std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
            bytes.fetch_add(length, Ordering::Relaxed);
            stream.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n",
            )?;
        }
    }
}

/// Seconds of the cores that children took which are over, and theirs, if these were waited for: a run waits for all of its workers.
fn cpu_of_children() -> f64 {
    let status = fs::read_to_string("/proc/self/stat").unwrap();
    // Behind the name, which may hold blanks: `cutime` and `cstime` are the 16th and 17th field of all, in ticks of 10 ms.
    let fields: Vec<&str> = status.rsplit_once(')').unwrap().1.split_whitespace().collect();
    [13, 14].iter().map(|at| fields[*at].parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// Where the true median lies in 19 of 20 cases, whatever the values are like: by how many of so many coins show heads.
fn interval(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let n = values.len() as f64;
    let below = ((n - 1.96 * n.sqrt()) / 2.0).floor().max(0.0) as usize;
    format!("({:.3}-{:.3})", values[below], values[values.len() - 1 - below])
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}
