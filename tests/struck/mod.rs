//! A workflow that is struck until it is done: its workers are killed all the time, and the run itself five times.

use std::path::Path;
use std::time::Duration;

use orchestra_testkit::striker::{Fault, Striker};
use rustix::process::Signal;

use crate::common::Workplace;

/// Time between two kills.
const BETWEEN: Duration = Duration::from_millis(300);

/// Runs the workflow, of `total` items, into the output folder of the place. Fails where fewer than five workers were killed.
pub fn run_until_done(place: &Workplace, workflow: &Path, total: u64) {
    let out = place.out();
    let arguments = ["run", workflow.to_str().unwrap(), "--output", out.to_str().unwrap()];
    let mut struck = 0;
    for death in 0..5 {
        let mut run = place.start_command(&arguments);
        let storm = Striker::of_process(run.pid(), BETWEEN, Fault::Kill);
        let enough = (total / 8 * (death + 1)) as usize;
        run.until("some more items are done", || place.n_results() >= enough);
        struck += storm.stop().len();
        run.signal(Signal::KILL);
        drop(run.wait());
        place.end_strangers();
    }
    let run = place.start_command(&arguments);
    let storm = Striker::of_process(run.pid(), BETWEEN, Fault::Kill);
    let ended = run.wait();
    struck += storm.stop().len();
    ended.must_exit(0);
    println!("{struck} workers were killed");
    assert!(struck >= 5, "only {struck} workers were killed");
}
