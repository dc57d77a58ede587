//! The functions of CUDA's driver and of NVRTC, and all that is unsafe about them. It decides nothing, and frees nothing: a worker ends with
//! `_exit`, and the driver takes back what a process had.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::null_mut;

use crate::errors::CudaError;

/// An address in the memory of the device.
pub type DevicePointer = u64;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`, and `.._MINOR`.
const COMPUTE_CAPABILITY: [c_int; 2] = [75, 76];
/// `CU_STREAM_NON_BLOCKING`: not behind the stream that is called null.
const NON_BLOCKING: c_uint = 1;
/// `CU_MEMHOSTREGISTER_READ_ONLY`: the device only reads. A mapping that the process itself may not write to is refused without it.
const READ_ONLY: c_uint = 0x08;

type Handle = *mut c_void;

/// Fills in a table of functions by the names that they have in a library.
macro_rules! functions {
    ($(#[$about:meta])* $table:ident { $($name:ident: $symbol:literal ($($argument:ty),*);)+ }) => {
        $(#[$about])*
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

functions! {
    DriverTable {
        init: c"cuInit" (c_uint);
        version: c"cuDriverGetVersion" (*mut c_int);
        count: c"cuDeviceGetCount" (*mut c_int);
        device: c"cuDeviceGet" (*mut c_int, c_int);
        attribute: c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
        retain: c"cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
        set_current: c"cuCtxSetCurrent" (Handle);
        load_module: c"cuModuleLoadData" (*mut Handle, *const c_void);
        get_function: c"cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
        alloc: c"cuMemAlloc_v2" (*mut DevicePointer, usize);
        set: c"cuMemsetD8Async" (DevicePointer, u8, usize, Handle);
        to_device: c"cuMemcpyHtoDAsync_v2" (DevicePointer, *const c_void, usize, Handle);
        to_host: c"cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePointer, usize, Handle);
        register: c"cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
        create_stream: c"cuStreamCreate" (*mut Handle, c_uint);
        synchronize: c"cuStreamSynchronize" (Handle);
        launch: c"cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
        error_name: c"cuGetErrorName" (c_int, *mut *const c_char);
        error_text: c"cuGetErrorString" (c_int, *mut *const c_char);
    }
}

/// The driver with the context of the one device of this process, for the thread that opened it.
pub struct Driver {
    cuda: DriverTable,
    stream: Handle,
    /// 10 * major + minor.
    pub capability: i32,
}

/// A function on the device. It stays there as long as the process.
#[derive(Clone, Copy)]
pub struct Function(Handle);

/// Why a driver cannot be used.
pub enum NoDriver {
    /// Its library cannot be loaded.
    Library(String),
    /// It refuses.
    Refuses(CudaError),
    /// It shows so many devices.
    Devices(i32),
}

impl From<CudaError> for NoDriver {
    fn from(error: CudaError) -> Self {
        NoDriver::Refuses(error)
    }
}

impl Driver {
    /// Loads the driver's library, and makes the context of the only device.
    pub fn open() -> Result<Self, NoDriver> {
        let library = Library::open(Path::new("libcuda.so.1"));
        let cuda = library.and_then(|library| DriverTable::of(&library)).map_err(NoDriver::Library)?;
        let mut driver = Driver { cuda, stream: null_mut(), capability: 0 };
        let (mut devices, mut device, mut context) = (0, 0, null_mut());
        let mut capability = [0; 2];
        // SAFETY: all places are valid; a device, a context and a stream are used once they were given.
        unsafe {
            driver.check("cuInit", (driver.cuda.init)(0))?;
            driver.check("cuDeviceGetCount", (driver.cuda.count)(&raw mut devices))?;
            if devices != 1 {
                return Err(NoDriver::Devices(devices));
            }
            driver.check("cuDeviceGet", (driver.cuda.device)(&raw mut device, 0))?;
            for (attribute, value) in COMPUTE_CAPABILITY.into_iter().zip(&mut capability) {
                let code = (driver.cuda.attribute)(value, attribute, device);
                driver.check("cuDeviceGetAttribute", code)?;
            }
            let code = (driver.cuda.retain)(&raw mut context, device);
            driver.check("cuDevicePrimaryCtxRetain", code)?;
            driver.check("cuCtxSetCurrent", (driver.cuda.set_current)(context))?;
            let code = (driver.cuda.create_stream)(&raw mut driver.stream, NON_BLOCKING);
            driver.check("cuStreamCreate", code)?;
        }
        driver.capability = 10 * capability[0] + capability[1];
        Ok(driver)
    }

    /// The newest CUDA that it runs: 1000 * major + 10 * minor.
    pub fn version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        // SAFETY: the place is valid.
        let code = unsafe { (self.cuda.version)(&raw mut version) };
        self.check("cuDriverGetVersion", code).map(|()| version)
    }

    /// Loads what the compiler made, and gives its function of this name.
    pub fn function(&self, image: &[u8], name: &CStr) -> Result<Function, CudaError> {
        // Text ends with 0, and objects say themselves how long they are.
        let image = [image, &[0]].concat();
        let (mut module, mut function) = (null_mut(), null_mut());
        // SAFETY: the places are valid, the image and the name end with 0, and the module is used once it was given.
        unsafe {
            let code = (self.cuda.load_module)(&raw mut module, image.as_ptr().cast());
            self.check("cuModuleLoadData", code)?;
            let code = (self.cuda.get_function)(&raw mut function, module, name.as_ptr());
            self.check("cuModuleGetFunction", code)?;
        }
        Ok(Function(function))
    }

    /// Memory of the device, for as long as the process lives.
    pub fn alloc(&self, bytes: usize) -> Result<DevicePointer, CudaError> {
        let mut start = 0;
        // SAFETY: the place is valid, and the size is not 0.
        let code = unsafe { (self.cuda.alloc)(&raw mut start, bytes.max(1)) };
        self.check("cuMemAlloc", code).map(|()| start)
    }

    /// Page-locks `bytes` bytes from `start` on, so that the device copies from and to them by itself and at full speed.
    ///
    /// # Safety
    /// They are mapped for as long as the process lives, and writable if the device is to write to them.
    pub unsafe fn page_lock(
        &self,
        start: *mut u8,
        bytes: usize,
        is_read_only: bool,
    ) -> Result<(), CudaError> {
        let flags: &[c_uint] = if is_read_only { &[READ_ONLY, 0] } else { &[0] };
        let mut tried = Ok(());
        for flags in flags.iter().filter(|_| bytes > 0) {
            // SAFETY: they are mapped, as the caller vouches.
            let code = unsafe { (self.cuda.register)(start.cast(), bytes, *flags) };
            tried = self.check("cuMemHostRegister", code);
            if tried.is_ok() {
                break;
            }
        }
        tried
    }

    /// Lays zeros, behind what was begun before.
    ///
    /// # Safety
    /// The bytes are part of what `alloc` gave.
    pub unsafe fn zero(&self, to: DevicePointer, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: as the caller vouches.
        let code = unsafe { (self.cuda.set)(to, 0, bytes, self.stream) };
        self.check("cuMemsetD8Async", code)
    }

    /// Copies to the device, behind what was begun before.
    ///
    /// # Safety
    /// The bytes on both sides are there, and nobody writes to those at `from`, until `wait` comes back.
    pub unsafe fn copy_in(&self, to: DevicePointer, from: *const u8, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: as the caller vouches.
        let code = unsafe { (self.cuda.to_device)(to, from.cast(), bytes, self.stream) };
        self.check("cuMemcpyHtoDAsync", code)
    }

    /// Copies from the device, behind what was begun before.
    ///
    /// # Safety
    /// The bytes on both sides are there, and nobody else uses those at `to`, until `wait` comes back.
    pub unsafe fn copy_out(&self, to: *mut u8, from: DevicePointer, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: as the caller vouches.
        let code = unsafe { (self.cuda.to_host)(to.cast(), from, bytes, self.stream) };
        self.check("cuMemcpyDtoHAsync", code)
    }

    /// Launches `blocks` blocks of `block` threads, behind what was begun before. Each argument begins with the bytes of its value; the compiler
    /// has checked that the function takes them. What it does with them happens in the memory of the device.
    pub fn launch(
        &self,
        function: Function,
        (blocks, block): (u32, u32),
        arguments: &mut [u64],
    ) -> Result<(), CudaError> {
        let mut places: Vec<*mut c_void> =
            arguments.iter_mut().map(|value| (&raw mut *value).cast()).collect();
        // SAFETY: CUDA reads the arguments during the call, as many bytes of each as its type has, which are 8 at most.
        let code = unsafe {
            let places = places.as_mut_ptr();
            (self.cuda.launch)(function.0, blocks, 1, 1, block, 1, 1, 0, self.stream, places, null_mut())
        };
        self.check("cuLaunchKernel", code)
    }

    /// Waits for all that was begun.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is valid.
        let code = unsafe { (self.cuda.synchronize)(self.stream) };
        self.check("cuStreamSynchronize", code)
    }

    fn check(&self, call: &str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let say = |ask: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut said = std::ptr::null();
            // SAFETY: the place is valid; what is laid there is a static string, or null for a code that is not known.
            unsafe {
                ask(code, &raw mut said);
                text(said)
            }
        };
        let words = [say(self.cuda.error_name), say(self.cuda.error_text)].into_iter().flatten();
        let words: Vec<String> = words.collect();
        Err(CudaError { code, text: format!("{call}: CUDA error {code}, {}", words.join(": ")) })
    }
}

functions! {
    CompilerTable {
        version: c"nvrtcVersion" (*mut c_int, *mut c_int);
        n_archs: c"nvrtcGetNumSupportedArchs" (*mut c_int);
        archs: c"nvrtcGetSupportedArchs" (*mut c_int);
        create: c"nvrtcCreateProgram" (*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
        add_name: c"nvrtcAddNameExpression" (Handle, *const c_char);
        compile: c"nvrtcCompileProgram" (Handle, c_int, *const *const c_char);
        log_size: c"nvrtcGetProgramLogSize" (Handle, *mut usize);
        log: c"nvrtcGetProgramLog" (Handle, *mut c_char);
        cubin_size: c"nvrtcGetCUBINSize" (Handle, *mut usize);
        cubin: c"nvrtcGetCUBIN" (Handle, *mut c_char);
        ptx_size: c"nvrtcGetPTXSize" (Handle, *mut usize);
        ptx: c"nvrtcGetPTX" (Handle, *mut c_char);
        lowered_name: c"nvrtcGetLoweredName" (Handle, *const c_char, *mut *const c_char);
    }
}

/// NVRTC, CUDA's compiler.
pub struct Compiler(CompilerTable);

/// What is compiled. Texts end with 0.
pub struct Source<'a> {
    /// As messages call it.
    pub file: &'a CStr,
    pub text: &'a CStr,
    /// Names and texts of what it includes.
    pub headers: &'a [(CString, CString)],
    /// The function of which the name in the image is wanted.
    pub function: &'a CStr,
}

/// What was compiled.
pub struct Compiled {
    pub image: Vec<u8>,
    /// The name of the function in it.
    pub name: CString,
    /// Warnings; mostly nothing.
    pub log: String,
}

impl Compiler {
    /// Loads it.
    pub fn open(path: &Path) -> Result<Self, String> {
        Ok(Self(CompilerTable::of(&Library::open(path)?)?))
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
        source: &Source<'_>,
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
