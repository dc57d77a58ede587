//! What `bench` and `chaos` have in common: runs of a workflow over lists of their own, into a temporary folder that goes with them. No file of the user
//! is changed, and no other run depends on what is done here.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use orchestra_launch::telemetry::{LogSettings, ResolvedTraces, Telemetry, TelemetryGuard, TraceSettings};
use orchestra_launch::{
    Earlier, EventHook, Library, Plan, RunHandle, RunOutcome, RunStatus, StartOptions, Tracer,
};
use orchestra_plan::{TasksPlan, TelemetryPlan};
use tempfile::TempDir;
use tokio::sync::watch;
use tracing::level_filters::LevelFilter;

use crate::Failed;
use crate::args::LabArgs;
use crate::exit_code::ExitCode;
use crate::human::count;
use crate::notices::{LibraryNotes, Notices};
use crate::planning::{self, WorkflowText};
use crate::run::not_started;
use crate::signals::Signals;
use crate::stderr;
use crate::surroundings::Surroundings;

pub mod item_lists;

use item_lists::ItemLists;

/// Items of the first run that finds out how many keep a plan busy; each further one has so many times more.
const FIRST_LOOK: u64 = 64;
const MORE: u64 = 8;
/// More items than this are not chosen unasked.
const MOST_ITEMS: u64 = 100_000_000;
/// How long threads of an ended run may take to end: one that hangs (a dead network drive) must not hold the command.
const LINGER: Duration = Duration::from_secs(1);

pub struct LabSetting<'a> {
    pub args: &'a LabArgs,
    pub surroundings: &'a Surroundings,
    pub level: LevelFilter,
    /// Where traces go. The keys of the file and the variables of the environment are for runs that count.
    pub otlp: Option<&'a str>,
    pub notices: Notices,
}

/// A workflow that is ready to be run. Dropping it removes all files that its runs wrote.
pub struct Lab {
    /// As many workers from the start as there will be, no tasks, no limit on failures. Its sources are listed; `over` chooses items.
    pub plan: Plan,
    pub items_listed: u64,
    item_lists: ItemLists,
    folder: TempDir,
    library: Option<Library>,
    trace: Option<Arc<dyn Tracer>>,
    offline: bool,
    cancel: CancelSignal,
    told: ProgressLine,
    /// Logs, and traces if they were asked for.
    telemetry: TelemetryGuard,
}

/// A run that came to its end.
pub struct LabRun {
    /// As in `run.json`.
    pub report: RunStatus,
    /// Its output folder, until the next run.
    pub output: PathBuf,
    /// How far it was, a few times a second.
    pub moments: Vec<RunStatus>,
}

/// Set by the first signal.
type CancelSignal = Arc<watch::Sender<bool>>;

impl LabRun {
    /// Seconds since the first worker finished a batch.
    pub fn seconds_at_work(&self) -> f64 {
        self.report.seconds - self.report.seconds_starting
    }
}

impl Lab {
    /// Plans, finds or fetches the library, and lists the items.
    pub fn open(setting: &LabSetting<'_>) -> Result<Self, Failed> {
        let LabSetting { args, surroundings, level, otlp, notices } = setting;
        let workflow = &args.workflow;
        let text = WorkflowText::read(&workflow.file)?;
        let machine = &planning::machine(workflow);
        let planned = text.plan(&planning::options(workflow, None), machine, workflow);
        let plan = planning::show(planned, surroundings)?;
        planning::say_why_cpu(&plan, machine, *notices);
        if plan.batch_stages().all(|(stage, _)| !plan.pipeline_of(stage).after.is_empty()) {
            let what = anyhow!(
                "no stage of the workflow runs in worker processes while its sources are read, so there is nothing to measure; `orchestra run` runs it all the same"
            );
            return Err(Failed::new(ExitCode::BadFile, what));
        }
        let logs = LogSettings {
            terminal: *level,
            filter: std::env::var("RUST_LOG").ok(),
            color: surroundings.color(),
            files: None,
            ..LogSettings::default()
        };
        let traces = otlp.map(|otlp| traces(otlp, &plan)).transpose()?.unwrap_or_default();
        let telemetry = Telemetry::build(&logs, traces.settings.as_ref())
            .and_then(Telemetry::install)
            .map_err(|e| Failed::new(ExitCode::Usage, e))?;
        for warning in &traces.warnings {
            tracing::warn!("{warning}");
        }
        let mut notes = LibraryNotes { notices: *notices, last: None };
        let library = orchestra_launch::runtime_library(
            &plan,
            workflow.ort_library.clone(),
            workflow.offline,
            &mut notes,
        )
        .map_err(|e| Failed::new(ExitCode::Unavailable, e))?;
        let scratch = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::Builder::new().prefix("orchestra-").tempdir_in(&scratch);
        let folder = folder.map_err(failed(format!("making a folder in `{}`", scratch.display())))?;
        let cancel = CancelSignal::default();
        listen_for_signals(Arc::clone(&cancel))?;
        let mut told = ProgressLine::new(*notices, surroundings);
        told.tell("listing the items");
        let item_lists = ItemLists::list(&plan, folder.path(), &|| !*cancel.borrow());
        let item_lists =
            item_lists.map_err(|failed| if *cancel.borrow() { interrupted() } else { failed })?;
        let trace = telemetry.tracer();
        Ok(Self {
            items_listed: item_lists.total(),
            plan: prepared(plan, &folder),
            item_lists,
            folder,
            library,
            trace,
            offline: workflow.offline,
            cancel,
            told,
            telemetry,
        })
    }

    /// The plan over about `n` items, spread evenly over the list; where that is shorter, over all of it again and again. Gives how many they are.
    pub fn over(&self, plan: &Plan, n: u64) -> Result<(Plan, u64), Failed> {
        self.item_lists.choose(plan, n, self.folder.path())
    }

    /// How many items keep a run busy for `lasting`, but no more than `most`. `run` makes runs with more and more of them.
    pub fn items_lasting(
        &mut self,
        lasting: Duration,
        most: u64,
        mut run: impl FnMut(&mut Self, u64) -> Result<LabRun, Failed>,
    ) -> Result<u64, Failed> {
        let most = most.min(MOST_ITEMS);
        let mut n = FIRST_LOOK.min(most);
        loop {
            let seconds = run(self, n)?.seconds_at_work().max(1e-3);
            let enough = (n as f64 * lasting.as_secs_f64() / seconds) as u64; // saturates
            if n >= most || n.saturating_mul(MORE) >= enough {
                return Ok(enough.clamp(FIRST_LOOK.min(most), most));
            }
            n = (n * MORE).min(most);
        }
    }

    /// Runs `plan` from the start, and discards first what the run before left. Blocks; must not be called within a tokio runtime.
    pub fn run(&mut self, plan: Plan, what: &str, events: Option<EventHook>) -> Result<LabRun, Failed> {
        self.told.tell(what);
        let options = StartOptions {
            trace: self.trace.clone(),
            events,
            offline: self.offline,
            ..StartOptions::default()
        };
        let options = orchestra_launch::run_options(options, &plan, self.library.as_ref())
            .map_err(|e| Failed::new(ExitCode::Unavailable, e))?;
        let output = plan.output.clone();
        let runtime =
            orchestra_launch::actor_runtime(&plan).map_err(failed("starting the threads of a run"))?;
        let prepared = orchestra_launch::prepare_with(Arc::new(plan), Earlier::Discard, None, None);
        let prepared = prepared.map_err(not_started)?;
        let mut moments = Vec::new();
        let ended = runtime.block_on(async {
            let handle = prepared.start(options).await.map_err(not_started)?;
            Ok::<_, Failed>(self.follow(handle, what, &mut moments).await)
        });
        runtime.shutdown_timeout(LINGER);
        let RunOutcome { report, exit_code, problems, .. } = ended?;
        if *self.cancel.borrow() {
            return Err(interrupted());
        }
        if !matches!(exit_code, 0 | 65) {
            let what = anyhow!("{what} ended with exit code {exit_code}: {}", problems.join("; "));
            return Err(Failed::new(ExitCode::of(exit_code), what));
        }
        if report.items.done == 0 {
            let first = report.failures.first();
            let first = first.map(|cause| format!("`{}`: {}", cause.item, cause.error)).unwrap_or_default();
            let what = anyhow!("none of the {} items is done; the first: {first}", report.items.read);
            return Err(Failed::new(ExitCode::ItemsFailed, what));
        }
        Ok(LabRun { report, output, moments })
    }

    async fn follow(&mut self, handle: RunHandle, what: &str, moments: &mut Vec<RunStatus>) -> RunOutcome {
        let stop = handle.stop_handle();
        let mut snapshots = handle.snapshots();
        let mut cancelled = self.cancel.subscribe();
        let mut done = std::pin::pin!(handle.wait());
        let mut stopping = false;
        loop {
            tokio::select! {
                outcome = &mut done => return outcome,
                _ = cancelled.wait_for(|cancelled| *cancelled), if !stopping => {
                    stopping = true;
                    stop.abort();
                }
                Ok(()) = snapshots.changed() => {
                    let now = snapshots.borrow_and_update().clone();
                    self.told.further(what, now.items.read);
                    moments.push(now);
                }
            }
        }
    }

    /// Ends the line that says what is being done, and sends the last traces.
    pub fn close(mut self) {
        self.told.end();
        if let Some(warning) = self.telemetry.shutdown().spans.as_ref().and_then(crate::run::lost_spans) {
            stderr::say_line(&warning);
        }
    }
}

/// As a run of an experiment has it, whatever lists it goes over.
fn prepared(plan: Plan, folder: &TempDir) -> Plan {
    let mut plan = plan.without_growth();
    let output = folder.path().join("out");
    for sink in &mut plan.sinks {
        // The planner lets no sink write elsewhere than into the output folder.
        let inside = sink.path.strip_prefix(&plan.output).unwrap_or(&sink.path).to_owned();
        sink.path = output.join(inside);
        // Nothing leaves this machine, and an item that comes again has the name of the one before.
        (sink.bucket, sink.script) = (None, None);
        sink.files.iter_mut().for_each(|files| files.numbered = true);
    }
    plan.output = output;
    plan.limits.max_failed = None;
    for pipeline in &mut plan.pipelines {
        let limits = &mut pipeline.limits;
        (limits.max_failed, limits.first_failed, limits.max_items) = (None, 0, u64::MAX);
    }
    plan.tasks = TasksPlan::default();
    plan
}

/// Traces to this address, else as a run of the workflow would send them.
fn traces(otlp: &str, plan: &Plan) -> Result<ResolvedTraces, Failed> {
    let configured = TelemetryPlan { otlp: Some(otlp.to_owned()), ..plan.telemetry.clone() };
    TraceSettings::resolve(&configured, |name| std::env::var(name).ok())
        .map_err(|e| Failed::new(ExitCode::Usage, e))
}

fn interrupted() -> Failed {
    let what = anyhow!("interrupted: nothing is left behind, and nothing was brought to its end");
    Failed::new(ExitCode::Interrupted, what)
}

/// `doing` is a noun phrase.
fn failed(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Failed {
    let doing = doing.into();
    move |error| Failed::new(ExitCode::TryAgain, anyhow!(error).context(format!("{doing} failed")))
}

/// The first signal ends what is being done, which then cleans up; the second ends the process, should something hang. They are caught
/// from the return on.
fn listen_for_signals(cancel: CancelSignal) -> Result<(), Failed> {
    let failed = |e| Failed::new(ExitCode::TryAgain, e);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::caught().map_err(failed)?
    };
    let started = std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            for exit_now in [false, true] {
                signals.next().await;
                cancel.send_replace(true);
                if exit_now {
                    std::process::exit(i32::from(ExitCode::Interrupted.number()));
                }
            }
        });
    });
    started.map(drop).map_err(failed)
}

/// Says what is being done: on a terminal in one line that changes, in a pipe in a line for each part that begins.
struct ProgressLine {
    notices: Notices,
    is_terminal: bool,
    /// The first looks at a part say the same as its beginning.
    last: String,
}

impl ProgressLine {
    fn new(notices: Notices, surroundings: &Surroundings) -> Self {
        Self { notices, is_terminal: surroundings.interactive(), last: String::new() }
    }

    fn tell(&mut self, what: &str) {
        if self.notices.quiet || self.last == what {
            return;
        }
        what.clone_into(&mut self.last);
        match self.is_terminal {
            true => stderr::say(&format!("\r\x1b[K{what}")),
            false => stderr::say_line(what),
        }
    }

    fn further(&self, what: &str, finished: u64) {
        if self.is_terminal && !self.notices.quiet && finished > 0 {
            stderr::say(&format!("\r\x1b[K{what}, {} items finished", count(finished)));
        }
    }

    fn end(&mut self) {
        if self.is_terminal && !self.last.is_empty() {
            stderr::say("\r\x1b[K");
        }
    }
}
