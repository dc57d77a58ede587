//! The threads of the actors where they are a program's own: how many, and how eager they are for a core. Inside another service the
//! actors live on whatever runtime it has. What has to wait has threads of its own in both.

use std::io;
use std::sync::OnceLock;

use orchestra_plan::Plan;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::panics::caught;

const MOST_THREADS: usize = 1 << 15;

/// The threads of this process for what may have to wait, apart from the blocking pool of a host: that may be bounded, and work that waits for the rows of work
/// behind it would have the last thread. A host may wait for a start in that thread, too. Bound: the batches of all flows, each of which has a slot, their starts and ends,
/// and commands at work.
pub fn waiting_threads() -> Handle {
    static THREADS: OnceLock<Runtime> = OnceLock::new();
    // The clock of these tests is paused, and goes on only where nothing is done on the pool of its own runtime.
    if cfg!(test) {
        return Handle::current();
    }
    let start = || {
        // Nothing is ever awaited there.
        let mut builder = Builder::new_current_thread();
        builder.max_blocking_threads(MOST_THREADS).build().expect("without a driver nothing can fail")
    };
    THREADS.get_or_init(start).handle().clone()
}

/// The value of `work`, which blocks, from one of the [`waiting_threads`].
///
/// # Errors
/// It panics.
pub async fn join_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    waiting_threads().spawn_blocking(work).await.map_err(io::Error::other)
}

/// Starts a tokio runtime for the actors of one run, and nothing else.
///
/// Decoding, models and the journal have threads and processes of their own, and what is left is a few messages per batch: on a small
/// machine more threads only wake each other up and take cores from the rest.
///
/// Where all models run on the cores, an answer waits until a core is free instead of interrupting a decoder or a model in the middle:
/// see [`run_as_batch_work`].
pub fn actor_runtime(plan: &Plan) -> io::Result<Runtime> {
    let n_threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() / 8).clamp(1, 4);
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(n_threads).enable_all();
    if plan.is_on_cpu() {
        builder.on_thread_start(run_as_batch_work);
    }
    // It panics where a thread cannot be started.
    caught("internal error: starting threads", || builder.build()).map_err(io::Error::other)?
}

/// Gives the calling thread the policy `SCHED_BATCH`, so that it waits for its turn on a core instead of interrupting another thread. What it
/// starts from now on inherits that: threads of loaders, of the blocking pool, worker processes. One turn then deals with several answers,
/// caches stay warm, and workers have the next batches by then. For plans whose models all run on the cores: a GPU that waits would cost more
/// than the interruption of a core. A thread that has another policy than `SCHED_OTHER` keeps it.
fn run_as_batch_work() {
    // SAFETY: 0 is the calling thread, and the pointer is good for the time of the call.
    let done = unsafe {
        if libc::sched_getscheduler(0) != libc::SCHED_OTHER {
            return;
        }
        let no_priority = libc::sched_param { sched_priority: 0 };
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const no_priority)
    };
    if done != 0 {
        // It costs a few percent, and nothing else.
        tracing::debug!(error = %io::Error::last_os_error(), "threads stay as eager as any");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_inherit_the_policy_and_one_of_their_own_is_kept() {
        // SAFETY: it only asks, and 0 is the calling thread.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let set = |policy| {
            let no_priority = libc::sched_param { sched_priority: 0 };
            // SAFETY: the pointer is good for the time of the call.
            assert_eq!(unsafe { libc::sched_setscheduler(0, policy, &raw const no_priority) }, 0);
        };
        let on_a_thread_of_its_own = |asked: i32| {
            let started = move || {
                set(asked);
                run_as_batch_work();
                std::thread::spawn(policy).join().unwrap()
            };
            std::thread::spawn(started).join().unwrap()
        };
        assert_eq!(on_a_thread_of_its_own(libc::SCHED_OTHER), libc::SCHED_BATCH);
        assert_eq!(on_a_thread_of_its_own(libc::SCHED_IDLE), libc::SCHED_IDLE);
    }
}
