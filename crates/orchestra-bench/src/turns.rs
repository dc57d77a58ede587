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
