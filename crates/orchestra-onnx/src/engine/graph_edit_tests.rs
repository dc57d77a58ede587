//! What an edit leaves alone: every byte that it does not replace. What nodes it puts in is tested with those who make them.

use orchestra_core::onnx_file::ModelProto;
use orchestra_core::{DType, Dim};
use proptest::prelude::*;

use super::*;

/// A field that no description has.
fn unknown(mark: &[u8]) -> Vec<u8> {
    field(1000, mark)
}

fn field(number: u32, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(value.len() as u64, &mut bytes);
    [&bytes, value].concat()
}

fn tensor(name: &str, dtype: DType) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, row: vec![Dim::Fixed(4)], batch: Dim::Dynamic }
}

fn value(name: &str) -> Vec<u8> {
    let dims = vec![DimensionProto::named("batch"), DimensionProto::fixed(4)];
    ValueInfoProto::tensor(name, 1, Some(dims)).encode_to_vec()
}

/// The fields of a model with fields that no description has, in the model, in its graph and in all that its graph holds: before the graph,
/// the graph's up to the input `x`, those up to the output `y`, the rest, and what is behind the graph.
fn parts() -> [Vec<u8>; 5] {
    let with = |number, message: Vec<u8>, mark: &[u8]| field(number, &[message, unknown(mark)].concat());
    let opset = OperatorSetIdProto { domain: String::new(), version: 17 }.encode_to_vec();
    let relu = node("Relu", &["x"], "y", None).encode_to_vec();
    let weight = TensorProto::f32s(&[2], &[1.0, 2.0]).encode_to_vec();
    let [training_info, functions, value_info, quantisation] =
        [20, 25, 13, 14].map(|n| field(n, b"\x0a\x01t"));
    [
        [vec![0x08, 10], unknown(b"model"), training_info].concat(),
        [with(1, relu, b"node"), with(5, weight, b"weight"), with(11, value("other"), b"input")].concat(),
        [unknown(b"graph"), value_info].concat(),
        [quantisation, with(12, value("z"), b"output"), vec![0x9d, 0x3e, 1, 2, 3, 4]].concat(),
        [with(8, opset, b"opset"), functions, vec![0x99, 0x3e, 1, 2, 3, 4, 5, 6, 7, 8]].concat(),
    ]
}

fn model_of(x: &[u8], y: &[u8], around: [&[u8]; 2]) -> Vec<u8> {
    let [before, first, second, third, behind] = parts();
    let graph = [around[0], &first, x, &second, y, &third, around[1]].concat();
    [before, field(7, &graph), behind].concat()
}

#[test]
fn fields_that_are_not_known_stay_at_every_level_of_a_model_that_is_edited() {
    let model = model_of(&field(11, &value("x")), &field(12, &value("y")), [b"", b""]);
    let mut edit = GraphEdit::of(&model).unwrap();
    assert_eq!(edit.opset, 17);
    edit.replace_input(&tensor("x", DType::U8), "bytes", 0).unwrap();
    edit.replace_output("y", ValueInfoProto::tensor("first", 1, None)).unwrap();
    edit.replace_output("y", ValueInfoProto::tensor("rows", 1, None)).unwrap();
    let (cast, identity) = (node("Cast", &["bytes"], "x", None), node("Identity", &["y"], "rows", None));
    edit.first.push(cast.clone());
    edit.last.push(identity.clone());
    let dims = vec![DimensionProto::named("batch"), DimensionProto::fixed(4)];
    let bytes = ValueInfoProto::tensor("bytes", 2, Some(dims)).encode_to_vec();
    let rows = ValueInfoProto::tensor("rows", 1, None).encode_to_vec();
    let nodes = [field(1, &cast.encode_to_vec()), field(1, &identity.encode_to_vec())];
    let expected = model_of(&field(11, &bytes), &field(12, &rows), [&nodes[0], &nodes[1]]);
    assert_eq!(edit.apply().unwrap(), expected);
    assert!(ModelProto::decode(&*expected).is_ok());
}

#[test]
fn a_model_without_changes_is_the_same_file() {
    let model = model_of(&field(11, &value("x")), &field(12, &value("y")), [b"", b""]);
    assert_eq!(GraphEdit::of(&model).unwrap().apply().unwrap(), model);
}

#[test]
fn an_input_is_replaced_once_and_what_is_missing_is_named() {
    let model = model_of(&field(11, &value("x")), &field(12, &value("y")), [b"", b""]);
    let mut edit = GraphEdit::of(&model).unwrap();
    let (x, w) = (tensor("x", DType::U8), tensor("w", DType::U8));
    assert_eq!(edit.replace_input(&x, "bytes", 0), Ok(()));
    assert_eq!(edit.replace_input(&x, "whole", 0), Err(EditError::NoInput("x".into())));
    assert_eq!(edit.replace_input(&w, "bytes", 0), Err(EditError::NoInput("w".into())));
    let output = ValueInfoProto::tensor("rows", 1, None);
    assert_eq!(edit.replace_output("w", output), Err(EditError::NoOutput("w".into())));
    assert_eq!(edit.needs(18), Err(EditError::OldOpset { found: 17, needed: 18 }));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fields_of_any_bytes_follow_one_another(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut end = 0;
        for field in fields(&bytes).map_while(Result::ok) {
            prop_assert_eq!(field.place.start, end);
            end = field.place.end;
        }
        prop_assert!(end <= bytes.len());
    }
}
