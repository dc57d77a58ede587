//! Page-locks the batch slots of a worker, so that a GPU copies from and to them by itself and at full speed. It copies nothing, and nothing is
//! unlocked: a worker ends with `_exit`.

use std::ffi::{c_uint, c_void};

use crate::arena::WorkerArena;

/// `cudaHostRegisterReadOnly`: the device only reads. A mapping that the process itself may not write to is refused without it.
const READ_ONLY: c_uint = 0x08;
/// `cudaHostRegisterDefault`
const DEFAULT: c_uint = 0;

/// Page-locks all inputs and the first `output_slots` output slots. `register` is CUDA's function for that: it takes an address, a number of bytes
/// and flags. What is refused is copied more slowly and as well, and gives a line for the worker's log.
pub fn page_lock(
    arena: &WorkerArena,
    output_slots: usize,
    register: impl Fn(*mut c_void, usize, c_uint) -> Result<(), String>,
) -> Vec<String> {
    let (inputs, outputs) = (arena.all_inputs(), arena.first_outputs(output_slots));
    let inputs = (inputs.ptr.cast_mut().cast(), inputs.len);
    let mut said = Vec::new();
    // Some drivers refuse to lock for reading.
    for (which, (start, bytes), ways) in [
        ("inputs", inputs, &[READ_ONLY, DEFAULT][..]),
        ("outputs", (outputs.ptr.cast(), outputs.len), &[DEFAULT]),
    ] {
        let mut tried = Ok(());
        for flags in ways.iter().filter(|_| bytes > 0) {
            tried = register(start, bytes, *flags);
            if tried.is_ok() {
                break;
            }
        }
        if let Err(why) = tried {
            said.push(format!(
                "{which} are not page-locked, so copies take longer: {why}; raise the limit of locked memory (`ulimit -l`)"
            ));
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use orchestra_core::batch_layout::BatchLayout;
    use orchestra_core::{DType, Dim, TensorSpec};

    use super::*;
    use crate::arena::{Arena, SharedMemory};
    use crate::output_region::OutputRegion;

    /// What is registered with which flags, by a driver that refuses some of them, and what is said of it.
    fn locked(refuses: impl Fn(c_uint) -> bool) -> (Vec<c_uint>, Vec<String>) {
        let tensor = |name: &str| TensorSpec {
            name: name.into(),
            dtype: DType::F32,
            row: vec![Dim::Fixed(3)],
            batch: Dim::Dynamic,
        };
        let layout = BatchLayout::new(&[tensor("x")], &[tensor("y")], 8, 1).unwrap();
        let arena = Arena::create("page_lock", layout.clone()).unwrap();
        let outputs = OutputRegion::create("page_lock", layout.clone()).unwrap();
        let memory = SharedMemory { inputs: arena.fd(), outputs: outputs.fd() };
        let arena = WorkerArena::map(memory.try_clone_to_owned().unwrap(), layout).unwrap();
        let flags = RefCell::new(Vec::new());
        let said = page_lock(&arena, 1, |_, bytes, wanted| {
            assert!(bytes > 0);
            flags.borrow_mut().push(wanted);
            if refuses(wanted) { Err("not supported".to_owned()) } else { Ok(()) }
        });
        (flags.into_inner(), said)
    }

    #[test]
    fn inputs_are_locked_for_reading_where_the_driver_can_and_what_is_refused_is_named() {
        assert_eq!(locked(|_| false), (vec![READ_ONLY, DEFAULT], vec![]));
        assert_eq!(locked(|flags| flags == READ_ONLY), (vec![READ_ONLY, DEFAULT, DEFAULT], vec![]));
        let (_, said) = locked(|_| true);
        assert_eq!(said.len(), 2);
        for (said, which) in said.iter().zip(["inputs", "outputs"]) {
            assert!(said.starts_with(which) && said.contains("longer: not supported; raise"), "{said}");
        }
    }
}
