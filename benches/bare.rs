//! The bare machine, beside which benchmarks of orchestra stand: a round trip over a socket between two processes, and how times are printed.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Bytes of a `Run` frame with a trace context, about.
const FRAME: usize = 64;

/// The other side of the bare socket, where this process is that.
pub fn echo() -> Option<ExitCode> {
    if std::env::args().nth(1).as_deref() != Some("echo") {
        return None;
    }
    let mut socket = UnixStream::from(rustix::io::dup(std::io::stdin()).unwrap());
    let mut frame = [0; FRAME];
    while socket.read_exact(&mut frame).is_ok() && socket.write_all(&frame).is_ok() {}
    Some(ExitCode::SUCCESS)
}

/// Whether to measure, or to run a few rounds, as a test. `None`: `cargo test` looks for a certain test, or lists them.
pub fn is_measured() -> Option<bool> {
    // `cargo bench` adds it.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    (is_bench || std::env::args().len() == 1).then_some(is_bench)
}

pub fn socket(rounds: usize) -> Vec<Duration> {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let program = std::env::current_exe().unwrap();
    let mut child =
        Command::new(program).arg("echo").stdin(Stdio::from(OwnedFd::from(theirs))).spawn().unwrap();
    let mut frame = [7; FRAME];
    let mut round = || {
        let start = Instant::now();
        ours.write_all(&frame).unwrap();
        ours.read_exact(&mut frame).unwrap();
        start.elapsed()
    };
    for _ in 0..rounds / 4 {
        round();
    }
    let times = (0..rounds).map(|_| round()).collect();
    drop(ours);
    child.wait().unwrap();
    times
}

pub fn print_head(of: &str) {
    println!("{of:<52} {:>9} {:>9} {:>9}", "p50", "p90", "p99");
}

/// Gives the median, in microseconds.
pub fn print_row(name: &str, times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_nanos() as f64 / 1e3;
    println!("{name:<52} {:>9.1} {:>9.1} {:>9.1}", at(0.5), at(0.9), at(0.99));
    at(0.5)
}
