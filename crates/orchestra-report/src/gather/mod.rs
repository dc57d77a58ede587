//! Reads what a run has left in its output folder. However large the run, what is kept here is bounded; what was left out for that is said.

mod curves;
mod failures;
mod history;
mod pictures;
mod results;
mod tasks;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use orchestra_launch::{PlannedRun, RUN_SUMMARY, RunStatus, StageStatus, Verified, VerifyError};
use orchestra_store::{ListingReader, OutputFolder};
use serde::Deserialize;
use thiserror::Error;

use crate::words::shell_word;

pub use curves::CurvePlot;
pub use failures::FailedGroup;
#[cfg(test)]
pub use history::RunStart;
use history::place_in_plan;
pub use history::{Moment, RunHistory, WorkerLife};
pub use pictures::{PictureFinder, Thumbnail};
pub use results::{LabelledBox, SinkSamples};
pub use tasks::{Attempt, Attempts};

/// More than these leave less room for pictures.
const MANY_ATTEMPTS: usize = 200;

#[derive(Debug, Error)]
pub enum ReadError {
    #[error("`{}` holds no run: it has neither `run.json` nor a history; name the output folder of a run (`out/` beside its workflow file, or what `--output` named)", .0.display())]
    NoRun(PathBuf),
    #[error("`{}` cannot be read: {why}", path.display())]
    Unreadable { path: PathBuf, why: String },
}

/// A run as its output folder tells it.
#[derive(Debug, Default)]
pub struct RunReport {
    pub folder: PathBuf,
    /// The account of its end or, where it has none, the last status that it noted.
    pub status: RunStatus,
    /// It wrote `run.json`, and no start has begun after that.
    pub is_ended: bool,
    /// It says itself that it goes on.
    pub is_running: bool,
    /// It answers requests: it has no output folder, and its items are those of requests.
    pub is_service: bool,
    pub plan: PlannedRun,
    pub history: RunHistory,
    pub attempts: Attempts,
    pub curves: Vec<CurvePlot>,
    pub failures: Vec<FailedGroup>,
    pub samples: Vec<SinkSamples>,
    /// The SHA-256 of the list of each source.
    pub digests: Vec<(String, String)>,
    /// The items counted again from the files; `Err` says why they were not.
    pub check: Option<Result<Verified, String>>,
    /// The command that started it, without the program, and the folder that it was started in.
    pub command: Option<ReportedCommand>,
    /// What was left out for the size of the page, in sentences.
    pub left_out: Vec<String>,
}

/// As `orchestra retry` reads it.
#[derive(Debug, Clone, Deserialize)]
pub struct ReportedCommand {
    pub folder: PathBuf,
    pub arguments: Vec<String>,
}

/// Reads the output folder of a run that has ended, goes on or was killed. Blocks.
///
/// # Errors
/// It is no output folder of a run, or cannot be read.
pub fn read(folder: &Path) -> Result<RunReport, ReadError> {
    read_live(folder, None)
}

/// As [`read`], of a run that says itself how far it is.
///
/// # Errors
/// Those of [`read`].
pub fn read_live(folder: &Path, now: Option<RunStatus>) -> Result<RunReport, ReadError> {
    let unreadable =
        |path: PathBuf| move |error: io::Error| ReadError::Unreadable { path, why: error.to_string() };
    orchestra_launch::only_files(folder)
        .map_err(|error| ReadError::Unreadable { path: folder.to_owned(), why: error.to_string() })?;
    let history = RunHistory::read(folder).map_err(unreadable(folder.join(".orchestra/history.jsonl")))?;
    let path = folder.join(RUN_SUMMARY);
    let account: Option<RunStatus> = match fs::read(&path) {
        Ok(text) => Some(serde_json::from_slice(&text).map_err(|error| unreadable(path)(error.into()))?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(unreadable(path)(error)),
    };
    let is_running = now.is_some();
    let is_ended = account.is_some() && !history.goes_on() && !is_running;
    let last = now.or_else(|| history.moments.last().map(|moment| moment.status.clone()));
    let status = match (account, last) {
        (Some(account), _) if is_ended => account,
        (account, Some(last)) => {
            let outputs = if is_running {
                last.outputs.clone()
            } else {
                account.map(|account| account.outputs).unwrap_or_default()
            };
            RunStatus { outputs, ..last }
        }
        (Some(account), None) => account,
        (None, None) => return Err(ReadError::NoRun(folder.to_owned())),
    };
    let mut report = RunReport {
        folder: fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned()),
        is_ended,
        is_running,
        plan: history.plan.clone().unwrap_or_default(),
        history,
        status,
        command: fs::read(folder.join(".orchestra/command.json"))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok()),
        ..RunReport::default()
    };
    let place = |stage: &StageStatus| place_in_plan(&report.plan, &stage.name);
    let mut stages = std::mem::take(&mut report.status.stages);
    stages.sort_by_key(place);
    // What the planner has added to bring rows together is in no file.
    stages.retain(|stage| report.plan.pipelines.is_empty() || place(stage) < usize::MAX);
    report.status.stages = stages;
    report.read_parts(folder).map_err(unreadable(folder.to_owned()))?;
    Ok(report)
}

impl RunReport {
    /// Of a model or a graph that answers requests.
    pub fn of_service(name: &str, history: RunHistory) -> Self {
        let status = history.moments.last().map_or_else(RunStatus::default, |moment| moment.status.clone());
        let status = RunStatus { workflow: name.to_owned(), ..status };
        Self { status, history, is_running: true, is_service: true, ..Self::default() }
    }

    fn read_parts(&mut self, folder: &Path) -> io::Result<()> {
        self.attempts = Attempts::read(folder, &self.status.tasks, &self.plan)?;
        let mut pictures = PictureFinder::new(folder, self.attempts.rows.len() > MANY_ATTEMPTS);
        self.curves = curves::read(folder, &self.status.tasks, &mut self.left_out);
        self.failures = failures::read(folder, &mut pictures);
        self.samples = results::read(folder, &self.status.outputs, &mut pictures);
        self.left_out.extend(self.attempts.left_out());
        self.left_out.extend(pictures.left_out());
        self.digests = self.status.sources.keys().filter_map(|source| digest(folder, source)).collect();
        self.check = self.is_ended.then(|| self.count_again(folder));
        Ok(())
    }

    fn count_again(&self, folder: &Path) -> Result<Verified, String> {
        if self.status.sources.is_empty() {
            return Err("the run has no items".to_owned());
        }
        orchestra_launch::verify(folder, &orchestra_launch::kinds()).map_err(|error| match error {
            VerifyError::Unfinished(_) => "the run has not done all that it was to do".to_owned(),
            error => error.to_string(),
        })
    }

    /// The command that started it, as a shell takes it, without what discards results.
    pub fn command_line(&self) -> Option<String> {
        let words = self.command.as_ref()?.arguments.iter();
        let words = words.filter(|word| *word != "--fresh" && *word != "--retry-failed");
        Some(format!("orchestra {}", words.map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")))
    }

    /// Items that are no items, by reason, over all sources.
    pub fn passed_over(&self) -> BTreeMap<&str, u64> {
        let mut sums = BTreeMap::new();
        for (reason, n) in self.status.passed_over.values().flatten() {
            *sums.entry(reason.as_str()).or_default() += n;
        }
        sums
    }
}

/// Of the list of a source, where it is whole.
fn digest(folder: &Path, source: &str) -> Option<(String, String)> {
    let list = folder.join(OutputFolder::private_file(&format!("items-{source}")));
    let digest = ListingReader::open(&list).ok()?.summary()?.digest;
    Some((source.to_owned(), digest.iter().map(|byte| format!("{byte:02x}")).collect()))
}
