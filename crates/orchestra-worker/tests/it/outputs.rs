//! Outputs of dynamic shape as a worker that ran wild may describe them.

use orchestra_core::DType;
use orchestra_worker::frames::DynamicOutput;

fn is_sound(dtype: DType, shape: &[usize], bytes: usize) -> bool {
    DynamicOutput { output: 0, dtype, shape: shape.to_vec(), data: vec![0; bytes] }.is_sound()
}

#[test]
fn an_output_is_sound_if_its_data_are_what_its_shape_says() {
    assert!(is_sound(DType::F32, &[2, 3], 24));
    assert!(is_sound(DType::F32, &[], 4));
    assert!(is_sound(DType::I64, &[5, 0, 4], 0));
    assert!(is_sound(DType::U8, &[1; 64], 1));
    assert!(!is_sound(DType::F32, &[2, 3], 23));
    assert!(!is_sound(DType::F32, &[2, 0], 4));
}

#[test]
fn a_shape_beyond_the_address_space_is_not_sound() {
    // In 64 bits these are 0, and 0 bytes.
    assert!(!is_sound(DType::U8, &[1, 1 << 32, 1 << 32], 0));
    assert!(!is_sound(DType::F32, &[1, 1 << 62], 0));
    assert!(!is_sound(DType::F32, &[1, usize::MAX, 0, usize::MAX], 0));
}

#[test]
fn a_shape_that_would_be_written_as_millions_of_empty_lists_is_not_sound() {
    assert!(is_sound(DType::F32, &[1, 1 << 20, 0], 0));
    assert!(!is_sound(DType::F32, &[1, (1 << 20) + 1, 0], 0));
    assert!(is_sound(DType::F32, &[1, 0, 1 << 40], 0), "there is one empty list");
}

#[test]
fn a_shape_deeper_than_any_stack_is_not_sound() {
    assert!(!is_sound(DType::U8, &[1; 65], 1));
}
