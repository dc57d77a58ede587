//! What answers requests, and can be replaced while it does: the one in use, its successor, and its end. It knows neither models nor graphs.

use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use orchestra_core::locked;
use orchestra_plan::Plan;
use orchestra_runtime::{RequestFlow, RequestFlowOptions, RequestTerms, StartFlowError};
use tokio::time::Instant;

use crate::error::{RequestError, StartError};
use crate::run::Status;

/// A tree of actors that answers requests.
pub(crate) trait Answers: Send + Sync + 'static {
    fn of(flow: RequestFlow) -> Self
    where
        Self: Sized;

    fn flow(&self) -> &RequestFlow;
}

/// What a tree of actors is started with.
pub(crate) struct PlannedFlow {
    pub plan: Plan,
    pub options: RequestFlowOptions,
}

type PlanFlow = dyn Fn() -> BoxFuture<'static, Result<PlannedFlow, StartError>> + Send + Sync;

/// The last one that is dropped kills the processes.
pub(crate) struct Served<A> {
    current: Mutex<Current<A>>,
    plan: Box<PlanFlow>,
    /// One at a time, so that there are never three.
    reloading: tokio::sync::Mutex<()>,
}

struct Current<A> {
    answers: Arc<A>,
    is_drained: bool,
}

const DRAINED: &str = "it was drained";

impl<A: Answers> Served<A> {
    pub async fn start(
        plan: impl Fn() -> BoxFuture<'static, Result<PlannedFlow, StartError>> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, StartError> {
        let PlannedFlow { plan: first, options } = plan().await?;
        let answers = Arc::new(A::of(RequestFlow::start(first, options).await?));
        let current = Mutex::new(Current { answers, is_drained: false });
        Ok(Arc::new(Self { current, plan: Box::new(plan), reloading: tokio::sync::Mutex::default() }))
    }

    pub fn current(&self) -> Arc<A> {
        Arc::clone(&locked(&self.current).answers)
    }

    /// Asks the one in use; again, where that was replaced before it took the request.
    pub async fn ask<T, F: Future<Output = Result<T, RequestError>>>(
        &self,
        ask: impl Fn(Arc<A>) -> F,
    ) -> Result<T, RequestError> {
        loop {
            let answers = {
                let current = locked(&self.current);
                if current.is_drained {
                    return Err(RequestError::Closed(DRAINED.to_owned()));
                }
                Arc::clone(&current.answers)
            };
            match ask(Arc::clone(&answers)).await {
                Err(RequestError::Closed(_)) if !Arc::ptr_eq(&answers, &self.current()) => {}
                end => return end,
            }
        }
    }

    pub async fn ready(&self) -> Result<(), RequestError> {
        self.ask(|answers| async move { Ok(answers.flow().ready().await?) }).await
    }

    pub fn status(&self) -> Status {
        Status::of(&self.current().flow().snapshots().borrow())
    }

    /// Starts a successor, which takes all requests from then on, and ends the one in use when its last request has its end. Where a device has no memory
    /// for both, the one in use gets the workers of the successor, if these can read its rows.
    pub async fn reload(&self) -> Result<(), StartError> {
        let _turn = self.reloading.lock().await;
        let PlannedFlow { plan, options } = (self.plan)().await?;
        let successor = match RequestFlow::start(plan.clone(), options.clone()).await {
            Err(StartFlowError::NoMemory(why)) => {
                let current = self.current();
                if !current.flow().plan().differs_by_models_alone(&plan) {
                    let why = format!(
                        "{why}; there is no memory for both, and workers cannot be replaced one by one, since more than files of models has changed"
                    );
                    return Err(StartError::workers(why));
                }
                tracing::info!(%why, "there is no memory for both: workers are replaced one by one");
                return current
                    .flow()
                    .replace_workers(options.run.engines)
                    .await
                    .map_err(StartError::workers);
            }
            started => Arc::new(A::of(started?)),
        };
        let before = {
            let mut current = locked(&self.current);
            if current.is_drained {
                return Err(StartError::workers(DRAINED));
            }
            std::mem::replace(&mut current.answers, successor)
        };
        end(before.flow(), "it was replaced").await;
        Ok(())
    }

    pub async fn drain(&self) {
        locked(&self.current).is_drained = true;
        // What is being started now is not put in place any more.
        let _turn = self.reloading.lock().await;
        end(self.current().flow(), DRAINED).await;
    }
}

async fn end(flow: &RequestFlow, why: &str) {
    flow.emptied().await;
    flow.end(why);
    flow.ended().await;
}

/// The tree of actors in use, for tests of orchestra.
#[doc(hidden)]
pub struct FlowTree(pub(crate) Arc<dyn Answers>);

impl Deref for FlowTree {
    type Target = RequestFlow;

    fn deref(&self) -> &RequestFlow {
        self.0.flow()
    }
}

/// How a request is taken in, as its caller says it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms {
    pub within: Option<Duration>,
    pub priority: u8,
    pub waits: bool,
}

impl Terms {
    pub fn begin(self) -> RequestTerms {
        let Self { within, priority, waits } = self;
        // One beyond the clock is none.
        let deadline = within.and_then(|within| Instant::now().checked_add(within));
        RequestTerms { deadline, priority, waits }
    }
}

/// The settings of a request that is being made.
macro_rules! request_settings {
    () => {
        /// Without an answer in this time, it ends with [`RequestError::Deadline`](crate::RequestError::Deadline), and is withdrawn.
        pub fn deadline(mut self, within: std::time::Duration) -> Self {
            self.terms.within = Some(within);
            self
        }

        /// The highest goes first of those that wait; 0 where nothing is said.
        pub fn priority(mut self, priority: u8) -> Self {
            self.terms.priority = priority;
            self
        }

        /// Where as many requests are without an answer as may be, it waits for its turn, instead of ending with
        /// [`RequestError::Overloaded`](crate::RequestError::Overloaded).
        pub fn wait(mut self) -> Self {
            self.terms.waits = true;
            self
        }
    };
}
pub(crate) use request_settings;

/// What a model and a flow have alike: the state of what they serve.
macro_rules! served_methods {
    () => {
        /// Waits until it takes requests. While a part of it is started anew, requests wait.
        ///
        /// # Errors
        /// [`RequestError::Closed`].
        pub async fn ready(&self) -> Result<(), RequestError> {
            self.0.ready().await
        }

        /// How many of its items have ended, and how: requests of a flow, rows of a model.
        #[must_use]
        pub fn status(&self) -> Status {
            self.0.status()
        }

        /// Reads its file again and starts it anew beside the one in use. The new one takes all requests from then on, and the old one ends with its last
        /// request. Where a device has no memory for both, and files of models alone have changed, workers are replaced one by one. Returns when the last
        /// of the old ones has ended.
        ///
        /// # Errors
        /// The new one does not start. Then the old one goes on.
        pub async fn reload(&self) -> Result<(), StartError> {
            self.0.reload().await
        }

        /// Takes no more requests, answers those that it has, and ends its processes.
        pub async fn drain(&self) {
            self.0.drain().await;
        }

        /// For tests of orchestra.
        #[doc(hidden)]
        #[must_use]
        pub fn tree(&self) -> FlowTree {
            FlowTree(self.0.current())
        }
    };
}
pub(crate) use served_methods;
