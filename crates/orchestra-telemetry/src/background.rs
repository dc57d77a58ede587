//! A thread with a runtime of its own that sends or serves, and its end, which waits no longer than it was told.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::TelemetryError;

/// How much nicer threads are that explain the run: on busy cores they get a thirtieth of what a thread of the run gets, on idle ones all they want.
const NICE: i32 = 15;

/// Puts the calling thread behind the threads of the run. A thread that did this must share no lock with one that did not: it may stand
/// still for long while it holds it.
pub(crate) fn step_back() {
    // A system that refuses runs it like any other thread. On Linux a niceness is a thread's own.
    let _ = rustix::process::nice(NICE);
}

/// A running thread. Dropping it ends its work at the next await.
#[derive(Debug)]
pub(crate) struct Background {
    /// Turns true when the work is to come to its end.
    stop: watch::Sender<bool>,
    /// Told or dropped when the owner waits no longer.
    give_up: watch::Sender<()>,
    done: Receiver<()>,
}

impl Background {
    /// `prepare` is called here and now, inside the runtime; what it gives is the work of the thread.
    pub(crate) fn start<W, F>(
        name: &str,
        prepare: impl FnOnce(watch::Receiver<bool>) -> Result<W, TelemetryError>,
    ) -> Result<Self, TelemetryError>
    where
        W: FnOnce() -> F + Send + 'static,
        F: Future<Output = ()>,
    {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(TelemetryError::Thread)?;
        let (stop, stopping) = watch::channel(false);
        let (give_up, mut given_up) = watch::channel(());
        let (alive, done) = channel();
        let inside = runtime.enter();
        let work = prepare(stopping)?;
        drop(inside);
        let thread = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = work() => {}
                    _ = given_up.changed() => {}
                }
            });
            // A name that is still being looked up must not hold the end.
            runtime.shutdown_background();
            drop::<std::sync::mpsc::Sender<()>>(alive);
        };
        thread::Builder::new().name(name.to_owned()).spawn(thread).map_err(TelemetryError::Thread)?;
        Ok(Self { stop, give_up, done })
    }

    /// Tells the work to come to its end. Waits for nothing.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits for the end of the work, which is ended when the time is up. `false`: it was.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        // Nothing is ever sent on it: either time runs out, or the thread has ended.
        let in_time = self.done.recv_timeout(patience) != Err(RecvTimeoutError::Timeout);
        self.give_up.send_replace(());
        in_time
    }
}
