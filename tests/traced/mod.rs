//! Runs that are traced: the example, and one of two commands. It looks at no span.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::Path;

use crate::common::{Ended, Workplace};

/// Images of the example.
pub const IMAGES: u64 = 400;

/// Starts the example with these settings and variables, to its end, which waits for all spans on the busiest machine.
pub fn digits(place: &Workplace, arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/workflow.toml");
    let out = place.out();
    let mut all = vec!["run", file.to_str().unwrap(), "--output", out.to_str().unwrap()];
    all.extend(["--set", "telemetry.flush_timeout=10m"]);
    all.extend(arguments);
    place.start_command_with(&all, variables).wait()
}

/// The run's id, as `run.json` says.
pub fn run_id(place: &Workplace) -> String {
    place.report()["run_id"].as_str().unwrap().to_owned()
}

/// Batches that were sent, likewise.
pub fn batches(place: &Workplace) -> u64 {
    let report = place.report();
    report["devices"].as_array().unwrap().iter().map(|device| device["batches"].as_u64().unwrap()).sum()
}

/// A run of two commands, one of which fails in both of its attempts.
pub fn attempts(place: &Workplace, otlp: &str) -> Ended {
    let tables = "version = 1\n[tasks.train]\ncommand = \"echo loss=0.{n}; test {n} = 1 || exit 3\"\nmatrix = { n = [1, 2] }\nretries = 1\n\
                  metrics = [{ name = \"loss\", regex = \"loss=([0-9.]+)\" }]\n";
    std::fs::write(place.workflow(), tables).unwrap();
    let ended = place.run(&["--otlp", otlp, "--set", "telemetry.flush_timeout=10m"]);
    ended.must_exit(65);
    ended
}

/// The run says nothing of lost spans.
#[track_caller]
pub fn complete(ended: &Ended) {
    assert!(!ended.stderr.contains("traces are incomplete"), "{}", ended.stderr);
}
