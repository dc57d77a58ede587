//! Who has the machine when: the parts of a round in short turns, so that whatever else the machine does meets them all alike; or, where
//! they cannot be there at the same time, one after the other. It measures nothing.

use std::process::Command;
use std::time::Duration;

use orchestra_trial::Cancel;

use crate::error::BenchError;
use crate::part::{Job, Part, Said};
use crate::part_process::{PartProcess, Until};

/// Long beside what it costs to stop and wake a process, short beside what else happens on a machine.
const TURN: Duration = Duration::from_millis(100);

/// How the parts of a round share the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// All are there, and one of them runs.
    InTurns,
    /// Each is started when the one before is over.
    OneAfterAnother,
}

/// Has all jobs done, with what `command` starts for them. What they found is in the order of the jobs.
pub fn take(
    jobs: &[Job],
    order: Order,
    cores: usize,
    command: &dyn Fn(&Job) -> Command,
    cancel: &Cancel,
) -> Result<Vec<Said>, BenchError> {
    let start = |job: &Job| PartProcess::start(command(job), job, cores, cancel);
    let mut found = Vec::with_capacity(jobs.len());
    match order {
        Order::OneAfterAnother => {
            for job in jobs {
                let mut part = start(job)?;
                part.turn(Until::Over, cancel)?;
                found.push(part.found());
            }
        }
        Order::InTurns => {
            let mut parts = jobs.iter().map(start).collect::<Result<Vec<_>, _>>()?;
            // What a run does until its first items are finished is no matter of rates, and it says how long that took.
            for run in parts.iter_mut().filter(|p| p.part == Part::Run) {
                run.turn(Until::Started, cancel)?;
            }
            let mut left = true;
            while left {
                left = false;
                for (part, job) in parts.iter_mut().zip(jobs) {
                    left |= !part.turn(Until::Passed(length(job)), cancel)?;
                }
            }
            found.extend(parts.iter_mut().map(PartProcess::found));
        }
    }
    let missing = || BenchError::Bug("a part is over and has found nothing".into());
    found.into_iter().map(|said| said.ok_or_else(missing)).collect()
}

/// A run goes on for about twice as long as the parts, and so its turns are; all are over at about the same time then.
fn length(job: &Job) -> Duration {
    match job.part {
        Part::Run => 2 * TURN,
        Part::Decode | Part::Infer => TURN,
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::bottleneck::Bottleneck;

    use super::*;
    use crate::figures::{Measured, RunFigures};

    const PARTS: [Part; 3] = [Part::Decode, Part::Infer, Part::Run];

    /// Speaks as a part does, and notes how far it is.
    const SCRIPT: &str = r#"
        note() { echo "$1 $SEAT" >> "$NOTES"; }
        note ready; echo '"Ready"'
        read -r go
        note begun; echo '"Started"'
        note over; echo "$FOUND"
    "#;

    fn found(part: Part) -> Said {
        match part {
            Part::Decode => Said::Decoded(Vec::new()),
            Part::Infer => Said::Inferred(Vec::new()),
            Part::Run => Said::Ran(RunFigures {
                items: 1,
                failed: 0,
                rate: 2.0,
                measured: Measured::Whole,
                elapsed: Duration::from_secs(1),
                starting: Duration::ZERO,
                cpu: Duration::ZERO,
                idle_share: None,
                others_share: None,
                bottleneck: Bottleneck::Unknown,
            }),
        }
    }

    /// What processes that measure nothing noted, line by line.
    fn notes(order: Order) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let notes = folder.path().join("notes");
        let job = |(seat, part)| Job { part, lasting: TURN, folder: folder.path().to_owned(), seat };
        let jobs: Vec<Job> = PARTS.into_iter().enumerate().map(job).collect();
        let command = |job: &Job| {
            let mut command = Command::new("sh");
            command.args(["-c", SCRIPT]).env("NOTES", &notes).env("SEAT", job.seat.to_string());
            command.env("FOUND", serde_json::to_string(&found(job.part)).unwrap());
            command
        };
        let said = take(&jobs, order, 1, &command, &Cancel::new()).unwrap();
        assert_eq!(said, PARTS.map(found), "in the order of the jobs");
        std::fs::read_to_string(&notes).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn one_after_another_nobody_is_there_before_the_one_before_is_over() {
        let expected: Vec<String> =
            (0..3).flat_map(|seat| ["ready", "begun", "over"].map(|what| format!("{what} {seat}"))).collect();
        assert_eq!(notes(Order::OneAfterAnother), expected);
    }

    #[test]
    fn in_turns_all_are_there_before_the_first_begins_and_a_run_begins_first() {
        let notes = notes(Order::InTurns);
        assert_eq!(notes[..3], ["ready 0", "ready 1", "ready 2"]);
        let begun: Vec<&String> = notes.iter().filter(|note| note.starts_with("begun")).collect();
        assert_eq!(begun, ["begun 2", "begun 0", "begun 1"]);
    }
}
