//! Puts nodes in front of a model, so that of an input it computes no more than the rows of a run are said to fill.
//!
//! ```text
//! whole rows of `x` --+-> Slice -> x
//! height and width ---+
//! ```
//!
//! So rows lie in slots at the same distance whatever their size.

use orchestra_core::batch_layout::TensorSpan;
use orchestra_core::onnx_file::{DimensionProto, TensorProto, ValueInfoProto, element_type};
use orchestra_core::{DType, Trim};

use super::graph_edit::{EditError, GraphEdit, constant, node};

/// `Slice` takes its ends as an input.
const OLDEST_OPSET: i64 = 10;

/// The input that says what rows are trimmed to: i64 `[2]`, height and width.
pub const ENDS: &str = "orchestra.trimmed_to";

/// How the session names the input `name` of a model that is trimmed.
pub fn session_name(name: &str) -> String {
    format!("orchestra.whole.{name}")
}

/// Puts the nodes in front of the input of `span`.
pub fn put_in_front(edit: &mut GraphEdit<'_>, span: &TensorSpan, trim: &Trim) -> Result<(), EditError> {
    edit.needs(OLDEST_OPSET)?;
    let name = &span.tensor.name;
    let whole = session_name(name);
    edit.replace_input(&span.tensor, &whole, 0)?;
    let two = Some(vec![DimensionProto::fixed(2)]);
    edit.more_inputs.push(ValueInfoProto::tensor(ENDS, element_type(DType::I64), two));
    let [starts, axes] = ["starts", "axes"].map(|part| format!("orchestra.{part}.{name}"));
    // Behind the batch.
    let of_rows = trim.axes.map(|axis| axis as i64 + 1);
    edit.first.extend([
        constant(&starts, TensorProto::i64s(&[0, 0])),
        constant(&axes, TensorProto::i64s(&of_rows)),
        node("Slice", &[&whole, &starts, ENDS, &axes], name, None),
    ]);
    Ok(())
}
