//! Carries a prepared run out, from start to end, on threads of its own. It looks from outside, and changes nothing inside.

use std::time::Duration;

use orchestra_plan::Plan;
use orchestra_runtime::{Prepared, Remains, RunHandle, RunOptions, RunOutcome, Snapshot};
use tokio::runtime::Runtime;

use crate::cancel::Cancel;
use crate::error::TrialError;

/// How long threads may take to end. One that hangs (a dead network drive) must not hold the trial.
const LINGER: Duration = Duration::from_secs(1);

/// A run that came to an end, good or bad.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub outcome: RunOutcome,
    /// What is still there of it.
    pub remains: Remains,
}

/// The threads of a run. Dropping them ends them.
#[derive(Debug)]
pub struct Threads(Option<Runtime>);

impl Threads {
    /// Starts them for a run of this plan, as `orchestra run` does: what is measured is to be what a user sees.
    ///
    /// # Errors
    /// The system allows no more.
    pub fn start(plan: &Plan) -> Result<Self, TrialError> {
        let runtime = orchestra_runtime::actor_runtime(plan);
        Ok(Self(Some(runtime.map_err(TrialError::io("starting the threads of a run"))?)))
    }

    /// Runs to the end, whatever that is, and shows `look` a snapshot a few times a second. Blocks; never call it within a tokio runtime.
    ///
    /// # Errors
    /// The run did not start, or was cancelled.
    pub fn run(
        &self,
        prepared: Prepared,
        options: RunOptions,
        cancel: &Cancel,
        look: &mut dyn FnMut(&Snapshot),
    ) -> Result<Ended, TrialError> {
        let runtime = self.0.as_ref().expect("it is only taken when this is dropped");
        let ended = runtime.block_on(async {
            let handle = prepared.start(options).await?;
            let remains = handle.remains();
            Ok::<_, TrialError>(Ended { outcome: follow(handle, cancel, look).await, remains })
        })?;
        if cancel.is_cancelled() { Err(TrialError::Cancelled) } else { Ok(ended) }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_timeout(LINGER);
        }
    }
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
