//! CUDA's driver, with the context of the one device that a worker sees.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::null_mut;

use super::{Handle, open, text};
use crate::errors::CudaError;

/// An address in the memory of the device.
pub type DevicePointer = u64;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`, and `.._MINOR`.
const COMPUTE_CAPABILITY: [c_int; 2] = [75, 76];
/// `CU_STREAM_NON_BLOCKING`: not behind the stream that is called null.
const NON_BLOCKING: c_uint = 1;

orchestra_worker::functions! {
    struct DriverTable {
        init: "cuInit" (c_uint) -> c_int;
        version: "cuDriverGetVersion" (*mut c_int) -> c_int;
        count: "cuDeviceGetCount" (*mut c_int) -> c_int;
        device: "cuDeviceGet" (*mut c_int, c_int) -> c_int;
        attribute: "cuDeviceGetAttribute" (*mut c_int, c_int, c_int) -> c_int;
        retain: "cuDevicePrimaryCtxRetain" (*mut Handle, c_int) -> c_int;
        set_current: "cuCtxSetCurrent" (Handle) -> c_int;
        load_module: "cuModuleLoadData" (*mut Handle, *const c_void) -> c_int;
        get_function: "cuModuleGetFunction" (*mut Handle, Handle, *const c_char) -> c_int;
        alloc: "cuMemAlloc_v2" (*mut DevicePointer, usize) -> c_int;
        set: "cuMemsetD8Async" (DevicePointer, u8, usize, Handle) -> c_int;
        to_device: "cuMemcpyHtoDAsync_v2" (DevicePointer, *const c_void, usize, Handle) -> c_int;
        to_host: "cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePointer, usize, Handle) -> c_int;
        register: "cuMemHostRegister_v2" (*mut c_void, usize, c_uint) -> c_int;
        create_stream: "cuStreamCreate" (*mut Handle, c_uint) -> c_int;
        synchronize: "cuStreamSynchronize" (Handle) -> c_int;
        launch: "cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void) -> c_int;
        error_name: "cuGetErrorName" (c_int, *mut *const c_char) -> c_int;
        error_text: "cuGetErrorString" (c_int, *mut *const c_char) -> c_int;
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
        let library = open(Path::new("libcuda.so.1"));
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
    /// They are mapped for as long as the process lives, and writable unless `flags` say that the device only reads.
    pub unsafe fn page_lock(&self, start: *mut c_void, bytes: usize, flags: c_uint) -> Result<(), CudaError> {
        // SAFETY: as the caller vouches.
        let code = unsafe { (self.cuda.register)(start, bytes, flags) };
        self.check("cuMemHostRegister", code)
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
    /// The bytes on both sides are there, and no thread writes to those at `from`, until `wait` comes back.
    pub unsafe fn copy_in(&self, to: DevicePointer, from: *const u8, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: as the caller vouches.
        let code = unsafe { (self.cuda.to_device)(to, from.cast(), bytes, self.stream) };
        self.check("cuMemcpyHtoDAsync", code)
    }

    /// Copies from the device, behind what was begun before.
    ///
    /// # Safety
    /// The bytes on both sides are there, and no thread uses those at `to`, until `wait` comes back.
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
