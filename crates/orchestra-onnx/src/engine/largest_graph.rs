//! Puts nodes behind a model, so that of an output it gives the largest number along the last dimension and its place alone.
//!
//! ```text
//! y -> TopK, k = 1 -> values -> Cast to f32 --+-> Concat -> f32 [.., 2]: place, number
//!                  -> places -> Cast to f32 --+
//! ```
//!
//! So a reader of text gives some kilobytes for a line of it instead of megabytes, and what it does not give need not leave its device.

use crate::session_names::of_largest;
use orchestra_core::DType;
use orchestra_core::onnx_file::{AttributeProto, NodeProto, TensorProto, ValueInfoProto, element_type};

use super::graph_edit::{EditError, GraphEdit, constant, node};

/// `TopK` takes `k` as an input.
const OLDEST_OPSET: i64 = 10;

/// Puts the nodes behind the tensor `rows`, and gives what they make in place of the model's output `output`.
pub fn put_behind(edit: &mut GraphEdit<'_>, output: &str, rows: &str) -> Result<(), EditError> {
    edit.needs(OLDEST_OPSET)?;
    let f32 = element_type(DType::F32);
    let made = of_largest(rows);
    edit.replace_output(output, ValueInfoProto::tensor(&made, f32, None))?;
    let [k, values, places, numbers, numbered] =
        ["k", "values", "places", "numbers", "numbered"].map(|part| format!("orchestra.{part}.{rows}"));
    let last_axis = AttributeProto::int("axis", -1);
    let to_f32 = AttributeProto::int("to", f32.into());
    let largest = node("TopK", &[rows, &k], &values, [last_axis.clone()]);
    edit.last.extend([
        constant(&k, TensorProto::i64s(&[1])),
        NodeProto { output: vec![values.clone(), places.clone()], ..largest },
        node("Cast", &[&values], &numbers, [to_f32.clone()]),
        node("Cast", &[&places], &numbered, [to_f32]),
        node("Concat", &[&numbered, &numbers], &made, [last_axis]),
    ]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use orchestra_core::onnx_file::ModelProto;
    use orchestra_core::{Dim, TensorSpec};
    use orchestra_testkit::onnx::ModelBuilder;
    use prost::Message as _;

    use super::*;

    fn spec(name: &str) -> TensorSpec {
        TensorSpec { name: name.into(), dtype: DType::F32, row: vec![Dim::Fixed(64)], batch: Dim::Dynamic }
    }

    fn model() -> Vec<u8> {
        let model = ModelBuilder::new("m").input(&spec("x")).output(&spec("z")).output(&spec("y"));
        model.node("Relu", &["x"], &["y"], &[]).node("Relu", &["x"], &["z"], &[]).encode()
    }

    fn edited(model: &[u8], output: &str) -> Result<ModelProto, EditError> {
        let mut edit = GraphEdit::of(model)?;
        put_behind(&mut edit, output, output)?;
        Ok(ModelProto::decode(&*edit.apply()?)?)
    }

    #[test]
    fn only_the_output_changes_and_the_nodes_come_last() {
        let before = ModelProto::decode(&*model()).unwrap().graph.unwrap();
        let after = edited(&model(), "y").unwrap().graph.unwrap();
        let operators: Vec<&str> = after.node.iter().map(|n| n.op_type.as_str()).collect();
        assert_eq!(operators, ["Relu", "Relu", "Constant", "TopK", "Cast", "Cast", "Concat"]);
        assert_eq!(
            (&after.node[..2], &after.input, &after.output[0]),
            (&before.node[..], &before.input, &before.output[0])
        );
        assert_eq!(after.output[1].name, "orchestra.largest.y");
        assert_eq!(after.node[6].output, ["orchestra.largest.y"]);
    }

    #[test]
    fn what_cannot_be_edited_is_refused() {
        let missing = edited(&model(), "w").unwrap_err();
        assert_eq!(missing, EditError::NoOutput("w".to_owned()));
        let mut old = ModelProto::decode(&*model()).unwrap();
        old.opset_import[0].version = 9;
        let refused = edited(&old.encode_to_vec(), "y").unwrap_err();
        assert_eq!(refused, EditError::OldOpset { found: 9, needed: 10 });
    }
}
