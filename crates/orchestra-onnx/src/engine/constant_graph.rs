//! Puts constants in the place of inputs of a model, so that nothing has to be bound for them: they travel once, with the model.
//!
//! ```text
//! Constant -> [Expand] -> sr
//! Shape of `x` -> Gather -> Concat --^   where each item of a batch has it
//! ```

use orchestra_core::onnx_file::{AttributeProto, TensorProto};
use orchestra_core::{ConstantElements, InputConstant};

use super::graph_edit::{EditError, GraphEdit, constant, node};

/// The first operators with `Expand`.
const OLDEST_OPSET: i64 = 8;

pub fn put_in_place(edit: &mut GraphEdit<'_>, of: &InputConstant) -> Result<(), EditError> {
    let name = &of.input;
    edit.remove_input(name)?;
    let tensor = match &of.elements {
        ConstantElements::Numbers(dtype, bytes) => TensorProto::new(*dtype, &of.dims, bytes.clone().into()),
        ConstantElements::Texts(texts) => TensorProto::texts(&of.dims, texts),
    };
    if of.shape.iter().copied().eq(of.dims.iter().copied().map(Some)) {
        edit.first.push(constant(name, tensor));
        return Ok(());
    }
    edit.needs(OLDEST_OPSET)?;
    let part = |part: &str| format!("orchestra.constant.{part}.{name}");
    let (elements, shape) = (part("elements"), part("shape"));
    edit.first.push(constant(&elements, tensor));
    let fixed = |dims: &[Option<usize>]| {
        TensorProto::i64s(&dims.iter().map(|n| n.unwrap_or(1) as i64).collect::<Vec<_>>())
    };
    match (of.shape.iter().position(Option::is_none), &of.counted) {
        (Some(items), Some((counted, axis))) => {
            let [all, at, n, before, behind] = ["all", "at", "n", "before", "behind"].map(part);
            edit.first.extend([
                constant(&before, fixed(&of.shape[..items])),
                constant(&behind, fixed(&of.shape[items + 1..])),
                constant(&at, TensorProto::i64s(&[*axis as i64])),
                node("Shape", &[counted], &all, None),
                node("Gather", &[&all, &at], &n, None),
                node("Concat", &[&before, &n, &behind], &shape, Some(AttributeProto::int("axis", 0))),
            ]);
        }
        _ => edit.first.push(constant(&shape, fixed(&of.shape))),
    }
    edit.first.push(node("Expand", &[&elements, &shape], name, None));
    Ok(())
}
