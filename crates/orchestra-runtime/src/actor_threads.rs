//! The threads of the actors where they are a program's own: how many, and how eager they are for a core. Inside another service the
//! actors live on whatever runtime it has.

use std::io;

use orchestra_plan::Plan;
use tokio::runtime::{Builder, Runtime};

/// Starts a tokio runtime for the actors of one run, and nothing else.
///
/// Decoding, models and the journal have threads and processes of their own, and what is left is a few messages per batch: on a small
/// machine more threads only wake each other up and take cores from the rest.
///
/// Where all models run on the cores, an answer waits until a core is free instead of interrupting a decoder or a model in the middle
/// (`SCHED_BATCH`): then one turn deals with several answers, and caches stay warm. Workers have the next batches by then. Worker
/// processes are started from these threads and are scheduled as they are, which suits them as well. A GPU that waits would cost more
/// than the interruption of a core, so with a GPU in the plan threads are as eager as any.
///
/// # Errors
/// The system allows no more threads.
pub fn actor_runtime(plan: &Plan) -> io::Result<Runtime> {
    let n_threads = std::thread::available_parallelism().map_or(1, |cores| cores.get() / 8).clamp(1, 4);
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(n_threads).enable_all();
    if plan.is_on_cpu() {
        builder.on_thread_start(interrupt_nobody);
    }
    builder.build()
}

/// For the calling thread, and what it starts.
fn interrupt_nobody() {
    let no_priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is good for the time of the call, and 0 is the calling thread.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const no_priority) };
    if done != 0 {
        // It costs a few percent, and nothing else.
        tracing::debug!(error = %io::Error::last_os_error(), "the threads of the actors stay as eager as any");
    }
}
