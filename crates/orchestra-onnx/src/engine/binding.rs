//! Runs a session over memory that it does not own: the only place where pointers become tensors. It copies nothing but outputs of
//! dynamic shape, and knows neither arena nor slots.

use crate::session_names::output_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use orchestra_core::{DType, DeviceKind, model_output};
use orchestra_worker::frames::{DynamicOutput, RunErrorKind, RunTiming};
use ort::memory::{Allocator, MemoryInfo};
use ort::session::{IoBinding, RunOptions, Session};
use ort::value::{DynTensor, DynTensorValueType, DynValue, TensorElementType};
use ort::{AsPointer, sys};

use super::model::{RowAddresses, RowTensor, SessionModel, element_type};
use super::shrink::Shrink;
use super::{errors, text_inputs, trim_graph};
use orchestra_worker::engine::{EngineRunError, nanos};

/// An element of what rows are trimmed to: one for each of two axes.
const ENDS: RowTensor = RowTensor { dtype: DType::I64, row: Vec::new(), row_bytes: size_of::<i64>() };

/// A session and what is bound to it. The binding goes first.
///
/// Several may share a session, and run at the same time. ONNX Runtime documents `Run` as safe to be called by several threads on one
/// session, for all providers but DirectML; each call has the state of its own run, and allocators are locked. What a binding holds is
/// its own. On the CPU the runs share the session's threads: a run also works on the thread that calls it, so with one thread per session
/// each run has exactly its caller's. On CUDA each run that is on its way has streams of its own, with cuBLAS and cuDNN handles of their
/// own, which the session keeps for later runs; so the copies of one may overlap what another computes, as
/// far as waiting for inputs and outputs, which is for the device as a whole, lets them.
///
/// ort asks for the session exclusively, because it does not trust all providers with that.
/// So more than one has to be asked for (`streams`), and runs go past ort's own method.
pub struct BoundSession {
    /// Outputs of dynamic shape of the last run, with their place.
    dynamic: Vec<(usize, DynTensor)>,
    binding: IoBinding,
    /// Height and width that rows are trimmed to, which is bound where the model has an input that is.
    ends: Box<[i64; 2]>,
    session: Arc<Session>,
    cpu: MemoryInfo<'static>,
    on_device: bool,
    /// When runs give back memory.
    pub shrink: Shrink,
}

impl BoundSession {
    pub fn new(session: Session, device: &DeviceKind) -> ort::Result<BoundSession> {
        let binding = session.create_binding()?;
        let on_device = matches!(device, DeviceKind::Cuda { .. });
        let shrink = Shrink::new(&session, device)?;
        Ok(BoundSession {
            dynamic: Vec::new(),
            binding,
            ends: Box::default(),
            session: Arc::new(session),
            cpu: MemoryInfo::default(),
            on_device,
            shrink,
        })
    }

    /// Another one over the same session, to which nothing is bound yet.
    pub fn another(&self, device: &DeviceKind) -> ort::Result<BoundSession> {
        Ok(BoundSession {
            dynamic: Vec::new(),
            binding: self.session.create_binding()?,
            ends: Box::default(),
            session: Arc::clone(&self.session),
            cpu: MemoryInfo::default(),
            on_device: self.on_device,
            shrink: self.shrink.another(&self.session, device)?,
        })
    }

    /// Runs the session over the rows at `addresses`; outputs of fixed shape are there after it, the others wait for
    /// [`BoundSession::take_dynamic`].
    ///
    /// # Safety
    /// The outputs at `addresses` have no other user, and its inputs no writer, until this returns; the memory outlives what is bound, that
    /// is, until the next run or `release`.
    pub unsafe fn run(
        &mut self,
        model: &SessionModel,
        addresses: &RowAddresses<'_>,
        timing: &mut RunTiming,
    ) -> Result<(), EngineRunError> {
        let start = Instant::now();
        self.dynamic.clear();
        // SAFETY: the caller's promises are those that binding asks for.
        unsafe { self.bind(model, addresses) }.map_err(|e| self.failed(&e))?;
        timing.bind_ns += nanos(start.elapsed());
        let start = Instant::now();
        let ran = self.run_bound(model);
        timing.run_ns = nanos(start.elapsed());
        ran.map_err(|e| self.failed(&e))
    }

    pub fn is_on_device(&self) -> bool {
        self.on_device
    }

    /// The session alone, for what allocates and binds by itself.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Runs the session over what is bound to another binding, and waits for its outputs.
    pub fn run_over(&mut self, binding: &IoBinding) -> ort::Result<()> {
        let BoundSession { session, shrink, on_device, .. } = self;
        shrink.around(|options| run_binding(session, binding, options))?;
        if *on_device { binding.synchronize_outputs() } else { Ok(()) }
    }

    /// What an error of a run says, with what follows from it for the memory of the next one.
    pub fn failed(&mut self, error: &ort::Error) -> EngineRunError {
        let error = errors::run(error);
        if error.kind == RunErrorKind::OutOfMemory {
            // The arena keeps what it got, in regions that suit no smaller batch. Less may come next, and need it.
            self.shrink.after_next();
            // Copies of its inputs on the device would hold their regions until this stream runs again.
            self.release();
        }
        error
    }

    /// Runs the session over the rows at `addresses`, and keeps nothing of them.
    ///
    /// # Safety
    /// As for [`BoundSession::run`].
    pub unsafe fn warm(
        &mut self,
        model: &SessionModel,
        addresses: &RowAddresses<'_>,
    ) -> Result<(), EngineRunError> {
        // SAFETY: the caller's promises are the same.
        let ran = unsafe { self.run(model, addresses, &mut RunTiming::default()) };
        self.release();
        ran
    }

    pub fn release(&mut self) {
        self.dynamic.clear();
        self.binding.clear();
    }

    /// Outputs of dynamic shape of the run of `ran` rows, cut to the first `wanted` (the others are padding).
    pub fn take_dynamic(
        &mut self,
        model: &SessionModel,
        ran: usize,
        wanted: usize,
    ) -> Result<Vec<DynamicOutput>, EngineRunError> {
        let values = std::mem::take(&mut self.dynamic);
        values
            .iter()
            .map(|(output, value)| {
                let name = &model.session_outputs[*output].name;
                let each = model.texts[*output].unwrap_or(1);
                if let Some(texts) = texts(name, value, each, [ran, wanted])? {
                    let shape = vec![texts.len()];
                    return Ok(DynamicOutput { output: *output, dtype: DType::U8, shape, data: texts });
                }
                let (dtype, mut shape, data) = contents(name, value)?;
                if model.is_single && shape.first() != Some(&1) {
                    shape.insert(0, 1); // All of it belongs to the one item.
                }
                cut(DynamicOutput { output: *output, dtype, shape, data }, name, ran, wanted)
            })
            .collect()
    }

    /// # Safety
    /// As for [`BoundSession::run`].
    unsafe fn bind(&mut self, model: &SessionModel, addresses: &RowAddresses<'_>) -> ort::Result<()> {
        // Everything is bound anew for every run: the C side copies inputs to the device when they are bound, and would take the
        // last run's dynamic output for the place of the next one's.
        let inputs = model.session_inputs.iter().zip(&model.inputs).zip(&addresses.inputs);
        for ((spec, tensor), rows) in inputs {
            // SAFETY: the memory has the size of these rows; the session only reads inputs.
            let value =
                unsafe { value_over(&self.cpu, tensor, addresses.rows, rows.ptr.cast_mut(), rows.len) }?;
            self.binding.bind_input(&spec.name, &value)?;
        }
        for (input, texts) in model.text_inputs.iter().zip(&addresses.texts) {
            let value = text_inputs::value(input, addresses.rows, texts)?;
            self.binding.bind_input(&input.name, &value)?;
        }
        if let Some(whole) = model.whole {
            *self.ends = addresses.trimmed_to.unwrap_or(whole);
            // SAFETY: the numbers are where they are for as long as the binding, and change before a run alone.
            let ends = unsafe {
                value_over(
                    &self.cpu,
                    &ENDS,
                    self.ends.len(),
                    self.ends.as_mut_ptr().cast(),
                    size_of_val(&*self.ends),
                )
            }?;
            self.binding.bind_input(trim_graph::ENDS, &ends)?;
        }
        for ((spec, tensor), rows) in model.session_outputs.iter().zip(&model.outputs).zip(&addresses.outputs)
        {
            match (tensor, rows) {
                (Some(tensor), Some(rows)) => {
                    // SAFETY: the memory has the size of these rows and is the caller's to write to.
                    let value = unsafe { value_over(&self.cpu, tensor, addresses.rows, rows.ptr, rows.len) }?;
                    self.binding.bind_output(&spec.name, value)?;
                }
                _ => self.binding.bind_output_to_device(&spec.name, &self.cpu)?,
            }
        }
        Ok(())
    }

    fn run_bound(&mut self, model: &SessionModel) -> ort::Result<()> {
        if self.on_device {
            self.binding.synchronize_inputs()?;
        }
        let BoundSession { binding, session, shrink, .. } = self;
        shrink.around(|options| run_binding(session, binding, options))?;
        if model.outputs.iter().any(Option::is_none) {
            self.keep_dynamic(model)?;
        }
        if self.on_device {
            self.binding.synchronize_outputs()?;
        }
        Ok(())
    }

    /// Takes over the outputs of dynamic shape of a run. Outputs were bound in the order of the model, and are given in that order.
    fn keep_dynamic(&mut self, model: &SessionModel) -> ort::Result<()> {
        for (at, (value, fixed)) in output_values(&self.binding)?.into_iter().zip(&model.outputs).enumerate()
        {
            if fixed.is_none() {
                self.dynamic.push((at, value.downcast::<DynTensorValueType>()?));
            }
        }
        Ok(())
    }
}

/// An owned tensor value over memory of ours, which `memory` describes. ort marks what comes from a pointer as owned, so it neither clones it when it is bound
/// (binding a borrowed `TensorRef` deadlocks in ort 2.0.0-rc.15) nor refuses it as an output.
///
/// # Safety
/// `data` has `bytes` bytes and outlives the value and all bindings of it.
pub unsafe fn value_over(
    memory: &MemoryInfo<'_>,
    tensor: &RowTensor,
    rows: usize,
    data: *mut u8,
    bytes: usize,
) -> ort::Result<DynValue> {
    let shape = tensor.shape(rows);
    let element = sys::ONNXTensorElementDataType::from(element_type(tensor.dtype));
    let mut value = std::ptr::null_mut();
    // SAFETY: the caller vouches for the memory; the runtime checks that it is large enough for the shape.
    let status = unsafe {
        (ort::api().CreateTensorWithDataAsOrtValue)(
            memory.ptr(),
            data.cast(),
            bytes,
            shape.as_ptr(),
            shape.len(),
            element,
            &mut value,
        )
    };
    // SAFETY: the status was just returned by the API.
    unsafe { ort::Error::result_from_status(status) }?;
    let value = NonNull::new(value).ok_or_else(|| ort::Error::new("the runtime made a null tensor"))?;
    // SAFETY: a valid value without another owner.
    Ok(unsafe { DynValue::from_ptr(value, Some(&Allocator::default())) })
}

/// Runs the session over what is bound, which has no other user meanwhile. See [`BoundSession`] for why this is not ort's own method.
pub fn run_binding(session: &Session, binding: &IoBinding, options: Option<&RunOptions>) -> ort::Result<()> {
    let options = options.map_or(std::ptr::null(), AsPointer::ptr);
    // SAFETY: all are alive, the runtime changes nothing of the session in a run, and the binding is the caller's alone.
    let status =
        unsafe { (ort::api().RunWithBinding)(session.ptr().cast_mut(), options, binding.ptr().cast_mut()) };
    // SAFETY: the status was just returned by the API.
    unsafe { ort::Error::result_from_status(status) }
}

/// What a run has left at the outputs that are bound, in the order in which they were.
pub fn output_values(binding: &IoBinding) -> ort::Result<Vec<DynValue>> {
    let allocator = Allocator::default();
    let (mut values, mut count) = (std::ptr::null_mut(), 0);
    // SAFETY: binding and allocator are alive, and the out pointers are valid.
    let status = unsafe {
        (ort::api().GetBoundOutputValues)(binding.ptr(), allocator.ptr().cast_mut(), &mut values, &mut count)
    };
    // SAFETY: the status was just returned by the API.
    unsafe { ort::Error::result_from_status(status) }?;
    if values.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: the array has `count` values.
    let made = unsafe { std::slice::from_raw_parts(values, count) }.iter().filter_map(|v| NonNull::new(*v));
    // SAFETY: each of them is now ours, and the session that made them outlives them.
    let made = made.map(|value| unsafe { DynValue::from_ptr(value, Some(&allocator)) }).collect();
    // SAFETY: the array came from this allocator, and nothing points into it any more.
    let status = unsafe { (ort::api().AllocatorFree)(allocator.ptr().cast_mut(), values.cast()) };
    // SAFETY: the status was just returned by the API.
    unsafe { ort::Error::result_from_status(status) }?;
    Ok(made)
}

pub fn contents(name: &str, tensor: &DynTensor) -> Result<(DType, Vec<usize>, Vec<u8>), EngineRunError> {
    let found = *tensor.data_type();
    let dtype = DType::ALL
        .into_iter()
        .find(|dtype| element_type(*dtype) == found)
        .ok_or_else(|| EngineRunError::of_model(format!("output `{name}` has elements of type `{found}`")))?;
    let shape: Vec<usize> = tensor.shape().iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect();
    let bytes = shape.iter().product::<usize>() * dtype.size_bytes();
    let mut data = Vec::new();
    if bytes > 0 {
        // SAFETY: the tensor was bound to CPU memory and holds as many elements as its shape says.
        data.extend_from_slice(unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), bytes) });
    }
    Ok((dtype, shape, data))
}

/// The texts of the first `wanted` of `ran` rows, which have `each`; `None` where the elements are no texts.
fn texts(
    name: &str,
    tensor: &DynTensor,
    each: usize,
    [ran, wanted]: [usize; 2],
) -> Result<Option<Vec<u8>>, EngineRunError> {
    if *tensor.data_type() != TensorElementType::String {
        return Ok(None);
    }
    let (shape, texts) = tensor.try_extract_strings().map_err(|e| errors::run(&e))?;
    if ran.checked_mul(each) != Some(texts.len()) {
        let shape = shape.iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect::<Vec<_>>();
        return Err(no_rows(name, &shape, ran));
    }
    let texts: Vec<&str> = texts[..wanted * each].iter().map(String::as_str).collect();
    Ok(Some(model_output::texts::pack_rows(&texts, each)))
}

/// An output that has no row for each item of its batch.
fn no_rows(name: &str, shape: &[usize], ran: usize) -> EngineRunError {
    let shape = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let error =
        errors::no_rows(&output_of(name), &shape, &format!("a row for each item of a batch of `{ran}`"));
    EngineRunError { kind: RunErrorKind::Shape, error }
}

/// Leaves the first `wanted` of `ran` rows, if the tensor has a row per item.
fn cut(
    mut tensor: DynamicOutput,
    name: &str,
    ran: usize,
    wanted: usize,
) -> Result<DynamicOutput, EngineRunError> {
    let rows = tensor.shape.first().copied();
    if rows == Some(ran) {
        let row_bytes = tensor.data.len() / ran.max(1);
        tensor.data.truncate(row_bytes * wanted);
        tensor.shape[0] = wanted;
        return Ok(tensor);
    }
    Err(no_rows(name, &tensor.shape, ran))
}

#[cfg(test)]
mod tests {
    use super::*;
    use orchestra_worker::frames::RunErrorKind;

    fn tensor(shape: &[usize]) -> DynamicOutput {
        let data = (0..shape.iter().product::<usize>()).map(|n| n as u8).collect();
        DynamicOutput { output: 0, dtype: DType::U8, shape: shape.to_vec(), data }
    }

    #[test]
    fn padding_rows_are_cut_off() {
        let whole = cut(tensor(&[4, 2, 3]), "y", 4, 4).unwrap();
        assert_eq!(whole, tensor(&[4, 2, 3]));
        let part = cut(tensor(&[4, 2, 3]), "y", 4, 3).unwrap();
        assert_eq!(part, tensor(&[3, 2, 3]));
    }

    #[test]
    fn what_has_no_row_per_item_is_refused_as_the_doing_of_the_model() {
        for (shape, ran, wanted) in [(&[5, 6][..], 1, 1), (&[], 1, 1), (&[5, 6], 2, 2), (&[5, 6], 4, 1)] {
            let error = cut(tensor(shape), "boxes", ran, wanted).unwrap_err();
            assert_eq!(error.kind, RunErrorKind::Shape);
            assert!(error.error.contains("its output `boxes` has the shape `["), "{error}");
        }
    }
}
