//! Puts nodes behind a model, so that an output whose items lie otherwise has a row for each of them, one behind the other.
//!
//! ```text
//! y [2, batch, 4]  -> Transpose                    -> [batch, 2, 4]
//! y [3 * batch, 4] -> Reshape                      -> [batch, 3, 4]
//! y [hits, 7]      -> Unsqueeze, in batches of one -> [1, hits, 7]
//! y, an input too  -> Identity                     -> the same, in memory of its own
//! ```
//!
//! So all that runs a session finds its outputs as it finds those of other models, and what takes time takes it on the device.

use crate::session_names::{NODES, of_rows};
use orchestra_core::onnx_file::{
    AttributeProto, DimensionProto, STRING, TensorProto, ValueInfoProto, element_type,
};
use orchestra_core::{BatchAxis, ReadOutput};

use super::graph_edit::{EditError, GraphEdit, constant, node};

/// `Slice` takes what it cuts as inputs.
const OLDEST_OPSET_TO_SLICE: i64 = 10;
/// `Unsqueeze` takes the axes as an input.
const AXES_ARE_INPUT: i64 = 13;
/// `Reshape` can be told that a zero means none.
const ZERO_IS_ZERO: i64 = 14;

/// Gives rows of the output in its stead.
pub fn put_behind(edit: &mut GraphEdit<'_>, output: &ReadOutput) -> Result<(), EditError> {
    if let BatchAxis::Axis { per_item: 2.., .. } = output.batch {
        edit.needs(OLDEST_OPSET_TO_SLICE)?;
    }
    let name = &output.tensor.name;
    edit.replace_output(name, described(output))?;
    let mut rows = RowNodes { output: name, edit };
    let mut at = name.clone();
    match output.batch {
        BatchAxis::None if rows.edit.opset >= AXES_ARE_INPUT => {
            let axes = rows.constant("axes", &[0]);
            at = rows.node("Unsqueeze", "whole", &[&at, &axes], None);
        }
        BatchAxis::None => {
            at = rows.node("Unsqueeze", "whole", &[&at], Some(AttributeProto::ints("axes", &[0])));
        }
        BatchAxis::Axis { axis, per_item } => {
            if axis > 0 {
                let rank = output.rank.unwrap_or(axis + 1);
                let others = (0..rank).filter(|other| *other != axis);
                let order: Vec<i64> = [axis].into_iter().chain(others).map(|n| n as i64).collect();
                at = rows.node("Transpose", "first", &[&at], Some(AttributeProto::ints("perm", &order)));
            }
            if per_item > 1 {
                at = rows.several(&at, per_item);
            }
        }
    }
    edit.last.push(node("Identity", &[&at], &of_rows(name), None));
    Ok(())
}

/// The output as the session declares it.
fn described(output: &ReadOutput) -> ValueInfoProto {
    let tensor = &output.tensor;
    let element = if output.texts.is_some() { STRING } else { element_type(tensor.dtype) };
    let has_shape = output.rank.is_some() && output.texts.is_none();
    let row =
        tensor.row.iter().map(|dim| dim.fixed().map_or_else(DimensionProto::default, DimensionProto::fixed));
    let dims = has_shape.then(|| std::iter::once(DimensionProto::default()).chain(row).collect());
    ValueInfoProto::tensor(&of_rows(&tensor.name), element, dims)
}

/// The nodes that make rows of one output.
struct RowNodes<'a, 'm> {
    output: &'a str,
    edit: &'a mut GraphEdit<'m>,
}

impl RowNodes<'_, '_> {
    /// Takes the first dimension apart: items, and what each has.
    fn several(&mut self, of: &str, per_item: usize) -> String {
        let [zero, one, end, each] = [("zero", 0), ("one", 1), ("end", i64::MAX), ("each", per_item as i64)]
            .map(|(part, value)| self.constant(part, &[value]));
        let shape = self.node("Shape", "shape", &[of], None);
        let all = self.node("Slice", "all", &[&shape, &zero, &one], None);
        let items = self.node("Div", "items", &[&all, &each], None);
        let rest = self.node("Slice", "rest", &[&shape, &one, &end], None);
        let shape =
            self.node("Concat", "row_shape", &[&items, &each, &rest], Some(AttributeProto::int("axis", 0)));
        let zero_is_zero = (self.edit.opset >= ZERO_IS_ZERO).then(|| AttributeProto::int("allowzero", 1));
        self.node("Reshape", "several", &[of, &shape], zero_is_zero)
    }

    fn constant(&mut self, part: &str, values: &[i64]) -> String {
        let name = self.name(part);
        self.edit.last.push(constant(&name, TensorProto::i64s(values)));
        name
    }

    /// Adds a node, and gives the name of what comes out of it.
    fn node(
        &mut self,
        operator: &str,
        part: &str,
        inputs: &[&str],
        attribute: Option<AttributeProto>,
    ) -> String {
        let name = self.name(part);
        self.edit.last.push(node(operator, inputs, &name, attribute));
        name
    }

    fn name(&self, part: &str) -> String {
        format!("{NODES}{part}.{}", self.output)
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::onnx_file::ModelProto;
    use orchestra_core::{DType, Dim, TensorSpec};
    use orchestra_testkit::onnx::ModelBuilder;
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
        let mut edit = GraphEdit::of(model)?;
        put_behind(&mut edit, &output)?;
        let edited = edit.apply()?;
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
    }
}
