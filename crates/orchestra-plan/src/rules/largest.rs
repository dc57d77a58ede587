//! A model gives the largest numbers of its output alone, where nothing reads more of it.

use orchestra_core::{DType, Dim, TensorSpec};

use crate::kind::Draft;
use crate::workflow::{KnownModel, Link, Workflow};

/// The version of ONNX's operators in which `TopK` takes `k` as an input.
const TOP_K_BY_INPUT: i64 = 10;

/// Whether all that reads the output of a batch stage reads the largest numbers of it alone, and the model can give them.
pub(crate) fn is_all_that_is_read(workflow: &Workflow, stage: usize, model: &KnownModel) -> bool {
    let is_this = |links: &[Option<Link>]| links.iter().flatten().any(|link| link.stage() == Some(stage));
    let mut readers = workflow.stages.iter().filter(|reader| is_this(&reader.links));
    model.opset >= TOP_K_BY_INPUT
        && !workflow.sinks.iter().any(|sink| is_this(&sink.links))
        && readers.all(|reader| matches!(&reader.draft, Some(Draft::Stage(draft)) if draft.reads_largest()))
}

/// The largest numbers of an output along its last dimension and their places, as they lie in memory. `None` where that would not be much less
/// than the output, or a place would be no exact f32.
pub(crate) fn of(output: &TensorSpec) -> Option<TensorSpec> {
    const LEAST: usize = 64;
    const MOST: usize = 1 << f32::MANTISSA_DIGITS;
    let [row @ .., last] = &output.row[..] else { return None };
    let is_float = matches!(output.dtype, DType::F32 | DType::F16);
    let fits = is_float && last.fixed().is_some_and(|n| (LEAST..=MOST).contains(&n));
    let row = row.iter().copied().chain([Dim::Fixed(2)]).collect();
    fits.then(|| TensorSpec { row, dtype: DType::F32, ..output.clone() })
}
