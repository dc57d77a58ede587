//! The operator's kernel: copies its input, or springs the trap that lies in it. Speaks raw C API, keeps nothing between runs.

use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::time::Duration;

use ort::sys::{OrtApi, OrtCustomOp, OrtErrorCode, OrtKernelContext, OrtKernelInfo, OrtStatusPtr, OrtValue};

use crate::trap_operator::{
    DEADLY, FLOOD, FLOOD_IN_RUN, FLOOD_LINES, GOT_THROUGH, IN_LOAD, IN_RUN, LAST_WORDS, OUT_OF_MEMORY_TEXT,
    Trap, bloat, gate, intruder,
};

/// What it says where nothing has bounded it.
const UNBOUNDED: &str = "the test operator took gigabytes, and was not refused";
/// The most rows that `Trap::OutOfMemory` lets pass.
const ROWS_THAT_FIT: i64 = 2;

/// What a kernel keeps: the API of the runtime that made it.
struct Kernel {
    api: *const OrtApi,
}

/// A status that is an error; the runtime owns what it points to.
struct Failed(OrtStatusPtr);

pub(crate) unsafe extern "system" fn create(
    _: *const OrtCustomOp,
    api: *const OrtApi,
    _: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    die_if_asked(IN_LOAD);
    // SAFETY: the runtime passes a place for the pointer; `destroy` takes the box back.
    unsafe { *kernel = Box::into_raw(Box::new(Kernel { api })).cast() };
    OrtStatusPtr::default()
}

pub(crate) unsafe extern "system" fn destroy(kernel: *mut c_void) {
    // SAFETY: made by `create`, and destroyed once.
    drop(unsafe { Box::from_raw(kernel.cast::<Kernel>()) });
}

/// What runs the kernel: an exception may leave it.
pub(crate) type Compute = unsafe extern "C-unwind" fn(*mut c_void, *mut OrtKernelContext) -> OrtStatusPtr;
/// As the API declares it.
pub(crate) type ComputeOfApi = unsafe extern "system" fn(*mut c_void, *mut OrtKernelContext) -> OrtStatusPtr;

pub(crate) unsafe extern "C-unwind" fn compute(
    kernel: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    die_if_asked(IN_RUN);
    flood_if_asked();
    // SAFETY: `kernel` is what `create` made, `context` is valid for this call.
    match unsafe { (*kernel.cast::<Kernel>()).run(context) } {
        Ok(()) => OrtStatusPtr::default(),
        Err(Failed(status)) => status,
    }
}

impl Kernel {
    /// # Safety
    /// `context` is that of a running kernel with one f32 input and output.
    unsafe fn run(&self, context: *mut OrtKernelContext) -> Result<(), Failed> {
        // SAFETY: the API is valid as long as the runtime is loaded; all pointers come from it and are used within this call.
        unsafe {
            let api = &*self.api;
            let mut input: *const OrtValue = ptr::null();
            check((api.KernelContext_GetInput)(context, 0, &mut input))?;
            let shape = self.shape(input)?;
            let mut from = ptr::null_mut();
            // The only accessor that every version has; nothing is written through it.
            check((api.GetTensorMutableData)(input.cast_mut(), &mut from))?;
            let len = usize::try_from(shape.iter().product::<i64>()).unwrap_or(0);
            // An empty tensor may have no memory at all.
            let elements: &[f32] =
                if len == 0 { &[] } else { std::slice::from_raw_parts(from.cast::<f32>(), len) };
            // Rows of a warm-up are zeros, and no items.
            if elements.iter().any(|e| *e != 0.0) {
                gate::pass(shape.first().copied().unwrap_or(1));
            }
            if let Some(trap) = elements.iter().find_map(|e| Trap::of(*e)) {
                self.spring(trap, shape.first().copied().unwrap_or(1))?;
            }
            let mut output = ptr::null_mut();
            check((api.KernelContext_GetOutput)(context, 0, shape.as_ptr(), shape.len(), &mut output))?;
            let mut to = ptr::null_mut();
            check((api.GetTensorMutableData)(output, &mut to))?;
            // The runtime may place the output where the input lies.
            ptr::copy(elements.as_ptr(), to.cast::<f32>(), len);
        }
        Ok(())
    }

    /// # Safety
    /// `value` is a tensor.
    unsafe fn shape(&self, value: *const OrtValue) -> Result<Vec<i64>, Failed> {
        // SAFETY: as above; the info is released on every path.
        unsafe {
            let api = &*self.api;
            let mut info = ptr::null_mut();
            check((api.GetTensorTypeAndShape)(value, &mut info))?;
            let mut rank = 0;
            let counted = check((api.GetDimensionsCount)(info, &mut rank));
            let mut shape = vec![0; rank];
            let read =
                counted.and_then(|()| check((api.GetDimensions)(info, shape.as_mut_ptr(), shape.len())));
            (api.ReleaseTensorTypeAndShapeInfo)(info);
            read.map(|()| shape)
        }
    }

    fn spring(&self, trap: Trap, rows: i64) -> Result<(), Failed> {
        match trap {
            Trap::Abort => std::process::abort(),
            Trap::Segfault => {
                // Not null: a debug build checks for that and would abort instead.
                let nowhere = ptr::without_provenance_mut::<u8>(1);
                // SAFETY: there is none; the fault is the purpose.
                unsafe { nowhere.write_volatile(1) };
                Ok(())
            }
            Trap::Hang => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            // SAFETY: `_exit` has no preconditions.
            Trap::Exit => unsafe { libc::_exit(0) },
            Trap::Fail => Err(self.failure("the test operator was asked to fail")),
            Trap::OutOfMemory if rows > ROWS_THAT_FIT => Err(self.failure(OUT_OF_MEMORY_TEXT)),
            Trap::OutOfMemory => Ok(()),
            Trap::Intrude => {
                let through = [intruder::attempts(), intruder::attempts_on_inputs()].concat();
                Err(self.failure(&format!("{GOT_THROUGH} {}.", through.join(", "))))
            }
            Trap::Scribble => loop {
                intruder::scribble(usize::MAX);
            },
            Trap::Bloat => {
                bloat::bloat();
                Err(self.failure(UNBOUNDED))
            }
            Trap::BloatInCpp => {
                bloat::bloat_in_cpp();
                Err(self.failure(UNBOUNDED))
            }
            Trap::Threads => {
                bloat::start_threads();
                Err(self.failure(UNBOUNDED))
            }
            Trap::Fork => {
                leave_a_process_behind();
                Ok(())
            }
        }
    }

    fn failure(&self, text: &str) -> Failed {
        let text = CString::new(text).unwrap_or_default();
        let text: &CStr = &text;
        // SAFETY: the API is valid, and it copies the text.
        Failed(unsafe { ((*self.api).CreateStatus)(OrtErrorCode::ORT_RUNTIME_EXCEPTION, text.as_ptr()) })
    }
}

/// Says a lot where the environment asks for that.
fn flood_if_asked() {
    if std::env::var_os(DEADLY).is_some_and(|asked| asked == FLOOD_IN_RUN) {
        eprint!("{}", format!("{FLOOD}\n").repeat(FLOOD_LINES));
    }
}

fn die_if_asked(moment: &str) {
    if std::env::var_os(DEADLY).is_some_and(|asked| asked == moment) {
        eprintln!("{LAST_WORDS}");
        std::process::abort();
    }
}

fn leave_a_process_behind() {
    // SAFETY: the child makes only calls that are allowed after a fork of a process with threads.
    unsafe {
        if libc::fork() == 0 {
            loop {
                libc::pause();
            }
        }
    }
}

fn check(status: OrtStatusPtr) -> Result<(), Failed> {
    if status.0.is_null() { Ok(()) } else { Err(Failed(status)) }
}
