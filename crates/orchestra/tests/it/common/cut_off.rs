//! Runs in a process of their own that are cut off with SIGKILL, again and again, until one comes to its end.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use orchestra::kind::Kinds;
use orchestra::{PlanOptions, ProcessLauncher, StartOptions};

use super::{Workplace, example};

const FOLDER: &str = "ORCHESTRA_TEST_CUT_OFF";
/// Lines, one every 5 ms, after which a run counts as hanging.
const LINES: usize = 60_000;

/// The body of a test named `run_process`: runs the workflow of a workplace and says how many items are done; nothing in an ordinary run.
pub async fn run_process(kinds: Kinds) {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let file = Path::new(&folder).join("workflow.toml");
    let (plan, _) =
        orchestra::plan_file_with(&file, &PlanOptions::default(), &orchestra::machine(), kinds).unwrap();
    // This program is no loader.
    let launcher = ProcessLauncher { program: example("worker"), args: Vec::new(), env: Vec::new() };
    let options = StartOptions { launcher: Some(Arc::new(launcher)), ..StartOptions::default() };
    let run = orchestra::start(plan.unwrap(), options).await.unwrap();
    // A snapshot may come when all is done; counters are never late.
    let meter = run.meter();
    let tell = tokio::spawn(async move {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        loop {
            look.tick().await;
            println!("done {}", meter.stats().done.get());
        }
    });
    let outcome = run.wait().await;
    tell.abort();
    assert_eq!(outcome.exit_code, 0, "{:?}", outcome.problems);
}

/// Runs the test `run_process` of this module of the program over `place`, and kills it whenever `every` more items are done, until it ends by itself.
#[track_caller]
pub fn cut_off_until_done(place: &Workplace, module: &str, every: u64) {
    let mut kills = 0_u64;
    loop {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([&*format!("{module}::run_process"), "--exact", "--nocapture"])
            .env(FOLDER, place.path(""))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Killed while it goes on: how far it comes beyond what it says is up to the scheduler.
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said = lines.filter_map(|line| line.strip_prefix("done ")?.parse::<u64>().ok());
        let reached = said.take(LINES).take_while(|done| *done < every * (kills + 1)).count();
        child.kill().unwrap();
        if child.wait().unwrap().success() {
            break;
        }
        assert!(
            reached < LINES,
            "after {kills} kills the run does not come to {} items",
            every * (kills + 1)
        );
        kills += 1;
    }
    assert!(kills >= 3, "the run was killed {kills} times");
}
