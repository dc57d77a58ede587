//! A workflow at work: its start, in both parts where it has two, what it does meanwhile, and its end.

use std::sync::{Arc, Mutex};

use orchestra_core::locked;
use orchestra_launch::StartOptions;
use orchestra_runtime::{RunHandle, RunOutcome, RunStatus, StopHandle};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::environment::{Orchestra, blocking};
use crate::error::{StartError, for_programs};
use crate::workflow::Workflow;

/// A run at work. Dropping it aborts the run: its processes are killed, what is finished stays, and another start goes on from there.
pub struct Run {
    stop: Stopper,
    status: watch::Receiver<Status>,
    /// `None` once it has ended.
    driver: Option<JoinHandle<Result<Report, RunError>>>,
    report: Option<Report>,
}

/// Why a run has no report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// It, or the second of its parts, did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It was aborted together with its executor.
    #[error("the run was aborted: its executor has ended")]
    Aborted,
}

/// Stops a run from elsewhere. Cheap to clone; dropping it stops nothing.
#[derive(Clone)]
pub struct Stopper(Arc<Mutex<StopOrders>>);

#[derive(Default)]
struct StopOrders {
    handle: Option<StopHandle>,
    asked: Option<StopOrder>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StopOrder {
    Interrupt,
    Abort,
}

impl Stopper {
    /// Finishes what is in flight, and ends. Another start goes on from there.
    pub fn stop(&self) {
        self.order(StopOrder::Interrupt);
    }

    /// Kills the processes, records what is finished, and ends.
    pub fn abort(&self) {
        self.order(StopOrder::Abort);
    }

    fn order(&self, order: StopOrder) {
        let mut state = locked(&self.0);
        state.asked = state.asked.max(Some(order));
        if let Some(handle) = &state.handle {
            obey(handle, order);
        }
    }

    /// The part that runs now. An order that came before holds for it, too.
    fn attach(&self, handle: StopHandle) {
        let mut state = locked(&self.0);
        if let Some(order) = state.asked {
            obey(&handle, order);
        }
        state.handle = Some(handle);
    }
}

fn obey(handle: &StopHandle, order: StopOrder) {
    match order {
        StopOrder::Interrupt => handle.interrupt(),
        StopOrder::Abort => handle.abort(),
    }
}

impl Orchestra {
    /// Runs a workflow to its end.
    ///
    /// # Errors
    /// It cannot be started, or its end cannot be written. Items that failed are no error: the report counts them.
    pub async fn run(&self, workflow: Workflow) -> Result<Report, RunError> {
        self.start(workflow).await?.wait().await
    }

    /// Starts a workflow, or goes on where an earlier start of it has stopped.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing runs then.
    pub async fn start(&self, workflow: Workflow) -> Result<Run, StartError> {
        Run::start(self.clone(), workflow).await
    }
}

impl Run {
    pub(crate) async fn start(orchestra: Orchestra, workflow: Workflow) -> Result<Self, StartError> {
        let first = start_part(&orchestra, &workflow, None).await?;
        let stop = Stopper(Arc::default());
        stop.attach(first.stop_handle());
        let (publish, status) = watch::channel(Status::of(&first.snapshots().borrow()));
        let driver = drive(orchestra, workflow, first, stop.clone(), publish);
        Ok(Self { stop, status, driver: Some(tokio::spawn(driver)), report: None })
    }

    /// How far it is.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// How far it is, a few times a second.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// A way to stop it.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stop.clone()
    }

    /// Waits for its end. Dropping the future changes nothing; called again, it gives the same report.
    ///
    /// # Errors
    /// The second part of the run cannot be started, or the executor ends.
    pub async fn wait(&mut self) -> Result<Report, RunError> {
        let Some(driver) = &mut self.driver else { return self.report.clone().ok_or(RunError::Aborted) };
        let end = driver.await.unwrap_or(Err(RunError::Aborted));
        self.driver = None;
        self.report = end.as_ref().ok().cloned();
        end
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // The handle of the part that runs is dropped with the task, which aborts it.
        self.driver.iter().for_each(JoinHandle::abort);
    }
}

async fn start_part(
    orchestra: &Orchestra,
    workflow: &Workflow,
    first_part: Option<Arc<RunOutcome>>,
) -> Result<RunHandle, StartError> {
    let plan = {
        let (orchestra, workflow) = (orchestra.clone(), workflow.clone());
        let tasks_done = first_part.as_ref().map(|outcome| outcome.report.tasks_done());
        blocking(move || orchestra.plan(&workflow, tasks_done)).await?
    };
    let options = StartOptions { first_part, ..orchestra.start_options() };
    Ok(orchestra_launch::start(plan, options).await?)
}

/// Both parts of a run, or its only one.
async fn drive(
    orchestra: Orchestra,
    workflow: Workflow,
    mut part: RunHandle,
    stop: Stopper,
    publish: watch::Sender<Status>,
) -> Result<Report, RunError> {
    loop {
        let mut snapshots = part.snapshots();
        let forward = async {
            while snapshots.changed().await.is_ok() {
                publish.send_replace(Status::of(&snapshots.borrow_and_update()));
            }
        };
        let (outcome, ()) = futures::join!(part.wait(), forward);
        if !outcome.goes_on {
            publish.send_replace(Status::of(&outcome.report));
            return Ok(Report::of(outcome));
        }
        part = start_part(&orchestra, &workflow, Some(Arc::new(outcome))).await?;
        stop.attach(part.stop_handle());
    }
}

/// How many items there are, and how they have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ItemTotals {
    /// Listed so far.
    pub listed: u64,
    /// Their records are in all sinks.
    pub done: u64,
    /// Without a result: `failures.jsonl` says why.
    pub failed: u64,
    /// Of `done` and `failed`: by earlier starts.
    pub resumed: u64,
}

/// A run, a model or a flow at some moment. Clones share it.
#[derive(Debug, Clone)]
pub struct Status(Arc<RunStatus>);

impl Status {
    pub(crate) fn of(status: &RunStatus) -> Self {
        Self(Arc::new(status.clone()))
    }

    /// Its items; of a model or a flow, requests.
    #[must_use]
    pub fn items(&self) -> ItemTotals {
        let counts = &self.0.items;
        ItemTotals {
            listed: counts.listed,
            done: counts.done,
            failed: counts.failed,
            resumed: counts.resumed,
        }
    }

    /// ItemTotals per second since the start.
    #[must_use]
    pub fn items_per_second(&self) -> f64 {
        self.0.items_per_second
    }

    /// Everything that is known, as `run.json` has it.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::to_value(&*self.0).expect("its keys are texts, and its numbers finite or null")
    }
}

/// The end of a run. Clones share it.
#[derive(Debug, Clone)]
pub struct Report(Arc<RunOutcome>);

impl Report {
    fn of(mut outcome: RunOutcome) -> Self {
        outcome.problems.iter_mut().for_each(|problem| *problem = for_programs(problem));
        Self(Arc::new(outcome))
    }

    /// Its items.
    #[must_use]
    pub fn items(&self) -> ItemTotals {
        self.status().items()
    }

    /// All of it, as `run.json` has it.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.0.report)
    }

    /// Every item and task has its end.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.0.report.complete
    }

    /// That of the command: 0 all done, 65 some failed, 69 device or runtime missing, 70 a bug, 75 stopped, 78 the results may be wrong, 130 interrupted.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        self.0.exit_code
    }

    /// What has stopped it, where it is not complete.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.0.problems
    }
}
