//! What tracing costs a run: the same run without it, with one item in a hundred traced, with all of them, and with a collector that is
//! down, each right beside a run without.
//!
//! Each run is the real command over the images of `examples/digits`, listed many times over; its throughput is the one of its `run.json`. The
//! collector is a thread of this program that reads requests and answers them, so it takes a part of the same cores, as a collector on
//! the same machine does. Printed are the medians of the ratios to the run without tracing beside it, which comes first in every second
//! round, with the interval that holds the true median in 19 of 20 such benchmarks; and the processor time of the run, its workers
//! included, as such a ratio: how much longer the cores are busy with an item. Where they are the bound, that is what throughput loses.
//! Run with `cargo bench -p orchestra-cli --bench tracing [-- ITEMS ROUNDS]`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may stop where it stands")]

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::Value;

const ITEMS: usize = 100_000;
const ROUNDS: usize = 7;
const IMAGES: usize = 400;

fn main() {
    // `cargo bench` adds `--bench`.
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let (items, rounds) = (numbers.next().unwrap_or(ITEMS), numbers.next().unwrap_or(ROUNDS));
    let place = tempfile::tempdir().unwrap();
    let workflow = write_workflow(place.path(), items);
    let collector = Collector::start();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let up = format!("http://{}", collector.address);
    let nothing = Case { name: "no tracing", otlp: None, sample: "0" };
    let cases = [
        Case { name: "1 % of the items", otlp: Some(up.clone()), sample: "0.01" },
        Case { name: "every item", otlp: Some(up), sample: "1" },
        Case { name: "1 %, collector down", otlp: Some(format!("http://{nobody}")), sample: "0.01" },
        Case { name: "every item, collector down", otlp: Some(format!("http://{nobody}")), sample: "1" },
    ];
    println!("{items} items, {rounds} rounds; a warm-up comes first");
    nothing.run(&workflow, place.path());
    let mut measured: Vec<Vec<Pair>> = cases.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        // What the machine does beside this changes over minutes: so the two of a pair are neighbours, and take turns at being first.
        for (case, pairs) in cases.iter().zip(&mut measured) {
            let traced = || {
                let before = collector.bytes.load(Ordering::Relaxed);
                let mut one = case.run(&workflow, place.path());
                one.sent = collector.bytes.load(Ordering::Relaxed) - before;
                one
            };
            let plain = || nothing.run(&workflow, place.path());
            pairs.push(if round % 2 == 0 {
                let without = plain();
                Pair { without, with: traced() }
            } else {
                let with = traced();
                Pair { without: plain(), with }
            });
        }
    }
    println!(
        "{:<28} {:>10} {:>10} {:>7} {:>16} {:>9} {:>16} {:>9} {:>9}",
        "", "without/s", "items/s", "ratio", "(19 of 20)", "CPU time", "(19 of 20)", "whole s", "MB sent"
    );
    for (case, pairs) in cases.iter().zip(&measured) {
        let ratios = pairs.iter().map(|pair| pair.with.items_per_second / pair.without.items_per_second);
        let cpu = pairs.iter().map(|pair| pair.with.cpu_seconds / pair.without.cpu_seconds);
        println!(
            "{:<28} {:>10.0} {:>10.0} {:>7.3} {:>16} {:>9.3} {:>16} {:>9.2} {:>9.1}",
            case.name,
            median(pairs.iter().map(|pair| pair.without.items_per_second)),
            median(pairs.iter().map(|pair| pair.with.items_per_second)),
            median(ratios.clone()),
            interval(ratios),
            median(cpu.clone()),
            interval(cpu),
            median(pairs.iter().map(|pair| pair.with.seconds)),
            median(pairs.iter().map(|pair| pair.with.sent as f64 / 1e6)),
        );
        if let Some(said) = pairs.last().and_then(|pair| pair.with.said.as_ref()) {
            println!("    last round: {said}");
        }
    }
}

/// Two runs, one right after the other.
struct Pair {
    without: Measured,
    with: Measured,
}

struct Case {
    name: &'static str,
    otlp: Option<String>,
    sample: &'static str,
}

struct Measured {
    items_per_second: f64,
    /// Of the cores, by the command and all of its workers.
    cpu_seconds: f64,
    /// From the start of the command to its end.
    seconds: f64,
    sent: u64,
    /// What it says of spans that were lost.
    said: Option<String>,
}

impl Case {
    fn run(&self, workflow: &Path, place: &Path) -> Measured {
        let out = place.join("out");
        let mut command = Command::new(env!("CARGO_BIN_EXE_orchestra"));
        command.arg("run").arg(workflow).arg("--fresh").arg("--output").arg(&out);
        command.args(["--set", "telemetry.protocol=http/protobuf", "--set"]);
        command.arg(format!("telemetry.sample={}", self.sample));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("OTEL_")) {
            command.env_remove(name);
        }
        if let Some(otlp) = &self.otlp {
            command.arg("--otlp").arg(otlp);
        }
        let (start, cpu_before) = (Instant::now(), cpu_of_children());
        let output = command.output().unwrap();
        let (seconds, cpu_seconds) = (start.elapsed().as_secs_f64(), cpu_of_children() - cpu_before);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        let report: Value = serde_json::from_slice(&fs::read(out.join("run.json")).unwrap()).unwrap();
        Measured {
            items_per_second: report["items_per_second"].as_f64().unwrap(),
            cpu_seconds,
            seconds,
            sent: 0,
            said: stderr.lines().find(|line| line.contains("traces are incomplete")).map(str::to_owned),
        }
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

/// Reads requests of OTLP over HTTP and takes them all, unread.
struct Collector {
    address: std::net::SocketAddr,
    bytes: Arc<AtomicU64>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let bytes = Arc::new(AtomicU64::new(0));
        let of_thread = Arc::clone(&bytes);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let bytes = Arc::clone(&of_thread);
                // It ends when the run closes the connection.
                std::thread::spawn(move || drop(serve(stream.unwrap(), &bytes)));
            }
        });
        Self { address, bytes }
    }
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
