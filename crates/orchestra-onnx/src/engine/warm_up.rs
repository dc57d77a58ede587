//! The first batches of a model, over zeros: what the device makes once is made before real batches come, and what it cannot do shows. It judges no
//! answers.

use std::io;
use std::thread;

use orchestra_worker::engine::EngineRunError;
use orchestra_worker::frames::RunErrorKind;
use orchestra_worker::link::STACK;
use orchestra_worker::load_error::LoadError;

use super::binding::BoundSession;
use super::memory::PrivateRows;
use super::model::SessionModel;
use super::{SessionStream, errors};

/// Runs a batch of this size once, in memory of its own, and says how many rows ran. Where it does not fit, halves of it are tried. Where a
/// library of the device has nothing for the model at this size, no batch can run. 0: it did not run, or not all streams can run it at once.
pub fn warm_up(streams: &mut [SessionStream], padded_to: Option<usize>) -> Result<usize, LoadError> {
    let Some(first) = streams.first_mut() else { return Ok(0) };
    let (bound, model) = (&mut first.bound, &first.shared.model);
    let Some(size) = padded_to.map(|rows| model.batch.unwrap_or(rows)) else { return Ok(0) };
    let warmed = first_run(size, model.batch.is_none(), &mut |rows| run_zeros(bound, model, rows))?;
    let fits = warm_up_together(streams, size)?;
    Ok(if fits { warmed } else { 0 })
}

fn first_run(
    mut rows: usize,
    may_halve: bool,
    run: &mut dyn FnMut(usize) -> Result<(), EngineRunError>,
) -> Result<usize, LoadError> {
    loop {
        match run(rows) {
            Ok(()) => return Ok(rows),
            Err(EngineRunError { kind: RunErrorKind::Model, error }) if errors::is_refusal(&error) => {
                eprintln!("worker: a warm-up batch of `{rows}` rows is refused: {error}");
                return Err(errors::load(error));
            }
            // A model may refuse zeros; real data decides.
            Err(EngineRunError { kind: RunErrorKind::Model | RunErrorKind::Shape, .. }) => return Ok(0),
            Err(EngineRunError { kind: RunErrorKind::OutOfMemory, error }) if rows > 1 && may_halve => {
                eprintln!(
                    "worker: a warm-up batch of `{rows}` rows does not fit into the device's memory: {error}"
                );
                rows /= 2;
            }
            Err(EngineRunError { error, .. }) => return Err(errors::load(error)),
        }
    }
}

/// Runs a batch of this size on all streams at once: what each of them needs for itself is made now, and what they take together
/// shows. `false`: they do not fit. Real batches then find the ceiling.
fn warm_up_together(streams: &mut [SessionStream], rows: usize) -> Result<bool, LoadError> {
    let n = streams.len();
    if n == 1 {
        return Ok(true);
    }
    let ran: io::Result<Vec<Result<(), EngineRunError>>> = thread::scope(|scope| {
        let run = |stream: &mut SessionStream| run_zeros(&mut stream.bound, &stream.shared.model, rows);
        let start =
            |stream| thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || run(stream));
        let all: Vec<_> = streams.iter_mut().map(start).collect::<io::Result<_>>()?;
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|why| std::panic::resume_unwind(why))
        };
        Ok(all.into_iter().map(join).collect())
    });
    let ran = ran.map_err(|e| errors::load(format!("a thread for a stream cannot be started: {e}")))?;
    let mut fits = true;
    for EngineRunError { kind, error } in ran.into_iter().filter_map(Result::err) {
        match kind {
            RunErrorKind::Model
            | RunErrorKind::Row(_)
            | RunErrorKind::Shape
            | RunErrorKind::Mixed
            | RunErrorKind::TooLarge => {}
            RunErrorKind::OutOfMemory => {
                fits = false;
                eprintln!(
                    "worker: `{n}` warm-up batches of `{rows}` rows at once do not fit into the device's memory: {error}"
                );
            }
            RunErrorKind::Device => return Err(errors::load(error)),
        }
    }
    Ok(fits)
}

/// Runs a batch of so many zeros for the first time, in memory of its own.
fn run_zeros(bound: &mut BoundSession, model: &SessionModel, rows: usize) -> Result<(), EngineRunError> {
    let zeros = PrivateRows::new(model, rows)?;
    // SAFETY: the private rows belong to this function alone and outlive the run.
    unsafe { bound.warm(model, &zeros.addresses()) }
}

#[cfg(test)]
mod tests {
    use orchestra_core::ErrorClass;

    use super::*;

    const NO_PLAN: &str = "Failed to initialize CUDNN Frontend CUDNN_FE failure 11: CUDNN_BACKEND_API_FAILED ; \
        expr=s_.cudnn_fe_graph->build_operation_graph(handle);";

    /// Warms 8 rows with a device that says this of so many; `""`: they run.
    fn warmed(says: impl Fn(usize) -> &'static str) -> Result<usize, LoadError> {
        first_run(8, true, &mut |rows| match says(rows) {
            "" => Ok(()),
            error => Err(EngineRunError { kind: errors::run_kind(error), error: error.to_owned() }),
        })
    }

    #[test]
    fn a_model_that_the_device_has_no_plan_for_is_refused() {
        let Err(LoadError { class, error }) = warmed(|_| NO_PLAN) else { panic!("it was loaded") };
        assert_eq!((class, &*error), (ErrorClass::Permanent, NO_PLAN));
        // What it says of zeros may be true of zeros alone.
        assert_eq!(warmed(|_| "indices element out of data bounds").ok(), Some(0));
        assert_eq!(warmed(|rows| if rows > 1 { "CUDA failure 2: out of memory" } else { "" }).ok(), Some(1));
        let lost = warmed(|_| "CUDA failure 719: unspecified launch failure").map_err(|e| e.class);
        assert_eq!(lost, Err(ErrorClass::Transient));
    }
}
