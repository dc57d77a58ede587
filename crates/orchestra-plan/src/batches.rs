//! The largest batch of each stage.

use orchestra_core::TensorSpec;

use crate::cx::Cx;
use crate::devices::{Device, is_on_cuda};
use crate::diagnostics::Reported;
use crate::slots::SMALL;
use crate::workflow::{Connected, ModelNode, StageNode};

/// Largest batch, unless the file says otherwise.
const DEFAULT_BATCH: usize = 32;
/// The same on the CPU where a batch of [`DEFAULT_BATCH`] is not [`SMALL`]. More rows only gain where the way to a worker and back takes long
/// beside a batch, and take memory everywhere.
const DEFAULT_BATCH_OF_LARGE_ROWS: usize = 8;
/// What batches of a program grow to from [`DEFAULT_BATCH`] rows while they are quick and small: a row of a quick function takes less than a 32nd of what it takes to
/// hand a batch over.
const QUICK_BATCH: usize = 512;

/// Rows of the batches of a stage.
#[derive(Clone, Copy)]
pub(crate) struct BatchRows {
    /// The most.
    pub max: usize,
    /// See [`BatchPlan::grows_from`](crate::plan::BatchPlan::grows_from).
    pub grows_from: Option<usize>,
}

/// The most rows of a batch, and what it begins with.
pub(crate) fn batch_rows(
    stage: &StageNode,
    model: &ModelNode,
    devices: &[Device],
    cx: &mut Cx<'_>,
) -> Result<BatchRows, Reported> {
    let (Some(plan), Some(Connected { slots: Some(slots), .. })) = (stage.batch_plan(), &stage.connected)
    else {
        return Err(Reported);
    };
    let (name, model_name) = (&stage.name.value, &model.name.value);
    let asked = stage.batch().and_then(|batch| batch.max_batch.as_ref());
    if let (Some(asked), Some(limit)) = (asked, &model.max_batch)
        && asked.value > limit.value
    {
        let (asked_for, limit) = (asked.value, limit.value);
        let message = format!(
            "stage `{name}` asks for batches of {asked_for}, but `max_batch` of model `{model_name}` is {limit}"
        );
        return cx.error(asked.span, message).fail();
    }
    let mut grows_from = None;
    let (max, why) = match (plan.fixed_batch, asked.or(model.max_batch.as_ref())) {
        (Some(fixed), asked) => {
            if let Some(asked) = asked.filter(|a| a.value != fixed as u64) {
                cx.warning(asked.span, format!("model `{model_name}` takes batches of {fixed} only"))
                    .label("has no effect")
                    .help("export the model with an open batch dimension to choose the size");
            }
            (fixed, "the only size that the model takes")
        }
        (None, Some(asked)) => (asked.value as usize, "as asked"),
        (None, None) if is_on_cuda(plan, devices) => (DEFAULT_BATCH, "the default on a GPU"),
        (None, None) => match row_bytes([&slots.inputs, &slots.outputs]) {
            bytes if !is_small(bytes) => {
                (DEFAULT_BATCH_OF_LARGE_ROWS, "the default on the CPU, where larger ones gain nothing")
            }
            bytes if model.code().is_some() => {
                grows_from = Some(DEFAULT_BATCH);
                (
                    quick_batch(bytes),
                    "the default of a program for small rows, once they are known to be quick",
                )
            }
            _ => (DEFAULT_BATCH, "the default on the CPU for small rows"),
        },
    };
    cx.reasons.push(format!("stage `{name}`: batches of up to {max}: {why}"));
    Ok(BatchRows { max, grows_from })
}

/// What a row takes in a slot. A shape that is not known takes no room there.
fn row_bytes(tensors: [&[TensorSpec]; 2]) -> usize {
    let row_bytes = tensors.into_iter().flatten().filter_map(TensorSpec::row_bytes);
    row_bytes.fold(0, usize::saturating_add)
}

/// The most rows of quick batches: no more than are small together.
fn quick_batch(row_bytes: usize) -> usize {
    (SMALL / row_bytes.max(1)).clamp(DEFAULT_BATCH, QUICK_BATCH)
}

/// Whether a batch of the default size is small.
fn is_small(row_bytes: usize) -> bool {
    row_bytes.saturating_mul(DEFAULT_BATCH) <= SMALL
}

#[cfg(test)]
mod tests {
    use orchestra_core::{DType, Dim};

    use super::*;

    #[test]
    fn a_batch_is_small_up_to_a_mebibyte_of_all_its_rows() {
        let tensor =
            |dim| TensorSpec { name: "x".into(), dtype: DType::U8, row: vec![dim], batch: Dim::Dynamic };
        let rows_of = |bytes| [tensor(Dim::Fixed(bytes))];
        let is_small = |inputs: &[TensorSpec], outputs: &[TensorSpec]| is_small(row_bytes([inputs, outputs]));
        assert!(is_small(&rows_of(30 << 10), &rows_of(2 << 10)));
        assert!(!is_small(&rows_of(30 << 10), &rows_of((2 << 10) + 1)));
        assert!(is_small(&rows_of(30 << 10), &[tensor(Dim::Dynamic)]));
        assert!(!is_small(&rows_of(usize::MAX), &rows_of(usize::MAX)));
        assert_eq!([0, 2 << 10, 8 << 10, 32 << 10, usize::MAX].map(quick_batch), [512, 512, 128, 32, 32]);
    }
}
