//! The first batches of a model, over zeros: what the device makes once is made before real batches come, and what it cannot do shows. It judges no
//! answers.

use std::io;
use std::thread;

use orchestra_worker::frames::RunErrorKind;
use orchestra_worker::serve::{LoadError, RunError, STACK};

use super::binding::BoundSession;
use super::memory::PrivateRows;
use super::model::Model;
use super::{Serving, errors};

/// Runs each batch size once, in memory of its own, and says which was the largest that ran. Where the smallest does not fit, halves of
/// it are tried. Where only a larger batch does not fit, that is no error: the parent finds the ceiling with real batches. Where a library of the
/// device has nothing for the model at any of these sizes, no batch can run. 0: no size ran, or one did that not all streams can run at once.
pub fn warm_up(streams: &mut [Serving], batch_sizes: &[usize]) -> Result<usize, LoadError> {
    let Some(first) = streams.first_mut() else { return Ok(0) };
    let (bound, model) = (&mut first.bound, &first.shared.model);
    let warmed =
        first_runs(&sizes_to_warm(model, batch_sizes), model.batch.is_none(), &mut |rows, is_last| {
            if !is_last {
                // What this size needed is of no use to the next, larger one; what the largest needs is kept.
                bound.shrink.after_next();
            }
            run_zeros(bound, model, rows)
        })?;
    let fits = warm_up_together(streams, batch_sizes)?;
    Ok(if fits { warmed } else { 0 })
}

/// `run` takes a number of rows, and whether it is the largest.
fn first_runs(
    sizes: &[usize],
    may_halve: bool,
    run: &mut dyn FnMut(usize, bool) -> Result<(), RunError>,
) -> Result<usize, LoadError> {
    let (mut warmed, mut refused) = (0, None);
    for (place, &rows) in sizes.iter().enumerate() {
        match run(rows, place + 1 == sizes.len()) {
            Ok(()) => warmed = rows,
            Err(RunError { kind: RunErrorKind::Model, error }) if errors::is_refusal(&error) => {
                eprintln!("worker: a warm-up batch of `{rows}` rows is refused: {error}");
                refused = Some(errors::load(error));
            }
            // A model may refuse zeros; real data decides.
            Err(RunError { kind: RunErrorKind::Model | RunErrorKind::Shape, .. }) => {}
            Err(RunError { kind: RunErrorKind::OutOfMemory, error })
                if place > 0 || (rows > 1 && may_halve) =>
            {
                eprintln!(
                    "worker: a warm-up batch of `{rows}` rows does not fit into the device's memory: {error}"
                );
                return if place > 0 { Ok(warmed) } else { first_runs(&[rows / 2], may_halve, run) };
            }
            Err(RunError { error, .. }) => return Err(errors::load(error)),
        }
    }
    match refused {
        Some(why) if warmed == 0 => Err(why),
        _ => Ok(warmed),
    }
}

/// Runs the largest of these sizes on all streams at once: what each of them needs for itself is made now, and what they take together
/// shows. `false`: they do not fit. Real batches then find the ceiling.
fn warm_up_together(streams: &mut [Serving], batch_sizes: &[usize]) -> Result<bool, LoadError> {
    let n = streams.len();
    let largest = streams.first().and_then(|s| sizes_to_warm(&s.shared.model, batch_sizes).pop());
    let Some(rows) = largest.filter(|_| n > 1) else { return Ok(true) };
    let ran: io::Result<Vec<Result<(), RunError>>> = thread::scope(|scope| {
        let run = |stream: &mut Serving| run_zeros(&mut stream.bound, &stream.shared.model, rows);
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
    for RunError { kind, error } in ran.into_iter().filter_map(Result::err) {
        match kind {
            RunErrorKind::Model | RunErrorKind::Row(_) | RunErrorKind::Shape => {}
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

fn sizes_to_warm(model: &Model, batch_sizes: &[usize]) -> Vec<usize> {
    let mut sizes: Vec<usize> = match model.batch {
        Some(batch) if !batch_sizes.is_empty() => vec![batch],
        _ => batch_sizes.iter().copied().filter(|rows| (1..=model.max_rows).contains(rows)).collect(),
    };
    sizes.sort_unstable();
    sizes
}

/// Runs a batch of so many zeros for the first time, in memory of its own.
fn run_zeros(bound: &mut BoundSession, model: &Model, rows: usize) -> Result<(), RunError> {
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

    /// Warms 2, 4 and 8 rows with a device that says this of each of them; `""`: it runs.
    fn warmed(says: impl Fn(usize) -> &'static str) -> Result<usize, LoadError> {
        first_runs(&[2, 4, 8], true, &mut |rows, _| match says(rows) {
            "" => Ok(()),
            error => Err(RunError { kind: errors::run_kind(error), error: error.to_owned() }),
        })
    }

    #[test]
    fn a_model_that_the_device_has_no_plan_for_is_refused_if_it_has_none_for_any_size() {
        let Err(LoadError { class, error }) = warmed(|_| NO_PLAN) else { panic!("it was loaded") };
        assert_eq!((class, &*error), (ErrorClass::Permanent, NO_PLAN));
        assert_eq!(warmed(|rows| if rows == 8 { NO_PLAN } else { "" }).ok(), Some(4));
        assert_eq!(warmed(|rows| if rows == 2 { NO_PLAN } else { "" }).ok(), Some(8));
        // What it says of zeros may be true of zeros alone.
        assert_eq!(warmed(|_| "indices element out of data bounds").ok(), Some(0));
        assert_eq!(warmed(|rows| if rows > 1 { "CUDA failure 2: out of memory" } else { "" }).ok(), Some(1));
        let lost = warmed(|_| "CUDA failure 719: unspecified launch failure").map_err(|e| e.class);
        assert_eq!(lost, Err(ErrorClass::Transient));
    }
}
