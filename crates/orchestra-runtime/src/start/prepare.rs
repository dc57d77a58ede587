//! The start of a run up to its first actor: what an earlier run has left is discarded or compared, items are listed, journals are opened. It
//! decides nothing about items.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use orchestra_plan::Plan;
use orchestra_store::{BeginError, Commit, CommitError, Journal, OutputFolder, RunIdentity};

use super::discard::{discard, must_be_free, replace};
use super::error::tasks_error;
use super::lists::Lists;
use super::previous_run::{Earlier, FoundResults, PreviousRun, in_words, version_changed};
use super::{Prepared, StartRunError};
use crate::child::spawn::ProcessLauncher;
use crate::context::EngineVersion;
use crate::flow::listing::Listing;
use crate::flow::part_file::part_files;
use crate::flow::result_files::{FAILURES_FILE, result_files, sink_file};
use crate::tasks::earlier::{self, KnownTasks};

/// Opens the output folder and the journal, and lists the items: all of them where results of an earlier run count; else the first ones, and
/// the others while the run is prepared and works. `loaders` start the processes that list files; `None`: they are listed in this one. Blocks.
/// Where the version of an engine is known that decides about results, items that have failed are done again only with that of the others.
pub fn prepare(
    mut plan: Arc<Plan>,
    earlier: Earlier,
    loaders: Option<ProcessLauncher>,
    engine: Option<&EngineVersion>,
) -> Result<Prepared, StartRunError> {
    if let Some(source) = plan.asked() {
        return Err(StartRunError::Asked(source.name.clone()));
    }
    if earlier == Earlier::RetryFailed {
        // Those that have failed before may all fail again.
        let plan = Arc::make_mut(&mut plan);
        plan.pipelines.iter_mut().for_each(|pipeline| pipeline.limits.first_failed = 0);
    }
    let mut folder = OutputFolder::open(&plan.output)?;
    if !plan.tasks.is_empty() {
        // Before anything is discarded or begun: commands of a start that was killed may still write.
        earlier::wait_for_keepers(&plan.output).map_err(|error| tasks_error(&plan, error))?;
    }
    let discarded = match earlier {
        Earlier::Discard => discard(&plan, &mut folder)?,
        Earlier::Replace => replace(&plan, &mut folder)?,
        Earlier::GoOn | Earlier::RetryFailed => FoundResults::Fresh,
    };

    let fresh = matches!(earlier, Earlier::Discard | Earlier::Replace);
    let past = PreviousRun::of(&plan, &mut folder, engine)?;
    past.must_go_on(&plan)?;
    if !fresh {
        let run_id = past.identity.as_ref().map_or("", |identity| &identity.run_id);
        must_be_free(&plan, run_id, past.identity.is_none())?;
    }
    let lists = Lists::of(&plan, folder.private_dir(), past.finished, loaders.as_ref())?;
    if !lists.missing.is_empty() {
        return Err(past.changed(&plan, lists.missing));
    }
    let new_items = lists.new_items();
    let identity = past.go_on(&plan);
    let mut journal = open_journal(&plan, folder, &past, &identity, fresh)?;
    // Where commits were taken back, the end was as well: it may be results of `reduce` that are lost, and no item.
    let previous_code = past.code.filter(|_| journal.recovered().lost_commits == 0);
    refuse_strange_part(&plan, &journal, past.identity.is_some())?;
    let changed = lists.changed(&plan, &journal, earlier == Earlier::RetryFailed)?;
    if !changed.is_empty() {
        return Err(past.changed(&plan, changed));
    }
    let retried = match earlier {
        Earlier::RetryFailed => retry_failed(&plan, &past, &mut journal, engine)?,
        Earlier::GoOn | Earlier::Discard | Earlier::Replace => 0,
    };
    write_headers(&plan, &mut journal)?;
    let listings = lists.keep(&plan, &journal)?;
    let tasks = open_tasks(&plan, &listings)?;

    let known = tasks.iter().flat_map(|tasks| &tasks.known);
    let tasks_done = known.filter(|task| task.is_done).count() as u64;
    let again = tasks.iter().flat_map(|tasks| &tasks.again);
    let tasks_again: Vec<String> = again.map(|task| plan.tasks.tasks[*task].id.clone()).collect();
    let finished = journal.counts().total();
    let is_known = finished > 0 || tasks_done > 0 || !tasks_again.is_empty();
    let found = match past.code.is_some() || is_known {
        true => FoundResults::Resumed { finished, new_items, retried, tasks_done, tasks_again },
        false => discarded,
    };
    let run_id = identity.run_id.clone();
    Ok(Prepared { plan, run_id, identity, found, journal, listings, tasks, previous_code })
}

/// A part file of a number that the run has not given: a reader of all parts would take it for one of them.
fn refuse_strange_part(plan: &Plan, journal: &Journal, goes_on: bool) -> Result<(), BeginError> {
    let is_strange =
        |(sink, number, _): &(usize, u64, PathBuf)| *number >= journal.n_part_files(sink_file(*sink));
    match part_files(plan).into_iter().find(is_strange) {
        None => Ok(()),
        Some((.., strange)) if goes_on => Err(BeginError::UnknownPart(strange)),
        Some((.., strange)) => Err(BeginError::InTheWay(strange)),
    }
}

impl Prepared {
    /// Refuses another version of the engine than that of the results so far, and notes the one of those to come. The version is known
    /// later than all other parts of the identity: a run with nothing to do looks for no library.
    pub(super) fn hold_engine(&mut self, engine: Option<&EngineVersion>) -> Result<(), StartRunError> {
        // A run of tasks alone has no identity, so that another one may follow it.
        let has_work = !self.plan.fingerprint.is_empty() && !self.listings.iter().all(Listing::is_done);
        let Some(EngineVersion { name, version: Some(version) }) = engine.filter(|_| has_work) else {
            return Ok(());
        };
        let parts = &mut self.identity.fingerprint;
        let before = parts.iter().position(|(part, _)| part == name).map(|at| parts.remove(at).1);
        if before.as_ref() == Some(version) {
            parts.push(((*name).to_owned(), version.clone()));
            return Ok(());
        }
        let done = self.journal.counts().total();
        if let Some(before) = before.filter(|_| done > 0) {
            let change = version_changed(name, before, version);
            let folder = self.plan.output.clone();
            return Err(StartRunError::Changed { folder, changes: vec![in_words(&change)], done });
        }
        parts.push(((*name).to_owned(), version.clone()));
        Ok(self.journal.identify(&self.identity)?)
    }
}

fn open_journal(
    plan: &Plan,
    folder: OutputFolder,
    past: &PreviousRun,
    identity: &RunIdentity,
    fresh: bool,
) -> Result<Journal, StartRunError> {
    if past.identity.is_none() {
        if let Some(full) = full_folder(plan).filter(|_| !fresh) {
            return Err(BeginError::InTheWay(full).into());
        }
        return Ok(Journal::begin(folder, identity, &result_files(plan))?);
    }
    let files = if plan.deferred.is_some() { folder.files() } else { result_files(plan) };
    let journal = Journal::resume(folder, identity, &files)?;
    let commits = journal.recovered().lost_commits;
    if commits > 0 {
        tracing::warn!(
            commits,
            "some commits do not agree with the result files, and their items and results are done again"
        );
    }
    Ok(journal)
}

/// Takes the records of failures back, where `start` would not refuse the engine. Gives how many items are done again.
fn retry_failed(
    plan: &Plan,
    past: &PreviousRun,
    journal: &mut Journal,
    engine: Option<&EngineVersion>,
) -> Result<u64, StartRunError> {
    let change = engine.and_then(|engine| past.other_version(engine));
    if let Some(change) = change.filter(|_| journal.counts().failed > 0) {
        return Err(past.changed(plan, vec![change]));
    }
    let mut files = vec![FAILURES_FILE];
    for (at, sink) in plan.sinks.iter().enumerate().filter(|(_, sink)| sink.is_of_failures) {
        if (sink.bucket.is_some() || sink.script.is_some()) && journal.n_part_files(sink_file(at)) > 0 {
            return Err(StartRunError::Sealed(sink.name.clone()));
        }
        files.push(sink_file(at));
    }
    Ok(journal.retry_failed(&files)?)
}

fn open_tasks(plan: &Plan, listings: &[Listing]) -> Result<Option<KnownTasks>, StartRunError> {
    if plan.tasks.is_empty() {
        return Ok(None);
    }
    let refused = |error| tasks_error(plan, error);
    let mut tasks = earlier::open(&plan.tasks, &plan.output).map_err(refused)?;
    // What a pipeline adds to its sinks, the tasks after it have not seen.
    let has_work = |pipeline| {
        let sources = plan.sources.iter().zip(listings);
        sources.filter(|(source, _)| source.pipeline == pipeline).any(|(_, listing)| !listing.is_done())
    };
    tasks.outdate(plan, has_work).map_err(refused)?;
    Ok(Some(tasks))
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
