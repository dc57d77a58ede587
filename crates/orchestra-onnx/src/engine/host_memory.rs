//! The worker's own memory for rows: page-locked for a GPU where that can be had. It knows neither models nor slots.

use std::alloc::Layout;
use std::ffi::{c_uint, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use orchestra_core::batch_layout::SPAN_ALIGN;

use super::cuda_runtime::CudaRuntime;
use super::errors;
use orchestra_worker::serve::RunError;

/// `cudaHostAllocDefault`
const DEFAULT: c_uint = 0;

/// Where the rows come from.
#[derive(Default)]
pub struct HostMemory {
    /// The runtime of the GPU that copies from and to them, if one does.
    cuda: Option<CudaRuntime>,
    /// Whether it has been said that page-locked memory was refused.
    refused: AtomicBool,
}

impl HostMemory {
    pub fn for_gpu(cuda: CudaRuntime) -> HostMemory {
        HostMemory { cuda: Some(cuda), ..HostMemory::default() }
    }

    /// Zeros for `rows` rows for a GPU to copy from and to: page-locked, else ordinary memory, which it copies more slowly and as well.
    pub fn zeros(&self, len: usize, rows: usize) -> Result<Block, RunError> {
        match self.page_locked(len) {
            Ok(block) => Ok(block),
            Err(why) => {
                if self.cuda.is_some() && !self.refused.swap(true, Ordering::Relaxed) {
                    eprintln!(
                        "worker: rows beside the batch slots are not page-locked, so copies take longer: {why}"
                    );
                }
                Block::on_the_heap(len).ok_or_else(|| errors::no_memory(rows))
            }
        }
    }

    /// Page-locked zeros, or why there are none.
    pub fn page_locked(&self, len: usize) -> Result<Block, String> {
        let cuda = self.cuda.ok_or("there is no GPU")?;
        let mut start: *mut c_void = std::ptr::null_mut();
        // SAFETY: the place is valid, and the size is not 0.
        cuda.check(unsafe { (cuda.host_alloc)(&mut start, len.max(1), DEFAULT) })?;
        let start = NonNull::new(start.cast::<u8>()).ok_or("CUDA gave no address")?;
        // SAFETY: the block has so many bytes, and is ours alone. What was in it before is not defined.
        unsafe { start.write_bytes(0, len.max(1)) };
        Ok(Block { start, len, origin: Origin::Cuda(cuda) })
    }
}

/// Bytes, aligned like those of the arena or better. Accessed through its pointer only, so that a session may write while others know the
/// address.
pub struct Block {
    start: NonNull<u8>,
    len: usize,
    origin: Origin,
}

/// What gave a block, and takes it back.
enum Origin {
    Heap(Layout),
    Cuda(CudaRuntime),
}

// SAFETY: a block is memory that it alone owns, and both origins may be called from any thread.
unsafe impl Send for Block {}

impl Block {
    fn on_the_heap(len: usize) -> Option<Block> {
        let layout = Layout::from_size_align(len.max(1), SPAN_ALIGN).ok()?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Block { start, len, origin: Origin::Heap(layout) })
    }

    /// Its first byte. Valid until the block is dropped.
    pub fn ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.origin {
            // SAFETY: allocated with this layout, and freed only here.
            Origin::Heap(layout) => unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) },
            Origin::Cuda(cuda) => {
                // SAFETY: allocated by this runtime, and freed only here.
                let freed = cuda.check(unsafe { (cuda.free_host)(self.start.as_ptr().cast()) });
                // It fails for a device that is lost, which the next run says better. The memory goes with the process.
                drop(freed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cuda_runtime::fake;
    use super::*;

    fn bytes(block: &Block) -> Vec<u8> {
        // SAFETY: the block lives and has no writer.
        unsafe { std::slice::from_raw_parts(block.ptr(), block.len()) }.to_vec()
    }

    #[test]
    fn rows_for_a_gpu_are_page_locked_zeros_and_go_back_to_cuda() {
        let memory = HostMemory::for_gpu(fake::RUNTIME);
        let block = memory.zeros(100, 1).unwrap();
        assert_eq!(bytes(&block), [0; 100]);
        assert_eq!(block.ptr() as usize % SPAN_ALIGN, 0);
        drop(block);
        assert_eq!(fake::calls(), ["alloc 100 0", "free"]);
    }

    #[test]
    fn where_page_locked_memory_is_refused_rows_are_ordinary_and_no_error_is_left() {
        fake::refuse(&["alloc"]);
        let memory = HostMemory::for_gpu(fake::RUNTIME);
        assert!(memory.page_locked(8).is_err_and(|why| why.contains("801")));
        let block = memory.zeros(100, 1).unwrap();
        assert_eq!(bytes(&block), [0; 100]);
        drop(block);
        assert!(!fake::holds_an_error());
        assert_eq!(fake::calls(), ["alloc 8 0", "alloc 100 0"]);
    }

    #[test]
    fn without_a_gpu_rows_come_from_the_heap_and_cuda_is_not_asked() {
        let memory = HostMemory::default();
        assert_eq!(bytes(&memory.zeros(3, 1).unwrap()), [0; 3]);
        assert_eq!(memory.zeros(0, 1).unwrap().len(), 0);
        assert!(memory.zeros(usize::MAX, 1).is_err());
        assert!(memory.page_locked(1).is_err());
        assert_eq!(fake::calls(), [] as [&str; 0]);
    }
}
