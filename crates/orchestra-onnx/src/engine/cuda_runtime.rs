//! CUDA's runtime as this process has it: the few functions that are called besides ONNX Runtime. Loads nothing, and decides nothing.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use orchestra_worker::library::SharedLibrary;

/// `cudaMemcpyHostToDevice`
pub const TO_DEVICE: c_int = 1;
/// `cudaMemcpyDeviceToHost`
pub const TO_HOST: c_int = 2;
/// `cudaSuccess`
const SUCCESS: c_int = 0;
/// CUDA's runtime as the loader knows it, once the provider has loaded it. Newest first.
const NAMES: [&str; 2] = ["libcudart.so.13", "libcudart.so.12"];

orchestra_worker::functions! {
    /// Functions of CUDA's runtime. They have had these types in every release.
    pub struct CudaRuntime {
        device_count: "cudaGetDeviceCount" (*mut c_int) -> c_int;
        register: "cudaHostRegister" (*mut c_void, usize, c_uint) -> c_int;
        /// To, from, bytes, and the direction.
        memcpy: "cudaMemcpy" (*mut c_void, *const c_void, usize, c_int) -> c_int;
        /// Null is the stream that `memcpy` is on.
        stream_synchronize: "cudaStreamSynchronize" (*mut c_void) -> c_int;
        /// Gives the last error and forgets it.
        last_error: "cudaGetLastError" () -> c_int;
        error_text: "cudaGetErrorString" (c_int) -> *const c_char;
    }
}

impl CudaRuntime {
    /// The one that the provider uses; `None` where it has not loaded one under a known name.
    pub fn of_this_process() -> Option<Self> {
        let library = NAMES.into_iter().find_map(SharedLibrary::of_this_process)?;
        Self::of(&library).ok()
    }

    /// Devices that this process can use.
    ///
    /// # Errors
    /// There is none, or the driver gives no answer, in CUDA's words.
    pub fn devices(&self) -> Result<c_int, String> {
        let mut count = 0;
        // SAFETY: the place is valid.
        let code = unsafe { (self.device_count)(&raw mut count) };
        self.check(code).map(|()| count)
    }

    /// What `code` says, as an error that nothing else will be told of.
    pub fn check(&self, code: c_int) -> Result<(), String> {
        if code == SUCCESS {
            return Ok(());
        }
        // Else the next kernel that asks whether all went well would be told of this.
        // SAFETY: it takes nothing.
        unsafe { (self.last_error)() };
        Err(self.describe(code))
    }

    fn describe(&self, code: c_int) -> String {
        // SAFETY: it takes any number, and gives a static string or null.
        let text = unsafe { (self.error_text)(code) };
        if text.is_null() {
            return format!("CUDA error {code}");
        }
        // SAFETY: not null, and static.
        format!("CUDA error {code}, {}", unsafe { CStr::from_ptr(text) }.to_string_lossy())
    }
}

#[cfg(test)]
pub mod fake {
    //! A runtime without a GPU. It notes what it is told, and refuses on demand.

    use std::cell::{Cell, RefCell};

    use super::*;

    thread_local! {
        // Tests run on threads of their own.
        static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
        static REFUSED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
        static FAILED: Cell<bool> = const { Cell::new(false) };
        static DEVICES: Cell<c_int> = const { Cell::new(1) };
    }

    /// What it gives to whatever it refuses: `cudaErrorNotSupported`.
    const REFUSAL: c_int = 801;

    pub const RUNTIME: CudaRuntime =
        CudaRuntime { device_count, register, memcpy, stream_synchronize, last_error, error_text };

    /// Refuses from now on what starts like one of these.
    pub fn refuse(calls: &[&'static str]) {
        REFUSED.set(calls.to_vec());
    }

    /// Shows so many devices from now on.
    pub fn show(devices: c_int) {
        DEVICES.set(devices);
    }

    /// What it was told since the last time.
    pub fn calls() -> Vec<String> {
        CALLS.take()
    }

    fn answer(call: String) -> c_int {
        let refused = REFUSED.with_borrow(|refused| refused.iter().any(|r| call.starts_with(r)));
        CALLS.with_borrow_mut(|calls| calls.push(call));
        FAILED.set(FAILED.get() || refused);
        if refused { REFUSAL } else { SUCCESS }
    }

    unsafe extern "C" fn device_count(place: *mut c_int) -> c_int {
        // SAFETY: the caller vouches for the place.
        unsafe { *place = DEVICES.get() };
        answer("count".to_owned())
    }

    unsafe extern "C" fn register(start: *mut c_void, bytes: usize, flags: c_uint) -> c_int {
        answer(format!("register {} {bytes} {flags}", start as usize))
    }

    /// Its device is the host.
    unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int) -> c_int {
        let code = answer(format!("memcpy {bytes} {kind}"));
        if code == SUCCESS {
            // SAFETY: the caller vouches for both.
            unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), bytes) };
        }
        code
    }

    unsafe extern "C" fn stream_synchronize(_: *mut c_void) -> c_int {
        answer("synchronize".to_owned())
    }

    unsafe extern "C" fn last_error() -> c_int {
        if FAILED.replace(false) { REFUSAL } else { SUCCESS }
    }

    unsafe extern "C" fn error_text(_: c_int) -> *const c_char {
        c"operation not supported".as_ptr()
    }
}
