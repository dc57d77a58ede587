//! Two batches with one session: the rows of the next one go to the GPU while it computes this one. It copies inputs and keeps the order; it
//! runs nothing, and which rows are whose is the parent's business.
//!
//! ONNX Runtime puts the copy of an input that is bound on a stream of its pool, and the only way to wait for it, `SynchronizeInputs`, waits for the
//! whole device, the other batch included. So rows are copied here, on a stream that nothing else is on, to tensors that are on the device when
//! they are bound; the runtime then copies no input. Runs compute one after the other, in the order in which they came, so the session's
//! arena holds what one of them needs; and they are answered in that order, because a parent of one stream expects that.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use orchestra_core::locked;
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{IoBinding, Session};
use ort::value::DynTensor;

use super::cuda_runtime::{CudaRuntime, TO_DEVICE};
use super::model::{Model, RowAddresses, RowTensor, element_type};

/// `cudaStreamNonBlocking`: neither waits for the default stream, nor has it wait.
const NON_BLOCKING: c_uint = 1;

/// Inputs of one batch on the device, and the stream on which they get there. Drop it before the session.
pub struct CopyIn {
    cuda: CudaRuntime,
    device: AllocationDevice<'static>,
    stream: *mut c_void,
    /// For the size of the last batch. Batches are padded to few sizes, mostly to one.
    tensors: BTreeMap<usize, Vec<DynTensor>>,
}

// SAFETY: CUDA's streams may be used from any thread, and the tensors are used by one at a time.
unsafe impl Send for CopyIn {}

impl CopyIn {
    /// For the one GPU of this process.
    pub fn to_gpu(cuda: CudaRuntime) -> ort::Result<CopyIn> {
        CopyIn::on(AllocationDevice::CUDA, cuda)
    }

    fn on(device: AllocationDevice<'static>, cuda: CudaRuntime) -> ort::Result<CopyIn> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the place is valid.
        cuda.check(unsafe { (cuda.stream_create)(&raw mut stream, NON_BLOCKING) })
            .map_err(ort::Error::new)?;
        Ok(CopyIn { cuda, device, stream, tensors: BTreeMap::new() })
    }

    /// Copies the inputs at `addresses` to the device and binds them there. They have arrived when it returns.
    ///
    /// # Safety
    /// Nothing writes to the inputs at `addresses` until this returns.
    pub unsafe fn bind(
        &mut self,
        session: &Session,
        binding: &mut IoBinding,
        model: &Model,
        addresses: &RowAddresses,
    ) -> ort::Result<()> {
        if !self.tensors.contains_key(&addresses.rows) {
            self.tensors.clear();
            binding.clear_inputs();
            let place = MemoryInfo::new(self.device.clone(), 0, AllocatorType::Device, MemoryType::Default)?;
            let allocator = Allocator::new(session, place)?;
            let tensor = |tensor: &RowTensor| {
                DynTensor::new(&allocator, element_type(tensor.dtype), tensor.shape(addresses.rows))
            };
            let made = model.inputs.iter().map(tensor).collect::<ort::Result<_>>()?;
            self.tensors.insert(addresses.rows, made);
        }
        let tensors = self.tensors.values_mut().flatten();
        for ((spec, value), from) in model.session_inputs.iter().zip(tensors).zip(&addresses.inputs) {
            let to = value.data_ptr_mut();
            // SAFETY: the tensor has as many bytes as these rows, and no run that reads it is on its way.
            let code =
                unsafe { (self.cuda.memcpy_async)(to, from.ptr.cast(), from.len, TO_DEVICE, self.stream) };
            self.cuda.check(code).map_err(ort::Error::new)?;
            binding.bind_input(&spec.name, &*value)?;
        }
        // SAFETY: the stream is ours.
        self.cuda.check(unsafe { (self.cuda.stream_synchronize)(self.stream) }).map_err(ort::Error::new)
    }

    /// Gives back the tensors. Nothing is bound any more.
    pub fn release(&mut self) {
        self.tensors.clear();
    }
}

impl Drop for CopyIn {
    fn drop(&mut self) {
        // SAFETY: made by this runtime, and destroyed only here.
        let code = unsafe { (self.cuda.stream_destroy)(self.stream) };
        // It fails for a device that is lost, which the next run says better.
        drop(self.cuda.check(code));
    }
}

/// The place of one of two streams in the order of all runs. Without a number it waits for nothing.
pub struct Turn {
    shared: Arc<Turns>,
    number: Option<u64>,
}

#[derive(Default)]
struct Turns {
    next: Mutex<Next>,
    changed: Condvar,
}

#[derive(Default)]
struct Next {
    taken: u64,
    /// The one that may compute.
    compute: u64,
    /// The one that may be answered. Never more than `compute`.
    answer: u64,
}

impl Turn {
    /// One for each of two streams.
    pub fn pair() -> [Turn; 2] {
        let shared = Arc::<Turns>::default();
        [Turn { shared: Arc::clone(&shared), number: None }, Turn { shared, number: None }]
    }

    /// The next number, for the run that is next.
    pub fn take(&mut self) {
        let mut next = locked(&self.shared.next);
        self.number = Some(next.taken);
        next.taken += 1;
    }

    /// Returns when all runs before this one have computed.
    pub fn wait(&self) {
        self.until(|next, number| next.compute >= number, |_, _| {});
    }

    /// Lets the next one compute. Called for each number, whatever became of the run; a second call changes nothing.
    pub fn computed(&self) {
        self.until(
            |next, number| next.compute >= number,
            |next, number| next.compute = next.compute.max(number + 1),
        );
    }

    /// Returns when all runs before this one are answered.
    pub fn wait_to_answer(&self) {
        self.until(|next, number| next.answer >= number, |_, _| {});
    }

    /// Lets the next one be answered.
    pub fn answered(&mut self) {
        self.until(|next, number| next.answer >= number, |next, _| next.answer += 1);
        self.number = None;
    }

    fn until(&self, is_due: impl Fn(&Next, u64) -> bool, then: impl FnOnce(&mut Next, u64)) {
        let Some(number) = self.number else { return };
        let next = locked(&self.shared.next);
        let waited = self.shared.changed.wait_while(next, |next| !is_due(next, number));
        then(&mut waited.unwrap_or_else(PoisonError::into_inner), number);
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
#[path = "overlap_tests.rs"]
mod tests;
