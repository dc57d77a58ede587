//! The functions of CUDA's driver and of NVRTC as safe ones, found when a worker runs. Nothing here decides, and nothing is freed: a worker ends
//! with `_exit`, and the driver takes back what a process had.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

type Handle = *mut c_void;

/// Fills in a table of functions by the names that they have in a library.
macro_rules! functions {
    ($table:ident { $($name:ident: $symbol:literal ($($argument:ty),*);)+ }) => {
        struct $table { $($name: unsafe extern "C" fn($($argument),*) -> c_int,)+ }

        impl $table {
            fn of(library: &Library) -> Result<Self, String> {
                Ok(Self { $($name: {
                    let symbol = library.symbol($symbol)?;
                    // SAFETY: the symbol of this name has had this type in every release that has it (`cuda.h`, `nvrtc.h`).
                    unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn($($argument),*) -> c_int>(symbol) }
                },)+ })
            }
        }
    };
}

pub mod driver;
pub mod nvrtc;

/// A library that stays in the process.
struct Library(Handle);

impl Library {
    fn open(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: the name ends with 0. NVIDIA's libraries run nothing in their initialisers that asks for more than a process.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Self(handle));
        }
        // SAFETY: after a failure it gives a string of this thread, or null.
        let why = unsafe { text(libc::dlerror()) };
        Err(why.unwrap_or_else(|| "the loader does not say why".to_owned()))
    }

    fn symbol(&self, name: &CStr) -> Result<Handle, String> {
        // SAFETY: the handle is valid, and the name ends with 0.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        match symbol.is_null() {
            true => Err(format!("it has no `{}`", name.to_string_lossy())),
            false => Ok(symbol),
        }
    }
}

/// A string of C, copied.
///
/// # Safety
/// It is null, or ends with 0.
unsafe fn text(start: *const c_char) -> Option<String> {
    // SAFETY: not null, and as the caller vouches.
    (!start.is_null()).then(|| unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned())
}
