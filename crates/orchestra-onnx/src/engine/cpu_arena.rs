//! Bounds what ONNX Runtime's allocator of CPU memory may take. It allocates nothing itself.
//!
//! An arena without a bound that cannot get what a run asks for tries less and less, and keeps what it gets in the end: after one batch
//! that was too large a worker would hold nearly all of the machine's address space, and touch 3 % of it for book-keeping. A request
//! beyond the bound fails at once instead, as out of memory.

use std::path::Path;

use orchestra_machine::Memory;
use ort::AsPointer;
use ort::environment::Environment;
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};

/// The entry of a session's configuration that makes it use the arena of the environment.
pub const USE_IT: (&str, &str) = ("session.use_env_allocators", "1");

/// Registers an arena that never grows beyond `ceiling` bytes or what this process can have, for all sessions of the environment.
pub fn register(environment: &Environment, ceiling: Option<u64>) -> ort::Result<()> {
    // 0, where the kernel tells nothing, means no bound.
    let possible = Some(Memory::read(Path::new("/")).total).filter(|total| *total > 0);
    let bound = possible.into_iter().chain(ceiling).min().unwrap_or(0);
    let bound = usize::try_from(bound).unwrap_or(0);
    let cpu = MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Arena, MemoryType::Default)?;
    let api = ort::api();
    let mut config = std::ptr::null_mut();
    // SAFETY: the out pointer is valid; -1 leaves everything else as the runtime has it.
    let status = unsafe { (api.CreateArenaCfg)(bound, -1, -1, -1, &mut config) };
    // SAFETY: the status was just returned by the API.
    unsafe { ort::Error::result_from_status(status) }?;
    // SAFETY: all three are alive; the environment takes a copy of the configuration.
    let status = unsafe { (api.CreateAndRegisterAllocator)(environment.ptr().cast_mut(), cpu.ptr(), config) };
    // SAFETY: made above, and not used after this.
    unsafe { (api.ReleaseArenaCfg)(config) };
    // SAFETY: the status was just returned by the API.
    unsafe { ort::Error::result_from_status(status) }
}
