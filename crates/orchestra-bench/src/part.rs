//! A part that is measured in a process of its own, so that it can be stopped as a whole: the work of that process. It stops nobody and
//! compares nothing.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use orchestra_plan::Plan;
use orchestra_trial::{Sample, TrialError};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::figures::{DecodeFigures, InferFigures, RunFigures};
use crate::own_time::OwnTime;
use crate::workbench::{Tools, Workbench};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Reading, decoding and preparing.
    Decode,
    /// The models, with inputs ready.
    Infer,
    /// The whole.
    Run,
}

/// One part of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Which part.
    pub part: Part,
    /// How long to decode, and how long to run each model. A whole run goes to its end.
    pub lasting: Duration,
    /// Where the lists of the sample lie.
    pub folder: PathBuf,
    /// Which of the parts that are there at the same time: its files have names of their own.
    pub seat: usize,
}

impl Job {
    /// What is kept between those who take turns: see [`OwnTime`].
    pub(crate) fn account(&self) -> PathBuf {
        self.folder.join(format!("account-{}", self.seat))
    }

    /// Where a run writes.
    fn output(&self) -> PathBuf {
        self.folder.join(format!("out-{}", self.seat))
    }

    /// What it says on stderr.
    pub(crate) fn stderr(&self) -> PathBuf {
        self.folder.join(format!("stderr-{}", self.seat))
    }
}

/// What a part says, a line of JSON each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Said {
    /// It waits for a line, and begins then.
    Ready,
    /// A run: its first items are finished.
    Started,
    /// The end of a decode part.
    Decoded(Vec<DecodeFigures>),
    /// The end of an infer part.
    Inferred(Vec<InferFigures>),
    /// The end of a run.
    Ran(RunFigures),
}

/// Gets ready, says so to `answers`, waits for a line of `go`, measures, and says what it found. When `go` ends, so does this.
///
/// # Errors
/// As of [`crate::Bench`].
pub fn serve(
    plan: Plan,
    tools: Tools,
    job: &Job,
    mut go: impl BufRead + Send + 'static,
    answers: &mut dyn Write,
) -> Result<(), BenchError> {
    let (sample, lists) = Sample::read(&job.folder, plan.sources.len())?;
    let bench = Workbench::new(plan, sample, tools)?;
    if job.part == Part::Infer {
        bench.make_ready()?;
    }
    say(answers, &Said::Ready)?;
    let cancel = bench.tools.cancel.clone();
    let told = go.read_line(&mut String::new()).map_err(TrialError::io("waiting for the start of a part"))?;
    if told == 0 {
        return Err(BenchError::cancelled());
    }
    // The end of it is the end of whoever wants to know.
    std::thread::spawn(move || {
        let _ = io::copy(&mut go, &mut io::sink());
        cancel.cancel();
    });
    let time = own_time(&job.account())?;
    if bench.plan.is_on_cpu() {
        // All parts compete for cores as the run does, and what they start does as well.
        orchestra_runtime::interrupt_nobody();
    }
    let said = match job.part {
        Part::Decode => Said::Decoded(bench.decode(job.lasting, &time)?),
        Part::Infer => Said::Inferred(bench.infer(job.lasting, &time)?),
        Part::Run => {
            // Whoever does not listen any more sees no figures either.
            let mut started = || drop(say(answers, &Said::Started));
            Said::Ran(bench.run(&lists, &job.output(), &time, &mut started)?)
        }
    };
    say(answers, &said)
}

fn own_time(account: &Path) -> Result<OwnTime, BenchError> {
    OwnTime::told_at(account).map_err(|e| TrialError::io("opening the account of a part")(e).into())
}

fn say(answers: &mut dyn Write, said: &Said) -> Result<(), BenchError> {
    let text = serde_json::to_string(said).map_err(|e| BenchError::Bug(format!("figures as text: {e}")))?;
    let said = answers.write_all(format!("{text}\n").as_bytes()).and_then(|()| answers.flush());
    Ok(said.map_err(TrialError::io("telling what was measured"))?)
}
