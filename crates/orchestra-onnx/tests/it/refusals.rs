//! What a worker refuses to load, and what it says.

use std::path::{Path, PathBuf};
use std::slice::from_ref;

use crate::common::{Setup, affine_setup, flat};
use orchestra_core::{DType, DeviceKind, Dim, ErrorClass, Provider, TensorRt, TextInput};
use orchestra_onnx::digest::model_digest;
use orchestra_testkit::models;
use orchestra_testkit::onnx::{Attribute, ModelBuilder};
use orchestra_worker::LoadError;

fn affine(folder: &Path) -> Result<PathBuf, impl std::fmt::Debug + use<>> {
    models::affine(folder, &[3])
}

fn refusal(setup: &Setup) -> LoadError {
    setup.engine().err().expect("the model is refused")
}

#[test]
fn a_model_file_that_changed_since_the_plan_is_refused() {
    let mut setup = affine_setup(None, 2);
    setup.spec.digest[0] ^= 1;
    let error = refusal(&setup);
    assert_eq!(error.class, ErrorClass::Permanent);
    assert!(error.error.contains("changed since the plan"), "{error}");
    setup.spec.model = "/nowhere/model.onnx".into();
    assert!(refusal(&setup).error.contains("model `/nowhere/model.onnx` cannot be read"));
}

#[test]
fn external_weights_that_changed_since_the_plan_are_refused_by_name() {
    let mut setup = affine_setup(None, 2);
    let weights = setup.spec.model.with_file_name("weights.bin");
    std::fs::write(&weights, [1, 2, 3]).unwrap();
    setup.spec.weights = vec![(weights.clone(), model_digest(&weights).unwrap())];
    assert!(setup.engine().is_ok(), "they are as planned");
    std::fs::write(&weights, [1, 2, 4]).unwrap();
    let error = refusal(&setup);
    assert_eq!(error.class, ErrorClass::Permanent);
    let says = format!("weights file `{}` changed since the plan was made", weights.display());
    assert!(error.error.contains(&says), "{error}");
    std::fs::remove_file(&weights).unwrap();
    let says = format!("weights file `{}` cannot be read", weights.display());
    assert!(refusal(&setup).error.contains(&says));
}

#[test]
fn a_session_that_is_not_as_planned_is_refused_with_both_shown() {
    let x = flat("x", DType::F32, 3);
    let y = flat("y", DType::F32, 3);
    let cases = [
        (
            [flat("z", DType::F32, 3)],
            [y.clone()],
            "input `z` is f32[batch, 3] in the plan, but the model has `x` as f32[batch, 3]",
        ),
        (
            [flat("x", DType::F16, 3)],
            [y.clone()],
            "input `x` is f16[batch, 3] in the plan, but the model has `x` as f32[batch, 3]",
        ),
        (
            [flat("x", DType::F32, 4)],
            [y],
            "input `x` is f32[batch, 4] in the plan, but the model has `x` as f32[batch, 3]",
        ),
        (
            [x],
            [flat("y", DType::F32, 5)],
            "output `y` is f32[batch, 5] in the plan, but the model has `y` as f32[batch, 3]",
        ),
    ];
    for (inputs, outputs, text) in cases {
        let error = refusal(&Setup::new(affine, &inputs, &outputs, 2, 1));
        assert_eq!(error, LoadError { class: ErrorClass::Permanent, error: text.to_owned() });
    }
    let two = [flat("x", DType::F32, 3), flat("more", DType::F32, 3)];
    let error = refusal(&Setup::new(affine, &two, &[flat("y", DType::F32, 3)], 2, 1));
    assert_eq!(error.error, "the model has `1` inputs (x), the plan `2`");
}

#[test]
fn slots_larger_than_the_only_batch_size_are_refused() {
    let error = refusal(&affine_setup(Some(4), 8));
    assert_eq!(error.class, ErrorClass::Permanent);
    assert!(error.error.contains("accepts batches of `4` only"), "{error}");
    assert!(error.error.contains("set `batch = { max = 4 }`"), "{error}");
}

#[test]
fn element_types_that_no_stage_understands_are_refused() {
    let (x, text) = (flat("x", DType::F32, 3), flat("text", DType::F32, 3));
    let output = TextInput { name: "text".to_owned(), row: text.row.clone(), batch: Dim::Dynamic };
    let to_text = [("to", Attribute::Int(8))];
    let model =
        ModelBuilder::new("text").input(&x).text_output(&output).node("Cast", &["x"], &["text"], &to_text);
    let setup = Setup::new(|folder| model.write(folder), &[x], &[text], 2, 1);
    let error = refusal(&setup);
    assert!(error.error.contains("output `text` has elements of type"), "{error}");
    assert!(error.error.contains("supported are f32, f16, i64, i32, u8, bool"), "{error}");
}

#[test]
fn files_that_the_runtime_refuses_are_refused_for_good() {
    let (x, y) = (flat("x", DType::F32, 4), flat("y", DType::F32, 4));
    for write in [models::garbage, models::unknown_operator] {
        let error = refusal(&Setup::new(write, from_ref(&x), from_ref(&y), 2, 1));
        assert_eq!(error.class, ErrorClass::Permanent);
        assert!(error.error.starts_with("onnx runtime refuses model `"), "{error}");
    }
}

#[test]
fn custom_operators_that_are_not_there_are_refused_by_name() {
    let mut setup = affine_setup(None, 2);
    setup.spec.custom_ops = vec![("/nowhere/libops.so".into(), [0; 32])];
    let error = refusal(&setup);
    assert_eq!(error.class, ErrorClass::Permanent);
    assert!(error.error.contains("operator library `/nowhere/libops.so` cannot be read"), "{error}");
}

#[test]
fn custom_operators_that_changed_since_the_plan_are_refused_by_name() {
    let mut setup = affine_setup(None, 2);
    let library = orchestra_testkit::trap_library().unwrap();
    setup.spec.custom_ops = vec![(library.clone(), [7; 32])];
    let error = refusal(&setup);
    assert_eq!(error.class, ErrorClass::Permanent);
    let says = format!("operator library `{}` changed since the plan was made", library.display());
    assert!(error.error.contains(&says), "{error}");
}

#[test]
fn cuda_that_does_not_load_is_an_error_and_never_the_cpu() {
    let mut setup = affine_setup(None, 2);
    setup.load.device = DeviceKind::Cuda { uuid: "GPU-none".into() };
    // Where the library has CUDA and a device is there, loading may succeed: then nodes must be on it.
    match setup.engine() {
        Ok((_, loaded)) => assert!(loaded.providers.iter().any(|(name, _)| name == "CUDAExecutionProvider")),
        Err(error) => {
            assert_eq!(error.class, ErrorClass::Permanent, "{error}");
            assert!(error.error.starts_with("cuda cannot be used: "), "{error}");
            assert!(error.error.contains("`orchestra doctor`"), "{error}");
        }
    }
}

#[test]
fn tensorrt_that_does_not_load_is_an_error_and_never_cuda_alone() {
    let mut setup = affine_setup(None, 2);
    setup.load.device = DeviceKind::Cuda { uuid: "GPU-none".into() };
    setup.spec.tuning.provider = Provider::TensorRt(TensorRt::default());
    match setup.engine() {
        Ok((_, loaded)) => {
            assert!(loaded.providers.iter().any(|(name, _)| name == "TensorrtExecutionProvider"));
        }
        Err(error) => {
            assert_eq!(error.class, ErrorClass::Permanent, "{error}");
            assert!(error.error.starts_with("tensorrt cannot be used: "), "{error}");
            assert!(error.error.contains("without `provider = \"tensorrt\"`"), "{error}");
        }
    }
}
