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

/// How an attempt at a task ended.
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
    /// It failed for lack of memory: of the device, of the machine or of its own `memory`.
    OutOfMemory,
    DeviceLost,
    /// It was on this GPU, which it has no lease on, and was killed.
    WrongDevice(String),
    /// There is no process: no such program, no such folder.
    NotStarted(String),
    /// A declared input is not there.
    InputMissing(String),
    /// It ended with code 0 and left a declared output out.
    OutputMissing(String),
    /// No task of this table, from which it takes the best, is done and has reported the metric.
    NoBest(String),
    /// It was asked to end, because others are better; how is said in words. It is no failure, and is not tried again.
    StoppedEarly(String),
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
        /// It took too long.
        Timeout = "timeout",
        OutOfMemory = "out_of_memory",
        DeviceLost = "device_lost",
        /// It used a GPU that it has no lease on.
        WrongDevice = "wrong_device",
        /// It could not be started.
        NotStarted = "not_started",
        /// A declared input or output is missing, or there is no best task of a table.
        Missing = "missing",
        /// Others are better.
        StoppedEarly = "stopped_early",
        Stopped = "stopped",
    }
}

impl EndClass {
    /// Whether the task needs no further attempt, and those that come after it may start.
    pub fn is_well(self) -> bool {
        matches!(self, EndClass::Done | EndClass::StoppedEarly)
    }
}

impl TaskEnd {
    pub fn class(&self) -> EndClass {
        match self {
            TaskEnd::Done => EndClass::Done,
            TaskEnd::Code(_) => EndClass::Code,
            TaskEnd::Signal(_) => EndClass::Signal,
            TaskEnd::Timeout(_) => EndClass::Timeout,
            TaskEnd::OutOfMemory => EndClass::OutOfMemory,
            TaskEnd::DeviceLost => EndClass::DeviceLost,
            TaskEnd::WrongDevice(_) => EndClass::WrongDevice,
            TaskEnd::NotStarted(_) => EndClass::NotStarted,
            TaskEnd::InputMissing(_) | TaskEnd::OutputMissing(_) | TaskEnd::NoBest(_) => EndClass::Missing,
            TaskEnd::StoppedEarly(_) => EndClass::StoppedEarly,
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
            TaskEnd::OutOfMemory => f.write_str("ran out of memory"),
            TaskEnd::DeviceLost => f.write_str("lost its device"),
            TaskEnd::WrongDevice(gpu) => write!(
                f,
                "used `{gpu}`, a GPU that it has no lease on, and was killed; it must keep to `CUDA_VISIBLE_DEVICES`"
            ),
            TaskEnd::NotStarted(why) => write!(f, "could not be started: {why}"),
            TaskEnd::InputMissing(path) => {
                write!(f, "was not started, because its input `{path}` is missing")
            }
            TaskEnd::OutputMissing(path) => {
                write!(f, "ended with code 0, but its output `{path}` is missing")
            }
            TaskEnd::NoBest(table) => write!(
                f,
                "was not started, because no task of `{table}` has ended well and reported the metric of its `best`"
            ),
            TaskEnd::StoppedEarly(why) => write!(f, "was asked to end early, because its {why}"),
            TaskEnd::Stopped => f.write_str("was stopped with the run"),
        }
    }
}

/// The end of a process that ran to its end or was killed from outside. `last_words` are the last pages that it wrote: a process says in words that it
/// lacked memory, in code or signal it does not; and what has started it may say a page of its own behind that.
#[must_use]
pub fn judge(exit: Exit, last_words: &str) -> TaskEnd {
    // As glibc, Python, Java, PyTorch, CuPy, TensorFlow, JAX and the CUDA runtime word them.
    const MEMORY: [&str; 12] = [
        "out of memory",
        "outofmemory",
        "memoryerror",
        "out_of_memory",
        "cannot allocate memory",
        "std::bad_alloc",
        "resource_exhausted",
        "memory exhausted",
        "unable to allocate",
        "cublas_status_alloc_failed",
        "cudnn_status_alloc_failed",
        "device_allocation_failed", // cuDNN 9: "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
    ];
    const DEVICE: [&str; 11] = [
        "no cuda-capable device", // What is left of a machine whose only GPU is gone.
        "cudaerrornodevice",
        "cuda_error_no_device",
        "cudaerrordevicesunavailable",
        "cuda_error_device_unavailable",
        "device(s) is/are busy or unavailable", // What CUDA says in words of these two.
        "uncorrectable ecc error",
        "fallen off the bus",
        "gpu is lost",
        "device lost",
        "unspecified launch failure",
    ];
    if exit == Exit::Code(0) {
        return TaskEnd::Done;
    }
    let words = last_words.to_lowercase();
    let says = |texts: &[&str]| texts.iter().any(|text| words.contains(text));
    match exit {
        _ if says(&DEVICE) => TaskEnd::DeviceLost,
        _ if says(&MEMORY) => TaskEnd::OutOfMemory,
        Exit::Code(code) => TaskEnd::Code(code),
        Exit::Signal(signal) => TaskEnd::Signal(signal),
    }
}

fn signal_name(signal: i32) -> String {
    const NAMES: [(i32, &str); 12] = [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (3, "SIGQUIT"),
        (4, "SIGILL"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (13, "SIGPIPE"),
        (15, "SIGTERM"),
        (24, "SIGXCPU"),
    ];
    let name = NAMES.iter().find(|(number, _)| *number == signal);
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
            TaskEnd::Timeout(_) => self.timeout,
            TaskEnd::Code(_) | TaskEnd::OutputMissing(_) => self.code,
            TaskEnd::Signal(_) => self.signal,
            TaskEnd::Done
            | TaskEnd::WrongDevice(_)
            | TaskEnd::NotStarted(_)
            | TaskEnd::InputMissing(_)
            | TaskEnd::NoBest(_)
            | TaskEnd::StoppedEarly(_)
            | TaskEnd::Stopped => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_says_of_memory_or_its_device_goes_before_code_and_signal() {
        let python = "Traceback ..\nMemoryError";
        let torch = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB";
        assert_eq!(judge(Exit::Code(1), python), TaskEnd::OutOfMemory);
        assert_eq!(judge(Exit::Code(1), torch), TaskEnd::OutOfMemory);
        assert_eq!(judge(Exit::Signal(6), "terminate called: std::bad_alloc"), TaskEnd::OutOfMemory);
        assert_eq!(judge(Exit::Code(1), "CUDA error: uncorrectable ECC error"), TaskEnd::DeviceLost);
        let in_use = "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable";
        assert_eq!(judge(Exit::Code(1), in_use), TaskEnd::DeviceLost);
        for gone in [
            "RuntimeError: CUDA error: no CUDA-capable device is detected",
            "cudaErrorNoDevice: no device",
            "pycuda: cuInit failed: CUDA_ERROR_NO_DEVICE",
        ] {
            assert_eq!(judge(Exit::Code(1), gone), TaskEnd::DeviceLost, "{gone}");
        }
        let cublas =
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`";
        assert_eq!(judge(Exit::Code(1), cublas), TaskEnd::OutOfMemory);
        assert_eq!(judge(Exit::Code(1), "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), TaskEnd::OutOfMemory);
        let cudnn = "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED";
        assert_eq!(judge(Exit::Code(1), cudnn), TaskEnd::OutOfMemory);
        assert_eq!(judge(Exit::Code(3), "no such column"), TaskEnd::Code(3));
        assert_eq!(judge(Exit::Signal(11), ""), TaskEnd::Signal(11));
        assert_eq!(judge(Exit::Code(0), "warning: nearly out of memory"), TaskEnd::Done);
    }
}
