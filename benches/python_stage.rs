//! How much of a function in Python is left to it as a stage: `kind = "python"` with one worker, and behind its last batch, in the same process, the
//! same function called in a bare loop over batches that are ready in memory. In one process, because two differ by how their heaps lie, and by what the
//! machine does meanwhile, by more than is measured here.
//!
//! Printed are milliseconds per batch of both, by the clock and of processor time of the worker, and the ratio bare / stage of each run, medians of the
//! runs: 1 is no overhead, 0.9 or more is wanted. The clock needs a second core for the rest of the run, as idle as the first one. So that batches are
//! ready there, too, the function takes about `LONG`: reading a batch and placing its rows takes half a millisecond of a core, and behind a shorter
//! function the ratio says how fast that is.
//! Run with `cargo bench -p orchestra-cli --bench python_stage [-- BATCHES ROUNDS]`; `PYTHON` names an interpreter that has numpy. With the tests
//! it runs too, one round of a few batches; without numpy it is skipped as a test is.
#![allow(clippy::unwrap_used, reason = "a benchmark may stop where it stands")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const BATCHES: usize = 800;
const ROUNDS: usize = 9;
/// Rows of a batch, and numbers of a row.
const ROWS: usize = 32;
const WIDTH: usize = 4096;

/// Milliseconds of the function over one batch, about.
const LONG: f64 = 2.0;

/// The function, of so many steps.
fn work(steps: usize) -> String {
    format!(
        "\ndef work(x):\n    for _ in range({steps}):\n        x = np.tanh(x)\n    return x.mean(axis=1)\n"
    )
}

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
    // Machines differ by eight times in how fast they are at it.
    let a_few = 400;
    let step = seconds_of(place.path(), python, &work(4), a_few) * 1e3 / a_few as f64 / 4.0;
    let work = work((LONG / step).ceil() as usize);
    let (mut bare, mut staged): (Vec<[f64; 2]>, Vec<[f64; 2]>) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let folder = place.path().join(round.to_string());
        let [stage, loop_] = run(&folder, python, &work, batches);
        staged.push(stage);
        bare.push(loop_);
        fs::remove_dir_all(folder).unwrap();
    }
    let median = |mut numbers: Vec<f64>| {
        numbers.sort_by(f64::total_cmp);
        numbers[numbers.len() / 2]
    };
    let per_batch = |rounds: &[[f64; 2]], of: usize| {
        median(rounds.iter().map(|round| round[of] * 1e3 / batches as f64).collect())
    };
    println!("{batches} batches of {ROWS} rows, ms per batch:");
    for (of, what) in ["by the clock", "of processor time"].into_iter().enumerate() {
        let ratio = median(bare.iter().zip(&staged).map(|(bare, staged)| bare[of] / staged[of]).collect());
        let (bare, staged) = (per_batch(&bare, of), per_batch(&staged, of));
        println!("{what}: bare {bare:.2}, stage {staged:.2}, bare / stage {ratio:.3}");
    }
}

/// Seconds and seconds of processor time of the stage in a run over so many batches in a folder of its own, and of the loop behind it.
fn run(place: &Path, python: &str, work: &str, batches: usize) -> [[f64; 2]; 2] {
    fs::create_dir(place).unwrap();
    let header =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {WIDTH}), }}", batches * ROWS);
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{header:<117}\n").bytes());
    let mut random = fastrand::Rng::with_seed(7);
    bytes.extend((0..batches * ROWS * WIDTH).flat_map(|_| (8.0 * random.f32() - 4.0).to_le_bytes()));
    fs::write(place.join("x.npy"), bytes).unwrap();
    let rows = batches * ROWS;
    let stage = format!(
        "import time
import numpy as np
import orchestra
{work}
seen = 0
random = np.random.default_rng(7)
ready = [random.uniform(-4, 4, ({ROWS}, {WIDTH})).astype(np.float32) for _ in range(8)]

def now():
    return np.array([time.perf_counter(), time.process_time()])

@orchestra.stage(batch={ROWS}, outputs={{'mean': ('float32', [])}})
def stage(x):
    global seen, begun
    if seen == 0:
        begun = now()
    seen += len(x)
    mean = work(x)
    if seen == {rows}:
        stage = now()
        for n in range({batches}):
            work(ready[n % 8])
        print('took', *(stage - begun), *(now() - stage))
    return {{'mean': mean}}
"
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

/// The numbers at the head of a text.
fn numbers(text: &str) -> [[f64; 2]; 2] {
    let mut numbers = text.split([' ', '"', '\n']).map(|number| number.parse().unwrap());
    std::array::from_fn(|_| std::array::from_fn(|_| numbers.next().unwrap()))
}

/// Seconds of processor time of so many calls, in a process that does nothing else.
fn seconds_of(place: &Path, python: &str, work: &str, calls: usize) -> f64 {
    let script = format!(
        "import time\nimport numpy as np\n{work}\nx = np.random.default_rng(7).uniform(-4, 4, ({ROWS}, {WIDTH})).astype(np.float32)\n\
         work(x)\nbegun = time.process_time()\nfor n in range({calls}):\n    work(x)\nprint(time.process_time() - begun)\n"
    );
    fs::write(place.join("alone.py"), script).unwrap();
    let output = Command::new(python).arg(place.join("alone.py")).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}
