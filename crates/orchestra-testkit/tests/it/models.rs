//! Every test model loads in ONNX Runtime and does what its description says.

use crate::common::{run, session};
use orchestra_core::DType;
use orchestra_testkit::images::{Kind, index_of_blocks, picture, write_trap_picture};
use orchestra_testkit::{Trap, models, trap_library};
use ort::value::{TensorRef, ValueType};

fn pixels(index: u64) -> Vec<f32> {
    picture(index, 32, 32).into_raw().into_iter().map(f32::from).collect()
}

#[test]
fn affine_doubles_and_adds_one_in_batches_of_any_size() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = session(&models::affine(dir.path(), &[2]).unwrap(), None).unwrap();
    assert_eq!(run(&mut model, &[1, 2], &[1.0, -1.0]).unwrap(), (vec![1, 2], vec![3.0, -1.0]));
    assert_eq!(run(&mut model, &[3, 2], &[0.0; 6]).unwrap(), (vec![3, 2], vec![1.0; 6]));
}

#[test]
fn the_fixed_model_refuses_other_batches() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = session(&models::affine_fixed(dir.path(), &[2], 3).unwrap(), None).unwrap();
    assert_eq!(run(&mut model, &[3, 2], &[0.0; 6]).unwrap().1, [1.0; 6]);
    assert!(run(&mut model, &[2, 2], &[0.0; 4]).is_err());
}

#[test]
fn blocks_tell_which_picture_is_in_which_row() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = session(&models::blocks(dir.path(), [1, 32, 32]).unwrap(), None).unwrap();
    let indices = [5, 0, 1_000_000, 77];
    let batch: Vec<f32> = indices.iter().flat_map(|i| pixels(*i)).collect();
    let (shape, blocks) = run(&mut model, &[4, 1, 32, 32], &batch).unwrap();
    assert_eq!(shape, [4, 32]);
    let found: Vec<_> = blocks.chunks(32).map(|b| index_of_blocks(b).unwrap()).collect();
    assert_eq!(found, indices);
    let mut colour = session(&models::blocks(dir.path(), [3, 32, 32]).unwrap(), None).unwrap();
    let three = [pixels(9), pixels(9), pixels(9)].concat();
    assert_eq!(index_of_blocks(&run(&mut colour, &[1, 3, 32, 32], &three).unwrap().1), Some(9));
}

#[test]
fn two_inputs_give_two_outputs() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = session(&models::two_in_two_out(dir.path(), &[2]).unwrap(), None).unwrap();
    let (a, b) = ([1.0f32, 2.0], [10.0f32, 20.0]);
    let a = TensorRef::from_array_view(([1i64, 2], &a[..])).unwrap();
    let b = TensorRef::from_array_view(([1i64, 2], &b[..])).unwrap();
    let outputs = model.run(ort::inputs!["a" => a, "b" => b]).unwrap();
    assert_eq!(outputs["sum"].try_extract_tensor::<f32>().unwrap().1, [11.0, 22.0]);
    assert_eq!(outputs["difference"].try_extract_tensor::<f32>().unwrap().1, [-9.0, -18.0]);
}

#[test]
fn there_is_an_identity_for_every_element_type() {
    let dir = tempfile::tempdir().unwrap();
    for dtype in DType::ALL {
        let model = session(&models::identity(dir.path(), dtype, &[4]).unwrap(), None).unwrap();
        let ValueType::Tensor { ty, shape, .. } = model.outputs()[0].dtype() else { panic!("no tensor") };
        assert_eq!(ty.byte_size(1), Some(dtype.size_bytes()), "{dtype}");
        assert_eq!(shape.to_vec(), [-1, 4]);
    }
}

#[test]
fn positive_columns_have_a_width_that_only_the_run_knows() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = session(&models::positive_columns(dir.path(), 3).unwrap(), None).unwrap();
    let two_rows = [1.0, -1.0, 0.0, 2.0, -2.0, 5.0];
    assert_eq!(run(&mut model, &[2, 3], &two_rows).unwrap(), (vec![2, 2], vec![1.0, 0.0, 2.0, 5.0]));
    assert_eq!(run(&mut model, &[1, 3], &[-1.0; 3]).unwrap(), (vec![1, 0], vec![]));
}

#[test]
fn places_of_nonzero_cannot_be_cut_into_items() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = session(&models::places_of_nonzero(dir.path(), 2).unwrap(), None).unwrap();
    let batch = [0.0f32, 1.0, 0.0, 0.0, 5.0, 6.0];
    let input = TensorRef::from_array_view(([3i64, 2], &batch[..])).unwrap();
    let outputs = model.run(ort::inputs!["x" => input]).unwrap();
    let (shape, places) = outputs[0].try_extract_tensor::<i64>().unwrap();
    assert_eq!((shape.to_vec(), places), (vec![2, 3], &[0, 2, 2, 1, 0, 1][..]));
}

#[test]
fn the_slow_model_shifts_its_row() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = session(&models::slow(dir.path(), 4, 3).unwrap(), None).unwrap();
    let (_, shifted) = run(&mut model, &[1, 4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    assert_eq!(shifted, [2.0, 3.0, 4.0, 1.0]);
}

#[test]
fn what_is_no_model_does_not_load() {
    let dir = tempfile::tempdir().unwrap();
    assert!(session(&models::garbage(dir.path()).unwrap(), None).is_err());
    let error = session(&models::unknown_operator(dir.path()).unwrap(), None).unwrap_err();
    assert!(error.to_string().contains("Frobnicate"), "{error}");
    assert!(session(&models::trap(dir.path(), &[2]).unwrap(), None).is_err());
}

#[test]
fn the_trap_copies_what_is_harmless_and_fails_when_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let library = trap_library().unwrap();
    let mut model = session(&models::trap(dir.path(), &[2]).unwrap(), Some(&library)).unwrap();
    let harmless = [0.0, 12.0, 13.5, -13.0, 255.0, 1.0];
    assert_eq!(run(&mut model, &[3, 2], &harmless).unwrap(), (vec![3, 2], harmless.to_vec()));
    let error = run(&mut model, &[1, 2], &[0.0, 17.0]).unwrap_err();
    assert!(error.to_string().contains("asked to fail"), "{error}");
    let hungry = [18.0; 6];
    let error = run(&mut model, &[3, 2], &hungry).unwrap_err();
    assert!(error.to_string().contains("Failed to allocate memory for requested buffer"), "{error}");
    assert_eq!(run(&mut model, &[2, 2], &hungry[..4]).unwrap().1, hungry[..4]);
}

#[test]
fn a_trap_picture_springs_the_trap_and_others_pass_it_with_their_index() {
    let dir = tempfile::tempdir().unwrap();
    let path = models::blocks_behind_trap(dir.path(), [1, 32, 32]).unwrap();
    let mut model = session(&path, Some(&trap_library().unwrap())).unwrap();
    let (_, blocks) = run(&mut model, &[1, 1, 32, 32], &pixels(123)).unwrap();
    assert_eq!(index_of_blocks(&blocks), Some(123));
    let bad = write_trap_picture(dir.path(), 124, Trap::Fail).unwrap();
    let bad: Vec<f32> = image::open(bad).unwrap().to_luma8().into_raw().into_iter().map(f32::from).collect();
    assert!(run(&mut model, &[1, 1, 32, 32], &bad).is_err());
    // A JPEG of the same picture does decode to something else; only its index is promised.
    orchestra_testkit::images::write_picture(dir.path(), 124, 32, 32, Kind::Jpeg).unwrap();
}
