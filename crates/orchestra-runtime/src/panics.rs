//! Panics outside of actors, which no supervisor hears of: they become errors, so that nothing waits for what is lost with them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use ractor::ActorRef;
use rustix::io::Errno;
use tokio::runtime::Handle;

use crate::messages::PipelineMsg;

/// The value of `work`, or what it says when it panics. What it has worked on is in no known state then, and is not to be used any more.
pub fn caught<T>(what: &str, work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        format!("{what} panicked: {}", text.unwrap_or("it does not say why"))
    })
}

/// The first panic of a thread that serves a whole run: no pipeline that is built anew would have it back. The root looks for it, and ends the run.
#[derive(Debug, Clone, Default)]
pub struct RunBug(Arc<OnceLock<String>>);

impl RunBug {
    pub fn get(&self) -> Option<&String> {
        self.0.get()
    }

    /// Notes a panic in `work`, which is that of such a thread. Gives what it says.
    pub fn caught(&self, what: &str, work: impl FnOnce()) -> Result<(), String> {
        caught(what, work).inspect_err(|bug| {
            tracing::error!(error = %bug, "a thread of the run failed; this is a bug");
            self.0.get_or_init(|| bug.clone());
        })
    }
}

/// Whether something ended because the system starts no further thread or process for this user: that is no bug of ours.
pub fn lacks_threads(why: &str) -> bool {
    why.contains(&Errno::AGAIN.to_string())
}

/// The same, and what to do.
pub fn no_threads(why: &str) -> String {
    format!(
        "no further thread or process can be started here, raise the limit on processes (`ulimit -u`): {why}"
    )
}

/// Runs what may have to wait on these threads. A panic ends the pipeline, which is built anew from the journal.
pub fn run_blocking(
    on: &Handle,
    pipeline: &ActorRef<PipelineMsg>,
    what: &'static str,
    work: impl FnOnce() + Send + 'static,
) {
    let pipeline = pipeline.clone();
    on.spawn_blocking(move || {
        if let Err(bug) = caught(what, work) {
            // A pipeline that is gone has ended.
            drop(pipeline.cast(PipelineMsg::Bug(bug)));
        }
    });
}
