//! What answers requests, and can be replaced while it does: the one in use, its successor, and its end. It knows neither models nor graphs.

use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use orchestra_core::locked;
use orchestra_runtime::{RequestFlow, RequestTerms};
use tokio::time::Instant;

use crate::error::{RequestError, StartError};
use crate::run::Status;

/// A tree of actors that answers requests.
pub(crate) trait Answers: Send + Sync + 'static {
    fn flow(&self) -> &RequestFlow;
}

type StartServed<A> = dyn Fn() -> BoxFuture<'static, Result<A, StartError>> + Send + Sync;

/// The last one that is dropped kills the processes.
pub(crate) struct Served<A> {
    current: Mutex<Current<A>>,
    start: Box<StartServed<A>>,
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
        start: impl Fn() -> BoxFuture<'static, Result<A, StartError>> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, StartError> {
        let answers = Arc::new(start().await?);
        let current = Mutex::new(Current { answers, is_drained: false });
        Ok(Arc::new(Self { current, start: Box::new(start), reloading: tokio::sync::Mutex::default() }))
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

    /// Starts a successor, which takes all requests from then on, and ends the one in use when its last request has its end.
    pub async fn reload(&self) -> Result<(), StartError> {
        let _turn = self.reloading.lock().await;
        let successor = Arc::new((self.start)().await?);
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
        RequestTerms { deadline: within.map(|within| Instant::now() + within), priority, waits }
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
        /// request. Returns when that has ended.
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
