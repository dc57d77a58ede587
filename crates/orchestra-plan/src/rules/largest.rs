//! A model gives the largest numbers of its output alone, where nothing reads more of it.

use orchestra_core::data::{Column, ColumnType};
use orchestra_core::{DType, Dim, TensorSpec};

use crate::kind::Draft;
use crate::outputs::StageOutput;
use crate::workflow::{KnownModel, Link, WorkflowTables};

/// The version of ONNX's operators in which `TopK` takes `k` as an input.
const TOP_K_BY_INPUT: i64 = 10;

/// The column of the largest numbers of the only output of a batch stage, if nothing reads more of it and the model can give them: its workers then
/// give these instead.
pub(crate) fn of(
    workflow: &WorkflowTables,
    stage: usize,
    model: &KnownModel,
    given: &[StageOutput],
    outputs: &mut [TensorSpec],
) -> Option<Column> {
    let ([output], [one]) = (outputs, given) else { return None };
    let is_this = |links: &[Option<Link>]| links.iter().flatten().any(|link| link.stage() == Some(stage));
    let mut readers = workflow.stages.iter().filter(|reader| is_this(&reader.links));
    let is_all_that_is_read = model.opset >= TOP_K_BY_INPUT
        && one.read.texts.is_none()
        && !workflow.sinks.iter().any(|sink| is_this(&sink.links))
        && readers.all(|reader| matches!(&reader.draft, Some(Draft::Stage(draft)) if draft.reads_largest()));
    let stored = largest(output).filter(|_| is_all_that_is_read)?;
    let model = std::mem::replace(output, stored.clone());
    Some(Column { name: model.name.clone(), ty: ColumnType::Largest { stored, model } })
}

/// The largest numbers of an output along its last dimension and their places, as they lie in memory. `None` where that would not be much less
/// than the output, or a place would be no exact f32.
fn largest(output: &TensorSpec) -> Option<TensorSpec> {
    const LEAST: usize = 64;
    const MOST: usize = 1 << f32::MANTISSA_DIGITS;
    let [row @ .., last] = &output.row[..] else { return None };
    let is_float = matches!(output.dtype, DType::F32 | DType::F16);
    let fits = is_float && last.fixed().is_some_and(|n| (LEAST..=MOST).contains(&n));
    let row = row.iter().copied().chain([Dim::Fixed(2)]).collect();
    fits.then(|| TensorSpec { row, dtype: DType::F32, ..output.clone() })
}
