//! Puts nodes behind a model, so that of an output it gives the largest number along the last dimension and its place alone. It works on the
//! bytes of the file.
//!
//! ```text
//! y -> TopK, k = 1 -> values -> Cast to f32 --+-> Concat -> f32 [.., 2]: place, number
//!                  -> places -> Cast to f32 --+
//! ```
//!
//! So a reader of text gives some kilobytes for a line of it instead of megabytes, and what it does not give need not leave its device.

use super::graph_edit::{
    EditError, FLOAT, Node, child, integer, integers, number, untyped_shape, with_graph,
};
use super::protobuf::{Fields, Message};

/// `TopK` takes `k` as an input.
const OLDEST_OPSET: u64 = 10;

/// How the session names the output `name` of a model that gives the largest numbers of it alone.
pub fn session_name(name: &str) -> String {
    format!("orchestra.largest.{name}")
}

/// The model that gives the largest numbers of these outputs in their stead.
pub fn put_behind(model: &[u8], outputs: &[String]) -> Result<Vec<u8>, EditError> {
    with_graph(model, OLDEST_OPSET, |graph| edit_graph(graph, outputs))
}

/// New nodes come last, because nodes stand in the order in which they can run.
fn edit_graph(graph: &[u8], outputs: &[String]) -> Result<Vec<u8>, EditError> {
    let mut edited = Message::with_capacity(graph.len() + 4096 * outputs.len());
    let mut replaced = vec![false; outputs.len()];
    for field in Fields::of(graph) {
        let field = field?;
        let name = match field.value.bytes().filter(|_| field.number == number::GRAPH_OUTPUT) {
            Some(output) => child(output, number::VALUE_NAME)?,
            None => None,
        };
        match outputs.iter().position(|output| Some(output.as_bytes()) == name) {
            Some(place) => {
                replaced[place] = true;
                edited.push_bytes(number::GRAPH_OUTPUT, &output(&outputs[place]));
            }
            None => edited.push_field(&field),
        }
    }
    if let Some(missing) = replaced.iter().position(|done| !done) {
        return Err(EditError::NoOutput(outputs[missing].clone()));
    }
    for node in outputs.iter().flat_map(|name| nodes(name)) {
        edited.push_bytes(number::GRAPH_NODE, &node);
    }
    Ok(edited.done())
}

/// The output, of a shape that follows from the nodes.
fn output(name: &str) -> Vec<u8> {
    untyped_shape(&session_name(name), FLOAT)
}

fn nodes(name: &str) -> Vec<Vec<u8>> {
    let call = |part: &str| format!("orchestra.{part}.{name}");
    let one = integers(&[1]);
    let last = || vec![integer("axis", -1)];
    let to_f32 = || vec![integer("to", FLOAT)];
    let [k, values, places] = ["k", "values", "places"].map(call);
    let [numbers, numbered] = ["numbers", "numbered"].map(call);
    let nodes = [
        ("Constant", vec![], vec![k.clone()], vec![one]),
        ("TopK", vec![name.to_owned(), k], vec![values.clone(), places.clone()], last()),
        ("Cast", vec![values], vec![numbers.clone()], to_f32()),
        ("Cast", vec![places], vec![numbered.clone()], to_f32()),
        ("Concat", vec![numbered, numbers], vec![session_name(name)], last()),
    ];
    let message = |(operator, inputs, outputs, attributes): (_, _, Vec<String>, _)| {
        let name = outputs[0].clone();
        Node { operator, inputs, outputs, attributes }.message(&name)
    };
    nodes.map(message).to_vec()
}

#[cfg(test)]
mod tests {
    use orchestra_core::{DType, Dim, TensorSpec};
    use orchestra_testkit::onnx::ModelBuilder;
    use orchestra_testkit::onnx::messages::ModelProto;
    use prost::Message as _;

    use super::*;

    fn spec(name: &str) -> TensorSpec {
        TensorSpec { name: name.into(), dtype: DType::F32, row: vec![Dim::Fixed(64)], batch: Dim::Dynamic }
    }

    fn model() -> Vec<u8> {
        let model = ModelBuilder::new("m").input(&spec("x")).output(&spec("z")).output(&spec("y"));
        model.node("Relu", &["x"], &["y"], &[]).node("Relu", &["x"], &["z"], &[]).encode()
    }

    #[test]
    fn only_the_output_changes_and_the_nodes_come_last() {
        let before = ModelProto::decode(&*model()).unwrap().graph.unwrap();
        let bytes = put_behind(&model(), &["y".to_owned()]).unwrap();
        let after = ModelProto::decode(&*bytes).unwrap().graph.unwrap();
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
        let missing = put_behind(&model(), &["w".to_owned()]).unwrap_err();
        assert_eq!(missing, EditError::NoOutput("w".to_owned()));
        let mut old = ModelProto::decode(&*model()).unwrap();
        old.opset_import[0].version = 9;
        let refused = put_behind(&old.encode_to_vec(), &["y".to_owned()]).unwrap_err();
        assert_eq!(refused, EditError::OldOpset { found: 9, needed: 10 });
        for cut in 1..model().len() {
            let _ = put_behind(&model()[..cut], &["y".to_owned()]);
        }
    }
}
