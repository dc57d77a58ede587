//! The batches of a stage: their sizes, and what else its workers are told about them.

use orchestra_core::{Iteration, ModelId, ReadOutput, TensorSpec, Trim};

use super::assemble::Assembler;
use super::memory::Layout;
use crate::plan::{BatchPlan, Growth, WorkerPlan};
use crate::raw::RawModel;
use crate::slots::{SMALL, ready_batches};

/// Largest batch, unless the file says otherwise.
const DEFAULT_BATCH: usize = 32;
/// The same on the CPU where a batch of [`DEFAULT_BATCH`] is not [`SMALL`]. More rows only gain where the way to a worker and back takes long
/// beside a batch, and take memory everywhere.
const DEFAULT_BATCH_OF_LARGE_ROWS: usize = 8;

impl Assembler<'_> {
    pub(super) fn batch_plan(
        &self,
        stage: usize,
        model: usize,
        (fixed_batch, iteration, trim, outputs): (
            Option<usize>,
            &Option<Iteration>,
            Option<Trim>,
            Vec<ReadOutput>,
        ),
        (max_batch, layout): Layout,
    ) -> Option<BatchPlan> {
        let wait = self.parts.workflow.stages[stage].batch()?.wait;
        let on_cuda = self.is_on_cuda(stage);
        let mut workers = self.parts.workers[stage].clone();
        cut_growth(&mut workers, layout.slots);
        let raw = &self.parts.workflow.models[model];
        Some(BatchPlan {
            model: ModelId(model as u16), // tables are no more than ids
            carries: Vec::new(),
            max_batch,
            fixed_batch,
            wait,
            // A convolution of ONNX Runtime keeps the plan of cuDNN for one shape, and makes it anew whenever the shape changes.
            padded_to: on_cuda.then_some(max_batch),
            workers,
            streams: raw.streams(),
            ready: ready_batches(&layout, !on_cuda),
            priority: raw.priority,
            recycle: raw.recycle,
            outputs,
            iteration: iteration.clone(),
            trim,
            layout,
        })
    }

    pub(super) fn max_batch(
        &mut self,
        stage: usize,
        model: &RawModel,
        fixed: Option<usize>,
        tensors: [&[TensorSpec]; 2],
    ) -> Option<usize> {
        let raw = &self.parts.workflow.stages[stage];
        let asked = raw.batch()?.max_batch.as_ref();
        let name = &raw.name.value;
        if let (Some(asked), Some(limit)) = (asked, &model.max_batch)
            && asked.value > limit.value
        {
            self.diags.error(
                asked.span,
                format!(
                    "stage `{name}` asks for batches of {}, but `max_batch` of model `{}` is {}",
                    asked.value, model.name.value, limit.value
                ),
            );
            return None;
        }
        let on_cuda = self.is_on_cuda(stage);
        let asked = asked.or(model.max_batch.as_ref());
        let (max, why) = match (fixed, asked) {
            (Some(fixed), asked) => {
                if let Some(asked) = asked.filter(|a| a.value != fixed as u64) {
                    self.diags
                        .warning(
                            asked.span,
                            format!("model `{}` takes batches of {fixed} only", model.name.value),
                        )
                        .label("has no effect")
                        .help("export the model with an open batch dimension to choose the size");
                }
                (fixed, "the only size that the model takes")
            }
            (None, Some(asked)) => (asked.value as usize, "as asked"),
            (None, None) if on_cuda => (DEFAULT_BATCH, "the default on a GPU"),
            (None, None) if is_small(tensors) => (DEFAULT_BATCH, "the default on the CPU for small rows"),
            (None, None) => {
                (DEFAULT_BATCH_OF_LARGE_ROWS, "the default on the CPU, where larger ones gain nothing")
            }
        };
        self.reasons.push(format!("stage `{name}`: batches of up to {max}: {why}"));
        Some(max)
    }

    /// Some worker of the stage runs on a GPU.
    pub(super) fn is_on_cuda(&self, stage: usize) -> bool {
        self.parts.workers[stage].iter().any(|w| self.parts.devices[w.device.index()].is_cuda())
    }
}

/// Whether a batch of the default size is small. A shape that is not known takes no room in a slot.
fn is_small(tensors: [&[TensorSpec]; 2]) -> bool {
    let row_bytes = tensors.into_iter().flatten().filter_map(TensorSpec::row_bytes);
    row_bytes.fold(0, usize::saturating_add).saturating_mul(DEFAULT_BATCH) <= SMALL
}

/// Each worker needs a slot: where memory for slots is short, fewer may come.
fn cut_growth(workers: &mut [WorkerPlan], slots: usize) {
    while workers.iter().map(WorkerPlan::most).sum::<usize>() > slots {
        let Some(largest) = workers.iter_mut().filter(|s| s.growth.is_some()).max_by_key(|s| s.most()) else {
            return;
        };
        largest.growth =
            largest.growth.map(|g| Growth { most: g.most - 1, ..g }).filter(|g| g.most > largest.count);
    }
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
        assert!(is_small([&rows_of(30 << 10), &rows_of(2 << 10)]));
        assert!(!is_small([&rows_of(30 << 10), &rows_of((2 << 10) + 1)]));
        assert!(is_small([&rows_of(30 << 10), &[tensor(Dim::Dynamic)]]));
        assert!(!is_small([&rows_of(usize::MAX), &rows_of(usize::MAX)]));
    }
}
