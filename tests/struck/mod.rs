//! A workflow that is struck until it is done: its workers are killed all the time, and the run itself five times.

use std::path::Path;
use std::time::Duration;

use orchestra_testkit::striker::{Fault, Striker};
use rustix::process::Signal;

use crate::common::Workplace;

/// Time between two kills.
const BETWEEN: Duration = Duration::from_millis(300);

/// Starts that are killed.
const DEATHS: u64 = 5;

/// Runs the workflow, of `total` items, into the output folder of the place. Fails where a start ended before it was killed, and where fewer than
/// five workers were killed.
pub fn run_until_done(place: &Workplace, workflow: &Path, total: u64) {
    let out = place.out();
    let arguments = ["run", workflow.to_str().unwrap(), "--output", out.to_str().unwrap()];
    let mut struck = 0;
    for death in 1..=DEATHS {
        let mut run = place.start_command(&arguments);
        let storm = Striker::of_process(run.pid(), BETWEEN, Fault::Kill);
        // Half of the items are left for the last start: however fast the machine, no start is done before it is looked at again.
        let enough = (total / (2 * DEATHS) * death) as usize;
        let reached = run.until("some more items are done", || place.n_results() >= enough);
        assert!(reached, "start {death} ended before it had {enough} results:\n{}", run.said());
        struck += storm.stop().len();
        run.signal(Signal::KILL);
        let ended = run.wait();
        assert_eq!(ended.status.code(), None, "start {death} was not killed:\n{}", ended.stderr);
        place.end_strangers();
    }
    let run = place.start_command(&arguments);
    let storm = Striker::of_process(run.pid(), BETWEEN, Fault::Kill);
    let ended = run.wait();
    struck += storm.stop().len();
    ended.must_exit(0).must_say(&["going on: "]);
    println!("{struck} workers were killed");
    assert!(struck >= 5, "only {struck} workers were killed");
}
