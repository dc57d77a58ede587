//! Shared libraries that a worker needs beside its own code, and their functions by name. It decides nothing, and unloads nothing: a worker ends
//! with `_exit`.

use std::error::Error;
use std::ffi::{OsStr, c_int};
use std::mem::ManuallyDrop;

use libloading::os::unix::Library;

/// A library that stays in the process.
pub struct SharedLibrary(ManuallyDrop<Library>);

impl SharedLibrary {
    /// Loads the library of this name, with the loader's `flags`.
    ///
    /// # Errors
    /// The loader's own words.
    ///
    /// # Safety
    /// What it runs when it is loaded asks for no more than a process.
    pub unsafe fn open(name: impl AsRef<OsStr>, flags: c_int) -> Result<Self, String> {
        // SAFETY: as the caller vouches.
        let library = unsafe { Library::open(Some(name.as_ref()), flags) };
        library.map(|library| Self(ManuallyDrop::new(library))).map_err(|error| {
            // The error itself says only which call failed.
            error.source().map_or_else(|| error.to_string(), ToString::to_string)
        })
    }

    /// The library of this name that is in the process already.
    pub fn of_this_process(name: impl AsRef<OsStr>) -> Option<Self> {
        // SAFETY: `RTLD_NOLOAD` loads nothing.
        unsafe { Self::open(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) }.ok()
    }

    /// Its function or other symbol of this name.
    ///
    /// # Errors
    /// It has none.
    ///
    /// # Safety
    /// The symbol has the type `F` there.
    pub unsafe fn get<F: Copy>(&self, name: &str) -> Result<F, String> {
        // SAFETY: as the caller vouches.
        let symbol = unsafe { self.0.get::<F>(name.as_bytes()) };
        symbol.map(|symbol| *symbol).map_err(|_| format!("it has no `{name}`"))
    }
}

/// Declares a table of functions by the names that they have in a library, which must have had these types in every release.
#[macro_export]
macro_rules! functions {
    ($(#[$of_table:meta])* $visible:vis struct $table:ident {
        $($(#[$of_function:meta])* $name:ident: $symbol:literal ($($argument:ty),*) -> $result:ty;)+
    }) => {
        $(#[$of_table])*
        #[derive(Clone, Copy)]
        $visible struct $table {
            $($(#[$of_function])* $visible $name: unsafe extern "C" fn($($argument),*) -> $result,)+
        }

        impl $table {
            fn of(library: &$crate::library::SharedLibrary) -> Result<Self, String> {
                // SAFETY: the table says which types the symbols have.
                unsafe { Ok(Self { $($name: library.get($symbol)?,)+ }) }
            }
        }
    };
}
