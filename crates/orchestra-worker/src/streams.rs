//! Several batches at once: a thread for each, which takes the next run that waits and answers for it. It reads no frame.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use orchestra_core::locked;

use crate::engine::Stream;
use crate::frames::BatchRun;
use crate::link::{Leave, ServingEnd, WorkerLink, spawn};

/// The threads that run batches.
pub(crate) struct Streams {
    /// Runs that no thread has begun. The parent sends one or two more than there are threads; what finds no room stays in the socket.
    waiting: SyncSender<(BatchRun, Vec<u8>)>,
}

impl Streams {
    /// A thread for each of these. What ends one of them ends the process, by `leave`.
    pub(crate) fn start(
        streams: Vec<Box<dyn Stream>>,
        link: &Arc<WorkerLink>,
        leave: &Leave,
    ) -> Result<Streams, ServingEnd> {
        let (waiting, runs) = sync_channel(streams.len() + 1);
        let runs = Arc::new(Mutex::new(runs));
        for (number, stream) in streams.into_iter().enumerate() {
            let (runs, link, leave) = (Arc::clone(&runs), Arc::clone(link), Arc::clone(leave));
            spawn(&format!("run-{number}"), move || {
                if let Err(end) = serve(stream, &runs, &link) {
                    leave(end.exit_code("worker"));
                }
            })?;
        }
        Ok(Streams { waiting })
    }

    /// Leaves a run, with what its rows have beside their slots, to the next thread that is free.
    pub(crate) fn take(&self, run: BatchRun, values: Vec<u8>) -> Result<(), ServingEnd> {
        // They only stop when the process ends.
        self.waiting.send((run, values)).map_err(|_| ServingEnd::Gone)
    }
}

/// Until nothing more can come.
fn serve(
    mut stream: Box<dyn Stream>,
    runs: &Mutex<Receiver<(BatchRun, Vec<u8>)>>,
    link: &WorkerLink,
) -> Result<(), ServingEnd> {
    loop {
        // Threads that wait for the lock wait for a run as well, so runs are begun in the order in which they came.
        let waiting = locked(runs);
        let Ok((run, values)) = waiting.recv() else { return Ok(()) };
        drop(waiting);
        link.run_one(&run, |run, timing| stream.run(run, &values, timing))?;
    }
}
