//! The run that is in the output folder, and whether the one that starts now may go on with it. It changes nothing there but a run of tasks
//! alone, which is forgotten for one with items.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use orchestra_plan::{Plan, is_output_of_task};
use orchestra_store::{Change, FolderState, OutputFolder, RunIdentity};

use super::StartRunError;
use super::error::discard_error;
use crate::context::EngineVersion;
use crate::doubt::{doubted, forget};

/// What becomes of an earlier run in the output folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Earlier {
    #[default]
    GoOn,
    /// The run goes on, and items that have failed are done again; their records in `failures.jsonl` are discarded.
    RetryFailed,
    /// All that it has left is discarded.
    Discard,
    /// The first part of this start has discarded it. Results in the way of sinks, which that part did not know, are replaced.
    Replace,
}

/// What `prepare` found in the output folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundResults {
    /// Nothing: a new run.
    Fresh,
    /// The run was discarded as asked.
    Discarded {
        /// Items whose records are gone.
        finished: u64,
        /// Result files with text that no run of this folder is known to have written, emptied as well.
        unknown: Vec<PathBuf>,
    },
    Resumed {
        finished: u64,
        /// Items that were added to its sources since.
        new_items: u64,
        /// Items that had failed, and are done again.
        retried: u64,
        tasks_done: u64,
        /// Tasks whose commands ran when the start before ended, and that run again; whether all of them declare outputs.
        tasks_again: Vec<String>,
    },
}

/// The run that is in the output folder, and what it would be if it began now.
pub(super) struct PreviousRun {
    /// `None`: there is none.
    pub(super) identity: Option<RunIdentity>,
    now: RunIdentity,
    pub(super) finished: u64,
    pub(super) code: Option<i32>,
}

impl PreviousRun {
    pub(super) fn of(
        plan: &Plan,
        folder: &mut OutputFolder,
        engine: Option<&EngineVersion>,
    ) -> Result<Self, StartRunError> {
        let mut now = new_identity(plan);
        // What a run of tasks alone has left goes on beside whatever the file has now: it is the same run.
        if let FolderState::Unfinished { identity, .. } | FolderState::Finished { identity, .. } =
            folder.state()
            && !identity.changes(&now).is_empty()
            && plan.deferred.is_none()
            && folder.forget_without_items().map_err(|error| discard_error(plan, error))?
        {
            now = RunIdentity { run_id: identity.run_id, started_unix_ms: identity.started_unix_ms, ..now };
        }
        let state = folder.state();
        let finished = finished_in(&state);
        // A finished run without the account of that end could not write it: it goes on, with nothing left to do but that.
        let has_account = |code: &i32| code_of_account(&plan.output) == Some(*code);
        let (identity, code) = match state {
            FolderState::Fresh => (None, None),
            FolderState::Unfinished { identity, .. } => (Some(identity), None),
            FolderState::Finished { identity, code, .. } => (Some(identity), Some(code).filter(has_account)),
            FolderState::Unreadable(why) => {
                return Err(StartRunError::Unreadable { folder: plan.output.clone(), why });
            }
        };
        // Not known yet for this start, see `hold_engine`.
        let parts = identity.iter().flat_map(|identity| &identity.fingerprint);
        let is_of_engine = |part: &&(String, String)| engine.is_some_and(|engine| engine.name == part.0);
        now.fingerprint.extend(parts.filter(is_of_engine).cloned());
        Ok(Self { identity, now, finished, code })
    }

    pub(super) fn changed(&self, plan: &Plan, changes: Vec<String>) -> StartRunError {
        StartRunError::Changed { folder: plan.output.clone(), changes, done: self.finished }
    }

    /// Refuses to go on with records that may be wrong, and a plan that would give other results. Sources, stages and sinks that are planned later are compared then.
    pub(super) fn must_go_on(&self, plan: &Plan) -> Result<(), StartRunError> {
        match doubted(&plan.output) {
            Some(why) if self.finished > 0 => {
                return Err(StartRunError::Doubted { folder: plan.output.clone(), why, done: self.finished });
            }
            // Of no record.
            Some(_) => forget(&plan.output)?,
            None => {}
        }
        let Some(before) = self.identity.as_ref().filter(|_| plan.deferred.is_none()) else { return Ok(()) };
        // Without a record of it, no output of a task was read.
        let counts = |change: &Change| self.finished > 0 || !is_output_of_task(&change.name);
        let changes: Vec<String> =
            before.changes(&self.now).iter().filter(|change| counts(change)).map(in_words).collect();
        if changes.is_empty() { Ok(()) } else { Err(self.changed(plan, changes)) }
    }

    /// What changed, where results so far are of another version of the engine than this one.
    pub(super) fn other_version(&self, engine: &EngineVersion) -> Option<String> {
        let mut parts = self.identity.iter().flat_map(|identity| &identity.fingerprint);
        let (name, before) = parts.find(|(name, _)| name == engine.name)?;
        let version = engine.version.as_ref().filter(|version| *version != before)?;
        Some(in_words(&version_changed(name, before.clone(), version)))
    }

    /// The identity that the run has from now on.
    pub(super) fn go_on(&self, plan: &Plan) -> RunIdentity {
        match &self.identity {
            None => self.now.clone(),
            Some(before) if plan.deferred.is_some() => before.clone(),
            Some(before) => RunIdentity {
                run_id: before.run_id.clone(),
                started_unix_ms: before.started_unix_ms,
                ..self.now.clone()
            },
        }
    }
}

/// The exit code that `run.json` says. It may be of an earlier start, or of the first part of this one.
fn code_of_account(output: &Path) -> Option<i32> {
    let text = fs::read(output.join(orchestra_store::RUN_SUMMARY)).ok()?;
    let account: serde_json::Value = serde_json::from_slice(&text).ok()?;
    account.get("exit_code")?.as_i64()?.try_into().ok()
}

pub(super) fn finished_in(state: &FolderState) -> u64 {
    match state {
        FolderState::Unfinished { counts, .. } | FolderState::Finished { counts, .. } => counts.total(),
        FolderState::Fresh | FolderState::Unreadable(_) => 0,
    }
}

fn new_identity(plan: &Plan) -> RunIdentity {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    RunIdentity {
        run_id: format!("{:x}-{:x}", now.as_micros(), std::process::id()),
        workflow: plan.name.clone(),
        fingerprint: plan.fingerprint.clone(),
        started_unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
    }
}

pub(super) fn version_changed(engine: &str, before: String, now: &str) -> Change {
    Change { name: engine.to_owned(), before: Some(before), after: Some(now.to_owned()) }
}

pub(super) fn in_words(change: &Change) -> String {
    match (&change.before, &change.after) {
        (None, _) => format!("{} was added", change.name),
        (_, None) => format!("{} was removed", change.name),
        (Some(before), Some(after)) if is_digest(before) || is_digest(after) => {
            format!("{} changed", change.name)
        }
        (Some(before), Some(after)) => format!("{} changed from {before} to {after}", change.name),
    }
}

/// A SHA-256 in hexadecimal digits: it tells nothing to a reader.
fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
