//! Lets the run go first. It changes no thread but the one that calls.

/// How much nicer threads are that explain the run: on busy cores they get a thirtieth of what a thread of the run gets, on idle ones all they want.
const NICE: i32 = 15;

/// Puts the calling thread behind the threads of the run. A thread that did this must share no lock with one that did not: it may stand
/// still for long while it holds it.
pub(crate) fn step_back() {
    // A system that refuses runs it like any other thread. On Linux a niceness is a thread's own.
    let _ = rustix::process::nice(NICE);
}
