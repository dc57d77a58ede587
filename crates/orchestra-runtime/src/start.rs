//! From a plan to a running actor tree: the output folder, the catalogs of items, the journal, the root. What blocks runs before the first
//! actor is started, but for the listing of a new run; nothing is decided here about items.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use orchestra_core::{PipelineId, SourceId};
use orchestra_plan::{BEST_FOLDER, Plan, SourcePlan, TASKS_FOLDER, is_output_of_task};
use orchestra_store::{
    BitSet, Change, Commit, CommitError, Counts, DiscardError, Journal, OpenError, OutputFolder, RunIdentity,
    StartError, State, TaskJournal, WorkingTreeError,
};
use orchestra_store::{Catalog, Extension, Extent, ListError, ListingReader, extend_listing, write_items};
use ractor::{Actor, ActorRef, SpawnErr};
use thiserror::Error;
use tokio::sync::{oneshot, watch};

use crate::account::meter::{Meter, Remains};
use crate::account::report::RunReport;
use crate::account::snapshot::Snapshot;
use crate::context::{RunContext, RunOptions};
use crate::fleet::device_watch::Watcher;
use crate::fleet::worker_memory;
use crate::flow::committer::{self, Files, Traces};
use crate::flow::part_rows::part_files;
use crate::flow::sink::{FAILURES_FILE, sink_file};
use crate::flow::uploads::{is_free, store_error};
use crate::messages::{PipelineEnd, RootMsg};
use crate::pipeline::Listing;
use crate::root::{Ending, Orchestra, RootArgs};
use crate::run_end::{TellTheEnd, judge, not_started};
use crate::tasks::actor::TasksEnd;
use crate::tasks::board::TaskReport;
use crate::tasks::known::{self, KnownTask, KnownTasks};
use crate::tasks::outliving::{self, Survivor};
use crate::tasks::trees::Trees;

/// Why a run could not be started.
#[derive(Debug, Error)]
pub enum StartRunError {
    #[error(transparent)]
    Folder(#[from] OpenError),
    #[error("the run in `{}` cannot be continued, because since then {}; use `--fresh` to start over (this discards {done} finished items) or another `--output`",
        folder.display(), changes.join(", "))]
    Changed {
        folder: PathBuf,
        changes: Vec<String>,
        /// Items that `--fresh` discards.
        done: u64,
    },
    #[error("the journal in `{}` cannot be read: {why}; use `--fresh` to start over or another `--output`", folder.display())]
    Unreadable { folder: PathBuf, why: String },
    #[error("the items of source `{source_name}` cannot be listed: {error}")]
    Listing { source_name: String, error: ListError },
    #[error("sink `{sink_name}` cannot write to its bucket: {}", store_error(error))]
    Remote { sink_name: String, error: ListError },
    #[error(
        "`{url}` of sink `{sink_name}` holds results of another run, which stay as they are: choose another prefix, or remove them"
    )]
    Taken { sink_name: String, url: String },
    #[error("the earlier run in `{}` cannot be discarded: {why}", folder.display())]
    Discard { folder: PathBuf, why: String },
    #[error(transparent)]
    Journal(#[from] StartError),
    /// The results cannot be made durable.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// Failed items are to be done again, and their records cannot be taken back.
    #[error(
        "the failed items cannot be done again: sink `{0}` has written parts of their failures, which stay as they are; start over with `--fresh`, \
        and give that sink kind = \"jsonl\" or \"csv\""
    )]
    Sealed(String),
    /// Rows that an earlier run has left cannot be used.
    #[error("the run in this output folder cannot go on: {0}")]
    Rows(String),
    #[error(
        "nothing is said to run the batches of stage `{0}`; `RunOptions::engines` needs an engine for each batch stage of the plan"
    )]
    NoEngine(String),
    #[error("nothing is said to start the commands of tasks; `RunOptions::keepers` needs a launcher")]
    NoKeeper,
    #[error("the journal of tasks in `{}` cannot be used: {error}", folder.display())]
    Tasks { folder: PathBuf, error: io::Error },
    #[error("the working tree cannot be copied: {0}")]
    WorkingTree(#[from] WorkingTreeError),
    #[error("the run cannot be started: {0}")]
    Io(#[from] io::Error),
    #[error("the run cannot be started: {0}; this is a bug")]
    Actors(#[from] SpawnErr),
}

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
        /// Tasks that are done.
        tasks_done: u64,
        /// Tasks whose commands ran when the start before ended, and that run again; whether all of them declare outputs.
        tasks_again: Vec<String>,
    },
}

/// A run that is ready to start: the output folder is ours, and there are items.
pub struct Prepared {
    pub plan: Arc<Plan>,
    /// Id of the run, kept when it is resumed.
    pub run_id: String,
    /// What was in the output folder.
    pub found: Found,
    journal: Journal,
    listings: Vec<Listing>,
    tasks: Option<KnownTasks>,
    started_unix_ms: u64,
    previous_code: Option<i32>,
}

/// A run at work. Dropping the handle, or the future of [`RunHandle::wait`], aborts the run: its workers are killed, what is finished
/// stays, and another start goes on from there. `run.json` is written by `wait` alone.
pub struct RunHandle {
    context: Arc<RunContext>,
    root: AbortOnDrop,
    snapshots: watch::Receiver<Snapshot>,
    done: oneshot::Receiver<Ending>,
    end: TellTheEnd,
    watcher: Watcher,
    started_unix_ms: u64,
}

/// Nobody who gave a run up wants it to go on unseen.
struct AbortOnDrop(ActorRef<RootMsg>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        drop(self.0.cast(RootMsg::Abort)); // A root that is gone has ended.
    }
}

/// Tells a run to stop. Cheap to clone; dropping it stops nothing.
#[derive(Clone)]
pub struct StopHandle(ActorRef<RootMsg>);

#[derive(Debug, Clone)]
pub struct RunOutcome {
    pub report: RunReport,
    /// Exit code of the command: 0, 65, 69, 70, 75 or 130.
    pub exit_code: i32,
    /// What stopped it, where it is not complete, in words.
    pub problems: Vec<String>,
    /// This was the first of two parts, and nothing has been written about it: the file is to be planned again, and started with this report as
    /// [`RunOptions::first_part`]. See [`Plan::late`].
    pub goes_on: bool,
}

/// Opens the output folder and the journal, and lists the items: all of them where results of an earlier run count; else the first ones, and
/// the others while the run is prepared and works. Blocks.
pub fn prepare(plan: Arc<Plan>, earlier: Earlier) -> Result<Prepared, StartRunError> {
    prepare_part(plan, earlier, None)
}

/// The same for the second part of a run, whose commands see the working trees that the first part has found ([`Prepared::trees`]).
pub fn prepare_part(
    plan: Arc<Plan>,
    earlier: Earlier,
    trees: Option<Trees>,
) -> Result<Prepared, StartRunError> {
    let mut folder = OutputFolder::open(&plan.output)?;
    if !plan.tasks.is_empty() {
        // Before anything is discarded or begun: commands of a start that was killed may still write.
        let refuse = |error| StartRunError::Tasks { folder: plan.output.clone(), error };
        known::wait_for_keepers(&plan.output).map_err(refuse)?;
    }
    let refuse = |error| StartRunError::Tasks { folder: plan.output.clone(), error };
    let mut survivors = outliving::survivors(&plan.output).map_err(refuse)?;
    let mut found = Found::Fresh;
    let fresh = matches!(earlier, Earlier::Discard | Earlier::Replace);
    if earlier == Earlier::Replace {
        must_be_free(&plan, "", true)?;
        for (_, _, part) in part_files(&plan) {
            fs::remove_file(&part)?;
        }
        folder.replace_files();
    }
    if earlier == Earlier::Discard {
        // First: a start that is refused discards nothing.
        must_be_free(&plan, "", true)?;
        let before = folder.state();
        outliving::end_all(std::mem::take(&mut survivors)).map_err(refuse)?;
        if TaskJournal::exists(&plan.output) || !plan.tasks.is_empty() {
            discard_tasks(&plan.output)?;
        }
        // Also where no run can be seen: its journal may be lost, and its files are in the way.
        folder
            .discard()
            .map_err(|e| StartRunError::Discard { folder: plan.output.clone(), why: e.to_string() })?;
        let mut unknown = if before == State::Fresh { with_text(&plan) } else { Vec::new() };
        for (_, _, part) in part_files(&plan) {
            fs::remove_file(&part)?;
            unknown.push(part);
        }
        if before != State::Fresh || !unknown.is_empty() {
            found = Found::Discarded { finished: finished_in(&before), unknown };
        }
    }
    // They have what a task of this start may be given.
    let is_planned = |s: &Survivor| plan.tasks.tasks.iter().any(|task| task.id == s.command.task);
    let (survivors, strangers): (Vec<Survivor>, Vec<Survivor>) = survivors.into_iter().partition(is_planned);
    outliving::wait_for_all(strangers).map_err(refuse)?;
    // What a run of tasks alone has left goes on beside whatever the file has now: it is the same run.
    let mut now = new_identity(&plan);
    if let State::Unfinished { identity, .. } | State::Finished { identity, .. } = folder.state()
        && !identity.changes(&now).is_empty()
        && plan.late.is_none()
    {
        let discard =
            |e: DiscardError| StartRunError::Discard { folder: plan.output.clone(), why: e.to_string() };
        if folder.forget_without_items().map_err(discard)? {
            now = RunIdentity { run_id: identity.run_id, started_unix_ms: identity.started_unix_ms, ..now };
        }
    }
    // A finished run without its account could not write it: it goes on, with nothing left to do but that.
    let has_account = plan.output.join(orchestra_store::RUN_SUMMARY).is_file();
    let (before, previous_code) = match folder.state() {
        State::Fresh => (None, None),
        State::Unfinished { identity, .. } => (Some(identity), None),
        State::Finished { identity, code, .. } => (Some(identity), Some(code).filter(|_| has_account)),
        State::Unreadable(why) => return Err(StartRunError::Unreadable { folder: plan.output.clone(), why }),
    };
    let finished = finished_in(&folder.state());
    let private = folder.private_dir().to_owned();
    let refuse = |changes| StartRunError::Changed { folder: plan.output.clone(), changes, done: finished };
    // Sources, stages and sinks that are planned later are compared then.
    let compared = before.as_ref().filter(|_| plan.late.is_none());
    // Without a record of it, no output of a task was read.
    let counts = |change: &Change| finished > 0 || !is_output_of_task(&change.name);
    let changed = compared.map(|before| before.changes(&now)).unwrap_or_default();
    let changes: Vec<String> = changed.iter().filter(|change| counts(change)).map(in_words).collect();
    if !changes.is_empty() {
        return Err(refuse(changes));
    }
    if !fresh {
        let run_id = before.as_ref().map_or("", |before| &before.run_id);
        must_be_free(&plan, run_id, before.is_none())?;
    }
    // Where no result counts, no item has a number that must stay: the run goes on while its items are listed.
    let is_new = finished == 0;
    // What is watched is not listed anew: it goes on.
    let relist = |s: &SourcePlan| (!is_watched(s)).then(|| relist(&private, s)).transpose();
    let relisted = if is_new { Vec::new() } else { each_source(&plan, relist)? };
    let missing: Vec<String> =
        plan.sources.iter().zip(&relisted).filter_map(|(s, r)| r.as_ref()?.missing(&s.name)).collect();
    if !missing.is_empty() {
        return Err(refuse(missing));
    }
    let new_items = relisted.iter().flatten().map(Relisted::new_items).sum();
    let path = |source: &SourcePlan| listing_path(&private, &source.name);
    let list = |s: &SourcePlan| Catalog::list(&s.listing, s.expand.clone(), &path(s));
    let begun = if is_new { each_source(&plan, list)? } else { Vec::new() };
    let identity = before.as_ref().map_or_else(
        || now.clone(),
        |b| {
            if plan.late.is_some() {
                b.clone()
            } else {
                RunIdentity { run_id: b.run_id.clone(), started_unix_ms: b.started_unix_ms, ..now.clone() }
            }
        },
    );
    let files = match (&before, &plan.late) {
        (Some(_), Some(_)) => folder.files(),
        _ => result_files(&plan),
    };
    let mut journal = match before {
        Some(_) => {
            let journal = Journal::resume(folder, &identity, &files)?;
            let lost = journal.recovered().lost_commits;
            if lost > 0 {
                tracing::warn!(
                    commits = lost,
                    "some commits do not agree with the result files, and their items are done again"
                );
            }
            journal
        }
        None => {
            if let Some(full) = full_folder(&plan).filter(|_| !fresh) {
                return Err(StartError::InTheWay(full).into());
            }
            Journal::begin(folder, &identity, &files)?
        }
    };
    let retried = match earlier {
        Earlier::RetryFailed => {
            let of_failures = plan.sinks.iter().enumerate().filter(|(_, sink)| sink.is_of_failures);
            let mut files = vec![FAILURES_FILE];
            for (at, sink) in of_failures {
                if journal.parts(sink_file(at)) > 0 {
                    return Err(StartRunError::Sealed(sink.name.clone()));
                }
                files.push(sink_file(at));
            }
            journal.retry_failed(&files)?
        }
        Earlier::GoOn | Earlier::Discard | Earlier::Replace => 0,
    };
    // A reader of all parts would take it for one of them.
    let is_strange = |(sink, number, _): &(usize, u64, PathBuf)| *number >= journal.parts(sink_file(*sink));
    if let Some((_, _, strange)) = part_files(&plan).into_iter().find(is_strange) {
        return Err(StartError::InTheWay(strange).into());
    }
    write_headers(&plan, &mut journal)?;
    let finished = (0..).map(SourceId).map(|source| journal.finished(source));
    let mut again = relisted.into_iter().zip(finished.clone());
    let catalogs = match is_new {
        true => begun,
        false => each_source(&plan, |s| {
            match again.next() {
                Some((Some(relisted), finished)) => relisted.keep(&finished)?,
                Some((None, finished)) => return watch_on(s, &path(s), &finished),
                None => {}
            }
            Catalog::open(&path(s))
        })?,
    };
    let listings = catalogs.into_iter().zip(finished);
    let listings: Vec<Listing> =
        listings.map(|(catalog, finished)| Listing { catalog: Arc::new(catalog), finished }).collect();
    let refuse = |error| StartRunError::Tasks { folder: plan.output.clone(), error };
    let mut tasks = match plan.tasks.is_empty() {
        true => None,
        false => {
            let trees = match trees {
                Some(trees) => trees,
                None => Trees::read(&plan.tasks, &plan.output)?,
            };
            Some(known::open(&plan.tasks, &plan.output, trees, survivors).map_err(refuse)?)
        }
    };
    if let Some(tasks) = &mut tasks {
        // What a pipeline adds to its sinks, the tasks after it have not seen.
        let has_work = |pipeline| {
            let sources = plan.sources.iter().zip(&listings);
            sources.filter(|(source, _)| source.pipeline == pipeline).any(|(_, listing)| !is_done(listing))
        };
        tasks.outdate(&plan, has_work).map_err(refuse)?;
        // What is done may have something to do in the second part, when its tree has changed.
        let of_part = |known: &KnownTask| !known.is_done || plan.late.is_some();
        let open = plan.tasks.tasks.iter().zip(&tasks.known).filter(|(_, known)| of_part(known));
        tasks.trees.copy(open.map(|(task, _)| task))?;
    }
    let tasks_done =
        tasks.as_ref().map_or(0, |tasks| tasks.known.iter().filter(|task| task.is_done).count() as u64);
    let again = tasks.iter().flat_map(|tasks| &tasks.again);
    let tasks_again: Vec<String> = again.map(|task| plan.tasks.tasks[*task].id.clone()).collect();
    let is_known = journal.counts().total() > 0 || tasks_done > 0 || !tasks_again.is_empty();
    if previous_code.is_some() || is_known {
        found = Found::Resumed {
            finished: journal.counts().total(),
            new_items,
            retried,
            tasks_done,
            tasks_again,
        };
    }
    Ok(Prepared {
        plan,
        run_id: identity.run_id,
        found,
        journal,
        listings,
        tasks,
        started_unix_ms: identity.started_unix_ms,
        previous_code,
    })
}

impl Prepared {
    /// The code with which this run ended before, if it did and there is nothing new to do.
    pub fn nothing_to_do(&self) -> Option<i32> {
        let tasks = self.tasks.iter().flat_map(|tasks| &tasks.known);
        self.previous_code
            .filter(|_| self.listings.iter().all(is_done))
            .filter(|_| tasks.into_iter().all(|task| task.is_done))
    }

    /// How many items the sources name.
    pub fn extent(&self) -> Extent {
        self.listings.iter().map(|l| l.catalog.growth().extent()).sum()
    }

    /// The working trees of its tasks.
    pub fn trees(&self) -> Option<Trees> {
        self.tasks.as_ref().map(|tasks| tasks.trees.clone())
    }

    /// The tasks as earlier starts have left them.
    pub fn tasks(&self) -> Vec<TaskReport> {
        TaskReport::all(&self.plan.tasks, self.tasks.as_ref().map_or(&[], |tasks| &tasks.known))
    }

    /// Items that are finished already.
    pub fn counts(&self) -> Counts {
        self.journal.counts()
    }

    /// Records the end of a run that had nothing (more) to do.
    pub fn close(mut self) -> Result<(), StartRunError> {
        if let Some(code) = self.nothing_to_do() {
            self.journal.finish(code)?;
        }
        Ok(())
    }

    /// Starts the actor tree. Must be called within a tokio runtime.
    ///
    /// Boxed, because an `async fn` is compiled anew in every crate that awaits it, and with it the whole actor tree: half a minute of a
    /// first build.
    pub fn start(self, options: RunOptions) -> BoxFuture<'static, Result<RunHandle, StartRunError>> {
        Box::pin(self.start_tree(options))
    }

    async fn start_tree(mut self, options: RunOptions) -> Result<RunHandle, StartRunError> {
        if let Some((stage, _)) = self.plan.batch_stages().find(|(id, _)| !options.engines.contains_key(id)) {
            return Err(StartRunError::NoEngine(self.plan.stages[stage.index()].name.clone()));
        }
        if self.tasks.is_some() && options.keepers.is_none() {
            return Err(StartRunError::NoKeeper);
        }
        if let (Some(tasks), Some(first_part)) = (&mut self.tasks, &options.first_part) {
            tasks.take_over(&self.plan.tasks, first_part);
        }
        let counts = self.journal.counts();
        let context = Arc::new(RunContext::new(self.plan, self.run_id, options));
        let growths = self.listings.iter().map(|l| Arc::clone(l.catalog.growth())).collect();
        context.stats.growths.get_or_init(|| growths);
        context.stats.done.add(counts.done);
        context.stats.failed.add(counts.failed);
        context.stats.resumed.add(counts.total());
        for (source, listing) in (0..).map(SourceId).zip(&self.listings) {
            context.stats.pipeline_of(source).resumed.add(listing.finished.len());
        }
        let traces = Traces { tracer: context.tracer.clone(), clock: context.clock };
        let n_sources = context.plan.sources.len();
        let files = Files::open(&context.plan, self.journal, &context.run_id, &context.stats)
            .map_err(StartRunError::Rows)?;
        let (committer, _thread) = committer::start(files, Arc::clone(&context.stats), n_sources, traces)?;
        let (publish, snapshots) = watch::channel(Snapshot::take(&context));
        let (done_sender, done) = oneshot::channel();
        if let Some(tasks) = &self.tasks {
            let first_part = context.options.first_part.as_ref().map_or(&[][..], |first| &first.tasks);
            context.tasks.begin(&context.plan.tasks, &tasks.known, first_part);
        }
        let args = RootArgs {
            context: Arc::clone(&context),
            committer,
            listings: self.listings,
            tasks: self.tasks,
            publish,
            done: done_sender,
        };
        let (root, _) = Actor::spawn(None, Orchestra, args).await?;
        let root = AbortOnDrop(root);
        let end = TellTheEnd::of(&context);
        let watcher = Watcher::start(&context)?;
        Ok(RunHandle { context, root, snapshots, done, end, watcher, started_unix_ms: self.started_unix_ms })
    }
}

impl RunHandle {
    /// Snapshots, a few per second, and one at the end.
    pub fn snapshots(&self) -> watch::Receiver<Snapshot> {
        self.snapshots.clone()
    }

    /// A way to stop the run from elsewhere.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(self.root.0.clone())
    }

    /// A look at what is left of the run, also after its end.
    pub fn remains(&self) -> Remains {
        Remains::of(&self.context)
    }

    /// The counters of the run, also after its end.
    pub fn meter(&self) -> Meter {
        Meter::of(&self.context)
    }

    /// Waits for the end, and writes `run.json`.
    pub async fn wait(mut self) -> RunOutcome {
        let ending = (&mut self.done).await.unwrap_or_else(|_| Ending {
            pipelines: [(PipelineId(0), PipelineEnd::Bug("the root of the actor tree fell over".into()))]
                .into(),
            tasks: TasksEnd::default(),
            failure_limit: false,
            journal: Err("the journal was not closed; the run can be resumed".into()),
        });
        let counts = match &ending.journal {
            Ok(counts) => *counts,
            Err(_) => Counts { done: self.context.stats.done.get(), failed: self.context.stats.failed.get() },
        };
        drop(self.watcher);
        worker_memory::keep(&self.context);
        let (mut exit_code, mut problems) = judge(&ending, counts.failed);
        let goes_on = self.context.is_first_part() && problems.is_empty();
        if !goes_on && let Some((code, problem)) = not_started(&self.context) {
            problems.push(problem);
            exit_code = if exit_code == 0 { code } else { exit_code };
        }
        let mut report =
            RunReport::new(&self.context, self.started_unix_ms, counts, exit_code, &ending.pipelines);
        if goes_on {
            // The account of what has run, until all of the run has one.
            let so_far = RunReport { exit_code: 130, ..report.clone() };
            if let Err(error) = so_far.write(&self.context.plan.output) {
                tracing::warn!(%error, "the account of the first part cannot be written");
            }
            self.end.tell(counts, Some(exit_code), &problems);
            return RunOutcome { report, exit_code, problems, goes_on };
        }
        if let Err(error) = report.write(&self.context.plan.output) {
            problems.push(error.to_string());
            // Who reads the account must not take a missing or an old one for that of a run that went well.
            if [0, 65].contains(&exit_code) {
                exit_code = 75;
                report.exit_code = exit_code;
            }
        }
        self.end.tell(counts, Some(exit_code), &problems);
        RunOutcome { report, exit_code, problems, goes_on }
    }
}

impl StopHandle {
    /// First signal: finish what is in flight.
    pub fn interrupt(&self) {
        drop(self.0.cast(RootMsg::Interrupt)); // A root that is gone has stopped.
    }

    /// Second signal: kill the workers, record what is finished, end.
    pub fn abort(&self) {
        drop(self.0.cast(RootMsg::Abort));
    }
}

/// Whether all items of a source are known and have an end.
fn is_done(listing: &Listing) -> bool {
    let n_items = listing.catalog.growth().extent().known();
    n_items.is_some_and(|n| listing.finished.count_below(n) == n)
}

/// The folders of all tasks, with the outputs in them.
fn discard_tasks(output: &Path) -> Result<(), StartRunError> {
    for folder in [TASKS_FOLDER, BEST_FOLDER].map(|name| output.join(name)) {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StartRunError::Discard { folder, why: error.to_string() });
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

/// `failures.jsonl` first, then the sinks and the stages that reduce, in the order of the plan; relative where they lie in the output folder.
pub(crate) fn result_files(plan: &Plan) -> Vec<PathBuf> {
    let sinks = plan.sinks.iter().map(|s| match (&s.parts, s.path.strip_prefix(&plan.output)) {
        (Some(_), _) => OutputFolder::private_file(&format!("rows-{}", s.name)),
        (None, Ok(relative)) => relative.to_owned(),
        (None, Err(_)) => s.path.clone(),
    });
    let reduces = plan.reduces().map(|(stage, _)| &plan.stages[stage.index()].name);
    let reduces = reduces.map(|name| OutputFolder::private_file(&format!("fold-{name}")));
    std::iter::once(PathBuf::from("failures.jsonl")).chain(sinks).chain(reduces).collect()
}

/// A folder of files that are records which has something in it: what is there could be replaced. Its index is no record, and is looked
/// at by the journal: a start that was killed before there was a journal has left it empty.
fn full_folder(plan: &Plan) -> Option<PathBuf> {
    let is_full = |(folder, index): &(PathBuf, PathBuf)| {
        let is_record = |entry: io::Result<fs::DirEntry>| entry.map_or(true, |entry| entry.path() != *index);
        fs::read_dir(folder).is_ok_and(|mut entries| entries.any(is_record))
    };
    let folders = plan.sinks.iter().filter(|sink| sink.parts.is_none()).filter_map(|sink| {
        Some((plan.output.join(&sink.files.as_ref()?.folder), plan.output.join(&sink.path)))
    });
    folders.into_iter().find(is_full).map(|(folder, _)| folder)
}

/// The prefixes of sinks in stores hold nothing of another run.
fn must_be_free(plan: &Plan, run_id: &str, is_new: bool) -> Result<(), StartRunError> {
    for sink in &plan.sinks {
        let Some(remote) = &sink.remote else { continue };
        let sink_name = sink.name.clone();
        match is_free(sink, run_id, is_new) {
            Ok(true) => {}
            Ok(false) => return Err(StartRunError::Taken { sink_name, url: remote.url.clone() }),
            Err(error) => return Err(StartRunError::Remote { sink_name, error }),
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

fn each_source<T>(
    plan: &Plan,
    mut list: impl FnMut(&SourcePlan) -> Result<T, ListError>,
) -> Result<Vec<T>, StartRunError> {
    let listed = plan.sources.iter().map(|source| {
        list(source).map_err(|error| StartRunError::Listing { source_name: source.name.clone(), error })
    });
    listed.collect()
}

fn is_watched(source: &SourcePlan) -> bool {
    source.listing.watch().is_some()
}

/// Goes on with the list of a source that is watched.
fn watch_on(source: &SourcePlan, list: &Path, finished: &BitSet) -> Result<Catalog, ListError> {
    // Before anything is added to it, which would take the numbers that are missing.
    if finished.count_below(ListingReader::open_unfinished(list)?.n_items()) < finished.len() {
        return Err(ends_early(list));
    }
    Catalog::go_on(&source.listing, source.expand.clone(), list)
}

fn ends_early(list: &Path) -> ListError {
    let reason = "it ends before items that are finished; use `--fresh` to start over";
    ListError::Damaged { path: list.to_owned(), reason }
}

/// The items of a source, listed anew beside the list that an earlier run used: those keep their numbers, new ones come behind them.
struct Relisted {
    next: PathBuf,
    target: PathBuf,
    /// `None` if the earlier list is gone.
    extension: Option<Extension>,
}

fn relist(private: &Path, source: &SourcePlan) -> Result<Relisted, ListError> {
    let next = private.join(format!("items-{}.next", source.name));
    let mut relisted = Relisted { next, target: listing_path(private, &source.name), extension: None };
    write_items(&source.listing, source.expand.as_deref(), &relisted.next, &|| true)?;
    if relisted.target.exists() {
        relisted.extension = Some(extend_listing(&relisted.target, &relisted.next)?);
    }
    Ok(relisted)
}

impl Relisted {
    fn new_items(&self) -> u64 {
        // What an earlier run had no time to list is not new.
        self.extension.as_ref().filter(|e| e.was_complete).map_or(0, |e| e.appended)
    }

    fn missing(&self, source: &str) -> Option<String> {
        let Some(Extension { missing_count, missing, .. }) = &self.extension else {
            // Results count, so there was one: without it no item is known to have its number.
            return Some(format!(
                "the list of the items of source `{source}` is gone, `{}`",
                self.target.display()
            ));
        };
        let items = match missing_count {
            0 => return None,
            1 => "1 item".to_owned(),
            n => format!("{n} items"),
        };
        Some(format!("source `{source}` names {items} less (`{}`)", missing.join("`, `")))
    }

    /// Makes it the list of the run. Only done when nothing speaks against the run: a refused start must leave no trace.
    fn keep(self, finished: &BitSet) -> Result<(), ListError> {
        let Self { next, target, extension } = &self;
        if extension.as_ref().is_some_and(|e| finished.count_below(e.numbered) < finished.len()) {
            return Err(ends_early(target));
        }
        fs::rename(next, target).map_err(|error| ListError::ListFile {
            path: target.clone(),
            doing: "write",
            error,
        })
    }
}

/// A list that was not kept was written in vain.
impl Drop for Relisted {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.next)); // It has another name by now, if it was kept.
    }
}

fn listing_path(private: &Path, source: &str) -> PathBuf {
    private.join(format!("items-{source}"))
}
