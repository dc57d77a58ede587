//! Real sessions in this process: what lands where, for every kind of model.

use std::path::Path;

use crate::common::{
    Setup, address_space_bytes, affine_setup, f32s, flat, run, run_of, setup_of, spec, to_f32s,
};
use orchestra_core::onnx_file::element_type;
use orchestra_core::{DType, Dim, TensorSpec};
use orchestra_onnx::OnnxEngine;
use orchestra_testkit::onnx::{Attribute, ModelBuilder};
use orchestra_testkit::{Trap, models, trap_library};
use orchestra_worker::Engine;
use orchestra_worker::frames::{RunErrorKind, RunTiming};
use proptest::collection::vec;
use proptest::prelude::*;

const STAIN: u8 = 0xa5;

/// Failures are not kept in files: the inputs are small enough to be read from the message.
fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

fn affine_rows() -> impl Strategy<Value = Vec<[i8; 3]>> {
    vec(any::<[i8; 3]>(), 1..=6)
}

/// Runs `rows` from row `first` of `slot` on, and checks that they and only they are written.
fn check_affine(
    setup: &Setup,
    engine: &mut OnnxEngine,
    slot: u32,
    first: usize,
    rows: &[[i8; 3]],
) -> Result<(), TestCaseError> {
    let bytes: Vec<Vec<u8>> = rows.iter().map(|r| f32s(&r.map(f32::from))).collect();
    setup.fill_input(slot, 0, first, &bytes);
    (0..3).for_each(|slot| setup.stain_output(slot, 0, STAIN));
    let dynamic = run(engine, slot, first, rows.len()).map_err(|e| TestCaseError::fail(e.to_string()))?;
    prop_assert!(dynamic.is_empty());
    for other in 0..3 {
        let found = setup.output(other, 0);
        let (before, rest) = found.split_at(12 * if other == slot { first } else { 0 });
        let (ours, after) = rest.split_at(12 * if other == slot { rows.len() } else { 0 });
        prop_assert!(before.iter().chain(after).all(|b| *b == STAIN), "another row was written");
        let expected: Vec<f32> = rows.iter().flatten().map(|v| 2.0 * f32::from(*v) + 1.0).collect();
        if other == slot {
            prop_assert_eq!(to_f32s(ours), expected);
        }
    }
    Ok(())
}

#[test]
fn a_run_reads_its_rows_and_writes_its_rows_and_no_others() {
    let setup = affine_setup(None, 8);
    let (engine, loaded) = setup.engine().unwrap();
    assert!(loaded.runtime_version.starts_with("1."), "{}", loaded.runtime_version);
    assert!(matches!(&loaded.providers[..], [(cpu, n)] if cpu == "CPUExecutionProvider" && *n > 0));
    let engine = std::cell::RefCell::new(engine);
    proptest!(config(), |(rows in affine_rows(), slot in 0u32..3, first in 0usize..3)| {
        check_affine(&setup, &mut engine.borrow_mut(), slot, first, &rows)?;
    });
}

#[test]
fn a_model_of_one_batch_size_takes_smaller_batches_and_its_own() {
    let setup = affine_setup(Some(6), 6);
    let (engine, _) = setup.engine().unwrap();
    let engine = std::cell::RefCell::new(engine);
    proptest!(config(), |(rows in affine_rows(), slot in 0u32..3, first in 0usize..6)| {
        let first = first.min(6 - rows.len());
        check_affine(&setup, &mut engine.borrow_mut(), slot, first, &rows)?;
    });
}

#[test]
fn smaller_batches_are_padded_and_write_their_rows_alone() {
    let mut setup = affine_setup(None, 8);
    setup.load.padded_to = Some(8);
    let engine = std::cell::RefCell::new(setup.engine().unwrap().0);
    proptest!(config(), |(rows in affine_rows(), slot in 0u32..3, first in 0usize..3)| {
        check_affine(&setup, &mut engine.borrow_mut(), slot, first, &rows)?;
    });
    // The mean over a whole batch shows how many rows it had.
    let mut means = means();
    means.load.padded_to = Some(2);
    let (mut engine, _) = means.engine().unwrap();
    means.fill_input(0, 0, 0, &[4.0, 8.0, 12.0, 16.0].map(|v| f32s(&[v])));
    for (rows, mean) in [(1, 2.0), (2, 6.0), (3, 8.0)] {
        run_mixed(&mut engine, 0, rows);
        assert_eq!(to_f32s(&means.output(0, 0))[..rows], vec![mean; rows], "a larger batch runs as it is");
    }
}

/// Runs rows of a model whose items change each other: that is told wherever there are several.
fn run_mixed(engine: &mut OnnxEngine, first: usize, rows: usize) {
    let said = run(engine, 0, first, rows).map(drop).map_err(|error| error.kind);
    assert_eq!(said, if rows == 1 { Ok(()) } else { Err(RunErrorKind::Mixed) });
}

/// A worker for a model whose every output is the mean over the whole batch, padding included.
fn means() -> Setup {
    let model = ModelBuilder::new("means")
        .constant("zero", &[1], &[0.0])
        .node("ReduceMean", &["x"], &["mean"], &[("axes", Attribute::Ints(vec![0]))])
        .node("Mul", &["x", "zero"], &["nothing"], &[])
        .node("Add", &["nothing", "mean"], &["y"], &[]);
    setup_of(model, &[flat("x", DType::F32, 1)], &[flat("y", DType::F32, 1)], 4)
}

#[test]
fn padding_never_holds_rows_of_an_earlier_batch() {
    // The output of every row is the mean over the whole batch, padding included.
    let model = ModelBuilder::new("sums")
        .constant("zero", &[1], &[0.0])
        .node("ReduceMean", &["x"], &["mean"], &[("axes", Attribute::Ints(vec![0]))])
        .node("Mul", &["x", "zero"], &["nothing"], &[])
        .node("Add", &["nothing", "mean"], &["y"], &[]);
    let four = |name: &str| TensorSpec { batch: Dim::Fixed(4), ..flat(name, DType::F32, 1) };
    let setup = setup_of(model, &[four("x")], &[four("y")], 4);
    let (mut engine, _) = setup.engine().unwrap();
    setup.fill_input(0, 0, 0, &[4.0, 8.0, 12.0, 16.0].map(|v| f32s(&[v])));
    run_mixed(&mut engine, 0, 4);
    assert_eq!(to_f32s(&setup.output(0, 0)), [10.0; 4]);
    run_mixed(&mut engine, 0, 3);
    assert_eq!(to_f32s(&setup.output(0, 0)), [6.0, 6.0, 6.0, 10.0]);
    run_mixed(&mut engine, 2, 1);
    assert_eq!(to_f32s(&setup.output(0, 0)), [6.0, 6.0, 3.0, 10.0]);
}

#[test]
fn every_element_type_goes_in_and_comes_out() {
    for dtype in DType::ALL {
        let model = ModelBuilder::new("all")
            .constant("ones", &[3], &[1.0, 0.0, 1.0])
            .node("Cast", &["ones"], &["mask"], &[("to", Attribute::Int(element_type(DType::Bool).into()))])
            .node("Identity", &["x"], &["same"], &[])
            .node("Concat", &["x", "x"], &["twice"], &[("axis", Attribute::Int(1))])
            .node("Compress", &["x", "mask"], &["picked"], &[("axis", Attribute::Int(1))]);
        let outputs =
            [flat("same", dtype, 3), flat("twice", dtype, 6), spec("picked", dtype, &[Dim::Dynamic])];
        let setup = setup_of(model, &[flat("x", dtype, 3)], &outputs, 4);
        let (mut engine, _) = setup.engine().unwrap();
        let size = dtype.size_bytes();
        // Bits of small numbers, so that they are no NaN and, for bool, 0 or 1.
        let element = |n: usize| {
            let mut bytes = vec![0; size];
            bytes[0] = (n % 2) as u8;
            bytes
        };
        let rows: Vec<Vec<u8>> = (0..2).map(|r| (0..3).flat_map(|c| element(r + c)).collect()).collect();
        setup.fill_input(0, 0, 1, &rows);
        let dynamic = run(&mut engine, 0, 1, 2).unwrap();
        assert_eq!(setup.output(0, 0)[3 * size..9 * size], rows.concat(), "{dtype}");
        let twice = rows.iter().flat_map(|r| [r.clone(), r.clone()]).flatten().collect::<Vec<u8>>();
        assert_eq!(setup.output(0, 1)[6 * size..18 * size], twice, "{dtype}");
        assert_eq!(dynamic.len(), 1);
        assert_eq!((dynamic[0].output, dynamic[0].dtype, &dynamic[0].shape[..]), (2, dtype, &[2, 2][..]));
        let picked: Vec<u8> = rows.iter().flat_map(|r| [&r[..size], &r[2 * size..]].concat()).collect();
        assert_eq!(dynamic[0].data, picked, "{dtype}");
    }
}

#[test]
fn several_inputs_and_outputs_keep_their_places() {
    let model =
        ModelBuilder::new("two").node("Add", &["b", "b"], &["sum"], &[]).node("Neg", &["a"], &["neg"], &[]);
    let inputs = [flat("a", DType::F32, 2), flat("b", DType::I64, 1)];
    let outputs = [flat("neg", DType::F32, 2), flat("sum", DType::I64, 1)];
    let setup = setup_of(model, &inputs, &outputs, 3);
    let (mut engine, _) = setup.engine().unwrap();
    setup.fill_input(1, 0, 0, &[f32s(&[1.0, 2.0]), f32s(&[3.0, 4.0])]);
    setup.fill_input(1, 1, 0, &[20i64.to_ne_bytes().to_vec(), 40i64.to_ne_bytes().to_vec()]);
    run(&mut engine, 1, 0, 2).unwrap();
    assert_eq!(to_f32s(&setup.output(1, 0))[..4], [-1.0, -2.0, -3.0, -4.0]);
    assert_eq!(setup.output(1, 1)[..16], [40i64.to_ne_bytes(), 80i64.to_ne_bytes()].concat());
}

/// Keeps the columns that are positive in some row: no shape inference knows how many.
fn columns_setup(max_rows: usize, planned: Dim) -> Setup {
    let y = spec("y", DType::F32, &[planned]);
    Setup::new(|folder| models::positive_columns(folder, 3), &[flat("x", DType::F32, 3)], &[y], max_rows, 2)
}

#[test]
fn outputs_of_dynamic_shape_change_their_size_from_run_to_run() {
    let setup = columns_setup(4, Dim::Dynamic);
    let (mut engine, _) = setup.engine().unwrap();
    for (rows, columns) in [(3, 2), (1, 0), (4, 3), (2, 1), (2, 2)] {
        let row: Vec<f32> = (0..3).map(|c| if c < columns { 5.0 } else { -1.0 }).collect();
        setup.fill_input(0, 0, 0, &vec![f32s(&row); rows]);
        let outputs = run(&mut engine, 0, 0, rows).unwrap();
        assert_eq!(outputs[0].shape, [rows, columns]);
        assert_eq!(to_f32s(&outputs[0].data), vec![5.0; rows * columns]);
    }
}

#[test]
fn streams_of_one_session_run_at_the_same_time_and_mix_nothing_up() {
    const STREAMS: u32 = 4;
    let mut setups = [columns_setup(4, Dim::Dynamic), affine_setup(Some(6), 6), affine_setup(None, 8)];
    for setup in &mut setups {
        (setup.load.streams, setup.load.padded_to) = (STREAMS as usize, Some(2));
    }
    let [columns, fixed, open] = &setups;
    for (setup, fixed_outputs) in [(columns, false), (fixed, true), (open, true)] {
        let (mut engine, _) = setup.engine().unwrap();
        let streams = engine.take_streams();
        assert_eq!(streams.len(), STREAMS as usize);
        let slots = setup.load.layout.slots as u32;
        // Streams that share a slot use rows of their own.
        let place = |n: u32| (n % slots, 2 * (n / slots) as usize);
        for n in 0..STREAMS {
            let (slot, first) = place(n);
            setup.fill_input(slot, 0, first, &vec![f32s(&[n as f32 + 1.0; 3]); 2]);
        }
        let barrier = std::sync::Barrier::new(STREAMS as usize);
        std::thread::scope(|scope| {
            for (n, mut stream) in (0..STREAMS).zip(streams) {
                let barrier = &barrier;
                scope.spawn(move || {
                    let (slot, first) = place(n);
                    barrier.wait();
                    for round in 0..200 {
                        let rows = 1 + round % 2;
                        let run = run_of(round as u64, slot, first, rows);
                        let dynamic = stream.run(&run, &[], &mut RunTiming::default()).unwrap();
                        if !fixed_outputs {
                            assert_eq!(dynamic[0].shape, [rows, 3]);
                            assert_eq!(to_f32s(&dynamic[0].data), vec![n as f32 + 1.0; 3 * rows]);
                        }
                    }
                });
            }
        });
        for n in (0..STREAMS).filter(|_| fixed_outputs) {
            let (slot, first) = place(n);
            let found = to_f32s(&setup.output(slot, 0));
            assert_eq!(found[3 * first..3 * (first + 2)], [2.0 * (n as f32 + 1.0) + 1.0; 6], "stream {n}");
        }
    }
}

#[test]
fn outputs_of_dynamic_shape_lose_the_padding() {
    let x = TensorSpec { batch: Dim::Fixed(4), ..flat("x", DType::F32, 3) };
    let y = TensorSpec { batch: Dim::Fixed(4), ..spec("y", DType::F32, &[Dim::Dynamic]) };
    let model = ModelBuilder::new("columns")
        .constant("ones", &[3], &[0.0, 1.0, 1.0])
        .node("Cast", &["ones"], &["mask"], &[("to", Attribute::Int(element_type(DType::Bool).into()))])
        .node("Compress", &["x", "mask"], &["y"], &[("axis", Attribute::Int(1))]);
    let setup = setup_of(model, &[x], &[y], 4);
    let (mut engine, _) = setup.engine().unwrap();
    setup.fill_input(0, 0, 1, &[f32s(&[1.0, 2.0, 3.0]), f32s(&[4.0, 5.0, 6.0])]);
    let outputs = run(&mut engine, 0, 1, 2).unwrap();
    assert_eq!(outputs[0].shape, [2, 2]);
    assert_eq!(to_f32s(&outputs[0].data), [2.0, 3.0, 5.0, 6.0]);
}

#[test]
fn an_output_without_a_row_per_item_is_refused_for_more_than_one() {
    let places = spec("places", DType::I64, &[Dim::Dynamic]);
    let write = |folder: &Path| models::places_of_nonzero(folder, 3);
    let setup = Setup::new(write, &[flat("x", DType::F32, 3)], &[places], 4, 1);
    let (mut engine, _) = setup.engine().unwrap();
    setup.fill_input(0, 0, 0, &[f32s(&[1.0, 0.0, 1.0]), f32s(&[1.0, 1.0, 1.0]), f32s(&[0.0; 3])]);
    let error = run(&mut engine, 0, 0, 3).unwrap_err();
    assert_eq!(error.kind, RunErrorKind::Shape);
    assert!(error.error.contains("output `places` has the shape `[2,5]`"), "{error}");
    assert_eq!(run(&mut engine, 0, 0, 1).unwrap_err().kind, RunErrorKind::Shape);
    // Where batches have one item, all of it is its.
    let places = spec("places", DType::I64, &[Dim::Dynamic]);
    let single = Setup::new(write, &[flat("x", DType::F32, 3)], &[places], 1, 1);
    let (mut engine, _) = single.engine().unwrap();
    single.fill_input(0, 0, 0, &[f32s(&[1.0, 0.0, 1.0])]);
    let alone = run(&mut engine, 0, 0, 1).unwrap();
    assert_eq!((&alone[0].shape[..], alone[0].data.len()), (&[1, 2, 2][..], 4 * 8));
}

#[test]
fn an_output_that_is_not_as_planned_is_an_error_and_the_session_goes_on() {
    // The plan says three columns, two are positive.
    let setup = columns_setup(4, Dim::Fixed(3));
    let (mut engine, _) = setup.engine().unwrap();
    setup.fill_input(0, 0, 0, &vec![f32s(&[1.0, 2.0, -3.0]); 2]);
    setup.stain_output(0, 0, STAIN);
    setup.stain_output(1, 0, STAIN);
    for _ in 0..2 {
        let error = run(&mut engine, 0, 0, 2).unwrap_err();
        assert_eq!(error.kind, RunErrorKind::Shape, "{error}");
    }
    assert!(setup.output(1, 0).iter().all(|b| *b == STAIN));
    assert!(setup.output(0, 0)[2 * 12..].iter().all(|b| *b == STAIN), "rows of others are untouched");
}

#[test]
fn data_that_the_model_refuses_is_the_batch_s_fault_and_the_next_one_runs() {
    let model = ModelBuilder::new("table").constant("table", &[3], &[10.0, 11.0, 12.0]).node(
        "Gather",
        &["table", "x"],
        &["y"],
        &[("axis", Attribute::Int(0))],
    );
    let setup = setup_of(model, &[flat("x", DType::I64, 1)], &[flat("y", DType::F32, 1)], 2);
    let (mut engine, _) = setup.engine().unwrap();
    let row = |n: i64| n.to_ne_bytes().to_vec();
    setup.fill_input(0, 0, 0, &[row(1), row(99)]);
    let error = run(&mut engine, 0, 0, 2).unwrap_err();
    assert_eq!(error.kind, RunErrorKind::Model, "{error}");
    assert!(error.error.contains("99"), "{error}");
    setup.fill_input(0, 0, 1, &[row(2)]);
    run(&mut engine, 0, 0, 2).unwrap();
    assert_eq!(to_f32s(&setup.output(0, 0)), [11.0, 12.0]);
}

#[test]
fn memory_that_cannot_be_had_is_out_of_memory_and_is_not_kept_from_others() {
    // Expands one number to the shape that the input says: 2^50 of them.
    let model = ModelBuilder::new("expand")
        .constant("one", &[1, 1], &[1.0])
        .constant("minus_one", &[1], &[-1.0])
        .node("Cast", &["minus_one"], &["flat"], &[("to", Attribute::Int(element_type(DType::I64).into()))])
        .node("Reshape", &["x", "flat"], &["shape"], &[])
        .node("Expand", &["one", "shape"], &["y"], &[]);
    let setup = setup_of(model, &[flat("x", DType::I64, 2)], &[spec("y", DType::F32, &[Dim::Dynamic])], 1);
    let (mut engine, _) = setup.engine().unwrap();
    setup.fill_input(0, 0, 0, &[[1i64, 1 << 50].map(i64::to_ne_bytes).concat()]);
    let before = address_space_bytes();
    let error = run(&mut engine, 0, 0, 1).unwrap_err();
    assert_eq!(error.kind, RunErrorKind::OutOfMemory, "{error}");
    setup.fill_input(0, 0, 0, &[[1i64, 5].map(i64::to_ne_bytes).concat()]);
    assert_eq!(run(&mut engine, 0, 0, 1).unwrap()[0].shape, [1, 5]);
    // An arena without a bound would hold all of the machine's memory that it could get.
    assert!(address_space_bytes() < before + (1 << 30));
}

#[test]
fn warm_up_leaves_the_arena_alone() {
    for batch in [None, Some(4)] {
        let mut setup = affine_setup(batch, 4);
        setup.load.padded_to = Some(4);
        setup.stain_output(0, 0, STAIN);
        let (mut engine, _) = setup.engine().unwrap();
        assert!(setup.output(0, 0).iter().all(|b| *b == STAIN));
        run(&mut engine, 0, 0, 2).unwrap();
        assert_eq!(to_f32s(&setup.output(0, 0)[..24]), [1.0; 6]);
    }
}

#[test]
fn custom_operators_run_and_their_failures_have_a_class() {
    let tensors = [flat("x", DType::F32, 3), flat("y", DType::F32, 3)];
    let mut setup = Setup::new(|f| models::trap(f, &[3]), &tensors[..1], &tensors[1..], 4, 1);
    let library = trap_library().unwrap();
    let digest = orchestra_onnx::digest::model_digest(&library).unwrap();
    setup.spec.custom_ops = vec![(library, digest)];
    let (mut engine, _) = setup.engine().unwrap();
    let row = |trap: Trap| f32s(&[1.0, f32::from(trap.value()), 2.0]);
    for (trap, kind) in [(Trap::Fail, RunErrorKind::Model), (Trap::OutOfMemory, RunErrorKind::OutOfMemory)] {
        setup.fill_input(0, 0, 0, &vec![row(trap); 3]);
        let error = run(&mut engine, 0, 0, 3).unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
    }
    run(&mut engine, 0, 0, 2).unwrap();
    assert_eq!(setup.output(0, 0)[..12], row(Trap::OutOfMemory));
}
