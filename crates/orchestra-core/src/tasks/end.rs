//! Every way in which a command can end, and how often it is tried again after each. Knows no process.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::named_enum;

/// How the process of a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    /// The end of a program with this code. A shell whose command was killed by signal n ends itself with 128 + n, and that is the signal of the
    /// command.
    pub fn of(program: &str, code: i32) -> Self {
        const SHELLS: [&str; 7] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh"];
        let name = program.rsplit('/').next().unwrap_or(program);
        let signal = code - 128;
        match SHELLS.contains(&name) && SIGNALS.iter().any(|(known, _)| *known == signal) {
            true => Self::Signal(signal),
            false => Self::Code(code),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEnd {
    /// Code 0, and all declared outputs are there.
    Done,
    /// Any other code.
    Code(i32),
    /// A signal that orchestra did not send.
    Signal(i32),
    /// It took longer than its `timeout`, and was ended.
    Timeout(Duration),
    /// It wrote nothing for as long as its `quiet`, and was ended.
    Quiet(Duration),
    /// It failed for lack of memory: of the device, of the machine or of its own `memory`.
    OutOfMemory,
    DeviceLost,
    /// There is no process: no such program, no such folder.
    NotStarted(String),
    /// A declared input is not there.
    InputMissing(String),
    /// It ended with code 0 and left a declared output out.
    OutputMissing(String),
    /// No task of those that it takes the best of, by this name, is done and has a value of the metric that counts.
    NoBest(String),
    /// This task, of which it takes the value of a metric, has none.
    NoValue {
        task: String,
        metric: String,
    },
    /// The run was stopped, and the command with it. It is no failure: the next start runs it again.
    Stopped,
}

named_enum! {
    /// The class of an end: alone it decides about retries, and `run.json` names it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum EndClass {
        Done = "done",
        /// A code other than 0.
        Code = "code",
        Signal = "signal",
        /// It took too long, or wrote nothing for too long.
        Timeout = "timeout",
        OutOfMemory = "out_of_memory",
        DeviceLost = "device_lost",
        /// It could not be started.
        NotStarted = "not_started",
        /// A declared input or output is missing, or a task that is the best, or the value of a metric.
        Missing = "missing",
        Stopped = "stopped",
    }
}

impl TaskEnd {
    pub fn class(&self) -> EndClass {
        match self {
            TaskEnd::Done => EndClass::Done,
            TaskEnd::Code(_) => EndClass::Code,
            TaskEnd::Signal(_) => EndClass::Signal,
            TaskEnd::Timeout(_) | TaskEnd::Quiet(_) => EndClass::Timeout,
            TaskEnd::OutOfMemory => EndClass::OutOfMemory,
            TaskEnd::DeviceLost => EndClass::DeviceLost,
            TaskEnd::NotStarted(_) => EndClass::NotStarted,
            TaskEnd::InputMissing(_)
            | TaskEnd::OutputMissing(_)
            | TaskEnd::NoBest(_)
            | TaskEnd::NoValue { .. } => EndClass::Missing,
            TaskEnd::Stopped => EndClass::Stopped,
        }
    }
}

/// Completes "the command ..".
impl fmt::Display for TaskEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskEnd::Done => f.write_str("ended well"),
            TaskEnd::Code(code) => write!(f, "ended with code {code}"),
            TaskEnd::Signal(signal) => write!(f, "was killed by {}", signal_name(*signal)),
            TaskEnd::Timeout(after) => write!(f, "took longer than its `timeout`, {after:?}"),
            TaskEnd::Quiet(quiet) => write!(f, "wrote nothing for as long as its `quiet`, {quiet:?}"),
            TaskEnd::OutOfMemory => f.write_str("ran out of memory"),
            TaskEnd::DeviceLost => f.write_str("lost its device"),
            TaskEnd::NotStarted(why) => write!(f, "could not be started: {why}"),
            TaskEnd::InputMissing(path) => {
                write!(f, "was not started, because its input `{path}` is missing")
            }
            TaskEnd::OutputMissing(path) => {
                write!(f, "ended with code 0, but its output `{path}` is missing")
            }
            TaskEnd::NoBest(best) => write!(
                f,
                "was not started, because there is no `{best}`: none of its tasks has ended well with a finite value of the metric"
            ),
            TaskEnd::NoValue { task, metric } => {
                write!(f, "was not started, because `{task}` has no finite value of its metric `{metric}`")
            }
            TaskEnd::Stopped => f.write_str("was stopped with the run"),
        }
    }
}

/// What processes say when memory was lacking, in lower case. It may be memory of the machine or of a device.
const MEMORY_WORDS: [&str; 27] = [
    "out of memory",          // The kernel, CUDA, PyTorch, CuPy, Go, Node.js
    "outofmemory",            // Java, PyTorch, CuPy, HIP
    "out_of_memory",          // CUDA
    "ran out of memory",      // TensorFlow's allocator
    "cannot allocate memory", // glibc
    "can't allocate memory",  // PyTorch on the CPU
    "not enough memory",      // PyTorch on the CPU, wgpu
    "could not be allocated", // TensorRT
    "out_of_device_memory",   // Vulkan
    "allocation_failure",     // OpenCL
    "malloc of size",         // Arrow
    "cannot allocate vector", // R
    "std::bad_alloc",
    "memory allocation of", // Rust
    "memory exhausted",
    "memoryerror",               // Python
    "unable to allocate",        // NumPy
    "failed to allocate memory", // ONNX Runtime
    "cudaerrormemoryallocation",
    "smaller than requested bytes", // ONNX Runtime's arena
    "resource exhausted",           // TensorFlow
    "resourceexhausted", // TensorFlow, PaddlePaddle; gRPC has a `_` in it, also where a quota is used up
    "oom when allocating", // TensorFlow
    "_alloc_failed",     // cuBLAS, cuDNN, cuSOLVER, cuSPARSE, cuFFT
    "device_allocation_failed", // cuDNN 9
    "oom-kill",          // The kernel
    "oom_kill",          // Slurm
];

/// What processes say when their device is lost or was none, in lower case. A fault of a kernel, such as an illegal address or an unspecified launch
/// failure, is a mistake of the program: another device would not help.
const DEVICE_WORDS: [&str; 23] = [
    "no cuda-capable device",     // What is left of a machine whose only GPU is gone.
    "no cuda gpus are available", // PyTorch
    "no visible gpu devices",     // JAX
    "no supported devices found", // JAX
    "no rocm-capable device",
    "cudaerrornodevice",
    "cuda_error_no_device",
    "hiperrornodevice",
    "cudaerrordevicesunavailable",
    "cuda_error_device_unavailable",
    "device(s) is/are busy or unavailable", // What CUDA says in words of these two.
    "uncorrectable ecc error",
    "ecc_uncorrectable",
    "eccuncorrectable",
    "uncorrectable nvlink error",
    "nvlink_uncorrectable",
    "nvlinkuncorrectable",
    "fallen off the bus", // The kernel
    "gpu is lost",        // NVML
    "gpu_is_lost",
    "gpu requires reset", // NVML
    "device lost",
    "device_lost",
];

/// The end of a process that ran to its end or was killed from outside. `last_words` are the last pages that it wrote: a process says in words that it
/// lacked memory, in code or signal it does not; and what has started it may say a page of its own behind that.
pub fn judge(exit: Exit, last_words: &str) -> TaskEnd {
    if exit == Exit::Code(0) {
        return TaskEnd::Done;
    }
    let words = last_words.to_lowercase();
    let says = |texts: &[&str]| texts.iter().any(|text| words.contains(text));
    match exit {
        _ if says(&DEVICE_WORDS) => TaskEnd::DeviceLost,
        _ if says(&MEMORY_WORDS) => TaskEnd::OutOfMemory,
        Exit::Code(code) => TaskEnd::Code(code),
        Exit::Signal(signal) => TaskEnd::Signal(signal),
    }
}

/// Signals that end a process.
const SIGNALS: [(i32, &str); 20] = [
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (10, "SIGUSR1"),
    (11, "SIGSEGV"),
    (12, "SIGUSR2"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (24, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (26, "SIGVTALRM"),
    (27, "SIGPROF"),
    (31, "SIGSYS"),
];

pub(crate) fn signal_name(signal: i32) -> String {
    let name = SIGNALS.iter().find(|(number, _)| *number == signal);
    name.map_or_else(|| format!("signal {signal}"), |(_, name)| (*name).to_owned())
}

/// How often a task is tried again in a start, by the class of its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Retries {
    /// After an end for lack of memory.
    pub out_of_memory: u32,
    /// After the loss of its device.
    pub device_lost: u32,
    pub timeout: u32,
    /// After a code other than 0, or where an output is missing.
    pub code: u32,
    pub signal: u32,
    /// How long it waits before each.
    pub pause: Duration,
}

impl Retries {
    /// The most retries after ends of this class; none after an end that the next attempt cannot change.
    pub fn after(&self, end: &TaskEnd) -> u32 {
        match end {
            TaskEnd::OutOfMemory => self.out_of_memory,
            TaskEnd::DeviceLost => self.device_lost,
            TaskEnd::Timeout(_) | TaskEnd::Quiet(_) => self.timeout,
            TaskEnd::Code(_) | TaskEnd::OutputMissing(_) => self.code,
            TaskEnd::Signal(_) => self.signal,
            TaskEnd::Done
            | TaskEnd::NotStarted(_)
            | TaskEnd::InputMissing(_)
            | TaskEnd::NoBest(_)
            | TaskEnd::NoValue { .. }
            | TaskEnd::Stopped => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages as they are, by who says them.
    const OUT_OF_MEMORY: [(&str, &str); 30] = [
        (
            "ONNX Runtime's arena",
            "BFCArena::AllocateRawInternal(size_t, bool) Available memory of 0 is smaller than requested bytes of 4194304",
        ),
        ("Python", "Traceback ..\nMemoryError"),
        ("NumPy", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 745. GiB for an array"),
        ("PyTorch", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
        ("PyTorch, older", "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB"),
        (
            "PyTorch on the CPU",
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 bytes.",
        ),
        (
            "PyTorch 2 on the CPU",
            "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes",
        ),
        (
            "TensorRT",
            "[TRT] [E] 1: [defaultAllocator.cpp] Requested amount of GPU memory (8 bytes) could not be allocated.",
        ),
        ("Vulkan", "vk::Device::allocateMemory: VK_ERROR_OUT_OF_DEVICE_MEMORY"),
        ("OpenCL", "clEnqueueNDRangeKernel failed: CL_MEM_OBJECT_ALLOCATION_FAILURE"),
        ("Arrow", "pyarrow.lib.ArrowMemoryError: malloc of size 8589934592 failed"),
        (
            "cuBLAS",
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        ),
        ("cuDNN", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        ("cuDNN 9", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        ("cuFFT", "cupy.cuda.cufft.CuFFTError: CUFFT_ALLOC_FAILED"),
        (
            "TensorFlow",
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:",
        ),
        (
            "TensorFlow, its kernel",
            "OOM when allocating tensor with shape[128,256,56,56] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        ),
        (
            "TensorFlow, its log",
            "W tensorflow/core/framework/op_kernel.cc] Resource exhausted: failed to do it",
        ),
        ("TensorFlow, its allocator", "Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.06GiB"),
        (
            "JAX",
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 68719476736 bytes.",
        ),
        (
            "CuPy",
            "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes (allocated so far: 0 bytes).",
        ),
        (
            "CuPy, the runtime",
            "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory",
        ),
        (
            "ONNX Runtime",
            "onnxruntime::BFCArena::AllocateRawInternal(..) Failed to allocate memory for requested buffer of size 1073741824",
        ),
        ("CUDA", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("C++", "terminate called after throwing an instance of 'std::bad_alloc'"),
        ("Rust", "memory allocation of 16777216 bytes failed"),
        ("Java", "java.lang.OutOfMemoryError: Java heap space"),
        ("the system", "fork: Cannot allocate memory"),
        ("the kernel", "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)"),
        ("Slurm", "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0."),
    ];

    const DEVICE_LOST: [(&str, &str); 13] = [
        ("CUDA", "RuntimeError: CUDA error: no CUDA-capable device is detected"),
        ("the runtime", "cudaErrorNoDevice: no device"),
        ("PyCUDA", "pycuda: cuInit failed: CUDA_ERROR_NO_DEVICE"),
        ("PyTorch", "RuntimeError: No CUDA GPUs are available"),
        (
            "PyTorch, a GPU in use",
            "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        ),
        ("PyTorch, a broken GPU", "CUDA error: uncorrectable ECC error encountered"),
        ("CuPy", "CUDARuntimeError: cudaErrorECCUncorrectable: uncorrectable error"),
        (
            "JAX",
            "RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices.",
        ),
        ("JAX, of a platform", "RuntimeError: no supported devices found for platform CUDA"),
        ("ROCm", "RuntimeError: HIP error: no ROCm-capable device is detected"),
        ("ONNX Runtime", "CUDA failure 100: no CUDA-capable device is detected ; GPU=0"),
        (
            "NVML",
            "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.  Reboot the system",
        ),
        ("the kernel", "NVRM: Xid (PCI:0000:01:00): 79, pid=1234, GPU has fallen off the bus."),
    ];

    #[test]
    fn what_a_process_says_of_memory_or_its_device_goes_before_code_and_signal() {
        for exit in [Exit::Code(1), Exit::Signal(6), Exit::Signal(9)] {
            for (who, says) in OUT_OF_MEMORY {
                assert_eq!(judge(exit, says), TaskEnd::OutOfMemory, "{who}");
            }
            for (who, says) in DEVICE_LOST {
                assert_eq!(judge(exit, says), TaskEnd::DeviceLost, "{who}");
            }
        }
        assert_eq!(judge(Exit::Code(3), "no such column"), TaskEnd::Code(3));
        assert_eq!(judge(Exit::Signal(11), ""), TaskEnd::Signal(11));
        assert_eq!(judge(Exit::Code(0), "warning: nearly out of memory"), TaskEnd::Done);
        let quota = "grpc.RpcError: RESOURCE_EXHAUSTED: Quota exceeded";
        assert_eq!(judge(Exit::Code(1), quota), TaskEnd::Code(1));
    }

    #[test]
    fn a_fault_of_a_kernel_takes_no_device_away() {
        for fault in [
            "RuntimeError: CUDA error: unspecified launch failure",
            "CUDARuntimeError: cudaErrorLaunchFailure: unspecified launch failure",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "cuda error: CUDA_ERROR_ILLEGAL_ADDRESS",
            "CUDA error: misaligned address",
            "XlaRuntimeError: INTERNAL: CUDA_ERROR_LAUNCH_FAILED",
            "RuntimeError: CUDA error: device-side assert triggered",
        ] {
            assert_eq!(judge(Exit::Code(1), fault), TaskEnd::Code(1), "{fault}");
        }
    }
}
