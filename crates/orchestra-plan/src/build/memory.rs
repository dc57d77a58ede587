//! Divides memory: the slots of batches, what is carried with them, and what is left for loaders.

use orchestra_core::PipelineId;
use orchestra_core::batch_layout::BatchLayout;
use orchestra_core::data::ColumnType;

use super::assemble::Assembler;
use crate::bytes::format_bytes;
use crate::diagnostics::Span;
use crate::plan::{Plan, WorkerPlan};
use crate::slots::{SlotDemand, SlotError, allot};
use crate::wiring::Wired;

/// The most that pictures carried along by the stages of a pipeline may take.
const CARRIED_BYTES: u64 = 512 << 20;

/// What loaders may take for decoding where the memory of the machine is not known.
pub(super) const LOADER_BYTES: u64 = 4 << 30;

/// What batch slots may take.
struct SlotMemory {
    limit: Option<u64>,
    span: Option<Span>,
    /// In messages.
    called: &'static str,
}

/// Batch size, and where rows lie.
pub(super) type Layout = (usize, BatchLayout);

impl Assembler<'_> {
    /// Batch sizes and slots of all batch stages, by stage of the plan.
    pub(super) fn layouts(&mut self) -> Option<Vec<Option<Layout>>> {
        let parts = self.parts;
        let (mut stages, mut demands) = (Vec::new(), Vec::new());
        for stage in 0..parts.graph.n_stages {
            let Some(Wired::Batch { model, tensors, outputs, fixed_batch, .. }) = &parts.wired[stage] else {
                continue;
            };
            let (raw, raw_model) = (&parts.workflow.stages[stage], &parts.workflow.models[*model]);
            let demand = SlotDemand {
                stage: &raw.name.value,
                inputs: tensors,
                outputs,
                max_batch: self.max_batch(stage, raw_model, *fixed_batch, [tensors, outputs])?,
                workers: parts.workers[stage].iter().map(|w| w.count).sum(),
                most: parts.workers[stage].iter().map(WorkerPlan::most).sum(),
                streams: raw_model.streams(),
                on_cpu: !self.is_on_cuda(stage),
            };
            stages.push(stage);
            demands.push(demand);
        }
        let bound = self.slot_memory();
        let layouts = match allot(&demands, bound.limit, &mut self.reasons) {
            Ok(layouts) => layouts,
            Err(error) => {
                self.report(&error, &stages, &bound);
                return None;
            }
        };
        let mut by_stage: Vec<Option<Layout>> = (0..parts.graph.n_stages).map(|_| None).collect();
        for ((stage, demand), layout) in stages.into_iter().zip(&demands).zip(layouts) {
            by_stage[stage] = Some((demand.max_batch, layout));
        }
        Some(by_stage)
    }

    /// What all slots together may take: as the file says, else half of the memory of the machine.
    fn slot_memory(&self) -> SlotMemory {
        match &self.parts.workflow.memory {
            Some(limit) => {
                SlotMemory { limit: Some(limit.value), span: Some(limit.span), called: "`limits.memory`" }
            }
            None => {
                let memory = self.parts.machine.as_ref().map_or(0, |m| m.memory);
                let limit = (memory > 0).then_some(memory / 2);
                SlotMemory { limit, span: None, called: "half of this machine's memory" }
            }
        }
    }

    /// What the slots leave of the memory: a quarter at most for pictures that are carried, the same for each pipeline that carries some, and half
    /// at most for loaders.
    pub(super) fn share_memory(&self, plan: &mut Plan) {
        let limit = self.slot_memory().limit;
        let pipelines = plan.pipelines.len().max(1) as u64;
        let each = limit.map_or(CARRIED_BYTES, |limit| (limit / 4 / pipelines).min(CARRIED_BYTES));
        let carrying: Vec<PipelineId> = plan
            .stages
            .iter()
            .filter(|stage| stage.carries().any(|read| plan.column(*read).ty == ColumnType::Picture))
            .map(|stage| stage.pipeline)
            .collect();
        for (id, pipeline) in (0..).map(PipelineId).zip(&mut plan.pipelines) {
            pipeline.carried_bytes = if carrying.contains(&id) { each } else { 0 };
        }
        if let Some(limit) = limit {
            let carried: u64 = plan.pipelines.iter().map(|pipeline| pipeline.carried_bytes).sum();
            let slots: u64 = plan.batch_stages().map(|(_, batch)| batch.layout.total_bytes() as u64).sum();
            plan.bytes_left = limit.saturating_sub(carried + slots);
            plan.loader_bytes = plan.bytes_left.min(limit / 2);
        }
    }

    fn report(&mut self, error: &SlotError, stages: &[usize], bound: &SlotMemory) {
        let workflow = &self.parts.workflow;
        match error {
            SlotError::Layout { stage, error } => {
                let name = &workflow.stages[stages[*stage]].name;
                self.diags
                    .error(name.span, format!("batches of stage `{}` are too large: {error}", name.value))
                    .help("lower `batch.max` or the size of the images");
            }
            SlotError::TooLittleMemory { needed } => {
                let (needed, limit) = (format_bytes(*needed), format_bytes(bound.limit.unwrap_or_default()));
                let message =
                    format!("one batch slot per worker takes {needed}, but {} is {limit}", bound.called);
                let help = "lower `batch.max` or `workers`, or raise `limits.memory`";
                self.diags.error(bound.span, message).help(help);
            }
        }
    }
}
