//! Page-locks the batch slots, so that a GPU copies from and to them by itself and at full speed. What is refused stays as it is: copies
//! are then slower, and as right as before. It copies nothing.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use orchestra_wire::arena::WorkerArena;

/// `cudaHostRegisterReadOnly`: the device only reads. A mapping that the process itself may not write to is refused without it.
const READ_ONLY: c_uint = 0x08;
/// `cudaHostRegisterDefault`
const DEFAULT: c_uint = 0;
/// `cudaSuccess`
const SUCCESS: c_int = 0;
/// CUDA's runtime as the loader knows it, once the provider has loaded it. Newest first.
const CUDA_RUNTIMES: [&CStr; 2] = [c"libcudart.so.13", c"libcudart.so.12"];

/// The functions of CUDA's runtime that this needs. They have had these types in every release.
#[derive(Clone, Copy)]
struct CudaRuntime {
    register: unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int,
    unregister: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// Gives the last error and forgets it.
    last_error: unsafe extern "C" fn() -> c_int,
    error_text: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// Memory that is page-locked until this is dropped.
pub struct PageLock {
    cuda: CudaRuntime,
    locked: Vec<*mut c_void>,
}

// SAFETY: the addresses are only names of registrations, and CUDA's runtime may be called from any thread.
unsafe impl Send for PageLock {}

/// Page-locks what it can of the arena. Call it when the provider is loaded, and drop the result before the arena. Says on stderr, once,
/// what was refused.
pub fn lock(arena: &WorkerArena) -> Option<PageLock> {
    let Some(cuda) = CudaRuntime::of_this_process() else {
        eprintln!(
            "worker: batch slots are not page-locked: CUDA's runtime is not in the process under a known name"
        );
        return None;
    };
    let (inputs, outputs) = (arena.all_inputs(), arena.all_outputs());
    let regions = [
        Region {
            name: "inputs",
            start: inputs.ptr.cast_mut().cast(),
            bytes: inputs.len,
            flags: &[READ_ONLY, DEFAULT],
        },
        Region { name: "outputs", start: outputs.ptr.cast(), bytes: outputs.len, flags: &[DEFAULT] },
    ];
    // SAFETY: both lie in the arena, which outlives the lock.
    let (lock, refused) = unsafe { PageLock::new(cuda, &regions) };
    if !refused.is_empty() {
        eprintln!(
            "worker: batch slots are not all page-locked, so copies take longer: {}",
            refused.join("; ")
        );
    }
    Some(lock)
}

/// Memory to lock, and with which flags to try it.
struct Region {
    name: &'static str,
    start: *mut c_void,
    bytes: usize,
    flags: &'static [c_uint],
}

impl PageLock {
    /// Locks these regions, and says which were refused and why.
    ///
    /// # Safety
    /// The regions are mapped for as long as the lock lives.
    unsafe fn new(cuda: CudaRuntime, regions: &[Region]) -> (PageLock, Vec<String>) {
        let mut lock = PageLock { cuda, locked: Vec::new() };
        let mut refused = Vec::new();
        for region in regions.iter().filter(|region| region.bytes > 0) {
            let mut code = SUCCESS;
            for flags in region.flags {
                // SAFETY: the region is mapped, as the caller vouches.
                code = unsafe { (cuda.register)(region.start, region.bytes, *flags) };
                if code == SUCCESS {
                    lock.locked.push(region.start);
                    break;
                }
                // Else the next kernel that asks whether all went well would be told of this.
                // SAFETY: it takes nothing.
                unsafe { (cuda.last_error)() };
            }
            if code != SUCCESS {
                refused.push(format!("{}: {}", region.name, cuda.describe(code)));
            }
        }
        (lock, refused)
    }
}

impl Drop for PageLock {
    fn drop(&mut self) {
        for start in self.locked.drain(..) {
            // SAFETY: it was registered, once, and is unregistered here alone.
            unsafe { (self.cuda.unregister)(start) };
        }
    }
}

impl CudaRuntime {
    /// The one that the provider uses.
    fn of_this_process() -> Option<Self> {
        let handle = CUDA_RUNTIMES.iter().find_map(|name| {
            // SAFETY: `RTLD_NOLOAD` gives the library that is in the process already, or null; it is never closed.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            (!handle.is_null()).then_some(handle)
        })?;
        // SAFETY: the handle is valid and the name ends with 0.
        let symbol =
            |name: &CStr| Some(unsafe { libc::dlsym(handle, name.as_ptr()) }).filter(|s| !s.is_null());
        let (register, unregister) = (symbol(c"cudaHostRegister")?, symbol(c"cudaHostUnregister")?);
        let (last_error, error_text) = (symbol(c"cudaGetLastError")?, symbol(c"cudaGetErrorString")?);
        // SAFETY: symbols of these names have these types in every release of CUDA.
        unsafe {
            Some(Self {
                register: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int,
                >(register),
                unregister: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(
                    unregister,
                ),
                last_error: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(last_error),
                error_text: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *const c_char>(
                    error_text,
                ),
            })
        }
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
mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        /// What the runtime below was told: tests run on threads of their own.
        static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    fn note(call: String) {
        CALLS.with_borrow_mut(|calls| calls.push(call));
    }

    unsafe extern "C" fn register(start: *mut c_void, bytes: usize, flags: c_uint) -> c_int {
        note(format!("register {} {bytes} {flags}", start as usize));
        // Refuses to lock for reading, as some drivers do, and everything at 4096.
        if flags == READ_ONLY || start as usize == 4096 { 801 } else { SUCCESS }
    }

    unsafe extern "C" fn unregister(start: *mut c_void) -> c_int {
        note(format!("unregister {}", start as usize));
        SUCCESS
    }

    unsafe extern "C" fn last_error() -> c_int {
        note("forget".to_owned());
        801
    }

    unsafe extern "C" fn error_text(_: c_int) -> *const c_char {
        c"operation not supported".as_ptr()
    }

    const FAKE: CudaRuntime = CudaRuntime { register, unregister, last_error, error_text };

    fn region(name: &'static str, start: usize, bytes: usize, flags: &'static [c_uint]) -> Region {
        Region { name, start: start as *mut c_void, bytes, flags }
    }

    #[test]
    fn what_is_locked_is_unlocked_once_and_what_is_refused_leaves_no_error_behind() {
        let regions = [
            region("inputs", 4096, 10, &[READ_ONLY, DEFAULT]),
            region("outputs", 8192, 20, &[READ_ONLY, DEFAULT]),
            region("nothing", 64, 0, &[DEFAULT]),
        ];
        // SAFETY: the runtime touches no memory.
        let (lock, refused) = unsafe { PageLock::new(FAKE, &regions) };
        assert_eq!(refused, ["inputs: CUDA error 801, operation not supported"]);
        drop(lock);
        let calls = CALLS.take();
        let expected = [
            "register 4096 10 8",
            "forget",
            "register 4096 10 0",
            "forget",
            "register 8192 20 8",
            "forget",
            "register 8192 20 0",
            "unregister 8192",
        ];
        assert_eq!(calls, expected);
    }
}
