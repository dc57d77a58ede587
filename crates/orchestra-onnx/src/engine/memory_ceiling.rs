//! Bounds what a worker on the CPU takes of memory, as the kernel enforces it, whatever asks for it: the runtime, its threads, operators of the
//! model. The arena has a bound of its own (`cpu_arena`), which fails sooner and costs no worker. It measures nothing that runs.

use orchestra_worker::frames::Load;
use orchestra_worker::limits::{bound_memory, stack_bytes};
use orchestra_worker::load_error::LoadError;

use crate::spec::OnnxSpec;

/// What a worker takes beside its arena, its model and its threads: writable data of the runtime's library and its heap, some 20 MiB. Answers
/// with outputs of dynamic shape and what libraries of operators keep come on top.
const BESIDE: u64 = 256 << 20;
/// How often the weights lie in memory while a model is loaded: in its file as it is parsed, as tensors of the graph, and rearranged for the
/// kernels. Detectors of 12, 20 and 40 MB were loaded by ONNX Runtime 1.31 with 40, 60 and 100 MiB, all that it takes included.
const COPIES_OF_WEIGHTS: u64 = 4;
/// What a thread takes beside its stack: the beginning of a heap of its own.
const THREAD: u64 = 1 << 20;
/// Threads beside those of the session: the watch, and what libraries start.
const OTHER_THREADS: u64 = 8;

/// From now on this process gets `limit` bytes, and what loading and serving the model takes beside its arena, and no more.
pub fn set(limit: u64, load: &Load, spec: &OnnxSpec) -> Result<(), LoadError> {
    bound_memory(limit.saturating_add(beside(load, spec))).map_err(|e| {
        LoadError::permanent(format!(
            "`memory_limit` cannot be enforced: {e}; without it the model runs unbounded"
        ))
    })
}

fn beside(load: &Load, spec: &OnnxSpec) -> u64 {
    let files = [&spec.model].into_iter().chain(spec.weights.iter().map(|(path, _)| path));
    // What cannot be read is said when it is.
    let weights: u64 = files.map(|path| path.metadata().map_or(0, |file| file.len())).sum();
    let threads = (load.threads.max(1) + load.streams) as u64 + OTHER_THREADS;
    let terms = [
        BESIDE,
        weights.saturating_mul(COPIES_OF_WEIGHTS),
        threads.saturating_mul(stack_bytes().saturating_add(THREAD)),
        // Rows of the worker's own: of warm-up, and of each stream whose model takes batches of one size alone.
        own_rows(load).saturating_mul(load.streams as u64 + 1),
    ];
    terms.into_iter().fold(0, u64::saturating_add)
}

/// Bytes of the rows of one batch, as large as it can be.
fn own_rows(load: &Load) -> u64 {
    let fixed = load.layout.inputs.iter().filter_map(|input| input.tensor.batch.fixed()).max().unwrap_or(0);
    let rows = load.layout.slot_rows.max(fixed) as u64;
    (load.layout.slot_bytes() as u64).div_ceil(load.layout.slot_rows.max(1) as u64).saturating_mul(rows)
}
