//! How many threads the actors of a run want. It starts none: the runtime is the host's.

/// Threads of a tokio runtime that carries out nothing but runs. Decoding, models and the journal have threads of their own, and what is
/// left is a few messages per batch: on a small machine more threads only wake each other up and take cores from the rest.
#[must_use]
pub fn actor_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() / 8).clamp(1, 4)
}
