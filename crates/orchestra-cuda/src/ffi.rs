//! The functions of CUDA's driver and of NVRTC as safe ones, found when a worker runs. Nothing here decides, and nothing is freed: a worker ends
//! with `_exit`, and the driver takes back what a process had.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;

use orchestra_worker::library::SharedLibrary;

type Handle = *mut c_void;

pub mod driver;
pub mod nvrtc;

fn open(path: &Path) -> Result<SharedLibrary, String> {
    // SAFETY: NVIDIA's libraries run nothing in their initialisers that asks for more than a process.
    unsafe { SharedLibrary::open(path, libc::RTLD_NOW | libc::RTLD_LOCAL) }
}

/// A string of C, copied.
///
/// # Safety
/// It is null, or ends with 0.
unsafe fn text(start: *const c_char) -> Option<String> {
    // SAFETY: not null, and as the caller vouches.
    (!start.is_null()).then(|| unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned())
}
