//! What the edited bytes are; whether the runtime computes the same with them is tested in `tests/pixels.rs`.

use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::onnx_file::ModelProto;
use orchestra_core::{Dim, TensorSpec};
use orchestra_testkit::onnx::{Attribute, ModelBuilder};
use proptest::prelude::*;
use prost::Message as _;

use super::*;

fn spec(name: &str, dtype: DType, row: &[usize]) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        dtype,
        row: row.iter().copied().map(Dim::Fixed).collect(),
        batch: Dim::Dynamic,
    }
}

fn layout(name: &str) -> BatchLayout {
    BatchLayout::new(&[spec(name, DType::U8, &[4, 5, 3])], &[], 1, 1).unwrap()
}

fn pixels(layout: Layout, dtype: DType) -> PixelInput {
    PixelInput { layout, dtype, factor: vec![0.5, 0.25, 2.0], offset: vec![-1.0, 0.0, 1.0] }
}

fn model() -> Vec<u8> {
    let (x, y) = (spec("x", DType::F32, &[3, 4, 5]), spec("y", DType::F32, &[3, 4, 5]));
    let other = spec("other", DType::I64, &[1]);
    ModelBuilder::new("m")
        .input(&other)
        .input(&x)
        .output(&y)
        .constant("w", &[2], &[1.0, 2.0])
        .node("Relu", &["x"], &["y"], &[("unused", Attribute::Float(1.5))])
        .encode()
}

/// The model with nodes in front of its input `name`.
fn edit(model: &[u8], name: &str, pixels: &PixelInput) -> Result<Vec<u8>, EditError> {
    let mut edit = GraphEdit::of(model)?;
    put_in_front(&mut edit, &Front { span: &layout(name).inputs[0], pixels })?;
    edit.apply()
}

fn edited(pixels: &PixelInput) -> ModelProto {
    ModelProto::decode(&*edit(&model(), "x", pixels).unwrap()).unwrap()
}

#[test]
fn only_the_input_changes_and_the_nodes_come_first() {
    let before = ModelProto::decode(&*model()).unwrap();
    let after = edited(&pixels(Layout::Nchw, DType::F32));
    let (old, new) = (before.graph.clone().unwrap(), after.graph.clone().unwrap());
    let operators: Vec<&str> = new.node.iter().map(|n| n.op_type.as_str()).collect();
    assert_eq!(operators, ["Transpose", "Cast", "Constant", "Mul", "Constant", "Add", "Relu"]);
    assert_eq!(new.node[6], old.node[0]);
    assert_eq!(
        (&new.input[0], &new.initializer, &new.output),
        (&old.input[0], &old.initializer, &old.output)
    );
    assert_eq!(new.input[1].name, "orchestra.pixels.x");
    assert_eq!(
        (&new.node[0].input[..], &new.node[5].output[..]),
        (&["orchestra.pixels.x".to_owned()][..], &["x".to_owned()][..])
    );
    assert_eq!((before.ir_version, before.opset_import), (after.ir_version, after.opset_import));
}

#[test]
fn a_model_that_wants_the_pixels_order_is_given_no_transpose_and_half_precision_a_last_cast() {
    let graph = edited(&pixels(Layout::Nhwc, DType::F16)).graph.unwrap();
    let operators: Vec<&str> = graph.node.iter().map(|n| n.op_type.as_str()).collect();
    assert_eq!(operators, ["Cast", "Constant", "Mul", "Constant", "Add", "Cast", "Relu"]);
    assert_eq!(graph.node[5].output, ["x"]);
}

#[test]
fn what_cannot_be_edited_is_refused_by_name() {
    let refused = |model: &[u8], name: &str, pixels: &PixelInput| edit(model, name, pixels).unwrap_err();
    let good = pixels(Layout::Nchw, DType::F32);
    assert_eq!(refused(&model(), "z", &good), EditError::NoInput("z".to_owned()));
    assert_eq!(refused(&[], "x", &good), EditError::NoGraph);
    let twice = [model(), model()].concat();
    assert_eq!(refused(&twice, "x", &good), EditError::NoGraph);
    let one = PixelInput { factor: vec![1.0], ..good.clone() };
    assert_eq!(refused(&model(), "x", &one), EditError::NoPixels("x".to_owned()));
    let integers = PixelInput { dtype: DType::I64, ..good.clone() };
    assert_eq!(refused(&model(), "x", &integers), EditError::NoPixels("x".to_owned()));
    let mut old = ModelProto::decode(&*model()).unwrap();
    old.opset_import[0].version = 6;
    assert_eq!(refused(&old.encode_to_vec(), "x", &good), EditError::OldOpset { found: 6, needed: 7 });
}

#[test]
fn a_model_cut_off_anywhere_is_an_error_or_a_smaller_model() {
    let (whole, pixels) = (model(), pixels(Layout::Nchw, DType::F32));
    for end in 0..whole.len() {
        if let Ok(edited) = edit(&whole[..end], "x", &pixels) {
            assert!(ModelProto::decode(&*edited).is_ok(), "cut at {end}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_models_never_panic(at in 0_usize..400, byte: u8) {
        let mut model = model();
        let at = at % model.len();
        model[at] = byte;
        drop(edit(&model, "x", &pixels(Layout::Nchw, DType::F32)));
    }
}
