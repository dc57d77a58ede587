//! Takes memory as a leak does, and writes to all of it, until it is refused; or until it is clear that nothing bounds it. Takes threads likewise.

use std::ffi::c_void;
use std::hint::black_box;

const PIECE: usize = 16 << 20;
/// Pieces after which nothing bounds it: 2 GiB. A test fails by then, and the machine goes on.
const MOST: usize = 128;

/// What C++ calls `operator new`. It throws where there is no memory.
type New = unsafe extern "C-unwind" fn(usize) -> *mut c_void;

/// By the allocator of Rust, which ends the process where there is no memory. It returns where nothing bounds it.
pub fn bloat() {
    let mut taken = Vec::new();
    for _ in 0..MOST {
        taken.push(black_box(vec![1_u8; PIECE]));
    }
}

/// Threads after which nothing bounds them. A test fails by then, and the machine goes on.
const MOST_THREADS: usize = 8_000;

/// Starts threads that do nothing, on small stacks, and waits with them. It returns where nothing bounds them.
pub fn start_threads() {
    for _ in 0..MOST_THREADS {
        let started = std::thread::Builder::new().stack_size(64 << 10).spawn(|| {
            loop {
                std::thread::park();
            }
        });
        if started.is_err() {
            return;
        }
    }
    // As long as two looks at them take.
    std::thread::park_timeout(std::time::Duration::from_secs(2));
}

/// By `new` of C++, whose exception goes through the caller, too. It returns where nothing bounds it, or where this process has no C++.
pub(crate) fn bloat_in_cpp() {
    // SAFETY: the names end with 0, and the symbol is that function in every build of the library.
    let new = unsafe {
        let library = libc::dlopen(c"libstdc++.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        let symbol = libc::dlsym(library, c"_Znwm".as_ptr());
        (!library.is_null() && !symbol.is_null()).then(|| std::mem::transmute::<*mut c_void, New>(symbol))
    };
    let Some(new) = new else { return };
    for _ in 0..MOST {
        // SAFETY: so many bytes are there where it does not throw. They are never given back.
        unsafe { new(PIECE).cast::<u8>().write_bytes(1, PIECE) };
    }
}
