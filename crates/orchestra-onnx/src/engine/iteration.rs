//! Runs a session on its own outputs, round after round. Inputs and outputs have memory of their own where the session works, bound once in
//! two sets that take turns: what a round gives is where the next one reads. So between rounds nothing is copied but the one number per row
//! that a bound is set for, and the outputs of rows that end.
//!
//! It knows neither arena nor slots: rows are copied from and to places that others name, when a batch begins and when rows end.

use orchestra_core::iteration::{Iteration, RowRounds, stretches};
use orchestra_core::{DType, DeviceKind};
use orchestra_worker::arena::{RangeError, RowMemory, WorkerArena};
use orchestra_worker::engine::{RunError, nanos};
use orchestra_worker::frames::{Run, RunErrorKind, RunTiming};
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{IoBinding, Session};
use ort::value::DynTensor;
use std::time::Instant;

use super::binding::{BoundSession, value_over};
use super::cuda_runtime::{CudaRuntime, TO_DEVICE, TO_HOST};
use super::model::{RowAddresses, RowTensor, SessionModel, element_type};

/// A loop over a session. Drop it before the session.
pub struct IteratedSession {
    iteration: Iteration,
    place: LoopDevice,
    /// Made for the first batch, and made anew for a larger one.
    memory: Option<LoopTensors>,
}

/// Where the tensors of a loop lie.
struct LoopDevice {
    device: AllocationDevice<'static>,
    /// What copies from and to there; `None`: it is the host's own memory.
    cuda: Option<CudaRuntime>,
}

/// Tensors for so many rows, and what is bound to them. Fields are dropped in this order.
struct LoopTensors {
    /// For so many rows, the two sets: see [`LoopTensors::bind`].
    bound: Option<(usize, [IoBinding; 2])>,
    inputs: Vec<RowMemory<*mut u8>>,
    outputs: Vec<RowMemory<*mut u8>>,
    /// They hold the memory of `inputs` and `outputs`.
    _tensors: Vec<DynTensor>,
    info: MemoryInfo<'static>,
    /// Rows that there is room for.
    rows: usize,
}

// SAFETY: the addresses are those of tensors that are kept beside them, and are used by the owner of the loop alone.
unsafe impl Send for LoopTensors {}

impl IteratedSession {
    /// A loop on `device`. Call it when the provider is loaded.
    ///
    /// # Errors
    /// CUDA's runtime is not in the process under a known name.
    pub fn new(iteration: Iteration, device: &DeviceKind) -> ort::Result<IteratedSession> {
        let place = match device {
            DeviceKind::Cpu => LoopDevice { device: AllocationDevice::CPU, cuda: None },
            DeviceKind::Cuda { .. } => {
                let cuda = CudaRuntime::of_this_process().ok_or_else(|| {
                    ort::Error::new(
                        "a loop needs CUDA's runtime, which is not in the process under a known name",
                    )
                })?;
                LoopDevice { device: AllocationDevice::CUDA, cuda: Some(cuda) }
            }
        };
        Ok(IteratedSession { iteration, place, memory: None })
    }

    /// Another one on the same session.
    pub fn another(&self) -> IteratedSession {
        let LoopDevice { device, cuda } = &self.place;
        let place = LoopDevice { device: device.clone(), cuda: *cuda };
        IteratedSession { iteration: self.iteration.clone(), place, memory: None }
    }

    /// Runs the rows at `addresses`, of which those behind the first `rows` are padding, and gives the rounds that each took. The outputs of a row's last
    /// round are at `addresses` then.
    ///
    /// # Safety
    /// As for [`BoundSession::run`].
    pub unsafe fn run(
        &mut self,
        bound: &mut BoundSession,
        model: &SessionModel,
        addresses: &RowAddresses<'_>,
        rows: usize,
        timing: &mut RunTiming,
    ) -> Result<Vec<i64>, RunError> {
        // SAFETY: the caller's promises are the same.
        let ran = unsafe { self.rounds(bound, model, addresses, rows, timing) };
        ran.map_err(|error| {
            let error = bound.failed(&error);
            if error.kind == RunErrorKind::OutOfMemory {
                // A smaller batch comes next, and needs less.
                self.memory = None;
            }
            error
        })
    }

    /// # Safety
    /// As for [`IteratedSession::run`].
    unsafe fn rounds(
        &mut self,
        bound: &mut BoundSession,
        model: &SessionModel,
        addresses: &RowAddresses<'_>,
        rows: usize,
        timing: &mut RunTiming,
    ) -> ort::Result<Vec<i64>> {
        let start = Instant::now();
        let IteratedSession { iteration, place, memory } = self;
        if memory.as_ref().is_none_or(|memory| memory.rows < addresses.rows) {
            *memory = None;
            *memory = Some(LoopTensors::new(bound.session(), model, addresses.rows, place)?);
        }
        let memory = memory.as_mut().expect("it has just been made");
        memory.bind(bound.session(), model, iteration, addresses.rows)?;
        let LoopTensors { bound: Some((_, sets)), inputs, outputs, .. } = &*memory else {
            unreachable!("it has just been bound")
        };
        for (to, from) in inputs.iter().zip(&addresses.inputs) {
            // SAFETY: both have that many bytes, and no writer meanwhile.
            unsafe { place.copy(to.ptr, from.ptr, from.len.min(to.len), CopyDirection::In) }?;
        }
        place.synchronize()?;
        timing.bind_ns += nanos(start.elapsed());

        let mut rounds = RowRounds::new(iteration, rows);
        let mut watched = BoundOutput::new(iteration, model, addresses.rows);
        for set in (0..2).cycle() {
            let start = Instant::now();
            bound.run_over(&sets[set])?;
            timing.run_ns = timing.run_ns.saturating_add(nanos(start.elapsed()));
            let start = Instant::now();
            // Where each output of this round lies.
            let lies = |output: usize| match iteration.feed.iter().find(|feed| feed.output == output) {
                Some(feed) if set == 1 => inputs[feed.input].ptr,
                _ => outputs[output].ptr,
            };
            if let Some(watched) = &mut watched {
                let (to, len) = (watched.values.as_mut_ptr(), watched.values.len());
                // SAFETY: the run is over, and the buffer is as long as the output.
                unsafe { place.copy(to, lies(watched.output), len, CopyDirection::Out) }?;
            }
            let ends = rounds.round(|row| watched.as_ref().is_some_and(|watched| watched.is_met(row)));
            // SAFETY: the run is over, and the rows at `addresses` are the caller's.
            let copy = |output: usize, first: usize, count: usize| unsafe {
                let (Some(tensor), Some(to)) = (&model.outputs[output], &addresses.outputs[output]) else {
                    return Ok(());
                };
                let (at, bytes) = (first * tensor.row_bytes, count * tensor.row_bytes);
                place.copy(to.ptr.add(at), lies(output).add(at), bytes, CopyDirection::Out)
            };
            for (first, count) in stretches(ends) {
                (0..outputs.len()).try_for_each(|output| copy(output, first, count))?;
            }
            timing.copy_out_ns = timing.copy_out_ns.saturating_add(nanos(start.elapsed()));
            if let Some(rounds) = rounds.all() {
                return Ok(rounds);
            }
        }
        unreachable!("two sets take turns without end")
    }
}

/// Writes down how many rounds the rows of a run took.
///
/// # Errors
/// They lie outside of the arena.
///
/// # Safety
/// The rows of the run have no other user during the call.
pub unsafe fn say_rounds(
    model: &SessionModel,
    arena: &WorkerArena,
    run: &Run,
    rounds: &[i64],
) -> Result<(), RangeError> {
    let to = arena.output_rows(run.output_slot, model.outputs.len(), run.first_row, run.rows)?;
    let bytes: Vec<u8> = rounds.iter().flat_map(|n| n.to_ne_bytes()).collect();
    // SAFETY: both have that many bytes, and the caller vouches for the rows.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.ptr, bytes.len().min(to.len)) };
    Ok(())
}

/// The output that a bound is set for, after a round.
struct BoundOutput<'a> {
    of: &'a Iteration,
    output: usize,
    dtype: DType,
    values: Vec<u8>,
}

impl<'a> BoundOutput<'a> {
    fn new(of: &'a Iteration, model: &SessionModel, rows: usize) -> Option<Self> {
        let output = of.until.as_ref()?.output;
        let tensor = model.outputs.get(output)?.as_ref()?;
        Some(Self { of, output, dtype: tensor.dtype, values: vec![0; tensor.row_bytes * rows] })
    }

    fn is_met(&self, row: usize) -> bool {
        let value = self.values.get(row * self.dtype.size_bytes()..).unwrap_or_default();
        self.of.until.is_some_and(|until| until.is_met_by(self.dtype, value))
    }
}

/// Which way rows are copied.
#[derive(Clone, Copy)]
enum CopyDirection {
    In,
    Out,
}

impl LoopDevice {
    /// # Safety
    /// `from` can be read and `to` be written for `bytes` bytes, one of which lies here and the other in the host's memory.
    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize, way: CopyDirection) -> ort::Result<()> {
        let Some(cuda) = &self.cuda else {
            // SAFETY: as the caller vouches, and one of them is ours, so they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
            return Ok(());
        };
        let kind = match way {
            CopyDirection::In => TO_DEVICE,
            CopyDirection::Out => TO_HOST,
        };
        // SAFETY: as the caller vouches.
        cuda.check(unsafe { (cuda.memcpy)(to.cast(), from.cast(), bytes, kind) }).map_err(ort::Error::new)
    }

    /// Copies to here have arrived. They have left the host's memory before, but the session's stream knows nothing of them.
    fn synchronize(&self) -> ort::Result<()> {
        let Some(cuda) = &self.cuda else { return Ok(()) };
        // SAFETY: null names the stream that they are on.
        cuda.check(unsafe { (cuda.stream_synchronize)(std::ptr::null_mut()) }).map_err(ort::Error::new)
    }
}

impl LoopTensors {
    fn new(
        session: &Session,
        model: &SessionModel,
        rows: usize,
        place: &LoopDevice,
    ) -> ort::Result<LoopTensors> {
        let info = || MemoryInfo::new(place.device.clone(), 0, AllocatorType::Device, MemoryType::Default);
        let allocator = Allocator::new(session, info()?)?;
        let mut tensors = Vec::new();
        let mut rows_of = |tensor: &RowTensor| -> ort::Result<RowMemory<*mut u8>> {
            let mut value = DynTensor::new(&allocator, element_type(tensor.dtype), tensor.shape(rows))?;
            let ptr = value.data_ptr_mut().cast::<u8>();
            tensors.push(value);
            Ok(RowMemory { ptr, len: tensor.row_bytes * rows })
        };
        let inputs = model.inputs.iter().map(&mut rows_of).collect::<ort::Result<_>>()?;
        let outputs = model.outputs.iter().zip(&model.session_outputs);
        let outputs = outputs
            .map(|(tensor, spec)| match tensor {
                Some(tensor) => rows_of(tensor),
                None => Err(ort::Error::new(format!(
                    "output `{}` has no fixed shape, which a loop needs",
                    spec.name
                ))),
            })
            .collect::<ort::Result<_>>()?;
        Ok(LoopTensors { bound: None, inputs, outputs, _tensors: tensors, info: info()?, rows })
    }

    /// Binds `rows` rows, as many as there is room for at most, unless they are bound: the first set reads `inputs` and writes `outputs`, the
    /// second one reads the fed outputs and writes them to the inputs that they become. All other tensors are the same in both.
    fn bind(
        &mut self,
        session: &Session,
        model: &SessionModel,
        iteration: &Iteration,
        rows: usize,
    ) -> ort::Result<()> {
        if self.bound.as_ref().is_some_and(|(bound, _)| *bound == rows) {
            return Ok(());
        }
        self.bound = None;
        let value = |tensor: &RowTensor, at: &RowMemory<*mut u8>| {
            // SAFETY: the tensors have room for these rows, and outlive what is bound to them.
            unsafe { value_over(&self.info, tensor, rows, at.ptr, tensor.row_bytes * rows) }
        };
        let set = |turned: bool| -> ort::Result<IoBinding> {
            let mut binding = session.create_binding()?;
            for (at, (spec, tensor)) in model.session_inputs.iter().zip(&model.inputs).enumerate() {
                let fed = iteration.feed.iter().find(|feed| turned && feed.input == at);
                let lies = fed.map_or(&self.inputs[at], |feed| &self.outputs[feed.output]);
                binding.bind_input(&spec.name, &value(tensor, lies)?)?;
            }
            for (at, (spec, tensor)) in model.session_outputs.iter().zip(&model.outputs).enumerate() {
                let Some(tensor) = tensor else { continue };
                let fed = iteration.feed.iter().find(|feed| turned && feed.output == at);
                let lies = fed.map_or(&self.outputs[at], |feed| &self.inputs[feed.input]);
                binding.bind_output(&spec.name, value(tensor, lies)?)?;
            }
            Ok(binding)
        };
        self.bound = Some((rows, [set(false)?, set(true)?]));
        Ok(())
    }
}

#[cfg(test)]
#[path = "iteration_tests.rs"]
mod tests;
