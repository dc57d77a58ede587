//! The most memory that all processes of a run have together under `limits.memory = "512MiB"`.

use orchestra_machine::processes::children;

use crate::common::{Ended, Workplace};

/// What 512 MiB allow, and the libraries of all processes.
pub const MOST: u64 = 600_000_000;

/// What a process takes for itself and of shared memory, in bytes.
fn resident(pid: u32) -> u64 {
    orchestra_machine::processes::process_memory(pid).map_or(0, |memory| memory.resident)
}

/// Runs it under the limit, and with these arguments. The most that parent, loaders and workers had together, in bytes.
pub fn peak_of(place: &Workplace, arguments: &[&str], code: i32) -> u64 {
    let peak = peak_and_end(place, arguments, code).0;
    assert!(peak > 0, "no process was seen");
    peak
}

/// Likewise, with what it said.
pub fn peak_and_end(place: &Workplace, arguments: &[&str], code: i32) -> (u64, Ended) {
    peak_with(place, arguments, code, &["results.jsonl"])
}

/// Likewise, of a run with these results.
pub fn peak_with(place: &Workplace, arguments: &[&str], code: i32, results: &[&str]) -> (u64, Ended) {
    let mut run = place.start(&[&["--set", "limits.memory=512MiB"], arguments].concat());
    let pid = run.pid();
    let mut peak = 0;
    run.until("it has ended", || {
        let tree = children(pid).iter().map(|child| resident(child.pid)).sum::<u64>() + resident(pid);
        peak = peak.max(tree);
        false
    });
    let ended = run.wait().exited(code);
    println!("at most {} MB in all processes", peak / 1_000_000);
    place.nothing_is_left_but(results);
    (peak, ended)
}
