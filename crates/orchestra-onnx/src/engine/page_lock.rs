//! Page-locks the batch slots, so that a GPU copies from and to them by itself and at full speed. It copies nothing.

use std::ffi::{c_uint, c_void};

use orchestra_worker::arena::WorkerArena;

use super::cuda_runtime::CudaRuntime;

/// `cudaHostRegisterReadOnly`: the device only reads. A mapping that the process itself may not write to is refused without it.
const READ_ONLY: c_uint = 0x08;
/// `cudaHostRegisterDefault`
const DEFAULT: c_uint = 0;

/// Output slots that are page-locked beyond those of the batches that run: two batches wait at the worker, and two are being processed. Each
/// worker has as many output slots as its stage has slots, and what is page-locked takes memory whether it is used or not. The GPU copies to
/// the others more slowly; a stage that uses them waits for what follows it.
const MORE_OUTPUTS: usize = 4;

/// Memory that is page-locked until this is dropped.
pub struct PageLock {
    cuda: CudaRuntime,
    locked: Vec<*mut c_void>,
}

// SAFETY: the addresses are only names of registrations, and CUDA's runtime may be called from any thread.
unsafe impl Send for PageLock {}
// SAFETY: a shared lock gives access to nothing.
unsafe impl Sync for PageLock {}

impl PageLock {
    /// Page-locks what it can of the slots, for the GPU of this process, which runs `streams` batches at once. What is refused is named on
    /// standard error, and copied more slowly. Call it when the provider is loaded, and drop the lock before the arena.
    pub fn of_slots(arena: &WorkerArena, streams: usize) -> Option<PageLock> {
        let Some(cuda) = CudaRuntime::of_this_process() else {
            eprintln!(
                "worker: batch slots are not page-locked: CUDA's runtime is not in the process under a known name"
            );
            return None;
        };
        let (inputs, outputs) = (arena.all_inputs(), arena.first_outputs(streams + MORE_OUTPUTS));
        let mut lock = PageLock { cuda, locked: Vec::new() };
        // SAFETY: both lie in the arena, which outlives the lock.
        let tried = unsafe {
            [
                ("inputs", lock.add(inputs.ptr.cast_mut(), inputs.len, &[READ_ONLY, DEFAULT])),
                ("outputs", lock.add(outputs.ptr, outputs.len, &[DEFAULT])),
            ]
        };
        for (what, tried) in tried {
            if let Err(why) = tried {
                eprintln!(
                    "worker: {what} of batch slots are not page-locked ({why}), so copies take longer; raise the limit of locked memory (`ulimit -l`)"
                );
            }
        }
        Some(lock)
    }

    /// Locks `bytes` bytes more, with the first of these `flags` that is taken, or says why they cannot be.
    ///
    /// # Safety
    /// They are mapped for as long as the lock lives.
    unsafe fn add(&mut self, start: *mut u8, bytes: usize, flags: &[c_uint]) -> Result<(), String> {
        let start = start.cast::<c_void>();
        let mut tried = Ok(());
        for flags in flags.iter().filter(|_| bytes > 0) {
            // SAFETY: they are mapped, as the caller vouches.
            tried = self.cuda.check(unsafe { (self.cuda.register)(start, bytes, *flags) });
            if tried.is_ok() {
                self.locked.push(start);
                break;
            }
        }
        tried
    }
}

impl Drop for PageLock {
    fn drop(&mut self) {
        for start in self.locked.drain(..) {
            // SAFETY: it was registered, once, and is unregistered here alone.
            unsafe { (self.cuda.unregister)(start) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cuda_runtime::fake;
    use super::*;

    #[test]
    fn what_is_locked_is_unlocked_once_and_what_is_refused_leaves_no_error_behind() {
        // Some drivers refuse to lock for reading.
        fake::refuse(&["register 4096", "register 8192 20 8"]);
        let mut lock = PageLock { cuda: fake::RUNTIME, locked: Vec::new() };
        // SAFETY: this runtime touches no memory.
        let refused = unsafe {
            [
                lock.add(4096 as *mut u8, 10, &[READ_ONLY, DEFAULT]),
                lock.add(8192 as *mut u8, 20, &[READ_ONLY, DEFAULT]),
                lock.add(64 as *mut u8, 0, &[DEFAULT]),
            ]
        };
        assert_eq!(refused, [Err("CUDA error 801, operation not supported".to_owned()), Ok(()), Ok(())]);
        assert!(!fake::holds_an_error());
        drop(lock);
        let expected = [
            "register 4096 10 8",
            "register 4096 10 0",
            "register 8192 20 8",
            "register 8192 20 0",
            "unregister 8192",
        ];
        assert_eq!(fake::calls(), expected);
    }
}
