//! The handle of a flow in memory: starts its actors, takes requests to them, and ends them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::BoxFuture;
use orchestra_core::data::{Column, Value, with_values};
use orchestra_core::{Failure, SourceId, locked};
use orchestra_plan::Plan;
use orchestra_worker::loader::events::LARGEST_REQUEST;
use ractor::concurrency::JoinHandle;
use ractor::{Actor, SpawnErr};
use thiserror::Error;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::admission::Admission;
use super::admitted::{Admitted, records};
use super::endpoints::RequestEndpoints;
use super::waiting::{ReplyRecord, Requests};
use crate::account::meter::{Meter, RunObserver};
use crate::account::status::RunStatus;
use crate::context::{RunContext, RunOptions};
use crate::fleet::device_watch::DeviceWatcher;
use crate::fleet::launcher::Engines;
use crate::fleet::live_workers::LiveWorker;
use crate::flow::chain::Chain;
use crate::flow::ticket::{RequestContent, RequestPayload};
use crate::messages::RootMsg;
use crate::root::{RootArgs, RunRoot};
use crate::run_end::EndReporter;
use crate::start::AbortOnDrop;
use orchestra_core::shapes::RequestItem;

#[derive(Clone)]
pub struct RequestFlowOptions {
    pub run: RunOptions,
    /// Requests that may be without an end at once, at least 1.
    pub most_requests: usize,
}

/// Why a flow did not start.
#[derive(Debug, Error)]
pub enum StartFlowError {
    #[error("no source of the plan takes requests: one of `kind = \"request\"` does")]
    NotAsked,
    #[error("the plan has {0} sources, and a flow has one")]
    Sources(usize),
    #[error(
        "nothing is said to run the batches of stage `{0}`; `RunOptions::engines` needs an engine for each batch stage of the plan"
    )]
    NoEngine(String),
    /// No worker could be started, or there is no memory for its batches.
    #[error("{0}")]
    NoDevice(String),
    /// The same, because a model does not fit into the memory of a device.
    #[error("{0}")]
    NoMemory(String),
    #[error("the flow cannot be started: {0}")]
    Io(#[from] io::Error),
    #[error("the flow cannot be started: {0}; this is a bug")]
    Actors(#[from] SpawnErr),
}

/// Why a request has no records.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// It brings something else than the source takes. The text says what was found and what is expected. Nothing ran.
    #[error("{0}")]
    Input(String),
    /// A stage refuses the item, or it kills processes.
    #[error("item {row} failed at stage `{}`: {}", .failure.stage, .failure.error)]
    Failed {
        /// Its place in the request.
        row: usize,
        failure: Failure,
    },
    /// As many requests wait as may wait.
    #[error("{0} requests wait already")]
    Overloaded(usize),
    #[error("there was no answer in time")]
    Deadline,
    #[error("the flow has ended: {0}")]
    Over(String),
}

#[derive(Debug, Clone)]
pub struct Request {
    /// What failures and logs call it.
    pub name: String,
    pub content: RequestContent,
}

/// How a request is taken in.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestTerms {
    /// When it is withdrawn.
    pub deadline: Option<Instant>,
    /// The highest goes first of those that wait for a place or for a row.
    pub priority: u8,
    /// It waits for a place, instead of being refused.
    pub waits: bool,
}

/// A graph that answers requests. Dropping it kills its processes.
pub struct RequestFlow {
    pub(super) requests: Arc<Requests>,
    /// Held while a row is claimed: `SlotPool::claim_async` allows one waiter.
    pub(super) turn: Arc<Admission>,
    root: AbortOnDrop,
    over: JoinHandle<()>,
    snapshots: watch::Receiver<RunStatus>,
    _watcher: DeviceWatcher,
    _tracer_hears_of_the_end: EndReporter,
}

impl RequestFlow {
    /// Starts the graph, and waits until each of its batch stages has a worker. Must be called within a tokio runtime, on which the flow lives.
    ///
    /// Boxed, because an `async fn` is compiled anew in every crate that awaits it, and with it all actors.
    ///
    /// # Errors
    /// See [`StartFlowError`]. Its workers are told to end by then.
    pub fn start(
        plan: Plan,
        options: RequestFlowOptions,
    ) -> BoxFuture<'static, Result<Self, StartFlowError>> {
        Box::pin(Self::start_tree(plan, options))
    }

    async fn start_tree(mut plan: Plan, options: RequestFlowOptions) -> Result<Self, StartFlowError> {
        let RequestFlowOptions { run, most_requests } = options;
        plan.asked().ok_or(StartFlowError::NotAsked)?;
        if plan.sources.len() > 1 {
            return Err(StartFlowError::Sources(plan.sources.len()));
        }
        if let Some((stage, _)) = plan.batch_stages().find(|(id, _)| !run.engines.contains_key(id)) {
            return Err(StartFlowError::NoEngine(plan.stages[stage.index()].name.clone()));
        }
        // A failure is an answer, however many there are.
        let of_pipelines = plan.pipelines.iter_mut().map(|pipeline| &mut pipeline.limits);
        for limits in of_pipelines.chain([&mut plan.limits]) {
            (limits.first_failed, limits.max_failed) = (0, None);
        }
        let run_id = format!("flow-{}", std::process::id());
        let context = Arc::new(RunContext::new(Arc::new(plan), run_id, run));
        let end = EndReporter::of(&context);
        let requests = Arc::new(Requests::new(&context, SourceId(0), most_requests));
        let (publish, snapshots) = watch::channel(RunStatus::now(&context));
        let (done, _) = oneshot::channel();
        let args = RootArgs {
            context: Arc::clone(&context),
            endpoints: Arc::new(RequestEndpoints(Arc::clone(&requests))),
            tasks: None,
            publish,
            done,
        };
        let (root, over) = Actor::spawn(None, RunRoot, args).await?;
        let root = AbortOnDrop(root);
        let watcher = DeviceWatcher::start(&context)?;
        let flow = Self {
            requests,
            turn: Admission::new(1),
            root,
            over,
            snapshots,
            _watcher: watcher,
            _tracer_hears_of_the_end: end,
        };
        match flow.requests.started().await {
            Ok(()) => Ok(flow),
            Err(why) => {
                let lacks_memory = flow.requests.context.lacks_memory.load(Ordering::Relaxed);
                flow.close().await;
                Err(if lacks_memory { StartFlowError::NoMemory(why) } else { StartFlowError::NoDevice(why) })
            }
        }
    }

    pub fn plan(&self) -> &Plan {
        &self.requests.context.plan
    }

    /// Snapshots, a few per second.
    pub fn snapshots(&self) -> watch::Receiver<RunStatus> {
        self.snapshots.clone()
    }

    /// The counters of the flow, also after its end.
    pub fn meter(&self) -> Meter {
        Meter::of(&self.requests.context)
    }

    /// A look at what is left of the flow, also after its end.
    pub fn observer(&self) -> RunObserver {
        RunObserver::of(&self.requests.context)
    }

    pub fn workers(&self) -> Vec<LiveWorker> {
        self.requests.context.stats.workers.all()
    }

    /// Items that have no end yet.
    pub fn waiting(&self) -> usize {
        self.requests.n_waiting()
    }

    /// Takes one item through the graph, and gives its records: in the order of the sinks, and of one sink in that in which they were made. May be
    /// called from many tasks at once. Dropping the future withdraws what is not under way; what is, is finished, and its records are discarded.
    pub async fn process(
        &self,
        request: &Request,
        terms: RequestTerms,
    ) -> Result<Vec<ReplyRecord>, ProcessError> {
        self.check(&request.content)?;
        let admitted = self.admit(terms).await?;
        match &request.content {
            RequestContent::File(bytes) => {
                let content = || Ok(RequestPayload::Records(Some(RequestContent::File(bytes.clone()))));
                admitted.in_time(admitted.queued(&request.name, content)).await.map(records)
            }
            RequestContent::Row(row) => {
                let show = |show: &mut dyn FnMut(&[Value<'_>])| with_values(row, show);
                admitted.in_time(admitted.row(&request.name, &show)).await
            }
        }
    }

    /// A place for a request, which may have several items.
    pub async fn admit(&self, terms: RequestTerms) -> Result<Admitted<'_>, ProcessError> {
        let admission = &self.requests.admission;
        let place = match (admission.try_admit(), terms.deadline) {
            (Some(place), _) => place,
            (None, _) if !terms.waits => return Err(ProcessError::Overloaded(admission.most())),
            (None, None) => admission.admit(terms.priority).await,
            (None, Some(deadline)) => {
                let place = timeout_at(deadline, admission.admit(terms.priority)).await;
                place.map_err(|_| ProcessError::Deadline)?
            }
        };
        Ok(Admitted { flow: self, place: Arc::new(place), terms })
    }

    /// Waits until it takes items: while a pipeline is built anew, it takes none.
    pub async fn ready(&self) -> Result<(), ProcessError> {
        self.chain().await.map(drop)
    }

    /// Waits until no request is without its end.
    pub async fn emptied(&self) {
        self.requests.admission.emptied().await;
    }

    pub(super) async fn chain(&self) -> Result<Arc<Chain>, ProcessError> {
        self.requests.chain().await.ok_or_else(|| ProcessError::Over(self.requests.why_over()))
    }

    /// Whether it is what the source takes.
    fn check(&self, content: &RequestContent) -> Result<(), ProcessError> {
        let source = &self.plan().sources[self.requests.source.index()];
        let (name, gives) = (&source.name, &source.gives);
        match (source.request, content) {
            (Some(RequestItem::File), RequestContent::File(bytes)) if bytes.len() <= LARGEST_REQUEST => {
                Ok(())
            }
            (Some(RequestItem::File), RequestContent::File(bytes)) => Err(ProcessError::Input(format!(
                "the file has {} bytes, and source `{name}` takes {LARGEST_REQUEST} at most",
                bytes.len()
            ))),
            (Some(RequestItem::Row), RequestContent::Row(row)) => {
                let wrong = gives.0.iter().zip(row).find(|(column, value)| !column.ty.fits(value));
                match wrong {
                    None if row.len() == gives.0.len() => Ok(()),
                    None => Err(ProcessError::Input(format!(
                        "there are {} columns, and source `{name}` takes {gives}",
                        row.len()
                    ))),
                    Some((Column { name: column, ty }, value)) => {
                        let row =
                            ty.required().tensor().and_then(|spec| Some((spec.dtype, spec.fixed_row()?)));
                        let takes = row.map_or(ty.to_string(), |(dtype, row)| format!("{dtype}{row:?}"));
                        let found = value.type_text();
                        let what = format!("column `{column}` is {found}, and source `{name}` takes {takes}");
                        Err(ProcessError::Input(what))
                    }
                }
            }
            (_, RequestContent::File(_)) => {
                Err(ProcessError::Input(format!("source `{name}` takes columns, and no file: {gives}")))
            }
            (_, RequestContent::Row(_)) => {
                Err(ProcessError::Input(format!("source `{name}` takes a file, and no columns")))
            }
        }
    }

    /// Gives each batch stage workers of these engines, one place after the other, while the others serve: for a device that has no memory for both. Where one
    /// cannot be loaded, all are the old ones again.
    ///
    /// # Errors
    /// Why a new one cannot be loaded.
    pub async fn replace_workers(&self, engines: Engines) -> Result<(), String> {
        let before = locked(&self.requests.context.engines).clone();
        let end = self.order_workers(engines).await;
        if end.is_err() {
            // Other devices may have the new ones.
            self.order_workers(before).await?;
        }
        end
    }

    async fn order_workers(&self, engines: Engines) -> Result<(), String> {
        let (ended, mut ends) = unbounded_channel();
        drop(self.root.0.cast(RootMsg::ReplaceWorkers(engines, ended))); // A root that is gone has ended.
        let mut all = Ok(());
        while let Some(end) = ends.recv().await {
            all = all.and(end);
        }
        all
    }

    /// Kills the workers. Requests without an answer, and all later ones, get [`ProcessError::Over`] with this reason.
    pub fn end(&self, why: &str) {
        self.requests.over(why);
        drop(self.root.0.cast(RootMsg::Abort)); // A root that is gone has ended.
    }

    /// Waits until all processes have ended.
    pub async fn ended(&self) {
        let mut snapshots = self.snapshots.clone();
        // The root publishes them to its end.
        while snapshots.changed().await.is_ok() {}
    }

    /// Kills the workers and returns when all processes have ended.
    pub async fn close(self) {
        let Self { requests, root, over, .. } = self;
        requests.over("it was closed");
        drop(root);
        // An error means that the task was cancelled with its runtime, which ends the workers as well.
        let _ = over.await;
    }
}
