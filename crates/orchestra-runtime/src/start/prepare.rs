//! The start of a run up to its first actor: what an earlier run has left is discarded or compared, items are listed, journals are opened. It
//! decides nothing about items.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use orchestra_plan::{BEST_FOLDER, Plan, TASKS_FOLDER, is_output_of_task};
use orchestra_store::{
    Change, Commit, CommitError, DiscardError, Journal, OutputFolder, RunIdentity, StartError, State,
    TaskJournal,
};

use super::lists::Lists;
use super::{Prepared, StartRunError};
use crate::flow::part_rows::part_files;
use crate::flow::result_files::{FAILURES_FILE, result_files, sink_file};
use crate::flow::uploads::is_free;
use crate::pipeline::Listing;
use crate::tasks::earlier::{self, KnownTask, KnownTasks};
use crate::tasks::outliving::{self, Survivor};
use crate::tasks::trees::Trees;

/// What becomes of an earlier run in the output folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Earlier {
    /// The run goes on.
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
pub enum Found {
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
        /// Items that are finished already.
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

/// Opens the output folder and the journal, and lists the items: all of them where results of an earlier run count; else the first ones, and
/// the others while the run is prepared and works. Blocks.
pub fn prepare(plan: Arc<Plan>, earlier: Earlier) -> Result<Prepared, StartRunError> {
    prepare_part(plan, earlier, None, None)
}

/// The same for the second part of a run, whose commands see the working trees that the first part has found ([`Prepared::trees`]). With the
/// version of ONNX Runtime, items that have failed are done again only with that of the other results.
pub fn prepare_part(
    plan: Arc<Plan>,
    earlier: Earlier,
    trees: Option<Trees>,
    onnxruntime: Option<&str>,
) -> Result<Prepared, StartRunError> {
    let mut folder = OutputFolder::open(&plan.output)?;
    let refused = |error| tasks_error(&plan, error);
    if !plan.tasks.is_empty() {
        // Before anything is discarded or begun: commands of a start that was killed may still write.
        earlier::wait_for_keepers(&plan.output).map_err(refused)?;
    }
    let mut survivors = outliving::survivors(&plan.output).map_err(refused)?;
    let discarded = match earlier {
        Earlier::Discard => discard(&plan, &mut folder, std::mem::take(&mut survivors))?,
        Earlier::Replace => replace(&plan, &mut folder)?,
        Earlier::GoOn | Earlier::RetryFailed => Found::Fresh,
    };
    // They have what a task of this start may be given.
    let is_planned = |s: &Survivor| plan.tasks.tasks.iter().any(|task| task.id == s.command.task);
    let (survivors, strangers): (Vec<Survivor>, Vec<Survivor>) = survivors.into_iter().partition(is_planned);
    outliving::wait_for_all(strangers).map_err(refused)?;

    let fresh = matches!(earlier, Earlier::Discard | Earlier::Replace);
    let past = Past::of(&plan, &mut folder)?;
    past.must_go_on(&plan)?;
    if !fresh {
        let run_id = past.identity.as_ref().map_or("", |identity| &identity.run_id);
        must_be_free(&plan, run_id, past.identity.is_none())?;
    }
    let lists = Lists::of(&plan, folder.private_dir(), past.finished)?;
    if !lists.missing.is_empty() {
        return Err(past.changed(&plan, lists.missing));
    }
    let new_items = lists.new_items();
    let identity = past.go_on(&plan);
    let mut journal = open_journal(&plan, folder, &past, &identity, fresh)?;
    remove_retired(&plan, &journal)?;
    // A reader of all parts would take it for one of them.
    let is_strange = |(sink, number, _): &(usize, u64, PathBuf)| *number >= journal.parts(sink_file(*sink));
    if let Some((_, _, strange)) = part_files(&plan).into_iter().find(is_strange) {
        return Err(StartError::InTheWay(strange).into());
    }
    let retried = match earlier {
        // What `start` would refuse takes no failure back.
        Earlier::RetryFailed => match past.other_onnxruntime(onnxruntime) {
            Some(change) if journal.counts().failed > 0 => return Err(past.changed(&plan, vec![change])),
            _ => retry_failed(&plan, &mut journal)?,
        },
        Earlier::GoOn | Earlier::Discard | Earlier::Replace => 0,
    };
    write_headers(&plan, &mut journal)?;
    let listings = lists.keep(&plan, &journal)?;
    let tasks = open_tasks(&plan, trees, survivors, &listings)?;

    let n_done = |tasks: &KnownTasks| tasks.known.iter().filter(|task| task.is_done).count() as u64;
    let tasks_done = tasks.as_ref().map_or(0, n_done);
    let again = tasks.iter().flat_map(|tasks| &tasks.again);
    let tasks_again: Vec<String> = again.map(|task| plan.tasks.tasks[*task].id.clone()).collect();
    let finished = journal.counts().total();
    let is_known = finished > 0 || tasks_done > 0 || !tasks_again.is_empty();
    let found = match past.code.is_some() || is_known {
        true => Found::Resumed { finished, new_items, retried, tasks_done, tasks_again },
        false => discarded,
    };
    Ok(Prepared {
        plan,
        run_id: identity.run_id.clone(),
        identity,
        found,
        journal,
        listings,
        tasks,
        previous_code: past.code,
    })
}

/// The part of an identity that says which version of ONNX Runtime made the results. No name of a plan's own part is like it.
const ONNXRUNTIME: &str = "ONNX Runtime";

impl Prepared {
    /// Refuses another version of ONNX Runtime than that of the results so far, and notes the one of those to come. The version is known
    /// later than all other parts of the identity: a run with nothing to do looks for no library.
    pub(super) fn hold_onnxruntime(&mut self, version: Option<&str>) -> Result<(), StartRunError> {
        // A run of tasks alone has no identity, so that another one may follow it.
        let has_work = !self.plan.fingerprint.is_empty() && !self.listings.iter().all(Listing::is_done);
        let Some(version) = version.filter(|_| has_work) else { return Ok(()) };
        let parts = &mut self.identity.fingerprint;
        let before = parts.iter().position(|(name, _)| name == ONNXRUNTIME).map(|at| parts.remove(at).1);
        if before.as_deref() == Some(version) {
            parts.push((ONNXRUNTIME.to_owned(), version.to_owned()));
            return Ok(());
        }
        let done = self.journal.counts().total();
        if let Some(before) = before.filter(|_| done > 0) {
            let change = onnxruntime_changed(before, version);
            let folder = self.plan.output.clone();
            return Err(StartRunError::Changed { folder, changes: vec![in_words(&change)], done });
        }
        parts.push((ONNXRUNTIME.to_owned(), version.to_owned()));
        Ok(self.journal.identify(&self.identity)?)
    }
}

fn onnxruntime_changed(before: String, now: &str) -> Change {
    Change { name: ONNXRUNTIME.to_owned(), before: Some(before), after: Some(now.to_owned()) }
}

fn tasks_error(plan: &Plan, error: io::Error) -> StartRunError {
    StartRunError::Tasks { folder: plan.output.clone(), error }
}

fn discard_error(plan: &Plan, error: DiscardError) -> StartRunError {
    StartRunError::Discard { folder: plan.output.clone(), error }
}

/// Discards all that an earlier run has left, also where no run can be seen: its journal may be lost, and its files are in the way.
fn discard(plan: &Plan, folder: &mut OutputFolder, survivors: Vec<Survivor>) -> Result<Found, StartRunError> {
    // First: a start that is refused discards nothing.
    must_be_free(plan, "", true)?;
    let before = folder.state();
    outliving::end_all(survivors).map_err(|error| tasks_error(plan, error))?;
    if TaskJournal::exists(&plan.output) || !plan.tasks.is_empty() {
        discard_tasks(&plan.output)?;
    }
    folder.discard().map_err(|error| discard_error(plan, error))?;
    let mut unknown = if before == State::Fresh { with_text(plan) } else { Vec::new() };
    for (_, _, part) in part_files(plan) {
        fs::remove_file(&part)?;
        unknown.push(part);
    }
    Ok(match before != State::Fresh || !unknown.is_empty() {
        true => Found::Discarded { finished: finished_in(&before), unknown },
        false => Found::Fresh,
    })
}

/// Lets this start replace results that are in the way of its sinks.
fn replace(plan: &Plan, folder: &mut OutputFolder) -> Result<Found, StartRunError> {
    must_be_free(plan, "", true)?;
    for (_, _, part) in part_files(plan) {
        fs::remove_file(&part)?;
    }
    folder.replace_files();
    Ok(Found::Fresh)
}

/// The run that is in the output folder, and what it would be if it began now.
struct Past {
    /// `None`: there is none.
    identity: Option<RunIdentity>,
    now: RunIdentity,
    finished: u64,
    code: Option<i32>,
}

impl Past {
    fn of(plan: &Plan, folder: &mut OutputFolder) -> Result<Self, StartRunError> {
        let mut now = new_identity(plan);
        // What a run of tasks alone has left goes on beside whatever the file has now: it is the same run.
        if let State::Unfinished { identity, .. } | State::Finished { identity, .. } = folder.state()
            && !identity.changes(&now).is_empty()
            && plan.late.is_none()
            && folder.forget_without_items().map_err(|error| discard_error(plan, error))?
        {
            now = RunIdentity { run_id: identity.run_id, started_unix_ms: identity.started_unix_ms, ..now };
        }
        let state = folder.state();
        let finished = finished_in(&state);
        // A finished run without the account of that end could not write it: it goes on, with nothing left to do but that.
        let has_account = |code: &i32| code_of_account(&plan.output) == Some(*code);
        let (identity, code) = match state {
            State::Fresh => (None, None),
            State::Unfinished { identity, .. } => (Some(identity), None),
            State::Finished { identity, code, .. } => (Some(identity), Some(code).filter(has_account)),
            State::Unreadable(why) => {
                return Err(StartRunError::Unreadable { folder: plan.output.clone(), why });
            }
        };
        // Not known yet for this start, see `hold_onnxruntime`.
        let parts = identity.iter().flat_map(|identity| &identity.fingerprint);
        now.fingerprint.extend(parts.filter(|(name, _)| name == ONNXRUNTIME).cloned());
        Ok(Self { identity, now, finished, code })
    }

    fn changed(&self, plan: &Plan, changes: Vec<String>) -> StartRunError {
        StartRunError::Changed { folder: plan.output.clone(), changes, done: self.finished }
    }

    /// Refuses a plan that would give other results. Sources, stages and sinks that are planned later are compared then.
    fn must_go_on(&self, plan: &Plan) -> Result<(), StartRunError> {
        let Some(before) = self.identity.as_ref().filter(|_| plan.late.is_none()) else { return Ok(()) };
        // Without a record of it, no output of a task was read.
        let counts = |change: &Change| self.finished > 0 || !is_output_of_task(&change.name);
        let changes: Vec<String> =
            before.changes(&self.now).iter().filter(|change| counts(change)).map(in_words).collect();
        if changes.is_empty() { Ok(()) } else { Err(self.changed(plan, changes)) }
    }

    /// What changed, where results so far are of another version of ONNX Runtime than this one.
    fn other_onnxruntime(&self, version: Option<&str>) -> Option<String> {
        let mut parts = self.identity.iter().flat_map(|identity| &identity.fingerprint);
        let (_, before) = parts.find(|(name, _)| name == ONNXRUNTIME)?;
        let version = version.filter(|version| version != before)?;
        Some(in_words(&onnxruntime_changed(before.clone(), version)))
    }

    /// The identity that the run has from now on.
    fn go_on(&self, plan: &Plan) -> RunIdentity {
        match &self.identity {
            None => self.now.clone(),
            Some(before) if plan.late.is_some() => before.clone(),
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

fn open_journal(
    plan: &Plan,
    folder: OutputFolder,
    past: &Past,
    identity: &RunIdentity,
    fresh: bool,
) -> Result<Journal, StartRunError> {
    if past.identity.is_none() {
        if let Some(full) = full_folder(plan).filter(|_| !fresh) {
            return Err(StartError::InTheWay(full).into());
        }
        return Ok(Journal::begin(folder, identity, &result_files(plan))?);
    }
    let files = if plan.late.is_some() { folder.files() } else { result_files(plan) };
    let journal = Journal::resume(folder, identity, &files)?;
    let commits = journal.recovered().lost_commits;
    if commits > 0 {
        tracing::warn!(
            commits,
            "some commits do not agree with the result files, and their items are done again"
        );
    }
    Ok(journal)
}

/// Takes the records of failures back. Gives how many items are done again.
fn retry_failed(plan: &Plan, journal: &mut Journal) -> Result<u64, StartRunError> {
    let mut files = vec![FAILURES_FILE];
    for (at, sink) in plan.sinks.iter().enumerate().filter(|(_, sink)| sink.is_of_failures) {
        if sink.bucket.is_some() && journal.parts(sink_file(at)) > 0 {
            return Err(StartRunError::Sealed(sink.name.clone()));
        }
        files.push(sink_file(at));
    }
    let retried = journal.retry_failed(&files)?;
    remove_retired(plan, journal)?;
    Ok(retried)
}

/// Removes parts whose records were taken back; the start that took them back may have been killed before it did.
fn remove_retired(plan: &Plan, journal: &Journal) -> io::Result<()> {
    let is_retired =
        |(sink, number, _): &(usize, u64, PathBuf)| journal.is_retired(sink_file(*sink), *number);
    part_files(plan).iter().filter(|part| is_retired(part)).try_for_each(|(.., path)| fs::remove_file(path))
}

fn open_tasks(
    plan: &Plan,
    trees: Option<Trees>,
    survivors: Vec<Survivor>,
    listings: &[Listing],
) -> Result<Option<KnownTasks>, StartRunError> {
    if plan.tasks.is_empty() {
        return Ok(None);
    }
    let refused = |error| tasks_error(plan, error);
    let trees = trees.map_or_else(|| Trees::read(&plan.tasks, &plan.output), Ok)?;
    let mut tasks = earlier::open(&plan.tasks, &plan.output, trees, survivors).map_err(refused)?;
    // What a pipeline adds to its sinks, the tasks after it have not seen.
    let has_work = |pipeline| {
        let sources = plan.sources.iter().zip(listings);
        sources.filter(|(source, _)| source.pipeline == pipeline).any(|(_, listing)| !listing.is_done())
    };
    tasks.outdate(plan, has_work).map_err(refused)?;
    // What is done may have something to do in the second part, when its tree has changed.
    let of_part = |known: &KnownTask| !known.is_done || plan.late.is_some();
    let open = plan.tasks.tasks.iter().zip(&tasks.known).filter(|(_, known)| of_part(known));
    tasks.trees.copy(open.map(|(task, _)| task))?;
    Ok(Some(tasks))
}

/// The folders of all tasks, with the outputs in them.
fn discard_tasks(output: &Path) -> Result<(), StartRunError> {
    for folder in [TASKS_FOLDER, BEST_FOLDER].map(|name| output.join(name)) {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let error = DiscardError { path: folder.clone(), source: error };
                return Err(StartRunError::Discard { folder, error });
            }
            _ => {}
        }
    }
    Ok(())
}

fn finished_in(state: &State) -> u64 {
    match state {
        State::Unfinished { counts, .. } | State::Finished { counts, .. } => counts.total(),
        State::Fresh | State::Unreadable(_) => 0,
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

/// A folder of files that are records which has something in it: what is there could be replaced. Its index is no record, and is looked
/// at by the journal: a start that was killed before there was a journal has left it empty.
fn full_folder(plan: &Plan) -> Option<PathBuf> {
    let is_full = |(folder, index): &(PathBuf, PathBuf)| {
        let is_record = |entry: io::Result<fs::DirEntry>| entry.map_or(true, |entry| entry.path() != *index);
        fs::read_dir(folder).is_ok_and(|mut entries| entries.any(is_record))
    };
    let folders = plan.sinks.iter().filter(|sink| sink.part_files.is_none()).filter_map(|sink| {
        Some((plan.output.join(&sink.files.as_ref()?.folder), plan.output.join(&sink.path)))
    });
    folders.into_iter().find(is_full).map(|(folder, _)| folder)
}

/// The prefixes of sinks in stores hold nothing of another run.
fn must_be_free(plan: &Plan, run_id: &str, is_new: bool) -> Result<(), StartRunError> {
    for sink in &plan.sinks {
        let Some(bucket) = &sink.bucket else { continue };
        let sink_name = sink.name.clone();
        match is_free(sink, run_id, is_new) {
            Ok(true) => {}
            Ok(false) => return Err(StartRunError::Taken { sink_name, url: bucket.url.clone() }),
            Err(error) => return Err(StartRunError::Bucket { sink_name, error }),
        }
    }
    Ok(())
}

/// Begins result files that have something at their head and are empty.
fn write_headers(plan: &Plan, journal: &mut Journal) -> Result<(), CommitError> {
    for (at, sink) in plan.sinks.iter().enumerate() {
        let header = sink.encoder.header();
        let is_empty = || fs::metadata(&sink.path).is_ok_and(|m| m.len() == 0);
        if !header.is_empty() && is_empty() {
            let appends = vec![(sink_file(at), header)];
            journal.commit(&Commit { appends, ..Commit::default() })?;
        }
    }
    Ok(())
}

/// Result files of the plan that have text in them.
fn with_text(plan: &Plan) -> Vec<PathBuf> {
    let files = result_files(plan).into_iter().map(|file| plan.output.join(file));
    files.filter(|path| fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() > 0)).collect()
}

/// Hexadecimal digits of a SHA-256.
const DIGEST_CHARS: usize = 64;

fn in_words(change: &Change) -> String {
    match (&change.before, &change.after) {
        (None, _) => format!("{} was added", change.name),
        (_, None) => format!("{} was removed", change.name),
        // A digest tells nothing to its reader.
        (Some(before), Some(after)) if before.len().max(after.len()) < DIGEST_CHARS => {
            format!("{} changed from {before} to {after}", change.name)
        }
        _ => format!("{} changed", change.name),
    }
}
