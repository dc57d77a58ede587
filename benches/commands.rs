//! What a command of `[tasks.*]` costs on top of itself: the same short command many times over a few slots, started by the real
//! `orchestra run`, and by as many threads that do nothing but start it and wait for it. The two take turns, round by round.
//!
//! Printed are milliseconds per command and slot of each, and what lies between them: medians of the rounds. A second run over nothing but
//! one command shows what starting `orchestra` takes, which is no part of the rest.
//! Run with `cargo bench -p orchestra-cli --bench commands [-- COMMANDS ROUNDS SLOTS]`. With the tests it runs too, one round of a few.
#![allow(clippy::unwrap_used, reason = "a benchmark may stop where it stands")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

const COMMANDS: usize = 1_000;
const ROUNDS: usize = 5;
const SLOTS: usize = 4;

fn main() {
    // `cargo bench` adds it.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    if !is_bench && std::env::args().len() > 1 {
        return; // `cargo test` looks for a certain test, or lists them.
    }
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let mut next = |most, test| if is_bench { numbers.next().unwrap_or(most) } else { test };
    let (commands, rounds, slots) = (next(COMMANDS, 8), next(ROUNDS, 1), next(SLOTS, 2));
    let place = tempfile::tempdir().unwrap();
    let (mut bare, mut kept) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let folder = |n: usize| place.path().join(format!("{round}-{n}"));
        let start = run(&folder(1), 1, slots);
        bare.push(spawn(commands, slots));
        kept.push((run(&folder(commands), commands, slots) - start).max(0.0));
    }
    let per_command = |mut seconds: Vec<f64>| {
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2] * 1e3 * slots as f64 / commands as f64
    };
    let (bare, kept) = (per_command(bare), per_command(kept));
    println!("{commands} commands over {slots} slots, ms per command and slot:");
    println!("bare {bare:.2}, orchestra {kept:.2}, on top {:.2} ({:.2} times)", kept - bare, kept / bare);
}

/// Seconds of a run of so many commands in a folder of its own.
fn run(place: &Path, commands: usize, slots: usize) -> f64 {
    fs::create_dir(place).unwrap();
    let file = place.join("workflow.toml");
    let rows: String = (0..commands).map(|n| format!("{n}\n")).collect();
    fs::write(place.join("rows.csv"), format!("n\n{rows}")).unwrap();
    let tables = "[tasks.short]\ncommand = [\"true\", \"{n}\"]\nfor_each = \"rows.csv\"\n";
    fs::write(&file, format!("version = 1\n[devices]\nslots = {slots}\n{tables}")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchestra"));
    command.arg("run").arg(&file).stdin(Stdio::null());
    let begun = Instant::now();
    let output = command.output().unwrap();
    let seconds = begun.elapsed().as_secs_f64();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    seconds
}

/// Seconds of so many commands that are only started and waited for.
fn spawn(commands: usize, slots: usize) -> f64 {
    let next = AtomicUsize::new(0);
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..slots {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::Relaxed) < commands {
                    let mut command = Command::new("true");
                    assert!(command.stdin(Stdio::null()).status().unwrap().success());
                }
            });
        }
    });
    begun.elapsed().as_secs_f64()
}
