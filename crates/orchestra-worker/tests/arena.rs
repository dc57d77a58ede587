//! The arena as parent and worker see it, in one process.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use orchestra_core::batch_layout::{BatchLayout, PAGE};
use orchestra_core::{DType, Dim, SlotId, TensorSpec};
use orchestra_worker::arena::{Arena, RangeError, WorkerArena};
use proptest::prelude::*;

fn spec(name: &str, dtype: DType, row: &[Dim]) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, row: row.to_vec(), batch: Dim::Dynamic }
}

fn layout(max_rows: usize, slots: usize) -> BatchLayout {
    BatchLayout::new(
        &[spec("a", DType::F32, &[Dim::Fixed(3)]), spec("b", DType::U8, &[Dim::Fixed(5)])],
        &[spec("y", DType::I64, &[Dim::Fixed(2)]), spec("n", DType::I64, &[Dim::Dynamic])],
        max_rows,
        slots,
    )
    .unwrap()
}

fn worker_of(arena: &Arena) -> WorkerArena {
    WorkerArena::map(arena.fd().try_clone_to_owned().unwrap(), arena.layout().clone()).unwrap()
}

#[test]
fn what_the_parent_writes_the_worker_reads_and_back() {
    let arena = Arena::create("test", layout(4, 2)).unwrap();
    let worker = worker_of(&arena);
    // SAFETY: one thread, and no slice outlives its line.
    unsafe {
        arena.input_row_mut(SlotId(1), 1, 2).copy_from_slice(&[1, 2, 3, 4, 5]);
        let rows = worker.input_rows(SlotId(1), 1, 2, 1).unwrap();
        assert_eq!(std::slice::from_raw_parts(rows.ptr, rows.len), [1, 2, 3, 4, 5]);
        let rows = worker.output_rows(SlotId(1), 0, 1, 2).unwrap();
        std::slice::from_raw_parts_mut(rows.ptr, rows.len).fill(9);
        assert_eq!(arena.output_rows(SlotId(1), 0, 1, 2).unwrap(), [9; 32]);
        assert_eq!(arena.output_rows(SlotId(1), 0, 0, 1).unwrap(), [0; 16]);
        assert_eq!(arena.output_rows(SlotId(0), 0, 0, 4).unwrap(), [0; 64]);
        assert!(arena.output_rows(SlotId(1), 1, 0, 1).is_none());
    }
}

#[test]
fn rows_move_with_all_their_inputs() {
    let arena = Arena::create("test", layout(4, 2)).unwrap();
    // SAFETY: one thread, and no slice outlives its line.
    unsafe {
        arena.input_row_mut(SlotId(0), 0, 3).fill(7);
        arena.input_row_mut(SlotId(0), 1, 3).fill(8);
        arena.copy_input_rows((SlotId(0), 3), (SlotId(0), 1), 1);
        assert_eq!(arena.input_rows(SlotId(0), 0, 1, 1), [7; 12]);
        assert_eq!(arena.input_rows(SlotId(0), 1, 0, 2), [0, 0, 0, 0, 0, 8, 8, 8, 8, 8]);
        arena.copy_input_rows((SlotId(0), 0), (SlotId(1), 2), 2);
        assert_eq!(arena.input_rows(SlotId(1), 1, 2, 2), [0, 0, 0, 0, 0, 8, 8, 8, 8, 8]);
    }
}

#[test]
fn an_arena_of_another_size_or_without_its_seal_is_refused() {
    let arena = Arena::create("test", layout(4, 2)).unwrap();
    let fd = || arena.fd().try_clone_to_owned().unwrap();
    let error = WorkerArena::map(fd(), layout(4000, 2)).unwrap_err();
    assert!(error.to_string().contains("its layout needs"), "{error}");
    let mut lying = layout(4, 2);
    lying.inputs[0].row_bytes = usize::MAX / 2;
    assert!(WorkerArena::map(fd(), lying.clone()).is_err());
    assert!(Arena::create("test", lying).is_err());

    let unsealed = rustix::fs::memfd_create("loose", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, layout(4, 2).total_bytes() as u64).unwrap();
    assert!(WorkerArena::map(unsealed, layout(4, 2)).unwrap_err().to_string().contains("not sealed"));
    // The real one can neither shrink nor grow.
    assert!(rustix::fs::ftruncate(arena.fd(), 0).is_err());
}

#[test]
fn an_arena_without_outputs_maps_nothing_for_them() {
    let layout = BatchLayout::new(
        &[spec("a", DType::F32, &[Dim::Fixed(3)])],
        &[spec("n", DType::I64, &[Dim::Dynamic])],
        4,
        2,
    )
    .unwrap();
    assert_eq!(layout.total_bytes(), PAGE);
    let arena = Arena::create("test", layout).unwrap();
    let worker = worker_of(&arena);
    assert_eq!(worker.output_rows(SlotId(0), 0, 0, 1), Err(RangeError::Tensor(0)));
    assert!(worker.input_rows(SlotId(0), 0, 0, 4).is_ok());
}

proptest! {
    #[test]
    fn no_range_reaches_outside_of_the_worker_s_mapping(
        slot in prop_oneof![0u32..4, any::<u32>()],
        tensor in 0usize..4,
        first in prop_oneof![0usize..10, any::<usize>()],
        rows in prop_oneof![0usize..10, any::<usize>()],
    ) {
        let arena = Arena::create("test", layout(7, 3)).unwrap();
        let worker = worker_of(&arena);
        let fits = slot < 3 && rows > 0 && first.checked_add(rows).is_some_and(|end| end <= 7);
        let input = worker.input_rows(SlotId(slot), tensor, first, rows);
        prop_assert_eq!(input.is_ok(), fits && tensor < 2);
        if let Ok(r) = input {
            let base = worker.input_rows(SlotId(0), 0, 0, 1).unwrap().ptr as usize;
            prop_assert!(r.ptr as usize >= base);
            prop_assert!(r.ptr as usize + r.len <= base + arena.layout().inputs_bytes());
        }
        let output = worker.output_rows(SlotId(slot), tensor, first, rows);
        prop_assert_eq!(output.is_ok(), fits && tensor < 1);
        if let Ok(r) = output {
            let base = worker.output_rows(SlotId(0), 0, 0, 1).unwrap().ptr as usize;
            prop_assert!(r.ptr as usize >= base);
            prop_assert!(r.ptr as usize + r.len <= base + arena.layout().outputs_bytes());
        }
    }
}
