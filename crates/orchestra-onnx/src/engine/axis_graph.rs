//! Puts a `Transpose` in front of an input whose items lie along another axis than the first: slots have an item behind the other.
//!
//! ```text
//! rows of `state` [batch, 2, 128] -> Transpose -> state [2, batch, 128]
//! ```

use orchestra_core::TensorSpec;
use orchestra_core::onnx_file::AttributeProto;

use super::graph_edit::{EditError, GraphEdit, node};

/// How the session names the input `name` of a model that is given rows there.
pub fn session_name(name: &str) -> String {
    format!("orchestra.in_rows.{name}")
}

/// Puts the node in front of the input of `tensor`, whose items lie along `axis`.
pub fn put_in_front(edit: &mut GraphEdit<'_>, tensor: &TensorSpec, axis: usize) -> Result<(), EditError> {
    let rows = session_name(&tensor.name);
    edit.replace_input(tensor, &rows, axis)?;
    let mut order: Vec<i64> = (1..=tensor.row.len() as i64).collect();
    order.insert(axis.min(order.len()), 0);
    let order = AttributeProto::ints("perm", &order);
    edit.first.push(node("Transpose", &[&rows], &tensor.name, [order]));
    Ok(())
}
