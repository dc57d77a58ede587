//! How much of a function in Python is left to it as a stage: `kind = "python"` with one worker, and the same function called in a bare loop
//! over batches that are ready in memory. The two take turns, round by round; what starting a run takes is measured with one batch, and left out.
//!
//! Printed are milliseconds per batch of both, medians of the rounds, and the ratio bare / stage: 1 is no overhead, 0.9 or more is wanted.
//! Run with `cargo bench -p orchestra-cli --bench python_stage [-- BATCHES ROUNDS]`; `PYTHON` names an interpreter that has numpy. With the tests
//! it runs too, one round of a few batches, and not at all without numpy.
#![allow(clippy::unwrap_used, reason = "a benchmark may stop where it stands")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const BATCHES: usize = 400;
const ROUNDS: usize = 5;
/// Rows of a batch, and numbers of a row.
const ROWS: usize = 32;
const WIDTH: usize = 4096;

const WORK: &str = "
def work(x):
    for _ in range(4):
        x = np.tanh(x)
    return x.mean(axis=1)
";

fn main() {
    // `cargo bench` adds it.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    if !is_bench && std::env::args().len() > 1 {
        return; // `cargo test` looks for a certain test, or lists them.
    }
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let numpy = Command::new(&python).args(["-c", "import numpy"]).stderr(Stdio::null()).status();
    if !numpy.is_ok_and(|status| status.success()) {
        println!("skipped: `{python}` has no numpy; name one that has with PYTHON=..");
        return;
    }
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let mut next = |most, test| if is_bench { numbers.next().unwrap_or(most) } else { test };
    let (batches, rounds) = (next(BATCHES, 3), next(ROUNDS, 1));
    let place = tempfile::tempdir().unwrap();
    let (mut bare, mut staged) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let folder = |n: usize| place.path().join(format!("{round}-{n}"));
        let start = run(&folder(1), &python, 1);
        bare.push(loop_alone(place.path(), &python, batches));
        staged.push((run(&folder(0), &python, batches) - start).max(0.0));
        fs::remove_dir_all(folder(0)).unwrap();
    }
    let per_batch = |mut seconds: Vec<f64>| {
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2] * 1e3 / batches as f64
    };
    let (bare, staged) = (per_batch(bare), per_batch(staged));
    println!("{batches} batches of {ROWS} rows, ms per batch:");
    println!("bare {bare:.2}, stage {staged:.2}, bare / stage {:.3}", bare / staged);
}

/// Seconds of a run over so many batches in a folder of its own.
fn run(place: &Path, python: &str, batches: usize) -> f64 {
    fs::create_dir(place).unwrap();
    let header =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {WIDTH}), }}", batches * ROWS);
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{header:<117}\n").bytes());
    bytes.resize(bytes.len() + batches * ROWS * WIDTH * 4, 0);
    fs::write(place.join("x.npy"), bytes).unwrap();
    let stage = format!(
        "import numpy as np\nimport orchestra\n{WORK}\n@orchestra.stage(batch={ROWS}, outputs={{'mean': ('float32', [])}})\ndef stage(x):\n    return {{'mean': work(x)}}\n"
    );
    fs::write(place.join("stage.py"), stage).unwrap();
    let text = format!(
        "version = 1\n[sources.x]\nkind = \"tensors\"\npaths = [\"x.npy\"]\n[stages.y]\nkind = \"python\"\nfrom = \"x\"\nscript = \"stage.py\"\n\
         python = {python:?}\nworkers = 1\nspare = 0\n[sinks.results]\nkind = \"jsonl\"\nfrom = \"y\"\n"
    );
    let file = place.join("workflow.toml");
    fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchestra"));
    command.arg("run").arg(&file).stdin(Stdio::null());
    let begun = Instant::now();
    let output = command.output().unwrap();
    let seconds = begun.elapsed().as_secs_f64();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    seconds
}

/// Seconds of so many calls in a process that does nothing else.
fn loop_alone(place: &Path, python: &str, batches: usize) -> f64 {
    let script = format!(
        "import time\nimport numpy as np\n{WORK}\nx = np.zeros(({ROWS}, {WIDTH}), np.float32)\nwork(x)\nbegun = time.perf_counter()\n\
         for _ in range({batches}):\n    work(x)\nprint(time.perf_counter() - begun)\n"
    );
    fs::write(place.join("alone.py"), script).unwrap();
    let output = Command::new(python).arg(place.join("alone.py")).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}
