//! Puts nodes behind a model, so that an output whose items lie otherwise has a row for each of them, one behind the other. It works on the bytes of
//! the file.
//!
//! ```text
//! y [2, batch, 4]  -> Transpose                    -> [batch, 2, 4]
//! y [3 * batch, 4] -> Reshape                      -> [batch, 3, 4]
//! y [hits, 7]      -> Unsqueeze, in batches of one -> [1, hits, 7]
//! y, an input too  -> Identity                     -> the same, in memory of its own
//! ```
//!
//! So all that runs a session finds its outputs as it finds those of other models, and what takes time takes it on the device.

use orchestra_core::{BatchAxis, Dim, ReadOutput};

use super::graph_edit::{
    EditError, Node, STRING, child, dimension, element, integer, integers, integers_attribute, number, opset,
    untyped_shape, value_info, with_graph,
};
use super::protobuf::{Fields, Message};

/// `Slice` takes what it cuts as inputs.
const OLDEST_OPSET_TO_SLICE: u64 = 10;
/// `Unsqueeze` takes the axes as an input.
const AXES_ARE_INPUT: u64 = 13;
/// `Reshape` can be told that a zero means none.
const ZERO_IS_ZERO: u64 = 14;

/// How the names of all nodes begin.
pub const NODES: &str = "orchestra.rows.";

/// How the session names the output `name` of a model of which it makes rows.
pub fn session_name(name: &str) -> String {
    format!("{NODES}{name}")
}

/// The output that a name of the session stands for.
pub fn output_of(session: &str) -> String {
    session.strip_prefix(NODES).unwrap_or(session).to_owned()
}

/// The model that gives rows of these outputs in their stead.
pub fn put_behind(model: &[u8], outputs: &[&ReadOutput]) -> Result<Vec<u8>, EditError> {
    let slices = |output: &&&ReadOutput| matches!(output.batch, BatchAxis::Axis { per_item: 2.., .. });
    let needed = if outputs.iter().any(|o| slices(&o)) { OLDEST_OPSET_TO_SLICE } else { 1 };
    let opset = opset(model)?;
    with_graph(model, needed, |graph| edit_graph(graph, outputs, opset))
}

/// New nodes come last, because nodes stand in the order in which they can run.
fn edit_graph(graph: &[u8], outputs: &[&ReadOutput], opset: u64) -> Result<Vec<u8>, EditError> {
    let mut edited = Message::with_capacity(graph.len() + 4096 * outputs.len());
    let mut replaced = vec![false; outputs.len()];
    for field in Fields::of(graph) {
        let field = field?;
        let name = match field.value.bytes().filter(|_| field.number == number::GRAPH_OUTPUT) {
            Some(output) => child(output, number::VALUE_NAME)?,
            None => None,
        };
        match outputs.iter().position(|output| Some(output.tensor.name.as_bytes()) == name) {
            Some(place) => {
                replaced[place] = true;
                edited.push_bytes(number::GRAPH_OUTPUT, &described(outputs[place]));
            }
            None => edited.push_field(&field),
        }
    }
    if let Some(missing) = replaced.iter().position(|done| !done) {
        return Err(EditError::NoOutput(outputs[missing].tensor.name.clone()));
    }
    for node in outputs.iter().flat_map(|output| Rows::of(output, opset).nodes) {
        edited.push_bytes(number::GRAPH_NODE, &node);
    }
    Ok(edited.done())
}

/// The output as the session declares it.
fn described(output: &ReadOutput) -> Vec<u8> {
    let tensor = &output.tensor;
    let element = if output.is_text { STRING } else { element(tensor.dtype) };
    let name = session_name(&tensor.name);
    if output.rank.is_none() || output.is_text {
        return untyped_shape(&name, element);
    }
    let mut shape = Message::default();
    for dim in [&Dim::Dynamic].into_iter().chain(&tensor.row) {
        shape.push_bytes(number::SHAPE_DIM, &dim.fixed().map_or_else(Vec::new, dimension));
    }
    value_info(&name, element, shape)
}

/// The nodes that make rows of one output.
struct Rows<'a> {
    output: &'a str,
    opset: u64,
    nodes: Vec<Vec<u8>>,
}

impl<'a> Rows<'a> {
    fn of(output: &'a ReadOutput, opset: u64) -> Self {
        let name = &output.tensor.name;
        let mut rows = Self { output: name, opset, nodes: Vec::new() };
        let mut at = name.clone();
        match output.batch {
            BatchAxis::None => {
                at = match opset {
                    AXES_ARE_INPUT.. => {
                        let axes = rows.constant("axes", &[0]);
                        rows.node("Unsqueeze", "whole", &[&at, &axes], vec![])
                    }
                    _ => rows.node("Unsqueeze", "whole", &[&at], vec![integers_attribute("axes", &[0])]),
                };
            }
            BatchAxis::Axis { axis, per_item } => {
                if axis > 0 {
                    let rank = output.rank.unwrap_or(axis + 1);
                    let others = (0..rank).filter(|other| *other != axis);
                    let order: Vec<i64> = [axis].into_iter().chain(others).map(|n| n as i64).collect();
                    let order = integers_attribute("perm", &order);
                    at = rows.node("Transpose", "first", &[&at], vec![order]);
                }
                if per_item > 1 {
                    at = rows.several(&at, per_item);
                }
            }
        }
        let last = Node {
            operator: "Identity",
            inputs: vec![at],
            outputs: vec![session_name(name)],
            attributes: vec![],
        };
        rows.nodes.push(last.message(&session_name(name)));
        rows
    }

    /// Takes the first dimension apart: items, and what each has.
    fn several(&mut self, of: &str, per_item: usize) -> String {
        let [zero, one, end, each] = [("zero", 0), ("one", 1), ("end", i64::MAX), ("each", per_item as i64)]
            .map(|(part, value)| self.constant(part, &[value]));
        let shape = self.node("Shape", "shape", &[of], vec![]);
        let all = self.node("Slice", "all", &[&shape, &zero, &one], vec![]);
        let items = self.node("Div", "items", &[&all, &each], vec![]);
        let rest = self.node("Slice", "rest", &[&shape, &one, &end], vec![]);
        let shape = self.node("Concat", "row_shape", &[&items, &each, &rest], vec![integer("axis", 0)]);
        let zero_is_zero = (self.opset >= ZERO_IS_ZERO).then(|| integer("allowzero", 1));
        self.node("Reshape", "several", &[of, &shape], zero_is_zero.into_iter().collect())
    }

    fn constant(&mut self, part: &str, values: &[i64]) -> String {
        self.node("Constant", part, &[], vec![integers(values)])
    }

    /// Adds a node, and gives the name of what comes out of it.
    fn node(
        &mut self,
        operator: &'static str,
        part: &str,
        inputs: &[&str],
        attributes: Vec<Vec<u8>>,
    ) -> String {
        let name = format!("{NODES}{part}.{}", self.output);
        let inputs = inputs.iter().map(|input| (*input).to_owned()).collect();
        let node = Node { operator, inputs, outputs: vec![name.clone()], attributes };
        self.nodes.push(node.message(&name));
        name
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::{DType, TensorSpec};
    use orchestra_testkit::onnx::ModelBuilder;
    use orchestra_testkit::onnx::messages::ModelProto;
    use prost::Message as _;

    use super::*;

    fn spec(name: &str) -> TensorSpec {
        TensorSpec { name: name.into(), dtype: DType::F32, row: vec![Dim::Fixed(4)], batch: Dim::Dynamic }
    }

    fn model() -> Vec<u8> {
        let model = ModelBuilder::new("m").input(&spec("x")).output(&spec("z")).output(&spec("y"));
        model.node("Relu", &["x"], &["y"], &[]).node("Relu", &["x"], &["z"], &[]).encode()
    }

    fn operators(batch: BatchAxis, model: &[u8]) -> Result<Vec<String>, EditError> {
        let output = ReadOutput { batch, rank: Some(2), ..ReadOutput::rows(spec("y")) };
        let edited = put_behind(model, &[&output])?;
        let graph = ModelProto::decode(&*edited).unwrap().graph.unwrap();
        let names: Vec<&str> = graph.output.iter().map(|output| &*output.name).collect();
        assert_eq!(names, ["z", "orchestra.rows.y"], "the other output is what it was");
        assert_eq!(graph.node.last().unwrap().output, ["orchestra.rows.y"]);
        Ok(graph.node[2..].iter().map(|node| node.op_type.clone()).collect())
    }

    #[test]
    fn each_way_in_which_items_lie_has_its_nodes() {
        let of = |batch| operators(batch, &model()).unwrap().join(" ");
        assert_eq!(of(BatchAxis::FIRST), "Identity");
        assert_eq!(of(BatchAxis::along(1)), "Transpose Identity");
        assert_eq!(of(BatchAxis::None), "Constant Unsqueeze Identity");
        let several = BatchAxis::Axis { axis: 1, per_item: 2 };
        assert!(of(several).starts_with("Transpose ") && of(several).ends_with(" Concat Reshape Identity"));
    }

    #[test]
    fn old_operators_do_unless_something_is_to_be_cut() {
        let mut old = ModelProto::decode(&*model()).unwrap();
        old.opset_import[0].version = 9;
        let old = old.encode_to_vec();
        assert_eq!(operators(BatchAxis::None, &old).unwrap(), ["Unsqueeze", "Identity"]);
        let several = BatchAxis::Axis { axis: 0, per_item: 2 };
        assert_eq!(operators(several, &old), Err(EditError::OldOpset { found: 9, needed: 10 }));
        for cut in 1..model().len() {
            let _ = put_behind(&model()[..cut], &[&ReadOutput::rows(spec("y"))]);
        }
    }
}
