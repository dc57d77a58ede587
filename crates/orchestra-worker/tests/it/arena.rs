//! Inputs and outputs as parent and worker see them, in one process.

use std::os::fd::{AsFd, AsRawFd};

use orchestra_core::batch_layout::{BatchLayout, PAGE};
use orchestra_core::{DType, Dim, OutputSlotId, SlotId, TensorSpec};
use orchestra_worker::arena::{Arena, RangeError, SharedMemory, WorkerArena};
use orchestra_worker::output_region::OutputRegion;
use proptest::prelude::*;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect, munmap};

fn spec(name: &str, dtype: DType, row: &[Dim]) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, row: row.to_vec(), batch: Dim::Dynamic }
}

fn layout(slot_rows: usize, slots: usize) -> BatchLayout {
    BatchLayout::new(
        &[spec("a", DType::F32, &[Dim::Fixed(3)]), spec("b", DType::U8, &[Dim::Fixed(5)])],
        &[spec("y", DType::I64, &[Dim::Fixed(2)]), spec("n", DType::I64, &[Dim::Dynamic])],
        slot_rows,
        slots,
    )
    .unwrap()
}

/// The parent's side of the memory of one worker.
fn parts(layout: &BatchLayout) -> (Arena, OutputRegion) {
    let arena = Arena::create("test", layout.clone()).unwrap();
    (arena, OutputRegion::create("test outputs", layout.clone()).unwrap())
}

fn map(arena: &Arena, outputs: &OutputRegion, layout: BatchLayout) -> std::io::Result<WorkerArena> {
    let memory = SharedMemory { inputs: arena.fd(), outputs: outputs.fd() };
    WorkerArena::map(memory.try_clone_to_owned().unwrap(), layout)
}

#[test]
fn what_the_parent_writes_the_worker_reads_and_back() {
    let layout = layout(4, 2);
    let (arena, outputs) = parts(&layout);
    let worker = map(&arena, &outputs, layout).unwrap();
    let slot = OutputSlotId(1);
    // SAFETY: one thread, and no slice outlives its line.
    unsafe {
        arena.input_rows_mut(SlotId(0), 1, 2, 1).copy_from_slice(&[1, 2, 3, 4, 5]);
        let rows = worker.input_rows(SlotId(0), 1, 2, 1).unwrap();
        assert_eq!(std::slice::from_raw_parts(rows.ptr, rows.len), [1, 2, 3, 4, 5]);
        let rows = worker.output_rows(slot, 0, 1, 2).unwrap();
        std::slice::from_raw_parts_mut(rows.ptr, rows.len).fill(9);
        assert_eq!(outputs.rows(slot, 0, 1, 2).unwrap().to_vec(), [9; 32]);
        assert_eq!(outputs.rows(slot, 0, 0, 1).unwrap().to_vec(), [0; 16]);
        assert_eq!(outputs.rows(OutputSlotId(0), 0, 0, 4).unwrap().to_vec(), [0; 64]);
        assert!(outputs.rows(slot, 1, 0, 1).is_none());
    }
}

#[test]
fn outputs_of_one_worker_are_not_those_of_another() {
    let layout = layout(4, 2);
    let (arena, outputs) = parts(&layout);
    let others = OutputRegion::create("test outputs", layout.clone()).unwrap();
    let worker = map(&arena, &outputs, layout.clone()).unwrap();
    let all = worker.first_outputs(usize::MAX);
    assert_eq!(all.len, layout.outputs_bytes());
    // SAFETY: one thread, and no slice outlives its line.
    unsafe {
        all.ptr.write_bytes(0xee, all.len);
        assert_eq!(outputs.rows(OutputSlotId(1), 0, 0, 4).unwrap().to_vec(), [0xee; 64]);
        assert_eq!(others.rows(OutputSlotId(1), 0, 0, 4).unwrap().to_vec(), [0; 64]);
        assert_eq!(arena.input_rows(SlotId(1), 1, 0, 4), [0; 20]);
    }
}

/// Whether memory behind this descriptor can be mapped, or made, writable.
fn can_be_written(fd: impl AsFd, len: usize) -> bool {
    let (read, both) = (ProtFlags::READ, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: new mappings, which nothing else knows and which are gone in the end.
    unsafe {
        if let Ok(start) = mmap(std::ptr::null_mut(), len, both, MapFlags::SHARED, fd.as_fd(), 0) {
            munmap(start, len).unwrap();
            return true;
        }
        let start = mmap(std::ptr::null_mut(), len, read, MapFlags::SHARED, fd.as_fd(), 0).unwrap();
        let changed = mprotect(start, len, MprotectFlags::READ | MprotectFlags::WRITE).is_ok();
        munmap(start, len).unwrap();
        changed || rustix::io::pwrite(fd, b"x", 0).is_ok()
    }
}

#[test]
fn only_the_parent_s_own_mapping_can_write_inputs() {
    let layout = layout(4, 2);
    let (arena, outputs) = parts(&layout);
    let reopened = |fd: &dyn AsRawFd| {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap()
    };
    for again in [false, true] {
        let (inputs, outputs) = (arena.fd(), outputs.fd());
        let can = match again {
            false => [can_be_written(inputs, PAGE), can_be_written(outputs, PAGE)],
            true => [can_be_written(reopened(&inputs), PAGE), can_be_written(reopened(&outputs), PAGE)],
        };
        assert_eq!(can, [false, true], "opened again: {again}");
    }
    // SAFETY: one thread, and no slice outlives its line.
    unsafe {
        arena.input_rows_mut(SlotId(0), 1, 0, 1).fill(7);
        assert_eq!(arena.input_rows(SlotId(0), 1, 0, 1), [7; 5]);
    }
}

#[test]
fn memory_of_another_size_or_without_its_seal_is_refused() {
    let (arena, outputs) = parts(&layout(4, 2));
    let error = map(&arena, &outputs, layout(4000, 2)).unwrap_err();
    assert!(error.to_string().contains("its layout needs"), "{error}");
    let (_, larger) = parts(&layout(4000, 2));
    let error = map(&arena, &larger, layout(4, 2)).unwrap_err();
    assert!(error.to_string().contains("the output region has"), "{error}");
    let mut lying = layout(4, 2);
    lying.inputs[0].row_bytes = usize::MAX / 2;
    assert!(map(&arena, &outputs, lying.clone()).is_err());
    assert!(Arena::create("test", lying.clone()).is_err());
    assert!(OutputRegion::create("test", lying).is_err());

    let unsealed = rustix::fs::memfd_create("loose", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, layout(4, 2).inputs_bytes() as u64).unwrap();
    let memory = SharedMemory { inputs: unsealed.as_fd(), outputs: outputs.fd() };
    let error = WorkerArena::map(memory.try_clone_to_owned().unwrap(), layout(4, 2)).unwrap_err();
    assert!(error.to_string().contains("not sealed"), "{error}");
    // The real ones can neither shrink nor grow.
    for fd in [arena.fd(), outputs.fd()] {
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
        assert!(rustix::fs::ftruncate(fd, 1 << 20).is_err());
    }
}

#[test]
fn a_stage_without_fixed_outputs_maps_nothing_for_them() {
    let layout = BatchLayout::new(
        &[spec("a", DType::F32, &[Dim::Fixed(3)])],
        &[spec("n", DType::I64, &[Dim::Dynamic])],
        4,
        2,
    )
    .unwrap();
    assert_eq!(layout.total_bytes(), PAGE);
    let (arena, outputs) = parts(&layout);
    let worker = map(&arena, &outputs, layout).unwrap();
    assert_eq!(worker.output_rows(OutputSlotId(0), 0, 0, 1), Err(RangeError::Tensor(0)));
    assert_eq!(worker.first_outputs(2).len, 0);
    assert!(worker.input_rows(SlotId(0), 0, 0, 4).is_ok());
}

#[test]
fn the_first_output_slots_are_whole_pages_of_their_own_or_all() {
    let of = |row: usize, slots| {
        let layout = BatchLayout::new(&[], &[spec("y", DType::U8, &[Dim::Fixed(row)])], 1, 5).unwrap();
        let (arena, outputs) = parts(&layout);
        map(&arena, &outputs, layout).unwrap().first_outputs(slots).len
    };
    assert_eq!((of(100_000, 2), of(100_000, 9)), (2 * 25 * PAGE, 5 * 25 * PAGE));
    assert_eq!(of(100, 2), PAGE, "all of it");
}

proptest! {
    #[test]
    fn no_range_reaches_outside_of_the_worker_s_mapping(
        slot in prop_oneof![0u32..4, any::<u32>()],
        tensor in 0usize..4,
        first in prop_oneof![0usize..10, any::<usize>()],
        rows in prop_oneof![0usize..10, any::<usize>()],
    ) {
        let (arena, outputs) = parts(&layout(7, 3));
        let worker = map(&arena, &outputs, layout(7, 3)).unwrap();
        let fits = slot < 3 && rows > 0 && first.checked_add(rows).is_some_and(|end| end <= 7);
        let input = worker.input_rows(SlotId(slot), tensor, first, rows);
        prop_assert_eq!(input.is_ok(), fits && tensor < 2);
        if let Ok(r) = input {
            let base = worker.input_rows(SlotId(0), 0, 0, 1).unwrap().ptr as usize;
            prop_assert!(r.ptr as usize >= base);
            prop_assert!(r.ptr as usize + r.len <= base + arena.layout().inputs_bytes());
        }
        let output = worker.output_rows(OutputSlotId(slot), tensor, first, rows);
        prop_assert_eq!(output.is_ok(), fits && tensor < 1);
        if let Ok(r) = output {
            let base = worker.output_rows(OutputSlotId(0), 0, 0, 1).unwrap().ptr as usize;
            prop_assert!(r.ptr as usize >= base);
            prop_assert!(r.ptr as usize + r.len <= base + arena.layout().outputs_bytes());
        }
    }
}
