//! A run that is prepared, at work, and ended: the actor tree is started here, and its end is written into `run.json`. What blocks is in
//! `start/prepare.rs`, before the first actor.

use std::sync::Arc;

use futures::future::BoxFuture;
use orchestra_core::{PipelineId, SourceId};
use orchestra_plan::{Plan, SourcePlan};
use orchestra_store::{Counts, Extent, Journal, RunIdentity};
use ractor::{Actor, ActorRef};
use tokio::sync::{oneshot, watch};

use crate::account::history::{HistoryEvents, HistoryWriter};
use crate::account::meter::{Meter, RunObserver};
use crate::account::outcome::RunOutcome;
use crate::account::status::RunStatus;
use crate::actor_threads::join_blocking;
use crate::context::{RunContext, RunOptions};
use crate::fleet::device_watch::DeviceWatcher;
use crate::flow::committer::{self, CommitterHandle, Traces};
use crate::flow::listing::Listing;
use crate::flow::result_files::sink_file;
use crate::flow::run_endpoints::RunEndpoints;
use crate::flow::run_files::RunFiles;
use crate::messages::{PipelineEnd, RootMsg};
use crate::root::{RootArgs, RunEnding, RunRoot};
use crate::run_end::{EndReporter, judge, lifted, not_started};
use crate::tasks::actor::TasksEnd;
use crate::tasks::board::TaskReport;
use crate::tasks::earlier::KnownTasks;

mod discard;
mod error;
mod lists;
mod prepare;
mod previous_run;

pub use error::StartRunError;
pub use prepare::prepare;
pub use previous_run::{Earlier, FoundResults};

/// A run that is ready to start: the output folder is ours, and there are items.
pub struct Prepared {
    pub plan: Arc<Plan>,
    /// Id of the run, kept when it is resumed.
    pub run_id: String,
    identity: RunIdentity,
    /// What was in the output folder.
    pub found: FoundResults,
    journal: Journal,
    listings: Vec<Listing>,
    tasks: Option<KnownTasks>,
    previous_code: Option<i32>,
}

/// A run at work. Dropping the handle, or the future of [`RunHandle::wait`], aborts the run: its workers are killed, what is finished
/// stays, and another start goes on from there. `run.json` is written by `wait` alone.
pub struct RunHandle {
    context: Arc<RunContext>,
    pub(crate) root: AbortOnDrop,
    pub(crate) committer: CommitterHandle,
    snapshots: watch::Receiver<RunStatus>,
    done: oneshot::Receiver<RunEnding>,
    end: EndReporter,
    watcher: DeviceWatcher,
    history: HistoryWriter,
    started_unix_ms: u64,
}

/// A run whose handle was dropped does not go on unseen.
pub(crate) struct AbortOnDrop(pub(crate) ActorRef<RootMsg>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        drop(self.0.cast(RootMsg::Abort)); // A root that is gone has ended.
    }
}

/// Tells a run to stop. Cheap to clone; dropping it stops nothing.
#[derive(Clone)]
pub struct StopHandle(ActorRef<RootMsg>);

impl Prepared {
    /// The code with which this run ended before, if it did and there is nothing new to do.
    pub fn nothing_to_do(&self) -> Option<i32> {
        let tasks = self.tasks.iter().flat_map(|tasks| &tasks.known);
        self.previous_code
            .filter(|_| self.listings.iter().all(Listing::is_done))
            .filter(|_| tasks.into_iter().all(|task| task.is_done))
    }

    /// How many items the sources name; without those that stages have yet to make.
    pub fn extent(&self) -> Extent {
        let extent = |(source, listing): (&SourcePlan, &Listing)| {
            let extent = listing.catalog.growth().extent();
            if source.reduced.is_some() { Extent::Known(extent.listed()) } else { extent }
        };
        self.plan.sources.iter().zip(&self.listings).map(extent).sum()
    }

    /// The tasks as earlier starts have left them.
    pub fn tasks(&self) -> Vec<Arc<TaskReport>> {
        TaskReport::all(&self.plan.tasks, self.tasks.as_ref().map_or(&[], |tasks| &tasks.known))
    }

    pub fn counts(&self) -> Counts {
        self.journal.counts()
    }

    /// How many part files there are of the sink with this place in the plan.
    pub fn n_part_files(&self, sink: usize) -> u64 {
        self.journal.n_part_files(sink_file(sink))
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

    async fn start_tree(mut self, mut options: RunOptions) -> Result<RunHandle, StartRunError> {
        if let Some((stage, _)) = self.plan.batch_stages().find(|(id, _)| !options.engines.contains_key(id)) {
            return Err(StartRunError::NoEngine(self.plan.stages[stage.index()].name.clone()));
        }
        if self.tasks.is_some() && options.keepers.is_none() {
            return Err(StartRunError::NoKeeper);
        }
        self.hold_engine(options.engine.as_ref())?;
        let started_unix_ms = self.identity.started_unix_ms;
        if let (Some(tasks), Some(first_part)) = (&mut self.tasks, &options.first_part) {
            tasks.take_over(&self.plan.tasks, first_part);
        }
        let events = HistoryEvents::new();
        options.events = Some(events.hook(&self.plan, options.events.take()));
        let counts = self.journal.counts();
        let failed_before: Vec<u64> = (0..self.listings.len() as u16)
            .map(|source| self.journal.counts_of(SourceId(source)).failed)
            .collect();
        let context = Arc::new(RunContext::new(self.plan, self.run_id, options));
        let growths = self.listings.iter().map(|l| Arc::clone(l.catalog.growth())).collect();
        context.stats.growths.get_or_init(|| growths);
        context.stats.done.add(counts.done);
        context.stats.failed.add(counts.failed);
        context.stats.resumed.add(counts.total());
        for ((source, listing), failed) in (0..).map(SourceId).zip(&self.listings).zip(failed_before) {
            let pipeline = context.stats.pipeline_of(source);
            pipeline.resumed.add(listing.finished.len());
            pipeline.failed_before.add(failed);
        }
        let traces = Traces { tracer: context.tracer.clone(), clock: context.clock, is_broken: false.into() };
        let (of, journal) = (Arc::clone(&context), self.journal);
        // After a kill it may read, sort and write all rows of a reduce, which no thread of the host's executor waits for.
        let opened = join_blocking(move || {
            let of_run = (&*of.run_id, of.options.loaders.as_ref());
            RunFiles::open(&of.plan, journal, of_run, &of.stats)
        });
        let files = opened.await?.map_err(StartRunError::Rows)?;
        let committer = committer::start(files, Arc::clone(&context.stats), traces, context.bug.clone())?;
        let (publish, snapshots) = watch::channel(RunStatus::now(&context));
        let (done_sender, done) = oneshot::channel();
        if let Some(tasks) = &self.tasks {
            context.tasks.begin(&context.plan.tasks, &tasks.known);
        }
        let args = RootArgs {
            context: Arc::clone(&context),
            endpoints: Arc::new(RunEndpoints::new(&context, committer.clone(), self.listings)),
            tasks: self.tasks,
            publish,
            done: done_sender,
        };
        let (root, _) = Actor::spawn(None, RunRoot, args).await?;
        let root = AbortOnDrop(root);
        let end = EndReporter::of(&context);
        let watcher = DeviceWatcher::start(&context)?;
        let history = HistoryWriter::start(&context, events);
        Ok(RunHandle { context, root, committer, snapshots, done, end, watcher, history, started_unix_ms })
    }
}

impl RunHandle {
    /// Snapshots, a few per second, and one at the end.
    pub fn snapshots(&self) -> watch::Receiver<RunStatus> {
        self.snapshots.clone()
    }

    /// A way to stop the run from elsewhere.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(self.root.0.clone())
    }

    /// A look at what is left of the run, also after its end.
    pub fn observer(&self) -> RunObserver {
        RunObserver::of(&self.context)
    }

    /// The counters of the run, also after its end.
    pub fn meter(&self) -> Meter {
        Meter::of(&self.context)
    }

    /// The root fell over to a bug, and its actors with it: closes the journal in its place.
    async fn root_failed(&self) -> RunEnding {
        let (tell, told) = oneshot::channel();
        // A receiver that is gone has no use for it.
        let closed = move |journal, folder| drop(tell.send((journal, folder)));
        self.committer.close(None, Box::new(closed));
        let lost = |_| (Err("the journal was not closed; the run can be resumed".into()), None);
        let (journal, folder) = told.await.unwrap_or_else(lost);
        let bug = PipelineEnd::Bug("the root of the actor tree fell over".into());
        let (pipelines, tasks) = ([(PipelineId(0), bug)].into(), TasksEnd::default());
        RunEnding { pipelines, tasks, failure_limit: None, journal, folder }
    }

    /// Waits for the end, and writes `run.json`.
    pub async fn wait(mut self) -> RunOutcome {
        let mut ending = match (&mut self.done).await {
            Ok(ending) => ending,
            Err(_) => self.root_failed().await,
        };
        // Unlocked when all that follows is written.
        let _folder = ending.folder.take();
        let counts = match &ending.journal {
            Ok(counts) => *counts,
            Err(_) => Counts { done: self.context.stats.done.get(), failed: self.context.stats.failed.get() },
        };
        drop(self.watcher);
        let (mut exit_code, mut problems) = judge(&ending, counts.failed);
        let lifted_limits = lifted(&ending);
        let is_useless =
            |end: &PipelineEnd| matches!(end, PipelineEnd::NoResult(_) | PipelineEnd::Doubted(_));
        let must_start_over = ending.pipelines.values().any(is_useless);
        let mut goes_on = self.context.planned_next().is_some() && problems.is_empty();
        if !goes_on && let Some((code, problem)) = not_started(&self.context) {
            problems.push(problem);
            exit_code = if exit_code == 0 { code } else { exit_code };
        }
        // That of a first part counts until all of the run has one.
        let reported = if goes_on { 130 } else { exit_code };
        let mut report =
            RunStatus::at_the_end(&self.context, self.started_unix_ms, counts, reported, &ending.pipelines);
        report.complete = problems.is_empty() && !goes_on && !self.context.options.tasks_only;
        if let Err(error) = report.write(&self.context.plan.output) {
            problems.push(error.to_string());
            goes_on = false;
            // A reader of the account must not take a missing or an old one for that of a run that went well.
            if [0, 65].contains(&exit_code) {
                exit_code = 75;
                report.exit_code = exit_code;
            }
        }
        self.end.tell(counts, Some(exit_code), &problems);
        self.history.end(exit_code);
        let tasks = ending.tasks.ended;
        RunOutcome { report, tasks, exit_code, problems, lifted_limits, must_start_over, goes_on }
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
