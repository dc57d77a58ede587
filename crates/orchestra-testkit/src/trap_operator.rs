//! This crate as a library of custom operators for ONNX Runtime, whose one operator crashes, hangs or fails when it meets certain numbers.
//! Test only. It never initialises a runtime: it uses what the session that loads it hands over.
//!
//! The operator is `Trap` of the domain `orchestra.test`, version 1: one f32 tensor of any shape in, the same out. Each [`Trap`]
//! names the element that springs it.
//!
//! With the variable [`DEADLY`] in its environment the operator dies whatever it meets, with some last words: a broken installation,
//! which can be mended without a change to the model. With [`GATE`] it waits until a test lets it go on.

mod bloat;
mod gate;
mod intruder;
mod kernel;

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use ort::sys::{
    ONNXTensorElementDataType, ORT_API_VERSION, OrtApiBase, OrtCustomOp,
    OrtCustomOpInputOutputCharacteristic, OrtMemType, OrtSessionOptions, OrtStatusPtr,
};

pub use bloat::{bloat, start_threads};
pub use gate::{GATE, LIMIT, ROWS, WAITING};
pub use intruder::{
    ATTEMPTS, Bait, DATAGRAMS, GOT_THROUGH, INHERITED_FD, INTRUDE, REMOVABLE, SCRIBBLES, SECRET,
    SECRET_VARIABLE, SOCKET, WRITTEN, attempts, scribble,
};

pub const DOMAIN: &str = "orchestra.test";
/// The operator's name in a model.
pub const OPERATOR: &str = "Trap";
/// The text with which ONNX Runtime's own arena reports that memory ran out.
pub const OUT_OF_MEMORY_TEXT: &str = "Failed to allocate memory for requested buffer of size 1073741824";

/// The variable that makes the operator deadly: [`IN_LOAD`] or [`IN_RUN`]; or a nuisance: [`FLOOD_IN_RUN`].
pub const DEADLY: &str = "ORCHESTRA_TEST_DEADLY";
/// Of [`DEADLY`]: it aborts when a session is opened with it.
pub const IN_LOAD: &str = "in-load";
/// Of [`DEADLY`]: it aborts whenever it runs.
pub const IN_RUN: &str = "in-run";
/// Of [`DEADLY`]: it does no harm, but says [`FLOOD`] so many times whenever it runs.
pub const FLOOD_IN_RUN: &str = "flood-in-run";
/// See [`FLOOD_IN_RUN`].
pub const FLOOD_LINES: usize = 5_000;
/// What it floods standard error with.
pub const FLOOD: &str = "the test operator says this again and again";
/// What it says on standard error before it aborts because of [`DEADLY`].
pub const LAST_WORDS: &str = "the test operator aborts, as its environment asks";

const DOMAIN_C: &CStr = c"orchestra.test";
const OPERATOR_C: &CStr = c"Trap";

/// What the operator does about a batch that holds the element `value()`. The first in the batch decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trap {
    /// `abort()`, so SIGABRT.
    Abort = 13,
    /// Writes to an address that is not mapped, so SIGSEGV.
    Segfault = 14,
    /// Never returns, and lets the processor idle.
    Hang = 15,
    /// `_exit(0)` without a word.
    Exit = 16,
    /// The run fails with a status, the process lives.
    Fail = 17,
    /// The run fails as if memory had run out if the batch has more than two rows; otherwise all is well.
    OutOfMemory = 18,
    /// All is well, but a process is left behind that holds everything open which the worker had open, and lives for ever.
    Fork = 19,
    /// It tries to get out of its process, and the run fails with a list of what it could do: see [`GOT_THROUGH`].
    Intrude = 20,
    /// Writes over all shared memory that it may write to, again and again: in a worker for ever, in a loader until it aborts.
    Scribble = 21,
    /// Takes memory until it is refused, and ends the process then, as a failed allocation in Rust does. Where nothing bounds it, the run
    /// fails.
    Bloat = 22,
    /// Likewise, but it throws `std::bad_alloc` then, as an operator in C++ does.
    BloatInCpp = 23,
    /// Starts threads that do nothing until it is ended, or none can be started; the run fails then.
    Threads = 24,
}

impl Trap {
    /// All of them, in the order of their values.
    pub const ALL: [Trap; 12] = [
        Trap::Abort,
        Trap::Segfault,
        Trap::Hang,
        Trap::Exit,
        Trap::Fail,
        Trap::OutOfMemory,
        Trap::Fork,
        Trap::Intrude,
        Trap::Scribble,
        Trap::Bloat,
        Trap::BloatInCpp,
        Trap::Threads,
    ];

    /// The element that springs the trap.
    pub fn value(self) -> u8 {
        self as u8
    }

    pub fn of(element: f32) -> Option<Trap> {
        Trap::ALL.into_iter().find(|t| f32::from(t.value()) == element)
    }
}

static TRAP: OrtCustomOp = OrtCustomOp {
    version: ORT_API_VERSION,
    CreateKernel: None,
    GetName: Some(name),
    GetExecutionProviderType: Some(execution_provider),
    GetInputType: Some(element_type),
    GetInputTypeCount: Some(one_tensor),
    GetOutputType: Some(element_type),
    GetOutputTypeCount: Some(one_tensor),
    KernelCompute: None,
    KernelDestroy: Some(kernel::destroy),
    GetInputCharacteristic: Some(required),
    GetOutputCharacteristic: Some(required),
    GetInputMemoryType: Some(default_memory),
    GetVariadicInputMinArity: Some(one),
    GetVariadicInputHomogeneity: Some(one),
    GetVariadicOutputMinArity: Some(one),
    GetVariadicOutputHomogeneity: Some(one),
    CreateKernelV2: Some(kernel::create),
    // SAFETY: the runtime calls it, in C++, which expects exceptions of operators; the types differ in nothing else.
    KernelComputeV2: Some(unsafe {
        std::mem::transmute::<kernel::Compute, kernel::ComputeOfApi>(kernel::compute)
    }),
    InferOutputShapeFn: None,
    GetStartVersion: Some(one),
    GetEndVersion: Some(last_version),
    GetMayInplace: None,
    ReleaseMayInplace: None,
    GetAliasMap: None,
    ReleaseAliasMap: None,
};

/// ONNX Runtime's entry point into the library: registers the domain with the session's options.
///
/// # Safety
/// Called by ONNX Runtime with pointers that are valid for the call.
// SAFETY of the name: no other library in the process is looked up by this symbol; the runtime asks for it in this one.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn RegisterCustomOps(
    options: *mut OrtSessionOptions,
    base: *const OrtApiBase,
) -> OrtStatusPtr {
    // SAFETY: `base` is valid by contract.
    let api = unsafe { ((*base).GetApi)(ORT_API_VERSION) };
    if api.is_null() {
        // Without an API no status can be made. The session then fails on the unknown domain, which is clear enough.
        return OrtStatusPtr::default();
    }
    let mut domain = ptr::null_mut();
    // SAFETY: `api` is valid, the strings and the operator are static, and `options` is valid by contract. The domain is never
    // released: sessions refer to it until the process ends.
    unsafe {
        let status = ((*api).CreateCustomOpDomain)(DOMAIN_C.as_ptr(), &mut domain);
        if !status.0.is_null() {
            return status;
        }
        let status = ((*api).CustomOpDomain_Add)(domain, &TRAP);
        if !status.0.is_null() {
            return status;
        }
        ((*api).AddCustomOpDomain)(options, domain)
    }
}

unsafe extern "system" fn name(_: *const OrtCustomOp) -> *const c_char {
    OPERATOR_C.as_ptr()
}

/// Null: the CPU.
unsafe extern "system" fn execution_provider(_: *const OrtCustomOp) -> *const c_char {
    ptr::null()
}

unsafe extern "system" fn element_type(_: *const OrtCustomOp, _: usize) -> ONNXTensorElementDataType {
    ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
}

unsafe extern "system" fn one_tensor(_: *const OrtCustomOp) -> usize {
    1
}

unsafe extern "system" fn required(_: *const OrtCustomOp, _: usize) -> OrtCustomOpInputOutputCharacteristic {
    OrtCustomOpInputOutputCharacteristic::INPUT_OUTPUT_REQUIRED
}

unsafe extern "system" fn default_memory(_: *const OrtCustomOp, _: usize) -> OrtMemType {
    OrtMemType::OrtMemTypeDefault
}

unsafe extern "system" fn one(_: *const OrtCustomOp) -> c_int {
    1
}

unsafe extern "system" fn last_version(_: *const OrtCustomOp) -> c_int {
    c_int::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_for_models_are_the_names_for_the_runtime() {
        assert_eq!(DOMAIN_C.to_str(), Ok(DOMAIN));
        assert_eq!(OPERATOR_C.to_str(), Ok(OPERATOR));
    }

    #[test]
    fn only_its_own_value_springs_a_trap() {
        for trap in Trap::ALL {
            assert_eq!(Trap::of(f32::from(trap.value())), Some(trap));
        }
        for harmless in [0.0, 12.0, 13.5, 25.0, 255.0, f32::NAN] {
            assert_eq!(Trap::of(harmless), None);
        }
    }
}
