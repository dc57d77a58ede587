//! Puts nodes in front of a model, so that of an input it computes no more than the rows of a run are said to fill. It works on the bytes of the
//! file, and copies all that it does not change as it is.
//!
//! ```text
//! whole rows of `x` --+-> Slice -> x
//! height and width ---+
//! ```
//!
//! So rows lie in slots at the same distance whatever their size.

use orchestra_core::Trim;
use orchestra_core::batch_layout::TensorSpan;

use super::graph_edit::{
    EditError, INT64, Node, child, dimension, integers, number, renamed_input, value_info, with_graph,
};
use super::protobuf::{Fields, Message};

/// `Slice` takes its ends as an input.
const OLDEST_OPSET: u64 = 10;

/// The input that says what rows are trimmed to: i64 `[2]`, height and width.
pub const ENDS: &str = "orchestra.trimmed_to";

/// How the session names the input `name` of a model that is trimmed.
pub fn session_name(name: &str) -> String {
    format!("orchestra.whole.{name}")
}

/// The model with the nodes in front of the input of `span`.
pub fn put_in_front(model: &[u8], span: &TensorSpan, trim: &Trim) -> Result<Vec<u8>, EditError> {
    with_graph(model, OLDEST_OPSET, |graph| edit_graph(graph, span, trim))
}

/// New nodes come first, because nodes stand in the order in which they can run.
fn edit_graph(graph: &[u8], span: &TensorSpan, trim: &Trim) -> Result<Vec<u8>, EditError> {
    let name = &span.tensor.name;
    let mut edited = Message::with_capacity(graph.len() + 4096);
    for node in nodes(name, trim) {
        edited.push_bytes(number::GRAPH_NODE, &node);
    }
    let mut is_found = false;
    for field in Fields::of(graph) {
        let field = field?;
        let input = field.value.bytes().filter(|_| field.number == number::GRAPH_INPUT);
        match input {
            Some(input) if child(input, number::VALUE_NAME)? == Some(name.as_bytes()) => {
                is_found = true;
                let whole = renamed_input(input, &session_name(name), &span.tensor)?;
                edited.push_bytes(number::GRAPH_INPUT, &whole);
            }
            _ => edited.push_field(&field),
        }
    }
    if !is_found {
        return Err(EditError::NoInput(name.clone()));
    }
    let two = Message::default().bytes(number::SHAPE_DIM, &dimension(2));
    edited.push_bytes(number::GRAPH_INPUT, &value_info(ENDS, INT64, two));
    Ok(edited.done())
}

fn nodes(name: &str, trim: &Trim) -> [Vec<u8>; 3] {
    let call = |part: &str| format!("orchestra.{part}.{name}");
    let [starts, axes] = ["starts", "axes"].map(call);
    // Behind the batch.
    let of_rows = trim.axes.map(|axis| axis as i64 + 1);
    let sliced = vec![session_name(name), starts.clone(), ENDS.to_owned(), axes.clone()];
    let nodes = [
        ("Constant", vec![], starts, vec![integers(&[0, 0])]),
        ("Constant", vec![], axes, vec![integers(&of_rows)]),
        ("Slice", sliced, name.to_owned(), vec![]),
    ];
    nodes.map(|(operator, inputs, output, attributes)| {
        let node = Node { operator, inputs, outputs: vec![output.clone()], attributes };
        node.message(&format!("orchestra.trim.{output}"))
    })
}
