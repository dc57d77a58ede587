//! Puts nodes in front of a model, so that it takes pixels: u8 rows `[height, width, channels]` become what the model was made for.
//!
//! ```text
//! pixels of `x` (u8) -> [Transpose] -> Cast to f32 -> Mul -> Add -> [Cast to f16] -> x
//! ```
//!
//! The graph's input gets a new name and the last node the old one. So no node of the model has to be touched, and subgraphs that
//! look at the input from inside of loops and branches see the same tensor as before.

use orchestra_core::batch_layout::TensorSpan;
use orchestra_core::onnx_file::{AttributeProto, TensorProto, element_type};
use orchestra_core::{DType, Layout, PixelInput};

use super::graph_edit::{EditError, GraphEdit, constant, node};

/// The nodes need numpy's broadcasting.
const OLDEST_OPSET: i64 = 7;

/// An input that takes pixels.
#[derive(Debug, Clone, Copy)]
pub struct Front<'a> {
    /// Rows of pixels; the tensor has the name of the model's input.
    pub span: &'a TensorSpan,
    /// What the graph makes of them.
    pub pixels: &'a PixelInput,
}

/// How the session names the input `name` of a model that takes pixels there.
pub fn session_name(name: &str) -> String {
    format!("orchestra.pixels.{name}")
}

/// Puts the nodes in front of the input.
pub fn put_in_front(edit: &mut GraphEdit<'_>, front: &Front<'_>) -> Result<(), EditError> {
    edit.needs(OLDEST_OPSET)?;
    let Front { span, pixels } = *front;
    let name = &span.tensor.name;
    let no_pixels = || EditError::NoPixels(name.clone());
    let channels = match span.tensor.fixed_row().as_deref() {
        Some(&[_, _, channels]) if span.tensor.dtype == DType::U8 => channels,
        _ => return Err(no_pixels()),
    };
    if [&pixels.factor, &pixels.offset].iter().any(|list| list.len() != channels) {
        return Err(no_pixels());
    }
    let to = |dtype| AttributeProto::int("to", element_type(dtype).into());
    // One value per channel, whatever the other axes: they are broadcast.
    let (order, shape) = match pixels.layout {
        // Bytes are moved, while they are bytes: a quarter of what floats would be.
        Layout::Nchw => (Some(AttributeProto::ints("perm", &[0, 3, 1, 2])), [channels, 1, 1]),
        Layout::Nhwc => (None, [1, 1, channels]),
    };
    let mut steps: Vec<_> = order.map(|order| ("Transpose", None, Some(order))).into_iter().collect();
    steps.push(("Cast", None, Some(to(DType::F32))));
    steps.push(("Mul", Some(TensorProto::f32s(&shape, &pixels.factor)), None));
    steps.push(("Add", Some(TensorProto::f32s(&shape, &pixels.offset)), None));
    match pixels.dtype {
        DType::F32 => {}
        DType::F16 => steps.push(("Cast", None, Some(to(DType::F16)))),
        _ => return Err(no_pixels()),
    }
    let mut from = session_name(name);
    edit.replace_input(&span.tensor, &from, 0)?;
    let last = steps.len() - 1;
    for (step, (operator, operand, attribute)) in steps.into_iter().enumerate() {
        let output = if step == last { name.clone() } else { format!("orchestra.{step}.{name}") };
        let mut inputs = vec![&*from];
        let by = format!("orchestra.by.{step}.{name}");
        if let Some(tensor) = operand {
            edit.first.push(constant(&by, tensor));
            inputs.push(&by);
        }
        edit.first.push(node(operator, &inputs, &output, attribute));
        from = output;
    }
    Ok(())
}

#[cfg(test)]
#[path = "pixel_graph_tests.rs"]
mod tests;
