//! Runs a session on its own outputs, round after round. Inputs and outputs have memory of their own where the session works, bound once in
//! two sets that take turns: what a round gives is where the next one reads. So between rounds nothing is copied but the one number per row
//! that a bound is set for, the outputs of rows that end or are collected, and the parts that the loop steps to.
//!
//! It knows neither arena nor slots: rows are copied from and to places that others name, when a batch begins and when rows end.

use orchestra_core::DeviceKind;
use orchestra_core::iteration::Iteration;
use orchestra_worker::arena::{RangeError, RowMemory, WorkerArena};
use orchestra_worker::engine::{EngineRunError, nanos};
use orchestra_worker::frames::{BatchRun, DynamicOutput, RunErrorKind, RunTiming};
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{IoBinding, Session};
use ort::value::DynTensor;
use std::time::Instant;

use super::binding::{BoundSession, value_over};
use super::cuda_runtime::{CudaRuntime, TO_DEVICE, TO_HOST};
use super::loop_parts::RowParts;
use super::model::{RowAddresses, RowTensor, SessionModel, element_type};
use super::running_loop::RunningLoop;

/// A loop over a session. Drop it before the session.
pub struct IteratedSession {
    iteration: Iteration,
    place: LoopDevice,
    /// Made for the first batch, and made anew for a larger one.
    memory: Option<LoopTensors>,
}

/// Where the tensors of a loop lie.
pub struct LoopDevice {
    device: AllocationDevice<'static>,
    /// What copies from and to there; `None`: it is the host's own memory.
    cuda: Option<CudaRuntime>,
}

/// Tensors for so many rows, and what is bound to them. Fields are dropped in this order.
pub struct LoopTensors {
    /// For so many rows, the two sets: see [`LoopTensors::bind`].
    bound: Option<(usize, [IoBinding; 2])>,
    pub inputs: Vec<RowMemory<*mut u8>>,
    pub outputs: Vec<RowMemory<*mut u8>>,
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

    pub fn iteration(&self) -> &Iteration {
        &self.iteration
    }

    /// Runs the rows at `addresses`, of which those beyond the rows of `parts` are padding, and gives the rounds that each took, and the outputs of all
    /// rounds that are collected. The other outputs of a row's last round are at `addresses` then.
    ///
    /// # Safety
    /// As for [`BoundSession::run`].
    pub unsafe fn run(
        &mut self,
        bound: &mut BoundSession,
        model: &SessionModel,
        addresses: &RowAddresses<'_>,
        parts: &RowParts<'_>,
        timing: &mut RunTiming,
    ) -> Result<(Vec<i64>, Vec<DynamicOutput>), EngineRunError> {
        // SAFETY: the caller's promises are the same.
        let ran = unsafe { self.rounds(bound, model, addresses, parts, timing) };
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
        parts: &RowParts<'_>,
        timing: &mut RunTiming,
    ) -> ort::Result<(Vec<i64>, Vec<DynamicOutput>)> {
        let start = Instant::now();
        let IteratedSession { iteration, place, memory } = self;
        if memory.as_ref().is_none_or(|memory| memory.rows < addresses.rows) {
            *memory = None;
            *memory = Some(LoopTensors::new(bound.session(), model, addresses.rows, place)?);
        }
        let memory = memory.as_mut().expect("it has just been made");
        let mut running = RunningLoop::new(iteration, model, place, addresses, parts);
        // SAFETY: the caller vouches for the rows.
        unsafe { running.copy_in(memory) }?;
        timing.bind_ns += nanos(start.elapsed());
        for round in 0.. {
            let start = Instant::now();
            memory.bind(bound.session(), model, iteration, running.rows_to_run())?;
            if round > 0 {
                // SAFETY: the memory of the loop has no other user.
                unsafe { running.copy_parts(memory, round) }?;
            }
            timing.bind_ns = timing.bind_ns.saturating_add(nanos(start.elapsed()));
            let start = Instant::now();
            bound.run_over(memory.set(round))?;
            timing.run_ns = timing.run_ns.saturating_add(nanos(start.elapsed()));
            let start = Instant::now();
            // SAFETY: the run is over, and the rows at `addresses` are the caller's.
            unsafe { running.take(memory, round) }?;
            timing.copy_out_ns = timing.copy_out_ns.saturating_add(nanos(start.elapsed()));
            if let Some(rounds) = running.rounds.all() {
                return Ok(running.end(&rounds));
            }
        }
        unreachable!("rounds are counted without end")
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
    run: &BatchRun,
    rounds: &[i64],
) -> Result<(), RangeError> {
    let to = arena.output_rows(run.output_slot, model.outputs.len(), run.first_row, run.rows)?;
    let bytes: Vec<u8> = rounds.iter().flat_map(|n| n.to_ne_bytes()).collect();
    // SAFETY: both have that many bytes, and the caller vouches for the rows.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.ptr, bytes.len().min(to.len)) };
    Ok(())
}

/// Which way rows are copied.
#[derive(Clone, Copy)]
pub enum CopyDirection {
    In,
    Out,
}

impl LoopDevice {
    /// # Safety
    /// `from` can be read and `to` be written for `bytes` bytes, one of which lies here and the other in the host's memory.
    pub unsafe fn copy(
        &self,
        to: *mut u8,
        from: *const u8,
        bytes: usize,
        way: CopyDirection,
    ) -> ort::Result<()> {
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
    pub fn synchronize(&self) -> ort::Result<()> {
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

    /// What is bound for a round.
    fn set(&self, round: usize) -> &IoBinding {
        let (_, sets) = self.bound.as_ref().expect("it was bound for this round");
        &sets[round % 2]
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
