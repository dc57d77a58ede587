//! NVRTC, CUDA's compiler.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr::null_mut;

use super::{Handle, open};

orchestra_worker::functions! {
    struct NvrtcTable {
        version: "nvrtcVersion" (*mut c_int, *mut c_int) -> c_int;
        n_archs: "nvrtcGetNumSupportedArchs" (*mut c_int) -> c_int;
        archs: "nvrtcGetSupportedArchs" (*mut c_int) -> c_int;
        create: "nvrtcCreateProgram" (*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> c_int;
        add_name: "nvrtcAddNameExpression" (Handle, *const c_char) -> c_int;
        compile: "nvrtcCompileProgram" (Handle, c_int, *const *const c_char) -> c_int;
        log_size: "nvrtcGetProgramLogSize" (Handle, *mut usize) -> c_int;
        log: "nvrtcGetProgramLog" (Handle, *mut c_char) -> c_int;
        cubin_size: "nvrtcGetCUBINSize" (Handle, *mut usize) -> c_int;
        cubin: "nvrtcGetCUBIN" (Handle, *mut c_char) -> c_int;
        ptx_size: "nvrtcGetPTXSize" (Handle, *mut usize) -> c_int;
        ptx: "nvrtcGetPTX" (Handle, *mut c_char) -> c_int;
        lowered_name: "nvrtcGetLoweredName" (Handle, *const c_char, *mut *const c_char) -> c_int;
    }
}

/// NVRTC, CUDA's compiler.
pub struct Nvrtc(NvrtcTable);

/// What is compiled. Texts end with 0.
pub struct KernelSource<'a> {
    /// As messages call it.
    pub file: &'a CStr,
    pub text: &'a CStr,
    /// Names and texts of what it includes.
    pub headers: &'a [(CString, CString)],
    /// The function of which the name in the image is wanted.
    pub function: &'a CStr,
}

pub struct Compiled {
    pub image: Vec<u8>,
    pub name: CString,
    /// Warnings; mostly nothing.
    pub log: String,
}

impl Nvrtc {
    pub fn open(path: &Path) -> Result<Self, String> {
        Ok(Self(NvrtcTable::of(&open(path)?)?))
    }

    pub fn version(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both places are valid.
        unsafe { (self.0.version)(&raw mut major, &raw mut minor) };
        format!("{major}.{minor}")
    }

    /// The compute capabilities that it makes code for: 10 * major + minor, ascending.
    pub fn capabilities(&self) -> Vec<i32> {
        let mut n = 0;
        // SAFETY: the place is valid.
        let code = unsafe { (self.0.n_archs)(&raw mut n) };
        let mut capabilities = vec![0; usize::try_from(n).unwrap_or(0)];
        // SAFETY: there is room for as many as it said.
        if code != 0 || unsafe { (self.0.archs)(capabilities.as_mut_ptr()) } != 0 {
            return Vec::new();
        }
        capabilities.sort_unstable();
        capabilities
    }

    /// Compiles to code for a device (`is_binary`), or to PTX. An error is the compiler's log.
    pub fn compile(
        &self,
        source: &KernelSource<'_>,
        options: &[CString],
        is_binary: bool,
    ) -> Result<Compiled, String> {
        let nvrtc = &self.0;
        let (names, texts): (Vec<_>, Vec<_>) =
            source.headers.iter().map(|(name, text)| (name.as_ptr(), text.as_ptr())).unzip();
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let n = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        let mut program = null_mut();
        // SAFETY: all texts end with 0 and live through the call, which copies them; the program is used once it was given.
        let compiled = unsafe {
            let headers = (n(texts.len()), texts.as_ptr(), names.as_ptr());
            let code = (nvrtc.create)(
                &raw mut program,
                source.text.as_ptr(),
                source.file.as_ptr(),
                headers.0,
                headers.1,
                headers.2,
            );
            if code != 0 {
                return Err(format!("nvrtcCreateProgram: NVRTC error {code}"));
            }
            let code = (nvrtc.add_name)(program, source.function.as_ptr());
            if code != 0 {
                return Err(format!("nvrtcAddNameExpression: NVRTC error {code}"));
            }
            (nvrtc.compile)(program, n(options.len()), options.as_ptr())
        };
        let log = self.bytes(program, nvrtc.log_size, nvrtc.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
        if compiled != 0 {
            return Err(if log.is_empty() {
                format!("nvrtcCompileProgram: NVRTC error {compiled}")
            } else {
                log
            });
        }
        let (size, get) = match is_binary {
            true => (nvrtc.cubin_size, nvrtc.cubin),
            false => (nvrtc.ptx_size, nvrtc.ptx),
        };
        let image = self.bytes(program, size, get)?;
        let mut name = std::ptr::null();
        // SAFETY: the place is valid; the name lives as long as the program, which is never destroyed, and is copied.
        let name = unsafe {
            let code = (nvrtc.lowered_name)(program, source.function.as_ptr(), &raw mut name);
            if code != 0 || name.is_null() {
                return Err(format!("nvrtcGetLoweredName: NVRTC error {code}"));
            }
            CStr::from_ptr(name).to_owned()
        };
        Ok(Compiled { image, name, log })
    }

    /// What a program has of one sort.
    fn bytes(
        &self,
        program: Handle,
        size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, String> {
        let mut n = 0;
        // SAFETY: the program and the place are valid.
        let code = unsafe { size(program, &raw mut n) };
        let mut bytes = vec![0_u8; n];
        // SAFETY: there is room for as much as it said.
        match if code == 0 { unsafe { get(program, bytes.as_mut_ptr().cast()) } } else { code } {
            0 => Ok(bytes),
            code => Err(format!("NVRTC gives nothing: error {code}")),
        }
    }
}
