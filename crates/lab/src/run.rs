//! One run of the workflow over lists of the experiment into a folder of the experiment. It looks at the run from outside and changes
//! nothing that a run decides by.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use orchestra_core::restart::RestartPolicy;
use orchestra_core::{SourceId, StageId};
use orchestra_plan::{Origin, Plan, TasksPlan};
use orchestra_runtime::{
    DeviceOptions, Earlier, Engines, ProcessLauncher, Remains, RunHandle, RunOptions, RunOutcome, RunReport,
    Snapshot, Timeouts,
};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::error::LabError;
use crate::item_lists::Lists;

/// How long threads of an ended run may take to end: one that hangs (a dead network drive) must not hold the experiment.
const LINGER: Duration = Duration::from_secs(1);

/// Ends an experiment from another thread. All clones are one.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<watch::Sender<bool>>);

pub type EnginesOf = Arc<dyn Fn(&Plan, ProcessLauncher) -> Engines + Send + Sync>;

/// What an experiment needs besides the plan.
#[derive(Clone)]
pub struct Tools {
    pub launcher: ProcessLauncher,
    /// What runs the batches of a plan, in workers that the launcher starts.
    pub engines: EnginesOf,
    pub cancel: Cancel,
    /// Where runs write: a folder in it is made, and removed in the end. `None`: where temporary files go.
    pub scratch: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Listing,
    /// A short look at how fast the workflow is.
    FirstLook,
    Chosen {
        items: u64,
        /// That the sources name.
        of: u64,
    },
    Round {
        /// From 1.
        round: usize,
        of: usize,
        part: &'static str,
        /// Items with an end so far, where it is a run.
        finished: u64,
    },
}

pub type Tell<'a> = &'a mut dyn FnMut(Progress);

/// A run that came to its end.
#[derive(Debug)]
pub struct Ran {
    /// As in `run.json`.
    pub report: RunReport,
    /// What is still there of it.
    pub remains: Remains,
}

impl Cancel {
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns once `cancel` was called.
    pub async fn cancelled(&self) {
        // No error is possible: `self` is a sender.
        drop(self.0.subscribe().wait_for(|cancelled| *cancelled).await);
    }

    pub(crate) fn check(&self) -> Result<(), LabError> {
        if self.is_cancelled() { Err(LabError::Cancelled) } else { Ok(()) }
    }
}

impl Tools {
    pub(crate) fn engines(&self, plan: &Plan) -> Engines {
        (self.engines)(plan, self.launcher.clone())
    }

    pub(crate) fn run_options(&self, plan: &Plan) -> RunOptions {
        RunOptions {
            engines: self.engines(plan),
            engine: None, // Its runs begin in folders of their own.
            loaders: Some(self.launcher.clone()),
            keepers: None,
            tasks_only: false,
            first_part: None,
            timeouts: Timeouts::default(),
            restart: RestartPolicy::default(),
            trace: None,
            events: None,
            devices: DeviceOptions::default(),
        }
    }

    pub(crate) fn scratch_folder(&self, prefix: &str) -> Result<TempDir, LabError> {
        let parent = self.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let doing = format!("making a folder in `{}`", parent.display());
        tempfile::Builder::new().prefix(prefix).tempdir_in(parent).map_err(LabError::io(doing))
    }
}

/// The plan over these lists into `output`, to the end whatever fails.
pub(crate) fn plan_for(plan: &Plan, lists: &Lists, output: &Path) -> Plan {
    let mut plan = plan.clone().without_growth();
    for sink in &mut plan.sinks {
        // The planner lets no sink write elsewhere than into the output folder.
        let inside = sink.path.strip_prefix(&plan.output).unwrap_or(&sink.path).to_owned();
        sink.path = output.join(inside);
    }
    for (source, list) in plan.sources.iter_mut().zip(&lists.0) {
        source.listing = list.listing.clone();
        // The list names items, and no files any more.
        source.expand = None;
    }
    plan.output = output.to_owned();
    plan.limits.max_failed = None;
    for pipeline in &mut plan.pipelines {
        (pipeline.limits.max_failed, pipeline.limits.first_failed) = (None, 0);
    }
    plan.tasks = TasksPlan::default();
    plan
}

/// The source whose items reach a stage.
pub(crate) fn source_of(plan: &Plan, stage: StageId) -> Option<SourceId> {
    plan.ancestors(Origin::Stage(stage)).into_iter().find_map(|origin| match origin {
        Origin::Source(source) => Some(source),
        Origin::Stage(_) => None,
    })
}

/// Runs `plan` from the start, and discards first what lies in its output folder. `look` sees a snapshot a few times a second. `name` is
/// for errors. Blocks; must not be called within a tokio runtime.
pub(crate) fn run(
    plan: Plan,
    options: RunOptions,
    cancel: &Cancel,
    name: &'static str,
    look: &mut dyn FnMut(&Snapshot),
) -> Result<Ran, LabError> {
    let prepared = orchestra_runtime::prepare(Arc::new(plan), Earlier::Discard)?;
    let runtime = orchestra_runtime::actor_runtime(&prepared.plan)
        .map_err(LabError::io("starting the threads of a run"))?;
    let ended = runtime.block_on(async {
        let handle = prepared.start(options).await?;
        let remains = handle.remains();
        Ok::<_, LabError>((follow(handle, cancel, look).await, remains))
    });
    runtime.shutdown_timeout(LINGER);
    let (RunOutcome { report, exit_code, problems, .. }, remains) = ended?;
    cancel.check()?;
    if !matches!(exit_code, 0 | 65) {
        return Err(LabError::Run { run: name, exit_code, problems });
    }
    Ok(Ran { report, remains })
}

async fn follow(handle: RunHandle, cancel: &Cancel, look: &mut dyn FnMut(&Snapshot)) -> RunOutcome {
    let stop = handle.stop_handle();
    let mut snapshots = handle.snapshots();
    let mut done = std::pin::pin!(handle.wait());
    let mut stopping = false;
    loop {
        tokio::select! {
            outcome = &mut done => return outcome,
            () = cancel.cancelled(), if !stopping => {
                stopping = true;
                stop.abort();
            }
            Ok(()) = snapshots.changed() => look(&snapshots.borrow_and_update()),
        }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listing => f.write_str("listing the items"),
            Self::FirstLook => f.write_str("a first look at how long it takes"),
            Self::Chosen { items, of } if items == of => write!(f, "running with all {of} items"),
            Self::Chosen { items, of } if items < of => write!(f, "running with {items} of {of} items"),
            Self::Chosen { items, of } => {
                write!(f, "running with {items} items: the {of} of the list, again and again")
            }
            Self::Round { round, of, part, finished: 0 } => write!(f, "round {round} of {of}: {part}"),
            Self::Round { round, of, part, finished } => {
                write!(f, "round {round} of {of}: {part}, {finished} items finished")
            }
        }
    }
}
