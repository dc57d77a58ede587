//! Which nodes of a model compute from shapes and small constants alone. It reads the bytes of the model's file; it opens no session.
//!
//! ONNX Runtime keeps such nodes on the cores on purpose, also where a GPU has a kernel for them (`GetCpuPreferredNodes` in its
//! `fallback_cpu_capability.cc`): it follows the tensors that are on the cores anyway, those of `Shape` and `Size` first, and keeps a node there if
//! all of its inputs are such tensors or small constants, whatever its operator and its element type. A node that reads a model's input may
//! be kept there, too, but works on rows, so it is none of these.

use std::collections::{BTreeMap, HashSet};

use super::graph_edit::{child, number};
use super::protobuf::{Fields, Malformed, Value, packed};

/// Elements of a constant up to which it is small: `kSmallInitializerThreshold` of ONNX Runtime.
const SMALL: u64 = 100;
/// Graphs within nodes of graphs that are looked into.
const DEPTH: usize = 8;

/// How many such nodes there are of each operator and name. Nodes without a name count together.
pub type ShapeNodes = BTreeMap<(String, String), usize>;

/// Those of a whole model, the graphs within its nodes included.
pub fn shape_nodes(model: &[u8]) -> Result<ShapeNodes, Malformed> {
    let mut walk = Walk::default();
    if let Some(graph) = child(model, number::MODEL_GRAPH)? {
        walk.graph(graph, DEPTH)?;
    }
    Ok(walk.found)
}

#[derive(Default)]
struct Walk<'a> {
    /// Tensors that hold shapes or small constants, of the graphs that are being looked into.
    on_cores: HashSet<&'a [u8]>,
    found: ShapeNodes,
}

impl<'a> Walk<'a> {
    fn graph(&mut self, graph: &'a [u8], depth: usize) -> Result<(), Malformed> {
        let mut own = Vec::new();
        for field in Fields::of(graph) {
            let field = field?;
            if let (number::GRAPH_INITIALIZER, Some(tensor)) = (field.number, field.value.bytes())
                && let Some(name) = child(tensor, number::TENSOR_NAME)?
                && elements(tensor)? <= SMALL
            {
                self.keep(name, &mut own);
            }
        }
        // A graph has its nodes in the order in which they depend on each other.
        for field in Fields::of(graph) {
            let field = field?;
            if let (number::GRAPH_NODE, Some(node)) = (field.number, field.value.bytes()) {
                self.node(&Node::of(node)?, depth, &mut own)?;
            }
        }
        // Outside of it, its tensors cannot be seen.
        own.iter().for_each(|name| {
            self.on_cores.remove(name);
        });
        Ok(())
    }

    fn node(&mut self, node: &Node<'a>, depth: usize, own: &mut Vec<&'a [u8]>) -> Result<(), Malformed> {
        for graph in node.graphs.iter().filter(|_| depth > 0) {
            self.graph(graph, depth - 1)?;
        }
        let is_of_shapes = match node.operator {
            b"Shape" | b"Size" => true,
            b"Constant" => node.constant <= SMALL,
            // What is left out has no name.
            _ => {
                let mut named = node.inputs.iter().filter(|name| !name.is_empty()).peekable();
                let reads = named.peek().is_some();
                reads && node.graphs.is_empty() && named.all(|name| self.on_cores.contains(name))
            }
        };
        if is_of_shapes {
            node.outputs.iter().for_each(|name| self.keep(name, own));
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            *self.found.entry((text(node.operator), text(node.name))).or_default() += 1;
        }
        Ok(())
    }

    fn keep(&mut self, name: &'a [u8], own: &mut Vec<&'a [u8]>) {
        if self.on_cores.insert(name) {
            own.push(name);
        }
    }
}

#[derive(Default)]
struct Node<'a> {
    operator: &'a [u8],
    name: &'a [u8],
    inputs: Vec<&'a [u8]>,
    outputs: Vec<&'a [u8]>,
    graphs: Vec<&'a [u8]>,
    /// Elements of the largest tensor among its attributes.
    constant: u64,
}

impl<'a> Node<'a> {
    fn of(message: &'a [u8]) -> Result<Node<'a>, Malformed> {
        let mut node = Node::default();
        for field in Fields::of(message) {
            let field = field?;
            let Some(bytes) = field.value.bytes() else { continue };
            match field.number {
                number::NODE_INPUT => node.inputs.push(bytes),
                number::NODE_OUTPUT => node.outputs.push(bytes),
                number::NODE_NAME => node.name = bytes,
                number::NODE_OPERATOR => node.operator = bytes,
                number::NODE_ATTRIBUTE => node.attribute(bytes)?,
                _ => {}
            }
        }
        Ok(node)
    }

    fn attribute(&mut self, message: &'a [u8]) -> Result<(), Malformed> {
        for field in Fields::of(message) {
            let field = field?;
            match (field.number, field.value.bytes()) {
                (number::ATTRIBUTE_TENSOR, Some(tensor)) => {
                    self.constant = self.constant.max(elements(tensor)?);
                }
                (number::ATTRIBUTE_GRAPH | number::ATTRIBUTE_GRAPHS, Some(graph)) => self.graphs.push(graph),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Elements of a tensor, as its dimensions have it: each in a field of its own, or packed into one.
fn elements(tensor: &[u8]) -> Result<u64, Malformed> {
    let mut count = 1_u64;
    for field in Fields::of(tensor) {
        let field = field?;
        match (field.number, field.value) {
            (number::TENSOR_DIMS, Value::Varint(dim)) => count = count.saturating_mul(dim),
            (number::TENSOR_DIMS, Value::Bytes(dims)) => {
                count = packed(dims).fold(count, u64::saturating_mul)
            }
            _ => {}
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::Message;
    use super::*;

    fn tensor(dims: &[i64]) -> Message {
        dims.iter().fold(Message::default(), |tensor, dim| tensor.integer(number::TENSOR_DIMS, *dim))
    }

    fn node(operator: &str, name: &str, inputs: &[&str], output: &str) -> Message {
        let node = inputs
            .iter()
            .fold(Message::default(), |node, input| node.bytes(number::NODE_INPUT, input.as_bytes()));
        node.bytes(number::NODE_OUTPUT, output.as_bytes())
            .bytes(number::NODE_OPERATOR, operator.as_bytes())
            .bytes(number::NODE_NAME, name.as_bytes())
    }

    fn with(node: Message, attribute: u32, value: Message) -> Message {
        node.bytes(number::NODE_ATTRIBUTE, &Message::default().bytes(attribute, &value.done()).done())
    }

    fn graph(nodes: Vec<Message>, initializers: &[(&str, &[i64])]) -> Message {
        let graph = nodes
            .into_iter()
            .fold(Message::default(), |graph, node| graph.bytes(number::GRAPH_NODE, &node.done()));
        initializers.iter().fold(graph, |graph, (name, dims)| {
            let tensor = tensor(dims).bytes(number::TENSOR_NAME, name.as_bytes());
            graph.bytes(number::GRAPH_INITIALIZER, &tensor.done())
        })
    }

    fn names(graph: Message) -> Vec<String> {
        let model = Message::default().bytes(number::MODEL_GRAPH, &graph.done()).done();
        let nodes = shape_nodes(&model).unwrap();
        nodes.into_iter().flat_map(|((_, name), count)| vec![name; count]).collect()
    }

    #[test]
    fn what_follows_from_a_shape_is_of_shapes_and_what_reads_rows_is_not_whatever_the_operator() {
        let nodes = vec![
            node("Shape", "shape", &["x"], "s"),
            node("Gather", "side", &["s", "one"], "side"),
            node("Cast", "as-float", &["side"], "side.f"),
            node("Mul", "of-shapes", &["side.f", "one"], "scale"),
            // What is left out takes no part.
            node("Slice", "of-shapes-too", &["s", "one", "one", ""], "sliced"),
            node("Mul", "of-rows", &["x", "scale"], "y"),
            node("Add", "of-rows-too", &["y", "one"], "z"),
            // A node that reads a large table works on it.
            node("Gather", "of-a-table", &["table", "side"], "looked-up"),
            node("RandomNormal", "of-nothing", &[], "noise"),
        ];
        let found = names(graph(nodes, &[("one", &[1]), ("table", &[101])]));
        assert_eq!(found, ["as-float", "side", "of-shapes", "shape", "of-shapes-too"]);
    }

    #[test]
    fn constants_are_small_up_to_a_size_however_their_dimensions_are_written() {
        let constant = |name: &str, dims: &[i64]| {
            with(node("Constant", name, &[], name), number::ATTRIBUTE_TENSOR, tensor(dims))
        };
        let packed = Message::default().bytes(number::TENSOR_DIMS, &[0xac, 0x02, 1]);
        let packed = with(node("Constant", "packed", &[], "packed"), number::ATTRIBUTE_TENSOR, packed);
        let nodes = vec![
            constant("small", &[10, 10]),
            constant("large", &[10, 11]),
            packed,
            node("Neg", "of-small", &["small"], "a"),
            node("Neg", "of-large", &["large"], "b"),
            node("Neg", "of-packed", &["packed"], "c"),
        ];
        assert_eq!(names(graph(nodes, &[])), ["small", "of-small"]);
    }

    #[test]
    fn graphs_within_nodes_see_the_tensors_around_them_and_nodes_without_names_are_counted() {
        let inner = graph(
            vec![node("Neg", "", &["s"], "t"), node("Neg", "", &["t"], "u"), node("Neg", "", &["x"], "v")],
            &[],
        );
        let branch = with(node("If", "if", &["s"], "w"), number::ATTRIBUTE_GRAPH, inner);
        let nodes = vec![node("Shape", "shape", &["x"], "s"), branch, node("Neg", "behind", &["w"], "z")];
        assert_eq!(names(graph(nodes, &[])), ["", "", "shape"]);
    }

    #[test]
    fn bytes_that_are_no_model_are_said_to_be_none() {
        assert!(shape_nodes(b"\x3a\x05ab").is_err());
        assert_eq!(shape_nodes(b""), Ok(ShapeNodes::new()));
    }
}
