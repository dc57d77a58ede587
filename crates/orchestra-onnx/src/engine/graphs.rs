//! CUDA graphs: a size of a batch is recorded once, and launched as a whole from then on, instead of kernel by kernel. It records what it
//! is told to; which sizes those are, others say.
//!
//! A graph has the addresses of its tensors in it. So each size has inputs and outputs of its own on the device, which rows are copied to
//! and from, and the session's arena must never give memory back: what lies between inputs and outputs is in it.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use orchestra_core::ErrorClass;
use orchestra_worker::arena::Rows;
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{IoBinding, RunOptions, Session};
use ort::value::DynTensor;

use super::binding::run_binding;
use super::cuda_runtime::{CudaRuntime, TO_DEVICE, TO_HOST};
use super::model::{Model, RowAddresses, RowTensor, element_type};
use orchestra_worker::serve::LoadError;

/// The run option that says which graph a run is.
const GRAPH: &str = "gpu_graph_id";
/// As a value of it: none, run as usual.
const NO_GRAPH: &str = "-1";

/// Runs as usual before one is recorded: memory must not be taken while that goes on, and the arena has all that a size needs only after
/// it has run more than once.
const RUNS_BEFORE: usize = 2;

/// Why there is no graph for a size.
#[derive(Debug)]
pub enum NotRecorded {
    /// It does not run as usual either.
    Run(ort::Error),
    /// Recording it failed. What the session is asked to do next would end up in the broken record.
    Recording(ort::Error),
}

/// The graphs of a session. Drop them before it.
pub struct Graphs {
    cuda: CudaRuntime,
    device: AllocationDevice<'static>,
    by_rows: BTreeMap<usize, Graph>,
    /// For a batch of a size that was not recorded.
    without: RunOptions,
}

struct Graph {
    /// Holds the tensors.
    binding: IoBinding,
    options: RunOptions,
    inputs: Vec<Rows<*mut u8>>,
    outputs: Vec<Rows<*mut u8>>,
}

// SAFETY: the addresses are those of tensors that the binding holds, and are used with the session alone.
unsafe impl Send for Graph {}

impl Graphs {
    pub fn new(cuda: CudaRuntime) -> ort::Result<Graphs> {
        Graphs::on(AllocationDevice::CUDA, cuda)
    }

    fn on(device: AllocationDevice<'static>, cuda: CudaRuntime) -> ort::Result<Graphs> {
        let mut without = RunOptions::new()?;
        without.set(GRAPH, NO_GRAPH)?;
        Ok(Graphs { cuda, device, by_rows: BTreeMap::new(), without })
    }

    pub fn has(&self, rows: usize) -> bool {
        self.by_rows.contains_key(&rows)
    }

    /// What a run without a graph needs.
    pub fn options_without(&self) -> &RunOptions {
        &self.without
    }

    /// Makes the graph for batches of the size of `addresses`, and runs it over them. All outputs have a fixed shape.
    ///
    /// # Safety
    /// As for [`Graphs::run`].
    pub unsafe fn record(
        &mut self,
        session: &Session,
        model: &Model,
        addresses: &RowAddresses,
    ) -> Result<(), NotRecorded> {
        let graph = Graph::new(session, model, addresses.rows, &self.device).map_err(NotRecorded::Run)?;
        for _ in 0..RUNS_BEFORE {
            run_binding(session, &graph.binding, Some(&self.without)).map_err(NotRecorded::Run)?;
        }
        // SAFETY: the caller's promises are the same.
        unsafe { graph.run(&self.cuda, session, addresses).map_err(NotRecorded::Recording)? };
        self.by_rows.insert(addresses.rows, graph);
        Ok(())
    }

    /// Runs the graph for batches of the size of `addresses`, which must have been recorded, over the rows there.
    ///
    /// # Safety
    /// The outputs at `addresses` have no other user, and its inputs no writer, until this returns.
    pub unsafe fn run(&self, session: &Session, addresses: &RowAddresses) -> ort::Result<()> {
        let graph = self.by_rows.get(&addresses.rows);
        let graph =
            graph.ok_or_else(|| ort::Error::new(format!("no CUDA graph for `{}` rows", addresses.rows)))?;
        // SAFETY: the caller's promises are the same.
        unsafe { graph.run(&self.cuda, session, addresses) }
    }
}

impl Graph {
    fn new(
        session: &Session,
        model: &Model,
        rows: usize,
        device: &AllocationDevice<'static>,
    ) -> ort::Result<Graph> {
        let place = MemoryInfo::new(device.clone(), 0, AllocatorType::Device, MemoryType::Default)?;
        let allocator = Allocator::new(session, place)?;
        let tensor = |tensor: &RowTensor| -> ort::Result<(DynTensor, Rows<*mut u8>)> {
            let mut value = DynTensor::new(&allocator, element_type(tensor.dtype), tensor.shape(rows))?;
            let place = Rows { ptr: value.data_ptr_mut().cast::<u8>(), len: tensor.row_bytes * rows };
            Ok((value, place))
        };
        let mut binding = session.create_binding()?;
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (spec, input) in model.session_inputs.iter().zip(&model.inputs) {
            let (value, place) = tensor(input)?;
            binding.bind_input(&spec.name, &value)?;
            inputs.push(place);
        }
        for (spec, output) in model.session_outputs.iter().zip(&model.outputs) {
            let output = output.as_ref().ok_or_else(|| {
                ort::Error::new(format!(
                    "output `{}` has no fixed shape, which a CUDA graph needs",
                    spec.name
                ))
            })?;
            let (value, place) = tensor(output)?;
            binding.bind_output(&spec.name, value)?;
            outputs.push(place);
        }
        let mut options = RunOptions::new()?;
        // Any number names a graph; sizes are unlike each other.
        options.set(GRAPH, rows.to_string())?;
        Ok(Graph { binding, options, inputs, outputs })
    }

    /// # Safety
    /// As for [`Graphs::run`], and `addresses` has as many rows as this.
    unsafe fn run(&self, cuda: &CudaRuntime, session: &Session, addresses: &RowAddresses) -> ort::Result<()> {
        for (to, from) in self.inputs.iter().zip(&addresses.inputs) {
            // SAFETY: both have so many bytes, and no writer meanwhile.
            unsafe { copy(cuda, to.ptr, from.ptr, to.len.min(from.len), TO_DEVICE) }?;
        }
        // The copies have left the host's memory, but the session's stream knows nothing of them.
        // SAFETY: null names the stream that they are on.
        check(cuda, unsafe { (cuda.stream_synchronize)(std::ptr::null_mut()) })?;
        run_binding(session, &self.binding, Some(&self.options))?;
        self.binding.synchronize_outputs()?;
        for (from, to) in self.outputs.iter().zip(&addresses.outputs) {
            if let Some(to) = to {
                // SAFETY: as above, and the run is over.
                unsafe { copy(cuda, to.ptr, from.ptr, to.len.min(from.len), TO_HOST) }?;
            }
        }
        Ok(())
    }
}

/// Why a model has no graph for so many rows, and what to do.
pub fn not_recorded(rows: usize, why: &str) -> LoadError {
    LoadError {
        class: ErrorClass::Permanent,
        error: format!(
            "a batch of `{rows}` cannot be recorded as a CUDA graph: {why}; every node has to run on CUDA, with shapes that depend on the \
             batch size alone: if the model is not like that, leave `cuda_graphs` out of the model"
        ),
    }
}

/// The runtime's words for a session whose nodes are not all on CUDA, or that has control flow.
pub fn is_refusal(text: &str) -> bool {
    text.contains("cannot use the graph capture feature")
}

/// # Safety
/// `from` can be read and `to` be written for `bytes` bytes, where `kind` says that they are.
unsafe fn copy(
    cuda: &CudaRuntime,
    to: *mut u8,
    from: *const u8,
    bytes: usize,
    kind: c_int,
) -> ort::Result<()> {
    // SAFETY: as the caller vouches.
    check(cuda, unsafe { (cuda.memcpy)(to.cast::<c_void>(), from.cast::<c_void>(), bytes, kind) })
}

fn check(cuda: &CudaRuntime, code: c_int) -> ort::Result<()> {
    cuda.check(code).map_err(ort::Error::new)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use orchestra_core::SessionTuning;
    use orchestra_worker::frames::{Run, RunErrorKind, RunTiming};

    use super::super::cuda_runtime::fake;
    use super::super::fake_gpu::{MAX_ROWS, Twin};
    use super::super::warm_up::warm_up;
    use super::*;
    use orchestra_worker::serve::Engine;

    fn recorded(sizes: &[usize]) -> Twin {
        let mut twin = Twin::load(SessionTuning::default(), &[]);
        let serving = twin.serving();
        serving.bound.graphs = Some(Graphs::on(AllocationDevice::CPU, fake::RUNTIME).unwrap());
        let shared = Arc::clone(&serving.shared);
        warm_up(&mut serving.bound, &shared.model, &serving.host.memory, sizes).unwrap();
        serving.batch_sizes = sizes.to_vec();
        twin
    }

    fn copies(calls: &[String]) -> Vec<&str> {
        calls.iter().map(String::as_str).filter(|call| call.starts_with("memcpy")).collect()
    }

    #[test]
    fn rows_go_to_the_graphs_own_tensors_and_come_back_from_them() {
        let mut twin = recorded(&[1, 4, MAX_ROWS]);
        fake::calls();
        for (seed, (first, rows)) in (1..).zip([(0, MAX_ROWS), (2, 3), (7, 1), (0, 5), (3, 4), (0, MAX_ROWS)])
        {
            twin.check(first, rows, seed);
            // Three numbers of four bytes in each row; a batch of another size takes the next larger graph.
            let bytes = 12 * [1, 4, MAX_ROWS].into_iter().find(|size| *size >= rows).unwrap();
            let calls = fake::calls();
            assert_eq!(copies(&calls), [format!("memcpy {bytes} 1"), format!("memcpy {bytes} 2")]);
            assert_eq!(calls.iter().filter(|call| *call == "synchronize").count(), 1, "{calls:?}");
        }
    }

    #[test]
    fn a_size_without_a_graph_runs_as_usual() {
        let mut twin = recorded(&[4]);
        fake::calls();
        twin.check(0, MAX_ROWS, 1);
        assert_eq!(fake::calls(), [] as [&str; 0]);
    }

    #[test]
    fn a_size_that_cannot_be_recorded_ends_the_load_whatever_it_says() {
        let mut twin = Twin::load(SessionTuning::default(), &[]);
        let serving = twin.serving();
        serving.bound.graphs = Some(Graphs::on(AllocationDevice::CPU, fake::RUNTIME).unwrap());
        // Memory that runs out while a graph is recorded, as it would without the runs before.
        fake::refuse(&["synchronize"]);
        let shared = Arc::clone(&serving.shared);
        let error = warm_up(&mut serving.bound, &shared.model, &serving.host.memory, &[1, 2]).unwrap_err();
        assert_eq!(error.class, orchestra_core::ErrorClass::Permanent);
        assert!(error.error.contains("cannot be recorded as a CUDA graph"), "{}", error.error);
    }

    #[test]
    fn a_copy_that_fails_is_a_failure_of_the_device() {
        let mut twin = recorded(&[MAX_ROWS]);
        fake::refuse(&["memcpy"]);
        let run = Run {
            batch: orchestra_core::BatchId(1),
            attempt: 1,
            slot: orchestra_core::SlotId(0),
            output_slot: orchestra_core::OutputSlotId(0),
            first_row: 0,
            rows: MAX_ROWS,
            trace: None,
        };
        let error = twin.engine.run(&run, &mut RunTiming::default()).unwrap_err();
        assert_eq!(error.kind, RunErrorKind::Device, "{error}");
    }

    #[test]
    fn the_runtimes_words_for_a_session_without_graphs_are_known() {
        for why in [
            "This session cannot use the graph capture feature as requested by the user  as all compute graph nodes have not been \
             partitioned to the CUDAExecutionProvider",
            "This session cannot use the graph capture feature as requested by the user as the model has control flow nodes which can't \
             be supported by CUDAExecutionProvider",
        ] {
            assert!(is_refusal(why), "{why}");
        }
        assert!(!is_refusal("Protobuf parsing failed."));
    }

    #[test]
    fn a_model_that_cannot_be_recorded_is_refused_with_the_key() {
        let mut twin = Twin::load(SessionTuning::default(), &[]);
        let serving = twin.serving();
        serving.bound.graphs = Some(Graphs::on(AllocationDevice::CPU, fake::RUNTIME).unwrap());
        // As for an output of dynamic shape.
        Arc::get_mut(&mut serving.shared).unwrap().model.outputs[0] = None;
        let shared = Arc::clone(&serving.shared);
        let error = warm_up(&mut serving.bound, &shared.model, &serving.host.memory, &[1, 2]).unwrap_err();
        assert_eq!(error.class, orchestra_core::ErrorClass::Permanent);
        assert!(error.error.contains("output `y` has no fixed shape"), "{}", error.error);
        assert!(error.error.ends_with("leave `cuda_graphs` out of the model"), "{}", error.error);
    }
}
