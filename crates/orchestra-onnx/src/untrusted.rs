//! The readers of bytes that others made, for checks of these alone: they take bytes, and load nothing.

use orchestra_core::batch_layout::TensorSpan;
use orchestra_core::{DType, Dim, Layout, PixelInput, TensorSpec, Trim};

use crate::engine::edits::{EditError, Front, GraphEdit, put_behind, put_in_front, put_trim_in_front};

/// A model with nodes in front of its input `image` that normalise it, one with nodes that trim it, and one with nodes behind its output `logits`.
pub fn edited_models(model: &[u8]) -> [Result<Vec<u8>, String>; 3] {
    let row = vec![Dim::Fixed(3), Dim::Fixed(4), Dim::Fixed(5)];
    let tensor = TensorSpec { name: "image".into(), dtype: DType::U8, row, batch: Dim::Dynamic };
    let span = TensorSpan { tensor, offset: 0, row_bytes: 60 };
    let three = |value| vec![value; 3];
    let pixels =
        PixelInput { layout: Layout::Nchw, dtype: DType::F32, factor: three(0.5), offset: three(1.0) };
    let edited = |change: &dyn Fn(&mut GraphEdit<'_>) -> Result<(), EditError>| {
        let edited = GraphEdit::of(model).and_then(|mut edit| change(&mut edit).and_then(|()| edit.apply()));
        edited.map_err(|error| error.to_string())
    };
    [
        edited(&|edit| put_in_front(edit, &Front { span: &span, pixels: &pixels })),
        edited(&|edit| put_trim_in_front(edit, &span, &Trim { input: 0, axes: [0, 1] })),
        edited(&|edit| put_behind(edit, "logits", "logits")),
    ]
}
