//! A run under the supervisor of a program: an actor of ractor, which a host links to its own tree, and starts again where it ends.

pub use ractor;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep};

use crate::environment::Orchestra;
use crate::error::StartError;
use crate::run::{Report, Run, RunError, Status, Stopper};
use crate::workflow::Workflow;

/// How long the start waits between two looks at an output folder in which the run before still ends.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs a workflow. `RunActor::spawn_linked(name, RunActor, RunArguments { .. }, supervisor)` starts it below a supervisor of the host.
///
/// It stops when the run is complete or was stopped; [`RunState::report`] of the state that the supervisor is given has its report. It fails where the run did not
/// start, or ended for another reason: the supervisor is given that reason. If it is killed, its processes are, too. Started again with the same
/// arguments, the run goes on where it stopped.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunActor;

/// What is run.
pub struct RunArguments {
    /// The way into orchestra.
    pub orchestra: Orchestra,
    /// The workflow.
    pub workflow: Workflow,
}

/// What a run is asked.
#[non_exhaustive]
pub enum RunMessage {
    /// Finish what is in flight, and end.
    Stop,
    /// Kill the processes, record what is finished, and end.
    Abort,
    /// How far it is; `None`: it has not started yet.
    Status(RpcReplyPort<Option<Status>>),
    /// Of the actor to itself.
    #[doc(hidden)]
    News(RunNews),
}

/// What the task that has the run tells the actor.
#[doc(hidden)]
pub enum RunNews {
    Started(Stopper, watch::Receiver<Status>),
    Ended(Result<Report, RunError>),
}

/// The state of a [`RunActor`].
pub struct RunState {
    /// Has the run: dropping it kills the processes.
    task: JoinHandle<()>,
    started: Option<(Stopper, watch::Receiver<Status>)>,
    order: Option<fn(&Stopper)>,
    report: Option<Report>,
}

impl RunState {
    /// Of a run that has ended.
    #[must_use]
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    fn order(&mut self, order: fn(&Stopper)) {
        match &self.started {
            Some((stopper, _)) => order(stopper),
            None => self.order = Some(order),
        }
    }
}

impl Drop for RunState {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Actor for RunActor {
    type Msg = RunMessage;
    type State = RunState;
    type Arguments = RunArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<RunMessage>,
        arguments: RunArguments,
    ) -> Result<RunState, ActorProcessingErr> {
        // The supervisor waits for this, and not for the start of the run.
        let task = tokio::spawn(carry_out(arguments, myself));
        Ok(RunState { task, started: None, order: None, report: None })
    }

    async fn handle(
        &self,
        myself: ActorRef<RunMessage>,
        message: RunMessage,
        state: &mut RunState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RunMessage::Stop => state.order(Stopper::stop),
            RunMessage::Abort => state.order(Stopper::abort),
            RunMessage::Status(reply) => {
                let status = state.started.as_ref().map(|(_, watch)| watch.borrow().clone());
                drop(reply.send(status)); // The one who asked has gone.
            }
            RunMessage::News(RunNews::Started(stopper, watch)) => {
                if let Some(order) = state.order.take() {
                    order(&stopper);
                }
                state.started = Some((stopper, watch));
            }
            RunMessage::News(RunNews::Ended(end)) => {
                let report = end?;
                // 65: some items failed, and each has its end. 130: it was asked to stop.
                if !report.is_complete() && report.exit_code() != 130 {
                    return Err(report.problems().join("; ").into());
                }
                state.report = Some(report);
                myself.stop(Some("the run has ended".to_owned()));
            }
        }
        Ok(())
    }
}

async fn carry_out(arguments: RunArguments, actor: ActorRef<RunMessage>) {
    let tell = |news| drop(actor.cast(RunMessage::News(news))); // An actor that is gone has dropped this task.
    let end = async {
        let mut run = start(arguments).await?;
        tell(RunNews::Started(run.stopper(), run.watch()));
        run.wait().await
    };
    let end = end.await;
    tell(RunNews::Ended(end));
}

/// Waits for the end of a run before, which was killed and still has the folder.
async fn start(arguments: RunArguments) -> Result<Run, StartError> {
    let RunArguments { orchestra, workflow } = arguments;
    loop {
        match orchestra.start(workflow.clone()).await {
            Err(error) if error.is_in_use_here() => sleep(LOOK_EVERY).await,
            end => return end,
        }
    }
}
