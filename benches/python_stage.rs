//! How much of a function in Python is left to it as a stage: `kind = "python"` with one worker, and the same function called in a bare loop
//! over batches that are ready in memory. The two take turns, round by round; both say themselves how long they took, from the first call to the end of the last.
//!
//! Printed are milliseconds per batch of both, medians of the rounds, by the clock and of processor time (that of the worker, which other work
//! on the machine disturbs less), and the ratios bare / stage: 1 is no overhead, 0.9 or more is wanted. The clock needs a second core for
//! the rest of the run, as idle as the first one.
//! Run with `cargo bench -p orchestra-cli --bench python_stage [-- BATCHES ROUNDS]`; `PYTHON` names an interpreter that has numpy. With the tests
//! it runs too, one round of a few batches; without numpy it is skipped as a test is.
#![allow(clippy::unwrap_used, reason = "a benchmark may stop where it stands")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

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
    let Some(python) = common::python() else { return };
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let mut next = |most, test| if is_bench { numbers.next().unwrap_or(most) } else { test };
    let (batches, rounds) = (next(BATCHES, 3), next(ROUNDS, 1));
    let place = tempfile::tempdir().unwrap();
    let (mut bare, mut staged): (Vec<[f64; 2]>, Vec<[f64; 2]>) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let folder = place.path().join(round.to_string());
        bare.push(loop_alone(place.path(), python, batches));
        staged.push(run(&folder, python, batches));
        fs::remove_dir_all(folder).unwrap();
    }
    let per_batch = |rounds: &[[f64; 2]], of: usize| {
        let mut seconds: Vec<f64> = rounds.iter().map(|round| round[of]).collect();
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2] * 1e3 / batches as f64
    };
    println!("{batches} batches of {ROWS} rows, ms per batch:");
    for (of, what) in ["by the clock", "of processor time"].into_iter().enumerate() {
        let (bare, staged) = (per_batch(&bare, of), per_batch(&staged, of));
        println!("{what}: bare {bare:.2}, stage {staged:.2}, bare / stage {:.3}", bare / staged);
    }
}

/// Seconds of the stage in a run over so many batches in a folder of its own, and of processor time of its worker.
fn run(place: &Path, python: &str, batches: usize) -> [f64; 2] {
    fs::create_dir(place).unwrap();
    let header =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {WIDTH}), }}", batches * ROWS);
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{header:<117}\n").bytes());
    let mut random = fastrand::Rng::with_seed(7);
    bytes.extend((0..batches * ROWS * WIDTH).flat_map(|_| (8.0 * random.f32() - 4.0).to_le_bytes()));
    fs::write(place.join("x.npy"), bytes).unwrap();
    let stage = format!(
        "import time\nimport numpy as np\nimport orchestra\n{WORK}\nseen = 0\n\n@orchestra.stage(batch={ROWS}, outputs={{'mean': ('float32', [])}})\n\
         def stage(x):\n    global seen, begun\n    if seen == 0:\n        begun = time.perf_counter(), time.process_time()\n    seen += len(x)\n    \
         mean = work(x)\n    if seen == {}:\n        print('took', time.perf_counter() - begun[0], time.process_time() - begun[1])\n    \
         return {{'mean': mean}}\n",
        batches * ROWS
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
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let log = fs::read_to_string(place.join("out/logs/x.log")).unwrap();
    numbers(log.split("took ").nth(1).unwrap())
}

/// The two numbers at the head of a text.
fn numbers(text: &str) -> [f64; 2] {
    let mut numbers = text.split([' ', '"', '\n']).map(|number| number.parse().unwrap());
    [numbers.next().unwrap(), numbers.next().unwrap()]
}

/// Seconds of so many calls in a process that does nothing else, over as many batches as a worker's slots hold, and of its processor time.
fn loop_alone(place: &Path, python: &str, batches: usize) -> [f64; 2] {
    let script = format!(
        "import time\nimport numpy as np\n{WORK}\nrandom = np.random.default_rng(7)\n\
         ready = [random.uniform(-4, 4, ({ROWS}, {WIDTH})).astype(np.float32) for _ in range(8)]\nwork(ready[0])\n\
         begun, cpu = time.perf_counter(), time.process_time()\nfor n in range({batches}):\n    work(ready[n % 8])\n\
         print(time.perf_counter() - begun, time.process_time() - cpu)\n"
    );
    fs::write(place.join("alone.py"), script).unwrap();
    let output = Command::new(python).arg(place.join("alone.py")).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    numbers(&String::from_utf8(output.stdout).unwrap())
}
