//! libjpeg-turbo's TurboJPEG interface, loaded at run time: one handle decodes one picture at a time. It judges no file: whatever
//! the library is not content with is the caller's to try again.
//!
//! The functions are those of TurboJPEG 1.2 to 3, whose signatures have not changed; `turbojpeg.h` is the source of the numbers.

use std::ffi::{c_int, c_uchar, c_ulong, c_void};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// `TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS`: damaged data ends decoding at once, where else it would be filled with gray, and so do more
/// than 500 scans, which only a file made to keep a processor busy has. An older library ignores a flag that it does not know.
const FLAGS: c_int = 8192 | 32768;

type InitDecompress = unsafe extern "C" fn() -> *mut c_void;
type Decompress2 = unsafe extern "C" fn(
    *mut c_void,
    *const c_uchar,
    c_ulong,
    *mut c_uchar,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;

/// What the bytes of a decoded pixel are, as `TJPF_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurboPixel {
    Rgb = 0,
    Gray = 6,
    /// As stored: with Adobe's marker, inverted. YCCK is brought to this as well.
    Cmyk = 11,
}

impl TurboPixel {
    /// Bytes of one pixel.
    pub(crate) fn channels(self) -> usize {
        match self {
            TurboPixel::Gray => 1,
            TurboPixel::Rgb => 3,
            TurboPixel::Cmyk => 4,
        }
    }
}

/// The functions of the library, which stays loaded until the process ends.
pub(crate) struct TurboApi {
    init_decompress: InitDecompress,
    decompress: Decompress2,
    destroy: Destroy,
    /// Whether it has the interface of TurboJPEG 3 as well.
    is_third: bool,
}

impl TurboApi {
    /// Generation of the interface. The library does not tell its own version.
    pub(crate) fn version(&self) -> &'static str {
        if self.is_third { "TurboJPEG 3" } else { "TurboJPEG 2" }
    }

    /// The file that the functions come from, links followed.
    #[cfg(feature = "turbojpeg")]
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: any address may be asked about, and `info` is written before success is returned.
        let info = unsafe {
            if libc::dladdr(self.destroy as *const c_void, info.as_mut_ptr()) == 0 {
                return None;
            }
            info.assume_init()
        };
        if info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the loader's own text, which lives as long as the library.
        let name = unsafe { std::ffi::CStr::from_ptr(info.dli_fname) };
        let path =
            PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name.to_bytes()));
        Some(path.canonicalize().unwrap_or(path))
    }

    /// Nothing is loaded in a build without the library.
    #[cfg(not(feature = "turbojpeg"))]
    pub(crate) fn path(&self) -> Option<PathBuf> {
        None
    }
}

/// The library, loaded with the first call; else why it cannot be.
pub(crate) fn api() -> &'static Result<TurboApi, String> {
    static API: OnceLock<Result<TurboApi, String>> = OnceLock::new();
    API.get_or_init(load)
}

#[cfg(not(feature = "turbojpeg"))]
fn load() -> Result<TurboApi, String> {
    Err("this build leaves it out".to_owned())
}

#[cfg(feature = "turbojpeg")]
fn load() -> Result<TurboApi, String> {
    /// The second is what a self-built library without a version in its name, or a development package, is called.
    const NAMES: [&str; 2] = ["libturbojpeg.so.0", "libturbojpeg.so"];
    let mut first_error = None;
    for name in NAMES {
        // SAFETY: the library's initialisers do nothing but fill tables.
        match unsafe { libloading::Library::new(name) } {
            Ok(library) => {
                // Never unloaded: decoders hold its functions.
                let library: &'static libloading::Library = Box::leak(Box::new(library));
                return resolve(library).map_err(|e| format!("`{name}` is too old: {e}"));
            }
            Err(error) => first_error = first_error.or(Some(error.to_string())),
        }
    }
    Err(first_error.unwrap_or_else(|| "there is no name to look for".to_owned()))
}

#[cfg(feature = "turbojpeg")]
fn resolve(library: &'static libloading::Library) -> Result<TurboApi, libloading::Error> {
    // SAFETY: the types are those of `turbojpeg.h`.
    unsafe {
        // Version 2.0, the first that stops on warnings.
        library.get::<*const c_void>(b"tjGetErrorCode\0")?;
        Ok(TurboApi {
            init_decompress: *library.get::<InitDecompress>(b"tjInitDecompress\0")?,
            decompress: *library.get::<Decompress2>(b"tjDecompress2\0")?,
            destroy: *library.get::<Destroy>(b"tjDestroy\0")?,
            is_third: library.get::<*const c_void>(b"tj3Init\0").is_ok(),
        })
    }
}

/// A decoder handle: its tables are kept from picture to picture.
pub(crate) struct TurboDecoder {
    api: &'static TurboApi,
    handle: NonNull<c_void>,
}

// SAFETY: a handle belongs to no thread; it must only not be used by two at once, and every use needs `&mut self`.
unsafe impl Send for TurboDecoder {}

impl std::fmt::Debug for TurboDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TurboDecoder").finish_non_exhaustive()
    }
}

/// The library found something wrong with the file, be it only a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotFlawless;

impl TurboDecoder {
    /// None where the library cannot be loaded or has no memory for a handle.
    pub(crate) fn new() -> Option<TurboDecoder> {
        let api = api().as_ref().ok()?;
        // SAFETY: it takes no arguments.
        let handle = NonNull::new(unsafe { (api.init_decompress)() })?;
        Some(TurboDecoder { api, handle })
    }

    /// Decodes `file` into `pixels`, `height` rows of `width` pixels. The size is that of the file, or that of the file scaled by 1/2, 1/4 or
    /// 1/8, rounded up; memory for any larger picture is never written.
    pub(crate) fn decode(
        &mut self,
        file: &[u8],
        (width, height): (usize, usize),
        pixel: TurboPixel,
        pixels: &mut [u8],
    ) -> Result<(), NotFlawless> {
        let row = width * pixel.channels();
        let sizes = (c_int::try_from(width), c_int::try_from(row), c_int::try_from(height));
        let (Ok(wide), Ok(pitch), Ok(high)) = sizes else { return Err(NotFlawless) };
        if pixels.len() != row * height || pixels.is_empty() {
            return Err(NotFlawless);
        }
        // SAFETY: the handle lives, `file` is as long as said, and the library writes at most `high` rows of `wide` pixels, `pitch` bytes
        // apart: it picks the largest scale whose result is no larger than that, which is what `pixels` has room for.
        let code = unsafe {
            (self.api.decompress)(
                self.handle.as_ptr(),
                file.as_ptr(),
                file.len() as c_ulong,
                pixels.as_mut_ptr(),
                wide,
                pitch,
                high,
                pixel as c_int,
                FLAGS,
            )
        };
        if code == 0 { Ok(()) } else { Err(NotFlawless) }
    }
}

impl Drop for TurboDecoder {
    fn drop(&mut self) {
        // SAFETY: the handle lives, and nobody has it after this.
        unsafe { (self.api.destroy)(self.handle.as_ptr()) };
    }
}
